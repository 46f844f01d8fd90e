//! A server's bytes: any split gives the same events, the events are well formed, and every wire can write them.

use std::sync::Arc;

use crate::call::{Call, Event, Extra, Fold, Text};
use crate::policy::{self, Source};
use crate::{encode, json, sse, wire};

/// The first byte says how the rest is cut, the second what kind of server and request it is.
pub fn run(data: &[u8]) {
    let [cut, kind, bytes @ ..] = data else { return };
    let source = [Source::TokenIds, Source::Entries, Source::None][usize::from(kind & 3) % 3];
    let whole = kind & 4 != 0;
    let call = Arc::new(if kind & 16 != 0 { completion(*kind) } else { request(kind & 8 != 0) });
    let (events, end) = policy::read(&call, source, whole, 1 << 20, &[bytes]);
    if !whole {
        let pieces = policy::read(&call, source, whole, 1 << 20, &sse::split(bytes, *cut));
        assert_eq!((&events, &end), (&pieces.0, &pieces.1));
    }
    if let Err(failure) = &end {
        assert!(failure.status >= 400 && !failure.message.is_empty(), "{failure:?}");
    }
    well_formed(&events, end.is_ok());
    for wire in wire::ALL {
        written(*wire, &call, &events);
    }
}

/// A chat request, with custom tools and groups among its tools, or none.
pub(crate) fn request(tools: bool) -> Call {
    let tools = if tools {
        r#","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}]"#
    } else {
        ""
    };
    let body = format!(r#"{{"model":"m","stream":true,"input":"go"{tools}}}"#);
    let wire = wire::named("responses").expect("the wire");
    wire.parse(wire::Target::read("/responses"), &body.into()).expect("a request").remove(0)
}

/// A completion, with the prompt before it or not, as the server tells it or as we do.
fn completion(kind: u8) -> Call {
    let (echo, logprobs) = (kind & 32 != 0, if kind & 64 != 0 { "1" } else { "null" });
    let body = format!(r#"{{"model":"m","stream":true,"prompt":"go","echo":{echo},"logprobs":{logprobs}}}"#);
    let wire = wire::named("completions").expect("the wire");
    wire.parse(wire::Target::read("/completions"), &body.into()).expect("a request").remove(0)
}

pub(crate) fn well_formed(events: &[Event], ended_well: bool) {
    let mut begun = 0;
    let mut finished = 0;
    for event in events {
        match event {
            Event::PromptText(text)
            | Event::Text(text)
            | Event::Reasoning(text)
            | Event::Refusal(text)
            | Event::StopString(text) => literal(text),
            Event::ToolStart { index, tool } => {
                assert_eq!(*index, begun, "tool calls are numbered without gaps");
                begun += 1;
                [&tool.id, &tool.name].into_iter().chain(&tool.namespace).for_each(literal);
                assert!(!tool.id.is_empty());
            }
            Event::ToolArguments { index, fragment } => {
                assert!(*index < begun, "arguments of a call that has not begun");
                literal(fragment);
            }
            Event::Extra(Extra::Delta { name, value } | Extra::Choice { name, value }) => {
                literal(name);
                value.read::<serde::de::IgnoredAny>().expect("an extra is JSON");
            }
            Event::Finish(_) => finished += 1,
            Event::Prompt(_) | Event::Tokens(_) | Event::Usage(_) | Event::Version(_) => {}
        }
    }
    assert!(finished <= 1 && (finished == 1 || !ended_well), "the reply ends once, it ended {finished} times");
}

fn literal(text: &Text) {
    json::ours(text.literal()).text();
}

/// Whatever came, what a client is sent is JSON.
fn written(wire: &dyn wire::Wire, call: &Call, events: &[Event]) {
    let events: Vec<_> = events.iter().map(|event| (0, event.clone())).collect();
    let (live, held, whole, replies) = encode::write(wire, std::slice::from_ref(call), &events);
    for (_, data) in sse::by_the_standard(&[live, held].concat()) {
        if data != b"[DONE]" {
            is_json(&data);
        }
    }
    is_json(&whole);
    let mut fold = Fold::default();
    events.iter().for_each(|(_, event)| fold.push(event));
    assert_eq!(replies, [fold.reply()]);
}

fn is_json(bytes: &[u8]) {
    let read = serde_json::from_slice::<serde::de::IgnoredAny>(bytes);
    assert!(read.is_ok(), "{read:?}: {}", String::from_utf8_lossy(bytes));
}
