//! Log-probabilities as this wire shows them: those of the answer's text alone, in chat completions' own entries.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{Extra, Raw, Reply};
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

/// What a policy's event says of log-probabilities, if it does.
pub(super) fn of_event(extra: &Extra) -> Option<&Raw> {
    match extra {
        Extra::Choice { name, value } if name.inner() == b"logprobs" => Some(value),
        _ => None,
    }
}

/// The entries of one event, joined by commas.
pub(super) fn entries(logprobs: &Raw) -> Vec<u8> {
    joined(logprobs.read::<Logprobs>().ok().and_then(|logprobs| logprobs.content).unwrap_or_default().into_iter())
}

/// The entries of the tokens that a reply's text is made of, joined by commas; none if they can't be told from those of
/// its reasoning and its tool calls, which servers list with them.
pub(super) fn of_text(reply: &Reply) -> Vec<u8> {
    let Some(text) = &reply.text else { return Vec::new() };
    let lists = reply.extras.iter().filter_map(of_event).filter_map(|raw| raw.read::<Logprobs>().ok()?.content);
    let entries: Vec<&RawValue> = lists.flatten().collect();
    let (mut spelt, mut starts) = (Vec::new(), Vec::with_capacity(entries.len() + 1));
    for entry in &entries {
        starts.push(spelt.len());
        if let Ok(Entry { token, bytes }) = serde_json::from_str::<Entry>(entry.get()) {
            spelt.extend_from_slice(bytes.as_deref().unwrap_or(token.as_bytes()));
        }
    }
    starts.push(spelt.len());
    let after = |needle: &str, from: usize| memchr::memmem::find(&spelt[from..], needle.as_bytes()).map(|at| from + at);
    let reasoning = reply.reasoning.as_ref().map(|reasoning| reasoning.decode()).unwrap_or_default();
    let from = after(&reasoning, 0).map_or(0, |at| at + reasoning.len());
    let text = text.decode();
    let Some(start) = after(&text, from) else { return Vec::new() };
    let end = start + text.len();
    let inside = |place: &usize| starts[*place] < end && starts[*place + 1] > start;
    joined((0..entries.len()).filter(inside).map(|place| entries[place]))
}

fn joined<'a>(entries: impl Iterator<Item = &'a RawValue>) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        if !out.is_empty() {
            out.push(b',');
        }
        sse::write_line(&mut out, entry.get().as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::of_text;
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
}
