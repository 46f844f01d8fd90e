//! The same of Gemini, whose calls have objects for arguments.

use gleaner::call::{Content, ToolCall};

use super::*;

/// Any reply whose calls have objects for arguments, in odd spacing, if they are to be `sound`.
fn replies() -> impl Strategy<Value = (Vec<Event>, bool)> {
    (events(), any::<bool>()).prop_map(|(events, sound)| {
        let mut begun = Vec::new();
        let mut made = Vec::new();
        for event in events {
            let ends = matches!(event, Event::Finish(_));
            match event {
                Event::ToolArguments { index, fragment } if sound && begun[index as usize] => {
                    let escaped = String::from_utf8(fragment.inner().to_vec()).unwrap();
                    made.push(Event::ToolArguments { index, fragment: Text::new(&escaped) });
                    continue;
                }
                Event::ToolStart { index, ref tool } => {
                    let wrapped = sound && tool.kind == ToolKind::Function;
                    begun.push(wrapped);
                    made.push(event);
                    if wrapped {
                        made.push(Event::ToolArguments { index, fragment: Text::new("{ \"k\" :\"") });
                    }
                    continue;
                }
                _ if ends => made.extend(
                    (0..)
                        .zip(&begun)
                        .filter(|(_, wrapped)| **wrapped)
                        .map(|(index, _)| Event::ToolArguments { index, fragment: Text::new("\"\n}") }),
                ),
                _ => {}
            }
            made.push(event);
        }
        (made, sound)
    })
}

fn chunks(target: &str, events: &[Event]) -> (String, String, Value, Reply) {
    let wire = wire::named("gemini").unwrap();
    let config = json!({ "thinkingConfig": { "includeThoughts": true } });
    let body = json!({ "contents": [{ "parts": [{ "text": "go" }] }], "generationConfig": config });
    let call = wire.parse(Target::read(target), &Bytes::from(body.to_string())).unwrap().remove(0);
    let head = || ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    let (mut live, mut late, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut encoder = wire.encoder(&call, head());
    let mut fold = Fold::default();
    encoder.begin(&mut live);
    for event in events {
        fold.push(event);
        encoder.event(event, &mut live);
        encoder.ping(&mut live);
    }
    let reply = fold.reply();
    encoder.finish(&reply, &mut late);
    encoder.close(reply.usage.as_ref(), &mut late);
    wire.encoder(&call, head()).whole(std::slice::from_ref(&reply), &mut whole);
    (String::from_utf8(live).unwrap(), String::from_utf8(late).unwrap(), serde_json::from_slice(&whole).unwrap(), reply)
}

fn read(chunks: &[Value]) -> Seen {
    let mut reply = Seen { text: String::new(), reasoning: String::new(), tools: vec![], finish: String::new(), total: None };
    for chunk in chunks {
        assert_eq!(reply.finish, "", "nothing follows the end");
        let candidate = &chunk["candidates"][0];
        for part in parts(chunk) {
            let text = string(&part["text"]);
            if part["thought"] == true {
                reply.reasoning += &text;
            } else {
                reply.text += &text;
            }
            if let Some(call) = part.get("functionCall") {
                reply.tools.push((false, string(&call["id"]), string(&call["name"]), call["args"].to_string()));
            }
        }
        reply.finish = string(&candidate["finishReason"]);
        reply.total = chunk["usageMetadata"]["totalTokenCount"].as_u64();
    }
    reply
}

fn parts(chunk: &Value) -> &[Value] {
    let parts = chunk["candidates"][0]["content"]["parts"].as_array().unwrap();
    assert!(!parts.is_empty(), "a chat drops a turn that has such a chunk");
    parts
}

/// What a client is to see: arguments as values, and no calls if one is malformed.
fn expected(reply: &Reply) -> Seen {
    let value = |call: &ToolCall| match (call.kind, call.arguments.decode()) {
        (ToolKind::Custom, input) => Some(json!({ "input": input })),
        (_, text) if text.trim().is_empty() => Some(json!({})),
        (_, text) => serde_json::from_str(&text).ok().filter(Value::is_object),
    };
    let values: Option<Vec<Value>> = reply.tool_calls.iter().map(value).collect();
    let finish = if values.is_some() { "STOP" } else { "MALFORMED_FUNCTION_CALL" };
    let mut seen = seen(reply, finish.to_owned());
    seen.tools.truncate(values.as_ref().map_or(0, Vec::len));
    for ((custom, _, _, arguments), value) in seen.tools.iter_mut().zip(values.unwrap_or_default()) {
        (*custom, *arguments) = (false, value.to_string());
    }
    seen
}

/// The reply's message as a later request gives it back, its contents as they came but for thoughts, perhaps.
fn echoed(chunks: &[Value], thoughts: bool) -> Message {
    let wire = wire::named("gemini").unwrap();
    let contents = chunks.iter().map(|chunk| {
        let kept = parts(chunk).iter().filter(|part| thoughts || part["thought"] != true);
        json!({ "role": "model", "parts": kept.collect::<Vec<_>>() })
    });
    let body = json!({ "contents": contents.collect::<Vec<_>>() });
    let target = Target::read("/models/m:generateContent");
    let mut messages = wire.parse(target, &Bytes::from(body.to_string())).unwrap().remove(0).messages;
    assert_eq!(messages.len(), 1);
    messages.pop().unwrap()
}

proptest! {
    #[test]
    fn chunks_say_what_the_reply_says((events, sound) in replies()) {
        let (live, held, whole, reply) = chunks("/models/m:streamGenerateContent?alt=sse", &events);
        prop_assert!(!live.contains("finishReason") && !live.contains("functionCall"));
        let stream = data(&format!("{live}{held}"));
        prop_assert_eq!(&read(&stream), &expected(&reply));
        prop_assert_eq!(&read(std::slice::from_ref(&whole)), &expected(&reply));
        let (live, held, _, _) = chunks("/models/m:streamGenerateContent", &events);
        let array: Vec<Value> = serde_json::from_str(&format!("{live}{held}")).unwrap();
        prop_assert_eq!(&array[1..], &stream[..]);
        if sound {
            for chunks in [stream, vec![whole]] {
                for thoughts in [true, false] {
                    let message = echoed(&chunks, thoughts);
                    let reasoning = message.reasoning.as_ref().map(|text| text.decode().into_owned());
                    prop_assert_eq!(reasoning.unwrap_or_default(), seen(&reply, String::new()).reasoning);
                    let text = match &message.content {
                        Content::Text(text) => text.decode().into_owned(),
                        _ => String::new(),
                    };
                    prop_assert_eq!(text, seen(&reply, String::new()).text);
                    for (back, call) in message.tool_calls.iter().zip(&reply.tool_calls) {
                        let sampled = match call.kind {
                            ToolKind::Function => call.arguments.decode().into_owned(),
                            ToolKind::Custom => json!({ "input": call.arguments.decode() }).to_string(),
                        };
                        prop_assert_eq!(&*back.arguments.decode(), sampled.trim());
                        prop_assert_eq!((&back.id, &back.name), (&call.id, &call.name));
                    }
                    prop_assert_eq!(message.tool_calls.len(), reply.tool_calls.len());
                }
            }
        }
    }
}
