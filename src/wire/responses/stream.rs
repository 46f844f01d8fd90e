//! A reply, written as events.
//!
//! Codex keeps an item, and runs its tool, as soon as it is done, whatever comes after. So the end of every item but reasoning's
//! waits for [`Encoder::finish`], which is called once the reply is recorded.

use std::io::Write;

use super::logprobs;
use super::reply::{self, Objects, PartKind, ReasoningForm, Status};
use crate::call::{Call, Event, Failure, Raw, Reply, Text, ToolKind, ToolStart};
use crate::wire::{Encoder, ReplyHead};

/// An event about the one part of a reasoning item: its name where that is a summary, and where it is the text itself.
type PartEvent = [&'static str; 2];
const PART_ADDED: PartEvent = ["reasoning_summary_part.added", "content_part.added"];
const PART_DONE: PartEvent = ["reasoning_summary_part.done", "content_part.done"];
const TEXT_DELTA: PartEvent = ["reasoning_summary_text.delta", "reasoning_text.delta"];
const TEXT_DONE: PartEvent = ["reasoning_summary_text.done", "reasoning_text.done"];

/// Writes one reply.
pub(super) struct ResponsesEncoder {
    objects: Objects,
    form: ReasoningForm,
    /// Whether log-probabilities are shown; then a piece of text waits for its own.
    logprobs: bool,
    waiting: Option<Text>,
    /// The log-probabilities that were shown.
    shown: Vec<u8>,
    /// The number of the next event.
    sequence: u64,
    begun: bool,
    /// The items in the order of the output; their places in it are their indexes here.
    items: Vec<Item>,
    /// The reasoning item that still grows.
    reasoning: Option<usize>,
    /// How many reasoning items have begun.
    thoughts: usize,
    message: Option<usize>,
    /// By the index of the tool call.
    tools: Vec<Option<usize>>,
}

enum Item {
    /// Its id and its text so far, escaped. Pieces of reasoning that come after something else are an item of their own.
    Reasoning(String, Vec<u8>),
    Message(String, Vec<PartKind>),
    /// Its id, and the tool call's index.
    Tool(String, u32, ToolStart),
}

impl ResponsesEncoder {
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        Self {
            objects: Objects::new(call, head),
            form: ReasoningForm { summary: call.wants.reasoning_summary, sealed: call.wants.sealed_reasoning },
            logprobs: call.wants.logprobs,
            waiting: None,
            shown: Vec::new(),
            sequence: 0,
            begun: false,
            items: Vec::new(),
            reasoning: None,
            thoughts: 0,
            message: None,
            tools: Vec::new(),
        }
    }

    /// Writes an event up to the fields of its own.
    fn open(&mut self, out: &mut Vec<u8>, name: &str) {
        let sequence = self.sequence;
        self.sequence += 1;
        for piece in ["event: response.", name, "\ndata: {\"type\":\"response.", name, "\",\"sequence_number\":"] {
            out.extend_from_slice(piece.as_bytes());
        }
        let _ = write!(out, "{sequence}");
    }

    fn close(out: &mut Vec<u8>) {
        out.extend_from_slice(b"}\n\n");
    }

    /// Writes an event about the response as a whole.
    fn life_cycle(&mut self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&Objects, &mut Vec<u8>)) {
        self.open(out, name);
        out.extend_from_slice(b",\"response\":");
        write(&self.objects, out);
        Self::close(out);
    }

    /// Writes an event that carries a whole item.
    fn item_event(&mut self, out: &mut Vec<u8>, name: &str, place: usize, item: &[u8]) {
        self.open(out, name);
        let _ = write!(out, ",\"output_index\":{place},\"item\":");
        out.extend_from_slice(item);
        Self::close(out);
    }

    /// Writes an event about a piece of an item. `index` names the piece, where there can be several.
    fn piece_event(&mut self, out: &mut Vec<u8>, name: &str, place: usize, index: Option<usize>, fields: &[&[u8]]) {
        let index = index.map(|index| ("content_index", index));
        self.indexed_event(out, name, place, index, fields);
    }

    fn indexed_event(&mut self, out: &mut Vec<u8>, name: &str, place: usize, index: Option<(&str, usize)>, fields: &[&[u8]]) {
        self.open(out, name);
        let id = match &self.items[place] {
            Item::Reasoning(id, _) | Item::Message(id, _) | Item::Tool(id, ..) => id.as_bytes(),
        };
        out.extend_from_slice(b",\"item_id\":\"");
        out.extend_from_slice(id);
        let _ = write!(out, "\",\"output_index\":{place}");
        if let Some((kind, index)) = index {
            let _ = write!(out, ",\"{kind}\":{index}");
        }
        for field in fields {
            out.extend_from_slice(field);
        }
        Self::close(out);
    }

    fn add(&mut self, out: &mut Vec<u8>, item: Item, written: &[u8]) -> usize {
        let place = self.items.len();
        self.items.push(item);
        self.item_event(out, "output_item.added", place, written);
        place
    }

    /// Writes an event about the one part of a reasoning item.
    fn reasoning_event(&mut self, out: &mut Vec<u8>, [of_summary, of_text]: PartEvent, place: usize, fields: &[&[u8]]) {
        let (name, index) = if self.form.summary { (of_summary, "summary_index") } else { (of_text, "content_index") };
        self.indexed_event(out, name, place, Some((index, 0)), fields);
    }

    fn reasoning_part(&mut self, out: &mut Vec<u8>, event: PartEvent, place: usize, text: &Text) {
        let mut part = b",\"part\":".to_vec();
        reply::write_reasoning_part(&mut part, self.form, text);
        self.reasoning_event(out, event, place, &[&part]);
    }

    fn reason(&mut self, piece: &Text, out: &mut Vec<u8>) {
        let place = self.reasoning.unwrap_or_else(|| {
            let id = self.objects.item_id("rs", self.thoughts);
            self.thoughts += 1;
            let mut written = Vec::new();
            reply::write_reasoning(&mut written, &id, "in_progress", self.form, None);
            let place = self.add(out, Item::Reasoning(id, Vec::new()), &written);
            self.reasoning_part(out, PART_ADDED, place, &Text::new(""));
            place
        });
        self.reasoning = Some(place);
        if let Item::Reasoning(_, text) = &mut self.items[place] {
            text.extend_from_slice(piece.inner());
        }
        self.reasoning_event(out, TEXT_DELTA, place, &[b",\"delta\":", piece.literal()]);
    }

    /// Ends the reasoning; its item may be done before the reply is recorded, since nobody acts on it.
    fn end_reasoning(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(place) = self.reasoning.take() else { return };
        let Item::Reasoning(id, text) = &self.items[place] else { return };
        let text = Text::from_inner(text);
        let mut written = Vec::new();
        reply::write_reasoning(&mut written, id, status, self.form, Some(&text));
        self.reasoning_event(out, TEXT_DONE, place, &[b",\"text\":", text.literal()]);
        self.reasoning_part(out, PART_DONE, place, &text);
        self.item_event(out, "output_item.done", place, &written);
    }

    /// Text that waited for its log-probabilities.
    fn say_waiting(&mut self, logprobs: Option<&Raw>, out: &mut Vec<u8>) {
        if let Some(piece) = self.waiting.take() {
            let entries = logprobs.map(|logprobs| logprobs::of_piece(logprobs, &piece)).unwrap_or_default();
            if !self.shown.is_empty() && !entries.is_empty() {
                self.shown.push(b',');
            }
            self.shown.extend_from_slice(&entries);
            self.say(PartKind::Text, &piece, &entries, out);
        }
    }

    fn say(&mut self, kind: PartKind, piece: &Text, logprobs: &[u8], out: &mut Vec<u8>) {
        self.end_reasoning("completed", out);
        let place = self.message.unwrap_or_else(|| {
            let id = self.objects.item_id("msg", 0);
            let mut written = Vec::new();
            reply::write_message(&mut written, &id, "in_progress", &[], b"");
            self.add(out, Item::Message(id, Vec::new()), &written)
        });
        self.message = Some(place);
        let Item::Message(_, parts) = &mut self.items[place] else { return };
        let known = parts.iter().position(|known| *known == kind);
        let index = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(kind);
            let mut part = b",\"part\":".to_vec();
            reply::write_part(&mut part, kind, &Text::new(""), b"");
            self.piece_event(out, "content_part.added", place, Some(index), &[&part]);
        }
        let (name, fields): (_, &[&[u8]]) = match kind {
            PartKind::Text => ("output_text.delta", &[b",\"delta\":", piece.literal(), b",\"logprobs\":[", logprobs, b"]"]),
            PartKind::Refusal => ("refusal.delta", &[b",\"delta\":", piece.literal()]),
        };
        self.piece_event(out, name, place, Some(index), fields);
    }

    fn start_tool(&mut self, index: u32, tool: &ToolStart, out: &mut Vec<u8>) {
        self.end_reasoning("completed", out);
        let id = self.objects.item_id(reply::tool_prefix(tool.kind), index as usize);
        let mut written = Vec::new();
        reply::write_tool(&mut written, &id, "in_progress", tool, b"\"\"");
        let place = self.add(out, Item::Tool(id, index, tool.clone()), &written);
        let index = index as usize;
        if self.tools.len() <= index {
            self.tools.resize(index + 1, None);
        }
        self.tools[index] = Some(place);
    }

    fn feed_tool(&mut self, place: usize, fragment: &[u8], out: &mut Vec<u8>) {
        let Item::Tool(_, _, tool) = &self.items[place] else { return };
        let name = match tool.kind {
            ToolKind::Function => "function_call_arguments.delta",
            ToolKind::Custom => "custom_tool_call_input.delta",
        };
        self.piece_event(out, name, place, None, &[b",\"delta\":", fragment]);
    }

    fn end_message(&mut self, place: usize, reply: &Reply, status: Status, out: &mut Vec<u8>) -> Vec<u8> {
        let Item::Message(id, kinds) = &self.items[place] else { return Vec::new() };
        let empty = Text::new("");
        let text = |kind: &PartKind| match kind {
            PartKind::Text => (*kind, reply.text.as_ref().unwrap_or(&empty)),
            PartKind::Refusal => (*kind, reply.refusal.as_ref().unwrap_or(&empty)),
        };
        let parts: Vec<_> = kinds.iter().map(text).collect();
        let logprobs = if self.logprobs && self.shown.is_empty() { logprobs::of_text(reply) } else { self.shown.clone() };
        let mut written = Vec::new();
        reply::write_message(&mut written, id, status.name(), &parts, &logprobs);
        for (index, (kind, text)) in parts.into_iter().enumerate() {
            let mut part = b",\"part\":".to_vec();
            reply::write_part(&mut part, kind, text, &logprobs);
            let literal = text.literal();
            let (name, fields): (_, &[&[u8]]) = match kind {
                PartKind::Text => ("output_text.done", &[b",\"text\":", literal, b",\"logprobs\":[", &logprobs, b"]"]),
                PartKind::Refusal => ("refusal.done", &[b",\"refusal\":", literal]),
            };
            self.piece_event(out, name, place, Some(index), fields);
            self.piece_event(out, "content_part.done", place, Some(index), &[&part]);
        }
        self.item_event(out, "output_item.done", place, &written);
        written
    }

    fn end_tool(&mut self, place: usize, reply: &Reply, status: Status, out: &mut Vec<u8>) -> Vec<u8> {
        let Item::Tool(id, index, tool) = &self.items[place] else { return Vec::new() };
        let (id, tool) = (id.clone(), tool.clone());
        let arguments = reply.tool_calls.get(*index as usize).map(|call| call.arguments.clone());
        let given = arguments.unwrap_or_else(|| Text::new(""));
        let cut = matches!(status, Status::Incomplete(_)) && is_cut(&tool, &given, place + 1 == self.items.len());
        let arguments = if tool.kind == ToolKind::Function && given.is_empty() && !cut { Text::new("{}") } else { given.clone() };
        let mut written = Vec::new();
        let item_status = if cut { "incomplete" } else { "completed" };
        reply::write_tool(&mut written, &id, item_status, &tool, arguments.literal());
        if cut {
            // Whoever is told that it is done runs it.
            return written;
        }
        if arguments != given {
            self.feed_tool(place, arguments.literal(), out);
        }
        let (name, field): (_, &[u8]) = match tool.kind {
            ToolKind::Function => ("function_call_arguments.done", b",\"arguments\":"),
            ToolKind::Custom => ("custom_tool_call_input.done", b",\"input\":"),
        };
        let named: &[&[u8]] = &[field, arguments.literal(), b",\"name\":", tool.name.literal()];
        self.piece_event(out, name, place, None, if tool.kind == ToolKind::Function { named } else { &named[..2] });
        self.item_event(out, "output_item.done", place, &written);
        written
    }

    /// Ends all items; gives them joined by commas.
    fn end_items(&mut self, reply: &Reply, status: Status, out: &mut Vec<u8>) -> Vec<u8> {
        // A reply that was cut while it thought has nothing after its reasoning.
        let thinking = self.reasoning.filter(|place| place + 1 == self.items.len());
        let cut = thinking.filter(|_| matches!(status, Status::Incomplete(_)));
        self.end_reasoning(if cut.is_some() { "incomplete" } else { "completed" }, out);
        let mut output = Vec::new();
        for place in 0..self.items.len() {
            if place > 0 {
                output.push(b',');
            }
            let written = match &self.items[place] {
                Item::Reasoning(id, text) => {
                    let mut written = Vec::new();
                    let status = if cut == Some(place) { "incomplete" } else { "completed" };
                    reply::write_reasoning(&mut written, id, status, self.form, Some(&Text::from_inner(text)));
                    written
                }
                Item::Message(..) => self.end_message(place, reply, status, out),
                Item::Tool(..) => self.end_tool(place, reply, status, out),
            };
            output.extend_from_slice(&written);
        }
        output
    }
}

