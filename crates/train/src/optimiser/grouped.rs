//! Stepping every parameter by its group.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Tensor, backend::AutodiffBackend},
};

use super::{
    Algorithm, GradientNorm, NamedParameter, OptimiserError, OptimiserSettings, ParameterGroup, clip_gradients,
    group_of,
    update::{self, ParameterState},
};

/// An optimiser of all parameters of a model, each updated as its group's settings say.
///
/// Parameters without a gradient are left alone, as if they were not there: nothing decays them.
#[derive(Debug, Clone)]
pub struct GroupedOptimiser<B: AutodiffBackend> {
    pub(super) settings: OptimiserSettings,
    pub(super) parameters: HashMap<ParamId, Member>,
    pub(super) states: HashMap<ParamId, ParameterState<B::InnerBackend>>,
}

/// A parameter and where it belongs.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    /// None for one that takes no gradient.
    pub(super) group: Option<ParameterGroup>,
}

impl<B: AutodiffBackend> GroupedOptimiser<B> {
    /// An optimiser that has seen no gradient yet.
    ///
    /// # Errors
    /// When a setting is out of its range; when a parameter's name is unknown or listed twice; when a parameter that is
    /// to have Muon is no matrix or stack of matrices.
    pub fn new(
        settings: OptimiserSettings,
        parameters: impl IntoIterator<Item = NamedParameter>,
    ) -> Result<Self, OptimiserError> {
        settings.validate()?;
        let mut members = HashMap::new();
        let mut names = HashSet::new();
        for NamedParameter { id, name, dims } in parameters {
            let group = group_of(&name)?;
            let has_muon = group.is_some_and(|group| matches!(settings.group(group).algorithm, Algorithm::Muon(_)));
            if has_muon && dims.len() < 2 {
                return Err(OptimiserError::NoMatrix { name, dims });
            }
            let is_new = names.insert(name.clone());
            let member = Member { name: name.clone(), dims, group };
            if members.insert(id, member).is_some() || !is_new {
                return Err(OptimiserError::DuplicateParameter { name });
            }
        }
        Ok(Self { settings, parameters: members, states: HashMap::new() })
    }

    /// The settings of all groups.
    pub fn settings(&self) -> &OptimiserSettings {
        &self.settings
    }

    /// Clips all gradients as the settings say; see [`clip_gradients`].
    ///
    /// # Errors
    /// [`OptimiserError::NonFiniteNorm`] when a gradient is infinite or not a number.
    pub fn clip<M: AutodiffModule<B>>(
        &self,
        module: &M,
        gradients: &mut GradientsParams,
        host_squares: f64,
    ) -> Result<GradientNorm, OptimiserError> {
        clip_gradients(module, gradients, host_squares, self.settings.clip_norm)
    }

    /// The module after a step, numbered from 0, by which the schedules go.
    ///
    /// # Errors
    /// When the module, its gradients and the optimiser's list do not have the same parameters, of the same axes and
    /// types; nothing is updated then.
    pub fn step<M: AutodiffModule<B>>(
        &mut self,
        module: M,
        gradients: GradientsParams,
        step: u64,
    ) -> Result<M, OptimiserError> {
        self.check(&module, &gradients)?;
        Ok(module.map(&mut Update { optimiser: self, gradients, step }))
    }

