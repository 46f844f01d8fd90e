//! A reader of chat completions that holds streams to the rules which the official clients need.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::client::Answer;

/// A request of one user message.
pub fn request(text: &str, stream: bool) -> Value {
    json!({"model": "any", "messages": [{"role": "user", "content": text}], "stream": stream})
}

/// What a client sees of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub text: String,
    pub reasoning: String,
    pub tools: Vec<Tool>,
    pub finish: Option<String>,
    pub usage: Option<Value>,
    /// `[DONE]` came, or the body was whole.
    pub complete: bool,
    pub error: Option<Value>,
}

/// One tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tool {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl Tool {
    /// The message's form of it.
    pub fn as_json(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }
}

impl Reply {
    /// Reads a reply, streamed or not, with the time at which its first text came.
    pub async fn read(answer: &mut Answer) -> Self {
        if answer.head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let (events, whole) = answer.events().await;
            let events: Vec<String> = events.into_iter().map(|(_, event)| event.data).collect();
            return Self::of_stream(&events, whole);
        }
        let Ok(bytes) = answer.bytes().await else { return Self::default() };
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        if answer.status() != 200 {
            return Self { error: Some(body), ..Self::default() };
        }
        Self::of_body(&body)
    }

    /// Reads the next piece of text of a stream and when it came.
    pub async fn next_text(answer: &mut Answer) -> Option<(Instant, String)> {
        while let Ok(Some(event)) = answer.event().await {
            let chunk: Value = serde_json::from_str(&event.data).ok()?;
            if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
                return Some((Instant::now(), text.to_owned()));
            }
        }
        None
    }

    fn of_body(body: &Value) -> Self {
        assert_eq!(body["object"], "chat.completion");
        assert_no_ids(body);
        let choice = &body["choices"][0];
        let message = &choice["message"];
        assert_eq!(message["role"], "assistant");
        let tools = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            Tool { id: text(&call["id"]), name: text(&call["function"]["name"]), arguments: text(&call["function"]["arguments"]) }
        });
        Self {
            text: message["content"].as_str().unwrap_or_default().to_owned(),
            reasoning: reasoning(message).unwrap_or_default().to_owned(),
            tools: tools.collect(),
            finish: choice["finish_reason"].as_str().map(str::to_owned),
            usage: Some(body["usage"].clone()),
            complete: true,
            error: None,
        }
    }

    fn of_stream(events: &[String], whole: bool) -> Self {
        let mut reply = Self::default();
        let mut tools: BTreeMap<u64, Tool> = BTreeMap::new();
        let mut heads = Vec::new();
        for (at, data) in events.iter().enumerate() {
            if data == "[DONE]" {
                assert_eq!(at + 1, events.len(), "something came after [DONE]");
                assert!(whole, "the stream was cut after [DONE]");
                assert!(reply.finish.is_some(), "[DONE] came without a finish_reason");
                reply.complete = true;
                break;
            }
            let chunk: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data}"));
            if let Some(error) = chunk.get("error") {
                assert_eq!(at + 1, events.len(), "something came after an error: {events:?}");
                assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
                reply.error = Some(chunk);
                break;
            }
            reply.chunk(&chunk, &mut tools, heads.is_empty());
            heads.push(["id", "object", "created", "model"].map(|name| chunk[name].clone()));
        }
        assert!(heads.windows(2).all(|pair| pair[0] == pair[1]), "heads differ: {heads:?}");
        assert!(heads.iter().all(|head| head[1] == "chat.completion.chunk" && head[0].is_string()), "{heads:?}");
        reply.tools = tools.into_values().collect();
        reply
    }

    fn chunk(&mut self, chunk: &Value, tools: &mut BTreeMap<u64, Tool>, first: bool) {
        assert_no_ids(chunk);
        let choices = chunk["choices"].as_array().unwrap_or_else(|| panic!("no choices in {chunk}"));
        if !chunk["usage"].is_null() {
            assert!(choices.is_empty(), "usage beside choices: {chunk}");
            self.usage = Some(chunk["usage"].clone());
        }
        let Some(choice) = choices.first() else { return };
        assert!(self.usage.is_none(), "a choice came after the usage: {chunk}");
        assert!(self.finish.is_none(), "a choice came after the finish_reason: {chunk}");
        let delta = &choice["delta"];
        assert_eq!(delta.get("role").is_some(), first, "role belongs into the first delta only: {chunk}");
        self.text.push_str(delta["content"].as_str().unwrap_or_default());
        self.reasoning.push_str(reasoning(delta).unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or_else(|| panic!("no index in {call}"));
            let new = !tools.contains_key(&index);
            assert!(!new || index == tools.len() as u64, "an index was passed over: {call}");
            for (name, value) in [("id", call.get("id")), ("type", call.get("type")), ("name", call["function"].get("name"))] {
                assert_eq!(
                    value.is_some_and(|value| !value.is_null()),
                    new,
                    "{name} belongs into a call's first delta only: {call}"
                );
            }
            let tool = tools.entry(index).or_default();
            tool.id.push_str(call["id"].as_str().unwrap_or_default());
            tool.name.push_str(call["function"]["name"].as_str().unwrap_or_default());
            tool.arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
    }
}

fn reasoning(of: &Value) -> Option<&str> {
    of["reasoning"].as_str().or_else(|| of["reasoning_content"].as_str())
}

/// A client that asked for no ids and log-probabilities must not see any.
fn assert_no_ids(body: &Value) {
    let text = body.to_string();
    for name in ["token_ids", "\"logprob\"", "weight_version"] {
        assert!(!text.contains(name), "{name} leaked to the client: {text}");
    }
}
