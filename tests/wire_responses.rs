//! Reasoning on Responses comes back once and whole, in whichever form the client asked for it and whatever of it the client keeps.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use bytes::Bytes;
use gleaner::call::{Call, Event, FinishReason, Fold, Raw, Reply, Text, ToolKind, ToolStart};
use gleaner::ids::CallId;
use gleaner::wire::{self, ReplyHead, Target, Wire};
use proptest::prelude::*;
use serde_json::{Value, json};

fn parse(body: &Value) -> Call {
    let wire = wire::named("responses").unwrap();
    wire.parse(Target::read(wire.paths()[0]), &Bytes::from(body.to_string())).unwrap().remove(0)
}

/// The items that a stream says are done, in the order of the output, and those of the whole body.
fn items(call: &Call, events: &[Event]) -> (Vec<Value>, Vec<Value>, Reply) {
    let wire: &dyn Wire = wire::named("responses").unwrap();
    let head = || ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    let (mut fold, mut stream, mut whole) = (Fold::default(), Vec::new(), Vec::new());
    let mut encoder = wire.encoder(call, head());
    encoder.begin(&mut stream);
    for event in events {
        fold.push(event);
        encoder.event(event, &mut stream);
    }
    let reply = fold.reply();
    encoder.finish(&reply, &mut stream);
    wire.encoder(call, head()).whole(std::slice::from_ref(&reply), &mut whole);
    let stream = String::from_utf8(stream).unwrap();
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let data: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let mut done = std::collections::BTreeMap::new();
    for event in data.iter().filter(|event| event["type"] == "response.output_item.done") {
        done.insert(event["output_index"].as_u64().unwrap(), event["item"].clone());
    }
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    (done.into_values().collect(), whole["output"].as_array().unwrap().clone(), reply)
}

