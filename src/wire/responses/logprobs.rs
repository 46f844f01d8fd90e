//! Log-probabilities as this wire shows them: those of the answer's text alone, in chat completions' own entries.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{Extra, Raw, Reply, Text};
use crate::wire::sse;

#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    token: Cow<'a, str>,
    #[serde(default)]
    bytes: Option<Vec<u8>>,
}

/// The entries of the tokens that a piece of text is made of, joined by commas: those of the event that it came by, but for others
/// that the event has too, as one that brings a whole reply.
pub(super) fn of_piece(logprobs: &Raw, piece: &Text) -> Vec<u8> {
    let spelt = Spelt::of([logprobs].into_iter());
    let piece = piece.decode();
    let found = memchr::memmem::rfind(&spelt.bytes, piece.as_bytes());
    let (start, end) = found.map_or((0, spelt.bytes.len()), |start| (start, start + piece.len()));
    spelt.between(start, end)
}

/// The entries of the tokens that a reply's text is made of, joined by commas; none if they can't be told from those of
/// its reasoning and its tool calls, which servers list with them.
pub(super) fn of_text(reply: &Reply) -> Vec<u8> {
    let Some(text) = &reply.text else { return Vec::new() };
    let spelt = Spelt::of(reply.extras.iter().filter_map(Extra::logprobs));
    let after = |needle: &str, from: usize| memchr::memmem::find(&spelt.bytes[from..], needle.as_bytes()).map(|at| from + at);
    let reasoning = reply.reasoning.as_ref().map(Text::decode).unwrap_or_default();
    let from = after(&reasoning, 0).map_or(0, |at| at + reasoning.len());
    let text = text.decode();
    after(&text, from).map(|start| spelt.between(start, start + text.len())).unwrap_or_default()
}

/// Tokens beside each other, as they are spelt.
struct Spelt<'a> {
    entries: Vec<&'a RawValue>,
    bytes: Vec<u8>,
    /// Where each token begins, and where the last one ends.
    starts: Vec<usize>,
}

impl<'a> Spelt<'a> {
    fn of(lists: impl Iterator<Item = &'a Raw>) -> Self {
        let entries: Vec<&RawValue> = lists.filter_map(|raw| raw.read::<Logprobs>().ok()?.content).flatten().collect();
        let (mut bytes, mut starts) = (Vec::new(), Vec::with_capacity(entries.len() + 1));
        for entry in &entries {
            starts.push(bytes.len());
            if let Ok(Entry { token, bytes: spelt }) = serde_json::from_str::<Entry>(entry.get()) {
                bytes.extend_from_slice(spelt.as_deref().unwrap_or(token.as_bytes()));
            }
        }
        starts.push(bytes.len());
        Self { entries, bytes, starts }
    }

    /// The entries of the tokens that these bytes are of.
    fn between(&self, start: usize, end: usize) -> Vec<u8> {
        let inside = |place: &usize| self.starts[*place] < end && self.starts[*place + 1] > start;
        joined((0..self.entries.len()).filter(inside).map(|place| self.entries[place]))
    }
}

fn joined<'a>(entries: impl Iterator<Item = &'a RawValue>) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(&sse::one_line(entry.get().as_bytes()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{of_piece, of_text};
    use crate::call::{Extra, Raw, Reply, Text};

    #[test]
    fn the_text_s_tokens_are_found_among_others() {
        let entry = |token: &str| serde_json::json!({ "token": token, "bytes": token.as_bytes(), "logprob": -0.5 });
        let list = |tokens: &[&str]| {
            let content: Vec<_> = tokens.iter().map(|token| entry(token)).collect();
            let value = Raw::from_value(&serde_json::json!({ "content": content }));
            Extra::Choice { name: Text::new("logprobs"), value }
        };
        let reply =
            |extras| Reply { reasoning: Some(Text::new("a b")), text: Some(Text::new("b é")), extras, ..Reply::default() };
        let shown = |extras| String::from_utf8(of_text(&reply(extras))).unwrap();
        let expected = format!("{},{}", entry("\nb"), entry(" é"));
        let whole = ["<think>", "a", " b", "</think>", "\nb", " é", "<end>"];
        assert_eq!(shown(vec![list(&whole)]), expected);
        assert_eq!(shown(whole.iter().map(|token| list(&[token])).collect()), expected);
        assert_eq!(shown(vec![list(&["other"])]), "");
        assert_eq!(shown(vec![]), "");
    }

    #[test]
    fn a_piece_has_its_event_s_tokens_and_no_others_of_a_whole_reply() {
        let entry = |token: &str, bytes: &[u8]| serde_json::json!({ "token": token, "bytes": bytes, "logprob": -0.5 });
        let shown = |piece: &str, entries: &[serde_json::Value]| {
            let value = Raw::from_value(&serde_json::json!({ "content": entries }));
            String::from_utf8(of_piece(&value, &Text::new(piece))).unwrap()
        };
        let plain = |token: &str| entry(token, token.as_bytes());
        assert_eq!(shown("ab", &[plain("ab")]), plain("ab").to_string());
        assert_eq!(shown("a", &[plain("a"), plain("</t>"), plain("a"), plain("<end>")]), plain("a").to_string());
        // The first byte of a character came by an event that had no text yet.
        let half = entry("\u{fffd}", &[0xa9]);
        assert_eq!(shown("é", std::slice::from_ref(&half)), half.to_string());
    }
}
