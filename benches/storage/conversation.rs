//! A long conversation: a real harness's first request (`tests/fixtures/wire`), and turns of tool calls and results after it, as a model
//! server in vLLM's form answers them.
//!
//! `messages` is Claude Code's: its cache mark moves with each turn, and what goes up is written anew as chat completions. `chat` is
//! `OpenCode`'s: what goes up is a splice of what came in.

use bytes::Bytes;
use serde_json::{Value, json};

/// Which harness's conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Chat,
    Messages,
}

impl Wire {
    pub const ALL: [Self; 2] = [Self::Chat, Self::Messages];

    pub fn name(self) -> &'static str {
        if self == Self::Chat { "chat" } else { "messages" }
    }

    fn first(self) -> Value {
        let fixture = match self {
            Self::Chat => include_str!("../../tests/fixtures/wire/chat/real_opencode_1.json"),
            Self::Messages => include_str!("../../tests/fixtures/wire/messages/real_claude_code_1.json"),
        };
        serde_json::from_str::<Value>(fixture).unwrap()["request"].take()
    }
}

/// One call's bytes and tokens.
#[derive(Clone)]
pub struct Turn {
    pub wire: &'static str,
    pub request: Bytes,
    pub upstream: Bytes,
    pub response: Bytes,
    /// Bytes of the response that repeat the prompt's ids.
    pub repeated: usize,
    pub prompt_ids: Vec<u32>,
    pub completion_ids: Vec<u32>,
    pub logprobs: Vec<f64>,
}

