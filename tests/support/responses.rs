//! A reader of the Responses API that holds streams to the rules which the official clients need.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::client::Answer;

/// A request of one user message.
pub fn request(text: &str, stream: bool) -> Value {
    json!({"model": "any", "input": text, "stream": stream})
}

/// What a client sees of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// From the deltas of a stream, or from the body.
    pub text: String,
    /// The items that are done.
    pub items: Vec<Value>,
    /// The last event's type; `body` for a whole body.
    pub ended_by: String,
    /// The response object at the end.
    pub response: Value,
    pub error: Option<Value>,
}

impl Reply {
    /// The reply came whole.
    pub fn complete(&self) -> bool {
        matches!(self.ended_by.as_str(), "response.completed" | "body")
    }

    /// Reads a reply, streamed or not.
    pub async fn read(answer: &mut Answer) -> Self {
        if answer.head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let (events, whole) = answer.events().await;
            let events: Vec<Value> = events
                .into_iter()
                .filter(|(_, event)| event.data != "[DONE]")
                .map(|(_, event)| {
                    let data: Value = serde_json::from_str(&event.data).unwrap();
                    assert_eq!(event.event.as_deref(), data["type"].as_str(), "the event's name is not its type");
                    data
                })
                .collect();
            return Self::of_stream(&events, whole);
        }
        let Ok(bytes) = answer.bytes().await else { return Self::default() };
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        if answer.status() != 200 {
            return Self { error: Some(body), ..Self::default() };
        }
        assert_eq!((&body["object"], &body["status"]), (&json!("response"), &json!("completed")));
        let items = body["output"].as_array().unwrap().clone();
        Self { text: texts(&items), items, ended_by: "body".to_owned(), response: body, error: None }
    }

    fn of_stream(events: &[Value], whole: bool) -> Self {
        let mut reply = Self::default();
        let mut open: BTreeMap<u64, Value> = BTreeMap::new();
        let mut parts: BTreeMap<(u64, u64), String> = BTreeMap::new();
        let mut arguments: BTreeMap<u64, String> = BTreeMap::new();
        let mut added = 0;
        for (at, event) in events.iter().enumerate() {
            let kind = event["type"].as_str().unwrap();
            assert_eq!(event["sequence_number"], at, "sequence numbers rise by one from 0: {event}");
            assert!(reply.ended_by.is_empty(), "{kind} came after {}", reply.ended_by);
            assert_eq!(at == 0, kind == "response.created", "the first event, and only it, is response.created");
            let index = event["output_index"].as_u64();
            let part = index.zip(event["content_index"].as_u64());
            let delta = event["delta"].as_str().unwrap_or_default();
            match kind {
                "response.output_item.added" => {
                    assert_eq!(index, Some(added), "output_index has no gaps: {event}");
                    added += 1;
                    open.insert(index.unwrap(), event["item"].clone());
                }
                "response.content_part.added" => {
                    assert!(open.contains_key(&index.unwrap()), "a part of no item: {event}");
                    parts.insert(part.unwrap(), String::new());
                }
                "response.output_text.delta" => {
                    parts.get_mut(&part.unwrap()).unwrap_or_else(|| panic!("a delta of no part: {event}")).push_str(delta);
                    reply.text.push_str(delta);
                }
                "response.output_text.done" => assert_eq!(event["text"], parts[&part.unwrap()], "{event}"),
                "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                    assert!(open.contains_key(&index.unwrap()), "a delta of no item: {event}");
                    arguments.entry(index.unwrap()).or_default().push_str(delta);
                }
                "response.function_call_arguments.done" => {
                    assert_eq!(event["arguments"], arguments.get(&index.unwrap()).cloned().unwrap_or_default(), "{event}");
                }
                "response.output_item.done" => {
                    let item = open.remove(&index.unwrap()).unwrap_or_else(|| panic!("done and never added: {event}"));
                    for name in ["id", "type", "call_id"] {
                        assert_eq!(item.get(name), event["item"].get(name), "{name} changed: {event}");
                    }
                    reply.items.push(event["item"].clone());
                }
                "response.completed" | "response.incomplete" | "response.failed" => {
                    assert_eq!(event["response"]["id"], events[0]["response"]["id"]);
                    kind.clone_into(&mut reply.ended_by);
                    reply.response = event["response"].clone();
                }
                _ => {}
            }
        }
        if reply.complete() {
            assert!(whole, "the stream was cut after response.completed");
            assert!(open.is_empty(), "items that were never done: {open:?}");
            assert_eq!(reply.response["output"].as_array(), Some(&reply.items));
        }
        if reply.ended_by == "response.failed" {
            reply.error = Some(reply.response["error"].clone());
        }
        reply
    }

    /// The function calls: id of the call, name, arguments.
    pub fn calls(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let calls = self.items.iter().filter(|item| item["type"] == "function_call");
        calls.map(|item| (text(&item["call_id"]), text(&item["name"]), text(&item["arguments"]))).collect()
    }
}

/// The text of a reply's messages.
pub fn texts(items: &[Value]) -> String {
    let parts = items.iter().filter(|item| item["type"] == "message").flat_map(|item| item["content"].as_array().unwrap());
    parts.filter_map(|part| part["text"].as_str()).collect()
}
