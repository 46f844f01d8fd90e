//! Replies in vLLM's form: whole bodies and streams of events.

use serde_json::{Value, json};

use super::completions;
use super::script::{Fault, Reply};
use super::tokens::{Piece, Token};
use super::vocabulary::Vocabulary;

/// One reply that is to be written.
pub struct Writing<'a> {
    pub request: &'a Value,
    pub reply: &'a Reply,
    pub number: usize,
    pub model: &'a str,
    pub prompt_ids: &'a [u32],
    pub tokens: &'a [Token],
    /// The limit of tokens was met.
    pub cut_short: bool,
    /// The stop string that was hit.
    pub stop: Option<&'a str>,
    /// `/v1/completions`, not chat.
    pub plain: bool,
    pub vocabulary: &'a Vocabulary,
}

impl Writing<'_> {
    pub(super) fn wants_ids(&self) -> bool {
        self.request["return_token_ids"] == true
    }

    pub(super) fn finish_reason(&self) -> &str {
        match &self.reply.finish {
            Some(finish) => finish,
            None if self.stop.is_some() => "stop",
            None if self.cut_short => "length",
            None if !self.reply.tool_calls.is_empty() && !self.plain => "tool_calls",
            None => "stop",
        }
    }

    fn reasoning_field(&self) -> &str {
        self.reply.reasoning_field.as_deref().unwrap_or("reasoning")
    }

    /// Whether the event of this token says that the reply has ended.
    pub(super) fn finishes_at(&self, at: usize) -> bool {
        at + 1 == self.tokens.len() && !matches!(self.reply.fault, Some(Fault::NoFinish))
    }

    pub(super) fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_ids.len(), self.tokens.len());
        json!({"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
               "prompt_tokens_details": null})
    }

    fn entry(&self, at: usize) -> Option<Value> {
        if self.request["logprobs"] != true || (self.reply.lose_logprobs && at % 2 == 1) {
            return None;
        }
        let Token { text, logprob, .. } = &self.tokens[at];
        Some(json!({"token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": []}))
    }

    fn logprobs(&self, range: std::ops::Range<usize>) -> Value {
        if self.plain {
            let before = self.tokens[..range.start].iter().map(|token| token.text.chars().count()).sum();
            return completions::logprobs(self, &[], range, before);
        }
        let entries: Vec<Value> = range.filter_map(|at| self.entry(at)).collect();
        if self.request["logprobs"] == true && !entries.is_empty() { json!({ "content": entries }) } else { Value::Null }
    }

    pub(super) fn head(&self, object: &str) -> Value {
        let prefix = if self.plain { "cmpl" } else { "chatcmpl" };
        json!({"id": format!("{prefix}-{}", self.number), "object": object, "created": 1_700_000_000, "model": self.model})
    }

    /// The whole body.
    pub fn whole(&self) -> Vec<u8> {
        if self.plain {
            return serde_json::to_vec(&completions::whole(self)).unwrap();
        }
        let (mut text, mut reasoning, mut refusal, mut calls) =
            (None::<String>, None::<String>, None::<String>, Vec::<Value>::new());
        for token in self.tokens {
            match &token.piece {
                Piece::Text(piece) => text.get_or_insert_default().push_str(piece),
                Piece::Reasoning(piece) => reasoning.get_or_insert_default().push_str(piece),
                Piece::Refusal(piece) => refusal.get_or_insert_default().push_str(piece),
                Piece::ToolStart { id, name, .. } => {
                    calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": ""}}));
                }
                Piece::ToolArguments { index, fragment } => {
                    let old = calls[*index]["function"]["arguments"].as_str().unwrap().to_owned();
                    calls[*index]["function"]["arguments"] = json!(old + fragment);
                }
                Piece::Hidden | Piece::End => {}
            }
        }
        let mut message = json!({"role": "assistant", "content": text, "refusal": refusal, "tool_calls": calls});
        message[self.reasoning_field()] = json!(reasoning);
        let mut choice = json!({"index": 0, "message": message, "logprobs": self.logprobs(0..self.tokens.len()),
                                "finish_reason": self.finish_reason(), "stop_reason": self.stop});
        let mut body = self.head("chat.completion");
        if self.wants_ids() {
            choice["token_ids"] = self.tokens.iter().map(|token| token.id).collect();
            body["prompt_token_ids"] = json!(self.prompt_ids);
        }
        body["choices"] = json!([choice]);
        body["usage"] = self.usage();
        body["system_fingerprint"] = json!("vllm-0.32.0-scripted");
        serde_json::to_vec(&body).unwrap()
    }

    fn delta(&self, piece: &Piece) -> Value {
        match piece {
            Piece::Text(text) => json!({ "content": text }),
            Piece::Reasoning(text) => json!({ self.reasoning_field(): text }),
            Piece::Refusal(text) => json!({ "refusal": text }),
            Piece::ToolStart { index, id, name } => json!({"tool_calls": [
                {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
            Piece::ToolArguments { index, fragment } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
            }
            Piece::Hidden | Piece::End => json!({ "content": "" }),
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head(if self.plain { "text_completion" } else { "chat.completion.chunk" });
        chunk["choices"] = choices;
        chunk
    }

    /// The stream's chunks, `[DONE]` not among them.
    fn chunks(&self) -> Vec<Value> {
        let mut chunks = if self.plain { completions::chunks(self) } else { self.chat_chunks() };
        if matches!(self.reply.fault, Some(Fault::FatLast)) && self.tokens.len() > 1 {
            self.fatten(&mut chunks);
        } else if self.request["stream_options"]["include_usage"] == true {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = self.usage();
            chunks.push(chunk);
        }
        chunks
    }

    fn chat_chunks(&self) -> Vec<Value> {
        let mut first = self.chunk(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                                            "finish_reason": null}]));
        if self.wants_ids() {
            first["prompt_token_ids"] = json!(self.prompt_ids);
        }
        let mut chunks = vec![first];
        for (at, token) in self.tokens.iter().enumerate() {
            let last = self.finishes_at(at);
            let finish = if last { json!(self.finish_reason()) } else { Value::Null };
            let mut choice = json!({"index": 0, "delta": self.delta(&token.piece), "logprobs": self.logprobs(at..at + 1),
                                    "finish_reason": finish});
            if last {
                choice["stop_reason"] = json!(self.stop);
            }
            let tool = matches!(token.piece, Piece::ToolStart { .. } | Piece::ToolArguments { .. });
            if self.wants_ids() && !(tool && self.reply.swallow_ids) {
                choice["token_ids"] = json!([token.id]);
            }
            chunks.push(self.chunk(json!([choice])));
        }
        chunks
    }

    /// Puts the last two tokens, the reason and the usage into one chunk.
    fn fatten(&self, chunks: &mut Vec<Value>) {
        let end = chunks.pop().unwrap();
        let fat = chunks.last_mut().unwrap();
        let count = self.tokens.len();
        let choice = &mut fat["choices"][0];
        choice["logprobs"] = self.logprobs(count - 2..count);
        choice["finish_reason"] = end["choices"][0]["finish_reason"].clone();
        if self.wants_ids() {
            choice["token_ids"] = json!([self.tokens[count - 2].id, self.tokens[count - 1].id]);
        }
        fat["usage"] = self.usage();
    }

    /// The stream, event by event, as bytes.
    pub fn stream(&self) -> Vec<Vec<u8>> {
        let fault = self.reply.fault.as_ref();
        let end = if matches!(fault, Some(Fault::Crlf)) { "\r\n" } else { "\n" };
        let mut frames: Vec<Vec<u8>> = Vec::new();
        for chunk in self.chunks() {
            let mut data = chunk.to_string().into_bytes();
            match fault {
                Some(Fault::LongLine { bytes }) if frames.len() == 1 => {
                    data = fill(&chunk, &"x".repeat(*bytes)).to_string().into_bytes();
                }
                Some(Fault::BadUtf8) if frames.len() == 2 => {
                    // The mark is one of our own, so that exactly one byte of the text becomes wrong.
                    let marked = fill(&chunk, "bad\u{1}byte ").to_string().replace("\\u0001", "\u{1}");
                    data = marked.into_bytes();
                    let at = data.iter().position(|byte| *byte == 1).unwrap();
                    data[at] = 0xff;
                }
                Some(Fault::Comments) => frames.push(format!(": a comment{end}{end}").into_bytes()),
                Some(Fault::EmptyChoices) if !frames.is_empty() => {
                    frames.push(format!("data: {}{end}{end}", self.chunk(json!([]))).into_bytes());
                }
                _ => {}
            }
            let mut frame = b"data: ".to_vec();
            frame.extend_from_slice(&data);
            if matches!(fault, Some(Fault::Comments)) {
                frame.extend_from_slice(b"\n: inside an event\nid: 7\nretry: 10");
            }
            frame.extend_from_slice(end.repeat(2).as_bytes());
            frames.push(frame);
        }
        if let Some(Fault::ErrorEvent { events }) = fault {
            frames.truncate(*events);
            let error = json!({"error": {"message": "the engine died", "type": "InternalServerError", "code": 500}});
            frames.push(format!("data: {error}\n\n").into_bytes());
        }
        if !matches!(fault, Some(Fault::NoDone | Fault::NoFinish)) {
            frames.push(format!("data: [DONE]{end}{end}").into_bytes());
        }
        if matches!(fault, Some(Fault::Bom)) {
            frames[0].splice(0..0, "\u{feff}".bytes());
        }
        frames
    }
}

fn fill(chunk: &Value, text: &str) -> Value {
    let mut chunk = chunk.clone();
    let choice = &mut chunk["choices"][0];
    if choice["delta"].is_object() {
        choice["delta"]["content"] = json!(text);
    } else {
        choice["text"] = json!(text);
    }
    chunk
}
