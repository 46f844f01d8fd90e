//! A reader of Gemini's API that holds streams to the rules which the official SDKs and the command line need.

use serde_json::{Value, json};

use super::client::Answer;

/// A request of one user message.
pub fn request(text: &str) -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": text}]}]})
}

/// The path of a model's method.
pub fn path(method: &str) -> String {
    format!("/v1beta/models/any-model:{method}")
}

/// What a client sees of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub text: String,
    pub thoughts: String,
    /// Id, name, arguments.
    pub calls: Vec<(String, String, Value)>,
    /// The contents as a chat of the SDKs keeps them: each chunk's own.
    pub contents: Vec<Value>,
    pub finish: Option<String>,
    pub usage: Value,
    pub error: Option<Value>,
    /// The body or the stream ended as it should.
    pub whole: bool,
}

impl Reply {
    /// The reply came whole.
    pub fn complete(&self) -> bool {
        self.whole && self.error.is_none() && self.finish.is_some()
    }

    /// Reads a reply: events, one array, or a body.
    pub async fn read(answer: &mut Answer) -> Self {
        let mut reply = Self::default();
        let chunks = if answer.head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let (events, whole) = answer.events().await;
            reply.whole = whole;
            events
                .into_iter()
                .map(|(_, event)| {
                    assert_eq!(event.event, None, "the API's events have no names");
                    serde_json::from_str(&event.data).unwrap()
                })
                .collect()
        } else {
            let Ok(bytes) = answer.bytes().await else { return reply };
            reply.whole = true;
            match serde_json::from_slice(&bytes).unwrap() {
                Value::Array(chunks) => chunks,
                body => vec![body],
            }
        };
        for chunk in chunks {
            reply.take(&chunk);
        }
        reply
    }

    fn take(&mut self, chunk: &Value) {
        assert!(self.finish.is_none() && self.error.is_none(), "a chunk came after the end: {chunk}");
        if chunk.get("error").is_some() {
            assert!(chunk.to_string().starts_with("{\"error\":"), "the Python SDK knows an error by its beginning: {chunk}");
            self.error = Some(chunk["error"].clone());
            return;
        }
        let candidate = &chunk["candidates"][0];
        assert_eq!((&candidate["index"], &candidate["content"]["role"]), (&json!(0), &json!("model")), "{chunk}");
        let parts = candidate["content"]["parts"].as_array().unwrap_or_else(|| panic!("chats drop a turn with {chunk}"));
        assert!(!parts.is_empty(), "chats drop a turn with {chunk}");
        for part in parts {
            let text = part["text"].as_str().unwrap_or_default();
            if part["thought"] == true {
                self.thoughts.push_str(text);
            } else {
                self.text.push_str(text);
            }
            if let Some(call) = part.get("functionCall") {
                assert!(call["args"].is_object(), "{chunk}");
                let text = |name: &str| call[name].as_str().unwrap().to_owned();
                self.calls.push((text("id"), text("name"), call["args"].clone()));
            }
        }
        let finish = candidate["finishReason"].as_str().map(str::to_owned);
        assert!(self.calls.is_empty() || finish.is_some(), "a call came before the reply's end: {chunk}");
        self.finish = finish;
        self.contents.push(candidate["content"].clone());
        if let Some(usage) = chunk.get("usageMetadata") {
            self.usage = usage.clone();
        }
        assert!(chunk["responseId"].is_string() && chunk["modelVersion"].is_string(), "{chunk}");
    }

    /// The reply as the command line gives it back: one content without thoughts, pieces of text joined to the first.
    pub fn given_back(&self) -> Value {
        let mut parts: Vec<Value> = Vec::new();
        for part in self.contents.iter().flat_map(|content| content["parts"].as_array().unwrap()) {
            if part["thought"] == true {
                continue;
            }
            match (parts.last_mut(), part["text"].as_str()) {
                (Some(last), Some(more)) if last["text"].is_string() => {
                    last["text"] = json!(last["text"].as_str().unwrap().to_owned() + more);
                }
                _ => parts.push(part.clone()),
            }
        }
        json!({"role": "model", "parts": parts})
    }
}
