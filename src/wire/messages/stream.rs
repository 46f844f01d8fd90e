//! A reply, written as events.
//!
//! Claude Code runs a tool as soon as its block has ended, whatever comes after. So the end of the first `tool_use`, and all that
//! follows it, waits for [`Encoder::finish`], which is called once the reply is recorded. One block is open at a time: what comes
//! of others meanwhile waits too.

use std::collections::HashSet;
use std::io::Write;

use super::error;
use super::reply::{self, Objects, SIGNATURE};
use crate::call::{Call, Event, Failure, Reply, Text, ToolStart};
use crate::wire::{Encoder, ReplyHead};

/// Writes one reply.
pub(super) struct MessagesEncoder {
    objects: Objects,
    started: bool,
    /// How many blocks have begun.
    blocks: usize,
    open: Option<Open>,
    /// By the index of the tool call.
    tools: Vec<Tool>,
    /// Blocks that wait for the open `tool_use` to end, in their order.
    held: Vec<Held>,
    /// The ids of the conversation's calls so far, once one is needed: clients tell calls apart by them.
    taken: Option<HashSet<Vec<u8>>>,
    earlier: Vec<Text>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Said(Kind),
    Tool(usize),
}

/// What a block of words holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

/// A tool call, as far as it has come.
#[derive(Default)]
struct Tool {
    start: Option<ToolStart>,
    /// What was not sent yet of its arguments, escaped.
    waiting: Vec<u8>,
    sent: bool,
}

enum Held {
    /// With its words, escaped.
    Said(Kind, Vec<u8>),
    Tool(usize),
}

