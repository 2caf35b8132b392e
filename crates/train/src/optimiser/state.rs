//! Storing what an optimiser remembers.
//!
//! A safetensors file, not Burn's recorders: those store f32 at most, which would not continue a run in f64 exactly,
//! know parameters by id only, and read back by the type of the whole record. Here every parameter that has seen a
//! gradient has tensors under its name: `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step` (i64) of AdamW,
//! `NAME.momentum_buffer` of Muon, in the parameter's own type and axes. The metadata holds the settings and all
//! parameters as JSON.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    path::Path,
};

use burn::tensor::{
    Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use safetensors::{Dtype, SafeTensors, View, tensor::TensorView};
use serde::{Deserialize, Serialize};

use super::{
    Algorithm, GroupedOptimiser, OptimiserError, OptimiserSettings, ParameterGroup, file, grouped::Member,
    update::ParameterState,
};

const EXP_AVG: &str = "exp_avg";
const EXP_AVG_SQ: &str = "exp_avg_sq";
const STEP: &str = "step";
const MOMENTUM: &str = "momentum_buffer";

/// What a state belongs to.
#[derive(Serialize, Deserialize)]
struct Header {
    settings: OptimiserSettings,
    /// Axes by name.
    parameters: BTreeMap<String, Vec<usize>>,
}

impl<B: AutodiffBackend> GroupedOptimiser<B> {
    /// Stores the state of every parameter, so that an optimiser that loads it continues bit for bit.
    ///
    /// The file is whole or not there: it is written under another name first.
    ///
    /// # Errors
    /// When the file cannot be written, or a state has values of a type that safetensors does not know.
    pub fn save(&self, path: &Path) -> Result<(), OptimiserError> {
        let header = serde_json::to_string(&self.header()).map_err(|error| OptimiserError::file(path, error))?;
        let mut tensors = Vec::new();
        for (id, state) in &self.states {
            let Some(Member { name, dims, .. }) = self.parameters.get(id) else { continue };
            let dtype = file::stored_dtype(state.dtype()).map_err(|fault| OptimiserError::file(path, fault))?;
            let mut push = |key: &str, value| tensors.push((format!("{name}.{key}"), value));
            match state {
                ParameterState::AdamW { steps, exp_avg, exp_avg_sq } => {
                    push(EXP_AVG, Stored::Values { values: exp_avg, dims, dtype });
                    push(EXP_AVG_SQ, Stored::Values { values: exp_avg_sq, dims, dtype });
                    push(STEP, Stored::Count(*steps as i64));
                }
                ParameterState::Muon { momentum } => push(MOMENTUM, Stored::Values { values: momentum, dims, dtype }),
            }
        }
        file::replace(path, tensors, header)
    }

    /// Replaces the state by a stored one, on a device.
    ///
    /// # Errors
    /// When the file cannot be read or is no state of an optimiser; when it was made with other settings or for other
    /// parameters. The state is as before then.
    pub fn load(&mut self, path: &Path, device: &B::Device) -> Result<(), OptimiserError> {
        let bytes = file::map(path)?;
        let (tensors, header) = file::parse(path, &bytes)?;
        let header: Header = serde_json::from_str(&header).map_err(|error| OptimiserError::file(path, error))?;
        self.check_settings(path, &header.settings)?;
        self.check_parameters(path, &header.parameters)?;

        let reader = Reader { tensors: &tensors, path, device };
        let mut states = HashMap::new();
        let mut read = 0;
        for (&id, member) in &self.parameters {
            let Some(group) = member.group else { continue };
            if let Some(state) = reader.state(member, &self.settings.group(group).algorithm)? {
                read += match state {
                    ParameterState::AdamW { .. } => 3,
                    ParameterState::Muon { .. } => 1,
                };
                states.insert(id, state);
            }
        }
        if read != tensors.len() {
            let fault = format!("{} tensors, of which {read} belong to the parameters' states", tensors.len());
            return Err(OptimiserError::file(path, fault));
        }
        self.states = states;
        Ok(())
    }

    fn header(&self) -> Header {
        let parameters = self.parameters.values().map(|member| (member.name.clone(), member.dims.clone())).collect();
        Header { settings: self.settings, parameters }
    }

    fn check_settings(&self, path: &Path, stored: &OptimiserSettings) -> Result<(), OptimiserError> {
        let other = |key: String, found: &dyn Debug, expected: &dyn Debug| {
            let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
            Err(OptimiserError::OtherSettings { file: path.to_path_buf(), key, found, expected })
        };
        if stored.clip_norm != self.settings.clip_norm {
            return other("clip_norm".to_owned(), &stored.clip_norm, &self.settings.clip_norm);
        }
        let differs = |group: &ParameterGroup| stored.group(*group) != self.settings.group(*group);
        match ParameterGroup::ALL.into_iter().find(differs) {
            Some(group) => other(group.to_string(), stored.group(group), self.settings.group(group)),
            None => Ok(()),
        }
    }

    fn check_parameters(&self, path: &Path, stored: &BTreeMap<String, Vec<usize>>) -> Result<(), OptimiserError> {
        let listed = self.header().parameters;
        let differs = |name: &&String| stored.get(*name) != listed.get(*name);
        let Some(name) = stored.keys().chain(listed.keys()).find(differs) else { return Ok(()) };
        let axes = |dims: Option<&Vec<usize>>| dims.map_or_else(|| "none".to_owned(), |dims| format!("{dims:?}"));
        Err(OptimiserError::OtherParameters {
            file: path.to_path_buf(),
            name: name.clone(),
            found: axes(stored.get(name)),
            expected: axes(listed.get(name)),
        })
    }
}

/// Reads states from a file.
struct Reader<'a, B: Backend> {
    tensors: &'a SafeTensors<'a>,
    path: &'a Path,
    device: &'a B::Device,
}

