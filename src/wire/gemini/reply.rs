//! The pieces of a reply that chunks and whole bodies share.

use std::borrow::Cow;
use std::io::Write;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::signature::Carried;
use crate::call::{Extra, FinishReason, Raw, Reply, Text, ToolCall, ToolKind, Usage, quote};
use crate::wire::fields;

/// Writes a part of text; `signature` goes with it.
pub(super) fn write_text(out: &mut Vec<u8>, text: &[u8], signature: Option<&str>) {
    out.extend_from_slice(b"{\"text\":");
    out.extend_from_slice(text);
    write_signature(out, signature);
    out.push(b'}');
}

/// Writes a part of a thought.
pub(super) fn write_thought(out: &mut Vec<u8>, text: &Text) {
    out.extend_from_slice(b"{\"text\":");
    out.extend_from_slice(text.literal());
    out.extend_from_slice(b",\"thought\":true}");
}

fn write_signature(out: &mut Vec<u8>, signature: Option<&str>) {
    if let Some(signature) = signature {
        // Base64 needs no escapes.
        let _ = write!(out, ",\"thoughtSignature\":\"{signature}\"");
    }
}

/// A signature that carries the reasoning so far, escaped; `None` where nothing was thought.
pub(super) fn signed(reasoning: &[u8]) -> Option<String> {
    let plain = || Text::from_inner(reasoning).decode().into_owned();
    (!reasoning.is_empty()).then(|| Carried { reasoning: plain(), arguments: Vec::new() }.sign())
}

/// How a reply ends, and the calls that its client may run.
pub(super) struct Ending<'a> {
    calls: Vec<(&'a ToolCall, Cow<'a, str>)>,
    reason: &'static str,
    /// What is wrong with a call.
    message: Option<String>,
}

impl<'a> Ending<'a> {
    /// Looks at how a reply ends. A call whose arguments are no object is never passed on: of a reply that was cut it is left out,
    /// and any other has, as in this API, no calls at all then.
    pub(super) fn of(reply: &'a Reply) -> Self {
        let mut calls = Vec::with_capacity(reply.tool_calls.len());
        let mut malformed = None;
        let is_cut = reply.finish == Some(FinishReason::Length);
        for (index, call) in reply.tool_calls.iter().enumerate() {
            // What was cut before its arguments began has not none: they never came.
            let unbegun = is_cut && index + 1 == reply.tool_calls.len() && call.arguments.is_empty();
            match object(call).filter(|_| !unbegun) {
                Some(arguments) => calls.push((call, arguments)),
                None => malformed = malformed.or(Some(call)),
            }
        }
        let reason = match (reply.finish, malformed) {
            (Some(FinishReason::Length), _) => "MAX_TOKENS",
            (Some(FinishReason::ContentFilter), _) => "SAFETY",
            // A refusal is text here, and told apart by how it ends.
            _ if reply.refusal.as_ref().is_some_and(|text| !text.is_empty()) => "SAFETY",
            (_, Some(_)) => "MALFORMED_FUNCTION_CALL",
            (_, None) => "STOP",
        };
        let malformed = malformed.filter(|_| reason == "MALFORMED_FUNCTION_CALL");
        if malformed.is_some() {
            calls.clear();
        }
        let message =
            malformed.map(|call| format!("Malformed function call: {} {}", call.name.decode(), call.arguments.decode()));
        Self { calls, reason, message }
    }

