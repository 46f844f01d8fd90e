//! A reply, written as chunks: server-sent events, or the elements of one JSON array.
//!
//! Clients run functions as soon as they are told of them, and take a chunk with a reason for the reply's end. So all calls stand in
//! that chunk, which waits for [`Encoder::finish`].

use std::io::Write;

use super::error;
use super::reply::{self, Ending};
use crate::call::{Event, Failure, Reply, Usage, Wants, quote};
use crate::wire::{Encoder, ReplyHead};

/// Writes one reply.
pub(super) struct GeminiEncoder {
    wants: Wants,
    index: u32,
    /// What a chunk begins with, up to its first part.
    head: Vec<u8>,
    /// `,"modelVersion":..}` of every chunk and body.
    foot: Vec<u8>,
    /// All that was thought, escaped.
    reasoning: Vec<u8>,
    /// How much of it the text's signature carries. Only the first text that follows a thought has one: clients join texts and keep
    /// the first one's, and one with each would make a long stream quadratic.
    signed: usize,
    /// It is one of several replies: their sum is told at the end, since clients take the last usage that comes.
    several: bool,
}

impl GeminiEncoder {
    pub(super) fn new(wants: Wants, several: bool, head: &ReplyHead) -> Self {
        let mut foot = b",\"modelVersion\":".to_vec();
        quote(&mut foot, &head.model);
        let _ = write!(foot, ",\"responseId\":\"{}\"}}", head.call_id.0.simple());
        let start: &[u8] = if wants.array { b",\n" } else { b"data: " };
        let head_bytes = [start, b"{\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":["].concat();
        Self { wants, index: head.choice, head: head_bytes, foot, reasoning: Vec::new(), signed: 0, several }
    }

    /// Writes a chunk around one part.
    fn chunk(&self, out: &mut Vec<u8>, part: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(&self.head);
        part(out);
        let _ = write!(out, "]}},\"index\":{}}}]", self.index);
        self.end(out);
    }

    /// Writes what a chunk ends with.
    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.foot);
        if !self.wants.array {
            out.extend_from_slice(b"\n\n");
        }
    }

    fn say(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let signature = if self.signed == 0 { reply::signed(&self.reasoning) } else { None };
        if signature.is_some() {
            self.signed = self.reasoning.len();
        }
        self.chunk(out, |out| reply::write_text(out, text, signature.as_deref()));
    }

    fn write_end(&self, out: &mut Vec<u8>, reply: &Reply, ending: &Ending<'_>) {
        let _ = write!(out, "]}},\"index\":{}", self.index);
        ending.write_reason(out);
        if self.wants.logprobs {
            reply::write_logprobs(out, &reply.extras);
        }
        out.push(b'}');
    }
}

