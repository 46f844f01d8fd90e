//! Slices of JSON, kept as they came.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// One JSON value as text, a slice of the body that it came in. Always valid JSON and UTF-8.
#[derive(Clone, PartialEq, Eq)]
pub struct Raw(Bytes);

impl Raw {
    /// Takes the slice of `body` that `raw` borrows from it.
    #[must_use]
    pub fn of(body: &Bytes, raw: &RawValue) -> Self {
        Self(body.slice_ref(raw.get().as_bytes()))
    }

    /// Takes the slice of `body` that `json`, a whole JSON value, borrows from it.
    #[must_use]
    pub fn slice(body: &Bytes, json: &str) -> Self {
        Self(body.slice_ref(json.as_bytes()))
    }

    /// Writes any value as JSON.
    ///
    /// # Panics
    /// If `value` has a map with keys that are not strings, which no type of ours has.
    #[must_use]
    pub fn from_value(value: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(value).unwrap_or_else(|error| panic!("a value of ours is not JSON: {error}"));
        Self(bytes.into())
    }

    /// Takes bytes that were written as JSON by code of ours.
    #[must_use]
    pub fn from_json(json: Vec<u8>) -> Self {
        debug_assert!(
            serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok(),
            "not JSON: {}",
            String::from_utf8_lossy(&json)
        );
        Self(json.into())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // `of` and `from_value` only take UTF-8; the check is a scan at memory speed, and only where text is looked at.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The JSON text's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// This value as a string literal, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<Text> {
        self.0.starts_with(b"\"").then(|| Text(self.0.clone()))
    }

    /// Reads this value as a `T`.
    ///
    /// # Errors
    /// If it is not a `T`.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.0)
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(Bytes::from(Box::<str>::from(raw).into_string())))
    }
}

/// A JSON string literal, quotes and escapes included, as it came.
///
/// Literals join without being decoded ([`Text::inner`]), which also heals what decoding piece by piece would break: a
/// character whose two `\uXXXX` halves came in two pieces.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Bytes);

impl Text {
    /// Quotes plain text.
    #[must_use]
    pub fn new(plain: &str) -> Self {
        let mut bytes = Vec::with_capacity(plain.len() + 2);
        quote(&mut bytes, plain);
        Self(bytes.into())
    }

    /// Takes the slice of `body` that `raw` borrows from it, if it is a string literal.
    #[must_use]
    pub fn of(body: &Bytes, raw: &RawValue) -> Option<Self> {
        Raw::of(body, raw).as_text()
    }

    /// Takes the slice of `body` that `json`, a whole JSON value, borrows from it, if it is a string literal.
    #[must_use]
    pub fn slice(body: &Bytes, json: &str) -> Option<Self> {
        Raw::slice(body, json).as_text()
    }

    /// Puts quotes around escaped text, as [`Text::inner`] gives it.
    #[must_use]
    pub fn from_inner(inner: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(inner.len() + 2);
        bytes.push(b'"');
        bytes.extend_from_slice(inner);
        bytes.push(b'"');
        Self(bytes.into())
    }

    /// Escaped text between texts that were messages, items or blocks of their own.
    pub const BLANK_LINE: &[u8] = b"\\n\\n";

    /// Joins texts without decoding them; `between` is escaped text. `None` if there are none.
    #[must_use]
    pub fn join(texts: &[Self], between: &[u8]) -> Option<Self> {
        match texts {
            [] => None,
            [text] => Some(text.clone()),
            _ => Some(Self::from_inner(&texts.iter().map(Self::inner).collect::<Vec<_>>().join(between))),
        }
    }

    /// The literal, with its quotes: what to write into a JSON document.
    #[must_use]
    pub fn literal(&self) -> &[u8] {
        &self.0
    }

    /// The escaped text between the quotes.
    #[must_use]
    pub fn inner(&self) -> &[u8] {
        self.0.get(1..self.0.len().saturating_sub(1)).unwrap_or_default()
    }

    /// Tells whether it is `""`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 2
    }

    /// The text itself. Half a surrogate pair, which JSON can write and UTF-8 can't hold, becomes U+FFFD.
    #[must_use]
    pub fn decode(&self) -> Cow<'_, str> {
        let inner = self.inner();
        if memchr::memchr(b'\\', inner).is_none() {
            return String::from_utf8_lossy(inner);
        }
        match serde_json::from_slice::<String>(&self.0) {
            Ok(text) => Cow::Owned(text),
            Err(_) => Cow::Owned(decode_lossy(inner)),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl From<&str> for Text {
    fn from(plain: &str) -> Self {
        Self::new(plain)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.decode())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|plain| Self::new(&plain))
    }
}

/// Fields of an object that nobody here acts on, name and value, in their order.
pub type Rest = Vec<(Text, Raw)>;

/// Writes `plain` as a JSON string literal.
pub fn quote(out: &mut Vec<u8>, plain: &str) {
    // A `Vec` takes every write and a `str` is always JSON.
    let _ = serde_json::to_writer(out, plain);
}

fn decode_lossy(inner: &[u8]) -> String {
    let text = String::from_utf8_lossy(inner);
    let mut units: Vec<u16> = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let mut buffer = [0; 2];
        let c = match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some('u') => {
                    let hex: String = chars.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&hex, 16).unwrap_or(0xFFFD));
                    continue;
                }
                Some(other) => other,
                None => break,
            },
            c => c,
        };
        units.extend_from_slice(c.encode_utf16(&mut buffer));
    }
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_character_join_when_their_literals_do() {
        let halves = [Text(Bytes::from_static(b"\"\\ud83d\"")), Text(Bytes::from_static(b"\"\\ude00\""))];
        assert_eq!(halves[0].decode(), "\u{FFFD}");
        let joined: Vec<u8> = halves.iter().flat_map(|half| half.inner().to_vec()).collect();
        assert_eq!(Text::from_inner(&joined).decode(), "\u{1F600}");
    }

    #[test]
    fn texts_join_as_they_are_escaped() {
        let texts = [Text::new("a \"b\""), Text::new(""), Text::new("é")];
        assert_eq!(Text::join(&[], b""), None);
        assert_eq!(Text::join(&texts[..1], Text::BLANK_LINE), Some(texts[0].clone()));
        assert_eq!(Text::join(&texts, Text::BLANK_LINE), Some(Text::new("a \"b\"\n\n\n\né")));
    }

    #[test]
    fn a_lone_half_keeps_the_text_around_it() {
        let text = Text(Bytes::from_static(b"\"a\\n\\udc00\\\"\xc3\xa9\""));
        assert_eq!(text.decode(), "a\n\u{FFFD}\"\u{e9}");
    }
}
