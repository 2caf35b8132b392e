//! A model, a batch of documents, and what an objective makes of them.

use burn::tensor::{DType, Tensor};
use dsv41::{Call, ModelBackend, Selections, Transformer, parameters};
use dsv41_config::Config;
use dsv41_ops::CustomOps;
use dsv41_train::{
    data::Batch,
    losses::Sequences,
    objective::{ObjectiveSettings, TrainingObjective},
};

use crate::common::{config, model, tokens};

/// Gradients under the reference's names, none where none flows.
pub(crate) type Named = Vec<(String, Option<Vec<f64>>)>;

/// A model in f64 and what it is trained on.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) batch: Batch,
}

impl Setup {
    /// Two rows: three documents and two, with padding behind two of them.
    pub(crate) fn packed() -> Self {
        let config = config("tiny.json");
        let batch = Batch {
            tokens: tokens(2, 40, config.vocab_size),
            documents: vec![vec![0, 14, 22], vec![0, 30]],
            lengths: vec![vec![14, 7, 18], vec![27, 10]],
            targets: vec![vec![None; 40]; 2],
            lines: (0..5).collect(),
        };
        Self { config, batch }
    }

    pub(crate) fn model<B: ModelBackend>(&self) -> Transformer<B> {
        model(&self.config, DType::F64)
    }

    pub(crate) fn sequences(&self) -> Sequences {
        Sequences::of_batch(&self.batch)
    }

    pub(crate) fn objective<B: CustomOps>(&self, settings: ObjectiveSettings, scale: f64) -> TrainingObjective<B> {
        TrainingObjective::new(&settings, self.sequences(), scale).expect("valid settings")
    }

    /// Whether each token counts, row by row.
    pub(crate) fn counts(&self) -> Vec<bool> {
        self.sequences().of_tokens().iter().map(Option::is_some).collect()
    }

    /// What the model chooses.
    pub(crate) fn selections<B: ModelBackend>(&self, model: &Transformer<B>) -> Selections {
        let call = Call { documents: Some(&self.batch.documents), ..Call::default() };
        model.forward_states(&self.batch.tokens, None, call).expect("a valid call").selections
    }

    /// The head's input, while an objective looks on.
    pub(crate) fn forward<B: ModelBackend>(
        &self,
        model: &Transformer<B>,
        selections: Option<&Selections>,
        objective: &mut TrainingObjective<B>,
    ) -> Tensor<B, 3> {
        let documents = Some(self.batch.documents.as_slice());
        let call = Call { documents, selections, objective: Some(objective), ..Call::default() };
        model.forward_states(&self.batch.tokens, None, call).expect("a valid call").x
    }
}

/// Gradients by name.
pub(crate) fn by_name<B: ModelBackend + burn::tensor::backend::AutodiffBackend>(
    model: &Transformer<B>,
    gradients: &burn::optim::GradientsParams,
) -> Named {
    let mut found = Vec::new();
    parameters::visit_gradients(model, model.parameters(), gradients, |parameter, gradient| {
        found.push((parameter.name.clone(), gradient.map(|gradient| gradient.iter::<f64>().collect())));
    });
    found
}

pub(crate) fn value<B: ModelBackend>(loss: &Tensor<B, 1>) -> f64 {
    loss.to_data().iter::<f64>().next().expect("one number")
}
