//! Puts the pieces of tool calls together as servers send them: interleaved, without ids, with gaps in their numbers.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::chunk::ToolDelta;
use super::names::Names;
use crate::call::{Call, Event, Text, ToolKind, ToolStart};

/// The tool calls of one reply.
#[derive(Debug)]
pub(super) struct Tools {
    names: Names,
    calls: Vec<Open>,
    /// Tool calls before this reply, so that ids of ours don't repeat earlier ones.
    before: usize,
}

/// One call, as far as it has come.
#[derive(Debug)]
struct Open {
    /// The server's number.
    number: Option<i64>,
    id: Option<Text>,
    name: Option<Text>,
    /// Set once the call's start is told.
    kind: Option<ToolKind>,
    /// What is held back: arguments before the name has come, all of a custom tool's input.
    held: Vec<u8>,
    told_arguments: bool,
}

impl Tools {
    pub(super) fn new(call: &Call, names: Names) -> Self {
        let before = call.messages.iter().map(|message| message.tool_calls.len()).sum();
        Self { names, calls: Vec::new(), before }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes one piece.
    pub(super) fn push(&mut self, body: &Bytes, piece: &ToolDelta, whole: bool, events: &mut Vec<Event>) {
        let text = |raw: Option<&RawValue>| raw.and_then(|raw| Text::of(body, raw)).filter(|text| !text.is_empty());
        let id = text(piece.id);
        let function = piece.function.as_ref();
        let name = text(function.and_then(|function| function.name));
        let at = self.find(piece.index, id.as_ref(), name.as_ref(), whole);
        let open = &mut self.calls[at];
        if open.id.is_none() {
            open.id = id;
        }
        if open.name.is_none() {
            open.name = name;
        }
        if open.kind.is_none() && open.name.is_some() {
            self.begin(at, events);
        }
        if let Some(raw) = function.and_then(|function| function.arguments) {
            let fragment = match Text::of(body, raw) {
                Some(text) => text,
                None if raw.get() == "null" => return,
                // Some servers give the arguments as the object that they are.
                None => Text::new(raw.get()),
            };
            self.argue(at, fragment, events);
        }
    }

    /// Takes a whole call: a new one, by the name under which its tool is offered.
    #[cfg_attr(not(feature = "exact"), expect(dead_code, reason = "servers' chunks come in pieces"))]
    pub(super) fn call(&mut self, id: Text, name: Text, arguments: &Text, events: &mut Vec<Event>) {
        let at = self.open(None);
        self.calls[at].id = Some(id);
        self.calls[at].name = Some(name);
        self.begin(at, events);
        self.argue(at, arguments.clone(), events);
        self.end(at, events);
    }

    /// The names by which tools are offered.
    #[cfg_attr(not(feature = "exact"), expect(dead_code, reason = "servers know their tools themselves"))]
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Tells what was held back, at the reply's end.
    pub(super) fn finish(&mut self, events: &mut Vec<Event>) {
        for at in 0..self.calls.len() {
            if self.calls[at].kind.is_none() {
                self.begin(at, events);
            }
            self.end(at, events);
        }
    }

    /// The place of the call that a piece belongs to; a new one for a new call.
    fn find(&mut self, number: Option<i64>, id: Option<&Text>, name: Option<&Text>, whole: bool) -> usize {
        let at = match number {
            Some(number) => self.calls.iter().rposition(|open| open.number == Some(number)),
            None => self.calls.len().checked_sub(1),
        };
        // Servers that number every call 0 still give each an id and a name of its own.
        let other = |open: &Open| id.is_some() && name.is_some() && open.id.is_some() && open.id.as_ref() != id;
        // Without numbers, a piece with a name begins a call.
        let unnumbered = number.is_none() && name.is_some();
        match at {
            Some(at) if !whole && !unnumbered && !other(&self.calls[at]) => at,
            _ => self.open(number),
        }
    }

    fn open(&mut self, number: Option<i64>) -> usize {
        self.calls.push(Open { number, id: None, name: None, kind: None, held: Vec::new(), told_arguments: false });
        self.calls.len() - 1
    }

    fn begin(&mut self, at: usize, events: &mut Vec<Event>) {
        let before = self.before;
        let open = &mut self.calls[at];
        let id = open.id.get_or_insert_with(|| Text::new(&format!("call_{}", before + at))).clone();
        let flat = open.name.clone().unwrap_or_else(|| Text::new(""));
        let tool = match self.names.known(&flat) {
            Some(known) => ToolStart { id, kind: known.kind, namespace: known.namespace.clone(), name: known.name.clone() },
            None => ToolStart { id, kind: ToolKind::Function, namespace: None, name: flat },
        };
        let kind = tool.kind;
        open.kind = Some(kind);
        events.push(Event::ToolStart { index: number(at), tool });
        if kind == ToolKind::Function && !open.held.is_empty() {
            let fragment = Text::from_inner(&std::mem::take(&mut open.held));
            open.told_arguments = true;
            events.push(Event::ToolArguments { index: number(at), fragment });
        }
    }

    /// Tells what is held back of a call that is whole.
    fn end(&mut self, at: usize, events: &mut Vec<Event>) {
        let index = number(at);
        let open = &mut self.calls[at];
        let held = std::mem::take(&mut open.held);
        let fragment = match open.kind {
            Some(ToolKind::Custom) => custom_input(&Text::from_inner(&held)),
            // A call without arguments is one of an empty object; an empty string is no JSON and fails the harness.
            _ if !open.told_arguments => Text::new("{}"),
            _ => return,
        };
        open.told_arguments = true;
        if !fragment.is_empty() {
            events.push(Event::ToolArguments { index, fragment });
        }
    }

    fn argue(&mut self, at: usize, fragment: Text, events: &mut Vec<Event>) {
        let open = &mut self.calls[at];
        if open.kind == Some(ToolKind::Function) {
            if !fragment.is_empty() {
                open.told_arguments = true;
                events.push(Event::ToolArguments { index: number(at), fragment });
            }
        } else {
            open.held.extend_from_slice(fragment.inner());
        }
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A custom tool's input out of the arguments of the function that stands for it; what is no such object goes out as it is.
fn custom_input(arguments: &Text) -> Text {
    #[derive(Deserialize)]
    struct Arguments {
        // `ToolKind::CUSTOM_FIELD`
        input: String,
    }
    let plain = arguments.decode();
    match serde_json::from_str::<Arguments>(&plain) {
        Ok(arguments) => Text::new(&arguments.input),
        Err(_) => arguments.clone(),
    }
}
