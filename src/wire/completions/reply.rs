//! A reply, written as one body, and the pieces of it that chunks have too.

use std::io::Write;

use super::logprobs::Logprobs;
use crate::call::{Extra, FinishReason, Reply, Text, Usage, Wants};
use crate::wire::openai_reply::{last_of_each, write_field, write_ids};

/// Why a reply ended, by the names of this wire, which knows no tools.
pub(super) fn finish_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(FinishReason::Length) => FinishReason::Length.name(),
        Some(FinishReason::ContentFilter) => FinishReason::ContentFilter.name(),
        Some(FinishReason::Stop | FinishReason::ToolCalls) | None => FinishReason::Stop.name(),
    }
}

/// Tells whether a field of the choice is passed on as it is.
pub(super) fn is_wanted(name: &Text) -> bool {
    // Those are written in this wire's form.
    !matches!(name.inner(), b"logprobs" | b"token_ids" | b"prompt_token_ids")
}

/// Writes the usage object.
pub(super) fn write_usage(out: &mut Vec<u8>, usage: &Usage) {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, .. } = usage;
    let total = prompt_tokens + completion_tokens;
    let _ = write!(
        out,
        "{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}}}}"
    );
}

/// Writes the body from the list of choices on; `each` of the replies are to one prompt.
pub(super) fn write(out: &mut Vec<u8>, replies: &[Reply], wants: Wants, each: u32) {
    out.extend_from_slice(b"[");
    for (index, reply) in replies.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_choice(out, index, reply, wants);
    }
    out.push(b']');
    if let Some(usage) = Usage::of_prompts(replies, each) {
        out.extend_from_slice(b",\"usage\":");
        write_usage(out, &usage);
    }
    out.push(b'}');
}

fn write_choice(out: &mut Vec<u8>, index: usize, reply: &Reply, wants: Wants) {
    let _ = write!(out, "{{\"index\":{index},\"text\":\"");
    for text in [&reply.prompt_text, &reply.text].into_iter().flatten() {
        out.extend_from_slice(text.inner());
    }
    out.extend_from_slice(b"\",\"logprobs\":");
    let mut lists = Logprobs::new(0);
    if wants.logprobs {
        reply.extras.iter().filter_map(Extra::logprobs).for_each(|chunk| lists.push(chunk));
    }
    lists.write(out);
    let _ = write!(out, ",\"finish_reason\":\"{}\"", finish_reason(reply));
    for (name, value) in last_of_each(&reply.extras, |extra| match extra {
        Extra::Choice { name, value } if is_wanted(name) => Some((name, value)),
        _ => None,
    }) {
        write_field(out, name, value.as_bytes());
    }
    if wants.token_ids {
        out.extend_from_slice(b",\"token_ids\":");
        write_ids(out, &reply.tokens.ids);
        if let Some(ids) = &reply.prompt_ids {
            out.extend_from_slice(b",\"prompt_token_ids\":");
            write_ids(out, ids);
        }
    }
    out.push(b'}');
}
