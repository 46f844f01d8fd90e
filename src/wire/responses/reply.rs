//! The objects of a reply: the response itself and its items.

use std::io::Write;

use crate::call::{FinishReason, Text, ToolKind, ToolStart, Usage, quote};
use crate::wire::ReplyHead;

/// Writes the objects of one reply.
pub(super) struct Objects {
    /// The call's id, of which all ids of the reply are made.
    pub(super) hex: String,
    /// `{"id":..,"model":..` of the response, the same in every event.
    start: Vec<u8>,
}

/// How a response ended, or that it hasn't.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// With the reason.
    Incomplete(&'static str),
    Failed,
}

impl Status {
    pub(super) fn of(finish: Option<FinishReason>) -> Self {
        match finish {
            Some(FinishReason::Length) => Self::Incomplete("max_output_tokens"),
            Some(FinishReason::ContentFilter) => Self::Incomplete("content_filter"),
            Some(FinishReason::Stop | FinishReason::ToolCalls) | None => Self::Completed,
        }
    }

    /// The status's name, which is also its event's.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// One part of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartKind {
    Text,
    Refusal,
}

impl Objects {
    pub(super) fn new(head: &ReplyHead) -> Self {
        let hex = head.call_id.0.simple().to_string();
        let mut start = Vec::with_capacity(256);
        let _ = write!(start, "{{\"id\":\"resp_{hex}\",\"object\":\"response\",\"created_at\":{},\"model\":", head.created);
        quote(&mut start, &head.model);
        start.extend_from_slice(
            b",\"instructions\":null,\"metadata\":{},\"parallel_tool_calls\":true,\"previous_response_id\":null,\
              \"tool_choice\":\"auto\",\"tools\":[]",
        );
        Self { hex, start }
    }

    /// Writes the response. `output` is its items, joined by commas; `error` the error object of a failed one.
    pub(super) fn response(&self, out: &mut Vec<u8>, status: Status, output: &[u8], usage: Option<&Usage>, error: &[u8]) {
        out.extend_from_slice(&self.start);
        let _ = write!(out, ",\"status\":\"{}\",\"incomplete_details\":", status.name());
        let _ = match status {
            Status::Incomplete(reason) => write!(out, "{{\"reason\":\"{reason}\"}}"),
            _ => write!(out, "null"),
        };
        out.extend_from_slice(b",\"error\":");
        out.extend_from_slice(error);
        out.extend_from_slice(b",\"output\":[");
        out.extend_from_slice(output);
        out.extend_from_slice(b"],\"usage\":");
        match usage {
            // Zeros that nobody counted would be taken for counts.
            None => out.extend_from_slice(b"null"),
            Some(usage) => write_usage(out, usage),
        }
        out.push(b'}');
    }

    /// The id of the item at this place of the output.
    pub(super) fn item_id(&self, prefix: &str, place: usize) -> String {
        format!("{prefix}_{}_{place}", self.hex)
    }
}

/// The prefix of a tool call's id.
pub(super) fn tool_prefix(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Function => "fc",
        ToolKind::Custom => "ctc",
    }
}

/// Writes a reasoning item; without text, one that has just begun.
pub(super) fn write_reasoning(out: &mut Vec<u8>, id: &str, text: Option<&Text>) {
    let status = if text.is_some() { "completed" } else { "in_progress" };
    let _ = write!(out, "{{\"type\":\"reasoning\",\"id\":\"{id}\",\"status\":\"{status}\",\"summary\":[],\"content\":[");
    if let Some(text) = text {
        out.extend_from_slice(b"{\"type\":\"reasoning_text\",\"text\":");
        out.extend_from_slice(text.literal());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

/// Writes a message.
pub(super) fn write_message(out: &mut Vec<u8>, id: &str, status: &str, parts: &[(PartKind, &Text)]) {
    let _ = write!(out, "{{\"type\":\"message\",\"id\":\"{id}\",\"status\":\"{status}\",\"role\":\"assistant\",\"content\":[");
    for (index, (kind, text)) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_part(out, *kind, text);
    }
    out.extend_from_slice(b"]}");
}

/// Writes a part of a message.
pub(super) fn write_part(out: &mut Vec<u8>, kind: PartKind, text: &Text) {
    out.extend_from_slice(match kind {
        PartKind::Text => &b"{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"[..],
        PartKind::Refusal => &b"{\"type\":\"refusal\",\"refusal\":"[..],
    });
    out.extend_from_slice(text.literal());
    out.push(b'}');
}

/// Writes a tool call.
pub(super) fn write_tool(out: &mut Vec<u8>, id: &str, status: &str, tool: &ToolStart, arguments: &[u8]) {
    let (kind, field) = match tool.kind {
        ToolKind::Function => ("function_call", "arguments"),
        ToolKind::Custom => ("custom_tool_call", "input"),
    };
    let _ = write!(out, "{{\"type\":\"{kind}\",\"id\":\"{id}\",\"status\":\"{status}\",\"call_id\":");
    out.extend_from_slice(tool.id.literal());
    if let Some(namespace) = &tool.namespace {
        out.extend_from_slice(b",\"namespace\":");
        out.extend_from_slice(namespace.literal());
    }
    out.extend_from_slice(b",\"name\":");
    out.extend_from_slice(tool.name.literal());
    let _ = write!(out, ",\"{field}\":");
    out.extend_from_slice(arguments);
    out.push(b'}');
}

fn write_usage(out: &mut Vec<u8>, usage: &Usage) {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"input_tokens\":{prompt_tokens},\"input_tokens_details\":{{\"cached_tokens\":{cached_tokens}}},\
         \"output_tokens\":{completion_tokens},\"output_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}},\
         \"total_tokens\":{total}}}"
    );
}