/// Tells whether a tool call of a reply that was cut is cut itself.
fn is_cut(tool: &ToolStart, arguments: &Text, is_last: bool) -> bool {
    match tool.kind {
        ToolKind::Function => serde_json::from_str::<serde::de::IgnoredAny>(&arguments.decode()).is_err(),
        ToolKind::Custom => is_last,
    }
}

impl Encoder for ResponsesEncoder {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        for name in ["created", "in_progress"] {
            self.life_cycle(out, name, |objects, out| objects.response(out, Status::InProgress, b"", None, b"null"));
        }
    }

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Text(piece) if !piece.is_empty() && self.logprobs => {
                self.say_waiting(None, out);
                self.waiting = Some(piece.clone());
                return;
            }
            Event::Extra(extra) if self.logprobs => {
                if let Some(logprobs) = extra.logprobs() {
                    self.say_waiting(Some(logprobs), out);
                }
                return;
            }
            // These come between a text and its log-probabilities.
            Event::Tokens(_) | Event::Prompt(_) => return,
            _ => self.say_waiting(None, out),
        }
        match event {
            Event::Text(piece) if !piece.is_empty() => self.say(PartKind::Text, piece, b"", out),
            Event::Refusal(piece) if !piece.is_empty() => self.say(PartKind::Refusal, piece, b"", out),
            Event::Reasoning(piece) if !piece.is_empty() => self.reason(piece, out),
            Event::ToolStart { index, tool } => self.start_tool(*index, tool, out),
            Event::ToolArguments { index, fragment } if !fragment.is_empty() => {
                if let Some(Some(place)) = self.tools.get(*index as usize) {
                    self.feed_tool(*place, fragment.literal(), out);
                }
            }
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": ping\n\n");
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        self.begin(out);
        self.say_waiting(None, out);
        let status = Status::of(reply.finish);
        let output = self.end_items(reply, status, out);
        let usage = reply.usage.as_ref();
        self.life_cycle(out, status.name(), |objects, out| objects.response(out, status, &output, usage, b"null"));
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        self.begin(out);
        self.say_waiting(None, out);
        let error = reply::error(failure);
        self.life_cycle(out, "failed", |objects, out| objects.response(out, Status::Failed, b"", None, &error));
    }

    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>) {
        if let Some(reply) = replies.first() {
            self.ended(reply, Status::of(reply.finish), out);
        }
    }
}

