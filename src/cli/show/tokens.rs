//! The tokens of a sample, by mask.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::super::terminal::{Paint, harmless};
use crate::call::{CallRecord, Raw};
use crate::ids::CallId;
use crate::trajectory::{Sample, Span};

/// Of a long run of context, so many ids are printed at each end.
const ENDS: usize = 24;

/// A chat reply or one chunk of it, as far as it names tokens.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    token: String,
}

/// The sampled tokens' texts that a server's raw answer names: a whole reply, or a stream of chunks.
pub(super) fn strings(response: &[u8]) -> Vec<String> {
    let chunks: Vec<Chunk> = match serde_json::from_slice(response) {
        Ok(whole) => vec![whole],
        Err(_) => response
            .split(|byte| *byte == b'\n' || *byte == b'\r')
            .filter_map(|line| line.strip_prefix(b"data:"))
            .filter_map(|data| serde_json::from_slice(data).ok())
            .collect(),
    };
    let choices = chunks.into_iter().flat_map(|chunk| chunk.choices);
    let entries = choices.filter_map(|choice| choice.logprobs?.content).flatten();
    entries.map(|entry| entry.token).collect()
}

/// The sample's ids, run by run of one mask.
pub(super) fn sample(
    sample: &Sample,
    strings: &BTreeMap<CallId, Vec<String>>,
    replies: &BTreeMap<CallId, &CallRecord>,
    paint: Paint,
) -> String {
    let mut out = format!("{} {}\n", paint.bold("sample"), sample.id);
    let mut at = 0;
    while at < sample.token_ids.len() {
        let span = sample.spans.iter().find(|span| (span.start..span.end).contains(&at));
        let bound = span.map_or_else(|| next_span(sample, at), |span| span.end).min(sample.token_ids.len());
        let mask = sample.loss_mask[at];
        let end = (at..bound).find(|i| sample.loss_mask[*i] != mask).unwrap_or(bound);
        let ids = &sample.token_ids[at..end];
        let _ = write!(out, "[mask {mask}] {} ids{}", ids.len(), span.map_or("", |_| " sampled"));
        let text = match span {
            Some(span) => sampled(span, at, ids, strings, replies),
            None => context(ids),
        };
        let _ = writeln!(out, ": {}", if mask == 1 { paint.green(&text) } else { paint.dim(&text) });
        at = end;
    }
    out
}

fn next_span(sample: &Sample, at: usize) -> usize {
    sample.spans.iter().map(|span| span.start).filter(|start| *start > at).min().unwrap_or(usize::MAX)
}

/// Ids with their texts where the server named them, else with the whole reply's text.
fn sampled(
    span: &Span,
    at: usize,
    ids: &[u32],
    strings: &BTreeMap<CallId, Vec<String>>,
    replies: &BTreeMap<CallId, &CallRecord>,
) -> String {
    let named = strings.get(&span.call_id).filter(|named| named.len() == span.end - span.start);
    let words = ids.iter().enumerate().map(|(i, id)| match named.and_then(|named| named.get(at - span.start + i)) {
        Some(text) => format!("{id} {text:?}"),
        None => id.to_string(),
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if named.is_none()
        && let Some(message) = replies.get(&span.call_id).and_then(|record| record.message.as_ref())
    {
        let _ = write!(text, "\n  reply: {}", reply(message));
    }
    text
}

fn reply(message: &Raw) -> String {
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        content: Option<String>,
    }
    let content = message.read::<Message>().ok().and_then(|message| message.content);
    harmless(content.as_deref().unwrap_or_else(|| message.as_str()))
}

/// Ids that were given to the policy; the middle of a long run is left out.
fn context(ids: &[u32]) -> String {
    let joined = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    match (ids.get(..ENDS), ids.len().checked_sub(ENDS).and_then(|from| ids.get(from..))) {
        (Some(first), Some(last)) if ids.len() > 2 * ENDS => {
            format!("{} ... {} more ... {}", joined(first), ids.len() - 2 * ENDS, joined(last))
        }
        _ => joined(ids),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_texts_are_read_from_streams_and_whole_replies() {
        let stream =
            b"data: {\"choices\":[{\"delta\":{},\"logprobs\":{\"content\":[{\"token\":\"He\",\"logprob\":-1}]}}]}\r\n\r\n\
            : ping\ndata: {\"choices\":[{\"logprobs\":null}]}\n\ndata: {\"choices\":[]}\n\
            data:{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"y\"}]}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(strings(stream), ["He", "y"]);
        assert_eq!(strings(br#"{"choices":[{"logprobs":{"content":[{"token":"a"},{"token":"b"}]}}]}"#), ["a", "b"]);
        assert_eq!(strings(b"<html>"), Vec::<String>::new());
    }

    fn given(mask: [u8; 6]) -> Sample {
        let call_id = "019a0000-0000-7000-8000-000000000001";
        let span = |start: usize, end: usize| {
            json!({"call_id": call_id, "start": start, "end": end, "policy_version": null,
            "policy_seq": 0, "version_source": null, "finish_reason": null, "sampling": {}, "logprob_kind": "raw",
            "constrained": false, "rewards": {}})
        };
        let sample = json!({"schema": "gleaner.sample.v1", "id": "s", "rollout_id": "019a0000-0000-7000-8000-000000000000",
            "rollout_index": 0, "group_id": null, "task_id": null, "harness": null, "purpose": "record", "index": 0,
            "token_ids": [1, 2, 3, 4, 5, 6], "loss_mask": mask, "logprobs": [null, null, -1.0, -1.0, null, -1.0],
            "prompt_length": 2, "spans": [span(2, 4), span(5, 6)], "reward": null, "rewards": {}, "outcome": null,
            "status": "complete", "rollout_mask_total": 3, "rollout_samples": 1, "parent": null, "policy": "p", "model": "m",
            "tokenizer_hash": null, "template_hash": null, "messages": [], "tools": [], "images": [], "metadata": {}});
        serde_json::from_value(sample).unwrap()
    }

    #[test]
    fn runs_change_with_the_mask_and_with_the_call() {
        let named = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            BTreeMap::from([("019a0000-0000-7000-8000-000000000001".parse().unwrap(), texts)])
        };
        let text = sample(&given([0, 0, 1, 1, 0, 1]), &named(&["a\n", "b"]), &BTreeMap::new(), Paint::none());
        let expected = "sample s\n[mask 0] 2 ids: 1 2\n[mask 1] 2 ids sampled: 3 \"a\\n\" 4 \"b\"\n[mask 0] 1 ids: 5\n\
            [mask 1] 1 ids sampled: 6\n";
        assert_eq!(text, expected);
        // A span that another sample trains is context here, and is told from what was given to the policy.
        let text = sample(&given([0, 0, 0, 0, 0, 1]), &named(&[]), &BTreeMap::new(), Paint::always());
        let expected = "\x1b[1msample\x1b[0m s\n[mask 0] 2 ids: \x1b[2m1 2\x1b[0m\n[mask 0] 2 ids sampled: \x1b[2m3 4\x1b[0m\n\
            [mask 0] 1 ids: \x1b[2m5\x1b[0m\n[mask 1] 1 ids sampled: \x1b[32m6\x1b[0m\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn long_context_is_shortened_in_its_middle() {
        let ids: Vec<u32> = (0..60).collect();
        let text = context(&ids);
        assert!(text.starts_with("0 1 2 ") && text.contains("23 ... 12 more ... 36") && text.ends_with(" 59"), "{text}");
        assert_eq!(context(&ids[..3]), "0 1 2");
    }
}
