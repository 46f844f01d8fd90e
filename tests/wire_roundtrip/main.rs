//! A reply's events, written by a wire and read back by a reader of the test's own, are the reply; and a client that sends the
//! reply back as history gives the same message.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod gemini;

use bytes::Bytes;
use gleaner::call::{Call, Event, FinishReason, Fold, Message, Reply, Role, Text, ToolKind, ToolStart, Usage};
use gleaner::ids::CallId;
use gleaner::wire::{self, ReplyHead, Target, Wire};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What a client can tell of a reply.
#[derive(Debug, PartialEq)]
struct Seen {
    text: String,
    reasoning: String,
    /// Kind, id, name, arguments.
    tools: Vec<(bool, String, String, String)>,
    finish: String,
    total: Option<u64>,
}

fn seen(reply: &Reply, finish: String) -> Seen {
    let plain = |text: &Option<Text>| text.as_ref().map(|text| text.decode().into_owned()).unwrap_or_default();
    let tool = |call: &gleaner::call::ToolCall| {
        let custom = call.kind == ToolKind::Custom;
        let arguments = call.arguments.decode().into_owned();
        let arguments = if arguments.is_empty() && !custom { "{}".to_owned() } else { arguments };
        (custom, call.id.decode().into_owned(), call.name.decode().into_owned(), arguments)
    };
    Seen {
        text: plain(&reply.text),
        reasoning: plain(&reply.reasoning),
        tools: reply.tool_calls.iter().map(tool).collect(),
        finish,
        total: reply.usage.map(|usage| usage.prompt_tokens + usage.completion_tokens),
    }
}

/// Any reply: pieces of text, reasoning and tool calls in any order, fragments of several calls mixed.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let piece = "[a\"\\\\\n\u{e9}\u{4e2d}\u{1f600} {}]{0,6}";
    let step = (0..5_u8, 0..4_u32, piece);
    (proptest::collection::vec(step, 0..30), any::<[bool; 4]>(), any::<bool>()).prop_map(|(steps, custom, counted)| {
        let mut events = Vec::new();
        let mut begun = 0;
        for (kind, index, piece) in steps {
            let piece = Text::new(&piece);
            match kind {
                0 => events.push(Event::Text(piece)),
                1 => events.push(Event::Reasoning(piece)),
                2 if begun < 4 => {
                    let kind = if custom[begun as usize] { ToolKind::Custom } else { ToolKind::Function };
                    let (id, name) = (Text::new(&format!("call_{begun}")), Text::new("t"));
                    events.push(Event::ToolStart { index: begun, tool: ToolStart { id, kind, namespace: None, name } });
                    begun += 1;
                }
                _ if index < begun => events.push(Event::ToolArguments { index, fragment: piece }),
                _ => {}
            }
        }
        events.push(Event::Finish(FinishReason::Stop));
        if counted {
            events.push(Event::Usage(Usage { prompt_tokens: 9, completion_tokens: 3, cached_tokens: 1, reasoning_tokens: 0 }));
        }
        events
    })
}

fn request(wire: &dyn Wire, messages: &[Value]) -> Call {
    let mut body = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true } });
    match wire.name() {
        "chat" | "messages" => body["messages"] = json!(messages),
        "completions" => body["prompt"] = json!("go"),
        _ => body["input"] = json!(messages),
    }
    if wire.name() == "messages" {
        body["max_tokens"] = json!(100);
    }
    wire.parse(Target::read(wire.paths()[0]), &Bytes::from(body.to_string())).unwrap().remove(0)
}

