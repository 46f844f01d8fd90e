//! Log-probabilities in the old form: lists beside each other, one element for each token.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{Raw, Text, quote};
use crate::wire::sse::one_line;

/// What a policy gives of one chunk: the old form as it is, or chat completions'.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Given<'a> {
    #[serde(borrow)]
    tokens: Vec<&'a RawValue>,
    #[serde(borrow)]
    token_logprobs: Vec<&'a RawValue>,
    #[serde(borrow)]
    top_logprobs: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    text_offset: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    content: Option<Vec<Entry<'a>>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    token: &'a RawValue,
    #[serde(borrow)]
    logprob: &'a RawValue,
    #[serde(borrow, default)]
    top_logprobs: Vec<Entry<'a>>,
}

/// The lists of a reply, as far as it has come.
pub(super) struct Logprobs {
    tokens: Vec<u8>,
    values: Vec<u8>,
    top: Vec<u8>,
    offsets: Vec<u8>,
    /// Characters of the text before the next token, where nobody gives them.
    offset: usize,
}

impl Logprobs {
    /// Nothing yet of a text that begins at `offset`.
    pub(super) fn new(offset: usize) -> Self {
        let list = Vec::new;
        Self { tokens: list(), values: list(), top: list(), offsets: list(), offset }
    }

    /// Takes those of one chunk; in a form that is new to us there are none.
    pub(super) fn push(&mut self, chunk: &Raw) {
        let Ok(given) = chunk.read::<Given>() else { return };
        for (at, (token, logprob)) in given.tokens.iter().zip(&given.token_logprobs).enumerate() {
            let top = given.top_logprobs.as_ref().and_then(|all| all.get(at)).map_or("null", |top| top.get());
            let offset = given.text_offset.as_ref().and_then(|all| all.get(at)).map(|offset| offset.get());
            self.token(token, logprob, top.as_bytes(), offset);
        }
        for entry in given.content.iter().flatten() {
            let mut top = vec![b'{'];
            for (place, other) in entry.top_logprobs.iter().enumerate() {
                comma(&mut top, place > 0);
                push(&mut top, other.token);
                top.push(b':');
                push(&mut top, other.logprob);
            }
            top.push(b'}');
            self.token(entry.token, entry.logprob, &top, None);
        }
    }

    fn token(&mut self, token: &RawValue, logprob: &RawValue, top: &[u8], offset: Option<&str>) {
        let more = !self.tokens.is_empty();
        for list in [&mut self.tokens, &mut self.values, &mut self.top, &mut self.offsets] {
            comma(list, more);
        }
        push(&mut self.tokens, token);
        push(&mut self.values, logprob);
        self.top.extend_from_slice(&one_line(top));
        let counted = self.offset.to_string();
        self.offsets.extend_from_slice(offset.unwrap_or(&counted).as_bytes());
        let length = serde_json::from_str::<Text>(token.get()).map_or(0, |token| token.decode().chars().count());
        self.offset += length;
    }

    /// Writes the lists, and begins new ones behind them; `null` if there are none.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        if self.tokens.is_empty() {
            out.extend_from_slice(b"null");
            return;
        }
        let lists: [(&str, &mut Vec<u8>); 4] = [
            ("text_offset", &mut self.offsets),
            ("token_logprobs", &mut self.values),
            ("tokens", &mut self.tokens),
            ("top_logprobs", &mut self.top),
        ];
        for (place, (name, list)) in lists.into_iter().enumerate() {
            out.push(if place == 0 { b'{' } else { b',' });
            quote(out, name);
            out.extend_from_slice(b":[");
            out.append(list);
            out.push(b']');
        }
        out.push(b'}');
    }
}

fn comma(list: &mut Vec<u8>, more: bool) {
    if more {
        list.push(b',');
    }
}

fn push(list: &mut Vec<u8>, value: &RawValue) {
    list.extend_from_slice(value.get().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(offset: usize, chunks: &[&str]) -> String {
        let mut logprobs = Logprobs::new(offset);
        for chunk in chunks {
            logprobs.push(&Raw::from_json(chunk.as_bytes().to_vec()));
        }
        let mut out = Vec::new();
        logprobs.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lists_of_chunks_are_joined_and_keep_their_offsets() {
        let chunks = [
            r#"{"text_offset":[7],"token_logprobs":[null],"tokens":["\u00e9"],"top_logprobs":[null]}"#,
            r#"{"text_offset":[8,9],"token_logprobs":[-0.5,-1e-3],"tokens":[" b","c"],"top_logprobs":[{" b":-0.5},{"c":-1e-3}]}"#,
        ];
        let expected = r#"{"text_offset":[7,8,9],"token_logprobs":[null,-0.5,-1e-3],"tokens":["\u00e9"," b","c"],"top_logprobs":[null,{" b":-0.5},{"c":-1e-3}]}"#;
        assert_eq!(written(0, &chunks), expected);
    }

    #[test]
    fn entries_of_chat_become_lists() {
        let chunks = [
            r#"{"content":[{"token":"\u00e9 ","logprob":-0.5,"bytes":[1],"top_logprobs":[{"token":"x","logprob":-2},{"token":"y","logprob":-3}]}]}"#,
            r#"{"content":[{"token":"","logprob":-0.25,"top_logprobs":[]},{"token":"z","logprob":-1}]}"#,
        ];
        let expected = r#"{"text_offset":[3,5,5],"token_logprobs":[-0.5,-0.25,-1],"tokens":["\u00e9 ","","z"],"top_logprobs":[{"x":-2,"y":-3},{},{}]}"#;
        assert_eq!(written(3, &chunks), expected);
    }

    #[test]
    fn what_is_none_is_null() {
        assert_eq!(written(0, &[]), "null");
        assert_eq!(written(0, &["null", "7", "{\"new\":[]}"]), "null");
    }
}
