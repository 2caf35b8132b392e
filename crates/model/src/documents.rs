//! Several documents in one row, of which none sees another.

use dsv41_config::Topology;

use crate::ModelError;

/// Where the documents of a call start.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    /// The first position of each token's document, `[B, S]`.
    starts: Option<Vec<usize>>,
    seq: usize,
}

impl Documents {
    /// Takes each row's starts, which have been checked.
    pub(crate) fn new(starts: Option<&[Vec<usize>]>, seq: usize) -> Self {
        let of_row = |row: &Vec<usize>| {
            let ends = row.iter().skip(1).copied().chain([seq]).collect::<Vec<_>>();
            row.iter().zip(ends).flat_map(|(&start, end)| std::iter::repeat_n(start, end - start)).collect::<Vec<_>>()
        };
        Self { starts: starts.map(|rows| rows.iter().flat_map(of_row).collect()), seq }
    }

    /// The first position of the document of a row's token.
    pub(crate) fn start(&self, row: usize, token: usize) -> usize {
        self.starts.as_ref().map_or(0, |starts| starts[row * self.seq + token])
    }

    /// The first position of each token's document, `[B, S]`, where there are several.
    pub(crate) fn starts(&self) -> Option<&[usize]> {
        self.starts.as_deref()
    }
}

/// Checks that starts fit a call of `batch` rows and `seq` tokens without a cache.
///
/// # Errors
/// [`ModelError::Documents`] naming the row.
pub(crate) fn check(
    starts: &[Vec<usize>],
    topology: &Topology,
    [batch, seq]: [usize; 2],
    has_cache: bool,
) -> Result<(), ModelError> {
    let fail = |row, problem| Err(ModelError::Documents { row, problem });
    if has_cache {
        return fail(0, "a cache holds one document a row".to_owned());
    }
    if starts.len() != batch {
        return fail(0, format!("starts of {} rows for {batch} rows of tokens", starts.len()));
    }
    for (row, starts) in starts.iter().enumerate() {
        if starts.first() != Some(&0) {
            return fail(row, format!("the first document starts at {:?}, not at 0", starts.first()));
        }
        if let Some(pair) = starts.windows(2).find(|pair| pair[0] >= pair[1]) {
            return fail(row, format!("a document at {} follows one at {}", pair[1], pair[0]));
        }
        if let Some(start) = starts.last().filter(|&&start| start >= seq) {
            return fail(row, format!("a document starts at {start} of {seq} tokens"));
        }
        let ratios = || topology.layers().iter().map(|layer| layer.ratio).filter(|&ratio| ratio > 1);
        if let Some((start, ratio)) =
            starts.iter().find_map(|start| Some((start, ratios().find(|ratio| start % ratio != 0)?)))
        {
            return fail(row, format!("a document starts at {start}, within a group of {ratio} compressed tokens"));
        }
    }
    Ok(())
}