/// The stream as it leaves live, what is held back until the record is committed, and the whole body.
fn write(wire: &dyn Wire, events: &[Event]) -> (String, String, Value, Reply) {
    let call = request(wire, &[json!({ "role": "user", "content": "go" })]);
    let head = || ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    let (mut live, mut late, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut encoder = wire.encoder(&call, head());
    let mut fold = Fold::default();
    encoder.begin(&mut live);
    for event in events {
        fold.push(event);
        encoder.event(event, &mut live);
    }
    let reply = fold.reply();
    encoder.finish(&reply, &mut late);
    encoder.close(reply.usage.as_ref(), &mut late);
    wire.encoder(&call, head()).whole(std::slice::from_ref(&reply), &mut whole);
    (String::from_utf8(live).unwrap(), String::from_utf8(late).unwrap(), serde_json::from_slice(&whole).unwrap(), reply)
}

fn data(stream: &str) -> Vec<Value> {
    let data = stream.split("\n\n").filter(|event| !event.is_empty()).map(|event| event.split("data: ").nth(1).unwrap());
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn chat_tool(call: &Value) -> (bool, String, String, String) {
    let custom = call["type"] == "custom";
    let (inner, arguments) = if custom { (&call["custom"], "input") } else { (&call["function"], "arguments") };
    (custom, string(&call["id"]), string(&inner["name"]), string(&inner[arguments]))
}

/// Adds up deltas as the official Python SDK does: strings are joined, calls are told apart by their index.
fn read_chat_stream(stream: &str) -> Seen {
    let mut reply = Seen { text: String::new(), reasoning: String::new(), tools: vec![], finish: String::new(), total: None };
    let mut roles = String::new();
    for chunk in data(stream) {
        reply.total = chunk["usage"]["total_tokens"].as_u64();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        roles += &string(&delta["role"]);
        reply.text += &string(&delta["content"]);
        reply.reasoning += &string(&delta["reasoning_content"]);
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        assert_eq!(reply.finish, "", "nothing of the choice follows its end");
        reply.finish += &string(&choice["finish_reason"]);
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            if index == reply.tools.len() {
                reply.tools.push(chat_tool(piece));
            } else {
                let (custom, _, _, arguments) = &mut reply.tools[index];
                *arguments += &string(if *custom { &piece["custom"]["input"] } else { &piece["function"]["arguments"] });
                assert_eq!(piece["id"], Value::Null);
            }
        }
    }
    assert_eq!(roles, "assistant");
    assert!(stream.ends_with("data: [DONE]\n\n"));
    reply
}

fn read_chat_whole(body: &Value) -> Seen {
    let message = &body["choices"][0]["message"];
    Seen {
        text: string(&message["content"]),
        reasoning: string(&message["reasoning"]),
        tools: message["tool_calls"].as_array().into_iter().flatten().map(chat_tool).collect(),
        finish: string(&body["choices"][0]["finish_reason"]),
        total: body["usage"]["total_tokens"].as_u64(),
    }
}

/// Text and end are all that this wire says of a reply.
fn read_completions(choices: &[Value], total: &Value) -> Seen {
    let text = choices.iter().map(|choice| string(&choice["text"])).collect();
    let ends: Vec<String> = choices.iter().map(|choice| string(&choice["finish_reason"])).collect();
    assert!(ends[..ends.len() - 1].iter().all(String::is_empty), "something follows the end");
    Seen { text, reasoning: String::new(), tools: vec![], finish: ends.concat(), total: total["total_tokens"].as_u64() }
}

fn read_response(response: &Value) -> Seen {
    let mut reply = Seen {
        text: String::new(),
        reasoning: String::new(),
        tools: Vec::new(),
        finish: string(&response["status"]),
        total: response["usage"]["total_tokens"].as_u64(),
    };
    for item in response["output"].as_array().unwrap() {
        let tool = |custom, arguments| (custom, string(&item["call_id"]), string(&item["name"]), string(&item[arguments]));
        match item["type"].as_str().unwrap() {
            "reasoning" => reply.reasoning += &string(&item["content"][0]["text"]),
            "message" => reply.text += &string(&item["content"][0]["text"]),
            "function_call" => reply.tools.push(tool(false, "arguments")),
            "custom_tool_call" => reply.tools.push(tool(true, "input")),
            other => panic!("unknown item {other}"),
        }
    }
    reply
}

/// Checks the order that the official SDK insists on, and gives the final response.
fn check_response_stream(live: &str, held: &str) -> Value {
    let (live_events, held_events) = (data(live), data(held));
    let is_done = |event: &&Value| event["type"] == "response.output_item.done";
    assert!(live_events.iter().filter(is_done).all(|event| event["item"]["type"] == "reasoning"));
    let events: Vec<Value> = live_events.into_iter().chain(held_events).collect();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(names.iter().position(|name| *name == "response.completed"), Some(names.len() - 1));
    let mut open: Vec<(String, String)> = Vec::new();
    let mut done = std::collections::BTreeMap::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let place = event["output_index"].as_u64().map(|place| usize::try_from(place).unwrap());
        match (event["type"].as_str().unwrap(), place) {
            ("response.output_item.added", Some(place)) => {
                assert_eq!(place, open.len());
                open.push((string(&event["item"]["id"]), String::new()));
            }
            ("response.output_item.done", Some(place)) => {
                assert_eq!(event["item"]["id"], open[place].0);
                assert!(done.insert(place, event["item"].clone()).is_none());
            }
            (name, Some(place)) => {
                assert_eq!(event["item_id"], open[place].0);
                assert!(!done.contains_key(&place));
                open[place].1 += &string(&event["delta"]);
                if name.ends_with("_text.done") || name.ends_with("arguments.done") || name.ends_with("input.done") {
                    let whole = ["text", "arguments", "input"].into_iter().find_map(|field| event[field].as_str());
                    assert_eq!(whole, Some(open[place].1.as_str()), "{name}");
                }
            }
            (_, None) => assert_eq!(event["response"]["id"], events[0]["response"]["id"]),
        }
    }
    let response = events[events.len() - 1]["response"].clone();
    assert_eq!(response["output"], Value::Array(done.into_values().collect()));
    response
}

