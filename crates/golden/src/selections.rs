use std::collections::BTreeMap;
use std::ops::Range;

use crate::Golden;
use crate::error::{EntryFault, GoldenError};
use crate::fixture::RegimeCall;
use crate::inputs::Inputs;
use crate::recorded::Values;

/// What one layer chose in one call. An absent part means the layer chooses for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerSelections {
    /// Compressed positions attended, `[B, S, K]` row-major, ascending, -1 last, not offset. Index source layers only.
    pub topk: Option<Vec<i64>>,
    /// Which compressed positions later index sources may score, `[B, S, T]`. The candidate source only.
    pub candidates: Option<Vec<bool>>,
    /// Routed experts, `[B, S, n_activated]`, best first.
    pub experts: Option<Vec<i64>>,
}

/// The discrete choices of one call, by layer: handed in to force a run, taken out to see what it chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selections {
    /// Layer number to its choices.
    pub layers: BTreeMap<usize, LayerSelections>,
}

impl Selections {
    /// The choices of one layer, if any were given.
    pub fn layer(&self, layer: usize) -> Option<&LayerSelections> {
        self.layers.get(&layer)
    }

    /// The choices of one layer, made empty if absent.
    pub fn layer_mut(&mut self, layer: usize) -> &mut LayerSelections {
        self.layers.entry(layer).or_default()
    }
}

/// What a golden chose in one call, and what it does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GoldenSelections {
    /// The choices that the golden or its inputs hold in whole.
    pub selections: Selections,
    /// The captures of choices that are only sampled: a run has to make these itself.
    pub left_out: Vec<String>,
}

impl Golden {
    /// The choices of a regime: top-k from `shared.LN.topk_idxs` or else the compressed part of `LN.sa_topk_idxs`,
    /// candidates from `shared.LN.candidates`, experts from `LN.moe_indices`.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] for a regime that is missing, or for indices that the layout rules out.
    pub fn selections(&self, regime: &str, inputs: Option<&Inputs>) -> Result<GoldenSelections, GoldenError> {
        let captures = self.regime(regime)?;
        let call = self.fixture.call(regime).ok_or_else(|| self.place(regime, "").fault(EntryFault::Unexpected))?;
        let reader = Reader { golden: self, call, inputs };
        let mut chosen = GoldenSelections::default();
        for name in captures.keys() {
            let known = if let Some(layer) = layer_of(name, "shared.L", ".topk_idxs") {
                let topk = reader.topk(layer, name)?;
                topk.map(|topk| chosen.selections.layer_mut(layer).topk = Some(topk))
            } else if let Some(layer) = layer_of(name, "shared.L", ".candidates") {
                let candidates = reader.integers_in(name, 0..2)?;
                candidates.map(|mask| {
                    let mask = mask.into_iter().map(|candidate| candidate == 1).collect();
                    chosen.selections.layer_mut(layer).candidates = Some(mask);
                })
            } else if let Some(layer) = layer_of(name, "L", ".moe_indices") {
                let experts = reader.integers_in(name, 0..self.fixture.n_routed_experts as i64)?;
                experts.map(|experts| chosen.selections.layer_mut(layer).experts = Some(experts))
            } else {
                continue;
            };
            if known.is_none() {
                chosen.left_out.push(name.clone());
            }
        }
        Ok(chosen)
    }
}

/// The layer number between `prefix` and `suffix`.
pub(crate) fn layer_of(name: &str, prefix: &str, suffix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()
}

struct Reader<'a> {
    golden: &'a Golden,
    call: RegimeCall,
    inputs: Option<&'a Inputs>,
}

