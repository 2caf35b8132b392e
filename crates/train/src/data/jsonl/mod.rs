//! Examples from a file of JSON lines.

mod index;
mod line;
mod rejections;

use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::{DataError, Example, Examples};
use index::{LineIndex, Place};
pub use line::{LineOptions, LongLines};
pub use rejections::{Reason, Rejection, Rejections};

/// A file with an example a line, as one of
///
/// - `{"text": "..."}`: the text's tokens, between the tokens that begin and end a sequence where the vocabulary has
///   them; all are learnt. Special tokens spelled out in the text become those tokens, as in a bare prompt.
/// - `{"ids": [..]}`, with `"learn": [true, false, ..]` if not all of them are learnt.
/// - `{"messages": [..]}`: a [`Conversation`](dsv41_text::Conversation) that the assistant ends; the assistant's turns
///   are learnt.
///
/// Other keys are ignored, and so are keys with nothing but null. Blank lines are counted; lines that are no example are
/// counted and told with the reason.
///
/// Opening reads the whole file once, so that what is wrong with it shows before training begins. Of the lines that can
/// be used only their places are kept, in a temporary file; lines are read again when they are asked for, so that
/// neither the file nor a list of its lines has to fit into memory.
#[derive(Debug)]
pub struct JsonLines<'t> {
    path: PathBuf,
    file: File,
    options: LineOptions<'t>,
    index: LineIndex,
    contents: Contents,
    rejections: Rejections,
}

/// What a file was found to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contents {
    /// Lines of the file.
    pub lines: usize,
    /// Lines that hold nothing.
    pub blank: usize,
    /// Lines that are examples.
    pub examples: usize,
    /// Examples that lost their end because they were too long.
    pub cut: usize,
    /// Tokens of the examples.
    pub tokens: usize,
    /// Tokens that are learnt.
    pub targets: usize,
    /// Tokens of the longest example.
    pub longest: usize,
}

impl<'t> JsonLines<'t> {
    /// Reads a file through and finds its examples.
    ///
    /// # Errors
    /// The file cannot be read, a line is longer than a sequence where that is an error, or no line is an example.
    pub fn open(path: impl AsRef<Path>, options: LineOptions<'t>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(DataError::read(path))?;
        let mut contents = Contents::default();
        let mut rejections = Rejections::default();
        let mut index = LineIndex::create().map_err(DataError::index(path))?;

        let mut reader = BufReader::new(file);
        let mut bytes = Vec::new();
        let mut offset = 0;
        loop {
            bytes.clear();
            let length = reader.read_until(b'\n', &mut bytes).map_err(DataError::read(path))?;
            if length == 0 {
                break;
            }
            contents.lines += 1;
            let place = Place { offset, length: length as u64, line: contents.lines as u64 };
            offset += place.length;
            if bytes.trim_ascii().is_empty() {
                contents.blank += 1;
                continue;
            }
            match options.example(&bytes, contents.lines) {
                Ok((example, cut)) => {
                    contents.add(&example, cut);
                    index.push(place).map_err(DataError::index(path))?;
                }
                Err(Reason::TooLong { length, limit }) if options.long_lines == LongLines::Error => {
                    return Err(DataError::LongLine { file: path.to_owned(), line: contents.lines, length, limit });
                }
                Err(reason) => rejections.add(contents.lines, reason),
            }
        }
        if contents.lines == contents.blank {
            return Err(DataError::NoLines { file: path.to_owned(), blank: contents.blank });
        }
        if contents.examples == 0 {
            return Err(DataError::NothingUsable { file: path.to_owned(), rejections });
        }
        index.finish().map_err(DataError::index(path))?;
        Ok(Self { path: path.to_owned(), file: reader.into_inner(), options, index, contents, rejections })
    }

    /// What the file holds.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The lines that cannot be used, and why.
    pub fn rejections(&self) -> &Rejections {
        &self.rejections
    }
}

impl Examples for JsonLines<'_> {
    fn count(&self) -> usize {
        self.contents.examples
    }

    fn example(&mut self, index: usize) -> Result<Example, DataError> {
        let place = self.index.get(index).map_err(DataError::index(&self.path))?;
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(place.offset)).map_err(DataError::read(&self.path))?;
        (&self.file).take(place.length).read_to_end(&mut bytes).map_err(DataError::read(&self.path))?;
        // It counted lines in a `usize`.
        let line = place.line as usize;
        let read = self.options.example(&bytes, line);
        read.map(|(example, _)| example).map_err(|reason| DataError::Changed { file: self.path.clone(), line, reason })
    }
}

impl Contents {
    fn add(&mut self, example: &Example, cut: bool) {
        self.examples += 1;
        self.cut += usize::from(cut);
        self.tokens += example.ids.len();
        self.targets += example.targets().flatten().count();
        self.longest = self.longest.max(example.ids.len());
    }
}

