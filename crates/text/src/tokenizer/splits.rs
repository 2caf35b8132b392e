//! How text is split before the merges: what the pre-tokenizer `joyai-llm` names.

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Each split leaves its matches as pieces of their own.
pub(crate) const BEHAVIOUR: SplitDelimiterBehavior = SplitDelimiterBehavior::Isolated;

/// The splits, in order; each works on the pieces that the one before left.
pub(crate) const PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r"| ?[\p{P}\p{S}]+[\r\n]*",
        r"|\s*[\r\n]+",
        r"|\s+(?!\S)",
        r"|\s+",
    ),
];

/// The splits, then the spelling of bytes as printable characters.
pub(super) fn pre_tokenizer() -> Result<Sequence, tokenizers::Error> {
    let mut steps = Vec::with_capacity(PATTERNS.len() + 1);
    for pattern in PATTERNS {
        let split = Split::new(SplitPattern::Regex(pattern.to_owned()), BEHAVIOUR, false)?;
        steps.push(PreTokenizerWrapper::Split(split));
    }
    steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
    Ok(Sequence::new(steps))
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        let mut split = PreTokenizedString::from(text);
        pre_tokenizer().unwrap().pre_tokenize(&mut split).unwrap();
        let pieces = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect()
    }

    /// The pieces are those of DeepSeek-V3's tokenizer.json in the `tokenizers` package for Python, whose regular
    /// expressions are another engine's.
    #[test]
    fn text_is_split_as_deepseek_splits_it() {
        for (text, expected) in [
            (
                "Hello, world! It's 12345 o'clock",
                &["Hello", ",", " world", "!", " It", "'s", " ", "123", "45", " o", "'clock"] as &[_],
            ),
            (
                "if (x_1 > 2) {\n    y += .5;\r\n}\n\n  end  ",
                &[
                    "if", " (", "x", "_", "1", " >", " ", "2", ")", " {\n", "   ", " y", " +=", " .", "5", ";\r\n",
                    "}\n\n", " ", " end", "  ",
                ],
            ),
            ("カタ・カナ、漢字かな ab 中文abc", &["カタ", "・", "カナ", "、", "漢字かな", " ab", " ", "中文", "abc"]),
            ("a\u{301}bc ¿qué? \u{a0}x  y", &["a\u{301}bc", " ¿", "qué", "?", " ", "\u{a0}x", " ", " y"]),
            ("x   \n\n\t z", &["x", "   \n\n", "\t", " z"]),
            (" ~ !ab #c 1²½", &[" ~", " !", "ab", " #", "c", " ", "1²½"]),
            ("😀😀 ok", &["😀😀", " ok"]),
        ] {
            assert_eq!(pieces(text), expected, "{text:?}");
        }
    }
}
