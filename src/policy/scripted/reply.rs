//! A scripted reply in the bytes that vLLM would answer with, so that it is read, recorded and read again as a real server's is.

use bytes::Bytes;
use serde_json::{Value, json};

use super::tokens::{Piece, Token};

/// A reply that is to be written.
pub(super) struct Reply<'a> {
    /// Tells it apart from others.
    pub id: String,
    pub model: &'a str,
    pub prompt: &'a [u32],
    pub tokens: &'a [Token],
    /// Chat completions' name of why it ended.
    pub finish: &'static str,
    /// Token ids were asked for.
    pub with_ids: bool,
    /// Log-probabilities were.
    pub with_logprobs: bool,
}

impl Reply<'_> {
    /// The events of a stream: the prompt's ids, a chunk a token, the counts.
    pub(super) fn stream(&self) -> Vec<Bytes> {
        let mut head = self.chunk(&json!([self.choice(&json!({"role": "assistant", "content": ""}), &[], None)]));
        if self.with_ids {
            head["prompt_token_ids"] = json!(self.prompt);
        }
        let mut events = vec![head];
        for (at, token) in self.tokens.iter().enumerate() {
            let finish = (at + 1 == self.tokens.len()).then_some(self.finish);
            let choice = self.choice(&self.delta(token), std::slice::from_ref(token), finish);
            events.push(self.chunk(&json!([choice])));
        }
        let mut counts = self.chunk(&json!([]));
        counts["usage"] = self.usage();
        events.push(counts);
        let data = events.iter().map(|event| Bytes::from(format!("data: {event}\n\n")));
        data.chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    /// A whole body.
    pub(super) fn whole(&self) -> Bytes {
        let text = |wanted: fn(&Piece) -> Option<&str>| -> String {
            self.tokens.iter().filter_map(|token| wanted(&token.piece)).collect()
        };
        let content = text(|piece| if let Piece::Text(text) = piece { Some(text) } else { None });
        let reasoning = text(|piece| if let Piece::Reasoning(text) = piece { Some(text) } else { None });
        let arguments = text(|piece| if let Piece::Arguments(text) = piece { Some(text) } else { None });
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning"] = json!(reasoning);
        }
        let name = self.tokens.iter().find_map(|token| if let Piece::Call(name) = &token.piece { Some(name) } else { None });
        if let Some(name) = name {
            let function = json!({"name": name, "arguments": arguments});
            message["tool_calls"] = json!([{"id": self.call_id(), "type": "function", "function": function}]);
        }
        let mut choice = self.choice(&Value::Null, self.tokens, Some(self.finish));
        if let Some(fields) = choice.as_object_mut() {
            fields.remove("delta");
            fields.insert("message".to_owned(), message);
        }
        let mut body = self.chunk(&json!([choice]));
        body["object"] = json!("chat.completion");
        body["usage"] = self.usage();
        if self.with_ids {
            body["prompt_token_ids"] = json!(self.prompt);
        }
        body.to_string().into()
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({"id": self.id, "object": "chat.completion.chunk", "created": 0, "model": self.model, "choices": choices})
    }

    fn choice(&self, delta: &Value, tokens: &[Token], finish: Option<&str>) -> Value {
        let mut choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        if self.with_ids && !tokens.is_empty() {
            choice["token_ids"] = tokens.iter().map(|token| token.id).collect();
        }
        if self.with_logprobs && !tokens.is_empty() {
            let entry = |token: &Token| json!({"token": token.text, "logprob": token.logprob, "bytes": token.text.as_bytes(), "top_logprobs": []});
            choice["logprobs"] = json!({"content": tokens.iter().map(entry).collect::<Vec<_>>()});
        }
        choice
    }

    fn delta(&self, token: &Token) -> Value {
        let part = |function: Value| json!({"tool_calls": [{"index": 0, "function": function}]});
        match &token.piece {
            Piece::Reasoning(text) => json!({"reasoning": text}),
            Piece::Text(text) => json!({"content": text}),
            Piece::Call(name) => {
                let mut call = part(json!({"name": name, "arguments": ""}));
                call["tool_calls"][0]["id"] = json!(self.call_id());
                call["tool_calls"][0]["type"] = json!("function");
                call
            }
            Piece::Arguments(text) => part(json!({"arguments": text})),
            Piece::Hidden => json!({}),
        }
    }

    fn call_id(&self) -> String {
        format!("call_{}", self.id)
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt.len(), self.tokens.len());
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }
}