impl<B: Backend> Reader<'_, B> {
    /// The state of a parameter, none where it has seen no gradient.
    fn state(&self, member: &Member, algorithm: &Algorithm) -> Result<Option<ParameterState<B>>, OptimiserError> {
        let first = match algorithm {
            Algorithm::AdamW(_) => EXP_AVG,
            Algorithm::Muon(_) => MOMENTUM,
        };
        if self.tensors.tensor(&format!("{}.{first}", member.name)).is_err() {
            return Ok(None);
        }
        Ok(Some(match algorithm {
            Algorithm::AdamW(_) => ParameterState::AdamW {
                steps: self.count(member)?,
                exp_avg: self.values(member, EXP_AVG)?,
                exp_avg_sq: self.values(member, EXP_AVG_SQ)?,
            },
            Algorithm::Muon(_) => ParameterState::Muon { momentum: self.values(member, MOMENTUM)? },
        }))
    }

    fn values(&self, member: &Member, key: &str) -> Result<Tensor<B, 1>, OptimiserError> {
        let tensor = self.tensor(member, key, &member.dims)?;
        let Some(dtype) = file::loaded_dtype(tensor.dtype()) else {
            return Err(self.fault(member, key, format!("is of {:?}, expected floats", tensor.dtype())));
        };
        let length = member.dims.iter().product::<usize>();
        let data = TensorData::from_bytes_vec(tensor.data().to_vec(), [length], dtype);
        Ok(Tensor::from_data(data, (self.device, dtype)))
    }

    fn count(&self, member: &Member) -> Result<usize, OptimiserError> {
        let tensor = self.tensor(member, STEP, &[])?;
        let count = match (tensor.dtype(), tensor.data().try_into()) {
            (Dtype::I64, Ok(bytes)) => usize::try_from(i64::from_le_bytes(bytes)).ok(),
            _ => None,
        };
        count.ok_or_else(|| self.fault(member, STEP, "is no count in i64".to_owned()))
    }

    fn tensor(&self, member: &Member, key: &str, dims: &[usize]) -> Result<TensorView<'_>, OptimiserError> {
        let tensor = self.tensors.tensor(&format!("{}.{key}", member.name));
        let tensor = tensor.map_err(|error| self.fault(member, key, format!("cannot be read: {error}")))?;
        match tensor.shape() == dims {
            true => Ok(tensor),
            false => Err(self.fault(member, key, format!("has axes {:?}, expected {dims:?}", tensor.shape()))),
        }
    }

    fn fault(&self, member: &Member, key: &str, fault: String) -> OptimiserError {
        OptimiserError::file(self.path, format!("`{}.{key}` {fault}", member.name))
    }
}

/// A tensor of a state file.
enum Stored<'a, B: Backend> {
    /// Read from its device when it is written.
    Values { values: &'a Tensor<B, 1>, dims: &'a [usize], dtype: Dtype },
    /// A scalar.
    Count(i64),
}

