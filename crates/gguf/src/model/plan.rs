//! Which type a file gives to which tensors.

use std::fmt;
use std::str::FromStr;

use dsv41_config::{Part, TensorSpec};
use dsv41_quant::GgmlType;

use super::error::ModelError;
use super::file::ModelFile;

/// The types of a file's matrices by what they do. Vectors (norms, sinks, biases, the mixers' base and scale) are F32
/// in every plan. With `Option` for the types, some of them may be left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypePlan<T = GgmlType> {
    /// The token embedding.
    pub embedding: T,
    /// The output head.
    pub head: T,
    /// Projections of attention, compressor, indexer and engram.
    pub dense: T,
    /// Routed experts' gate and up matrices.
    pub gate_up: T,
    /// Routed experts' down matrices.
    pub down: T,
    /// The shared expert's gate and up matrices.
    pub shared_gate_up: T,
    /// The shared expert's down matrix.
    pub shared_down: T,
    /// Engram tables.
    pub engram: T,
    /// The router's weight. Rounding it changes which experts a token goes to.
    pub router: T,
    /// The hyper-connections' mixers and the engram's gate weights. They take a thousandth of a file, and answers
    /// suffer when they are quantised, so that F32 is the choice of every plan but [`TypePlan::PUBLISHED`].
    pub mixers: T,
}

impl TypePlan {
    /// What the published 264.5 GB files hold, quantised mixers included.
    pub const PUBLISHED: Self = Self { router: GgmlType::Bf16, mixers: GgmlType::Q2K, ..Self::Q2K_MIX };

    /// The published types where they do no harm: 2 bits for most, 3 for what leaves an expert, 6 for the head.
    pub const Q2K_MIX: Self =
        Self { down: GgmlType::Q3K, shared_down: GgmlType::Q3K, head: GgmlType::Q6K, ..Self::uniform(GgmlType::Q2K) };

    /// One type for every matrix but the router's and the mixers', which are F32.
    pub const fn uniform(ty: GgmlType) -> Self {
        Self {
            embedding: ty,
            head: ty,
            dense: ty,
            gate_up: ty,
            down: ty,
            shared_gate_up: ty,
            shared_down: ty,
            engram: ty,
            router: GgmlType::F32,
            mixers: GgmlType::F32,
        }
    }

    /// The type for a tensor, whether or not its rows divide into that type's blocks.
    pub fn wanted(&self, tensor: &TensorSpec) -> GgmlType {
        self.of_part(tensor).copied().unwrap_or(GgmlType::F32)
    }

    /// The names of the parts of a plan on command lines.
    const PARTS: [(&str, Field); 10] = [
        ("embedding", |plan| &mut plan.embedding),
        ("head", |plan| &mut plan.head),
        ("dense", |plan| &mut plan.dense),
        ("gate-up", |plan| &mut plan.gate_up),
        ("down", |plan| &mut plan.down),
        ("shared-gate-up", |plan| &mut plan.shared_gate_up),
        ("shared-down", |plan| &mut plan.shared_down),
        ("engram", |plan| &mut plan.engram),
        ("router", |plan| &mut plan.router),
        ("mixers", |plan| &mut plan.mixers),
    ];
}

impl<T> TypePlan<T> {
    /// What the plan says of the tensors of which this is one; none for a vector.
    fn of_part(&self, tensor: &TensorSpec) -> Option<&T> {
        let leaves_expert = tensor.name.ends_with(".w2.weight");
        Some(match tensor.part {
            _ if tensor.shape.len() < 2 => return None,
            Part::Embedding => &self.embedding,
            Part::Head => &self.head,
            Part::Attention | Part::Compressor | Part::Indexer => &self.dense,
            Part::RoutedExperts if leaves_expert => &self.down,
            Part::RoutedExperts => &self.gate_up,
            Part::SharedExperts if leaves_expert => &self.shared_down,
            Part::SharedExperts => &self.shared_gate_up,
            Part::EngramTables => &self.engram,
            Part::EngramProjections if tensor.name.ends_with(".wkv.weight") => &self.dense,
            Part::EngramProjections | Part::HyperConnections => &self.mixers,
            Part::Router => &self.router,
            Part::Norms => return None,
        })
    }
}

