//! Encode after decode: a reply's events, written by a wire as a stream and as a whole body and read back by a reader that
//! shares nothing with the writer, are the same reply.

use crate::call::{Call, Event, Extra, FinishReason, Fold, Raw, Reply, Text, Tokens, ToolKind, ToolStart, Usage};
use crate::ids::CallId;
use crate::readers::{self, Reader};
use crate::wire::{ReplyHead, Wire};

/// Escaped pieces of text: what JSON, UTF-8, UTF-16 and line-based framing each find hard.
const PIECES: [&str; 32] = [
    "a",
    "b",
    " ",
    "\\n",
    "\\\"",
    "\\\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "1",
    "\\u00e9",
    "é",
    "中",
    "😀",
    "\\ud83d",
    "\\ude00",
    "\\u0000",
    "\\u2028",
    "\u{2028}",
    "\\/",
    "data: ",
    "\\r\\n",
    "\\\"k\\\"",
    "null",
    "{\\\"a\\\":",
    "\\\"\\\"}",
    "\\t",
    "\u{feff}",
    "[DONE]",
];

/// Builds a reply out of `data` and checks the chosen wire with it.
pub fn run(data: &[u8]) {
    check(crate::chosen_wire(), data);
}

/// Builds a reply out of `data` and checks `wire` with it.
pub fn check(wire: &dyn Wire, data: &[u8]) {
    let reader = readers::of(wire.name());
    let call = wire.parse(&reader.request().into()).unwrap_or_else(|failure| panic!("{}: {failure}", wire.name()));
    let events = Steps { data, at: 0 }.events(reader);
    let (live, held, whole, reply) = write(wire, &call, &events);
    let expected = reader.expected(&reply);
    assert_eq!(reader.stream(&live, &held), expected, "stream of {events:?}:\n{}{}", lossy(&live), lossy(&held));
    assert_eq!(reader.whole(&whole), expected, "whole of {events:?}:\n{}", lossy(&whole));
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What leaves at once, what is held back until the record is committed, and the whole body.
pub fn write(wire: &dyn Wire, call: &Call, events: &[Event]) -> (Vec<u8>, Vec<u8>, Vec<u8>, Reply) {
    let head = || ReplyHead { call_id: call_id(), created: 1, model: call.model.clone() };
    let (mut live, mut held, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut encoder = wire.encoder(call, head());
    let mut fold = Fold::default();
    encoder.begin(&mut live);
    encoder.ping(&mut live);
    for event in events {
        fold.push(event);
        encoder.event(event, &mut live);
    }
    encoder.ping(&mut live);
    let reply = fold.reply();
    encoder.finish(&reply, &mut held);
    wire.encoder(call, head()).whole(&reply, &mut whole);
    (live, held, whole, reply)
}

/// The id of all calls here.
pub fn call_id() -> CallId {
    CallId(uuid::Uuid::from_u128(7))
}

/// A reply with a little of everything.
pub fn short_reply() -> Reply {
    let mut fold = Fold::default();
    let tool = ToolStart { id: "c1".into(), kind: ToolKind::Function, namespace: None, name: "f".into() };
    for event in [
        Event::Reasoning("r".into()),
        Event::Text("t".into()),
        Event::ToolStart { index: 0, tool },
        Event::ToolArguments { index: 0, fragment: "{\"a\":1}".into() },
        Event::Finish(FinishReason::ToolCalls),
    ] {
        fold.push(&event);
    }
    fold.reply()
}

/// Reads steps off the fuzzer's bytes.
struct Steps<'a> {
    data: &'a [u8],
    at: usize,
}

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        let byte = self.data.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        byte
    }

    fn text(&mut self) -> Text {
        let length = self.byte() % 8;
        let pieces: Vec<&str> = (0..length).map(|_| PIECES[usize::from(self.byte()) % PIECES.len()]).collect();
        Text::from_inner(pieces.concat().as_bytes())
    }

    fn tool(&mut self, begun: u32, reader: &dyn Reader) -> ToolStart {
        let kinds = self.byte();
        let custom = reader.has_custom_tools() && kinds % 4 == 1;
        let namespace = (reader.has_namespaces() && kinds % 8 > 5).then(|| Text::new("n\"s"));
        let kind = if custom { ToolKind::Custom } else { ToolKind::Function };
        ToolStart {
            id: Text::new(&format!("call_{begun}")),
            kind,
            namespace,
            name: Text::new(["f", "get é", "a\"b"][usize::from(kinds) % 3]),
        }
    }

    /// Events as policies give them: tool calls are numbered in the order of their starts, the reply ends once.
    fn events(mut self, reader: &dyn Reader) -> Vec<Event> {
        let mut events = Vec::new();
        let mut begun = 0;
        while self.at < self.data.len() {
            match self.byte() % 16 {
                0..=2 => events.push(Event::Text(self.text())),
                3 | 4 => events.push(Event::Reasoning(self.text())),
                5 if reader.has_refusals() => events.push(Event::Refusal(self.text())),
                6 | 7 if reader.has_tools() => {
                    events.push(Event::ToolStart { index: begun, tool: self.tool(begun, reader) });
                    begun += 1;
                }
                8..=11 if begun > 0 => {
                    let index = u32::from(self.byte()) % begun;
                    events.push(Event::ToolArguments { index, fragment: self.text() });
                }
                12 => events.push(Event::Usage(self.usage())),
                13 => events.push(Event::Extra(self.extra())),
                14 => events.push(Event::Tokens(Tokens { ids: vec![7, 8], logprobs: vec![-0.5, -1.0] })),
                15 => events.push(Event::Prompt(vec![1, 2, 3])),
                _ => {}
            }
        }
        let reasons = [FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls, FinishReason::ContentFilter];
        events.push(Event::Finish(reasons[usize::from(self.data.first().copied().unwrap_or_default() >> 6)]));
        events
    }

    fn usage(&mut self) -> Usage {
        let mut count = || u64::from(self.byte()) << (self.byte() % 40);
        Usage { prompt_tokens: count(), completion_tokens: count(), cached_tokens: count(), reasoning_tokens: count() }
    }

    fn extra(&mut self) -> Extra {
        let which = self.byte();
        let value = ["7", "{\n\"a\":\r\n1}", "[1,2]", "\"x\\ny\"", "null"][usize::from(which) % 5];
        let value = Raw::from_json(value.as_bytes().to_vec());
        let name = Text::new(["mood", "stop_reason", "q\"uote", "tok\u{e9}n"][usize::from(which / 5) % 4]);
        if which > 127 { Extra::Delta { name, value } } else { Extra::Choice { name, value } }
    }
}
