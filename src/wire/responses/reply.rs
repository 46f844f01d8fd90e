//! The objects of a reply: the response itself and its items.

use std::io::Write;

use super::echo;
use crate::call::{Call, Failure, FailureKind, FinishReason, Rest, Text, ToolKind, ToolStart, Usage, quote};
use crate::wire::ReplyHead;

/// Writes the objects of one reply.
pub(super) struct Objects {
    /// The call's id, of which all ids of the reply are made.
    pub(super) hex: String,
    /// `{"id":..` of the response and what it repeats of the request, the same in every event.
    start: Vec<u8>,
    echo: Rest,
}

/// How a response ended, or that it hasn't.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// With the reason.
    Incomplete(&'static str),
    Failed,
    Cancelled,
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
            Self::Cancelled => "cancelled",
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
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        let hex = head.call_id.0.simple().to_string();
        let mut start = Vec::with_capacity(1024);
        let _ = write!(start, "{{\"id\":\"resp_{hex}\",\"object\":\"response\",\"created_at\":{},\"model\":", head.created);
        quote(&mut start, &head.model);
        echo::write(&mut start, &call.echo);
        Self { hex, start, echo: call.echo.clone() }
    }

    /// Writes the response. `output` is its items, joined by commas; `error` the error object of a failed one.
    pub(super) fn response(&self, out: &mut Vec<u8>, status: Status, output: &[u8], usage: Option<&Usage>, error: &[u8]) {
        out.extend_from_slice(&self.start);
        echo::write_long(out, &self.echo, status == Status::InProgress);
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

    /// The id of an item: `number` tells apart those of its kind, so that it does not depend on what came before it.
    pub(super) fn item_id(&self, prefix: &str, number: usize) -> String {
        format!("{prefix}_{}_{number}", self.hex)
    }
}

/// The error object of a failed response. Codex reads how long to wait from the message.
pub(super) fn error(failure: &Failure) -> Vec<u8> {
    let code = code(failure.kind);
    let mut message = failure.message.clone();
    if let ("rate_limit_exceeded", Some(seconds)) = (code, failure.retry_after) {
        message = format!("{message}. Please try again in {seconds}s.");
    }
    let mut error = format!("{{\"code\":\"{code}\",\"message\":").into_bytes();
    quote(&mut error, &message);
    error.push(b'}');
    error
}

/// The code of a failure inside a stream; Codex tells by it whether to try again.
fn code(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::RateLimited => "rate_limit_exceeded",
        FailureKind::ContextOverflow => "context_length_exceeded",
        FailureKind::Invalid | FailureKind::Refused | FailureKind::TooLarge => "invalid_prompt",
        _ => "server_error",
    }
}

/// The prefix of a tool call's id.
pub(super) fn tool_prefix(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Function => "fc",
        ToolKind::Custom => "ctc",
    }
}

/// How a reply's reasoning is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ReasoningForm {
    /// As a summary, in place of the text: who asks for one shows nothing else, and both would double what is sent each way.
    pub(super) summary: bool,
    /// Sealed too.
    pub(super) sealed: bool,
}

/// Writes a reasoning item; without text, one that has just begun.
pub(super) fn write_reasoning(out: &mut Vec<u8>, id: &str, status: &str, form: ReasoningForm, text: Option<&Text>) {
    let _ = write!(out, "{{\"type\":\"reasoning\",\"id\":\"{id}\",\"status\":\"{status}\",\"summary\":[");
    if let (Some(text), true) = (text, form.summary) {
        write_reasoning_part(out, form, text);
    }
    if !form.summary {
        out.extend_from_slice(b"],\"content\":[");
        if let Some(text) = text {
            write_reasoning_part(out, form, text);
        }
    }
    out.push(b']');
    if form.sealed {
        let sealed = text.map(super::sealed::seal);
        let _ = match sealed {
            Some(sealed) => write!(out, ",\"encrypted_content\":\"{sealed}\""),
            None => write!(out, ",\"encrypted_content\":null"),
        };
    }
    out.push(b'}');
}

/// Writes the one part of a reasoning item.
pub(super) fn write_reasoning_part(out: &mut Vec<u8>, form: ReasoningForm, text: &Text) {
    let kind = if form.summary { "summary_text" } else { "reasoning_text" };
    let _ = write!(out, "{{\"type\":\"{kind}\",\"text\":");
    out.extend_from_slice(text.literal());
    out.push(b'}');
}

/// Writes a message.
pub(super) fn write_message(out: &mut Vec<u8>, id: &str, status: &str, parts: &[(PartKind, &Text)], logprobs: &[u8]) {
    let _ = write!(out, "{{\"type\":\"message\",\"id\":\"{id}\",\"status\":\"{status}\",\"role\":\"assistant\",\"content\":[");
    for (index, (kind, text)) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_part(out, *kind, text, logprobs);
    }
    out.extend_from_slice(b"]}");
}

/// Writes a part of a message; `logprobs` are the entries of its text's tokens, joined by commas.
pub(super) fn write_part(out: &mut Vec<u8>, kind: PartKind, text: &Text, logprobs: &[u8]) {
    match kind {
        PartKind::Text => {
            out.extend_from_slice(b"{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
            out.extend_from_slice(logprobs);
            out.extend_from_slice(b"],\"text\":");
        }
        PartKind::Refusal => out.extend_from_slice(b"{\"type\":\"refusal\",\"refusal\":"),
    }
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
        "{{\"input_tokens\":{prompt_tokens},\"input_tokens_details\":{{\"cache_write_tokens\":0,\"cached_tokens\":{cached_tokens}}},\
         \"output_tokens\":{completion_tokens},\"output_tokens_details\":{{\"reasoning_tokens\":{reasoning_tokens}}},\
         \"total_tokens\":{total}}}"
    );
}
