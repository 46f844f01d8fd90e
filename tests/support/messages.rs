//! A reader of Anthropic's Messages that holds streams to the rules which the official clients need.

use serde_json::{Value, json};

use super::client::Answer;

/// A request of one user message.
pub fn request(text: &str, stream: bool) -> Value {
    json!({"model": "any", "max_tokens": 1000, "messages": [{"role": "user", "content": text}], "stream": stream})
}

/// What a client sees of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub id: String,
    /// The blocks that have ended, a tool's input read.
    pub content: Vec<Value>,
    pub stop_reason: Value,
    pub stop_sequence: Value,
    pub usage: Value,
    /// The usage that the stream began with; null for a whole body.
    pub first_usage: Value,
    /// The reply came whole.
    pub complete: bool,
    /// The error's body, from an event or a body.
    pub error: Option<Value>,
    pub pings: usize,
    /// The fragments of each tool's input, in the order of the blocks.
    pub fragments: Vec<Vec<String>>,
}

impl Reply {
    /// Reads a reply, streamed or not.
    pub async fn read(answer: &mut Answer) -> Self {
        if answer.head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let (events, whole) = answer.events().await;
            let mut reply = Self::default();
            let mut open = None;
            for (_, event) in events {
                let data: Value = serde_json::from_str(&event.data).unwrap();
                assert_eq!(event.event.as_deref(), data["type"].as_str(), "the event's name is not its type");
                reply.take(&data, &mut open);
            }
            assert!(whole || !reply.complete, "the stream was cut after message_stop");
            return reply;
        }
        let Ok(bytes) = answer.bytes().await else { return Self::default() };
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        if answer.status() != 200 {
            assert_eq!(body["type"], "error", "{body}");
            return Self { error: Some(body), ..Self::default() };
        }
        assert_eq!((&body["type"], &body["role"]), (&json!("message"), &json!("assistant")), "{body}");
        Self {
            id: body["id"].as_str().unwrap().to_owned(),
            content: body["content"].as_array().unwrap().clone(),
            stop_reason: body["stop_reason"].clone(),
            stop_sequence: body["stop_sequence"].clone(),
            usage: body["usage"].clone(),
            complete: true,
            ..Self::default()
        }
    }

    fn take(&mut self, event: &Value, open: &mut Option<Value>) {
        assert!(!self.complete && self.error.is_none(), "{event} came after the end");
        let kind = event["type"].as_str().unwrap();
        assert_eq!(kind == "message_start", self.id.is_empty() && kind != "error", "message_start comes first and once: {event}");
        match kind {
            "message_start" => {
                let message = &event["message"];
                message["id"].as_str().unwrap().clone_into(&mut self.id);
                assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
                self.first_usage = message["usage"].clone();
                assert!(self.first_usage["input_tokens"].as_u64().unwrap() > 0, "{event}");
            }
            "ping" => self.pings += 1,
            "content_block_start" => {
                assert!(open.is_none(), "a block began inside another: {event}");
                assert_eq!(event["index"], self.content.len(), "indexes have no gaps: {event}");
                let block = event["content_block"].clone();
                if block["type"] == "tool_use" {
                    assert_eq!(block["input"], json!({}));
                    self.fragments.push(Vec::new());
                }
                *open = Some(block);
            }
            "content_block_delta" => {
                let block = open.as_mut().unwrap_or_else(|| panic!("a delta of no block: {event}"));
                assert_eq!(event["index"], self.content.len(), "{event}");
                let delta = &event["delta"];
                let field = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        self.fragments.last_mut().unwrap().push(delta["partial_json"].as_str().unwrap().to_owned());
                        return;
                    }
                    other => panic!("unknown delta {other}"),
                };
                let old = block[field].as_str().unwrap_or_else(|| panic!("a {field} of {block}"));
                block[field] = json!(old.to_owned() + delta[field].as_str().unwrap());
            }
            "content_block_stop" => {
                let mut block = open.take().unwrap_or_else(|| panic!("the end of no block: {event}"));
                assert_eq!(event["index"], self.content.len(), "{event}");
                if block["type"] == "tool_use" {
                    let input = self.fragments.last().unwrap().concat();
                    block["input"] = serde_json::from_str(&input).unwrap_or(Value::String(input));
                }
                self.content.push(block);
            }
            "message_delta" => {
                assert!(open.is_none(), "the message ended inside a block");
                self.stop_reason = event["delta"]["stop_reason"].clone();
                self.stop_sequence = event["delta"]["stop_sequence"].clone();
                self.usage = event["usage"].clone();
            }
            "message_stop" => {
                assert!(self.stop_reason.is_string(), "message_stop without a reason");
                self.complete = true;
            }
            "error" => self.error = Some(event.clone()),
            other => panic!("unknown event {other}"),
        }
    }

    /// The blocks' types.
    pub fn kinds(&self) -> Vec<&str> {
        self.content.iter().map(|block| block["type"].as_str().unwrap()).collect()
    }

    /// The text of all text blocks.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(|block| block["text"].as_str()).collect()
    }

    /// The tool calls: id, name, input.
    pub fn calls(&self) -> Vec<(String, String, Value)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let calls = self.content.iter().filter(|block| block["type"] == "tool_use");
        calls.map(|block| (text(&block["id"]), text(&block["name"]), block["input"].clone())).collect()
    }
}
