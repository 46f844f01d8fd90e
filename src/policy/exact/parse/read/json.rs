//! Where a JSON value that comes in pieces ends, and what call it is.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Arguments, Called, Why};

/// The deepest nesting that is read; the readers after us (templates, clients) have such bounds too.
const DEEPEST: usize = 128;

/// Follows one object or array through its bytes, each once. Finds its end, and the first byte with which it can't be JSON; what
/// remains (escapes, numbers) is serde's to judge of the whole.
#[derive(Debug, Default)]
pub(super) struct Json {
    /// The brackets that are open.
    open: Vec<u8>,
    at: At,
}

/// What may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Value,
    /// A value or the end of an array.
    First,
    /// A key or the end of an object.
    FirstKey,
    Key,
    Colon,
    /// A comma, or the end of what is open.
    After,
    /// Inside a string; then what may come next.
    String {
        key: bool,
    },
    Escape {
        key: bool,
    },
    /// Inside a number, `true`, `false` or `null`.
    Word,
}

/// What a byte made of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// The value ends with this byte.
    Done,
    /// With this byte, it is none.
    Never(Why),
}

impl Json {
    /// Whether no bracket has come yet.
    pub(super) fn is_new(&self) -> bool {
        self.at == At::Value && self.open.is_empty()
    }

    pub(super) fn push(&mut self, byte: u8) -> Step {
        super::marker::looked(1);
        match (self.at, byte) {
            (At::String { key }, b'"') => self.at = if key { At::Colon } else { At::After },
            (At::String { key }, b'\\') => self.at = At::Escape { key },
            (At::String { .. }, 0x20..) => {}
            (At::Escape { key }, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u') => self.at = At::String { key },
            (At::Word, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'+' | b'-' | b'E') => {}
            (At::Word, _) => {
                self.at = At::After;
                return self.push(byte);
            }
            (At::String { .. } | At::Escape { .. }, _) => return Step::Never(Why::NotJson),
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (At::Value | At::First, b'{' | b'[') => return self.enter(byte),
            (At::First, b']') | (At::FirstKey, b'}') => return self.leave(),
            (At::After, b']' | b'}') => {
                let opened = if byte == b']' { b'[' } else { b'{' };
                return if self.open.last() == Some(&opened) { self.leave() } else { Step::Never(Why::NotJson) };
            }
            // Outside all brackets there is no value but an object or an array.
            _ if self.open.is_empty() => return Step::Never(Why::NotJson),
            (At::Value | At::First, b'"') => self.at = At::String { key: false },
            (At::Value | At::First, b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => self.at = At::Word,
            (At::Key | At::FirstKey, b'"') => self.at = At::String { key: true },
            (At::Colon, b':') => self.at = At::Value,
            (At::After, b',') => self.at = if self.open.last() == Some(&b'{') { At::Key } else { At::Value },
            _ => return Step::Never(Why::NotJson),
        }
        Step::More
    }

    fn enter(&mut self, byte: u8) -> Step {
        if self.open.len() == DEEPEST {
            return Step::Never(Why::TooLarge);
        }
        self.open.push(byte);
        self.at = if byte == b'{' { At::FirstKey } else { At::First };
        Step::More
    }

    fn leave(&mut self) -> Step {
        self.open.pop();
        self.at = At::After;
        if self.open.is_empty() { Step::Done } else { Step::More }
    }
}

/// A call as models write it in JSON.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    // Llama's word for it.
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
}

/// Reads a call, its arguments to the letter. One that names no arguments has none, which only counts where a marker said that this is
/// a call (`marked`): else `{"name": "Ada"}` would be one.
pub(super) fn call(json: &str, marked: bool) -> Result<Called, Why> {
    let written: Written =
        serde_json::from_str(json).map_err(|error| if error.is_data() { Why::NoCall } else { Why::NotJson })?;
    let arguments = written.arguments.or(written.parameters);
    if written.name.is_empty() || (arguments.is_none() && !marked) {
        return Err(Why::NoCall);
    }
    let arguments = arguments.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned());
    Ok(Called { name: written.name.into_owned(), arguments: Arguments::Json(arguments) })
}