/// Gives every tensor of a file its type.
pub trait Types {
    /// The type for a tensor, whether or not its rows divide into that type's blocks.
    ///
    /// # Errors
    /// When it depends on another file that does not tell.
    fn of(&self, tensor: &TensorSpec) -> Result<GgmlType, ModelError>;
}

impl Types for TypePlan {
    fn of(&self, tensor: &TensorSpec) -> Result<GgmlType, ModelError> {
        Ok(self.wanted(tensor))
    }
}

/// The types of another file of the same model, but for the parts that have chosen ones.
#[derive(Debug, Clone, Copy)]
pub struct OwnTypes<'a> {
    /// The other file.
    pub file: &'a ModelFile,
    /// Types to give instead.
    pub chosen: TypePlan<Option<GgmlType>>,
}

impl Types for OwnTypes<'_> {
    fn of(&self, tensor: &TensorSpec) -> Result<GgmlType, ModelError> {
        match self.chosen.of_part(tensor) {
            Some(&Some(chosen)) => Ok(chosen),
            _ => self.file.ty(&tensor.name),
        }
    }
}

/// One of a plan's types.
type Field = fn(&mut TypePlan) -> &mut GgmlType;

/// The type that a row of `columns` values takes where `wanted` is asked for: that one, or where the row does not divide
/// into its blocks Q8_0, or where not into those either F16.
pub fn fitting(wanted: GgmlType, columns: usize) -> GgmlType {
    let fits = |ty: &GgmlType| columns.is_multiple_of(ty.block_len());
    [wanted, GgmlType::Q8_0].into_iter().find(fits).unwrap_or(GgmlType::F16)
}

/// Words that are no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no type plan: expected {expected}")]
pub struct UnknownPlan {
    /// The word at fault.
    pub word: String,
    /// What may stand in its place.
    pub expected: String,
}

/// `TYPE` or `q2_k-mix` or `published`, then any number of `,PART=TYPE`.
impl FromStr for TypePlan {
    type Err = UnknownPlan;

    fn from_str(text: &str) -> Result<Self, UnknownPlan> {
        let mut words = text.split(',');
        // The first word of a split exists.
        let mut plan = match words.next().unwrap_or_default() {
            "q2_k-mix" => Self::Q2K_MIX,
            "published" => Self::PUBLISHED,
            word => Self::uniform(parse_type(word, "`q2_k-mix`, `published` or ")?),
        };
        for word in words {
            let unknown = || UnknownPlan {
                word: word.to_owned(),
                expected: format!("PART=TYPE with one of the parts {}", Self::PARTS.map(|(name, _)| name).join(", ")),
            };
            let (part, ty) = word.split_once('=').ok_or_else(unknown)?;
            let (_, field) = Self::PARTS.into_iter().find(|(name, _)| *name == part).ok_or_else(unknown)?;
            *field(&mut plan) = parse_type(ty, "")?;
        }
        Ok(plan)
    }
}

fn parse_type(word: &str, alternatives: &str) -> Result<GgmlType, UnknownPlan> {
    word.parse().map_err(|_| UnknownPlan {
        word: word.to_owned(),
        expected: format!("{alternatives}one of the types {}", GgmlType::ALL.map(GgmlType::name).join(", ")),
    })
}