impl ResponsesEncoder {
    /// Writes the response as it stands once the reply has ended so.
    pub(super) fn ended(&mut self, reply: &Reply, status: Status, out: &mut Vec<u8>) {
        let output = self.output(reply, status);
        self.objects.response(out, status, &output, reply.usage.as_ref(), b"null");
    }

    /// The reply's items, joined by commas.
    pub(super) fn output(&mut self, reply: &Reply, status: Status) -> Vec<u8> {
        let unseen = &mut Vec::new();
        let shows_logprobs = std::mem::replace(&mut self.logprobs, false);
        for event in reply_events(reply) {
            self.event(&event, unseen);
            unseen.clear();
        }
        self.logprobs = shows_logprobs;
        self.end_items(reply, status, unseen)
    }

    /// Writes a response that has no reply to show.
    pub(super) fn without_reply(&self, status: Status, error: &[u8], out: &mut Vec<u8>) {
        self.objects.response(out, status, b"", None, error);
    }
}

/// The fewest events that a reply can be.
fn reply_events(reply: &Reply) -> impl Iterator<Item = Event> {
    let said = [
        reply.reasoning.clone().map(Event::Reasoning),
        reply.text.clone().map(Event::Text),
        reply.refusal.clone().map(Event::Refusal),
    ];
    let tools = reply.tool_calls.iter().zip(0..).map(|(call, index)| Event::ToolStart {
        index,
        tool: ToolStart { id: call.id.clone(), kind: call.kind, namespace: call.namespace.clone(), name: call.name.clone() },
    });
    said.into_iter().flatten().chain(tools.collect::<Vec<_>>())
}
