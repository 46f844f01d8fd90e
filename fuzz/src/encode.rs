//! Encode after decode: a reply's events, written by a wire as a stream and as a whole body and read back by a reader that
//! shares nothing with the writer, are the same reply.

use crate::call::{Call, Event, Extra, FinishReason, Fold, Raw, Reply, Text, Tokens, ToolKind, ToolStart, Usage};
use crate::ids::CallId;
use crate::readers::{self, Reader};
use crate::wire::{ReplyHead, Target, Wire};

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

/// Builds replies out of `data` and checks `wire` with them. The first byte chooses the request.
pub fn check(wire: &dyn Wire, data: &[u8]) {
    let reader = readers::of(wire.name());
    let requests = reader.requests();
    let first = usize::from(data.first().copied().unwrap_or_default());
    let request = requests[first % requests.len()];
    let calls = wire.parse(Target::read(request.0), &request.1.into()).unwrap_or_else(|failure| panic!("{request:?}: {failure}"));
    let events = Steps { data, at: 1, reader, choices: calls.len(), refuses: first & 0x20 != 0 }.events();
    let (live, held, whole, replies) = write(wire, &calls, &events);
    let expected = readers::expected(reader, &replies);
    let streamed = reader.stream(request, calls.len(), &live, &held);
    assert_eq!(streamed, expected, "stream of {events:?}:\n{}{}", lossy(&live), lossy(&held));
    assert_eq!(reader.whole(&whole), expected, "whole of {events:?}:\n{}", lossy(&whole));
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What leaves at once, what is held back until the record is committed, and the whole body. Events are those of the reply to the
/// call at that place.
pub fn write(wire: &dyn Wire, calls: &[Call], events: &[(usize, Event)]) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<Reply>) {
    let encoder = |(call, choice): (&Call, u32)| {
        wire.encoder(call, ReplyHead { call_id: call_id(), choice, created: 1, model: call.model.clone() })
    };
    let (mut live, mut held, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut encoders: Vec<_> = calls.iter().zip(0..).map(encoder).collect();
    let mut folds: Vec<Fold> = calls.iter().map(|_| Fold::default()).collect();
    encoders[0].begin(&mut live);
    encoders[0].ping(&mut live);
    for (place, event) in events {
        folds[*place].push(event);
        encoders[*place].event(event, &mut live);
    }
    encoders[0].ping(&mut live);
    let replies: Vec<Reply> = folds.into_iter().map(Fold::reply).collect();
    for (encoder, reply) in encoders.iter_mut().zip(&replies) {
        encoder.finish(reply, &mut held);
    }
    encoders[0].close(Usage::of_all(&replies).as_ref(), &mut held);
    encoder((&calls[0], 0)).whole(&replies, &mut whole);
    (live, held, whole, replies)
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
    reader: &'a dyn Reader,
    choices: usize,
    /// What is said is a refusal, on wires that don't tell one from text.
    refuses: bool,
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

    fn tool(&mut self, begun: u32) -> ToolStart {
        let kinds = self.byte();
        let custom = self.reader.has_custom_tools() && kinds % 4 == 1;
        let namespace = (self.reader.has_namespaces() && kinds % 8 > 5).then(|| Text::new("n\"s"));
        let kind = if custom { ToolKind::Custom } else { ToolKind::Function };
        let name = Text::new(["f", "get é", "a\"b"][usize::from(kinds) % 3]);
        ToolStart { id: Text::new(&format!("call_{begun}")), kind, namespace, name }
    }

    /// Events as policies give them: tool calls are numbered in the order of their starts, each reply ends once.
    fn events(mut self) -> Vec<(usize, Event)> {
        let mut events = Vec::new();
        let mut begun = vec![0; self.choices];
        let mut counted = vec![false; self.choices];
        if self.reader.echoes() && self.refuses {
            events.extend((0..self.choices).map(|place| (place, Event::PromptText("go".into()))));
        }
        while self.at < self.data.len() {
            let step = self.byte();
            let place = usize::from(step >> 4) % self.choices;
            let event = match step % 16 {
                0..=2 if self.refuses && !self.reader.has_refusals() && !self.reader.echoes() => Event::Refusal(self.text()),
                0..=2 => Event::Text(self.text()),
                3 | 4 if self.reader.has_reasoning() => Event::Reasoning(self.text()),
                5 if self.reader.has_refusals() => Event::Refusal(self.text()),
                6 | 7 if self.reader.has_tools() => {
                    begun[place] += 1;
                    Event::ToolStart { index: begun[place] - 1, tool: self.tool(begun[place] - 1) }
                }
                8..=10 if begun[place] > 0 => {
                    let index = u32::from(self.byte()) % begun[place];
                    Event::ToolArguments { index, fragment: self.text() }
                }
                11 => Event::StopString(Text::new(["END", "\n"][usize::from(self.byte()) % 2])),
                12 => {
                    counted[place] = true;
                    Event::Usage(self.usage())
                }
                13 => Event::Extra(self.extra()),
                14 => Event::Tokens(Tokens { ids: vec![7, 8], logprobs: vec![-0.5, -1.0] }),
                15 => Event::Prompt(vec![1, 2, 3]),
                _ => continue,
            };
            events.push((place, event));
        }
        let reasons = [FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls, FinishReason::ContentFilter];
        for (place, counted) in counted.into_iter().enumerate() {
            if !counted && (self.reader.guesses_usage() || self.choices > 1) {
                events.push((place, Event::Usage(self.usage())));
            }
            let reason = usize::from(self.data.first().copied().unwrap_or_default() >> 6) + place;
            events.push((place, Event::Finish(reasons[reason % reasons.len()])));
        }
        events
    }

    /// Counts of which those that are part of others are no larger.
    fn usage(&mut self) -> Usage {
        let mut count = || u64::from(self.byte()) << (self.byte() % 40);
        let (prompt_tokens, completion_tokens) = (count(), count());
        let (cached_tokens, reasoning_tokens) = (count().min(prompt_tokens), count().min(completion_tokens));
        Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens }
    }

    fn extra(&mut self) -> Extra {
        let which = self.byte();
        let value = ["7", "{\n\"a\":\r\n1}", "[1,2]", "\"x\\ny\"", "null"][usize::from(which) % 5];
        let value = Raw::from_json(value.as_bytes().to_vec());
        let name = Text::new(["mood", "stop_reason", "q\"uote", "tok\u{e9}n"][usize::from(which / 5) % 4]);
        if which > 127 { Extra::Delta { name, value } } else { Extra::Choice { name, value } }
    }
}