    fn check<M: AutodiffModule<B>>(&self, module: &M, gradients: &GradientsParams) -> Result<(), OptimiserError> {
        let mut check = Check { optimiser: self, gradients, seen: HashSet::new(), matched: 0, result: Ok(()) };
        module.visit(&mut check);
        let Check { seen, matched, result, .. } = check;
        result?;
        if matched != gradients.len() {
            return Err(OptimiserError::ForeignGradients { count: gradients.len() - matched });
        }
        let trained = self.parameters.iter().filter(|(_, member)| member.group.is_some());
        match trained.filter(|(id, _)| !seen.contains(id)).map(|(_, member)| &member.name).min() {
            Some(name) => Err(OptimiserError::MissingParameter { name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// Compares a module and its gradients with the optimiser's list.
struct Check<'a, B: AutodiffBackend> {
    optimiser: &'a GroupedOptimiser<B>,
    gradients: &'a GradientsParams,
    /// Parameters visited.
    seen: HashSet<ParamId>,
    /// Gradients that belong to one of them.
    matched: usize,
    result: Result<(), OptimiserError>,
}

impl<B: AutodiffBackend> Check<'_, B> {
    fn check<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) -> Result<(), OptimiserError> {
        self.seen.insert(param.id);
        let dims = param.dims().to_vec();
        let has_gradient = self.gradients.get::<B::InnerBackend, D>(param.id).is_some();
        let Some(member) = self.optimiser.parameters.get(&param.id) else {
            return match has_gradient || param.is_require_grad() {
                true => Err(OptimiserError::UnlistedParameter { id: param.id.serialize(), dims }),
                false => Ok(()),
            };
        };
        let name = || member.name.clone();
        if dims != member.dims {
            return Err(OptimiserError::Shape { name: name(), found: dims, expected: member.dims.clone() });
        }
        if !has_gradient {
            return Ok(());
        }
        if member.group.is_none() {
            return Err(OptimiserError::FrozenParameter { name: name() });
        }
        self.matched += 1;
        match self.optimiser.states.get(&param.id).map(ParameterState::dtype) {
            Some(expected) if expected != param.dtype() => {
                Err(OptimiserError::ValueType { name: name(), found: param.dtype(), expected })
            }
            _ => Ok(()),
        }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Check<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.result.is_ok() {
            self.result = self.check(param);
        }
    }
}

/// Updates the parameters that have a gradient.
struct Update<'a, B: AutodiffBackend> {
    optimiser: &'a mut GroupedOptimiser<B>,
    gradients: GradientsParams,
    step: u64,
}

impl<B: AutodiffBackend> Update<'_, B> {
    fn update<const D: usize>(&mut self, id: ParamId, weight: Tensor<B, D>) -> Tensor<B, D> {
        let group = self.optimiser.parameters.get(&id).and_then(|member| member.group);
        let (Some(group), Some(gradient)) = (group, self.gradients.remove::<B::InnerBackend, D>(id)) else {
            return weight;
        };
        let settings = self.optimiser.settings.group(group);
        let is_trained = weight.is_require_grad();
        let state = self.optimiser.states.remove(&id);
        let (weight, state) = update::step(settings, settings.rate_at(self.step), weight.inner(), gradient, state);
        self.optimiser.states.extend(state.map(|state| (id, state)));
        Tensor::from_inner(weight).set_require_grad(is_trained)
    }
}

