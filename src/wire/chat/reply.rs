//! A reply, written as one body, and the pieces of it that chunks have too.

use std::io::Write;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{Extra, FinishReason, Raw, Reply, Text, ToolCall, ToolKind, Usage, Wants};
use crate::wire::openai_reply::{last_of_each, write_field, write_ids};

/// Why a reply ended, as clients act on it: they run tools only when told that there are some.
pub(super) fn finish_reason(reply: &Reply, wants: Wants) -> &'static str {
    let reason = match reply.finish.unwrap_or(FinishReason::Stop) {
        FinishReason::Stop if !reply.tool_calls.is_empty() => FinishReason::ToolCalls,
        reason => reason,
    };
    if wants.function_call && reason == FinishReason::ToolCalls { "function_call" } else { reason.name() }
}

/// Tells whether a client wants to see this field of the choice.
pub(super) fn is_wanted(wants: Wants, name: &Text) -> bool {
    match name.inner() {
        b"logprobs" => wants.logprobs,
        b"token_ids" | b"prompt_token_ids" => false, // written from the tokens themselves
        _ => true,
    }
}

/// Writes the usage object.
pub(super) fn write_usage(out: &mut Vec<u8>, usage: &Usage) {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}}}}"
    );
}

/// Writes the body from the name of its kind on.
pub(super) fn write(out: &mut Vec<u8>, replies: &[Reply], wants: Wants) {
    out.extend_from_slice(b"chat.completion\",\"choices\":[");
    for (index, reply) in replies.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_choice(out, index, reply, wants);
    }
    out.push(b']');
    let prompt = replies.first().and_then(|reply| reply.prompt_ids.as_ref());
    if let (true, Some(ids)) = (wants.token_ids, prompt) {
        out.extend_from_slice(b",\"prompt_token_ids\":");
        write_ids(out, ids);
    }
    if let Some(usage) = Usage::of_all(replies) {
        out.extend_from_slice(b",\"usage\":");
        write_usage(out, &usage);
    }
    out.push(b'}');
}

fn write_choice(out: &mut Vec<u8>, index: usize, reply: &Reply, wants: Wants) {
    let _ = write!(out, "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":");
    write_text(out, reply.text.as_ref());
    out.extend_from_slice(b",\"refusal\":");
    write_text(out, reply.refusal.as_ref());
    if let Some(reasoning) = &reply.reasoning {
        for name in ["reasoning_content", "reasoning"] {
            let _ = write!(out, ",\"{name}\":");
            out.extend_from_slice(reasoning.literal());
        }
    }
    if wants.function_call {
        if let Some(call) = reply.tool_calls.first() {
            out.extend_from_slice(b",\"function_call\":{\"name\":");
            out.extend_from_slice(call.name.literal());
            out.extend_from_slice(b",\"arguments\":");
            out.extend_from_slice(arguments(call));
            out.push(b'}');
        }
    } else if !reply.tool_calls.is_empty() {
        out.extend_from_slice(b",\"tool_calls\":[");
        for (index, call) in reply.tool_calls.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_tool_call(out, call);
        }
        out.push(b']');
    }
    for (name, value) in last_of_each(&reply.extras, |extra| match extra {
        Extra::Delta { name, value } => Some((name, value)),
        Extra::Choice { .. } => None,
    }) {
        write_field(out, name, value.as_bytes());
    }
    let _ = write!(out, "}},\"finish_reason\":\"{}\"", finish_reason(reply, wants));
    for (name, value) in last_of_each(&reply.extras, |extra| match extra {
        Extra::Choice { name, value } if is_wanted(wants, name) => Some((name, value)),
        _ => None,
    }) {
        let joined = if name.inner() == b"logprobs" { join_logprobs(&reply.extras) } else { None };
        write_field(out, name, joined.as_deref().unwrap_or(value.as_bytes()));
    }
    if wants.token_ids {
        out.extend_from_slice(b",\"token_ids\":");
        write_ids(out, &reply.tokens.ids);
    }
    out.push(b'}');
}

fn write_text(out: &mut Vec<u8>, text: Option<&Text>) {
    out.extend_from_slice(text.map_or(b"null", |text| text.literal()));
}

fn write_tool_call(out: &mut Vec<u8>, call: &ToolCall) {
    let (kind, field) = match call.kind {
        ToolKind::Function => ("function", "arguments"),
        ToolKind::Custom => ("custom", "input"),
    };
    out.extend_from_slice(b"{\"id\":");
    out.extend_from_slice(call.id.literal());
    let _ = write!(out, ",\"type\":\"{kind}\",\"{kind}\":{{\"name\":");
    out.extend_from_slice(call.name.literal());
    let _ = write!(out, ",\"{field}\":");
    out.extend_from_slice(arguments(call));
    out.extend_from_slice(b"}}");
}

/// A call's arguments as a string; those of a function are an object, if there are none an empty one.
fn arguments(call: &ToolCall) -> &[u8] {
    if call.kind == ToolKind::Function && call.arguments.is_empty() { b"\"{}\"" } else { call.arguments.literal() }
}

#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<&'a RawValue>>,
}

/// The log-probabilities of all chunks as those of one reply; `None` if one chunk held them all.
fn join_logprobs(extras: &[Extra]) -> Option<Vec<u8>> {
    let chunks: Vec<&Raw> = extras.iter().filter_map(Extra::logprobs).collect();
    if chunks.len() < 2 {
        return None;
    }
    let mut out = b"{\"content\":[".to_vec();
    let entries = chunks.iter().filter_map(|chunk| chunk.read::<Logprobs>().ok()?.content).flatten();
    for (index, entry) in entries.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(entry.get().as_bytes());
    }
    out.extend_from_slice(b"]}");
    Some(out)
}