fn pieces() -> impl Strategy<Value = Vec<Event>> {
    let piece = "[a\"\\\\\n\u{e9}\u{4e2d}\u{1f600} {}]{1,6}";
    proptest::collection::vec((any::<bool>(), piece), 1..12).prop_map(|pieces| {
        let mut events: Vec<Event> = vec![Event::Reasoning(Text::new("."))];
        events.extend(pieces.iter().map(|(said, piece)| {
            let piece = Text::new(piece);
            if *said { Event::Text(piece) } else { Event::Reasoning(piece) }
        }));
        let tool = ToolStart { id: "c".into(), kind: ToolKind::Function, namespace: None, name: "f".into() };
        events.push(Event::ToolStart { index: 0, tool });
        events.push(Event::Finish(FinishReason::ToolCalls));
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn reasoning_comes_back_once(events in pieces()) {
        let summary = json!({ "reasoning": { "summary": "auto" } });
        let sealed = json!({ "include": ["reasoning.encrypted_content"] });
        let both = json!({ "reasoning": { "summary": "auto" }, "store": false });
        for (form, lost) in [
            (json!({}), &[][..]),
            (summary, &[]),
            (sealed.clone(), &[]),
            (sealed, &["content", "summary"]),
            (both.clone(), &[]),
            (both, &["summary"]),
        ] {
            let mut body = json!({ "model": "m", "input": "go" });
            body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
            let (streamed, whole, reply) = items(&parse(&body), &events);
            for mut items in [streamed, whole] {
                for item in items.iter_mut().filter(|item| item["type"] == "reasoning") {
                    for name in lost {
                        item.as_object_mut().unwrap().remove(*name);
                    }
                }
                items.insert(0, json!({ "role": "user", "content": "go" }));
                body["input"] = items.into();
                let message = parse(&body).messages.pop().unwrap();
                let said = message.reasoning.as_ref().map(Text::decode);
                prop_assert_eq!(said, reply.reasoning.as_ref().map(Text::decode), "{} without {:?}", form, lost);
                prop_assert_eq!(message.tool_calls.len(), 1);
            }
        }
    }
}

/// Every field of a request that its response repeats stands in the whole body with the request's own value.
#[test]
fn a_response_repeats_its_request() {
    let tools = json!([{ "type": "function", "name": "f", "description": "line\nbreak", "parameters": { "type": "object" } }]);
    let said = json!({
        "instructions": "be brief", "metadata": { "a": "b" }, "tools": tools, "tool_choice": "required", "temperature": 0.25,
        "top_p": 0.5, "parallel_tool_calls": false, "text": { "format": { "type": "text" } }, "reasoning": { "effort": "low" },
        "truncation": "disabled", "max_output_tokens": 7, "store": true, "user": "me", "top_logprobs": 0, "background": false,
        "safety_identifier": "s", "prompt_cache_key": "k",
    });
    let mut body = said.clone();
    body["input"] = json!("go");
    let call = parse(&body);
    let names: Vec<String> = call.echo.iter().map(|(name, _): &(Text, Raw)| name.decode().into_owned()).collect();
    assert_eq!(names.len(), said.as_object().unwrap().len(), "{names:?}");
    let mut whole = Vec::new();
    let head = ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    wire::named("responses").unwrap().encoder(&call, head).whole(&[Reply::default()], &mut whole);
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    for (name, value) in said.as_object().unwrap() {
        assert_eq!(&whole[name], value, "{name}");
    }
}

#[track_caller]
fn refused(body: &str) -> (u16, Option<String>, String) {
    let wire = wire::named("responses").unwrap();
    let failure = wire.parse(Target::read(wire.paths()[0]), &Bytes::from(body.to_owned())).unwrap_err();
    let said: Value = serde_json::from_slice(&wire.failure(&failure)).unwrap();
    assert_eq!((&said["error"]["type"], &said["error"]["message"]), (&json!("invalid_request_error"), &json!(failure.message)));
    (failure.status, failure.param, failure.message)
}

#[test]
fn bad_requests_are_refused_with_the_field_at_fault() {
    for (body, param, message) in [
        (r#"{"input":[{"role":"wizard","content":"x"}]}"#, "input[0].role", "input[0].role is unknown: \"wizard\""),
        (r#"{"input":[7]}"#, "input[0]", "input[0] must be an object"),
        (r#"{"input":{}}"#, "input", "input must be a list"),
        (
            r#"{"input":"x","max_output_tokens":1e400}"#,
            "max_output_tokens",
            "max_output_tokens must be a whole number of 0 or more, not 1e400",
        ),
        (r#"{"input":"x","temperature":[]}"#, "temperature", "temperature must be a number, not a list"),
        (r#"{"input":"x","stream":1}"#, "stream", "stream must be a boolean, not 1"),
        (r#"{"input":"x","store":"no"}"#, "store", "store must be a boolean, not a string"),
        (r#"{"input":"x","include":[1]}"#, "include", "include must be a list of strings, not a list"),
        (r#"{"input":"x","text":[]}"#, "text", "text must be an object, not a list"),
        (r#"{"input":"x","text":{"format":{"type":"json_schema"}}}"#, "text.format.schema", "text.format.schema is missing"),
        (r#"{"input":"x","reasoning":{"summary":1}}"#, "reasoning.summary", "reasoning.summary must be a string, not 1"),
        (r#"{"input":"x","previous_response_id":1}"#, "previous_response_id", "previous_response_id must be a string, not 1"),
        (r#"{"input":"x","tools":[{"type":"function"}]}"#, "tools[0].name", "tools[0].name is missing"),
        (
            r#"{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"custom"}]}]}"#,
            "tools[0].tools[0].name",
            "tools[0].tools[0].name is missing",
        ),
        (
            r#"{"input":"x","tool_choice":"maybe"}"#,
            "tool_choice",
            "tool_choice must be auto, none, required or a tool, not \"maybe\"",
        ),
        (r#"{"input":[{"type":"function_call","call_id":"a"}]}"#, "input[0].name", "input[0].name is missing"),
        (r#"{"input":[{"type":"function_call_output","call_id":"a"}]}"#, "input[0].output", "input[0].output is missing"),
        (
            r#"{"input":[{"role":"user","content":[{"text":"x"}]}]}"#,
            "input[0].content[0].type",
            "input[0].content[0].type is missing",
        ),
        (r#"{"input":[{"type":"item_reference"}]}"#, "input[0].id", "input[0].id is missing"),
        (
            r#"{"input":[{"role":"user","content":"x"},{"type":"function_call_output","call_id":"a","output":"x"}]}"#,
            "input",
            "No tool call found for function call output with call_id a.",
        ),
        (
            r#"{"input":[{"type":"function_call_output","call_id":"a","output":"x"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}]}"#,
            "input",
            "No tool call found for function call output with call_id a.",
        ),
    ] {
        assert_eq!(refused(body), (400, Some(param.to_owned()), message.to_owned()), "{body}");
    }
    let deep = format!("{}{}", "{\"a\":".repeat(1000), "1".to_owned() + &"}".repeat(1000));
    let schema = format!(r#"{{"input":"x","tools":[{{"type":"function","name":"f","parameters":{deep}}}]}}"#);
    assert_eq!(refused(&schema).1.as_deref(), Some("tools[0].parameters"));
    let format = format!(r#"{{"input":"x","text":{{"format":{{"type":"json_schema","name":"s","schema":{deep}}}}}}}"#);
    assert_eq!(refused(&format).1.as_deref(), Some("text.format.schema"));
}

#[test]
fn odd_requests_are_read() {
    let call = r#"{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}"#;
    let output = |text: &str| format!(r#"{{"type":"function_call_output","call_id":"a","output":"{text}"}}"#);
    let roles = |input: &str| {
        let call = parse(&serde_json::from_str(&format!("{{\"input\":[{input}]}}")).unwrap());
        call.messages.iter().map(|message| message.role.name()).collect::<Vec<_>>().join(" ")
    };
    // Ids that come twice, in calls and in outputs.
    assert_eq!(roles(&format!("{call},{},{call},{}", output("1"), output("2"))), "assistant tool assistant tool");
    assert_eq!(roles(&format!("{call},{},{}", output("1"), output("2"))), "assistant tool tool");
    // The call is of a kind that is not told.
    let unknown = r#"{"type":"new_call","call_id":"a"}"#;
    assert_eq!(roles(&format!("{unknown},{}", output("1"))), "tool");
    let lone = wire::named("responses").unwrap();
    let body = r#"{"input":[{"role":"user","content":"\ud800 \u0000"}],"tools":[{"type":"function","name":"\udc00"}]}"#;
    let call = lone.parse(Target::read("/responses"), &Bytes::from_static(body.as_bytes())).unwrap().remove(0);
    assert_eq!(call.tools[0].name.inner(), b"\\udc00");
    let many: Vec<String> = (0..10_000).map(|n| format!(r#"{{"type":"function","name":"f{n}"}}"#)).collect();
    let call = parse(&serde_json::from_str(&format!(r#"{{"input":"x","tools":[{}]}}"#, many.join(","))).unwrap());
    assert_eq!(call.tools.len(), 10_000);
}

#[test]
fn thoughts_between_texts_are_written_in_linear_time() {
    let call = parse(&json!({"input": "x"}));
    let head = ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    let mut encoder = wire::named("responses").unwrap().encoder(&call, head);
    let mut last = Vec::new();
    let begun = std::time::Instant::now();
    for _ in 0..60_000 {
        last.clear();
        encoder.event(&Event::Reasoning("r".into()), &mut last);
        encoder.event(&Event::Text("t".into()), &mut last);
    }
    assert!(String::from_utf8_lossy(&last).contains("rs_00000000000000000000000000000007_59999"));
    // With a look at all items for each new one it takes most of a minute.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn unknown_items_of_any_number_of_kinds_are_noted_in_linear_time() {
    let kinds = (0..100_000).map(|number| json!({"type": format!("new_{number}")}));
    let input: Vec<Value> = kinds.chain([json!({"role": "user", "content": "x"})]).collect();
    let begun = std::time::Instant::now();
    let call = parse(&json!({"input": input}));
    assert_eq!((call.messages.len(), call.notes.len()), (1, 20));
    assert!(begun.elapsed().as_secs() < 40, "{:?}", begun.elapsed());
}