/// A conversation of so many turns whose last request has about so many bytes. Of the same first request whatever the seed.
pub fn turns(wire: Wire, count: usize, size: usize, seed: u64) -> Vec<Turn> {
    let mut draw = Draw(seed);
    let mut request = wire.first();
    let each = (size - request.to_string().len()) / (count - 1);
    let mut ids: Vec<u32> = draw.ids(request.to_string().len() / 4);
    let mut turns = Vec::with_capacity(count);
    for turn in 0..count {
        let said = draw.words(60);
        let (completion_ids, logprobs) = (draw.ids(100), draw.logprobs(100));
        let (response, repeated) = stream(turn, &said, &ids, &completion_ids, &logprobs);
        let body = Bytes::from(request.to_string());
        let upstream = match wire {
            Wire::Chat => [br#"{"return_token_ids":true,"logprobs":true,"#, &body[1..]].concat().into(),
            Wire::Messages => as_chat(&request).to_string().into(),
        };
        let prompt_ids = ids.clone();
        ids.extend_from_slice(&completion_ids);
        ids.extend(draw.ids(each.saturating_sub(500) / 4));
        turns.push(Turn { wire: wire.name(), request: body, upstream, response, repeated, prompt_ids, completion_ids, logprobs });
        go_on(wire, &mut request, turn, &said, &draw.words(each / 6 - 100));
    }
    turns
}

/// Puts a tool call and its result at the end.
fn go_on(wire: Wire, request: &mut Value, turn: usize, said: &str, result: &str) {
    let id = format!("call_{turn:024x}");
    let messages = request["messages"].as_array_mut().unwrap();
    match wire {
        Wire::Chat => {
            let arguments = json!({"command": format!("sed -n {turn},200p src/lib.rs")}).to_string();
            messages.push(json!({"role": "assistant", "content": said, "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}}]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        Wire::Messages => {
            for message in messages.iter_mut() {
                for part in message["content"].as_array_mut().into_iter().flatten() {
                    part.as_object_mut().unwrap().remove("cache_control");
                }
            }
            messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": said},
                {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": format!("sed -n {turn},200p src/lib.rs")}}]}));
            messages.push(json!({"role": "user", "content": [{"tool_use_id": id, "type": "tool_result", "content": result,
                "is_error": false, "cache_control": {"type": "ephemeral"}}]}));
        }
    }
}

/// About what Gleaner makes of a request of Messages for the policy.
fn as_chat(request: &Value) -> Value {
    let text = |content: &Value| match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        content => content.as_str().unwrap_or_default().to_owned(),
    };
    let mut messages = vec![json!({"role": "system", "content": text(&request["system"])})];
    for message in request["messages"].as_array().unwrap() {
        let parts = message["content"].as_array().cloned().unwrap_or_default();
        let calls: Vec<Value> = parts
            .iter()
            .filter(|part| part["type"] == "tool_use")
            .map(|part| json!({"id": part["id"], "type": "function", "function": {"name": part["name"], "arguments": part["input"].to_string()}}))
            .collect();
        let results = parts.iter().filter(|part| part["type"] == "tool_result");
        let results: Vec<Value> = results
            .map(|part| json!({"role": "tool", "tool_call_id": part["tool_use_id"], "content": part["content"]}))
            .collect();
        if !results.is_empty() {
            messages.extend(results);
        } else if calls.is_empty() {
            messages.push(json!({"role": message["role"], "content": text(&message["content"])}));
        } else {
            messages.push(json!({"role": "assistant", "content": text(&message["content"]), "tool_calls": calls}));
        }
    }
    let tools = request["tools"].as_array().unwrap().iter().map(|tool| {
        json!({"type": "function", "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}})
    });
    json!({"model": "policy", "messages": messages, "tools": tools.collect::<Vec<_>>(), "stream": true,
        "stream_options": {"include_usage": true}, "return_token_ids": true, "logprobs": true})
}

/// A stream in vLLM's form, and how many of its bytes repeat the prompt's ids.
fn stream(turn: usize, said: &str, prompt: &[u32], ids: &[u32], logprobs: &[f64]) -> (Bytes, usize) {
    let (id, created) = (
        format!("chatcmpl-{:032x}", (turn as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
        1_764_000_000 + turn * 7,
    );
    let chunk = |choices: Value| json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": "policy", "choices": choices});
    let mut first =
        chunk(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]));
    first["prompt_token_ids"] = json!(prompt);
    let repeated = first["prompt_token_ids"].to_string().len();
    let mut text = format!("data: {first}\n\n");
    let words: Vec<&str> = said.split_inclusive(' ').collect();
    for (at, (token, logprob)) in ids.iter().zip(logprobs).enumerate() {
        let word = words.get(at).copied().unwrap_or("");
        let entry = json!({"token": word, "logprob": logprob, "bytes": word.as_bytes(), "top_logprobs": []});
        let delta =
            chunk(json!([{"index": 0, "delta": {"content": word}, "logprobs": {"content": [entry]}, "finish_reason": null,
            "token_ids": [token]}]));
        text.extend(["data: ", delta.to_string().as_str(), "\n\n"]);
    }
    text.push_str("data: [DONE]\n\n");
    (text.into(), repeated)
}

/// Draws that are the same each time.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number below `most`, small ones more often, as words and tokens come.
    fn skewed(&mut self, most: u64) -> u64 {
        let (a, b) = (self.next() % 1000, self.next() % 1000);
        most * a * b * b / 1_000_000_000
    }

    /// Text of so many words of about six letters, some of them lines of code.
    fn words(&mut self, count: usize) -> String {
        let mut text = String::new();
        for at in 0..count {
            let mut word = self.skewed(4000) + 27;
            while word > 0 {
                text.push(char::from(b'a' + u8::try_from(word % 26).unwrap()));
                word = word / 26 + if word > 26 { self.next() % 2 * 7 } else { 0 };
            }
            text.push_str(
                [" ", " ", " ", "_", "(", ") ", ";\n    "]
                    [if at % 5 == 0 { usize::try_from(self.next() % 7).unwrap() } else { 0 }],
            );
        }
        text
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| u32::try_from(self.skewed(150_000)).unwrap()).collect()
    }

    fn logprobs(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| f64::from(-(self.skewed(5_000_000) as f32) / 1e6)).collect()
    }
}