/// The same reply with functions in place of custom tools, on wires that have none.
fn without_custom(events: Vec<Event>) -> Vec<Event> {
    let plain = |event| match event {
        Event::ToolStart { index, tool } => Event::ToolStart { index, tool: ToolStart { kind: ToolKind::Function, ..tool } },
        other => other,
    };
    events.into_iter().map(plain).collect()
}

/// Adds up events as Anthropic's SDKs do, and holds them to the order that these insist on.
fn read_messages_stream(stream: &str) -> Seen {
    let mut reply = Seen { text: String::new(), reasoning: String::new(), tools: vec![], finish: String::new(), total: None };
    for event in stream.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), serde_json::from_str::<Value>(data).unwrap()["type"]);
    }
    let events = data(stream);
    let count = events.len();
    assert_eq!((&events[0]["type"], &events[count - 1]["type"]), (&json!("message_start"), &json!("message_stop")));
    assert!(events[0]["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
    let (mut open, mut begun, mut signed) = (None::<Value>, 0, false);
    for event in &events[1..count - 1] {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open.is_none(), &event["index"]), (true, &json!(begun)));
                begun += 1;
                signed = false;
                let block = event["content_block"].clone();
                if block["type"] == "tool_use" {
                    reply.tools.push((false, string(&block["id"]), string(&block["name"]), String::new()));
                }
                open = Some(block);
            }
            "content_block_delta" => {
                let (block, delta) = (open.as_ref().unwrap(), &event["delta"]);
                assert_eq!((&event["index"], signed), (&json!(begun - 1), false));
                match (block["type"].as_str().unwrap(), delta["type"].as_str().unwrap()) {
                    ("text", "text_delta") => reply.text += &string(&delta["text"]),
                    ("thinking", "thinking_delta") => reply.reasoning += &string(&delta["thinking"]),
                    ("thinking", "signature_delta") => signed = !string(&delta["signature"]).is_empty(),
                    ("tool_use", "input_json_delta") => reply.tools.last_mut().unwrap().3 += &string(&delta["partial_json"]),
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" => {
                let block = open.take().unwrap();
                assert_eq!((&event["index"], signed), (&json!(begun - 1), block["type"] == "thinking"));
            }
            "message_delta" => {
                assert!(open.is_none());
                reply.finish += &string(&event["delta"]["stop_reason"]);
                reply.total = total(&event["usage"]);
            }
            other => panic!("unknown event {other}"),
        }
    }
    reply
}

fn total(usage: &Value) -> Option<u64> {
    ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"]
        .into_iter()
        .map(|name| usage[name].as_u64())
        .sum()
}

fn read_messages_whole(body: &Value) -> Seen {
    let mut reply = Seen {
        text: String::new(),
        reasoning: String::new(),
        tools: vec![],
        finish: string(&body["stop_reason"]),
        total: total(&body["usage"]),
    };
    for block in body["content"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "text" => reply.text += &string(&block["text"]),
            "thinking" => reply.reasoning += &string(&block["thinking"]),
            "tool_use" => {
                let input = &block["input"];
                let arguments = input["INVALID_JSON"].as_str().map_or_else(|| input.to_string(), str::to_owned);
                reply.tools.push((false, string(&block["id"]), string(&block["name"]), arguments));
            }
            other => panic!("unknown block {other}"),
        }
    }
    reply
}

/// The same with arguments that are objects as their meaning, and no counts where none were given.
fn meant(mut seen: Seen, counted: bool) -> Seen {
    for (.., arguments) in &mut seen.tools {
        if let Ok(object @ Value::Object(_)) = serde_json::from_str(arguments) {
            *arguments = object.to_string();
        }
    }
    Seen { total: seen.total.filter(|_| counted), ..seen }
}