impl Encoder for GeminiEncoder {
    fn content_type(&self) -> &'static str {
        if self.wants.array { "application/json" } else { "text/event-stream" }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.wants.array && self.index == 0 {
            // With a first element there, all others can have their comma before them, whichever of several replies they are of.
            out.push(b'[');
            let start = out.len();
            self.chunk(out, |out| reply::write_text(out, b"\"\"", None));
            out.drain(start..start + b",\n".len());
        }
    }

    fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Text(piece) | Event::Refusal(piece) if !piece.is_empty() => self.say(piece.literal(), out),
            Event::Reasoning(piece) if !piece.is_empty() => {
                self.reasoning.extend_from_slice(piece.inner());
                if self.wants.thoughts {
                    self.chunk(out, |out| reply::write_thought(out, piece));
                }
            }
            _ => {}
        }
    }

    fn ping(&mut self, out: &mut Vec<u8>) {
        // The Python SDK takes a comment for broken JSON; every client passes over an empty event.
        out.extend_from_slice(if self.wants.array { b"\n" } else { b"\n\n" });
    }

    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        let ending = Ending::of(reply);
        out.extend_from_slice(&self.head);
        ending.write_parts(out, &self.reasoning, self.signed < self.reasoning.len());
        self.write_end(out, reply, &ending);
        out.push(b']');
        if let Some(usage) = reply.usage.as_ref().filter(|_| !self.several) {
            reply::write_usage(out, usage);
        }
        self.end(out);
    }

    fn close(&mut self, usage: Option<&Usage>, out: &mut Vec<u8>) {
        if let Some(usage) = usage.filter(|_| self.several) {
            out.extend_from_slice(if self.wants.array { b",\n" } else { b"data: " });
            out.extend_from_slice(b"{\"candidates\":[]");
            reply::write_usage(out, usage);
            self.end(out);
        }
        if self.wants.array {
            out.extend_from_slice(b"]\n");
        }
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.wants.array { b",\n" } else { b"data: " });
        error::write(out, failure);
        out.extend_from_slice(if self.wants.array { b"]\n" } else { b"\n\n" });
    }

    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"candidates\":[");
        for (reply, index) in replies.iter().zip(0..) {
            self.index = index;
            out.extend_from_slice(if index > 0 { b",{" } else { b"{" });
            out.extend_from_slice(b"\"content\":{\"role\":\"model\",\"parts\":[");
            let ending = Ending::of(reply);
            let reasoning = reply.reasoning.as_ref().filter(|text| !text.is_empty());
            let inner = reasoning.map_or(&b""[..], |text| text.inner());
            let start = out.len();
            let comma = |out: &mut Vec<u8>| {
                if out.len() > start {
                    out.push(b',');
                }
            };
            if let (true, Some(reasoning)) = (self.wants.thoughts, reasoning) {
                reply::write_thought(out, reasoning);
            }
            let said = reply.text.iter().chain(&reply.refusal).filter(|text| !text.is_empty());
            let mut unsigned = true;
            for text in said {
                comma(out);
                let signature = if unsigned { reply::signed(inner) } else { None };
                unsigned = false;
                reply::write_text(out, text.literal(), signature.as_deref());
            }
            if ending.has_calls() || out.len() == start || unsigned && !inner.is_empty() {
                comma(out);
                ending.write_parts(out, inner, unsigned);
            }
            self.write_end(out, reply, &ending);
        }
        out.push(b']');
        if let Some(usage) = Usage::of_all(replies) {
            reply::write_usage(out, &usage);
        }
        out.extend_from_slice(&self.foot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Text;
    use crate::ids::CallId;

    fn encoder(wants: Wants, choice: u32) -> GeminiEncoder {
        let call_id = CallId(uuid::Uuid::from_u128(1));
        GeminiEncoder::new(wants, true, &ReplyHead { call_id, choice, created: 0, model: "m".to_owned() })
    }

    #[test]
    fn a_chunk_is_no_longer_for_what_came_before_it() {
        let mut encoder = encoder(Wants::default(), 0);
        let mut length = |events: usize| {
            let mut out = Vec::new();
            for _ in 0..events {
                encoder.event(&Event::Reasoning(Text::new("thought")), &mut out);
                encoder.event(&Event::Text(Text::new("said")), &mut out);
            }
            out.len()
        };
        length(1);
        assert_eq!(length(10_000), 10_000 * length(1));
    }

    #[test]
    fn several_replies_are_one_array_and_end_with_their_sum() {
        let wants = Wants { array: true, ..Wants::default() };
        let (mut first, mut second) = (encoder(wants, 0), encoder(wants, 1));
        let mut out = Vec::new();
        first.begin(&mut out);
        second.event(&Event::Text(Text::new("b")), &mut out);
        first.event(&Event::Text(Text::new("a")), &mut out);
        let usage = |completion_tokens| Usage { prompt_tokens: 2, completion_tokens, ..Usage::default() };
        let reply = |completion_tokens| Reply { usage: Some(usage(completion_tokens)), ..Reply::default() };
        second.finish(&reply(3), &mut out);
        first.finish(&reply(4), &mut out);
        first.ping(&mut out);
        first.close(Some(&usage(7)), &mut out);
        let chunks: Vec<serde_json::Value> = serde_json::from_slice(&out).unwrap();
        let seen: Vec<_> = chunks
            .iter()
            .map(|chunk| {
                let candidate = &chunk["candidates"][0];
                let text = candidate["content"]["parts"][0]["text"].as_str();
                (candidate["index"].as_u64(), text, chunk["usageMetadata"]["totalTokenCount"].as_u64())
            })
            .collect();
        let expected = [
            (Some(0), Some(""), None),
            (Some(1), Some("b"), None),
            (Some(0), Some("a"), None),
            (Some(1), Some(""), None),
            (Some(0), Some(""), None),
            (None, None, Some(9)),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn several_replies_are_one_body() {
        let reply = |text: &str| Reply { text: Some(Text::new(text)), ..Reply::default() };
        let mut out = Vec::new();
        encoder(Wants::default(), 0).whole(&[reply("a"), reply("b")], &mut out);
        let body: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let texts: Vec<_> =
            [0, 1].map(|at| (&body["candidates"][at]["index"], &body["candidates"][at]["content"]["parts"][0]["text"])).to_vec();
        assert_eq!(texts, [(&0.into(), &"a".into()), (&1.into(), &"b".into())]);
    }
}
