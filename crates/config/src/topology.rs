use std::fmt;

use crate::Config;

/// What one layer owns and what it reads from earlier layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerTopology {
    /// The layer's number, from 0.
    pub layer: usize,
    /// Tokens a compressed position stands for; 0 where the layer sees its window alone.
    pub ratio: usize,
    /// The layer whose compressed stream and index keys this one reads, itself included.
    pub kv_source: Option<usize>,
    /// The layer whose top-k selection this one attends with, itself included.
    pub index_source: Option<usize>,
    /// The layer whose candidate mask limits this layer's own scoring. Never itself.
    pub candidate_source: Option<usize>,
    /// Whether this layer makes the candidate mask.
    pub makes_candidates: bool,
    /// The layer's place in `engram_layer_ids`.
    pub engram: Option<usize>,
}

impl LayerTopology {
    /// Whether the layer compresses keys and values of its own.
    pub fn owns_stream(&self) -> bool {
        self.kv_source == Some(self.layer)
    }

    /// Whether the layer scores compressed positions itself.
    pub fn owns_index(&self) -> bool {
        self.index_source == Some(self.layer)
    }
}

/// One line: what the layer attends to, what it makes, and its engram.
impl fmt::Display for LayerTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {}: window", self.layer)?;
        if self.ratio > 0 {
            write!(f, ", ratio {}", self.ratio)?;
        }
        match self.kv_source {
            Some(_) if self.owns_stream() => write!(f, ", makes its stream")?,
            Some(source) => write!(f, ", stream of {source}")?,
            None => {}
        }
        match self.index_source {
            Some(_) if self.owns_index() => write!(f, ", selects")?,
            Some(source) => write!(f, ", selection of {source}")?,
            None => {}
        }
        if let Some(source) = self.candidate_source {
            write!(f, " among the candidates of {source}")?;
        }
        if self.makes_candidates {
            write!(f, ", makes candidates")?;
        }
        if let Some(place) = self.engram {
            write!(f, ", engram {place}")?;
        }
        Ok(())
    }
}

/// The layers of a model, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    layers: Vec<LayerTopology>,
}

impl Topology {
    /// Reads the topology off a configuration; sources that do not exist come out as `None`, which
    /// [`Config::validate`] reports.
    pub fn new(config: &Config) -> Self {
        let newest = |sources: &[usize], layer: usize| sources.iter().copied().filter(|&s| s <= layer).max();
        let layers = (0..config.n_layers)
            .map(|layer| {
                let ratio = config.compress_ratios.get(layer).copied().unwrap_or(0);
                let compressed = ratio > 0;
                let owns_index = compressed && config.index_source_layers.contains(&layer);
                LayerTopology {
                    layer,
                    ratio,
                    kv_source: newest(&config.kv_source_layers, layer).filter(|_| compressed),
                    index_source: newest(&config.index_source_layers, layer).filter(|_| compressed),
                    candidate_source: config.candidate_source_layer.filter(|&s| owns_index && layer > s),
                    makes_candidates: config.candidate_source_layer == Some(layer),
                    engram: config.engram_layer_ids.iter().position(|&l| l == layer),
                }
            })
            .collect();
        Self { layers }
    }

    /// Every layer, in order.
    pub fn layers(&self) -> &[LayerTopology] {
        &self.layers
    }

    /// One layer.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn layer(&self, layer: usize) -> &LayerTopology {
        &self.layers[layer]
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::fixture;

    #[test]
    fn layers_own_and_read() {
        let topology = fixture("batch").topology();
        let lines: Vec<String> = topology.layers().iter().map(ToString::to_string).collect();
        let expected = [
            "layer 0: window",
            "layer 1: window, engram 0",
            "layer 2: window, ratio 2, makes its stream, selects",
            "layer 3: window, ratio 2, stream of 2, selection of 2",
            "layer 4: window, ratio 2, stream of 2, selects",
            "layer 5: window, ratio 1, makes its stream, selects, makes candidates, engram 1",
            "layer 6: window, ratio 1, stream of 5, selection of 5",
            "layer 7: window, ratio 1, stream of 5, selects among the candidates of 5",
        ];
        assert_eq!(lines, expected);
    }
}
