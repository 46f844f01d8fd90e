//! A reply, written as chunks.

use std::borrow::Cow;
use std::io::Write;

use super::reply;
use crate::call::{Event, Extra, Failure, Raw, Reply, ToolKind, ToolStart, Usage, Wants, quote};
use crate::wire::{Encoder, ReplyHead, openai_error};

/// Writes one reply.
pub(super) struct ChatEncoder {
    wants: Wants,
    /// `{"id":..,"object":` of the reply, up to the name of its kind.
    head: Vec<u8>,
    /// What every chunk begins with, up to the value of `choices`.
    chunk: Vec<u8>,
    /// The same, up to the first field of the delta.
    delta: Vec<u8>,
    /// The first delta is written; it alone names the role.
    role_written: bool,
    /// The kinds of the tool calls that have begun, and whether they have arguments.
    tools: Vec<Option<(ToolKind, bool)>>,
}

impl ChatEncoder {
    pub(super) fn new(wants: Wants, head: &ReplyHead) -> Self {
        let mut start = Vec::with_capacity(160);
        let _ = write!(start, "{{\"id\":\"chatcmpl-{}\",\"created\":{},\"model\":", head.call_id.0.simple(), head.created);
        quote(&mut start, &head.model);
        start.extend_from_slice(b",\"object\":\"");
        let chunk = [b"data: ", start.as_slice(), b"chat.completion.chunk\",\"choices\":"].concat();
        let delta = [chunk.as_slice(), format!("[{{\"index\":{},\"delta\":{{", head.choice).as_bytes()].concat();
        Self { wants, head: start, chunk, delta, role_written: false, tools: Vec::new() }
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

    fn tool_start(&mut self, index: u32, tool: &ToolStart, out: &mut Vec<u8>) {
        let place = index as usize;
        if self.tools.len() <= place {
            self.tools.resize(place + 1, None);
        }
        self.tools[place] = Some((tool.kind, false));
        let (middle, end): (&[u8], &[u8]) = match tool.kind {
            ToolKind::Function => (b",\"type\":\"function\",\"function\":{\"name\":", b",\"arguments\":\"\"}}]"),
            ToolKind::Custom => (b",\"type\":\"custom\",\"custom\":{\"name\":", b",\"input\":\"\"}}]"),
        };
        let number = index.to_string();
        let start: [&[u8]; 3] = [b"\"tool_calls\":[{\"index\":", number.as_bytes(), b",\"id\":"];
        self.delta(out, &[start[0], start[1], start[2], tool.id.literal(), middle, tool.name.literal(), end]);
    }

    fn tool_arguments(&mut self, index: u32, fragment: &[u8], out: &mut Vec<u8>) {
        let Some(Some((kind, has_arguments))) = self.tools.get_mut(index as usize) else { return };
        *has_arguments = true;
        let field: &[u8] = match kind {
            ToolKind::Function => b",\"function\":{\"arguments\":",
            ToolKind::Custom => b",\"custom\":{\"input\":",
        };
        let number = index.to_string();
        self.delta(out, &[b"\"tool_calls\":[{\"index\":", number.as_bytes(), field, fragment, b"}}]"]);
    }

    fn extra(&mut self, extra: &Extra, out: &mut Vec<u8>) {
        match extra {
            Extra::Delta { name, value } => self.delta(out, &[name.literal(), b":", &one_line(value)]),
            Extra::Choice { name, value } if reply::is_wanted(self.wants, name) => {
                self.choice(out, &[], &[b",", name.literal(), b":", &one_line(value)]);
            }
            Extra::Choice { .. } => {}
        }
    }
}

/// A server may lay its JSON out over lines, which would end an event; in JSON's strings there are none.
fn one_line(value: &Raw) -> Cow<'_, [u8]> {
    let json = value.as_bytes();
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return Cow::Borrowed(json);
    }
    let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    Cow::Owned(json.iter().map(space).collect())
}

impl Encoder for ChatEncoder {
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Text(piece) if !piece.is_empty() => self.delta(out, &[b"\"content\":", piece.literal()]),
            Event::Reasoning(piece) if !piece.is_empty() => {
                // Clients know one name or the other, and pass over the one that they don't.
                let piece = piece.literal();
                self.delta(out, &[b"\"reasoning_content\":", piece, b",\"reasoning\":", piece]);
            }
            Event::Refusal(piece) if !piece.is_empty() => self.delta(out, &[b"\"refusal\":", piece.literal()]),
            Event::ToolStart { index, tool } => self.tool_start(*index, tool, out),
            Event::ToolArguments { index, fragment } if !fragment.is_empty() => {
                self.tool_arguments(*index, fragment.literal(), out);
            }
            Event::Extra(extra) => self.extra(extra, out),
            Event::Prompt(ids) if self.wants.token_ids => {
                self.open(out, true);
                out.extend_from_slice(b"\"content\":\"\"},\"finish_reason\":null}],\"prompt_token_ids\":");
                reply::write_ids(out, ids);
                out.extend_from_slice(b"}\n\n");
            }
            Event::Tokens(tokens) if self.wants.token_ids => {
                let mut ids = Vec::new();
                reply::write_ids(&mut ids, &tokens.ids);
                self.choice(out, &[], &[b",\"token_ids\":", &ids]);
            }
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        for index in 0..u32::try_from(self.tools.len()).unwrap_or(u32::MAX) {
            if self.tools[index as usize] == Some((ToolKind::Function, false)) {
                self.tool_arguments(index, b"\"{}\"", out);
            }
        }
        self.open(out, false);
        let _ = write!(out, "}},\"finish_reason\":\"{}\"}}]}}\n\n", reply::finish_reason(reply).name());
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
        out.extend_from_slice(b"data: ");
        openai_error::write(out, failure);
        out.extend_from_slice(b"\n\n");
    }

    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        reply::write(out, replies, self.wants);
    }
}