/// The reply's message as a later request carries it back.
fn echoed(wire: &dyn Wire, items: &[Value]) -> Message {
    let messages = [&[json!({ "role": "user", "content": "go" })], items].concat();
    let mut messages = request(wire, &messages).messages;
    assert_eq!(messages.len(), 2);
    messages.pop().unwrap()
}

fn said(message: &Message) -> Seen {
    assert_eq!(message.role, Role::Assistant);
    let text = match &message.content {
        gleaner::call::Content::Text(text) => Some(text.clone()),
        _ => None,
    };
    let reply = Reply { text, reasoning: message.reasoning.clone(), tool_calls: message.tool_calls.clone(), ..Reply::default() };
    seen(&reply, String::new())
}

proptest! {
    #[test]
    fn chat_says_what_the_reply_says(events in events()) {
        let wire = wire::named("chat").unwrap();
        let (live, held, whole, reply) = write(wire, &events);
        let finish = if reply.tool_calls.is_empty() { "stop" } else { "tool_calls" };
        let expected = seen(&reply, finish.to_owned());
        prop_assert_eq!(&read_chat_stream(&format!("{live}{held}")), &expected);
        prop_assert_eq!(&read_chat_whole(&whole), &expected);
        prop_assert!(!live.contains("\"finish_reason\":\""));
        let message = echoed(wire, &[whole["choices"][0]["message"].clone()]);
        prop_assert_eq!(said(&message), said(&reply.message()));
    }

    #[test]
    fn completions_say_what_the_reply_says(events in events()) {
        let wire = wire::named("completions").unwrap();
        let (live, held, whole, reply) = write(wire, &events);
        let expected = Seen { reasoning: String::new(), tools: vec![], ..seen(&reply, "stop".to_owned()) };
        prop_assert!(!live.contains("\"finish_reason\":\"") && held.ends_with("data: [DONE]\n\n"));
        let chunks = data(&format!("{live}{held}"));
        let choices: Vec<Value> = chunks.iter().filter_map(|chunk| chunk["choices"].get(0).cloned()).collect();
        prop_assert_eq!(&read_completions(&choices, &chunks[chunks.len() - 1]["usage"]), &expected);
        prop_assert_eq!(&read_completions(whole["choices"].as_array().unwrap(), &whole["usage"]), &expected);
    }

    #[test]
    fn responses_say_what_the_reply_says(events in events()) {
        let wire = wire::named("responses").unwrap();
        let (live, held, whole, reply) = write(wire, &events);
        let response = check_response_stream(&live, &held);
        let expected = seen(&reply, "completed".to_owned());
        prop_assert_eq!(&read_response(&response), &expected);
        prop_assert_eq!(&read_response(&whole), &expected);
        let items = response["output"].as_array().unwrap();
        if !items.is_empty() {
            prop_assert_eq!(said(&echoed(wire, items)), said(&reply.message()));
        }
    }

    #[test]
    fn messages_say_what_the_reply_says(events in events()) {
        let wire = wire::named("messages").unwrap();
        let (live, held, whole, reply) = write(wire, &without_custom(events));
        let finish = if reply.tool_calls.is_empty() { "end_turn" } else { "tool_use" };
        let counted = reply.usage.is_some();
        let expected = seen(&reply, finish.to_owned());
        let streamed = read_messages_stream(&format!("{live}{held}"));
        prop_assert_eq!(Seen { total: streamed.total.filter(|_| counted), ..streamed }, seen(&reply, finish.to_owned()));
        prop_assert_eq!(meant(read_messages_whole(&whole), counted), meant(expected, counted));
        // What ends a tool's block, and all after it, is held back.
        let stops = data(&live).into_iter().filter(|event| event["type"] == "content_block_stop");
        let tools: Vec<u64> = data(&live).iter().filter(|event| event["content_block"]["type"] == "tool_use")
            .map(|event| event["index"].as_u64().unwrap()).collect();
        prop_assert!(stops.into_iter().all(|stop| !tools.contains(&stop["index"].as_u64().unwrap())) && tools.len() < 2);
        prop_assert!(!live.contains("message_delta") && !live.contains("message_stop"));
        let blocks = whole["content"].as_array().unwrap();
        let back = said(&echoed(wire, &[json!({ "role": "assistant", "content": blocks })]));
        let mut sent = said(&reply.message());
        for (tool, block) in sent.tools.iter_mut().zip(blocks.iter().filter(|block| block["type"] == "tool_use")) {
            tool.3 = block["input"].to_string();
        }
        prop_assert_eq!(back, sent);
    }
}