impl MessagesEncoder {
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        let earlier = call.messages.iter().flat_map(|message| &message.tool_calls).map(|call| call.id.clone());
        Self {
            objects: Objects::new(call, head),
            started: false,
            blocks: 0,
            open: None,
            tools: Vec::new(),
            held: Vec::new(),
            taken: None,
            earlier: earlier.collect(),
        }
    }

    /// Opens the message, whose usage tells the prompt's length: the server's count, where that came first.
    fn start(&mut self, prompt: Option<u64>, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.started, true) {
            out.extend_from_slice(b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
            self.objects.begun(out, prompt);
            out.extend_from_slice(b"}\n\n");
        }
    }

    fn begin_block(&mut self, block: &[u8], out: &mut Vec<u8>) {
        let index = self.blocks;
        self.blocks += 1;
        out.extend_from_slice(b"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        let _ = write!(out, "{index},\"content_block\":");
        out.extend_from_slice(block);
        out.extend_from_slice(b"}\n\n");
    }

    /// Writes a piece of the open block; `literal` is a string, quotes included.
    fn delta(&self, kind: &str, field: &str, literal: &[u8], out: &mut Vec<u8>) {
        let index = self.blocks.saturating_sub(1);
        out.extend_from_slice(b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
        let _ = write!(out, "{index},\"delta\":{{\"type\":\"{kind}\",\"{field}\":");
        out.extend_from_slice(literal);
        out.extend_from_slice(b"}}\n\n");
    }

    fn begin_said(&mut self, kind: Kind, out: &mut Vec<u8>) {
        let block: &[u8] = match kind {
            Kind::Text => b"{\"type\":\"text\",\"text\":\"\"}",
            Kind::Thinking => b"{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}",
        };
        self.begin_block(block, out);
        self.open = Some(Open::Said(kind));
    }

    fn said(&self, kind: Kind, piece: &Text, out: &mut Vec<u8>) {
        match kind {
            Kind::Text => self.delta("text_delta", "text", piece.literal(), out),
            Kind::Thinking => self.delta("thinking_delta", "thinking", piece.literal(), out),
        }
    }

    fn begin_tool(&mut self, at: usize, out: &mut Vec<u8>) {
        let Some(start) = self.tools[at].start.clone() else { return };
        let mut block = Vec::new();
        reply::write_tool(&mut block, &start.id, &start.name, b"{}");
        self.begin_block(&block, out);
        self.open = Some(Open::Tool(at));
        self.feed_tool(at, out);
    }

    /// Writes what waits of the open tool's arguments.
    fn feed_tool(&mut self, at: usize, out: &mut Vec<u8>) {
        let waiting = std::mem::take(&mut self.tools[at].waiting);
        if !waiting.is_empty() {
            self.tools[at].sent = true;
            self.delta("input_json_delta", "partial_json", Text::from_inner(&waiting).literal(), out);
        }
    }

    fn end_block(&mut self, out: &mut Vec<u8>) {
        match self.open.take() {
            None => return,
            Some(Open::Said(Kind::Thinking)) => {
                self.delta("signature_delta", "signature", format!("\"{SIGNATURE}\"").as_bytes(), out);
            }
            // A tool that takes nothing is called with nothing; no JSON at all would fail the client.
            Some(Open::Tool(at)) if !self.tools[at].sent => self.delta("input_json_delta", "partial_json", b"\"{}\"", out),
            Some(Open::Said(Kind::Text) | Open::Tool(_)) => {}
        }
        let index = self.blocks.saturating_sub(1);
        out.extend_from_slice(b"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
        let _ = write!(out, "{index}}}\n\n");
    }

    fn say(&mut self, kind: Kind, piece: &Text, out: &mut Vec<u8>) {
        self.start(None, out);
        if let Some(Open::Tool(_)) = self.open {
            match self.held.last_mut() {
                Some(Held::Said(last, words)) if *last == kind => words.extend_from_slice(piece.inner()),
                _ => self.held.push(Held::Said(kind, piece.inner().to_vec())),
            }
            return;
        }
        if self.open != Some(Open::Said(kind)) {
            self.end_block(out);
            self.begin_said(kind, out);
        }
        self.said(kind, piece, out);
    }

    /// The id that the client is to know a call by: the policy's own, unless another call has it.
    fn free_id(&mut self, at: usize, id: &Text) -> Text {
        let taken = self.taken.get_or_insert_with(|| self.earlier.drain(..).map(|id| id.inner().to_vec()).collect());
        if !id.is_empty() && taken.insert(id.inner().to_vec()) {
            return id.clone();
        }
        Text::new(&format!("toolu_{}_{at}", self.objects.hex))
    }

    fn start_tool(&mut self, index: u32, tool: &ToolStart, out: &mut Vec<u8>) {
        self.start(None, out);
        let at = index as usize;
        let id = self.free_id(at, &tool.id);
        self.tool(at).start = Some(ToolStart { id, ..tool.clone() });
        if let Some(Open::Tool(_)) = self.open {
            self.held.push(Held::Tool(at));
        } else {
            self.end_block(out);
            self.begin_tool(at, out);
        }
    }

    fn tool(&mut self, at: usize) -> &mut Tool {
        // Decoders number tool calls without gaps, so an index can't outgrow the events that came.
        while self.tools.len() <= at {
            self.tools.push(Tool::default());
        }
        &mut self.tools[at]
    }

    fn argue(&mut self, index: u32, fragment: &Text, out: &mut Vec<u8>) {
        let at = index as usize;
        if self.open == Some(Open::Tool(at)) {
            self.tools[at].sent = true;
            self.delta("input_json_delta", "partial_json", fragment.literal(), out);
        } else {
            self.tool(at).waiting.extend_from_slice(fragment.inner());
        }
    }
}

impl Encoder for MessagesEncoder {
    /// Nothing: what opens the message tells the prompt's length, which is not known yet.
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Prompt(ids) => self.start(Some(ids.len() as u64), out),
            Event::Text(piece) | Event::Refusal(piece) if !piece.is_empty() => self.say(Kind::Text, piece, out),
            Event::Reasoning(piece) if !piece.is_empty() => self.say(Kind::Thinking, piece, out),
            Event::ToolStart { index, tool } => self.start_tool(*index, tool, out),
            Event::ToolArguments { index, fragment } if !fragment.is_empty() => self.argue(*index, fragment, out),
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        self.start(None, out);
        out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        self.start(None, out);
        self.end_block(out);
        for held in std::mem::take(&mut self.held) {
            match held {
                Held::Said(kind, words) => {
                    self.begin_said(kind, out);
                    self.said(kind, &Text::from_inner(&words), out);
                }
                Held::Tool(at) => self.begin_tool(at, out),
            }
            self.end_block(out);
        }
        out.extend_from_slice(b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        let start = out.len();
        self.objects.end(out, reply);
        // The fields' first comma.
        out.remove(start);
        out.extend_from_slice(b"},\"usage\":");
        reply::write_usage(out, &self.objects.usage(reply));
        out.extend_from_slice(b"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: error\ndata: ");
        out.extend_from_slice(&error::body(failure, Some(&self.objects.hex)));
        out.extend_from_slice(b"\n\n");
    }

    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>) {
        let Some(reply) = replies.first() else { return };
        let ids: Vec<Text> = reply.tool_calls.iter().enumerate().map(|(at, call)| self.free_id(at, &call.id)).collect();
        self.objects.whole(out, reply, |at| ids[at].clone());
    }
}
