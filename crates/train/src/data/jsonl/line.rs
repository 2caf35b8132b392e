//! From one line to an example.

use dsv41_text::{Conversation, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Reason;
use crate::data::Example;

/// The keys that say which form a line has.
const FORMS: [&str; 3] = ["text", "ids", "messages"];

/// How lines become examples.
#[derive(Debug, Clone, Copy)]
pub struct LineOptions<'t> {
    /// Makes tokens of text. Without one, lines can only hold ids.
    pub tokenizer: Option<&'t Tokenizer>,
    /// Tokens that the model has; ids are smaller.
    pub vocabulary: usize,
    /// Tokens that a sequence holds.
    pub limit: usize,
    /// What happens to lines with more tokens than that.
    pub long_lines: LongLines,
}

/// What happens to a line with more tokens than a sequence holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongLines {
    /// The file is refused.
    #[default]
    Error,
    /// The line loses its end.
    Cut,
    /// The line is rejected.
    Skip,
}

impl LineOptions<'_> {
    /// The example of a line, and whether it lost its end.
    pub(super) fn example(&self, bytes: &[u8], line: usize) -> Result<(Example, bool), Reason> {
        let (mut ids, mut learn) = self.tokens(object(bytes)?)?;
        if let Some(index) = ids.iter().position(|&id| id as usize >= self.vocabulary) {
            return Err(Reason::IdOutOfRange { index, id: ids[index], vocabulary: self.vocabulary });
        }
        if ids.is_empty() {
            return Err(Reason::NoTokens);
        }
        let long = ids.len() > self.limit;
        if long && self.long_lines != LongLines::Cut {
            return Err(Reason::TooLong { length: ids.len(), limit: self.limit });
        }
        ids.truncate(self.limit);
        learn.truncate(self.limit);
        let example = Example { ids, learn, line };
        if example.targets().flatten().next().is_none() {
            return Err(Reason::NothingToLearn);
        }
        Ok((example, long))
    }

    fn tokens(&self, mut object: Map<String, Value>) -> Result<(Vec<u32>, Vec<bool>), Reason> {
        object.retain(|_, value| !value.is_null());
        let forms: Vec<_> = FORMS.into_iter().filter(|&form| object.contains_key(form)).collect();
        let [form] = forms[..] else {
            let found = if forms.is_empty() { described(object.keys()) } else { described(forms) };
            return Err(Reason::UnknownForm { found });
        };
        if form != "ids" && object.contains_key("learn") {
            return Err(Reason::Field { key: "learn", problem: "it belongs to `ids` alone".to_owned() });
        }
        match form {
            "text" => self.text(&field::<String>(&mut object, "text")?.unwrap_or_default()),
            "ids" => {
                let ids: Vec<u32> = field(&mut object, "ids")?.unwrap_or_default();
                let learn = field(&mut object, "learn")?.unwrap_or_else(|| vec![true; ids.len()]);
                if learn.len() != ids.len() {
                    return Err(Reason::LearnLength { found: learn.len(), expected: ids.len() });
                }
                Ok((ids, learn))
            }
            _ => {
                let tokenizer = self.tokenizer("messages")?;
                let conversation =
                    Conversation::deserialize(Value::Object(object)).map_err(Reason::field("messages"))?;
                let form = conversation.finished().map_err(Reason::field("messages"))?;
                let encoded = form.encode(tokenizer).map_err(Reason::field("messages"))?;
                Ok((encoded.ids, encoded.mask))
            }
        }
    }

    fn text(&self, text: &str) -> Result<(Vec<u32>, Vec<bool>), Reason> {
        let tokenizer = self.tokenizer("text")?;
        let text = tokenizer.encode(text).map_err(Reason::field("text"))?;
        if text.is_empty() {
            return Err(Reason::NoTokens);
        }
        let ids: Vec<u32> = tokenizer.bos().into_iter().chain(text).chain(tokenizer.eos()).collect();
        let learn = vec![true; ids.len()];
        Ok((ids, learn))
    }

    fn tokenizer(&self, key: &'static str) -> Result<&Tokenizer, Reason> {
        self.tokenizer.ok_or(Reason::NoTokenizer { key })
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, Reason> {
    let value = serde_json::from_slice(bytes.trim_ascii_end()).map_err(|error| {
        // The parser knows of one line only, so that the number it gives would mislead.
        let said = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let problem = said.strip_suffix(&place).unwrap_or(&said).to_owned();
        Reason::NotJson { problem, column: error.column() }
    })?;
    let found = match value {
        Value::Object(object) => return Ok(object),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    Err(Reason::UnknownForm { found: found.to_owned() })
}

/// Takes a key's value, where there is one.
fn field<T: for<'de> Deserialize<'de>>(
    object: &mut Map<String, Value>,
    key: &'static str,
) -> Result<Option<T>, Reason> {
    let value = object.remove(key).map(T::deserialize).transpose();
    value.map_err(Reason::field(key))
}

/// Keys as people read them, the first few of many.
fn described<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> String {
    const SHOWN: usize = 6;
    let mut keys = keys.into_iter();
    let mut shown: Vec<String> = keys.by_ref().take(SHOWN).map(|key| format!("`{}`", key.as_ref())).collect();
    if keys.next().is_some() {
        shown.push("...".to_owned());
    }
    if shown.is_empty() { "none of these".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::bytes_and_marks;

    /// Why a line is rejected, with the tokenizer or without one.
    fn reason(line: &str, tokenizer: Option<&Tokenizer>) -> String {
        let options = LineOptions { tokenizer, vocabulary: 300, limit: 100, long_lines: LongLines::Error };
        options.example(line.as_bytes(), 1).unwrap_err().to_string()
    }

    #[test]
    fn every_malformed_line_has_its_reason() {
        let expected = "expected an object with one of `text`, `ids` and `messages`, found";
        let user = r#"{"role": "user", "content": "q"}"#;
        for (line, said) in [
            ("{", "not JSON: EOF while parsing an object at column 1"),
            ("{\r\n", "not JSON: EOF while parsing an object at column 1"),
            ("text", "not JSON: expected ident at column 2"),
            (r#"{"text": "a"} {}"#, "not JSON: trailing characters at column 15"),
            ("null", &format!("{expected} null")),
            ("true", &format!("{expected} a boolean")),
            ("3", &format!("{expected} a number")),
            (r#""text""#, &format!("{expected} a string")),
            ("[1, 2]", &format!("{expected} an array")),
            ("{}", &format!("{expected} none of these")),
            (r#"{"text": null}"#, &format!("{expected} none of these")),
            (r#"{"prompt": "a", "completion": "b"}"#, &format!("{expected} `prompt`, `completion`")),
            (
                r#"{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}"#,
                &format!("{expected} `a`, `b`, `c`, `d`, `e`, `f`, ..."),
            ),
            (r#"{"messages": [], "text": "a", "id": 1}"#, &format!("{expected} `text`, `messages`")),
            (r#"{"text": 3}"#, "`text`: invalid type: integer `3`, expected a string"),
            (r#"{"text": ""}"#, "no tokens"),
            (r#"{"text": "a", "learn": [true]}"#, "`learn`: it belongs to `ids` alone"),
            (r#"{"ids": "1 2"}"#, "`ids`: invalid type: string \"1 2\", expected a sequence"),
            (r#"{"ids": [1, -2]}"#, "`ids`: invalid value: integer `-2`, expected u32"),
            (r#"{"ids": [1, 4294967296]}"#, "`ids`: invalid value: integer `4294967296`, expected u32"),
            (r#"{"ids": [1, 2.5]}"#, "`ids`: invalid type: floating point `2.5`, expected u32"),
            (r#"{"ids": [1, 300, 2]}"#, "token 1 is 300, the vocabulary has 300 tokens"),
            (r#"{"ids": []}"#, "no tokens"),
            (r#"{"ids": [1]}"#, "nothing to learn: no token but the first is one to be predicted"),
            (
                r#"{"ids": [1, 2], "learn": [true, false]}"#,
                "nothing to learn: no token but the first is one to be predicted",
            ),
            (r#"{"ids": [1, 2], "learn": [true]}"#, "`learn` has 1 entries, `ids` has 2"),
            (r#"{"ids": [1, 2], "learn": [0, 1]}"#, "`learn`: invalid type: integer `0`, expected a boolean"),
            (r#"{"messages": {}}"#, "`messages`: invalid type: map, expected a sequence"),
            (r#"{"messages": []}"#, "`messages`: no messages: a conversation needs at least one"),
            (
                r#"{"messages": [{"role": "tool", "content": "x"}]}"#,
                "`messages`: role `tool`, supported: `system`, `user`, `assistant`",
            ),
            (
                &format!("{{\"messages\": [{user}]}}"),
                "`messages`: the last message, 0, is of `user`, expected `assistant`",
            ),
            (
                &format!("{{\"messages\": [{user}], \"tools\": [{{}}]}}"),
                "`messages`: `tools` is not supported: the form of tool calls and of reasoning efforts is not covered",
            ),
        ] {
            assert_eq!(reason(line, Some(&bytes_and_marks())), said, "{line}");
        }
    }

    #[test]
    fn text_and_messages_need_a_tokenizer() {
        assert_eq!(reason(r#"{"text": "a"}"#, None), "`text` needs a tokenizer, and there is none");
        assert_eq!(reason(r#"{"messages": []}"#, None), "`messages` needs a tokenizer, and there is none");
    }

    #[test]
    fn text_of_a_tokenizer_with_more_tokens_than_the_model_is_rejected() {
        let tokenizer = bytes_and_marks();
        let options =
            LineOptions { tokenizer: Some(&tokenizer), vocabulary: 256, limit: 9, long_lines: LongLines::Error };
        let reason = options.example(br#"{"text": "a"}"#, 1).unwrap_err();
        assert_eq!(reason.to_string(), "token 0 is 256, the vocabulary has 256 tokens");
    }
}