/// One line for people who begin a run.
impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, blank, examples, cut, tokens, targets, longest } = self;
        write!(f, "{lines} lines, {examples} of them examples")?;
        if *blank > 0 {
            write!(f, ", {blank} blank")?;
        }
        if *cut > 0 {
            write!(f, ", {cut} cut")?;
        }
        write!(f, ": {tokens} tokens, {targets} of them learnt, the longest example has {longest}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use dsv41_text::Tokenizer;
    use proptest::prelude::*;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::data::testing::{BOS, EOS, bytes_and_marks, bytes_without_ends};

    fn written(lines: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        file
    }

    fn options(tokenizer: Option<&Tokenizer>) -> LineOptions<'_> {
        LineOptions { tokenizer, vocabulary: 262, limit: 16, long_lines: LongLines::Error }
    }

    fn all(lines: &mut JsonLines<'_>) -> Vec<Example> {
        (0..lines.count()).map(|index| lines.example(index).unwrap()).collect()
    }

    #[test]
    fn the_three_forms_are_read() {
        let file = written(concat!(
            "{\"text\": \"ab\", \"source\": 3}\n",
            "{\"ids\": [1, 2, 3], \"text\": null}\r\n",
            "{\"ids\": [1, 2, 3], \"learn\": [false, false, true]}\n",
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]}"#,
        ));
        let tokenizer = bytes_and_marks();
        let mut lines = JsonLines::open(file.path(), options(Some(&tokenizer))).unwrap();
        let [user, assistant, end_of_thinking] = [258, 259, 261];
        let example = |ids: &[u32], learn: &[bool], line| Example { ids: ids.to_vec(), learn: learn.to_vec(), line };
        let expected = [
            example(&[BOS, 97, 98, EOS], &[true; 4], 1),
            example(&[1, 2, 3], &[true; 3], 2),
            example(&[1, 2, 3], &[false, false, true], 3),
            example(
                &[BOS, user, 113, assistant, end_of_thinking, 114, EOS],
                &[false, false, false, false, false, true, true],
                4,
            ),
        ];
        assert_eq!(all(&mut lines), expected);
        assert_eq!(lines.rejections().count(), 0);
        let contents = Contents {
            lines: 4,
            blank: 0,
            examples: 4,
            cut: 0,
            tokens: 4 + 3 + 3 + 7,
            targets: 3 + 2 + 1 + 2,
            longest: 7,
        };
        assert_eq!(*lines.contents(), contents);
        let said = "4 lines, 4 of them examples: 17 tokens, 8 of them learnt, the longest example has 7";
        assert_eq!(contents.to_string(), said);
    }

    #[test]
    fn text_has_no_ends_where_the_vocabulary_has_none() {
        let file = written(r#"{"text": "ab"}"#);
        let tokenizer = bytes_without_ends();
        let mut lines = JsonLines::open(file.path(), options(Some(&tokenizer))).unwrap();
        assert_eq!(lines.example(0).unwrap().ids, [97, 98]);
    }

    #[test]
    fn special_tokens_spelled_in_a_text_are_those_tokens() {
        let file = written(r#"{"text": "a<｜end▁of▁sentence｜>b"}"#);
        let tokenizer = bytes_and_marks();
        let mut lines = JsonLines::open(file.path(), options(Some(&tokenizer))).unwrap();
        assert_eq!(lines.example(0).unwrap().ids, [BOS, 97, EOS, 98, EOS]);
    }

    #[test]
    fn examples_are_read_in_any_order() {
        let file = written("{\"ids\": [1, 1]}\n\n{\"ids\": [3, 3]}\nnonsense\n{\"ids\": [5, 5]}\n");
        let mut lines = JsonLines::open(file.path(), options(None)).unwrap();
        for index in [2, 0, 1, 1, 2] {
            let example = lines.example(index).unwrap();
            assert_eq!(example.line, 2 * index + 1);
            assert_eq!(example.ids, [example.line as u32; 2]);
        }
        assert_eq!((lines.contents().lines, lines.contents().blank, lines.rejections().count()), (5, 1, 1));
    }

    #[test]
    fn a_number_beyond_the_examples_is_an_error() {
        let file = written(r#"{"ids": [1, 1]}"#);
        let mut lines = JsonLines::open(file.path(), options(None)).unwrap();
        assert!(matches!(lines.example(1), Err(DataError::Index { .. })));
        assert!(matches!(lines.example(usize::MAX), Err(DataError::Index { .. })));
    }

    #[test]
    fn rejected_lines_are_told_by_number_and_reason() {
        let file = written("{\"ids\": [1, 2]}\n{\"ids\": []}\n \t\r\n{\"ids\": [262, 0]}\n");
        let lines = JsonLines::open(file.path(), options(None)).unwrap();
        let said = lines.rejections().to_string();
        assert_eq!(said, "2 lines\n  line 2: no tokens\n  line 4: token 0 is 262, the vocabulary has 262 tokens");
        assert_eq!((lines.count(), lines.contents().blank), (1, 1));
        assert!(lines.contents().to_string().starts_with("4 lines, 1 of them examples, 1 blank: 2 tokens"));
    }

    #[test]
    fn bytes_that_are_no_text_are_rejected() {
        let mut file = written("{\"ids\": [1, 2]}\n");
        file.write_all(b"{\"text\": \"\xff\"}\n").unwrap();
        let lines = JsonLines::open(file.path(), options(None)).unwrap();
        assert!(lines.rejections().to_string().contains("line 2: not JSON: "), "{}", lines.rejections());
    }

    #[test]
    fn a_file_without_lines_is_refused_by_name() {
        for (content, blank) in [("", 0), ("\n \n\t", 3)] {
            let file = written(content);
            let error = JsonLines::open(file.path(), options(None)).unwrap_err();
            let said = format!("{}: nothing but {blank} blank lines", file.path().display());
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }

    #[test]
    fn a_file_with_nothing_usable_is_refused_with_the_reasons() {
        let file = written("[]\n\n{}\n");
        let error = JsonLines::open(file.path(), options(None)).unwrap_err();
        let said = format!("{}: no line can be used: 2 lines\n  line 1: ", file.path().display());
        assert!(error.to_string().starts_with(&said), "{error}");
        assert!(matches!(error, DataError::NothingUsable { rejections, .. } if rejections.count() == 2));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = JsonLines::open("no-such-file.jsonl", options(None)).unwrap_err();
        assert!(error.to_string().starts_with("no-such-file.jsonl: cannot be read: "), "{error}");
    }

    #[test]
    fn a_long_line_is_an_error_unless_it_is_to_be_cut_or_skipped() {
        let file = written("{\"ids\": [1, 2]}\n{\"ids\": [1, 2, 3, 4, 5]}\n{\"ids\": [1, 2, 3, 4]}\n");
        let open = |long_lines| JsonLines::open(file.path(), LineOptions { limit: 4, long_lines, ..options(None) });

        let said = format!("{}: line 2 has 5 tokens, a sequence holds 4", file.path().display());
        assert_eq!(open(LongLines::Error).unwrap_err().to_string(), said);

        let mut cut = open(LongLines::Cut).unwrap();
        assert_eq!((cut.count(), cut.contents().cut, cut.rejections().count()), (3, 1, 0));
        assert_eq!(cut.example(1).unwrap().ids, [1, 2, 3, 4]);

        let skipped = open(LongLines::Skip).unwrap();
        assert_eq!((skipped.count(), skipped.contents().cut), (2, 0));
        assert_eq!(skipped.rejections().to_string(), "1 line\n  line 2: 5 tokens, a sequence holds 4");
    }

    #[test]
    fn a_line_that_keeps_nothing_to_learn_when_it_is_cut_is_rejected() {
        let file = written("{\"ids\": [1, 2, 3], \"learn\": [true, false, true]}\n{\"ids\": [1, 2]}");
        let options = LineOptions { limit: 2, long_lines: LongLines::Cut, ..options(None) };
        let lines = JsonLines::open(file.path(), options).unwrap();
        assert!(lines.rejections().to_string().contains("line 1: nothing to learn"), "{}", lines.rejections());
        assert_eq!(lines.contents().cut, 0);
    }

    #[test]
    fn a_line_that_changes_after_opening_is_an_error() {
        let file = written("{\"ids\": [1, 2]}\n{\"ids\": [3, 4]}\n");
        let mut lines = JsonLines::open(file.path(), options(None)).unwrap();
        std::fs::write(file.path(), "{\"ids\": [1, 2]}\n{\"ids\"").unwrap();
        assert_eq!(lines.example(0).unwrap().ids, [1, 2]);
        let said = format!("{}: line 2 has changed since the file was opened: not JSON: ", file.path().display());
        let error = lines.example(1).unwrap_err();
        assert!(error.to_string().starts_with(&said), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_line_is_an_example_or_blank_or_rejected(lines in prop::collection::vec(any_line(), 0..20)) {
            let file = written(&lines.join("\n"));
            let options = LineOptions { limit: 4, long_lines: LongLines::Skip, ..options(None) };
            match JsonLines::open(file.path(), options) {
                Ok(mut opened) => {
                    let Contents { lines, blank, examples, .. } = *opened.contents();
                    prop_assert_eq!(lines, blank + examples + opened.rejections().count());
                    let examples = all(&mut opened);
                    prop_assert!(examples.is_sorted_by(|one, other| one.line < other.line));
                    let tokens: usize = examples.iter().map(|example| example.ids.len()).sum();
                    prop_assert_eq!(tokens, opened.contents().tokens);
                }
                Err(DataError::NoLines { .. }) => prop_assert!(lines.iter().all(|line| line.trim().is_empty())),
                Err(DataError::NothingUsable { rejections, .. }) => prop_assert!(rejections.count() > 0),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    fn any_line() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            Just("  ".to_owned()),
            "[^\n]{0,12}",
            prop::collection::vec(0_u32..300, 0..6).prop_map(|ids| format!("{{\"ids\": {ids:?}}}")),
        ]
    }
}