impl Reader<'_> {
    /// The elements of an integer capture, if they are all known.
    fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, GoldenError> {
        let whole = self.golden.whole(&self.call.name, name, self.inputs)?;
        Ok(whole.and_then(|recorded| match recorded.values {
            Values::Int(values) => Some(values),
            Values::Float(_) => None,
        }))
    }

    /// As [`Reader::integers`], all of which must lie in `range`.
    fn integers_in(&self, name: &str, range: Range<i64>) -> Result<Option<Vec<i64>>, GoldenError> {
        let integers = self.integers(name)?;
        for &value in integers.iter().flatten() {
            self.expect(name, value, &range)?;
        }
        Ok(integers)
    }

    fn expect(&self, name: &str, value: i64, range: &Range<i64>) -> Result<(), GoldenError> {
        if range.contains(&value) {
            return Ok(());
        }
        let rule = format!("at least {} and less than {}", range.start, range.end);
        let fault = EntryFault::Value { key: "data", found: value.to_string(), rule };
        Err(self.golden.place(&self.call.name, name).fault(fault))
    }

    /// The positions an index source chose, without the offset that makes them rows of `sa_kv`.
    fn topk(&self, layer: usize, published: &str) -> Result<Option<Vec<i64>>, GoldenError> {
        let window_size = self.golden.fixture.window_size;
        let offset = self.call.window_rows(window_size);
        let attended = format!("L{layer}.sa_topk_idxs");
        let (name, indices) = if let Some(indices) = self.integers(published)? {
            (published, indices)
        } else if let Some(indices) = self.integers(&attended)? {
            // Each row lists the window first.
            let width = self.golden.capture(&self.call.name, &attended)?.shape.last().copied().unwrap_or(0);
            let window = offset.min(window_size);
            let compressed = indices.chunks(width.max(1)).flat_map(|row| row.iter().skip(window)).copied().collect();
            (attended.as_str(), compressed)
        } else {
            return Ok(None);
        };
        let keys = self.golden.capture(&self.call.name, &format!("L{layer}.sa_kv"))?;
        let rows = offset as i64..keys.shape.get(1).copied().unwrap_or(0) as i64;
        let position = |index| match index {
            -1 => Ok(-1),
            row => self.expect(name, row, &rows).map(|()| row - rows.start),
        };
        indices.into_iter().map(position).collect::<Result<_, _>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden;

    #[test]
    fn choices_are_read_without_their_offsets() {
        let chosen = golden().selections("decode3", None).expect("sound");
        let layer = chosen.selections.layer(0).expect("it chose");
        // Rows 0 and 1 of the keys are the ring.
        assert_eq!(layer.topk.as_deref(), Some([0, -1].as_slice()));
        assert_eq!(layer.experts.as_deref(), Some([1].as_slice()));
        assert_eq!(layer.candidates.as_deref(), Some([true].as_slice()));
        assert!(chosen.left_out.is_empty());
    }

    #[test]
    fn attended_rows_stand_in_for_a_thin_list() {
        let mut golden = golden();
        let captures = golden.regimes.get_mut("decode3").expect("it is there");
        captures.get_mut("shared.L0.topk_idxs").expect("it is there").stride = 2;
        captures.get_mut("L0.moe_indices").expect("it is there").stride = 2;
        let chosen = golden.selections("decode3", None).expect("sound");
        assert_eq!(chosen.selections.layer(0).and_then(|layer| layer.topk.clone()), Some(vec![0, -1]));
        assert_eq!(chosen.left_out, ["L0.moe_indices"]);
    }

    #[test]
    fn impossible_choices_are_errors() {
        for (capture, value) in
            [("shared.L0.topk_idxs", 0), ("shared.L0.topk_idxs", 3), ("shared.L0.candidates", 2), ("L0.moe_indices", 2)]
        {
            let mut golden = golden();
            let captures = golden.regimes.get_mut("decode3").expect("it is there");
            let data = &mut captures.get_mut(capture).expect("it is there").data;
            *data = Values::Int(data.to_f64().map(|_| value).collect());
            let error = golden.selections("decode3", None).expect_err("impossible").to_string();
            assert!(error.starts_with(&format!("test.json: decode3: {capture}: `data` is {value}")), "{error}");
        }
    }
}
