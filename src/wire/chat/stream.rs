//! A reply, written as chunks.

use std::io::Write;

use super::calls::{Calls, Piece};
use super::reply;
use crate::call::{Call, Event, Extra, Failure, Reply, ToolKind, ToolStart, Usage, Wants, quote};
use crate::wire::sse::one_line;
use crate::wire::{Encoder, ReplyHead, openai_reply};

/// Writes one reply.
pub(super) struct ChatEncoder {
    wants: Wants,
    /// There are others in its stream.
    several: bool,
    /// `{"id":..,"object":` of the reply, up to the name of its kind.
    head: Vec<u8>,
    /// What every chunk begins with, up to the value of `choices`.
    chunk: Vec<u8>,
    /// The same, up to the first field of the delta.
    delta: Vec<u8>,
    /// The first delta is written; it alone names the role.
    role_written: bool,
    calls: Calls,
}

impl ChatEncoder {
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        let mut start = Vec::with_capacity(160);
        let _ = write!(start, "{{\"id\":\"chatcmpl-{}\",\"created\":{},\"model\":", head.call_id.0.simple(), head.created);
        quote(&mut start, &head.model);
        start.extend_from_slice(b",\"object\":\"");
        let chunk = [b"data: ", start.as_slice(), b"chat.completion.chunk\",\"choices\":"].concat();
        let delta = [chunk.as_slice(), format!("[{{\"index\":{},\"delta\":{{", head.choice).as_bytes()].concat();
        Self {
            wants: call.wants,
            several: call.replies > 1,
            head: start,
            chunk,
            delta,
            role_written: false,
            calls: Calls::default(),
        }
    }

    /// Writes a chunk around the fields of its delta.
    fn delta(&mut self, out: &mut Vec<u8>, fields: &[&[u8]]) {
        self.choice(out, fields, &[]);
    }

    /// Writes a chunk around the fields of its delta and those beside the delta.
    fn choice(&mut self, out: &mut Vec<u8>, fields: &[&[u8]], beside: &[&[u8]]) {
        self.open(out, !fields.is_empty());
        for field in fields {
            out.extend_from_slice(field);
        }
        out.extend_from_slice(b"},\"finish_reason\":null");
        for field in beside {
            out.extend_from_slice(field);
        }
        out.extend_from_slice(b"}]}\n\n");
    }

    /// Writes a chunk up to the fields of its delta.
    fn open(&mut self, out: &mut Vec<u8>, fields_follow: bool) {
        out.extend_from_slice(&self.delta);
        if !std::mem::replace(&mut self.role_written, true) {
            out.extend_from_slice(b"\"role\":\"assistant\"");
            if fields_follow {
                out.push(b',');
            }
        }
    }

    /// Writes what `feed` lets go of the tool calls.
    fn tools(&mut self, out: &mut Vec<u8>, feed: impl FnOnce(&mut Calls, &mut dyn FnMut(Piece<'_>))) {
        let mut calls = std::mem::take(&mut self.calls);
        feed(&mut calls, &mut |piece| match piece {
            Piece::Start(index, tool) if self.wants.function_call => self.function_start(index, tool, out),
            Piece::Start(index, tool) => self.tool_start(index, tool, out),
            Piece::Arguments(index, kind, inner) => self.tool_arguments(index, kind, inner, out),
        });
        self.calls = calls;
    }

    /// The older form holds one call.
    fn function_start(&mut self, index: u32, tool: &ToolStart, out: &mut Vec<u8>) {
        if index == 0 {
            self.delta(out, &[b"\"function_call\":{\"name\":", tool.name.literal(), b",\"arguments\":\"\"}"]);
        }
    }

    fn tool_start(&mut self, index: u32, tool: &ToolStart, out: &mut Vec<u8>) {
        let (middle, end): (&[u8], &[u8]) = match tool.kind {
            ToolKind::Function => (b",\"type\":\"function\",\"function\":{\"name\":", b",\"arguments\":\"\"}}]"),
            ToolKind::Custom => (b",\"type\":\"custom\",\"custom\":{\"name\":", b",\"input\":\"\"}}]"),
        };
        let number = index.to_string();
        let start: [&[u8]; 3] = [b"\"tool_calls\":[{\"index\":", number.as_bytes(), b",\"id\":"];
        self.delta(out, &[start[0], start[1], start[2], tool.id.literal(), middle, tool.name.literal(), end]);
    }

    fn tool_arguments(&mut self, index: u32, kind: ToolKind, inner: &[u8], out: &mut Vec<u8>) {
        if self.wants.function_call {
            if index == 0 {
                self.delta(out, &[b"\"function_call\":{\"arguments\":\"", inner, b"\"}"]);
            }
            return;
        }
        let field: &[u8] = match kind {
            ToolKind::Function => b",\"function\":{\"arguments\":\"",
            ToolKind::Custom => b",\"custom\":{\"input\":\"",
        };
        // There is one for nearly every token of a call: nothing is allocated here.
        self.open(out, true);
        let _ = write!(out, "\"tool_calls\":[{{\"index\":{index}");
        for piece in [field, inner, b"\"}}]},\"finish_reason\":null}]}\n\n"] {
            out.extend_from_slice(piece);
        }
    }

    fn extra(&mut self, extra: &Extra, out: &mut Vec<u8>) {
        match extra {
            Extra::Delta { name, value } => self.delta(out, &[name.literal(), b":", &one_line(value.as_bytes())]),
            Extra::Choice { name, value } if reply::is_wanted(self.wants, name) => {
                self.choice(out, &[], &[b",", name.literal(), b":", &one_line(value.as_bytes())]);
            }
            Extra::Choice { .. } => {}
        }
    }
}

impl Encoder for ChatEncoder {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.several {
            // The official SDK adds replies in the order in which it sees them first, whatever their index.
            self.delta(out, &[b"\"content\":\"\""]);
        }
    }

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Text(piece) if !piece.is_empty() => self.delta(out, &[b"\"content\":", piece.literal()]),
            Event::Reasoning(piece) if !piece.is_empty() => {
                // Clients know one name or the other, and pass over the one that they don't.
                let piece = piece.literal();
                self.delta(out, &[b"\"reasoning_content\":", piece, b",\"reasoning\":", piece]);
            }
            Event::Refusal(piece) if !piece.is_empty() => self.delta(out, &[b"\"refusal\":", piece.literal()]),
            Event::ToolStart { index, tool } => self.tools(out, |calls, write| calls.start(*index, tool, write)),
            Event::ToolArguments { index, fragment } if !fragment.is_empty() => {
                self.tools(out, |calls, write| calls.arguments(*index, fragment, write));
            }
            Event::Extra(extra) => self.extra(extra, out),
            Event::Prompt(ids) if self.wants.token_ids => {
                self.open(out, true);
                out.extend_from_slice(b"\"content\":\"\"},\"finish_reason\":null}],\"prompt_token_ids\":");
                openai_reply::write_ids(out, ids);
                out.extend_from_slice(b"}\n\n");
            }
            Event::Tokens(tokens) if self.wants.token_ids => {
                let mut ids = Vec::new();
                openai_reply::write_ids(&mut ids, &tokens.ids);
                self.choice(out, &[], &[b",\"token_ids\":", &ids]);
            }
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        self.tools(out, Calls::finish);
        self.open(out, false);
        let _ = write!(out, "}},\"finish_reason\":\"{}\"}}]}}\n\n", reply::finish_reason(reply, self.wants));
    }

    fn close(&mut self, usage: Option<&Usage>, out: &mut Vec<u8>) {
        if let (true, Some(usage)) = (self.wants.usage, usage) {
            out.extend_from_slice(&self.chunk);
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
        reply::write(out, replies, self.wants);
    }
}