impl<B: AutodiffBackend> ModuleMapper<B> for Update<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, weight, mapper) = param.consume();
        let weight = self.update(id, weight);
        Param::from_mapped_value(id, weight, mapper)
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{DType, TensorData},
    };

    use super::*;
    use crate::optimiser::{
        GroupSettings, Schedule,
        testing::{GATE_BIAS, Toy, TrainBackend, gradients, id, parameters, toy, values},
    };

    fn uniform(rate: f64) -> GroupedOptimiser<TrainBackend> {
        GroupedOptimiser::new(OptimiserSettings::uniform(GroupSettings::adamw(rate)), parameters()).unwrap()
    }

    fn largest_change(before: &TensorData, after: &TensorData) -> f64 {
        before.iter::<f64>().zip(after.iter::<f64>()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    fn changes(before: &Toy<TrainBackend>, after: &Toy<TrainBackend>) -> [f64; 5] {
        let (before, after) = (values(before), values(after));
        std::array::from_fn(|place| largest_change(&before[place], &after[place]))
    }

    #[test]
    fn every_group_moves_at_its_own_scheduled_rate() {
        let group = |rate, warm_up| GroupSettings::adamw(rate).with_schedule(Schedule::Constant { warm_up });
        let settings = OptimiserSettings {
            matrices: group(0.1, 0),
            vectors: group(0.2, 0),
            embedding_and_head: group(0.4, 4),
            ..OptimiserSettings::uniform(group(0.0, 0))
        };
        let mut optimiser = GroupedOptimiser::new(settings, parameters()).unwrap();
        let before = toy(DType::F64);
        let after = optimiser.step(before.clone(), gradients(1, DType::F64), 1).unwrap();
        // The first step of AdamW moves every element by the rate: of the embedding, half of 0.4 at the second step of
        // four.
        for (found, expected) in changes(&before, &after).into_iter().zip([0.2, 0.1, 0.1, 0.2, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        }
        assert!(after.embed.is_require_grad() && !after.gate_bias.is_require_grad());
    }

    #[test]
    fn a_parameter_without_a_gradient_is_neither_moved_nor_decayed() {
        let settings = OptimiserSettings::uniform(GroupSettings::adamw(0.1).with_weight_decay(0.5));
        let mut optimiser = GroupedOptimiser::new(settings, parameters()).unwrap();
        let mut gradients = gradients(1, DType::F32);
        gradients.remove::<Flex, 2>(id(1)).unwrap();
        let before = toy(DType::F32);
        let after = optimiser.step(before.clone(), gradients, 0).unwrap();
        let changes = changes(&before, &after);
        assert_eq!([changes[1], changes[GATE_BIAS]], [0.0, 0.0]);
        assert!(changes[0] > 0.0 && changes[2] > 0.0 && changes[3] > 0.0);
    }

    #[test]
    fn lists_that_do_not_fit_are_errors_that_name_the_parameter() {
        let made = |change: fn(&mut Vec<NamedParameter>), settings| {
            let mut parameters = parameters();
            change(&mut parameters);
            GroupedOptimiser::<TrainBackend>::new(settings, parameters).unwrap_err().to_string()
        };
        let muon = OptimiserSettings::muon();
        assert_eq!(
            made(|parameters| parameters[3].name = "norm.bias".to_owned(), muon),
            "no parameter of the model is named `norm.bias`"
        );
        assert_eq!(
            made(|parameters| parameters[1].dims = vec![8], muon),
            "parameter `layers.0.attn.wq_a.weight` has axes [8], expected a matrix or a stack of matrices for Muon"
        );
        let twice = "parameter `norm.weight` is listed twice, or with the id of another";
        assert_eq!(made(|parameters| parameters[3].id = id(0), muon), twice);
        assert_eq!(
            made(|parameters| parameters.push(NamedParameter { id: id(9), ..parameters[3].clone() }), muon),
            twice
        );
    }

    #[test]
    fn a_module_and_gradients_that_do_not_fit_the_list_are_errors() {
        let stepped = |change: fn(&mut Vec<NamedParameter>, &mut GradientsParams)| {
            let (mut parameters, mut gradients) = (parameters(), gradients(1, DType::F32));
            change(&mut parameters, &mut gradients);
            let settings = OptimiserSettings::uniform(GroupSettings::adamw(0.1));
            let mut optimiser = GroupedOptimiser::<TrainBackend>::new(settings, parameters).unwrap();
            optimiser.step(toy(DType::F32), gradients, 0).unwrap_err()
        };
        let vector = || Tensor::<Flex, 1>::ones([3], &Default::default());

        let unlisted = stepped(|parameters, _| drop(parameters.remove(2)));
        assert!(matches!(unlisted, OptimiserError::UnlistedParameter { dims, .. } if dims == [2, 3, 2]));
        let untrained = stepped(|parameters, gradients| {
            let id = parameters.remove(2).id;
            gradients.remove::<Flex, 3>(id).unwrap();
        });
        assert!(
            matches!(untrained, OptimiserError::UnlistedParameter { .. }),
            "it asks for a gradient, if it has none"
        );
        let reshaped = stepped(|parameters, _| parameters[1].dims = vec![4, 2]);
        assert_eq!(reshaped.to_string(), "parameter `layers.0.attn.wq_a.weight` has axes [2, 4], expected [4, 2]");
        let missing = stepped(|parameters, _| {
            parameters.push(NamedParameter { id: id(9), name: "head.weight".to_owned(), dims: vec![1, 1] });
        });
        assert_eq!(missing.to_string(), "parameter `head.weight` is in the optimiser's list, but not in the module");
        let foreign =
            stepped(|_, gradients| gradients.register(id(9), Tensor::<Flex, 1>::ones([3], &Default::default())));
        assert_eq!(foreign.to_string(), "1 gradients belong to no parameter of the module");

        let mut with_bias = gradients(1, DType::F32);
        with_bias.register(id(GATE_BIAS), vector());
        let frozen = uniform(0.1).step(toy(DType::F32), with_bias, 0).unwrap_err();
        assert_eq!(
            frozen.to_string(),
            "parameter `layers.0.ffn.gate.bias` has a gradient, but is not trained by gradients"
        );
    }

    #[test]
    fn a_state_of_another_type_than_the_parameter_is_an_error() {
        let mut optimiser = uniform(0.1);
        optimiser.step(toy(DType::F32), gradients(1, DType::F32), 0).unwrap();
        let error = optimiser.step(toy(DType::F64), gradients(1, DType::F64), 1).unwrap_err();
        assert!(matches!(error, OptimiserError::ValueType { found: DType::F64, expected: DType::F32, .. }));
    }

    #[test]
    fn muon_takes_the_matrices_and_adamw_the_rest() {
        let adamw = OptimiserSettings::uniform(GroupSettings::adamw(0.1));
        let settings = OptimiserSettings { matrices: GroupSettings::muon(0.1), ..adamw };
        let before = toy(DType::F64);
        let step = |settings| {
            let mut optimiser = GroupedOptimiser::new(settings, parameters()).unwrap();
            values(&optimiser.step(before.clone(), gradients(1, DType::F64), 0).unwrap())
        };
        let (muon, adamw) = (step(settings), step(adamw));
        let same: Vec<_> = muon.iter().zip(&adamw).map(|(muon, adamw)| muon == adamw).collect();
        assert_eq!(same, [true, false, false, true, true]);
    }
}