/// Reads one call or a list of them.
pub(super) fn calls(json: &str, marked: bool) -> Result<Vec<Called>, Why> {
    if !json.starts_with('[') {
        return Ok(vec![call(json, marked)?]);
    }
    let items: Vec<&RawValue> = serde_json::from_str(json).map_err(|_| Why::NotJson)?;
    if items.is_empty() {
        return Err(Why::NoCall);
    }
    items.into_iter().map(|item| call(item.get(), marked)).collect()
}

/// All objects in a text that are not inside of one another.
pub(in super::super) fn objects(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(begun) = memchr::memchr(b'{', &text.as_bytes()[from..]).map(|at| from + at) {
        let mut json = Json::default();
        let mut bytes = text.as_bytes()[begun..].iter().zip(begun..);
        // What is none is not looked at again, so that each byte is looked at once.
        let last = bytes.find_map(|(byte, at)| match json.push(*byte) {
            Step::More => None,
            Step::Done => Some((true, at + 1)),
            Step::Never(_) => Some((false, at.max(begun + 1))),
        });
        let Some((whole, end)) = last else { break };
        if whole {
            found.push(&text[begun..end]);
        }
        from = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the value that `text` begins with.
    fn end(text: &str) -> Result<Option<usize>, usize> {
        let mut json = Json::default();
        for (at, byte) in text.bytes().enumerate() {
            match json.push(byte) {
                Step::More => {}
                Step::Done => return Ok(Some(at + 1)),
                Step::Never(_) => return Err(at),
            }
        }
        Ok(None)
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        let whole = r#"{"a": [1, -2.5e3, true, null, {}, []], "b\"}": "]\\", "é": {"c": "\u00e9"}}"#;
        assert_eq!(end(&format!(" {whole} rest")), Ok(Some(whole.len() + 1)));
        assert_eq!(end("[]"), Ok(Some(2)));
        assert_eq!(end(&whole[..whole.len() - 1]), Ok(None));
    }

    #[test]
    fn what_is_no_json_is_told_at_its_first_byte() {
        for (text, at) in [
            ("x", 0),
            ("\"a\"", 0),
            ("1", 0),
            ("{x", 1),
            ("{]", 1),
            ("[}", 1),
            ("{\"a\" 1", 5),
            ("{\"a\":}", 5),
            ("[1 2", 3),
            ("[1,]", 3),
            ("{\"a\":1]", 6),
            ("{,", 1),
            ("[\"a\nb", 3),
            ("[\"\\x", 3),
            ("[1,{\"a\":tru<", 11),
        ] {
            assert_eq!(end(text), Err(at), "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        assert_eq!(end(&("[".repeat(128) + &"]".repeat(128))), Ok(Some(256)));
        assert_eq!(end(&"[".repeat(1_000_000)), Err(128));
    }

    #[test]
    fn a_call_is_read_to_the_letter() {
        let called =
            |name: &str, arguments: &str| Called { name: name.to_owned(), arguments: Arguments::Json(arguments.to_owned()) };
        let odd = r#"{ "a":1.0,"b" : "\u00e9" }"#;
        assert_eq!(call(&format!(r#"{{"name": "f\u00e9", "arguments": {odd}}}"#), true), Ok(called("fé", odd)));
        assert_eq!(call(r#"{"parameters": [], "name": "f", "id": 1}"#, false), Ok(called("f", "[]")));
        assert_eq!(call(r#"{"name": "f"}"#, true), Ok(called("f", "{}")));
        assert_eq!(call(r#"{"name": "f"}"#, false), Err(Why::NoCall));
        assert_eq!(call(r#"{"name": "", "arguments": {}}"#, true), Err(Why::NoCall));
        assert_eq!(call(r#"{"name": 1, "arguments": {}}"#, true), Err(Why::NoCall));
        assert_eq!(call(r#"{"name": "f", "arguments": 01}"#, true), Err(Why::NotJson));
        assert_eq!(calls(r#"[{"name": "f"}, {"name": "g"}]"#, true), Ok(vec![called("f", "{}"), called("g", "{}")]));
        assert_eq!(calls("[]", true), Err(Why::NoCall));
        assert_eq!(calls(r#"[{"name": "f"}, 1]"#, true), Err(Why::NoCall));
    }
}
