//! A reply, written as chunks.

use std::io::Write;

use super::logprobs::Logprobs;
use super::reply;
use crate::call::{Call, Event, Extra, Failure, Reply, Usage, Wants, quote};
use crate::wire::sse::one_line;
use crate::wire::{Encoder, ReplyHead, openai_reply};

/// Writes one reply.
pub(super) struct CompletionsEncoder {
    wants: Wants,
    each: u32,
    /// Up to the value of `choices`.
    head: Vec<u8>,
    choice: u32,
    logprobs: Logprobs,
}

impl CompletionsEncoder {
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        let mut start = Vec::with_capacity(160);
        let _ = write!(start, "{{\"id\":\"cmpl-{}\",\"object\":\"text_completion\",", head.call_id.0.simple());
        let _ = write!(start, "\"created\":{},\"model\":", head.created);
        quote(&mut start, &head.model);
        start.extend_from_slice(b",\"choices\":");
        Self { wants: call.wants, each: call.replies, head: start, choice: head.choice, logprobs: Logprobs::new(0) }
    }

    /// Writes a chunk around a text, what comes of log-probabilities, and what stands beside them.
    fn chunk(&mut self, out: &mut Vec<u8>, text: &[u8], finish: Option<&str>, beside: &[&[u8]]) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.head);
        let _ = write!(out, "[{{\"index\":{},\"text\":", self.choice);
        out.extend_from_slice(text);
        out.extend_from_slice(b",\"logprobs\":");
        self.logprobs.write(out);
        let _ = match finish {
            Some(reason) => write!(out, ",\"finish_reason\":\"{reason}\""),
            None => write!(out, ",\"finish_reason\":null"),
        };
        for piece in beside {
            out.extend_from_slice(piece);
        }
        out.extend_from_slice(b"}]}\n\n");
    }

    fn ids(&mut self, out: &mut Vec<u8>, name: &[u8], ids: &[u32]) {
        let mut list = Vec::new();
        openai_reply::write_ids(&mut list, ids);
        self.chunk(out, b"\"\"", None, &[name, &list]);
    }

    fn extra(&mut self, out: &mut Vec<u8>, extra: &Extra) {
        let Extra::Choice { name, value } = extra else { return };
        if let Some(chunk) = extra.logprobs().filter(|_| self.wants.logprobs) {
            self.logprobs.push(chunk);
            self.chunk(out, b"\"\"", None, &[]);
        } else if reply::is_wanted(name) {
            self.chunk(out, b"\"\"", None, &[b",", name.literal(), b":", &one_line(value.as_bytes())]);
        }
    }
}

impl Encoder for CompletionsEncoder {
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::PromptText(text) | Event::Text(text) if !text.is_empty() => self.chunk(out, text.literal(), None, &[]),
            Event::Prompt(ids) if self.wants.token_ids => self.ids(out, b",\"prompt_token_ids\":", ids),
            Event::Tokens(tokens) if self.wants.token_ids => self.ids(out, b",\"token_ids\":", &tokens.ids),
            Event::Extra(extra) => self.extra(out, extra),
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        self.chunk(out, b"\"\"", Some(reply::finish_reason(reply)), &[]);
    }

    fn close(&mut self, usage: Option<&Usage>, out: &mut Vec<u8>) {
        if let (true, Some(usage)) = (self.wants.usage, usage) {
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"[],\"usage\":");
            reply::write_usage(out, usage);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        openai_reply::write_failure(out, failure);
    }

    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        reply::write(out, replies, self.wants, self.each);
    }
}
