//! Which tokens go to which expert, and where their results come back.

/// Tokens sorted by expert. An *entry* is one (token, choice) pair, numbered `token * activated + choice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// Experts that have tokens, ascending, each with its entries in token order.
    pub groups: Vec<(usize, Vec<i64>)>,
    /// For each token in turn, the places of its entries in the concatenation of all groups, lowest expert first.
    pub returns: Vec<i64>,
}

impl Dispatch {
    /// Sorts the choices `[N, activated]` of N tokens among `experts`.
    pub fn new(choices: &[i64], activated: usize, experts: usize) -> Self {
        let mut by_expert = vec![Vec::new(); experts];
        for (entry, &expert) in choices.iter().enumerate() {
            by_expert[expert as usize].push(entry as i64);
        }
        let mut returns = vec![Vec::with_capacity(activated); choices.len() / activated];
        for (place, &entry) in by_expert.iter().flatten().enumerate() {
            returns[entry as usize / activated].push(place as i64);
        }
        let groups = by_expert.into_iter().enumerate().filter(|(_, entries)| !entries.is_empty()).collect();
        Self { groups, returns: returns.concat() }
    }
}

#[cfg(test)]
mod tests {
    use super::Dispatch;

    #[test]
    fn results_come_back_to_their_token_in_expert_order() {
        // Token 0 chose experts 2 and 0, token 1 chose 0 and 3.
        let dispatch = Dispatch::new(&[2, 0, 0, 3], 2, 4);
        assert_eq!(dispatch.groups, [(0, vec![1, 2]), (2, vec![0]), (3, vec![3])]);
        assert_eq!(dispatch.returns, [0, 2, 1, 3]);
    }
}