    /// Writes the parts that are left to be written: the calls, else an empty text that no client takes for a broken reply.
    /// `reasoning` is escaped; `unsigned` tells that no part before carries all of it.
    pub(super) fn write_parts(&self, out: &mut Vec<u8>, reasoning: &[u8], unsigned: bool) {
        if self.calls.is_empty() {
            let signature = if unsigned { signed(reasoning) } else { None };
            return write_text(out, b"\"\"", signature.as_deref());
        }
        let carried = Carried {
            reasoning: Text::from_inner(reasoning).decode().into_owned(),
            arguments: self.calls.iter().map(|(_, arguments)| arguments.clone().into_owned()).collect(),
        };
        let mut signature = Some(carried.sign());
        for (index, (call, arguments)) in self.calls.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"functionCall\":{\"id\":");
            out.extend_from_slice(call.id.literal());
            out.extend_from_slice(b",\"name\":");
            out.extend_from_slice(call.name.literal());
            out.extend_from_slice(b",\"args\":");
            // An event is one line; within JSON's strings there are no line ends.
            out.extend(arguments.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
            out.push(b'}');
            write_signature(out, signature.take().as_deref());
            out.push(b'}');
        }
    }

    /// Tells whether there are calls.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Writes what stands beside a candidate's content.
    pub(super) fn write_reason(&self, out: &mut Vec<u8>) {
        let _ = write!(out, ",\"finishReason\":\"{}\"", self.reason);
        if let Some(message) = &self.message {
            out.extend_from_slice(b",\"finishMessage\":");
            quote(out, message);
        }
    }
}

/// The JSON text of a call's arguments, if they are an object that clients can read, and send back; none at all are an empty one.
fn object(call: &ToolCall) -> Option<Cow<'_, str>> {
    let text = call.arguments.decode();
    if call.kind == ToolKind::Custom {
        return Some(serde_json::json!({ ToolKind::CUSTOM_FIELD: text }).to_string().into());
    }
    if text.trim().is_empty() {
        return Some("{}".into());
    }
    let json = serde_json::from_str::<&RawValue>(&text).ok()?.get();
    (json.starts_with('{') && !fields::is_deep(json.as_bytes())).then(|| json.to_owned().into())
}

/// Writes the usage object.
pub(super) fn write_usage(out: &mut Vec<u8>, usage: &Usage) {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    let answer = completion_tokens.saturating_sub(*reasoning_tokens);
    let _ = write!(out, ",\"usageMetadata\":{{\"promptTokenCount\":{prompt_tokens},\"candidatesTokenCount\":{answer}");
    for (name, count) in [("thoughtsTokenCount", reasoning_tokens), ("cachedContentTokenCount", cached_tokens)] {
        if *count > 0 {
            let _ = write!(out, ",\"{name}\":{count}");
        }
    }
    let _ = write!(out, ",\"totalTokenCount\":{}}}", prompt_tokens + completion_tokens);
}

#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<Entry<'a>>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    token: &'a RawValue,
    logprob: f64,
    #[serde(borrow, default)]
    top_logprobs: Vec<Entry<'a>>,
}

/// Writes the log-probabilities of a reply's tokens, where the policy gave some.
pub(super) fn write_logprobs(out: &mut Vec<u8>, extras: &[Extra]) {
    let raws: Vec<&Raw> = extras.iter().filter_map(Extra::logprobs).collect();
    let entries: Vec<Entry> = raws.iter().filter_map(|raw| raw.read::<Logprobs>().ok()?.content).flatten().collect();
    if entries.is_empty() {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "no reply has 2^52 tokens")]
    let mean = entries.iter().map(|entry| entry.logprob).sum::<f64>() / entries.len() as f64;
    let _ = write!(out, ",\"avgLogprobs\":{mean},\"logprobsResult\":{{\"chosenCandidates\":[");
    write_entries(out, &entries);
    out.extend_from_slice(b"],\"topCandidates\":[");
    for (index, entry) in entries.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",{\"candidates\":[" } else { b"{\"candidates\":[" });
        write_entries(out, &entry.top_logprobs);
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"]}");
}

fn write_entries(out: &mut Vec<u8>, entries: &[Entry]) {
    for (index, entry) in entries.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{{\"token\":{},\"logProbability\":{}}}", entry.token.get(), entry.logprob);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_could_not_be_sent_back_are_malformed() {
        let call = |depth: usize| {
            let arguments = Text::new(&format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth)));
            ToolCall { id: "a".into(), kind: ToolKind::Function, namespace: None, name: "f".into(), arguments }
        };
        assert!(object(&call(50)).is_some());
        assert_eq!((object(&call(200)), object(&call(100_000))), (None, None));
    }
}
