/// Finds strings that end a text while the text comes in pieces.
///
/// Text that may be the beginning of such a string is held back until it is clear whether it is.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

/// What a piece of text leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopPiece {
    /// Text that is clear to be shown.
    pub text: String,
    /// Whether a stop string has come; what follows it, and itself, is not shown.
    pub stopped: bool,
}

impl StopStrings {
    /// Looks for any of `strings`; empty ones are left out.
    pub fn new(strings: Vec<String>) -> Self {
        Self { strings: strings.into_iter().filter(|string| !string.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece of the text. Where two stop strings are in it, the one that begins first counts.
    pub fn push(&mut self, piece: &str) -> StopPiece {
        self.held.push_str(piece);
        if let Some(at) = self.strings.iter().filter_map(|string| self.held.find(string)).min() {
            self.held.truncate(at);
            return StopPiece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let rest = self.held.split_off(self.clear());
        StopPiece { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// What is still held back when the text has ended without a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the beginning of the held text in which no stop string can begin.
    fn clear(&self) -> usize {
        let begins_here = |&(at, _): &(usize, char)| {
            let rest = &self.held[at..];
            self.strings.iter().any(|string| string.starts_with(rest))
        };
        self.held.char_indices().find(begins_here).map_or(self.held.len(), |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text shown of pieces, and whether it was stopped.
    fn shown(stop: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut strings = StopStrings::new(stop.iter().map(|&string| string.to_owned()).collect());
        let mut texts = Vec::new();
        for piece in pieces {
            let piece = strings.push(piece);
            texts.push(piece.text);
            if piece.stopped {
                return (texts, true);
            }
        }
        texts.push(strings.finish());
        (texts, false)
    }

    #[test]
    fn what_may_begin_a_stop_string_waits() {
        assert_eq!(shown(&["END"], &["an E", "N", "D."]), (vec!["an ".into(), String::new(), String::new()], true));
        let waited = vec!["an ".to_owned(), String::new(), "ENE".to_owned(), "EN".to_owned()];
        assert_eq!(shown(&["END"], &["an E", "N", "EEN"]), (waited, false));
    }

    #[test]
    fn the_string_that_begins_first_counts() {
        assert_eq!(shown(&["b", "abc"], &["xabc"]), (vec!["x".into()], true));
        assert_eq!(shown(&["bc", "c"], &["abcd"]), (vec!["a".into()], true));
    }

    #[test]
    fn characters_stay_whole() {
        assert_eq!(shown(&["é!"], &["café", "s"]), (vec!["caf".into(), "és".into(), String::new()], false));
    }

    #[test]
    fn without_strings_nothing_waits() {
        assert_eq!(shown(&["", ""], &["a", ""]), (vec!["a".into(), String::new(), String::new()], false));
    }

    /// Whatever the pieces, the text is what stands before the first stop string.
    #[test]
    fn pieces_of_any_size_give_the_same_text() {
        let text = "aabaabaaab ababab abaab";
        for stop in [&["aaab"][..], &["ab a"], &["abaabaa", "b a"], &["zz"], &["aab", "aaba"]] {
            let first = stop.iter().filter_map(|string| text.find(string)).min();
            for size in 1..=text.len() {
                let pieces: Vec<&str> =
                    (0..text.len()).step_by(size).map(|at| &text[at..(at + size).min(text.len())]).collect();
                let (texts, stopped) = shown(stop, &pieces);
                assert_eq!(texts.concat(), text[..first.unwrap_or(text.len())], "{stop:?} in pieces of {size}");
                assert_eq!(stopped, first.is_some());
            }
        }
    }
}