/// Every part and its type, as [`TypePlan::from_str`] reads them after the first word.
impl fmt::Display for TypePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plan = *self;
        let words: Vec<String> = Self::PARTS.map(|(name, field)| format!("{name}={}", field(&mut plan))).to_vec();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::released;

    fn wanted(plan: &TypePlan, name: &str) -> GgmlType {
        let tensors = released("v4.1-flash").tensors();
        plan.wanted(tensors.iter().find(|tensor| tensor.name == name).unwrap())
    }

    #[test]
    fn the_published_plan_is_the_published_files() {
        let expected = [
            ("embed.weight", GgmlType::Q2K),
            ("norm.weight", GgmlType::F32),
            ("head.weight", GgmlType::Q6K),
            ("layers.1.attn.wo_a.weight", GgmlType::Q2K),
            ("layers.1.attn.attn_sink", GgmlType::F32),
            ("layers.1.hc_attn_fn", GgmlType::Q2K),
            ("layers.1.hc_attn_base", GgmlType::F32),
            ("layers.1.ffn.gate.weight", GgmlType::Bf16),
            ("layers.1.ffn.gate.bias", GgmlType::F32),
            ("layers.1.ffn.experts.3.w1.weight", GgmlType::Q2K),
            ("layers.1.ffn.experts.3.w2.weight", GgmlType::Q3K),
            ("layers.1.ffn.experts.3.w3.weight", GgmlType::Q2K),
            ("layers.1.ffn.shared_experts.w2.weight", GgmlType::Q3K),
            ("layers.2.attn.compressor.wgate.weight", GgmlType::Q2K),
            ("layers.2.attn.indexer.k_norm.weight", GgmlType::F32),
            ("layers.2.attn.indexer.weights_proj.weight", GgmlType::Q2K),
            ("layers.1.engram.embed.weight", GgmlType::Q2K),
            ("layers.1.engram.wkv.weight", GgmlType::Q2K),
            ("layers.1.engram.q_weight", GgmlType::Q2K),
        ];
        for (name, ty) in expected {
            assert_eq!(wanted(&TypePlan::PUBLISHED, name), ty, "{name}");
        }
    }

    #[test]
    fn what_quantisation_hurts_stays_f32() {
        for name in ["layers.1.hc_ffn_fn", "layers.1.engram.k_weight", "layers.1.ffn.gate.weight"] {
            assert_eq!(wanted(&TypePlan::Q2K_MIX, name), GgmlType::F32, "{name}");
        }
    }

    #[test]
    fn rows_that_do_not_divide_into_blocks_take_a_wider_type() {
        assert_eq!(fitting(GgmlType::Q2K, 512), GgmlType::Q2K);
        assert_eq!(fitting(GgmlType::Q2K, 128), GgmlType::Q8_0);
        assert_eq!(fitting(GgmlType::Q3K, 24), GgmlType::F16);
        assert_eq!(fitting(GgmlType::Q4_0, 40), GgmlType::F16);
        assert_eq!(fitting(GgmlType::Bf16, 7), GgmlType::Bf16);
    }

    #[test]
    fn plans_are_read_as_they_are_written() {
        assert_eq!("q4_k".parse(), Ok(TypePlan::uniform(GgmlType::Q4K)));
        assert_eq!("published".parse(), Ok(TypePlan::PUBLISHED));
        let plan: TypePlan = "q2_k-mix,head=q8_0,engram=mxfp4".parse().unwrap();
        assert_eq!(plan, TypePlan { head: GgmlType::Q8_0, engram: GgmlType::Mxfp4, ..TypePlan::Q2K_MIX });
        assert_eq!(format!("f32,{plan}").parse(), Ok(plan));
    }

    #[test]
    fn words_that_are_no_plan_are_named() {
        for (text, word, expected) in [
            ("", "", "`q2_k-mix`"),
            ("q9_k", "q9_k", "one of the types f32,"),
            ("q2_k,head", "head", "PART=TYPE"),
            ("q2_k,tail=f32", "tail=f32", "embedding, head,"),
            ("q2_k,head=f31", "f31", "one of the types f32,"),
        ] {
            let error = text.parse::<TypePlan>().unwrap_err();
            assert_eq!(error.word, word, "{text}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