impl<B: Backend> View for Stored<'_, B> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Values { dtype, .. } => *dtype,
            Self::Count(_) => Dtype::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Values { dims, .. } => dims,
            Self::Count(_) => &[],
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Values { values, .. } => values.to_data().as_bytes().to_vec(),
            Self::Count(count) => count.to_le_bytes().to_vec(),
        }
        .into()
    }

    fn data_len(&self) -> usize {
        self.shape().iter().product::<usize>() * self.dtype().bitsize() / 8
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::DType;

    use super::*;
    use crate::optimiser::{
        GroupSettings,
        testing::{Toy, TrainBackend, gradients, parameters, toy, values},
    };

    fn settings() -> OptimiserSettings {
        let adamw = OptimiserSettings::uniform(GroupSettings::adamw(0.01).with_weight_decay(0.1));
        OptimiserSettings { matrices: GroupSettings::muon(0.02), ..adamw }
    }

    fn optimiser() -> GroupedOptimiser<TrainBackend> {
        GroupedOptimiser::new(settings(), parameters()).unwrap()
    }

    fn advance(
        optimiser: &mut GroupedOptimiser<TrainBackend>,
        module: Toy<TrainBackend>,
        steps: std::ops::Range<usize>,
        dtype: DType,
    ) -> Toy<TrainBackend> {
        steps.fold(module, |module, step| optimiser.step(module, gradients(step + 1, dtype), step as u64).unwrap())
    }

    #[test]
    fn an_optimiser_with_a_loaded_state_continues_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in [DType::F32, DType::F64] {
            let [path, again] = ["a", "b"].map(|name| folder.path().join(name));
            let mut first = optimiser();
            let half = advance(&mut first, toy(dtype), 0..3, dtype);
            first.save(&path).unwrap();
            let expected = advance(&mut first, half.clone(), 3..6, dtype);

            let mut second = optimiser();
            second.load(&path, &Default::default()).unwrap();
            second.save(&again).unwrap();
            assert_eq!(fs::read(&path).unwrap(), fs::read(&again).unwrap());
            let found = advance(&mut second, half.clone(), 3..6, dtype);
            assert_eq!(values(&found), values(&expected));

            let afresh = advance(&mut optimiser(), half, 3..6, dtype);
            assert_ne!(values(&afresh), values(&expected), "the state matters");
        }
    }

    #[test]
    fn states_are_stored_by_name_in_the_axes_of_the_parameter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut optimiser = optimiser();
        advance(&mut optimiser, toy(DType::F64), 0..2, DType::F64);
        optimiser.save(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");

        let bytes = fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut names = tensors.names();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "embed.weight.exp_avg",
                "embed.weight.exp_avg_sq",
                "embed.weight.step",
                "layers.0.attn.wo_a.weight.momentum_buffer",
                "layers.0.attn.wq_a.weight.momentum_buffer",
                "norm.weight.exp_avg",
                "norm.weight.exp_avg_sq",
                "norm.weight.step",
            ]
        );
        let stack = tensors.tensor("layers.0.attn.wo_a.weight.momentum_buffer").unwrap();
        assert_eq!((stack.dtype(), stack.shape()), (Dtype::F64, [2, 3, 2].as_slice()));
        assert_eq!(tensors.tensor("norm.weight.step").unwrap().data(), 2i64.to_le_bytes());
    }

    #[test]
    fn a_state_of_something_else_is_an_error_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut saved = optimiser();
        let module = advance(&mut saved, toy(DType::F32), 0..2, DType::F32);
        saved.save(&path).unwrap();

        let vectors = GroupSettings::adamw(0.5);
        let mut other =
            GroupedOptimiser::<TrainBackend>::new(OptimiserSettings { vectors, ..settings() }, parameters()).unwrap();
        let error = other.load(&path, &Default::default()).unwrap_err();
        assert!(matches!(error, OptimiserError::OtherSettings { key, .. } if key == "vectors"));

        let fewer = parameters().into_iter().take(3);
        let mut other = GroupedOptimiser::<TrainBackend>::new(settings(), fewer).unwrap();
        let error = other.load(&path, &Default::default()).unwrap_err().to_string();
        let expected = "the state of parameter `layers.0.ffn.gate.bias` has axes [3], the optimiser has none";
        assert!(error.ends_with(expected), "{error}");

        let bytes = fs::read(&path).unwrap();
        for broken in [&bytes[..0], &bytes[..20], &bytes[..bytes.len() - 1]] {
            fs::write(&path, broken).unwrap();
            assert!(matches!(saved.load(&path, &Default::default()), Err(OptimiserError::File { .. })));
        }
        let missing = saved.load(&folder.path().join("none"), &Default::default());
        assert!(matches!(missing, Err(OptimiserError::Io { action: "read", .. })));

        let expected = advance(&mut saved.clone(), module.clone(), 2..3, DType::F32);
        assert_eq!(values(&advance(&mut saved, module, 2..3, DType::F32)), values(&expected));
    }
}
