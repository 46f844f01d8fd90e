//! Messages: blocks put together as anthropic's SDKs do, and no tool's block ended before the record is committed, since Claude
//! Code runs it then.

use super::{Reader, Request, Seen, SeenTool, events, list, object, place, plain, seen};
use crate::call::{FinishReason, Reply};
use crate::json::{self, Json, Units};

pub(super) struct Messages;

impl Reader for Messages {
    fn wire(&self) -> &'static str {
        "messages"
    }

    fn requests(&self) -> &'static [Request] {
        &[(
            "/messages?beta=true",
            r#"{"model":"m","max_tokens":9,"stream":true,"stop_sequences":["END"],"messages":[{"role":"user","content":"go"}]}"#,
        )]
    }

    fn has_refusals(&self) -> bool {
        false
    }

    fn guesses_usage(&self) -> bool {
        true
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        let whole = seen.tools.iter().all(|tool| matches!(&tool.arguments, Json::String(text) if object(text).is_some()));
        let stopped = reply.stop_string.as_ref().is_some_and(|stop| plain(stop) == "END".into());
        seen.finish = match reply.finish {
            Some(FinishReason::ContentFilter) => "refusal",
            Some(FinishReason::Length) if seen.tools.is_empty() || !whole => "max_tokens",
            _ if !seen.tools.is_empty() => "tool_use",
            _ if reply.refusal.is_some() => "refusal",
            _ if stopped => "stop_sequence",
            _ => "end_turn",
        }
        .to_owned();
        let refusal = std::mem::take(&mut seen.refusal);
        seen.text.push(&refusal);
        for tool in &mut seen.tools {
            if let Json::String(text) = &tool.arguments {
                tool.arguments = input(text);
            }
        }
        seen
    }

    fn stream(&self, _request: Request, _choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen> {
        let mut reader = Stream::default();
        for (name, data) in events(live) {
            reader.event(&name, &json::ours(&data));
            let tool_ended = reader.blocks.iter().any(|block| block.kind == "tool_use" && block.ended);
            assert!(!tool_ended && reader.seen.finish.is_empty(), "an end leaves before the record is committed");
        }
        for (name, data) in events(held) {
            reader.event(&name, &json::ours(&data));
        }
        assert!(reader.stopped, "the stream ends with message_stop");
        vec![reader.finish()]
    }

    fn whole(&self, body: &[u8]) -> Vec<Seen> {
        let body = json::ours(body);
        assert_eq!((body.get("type").plain(), body.get("role").plain()), ("message".to_owned(), "assistant".to_owned()));
        let mut seen = Seen { finish: body.get("stop_reason").plain(), usage: usage(body.get("usage")), ..Seen::default() };
        sequence(&body);
        for block in list(body.get("content")) {
            match block.get("type").plain().as_str() {
                "text" => seen.text.push(&some(block.get("text"))),
                "thinking" => {
                    assert!(!block.get("signature").text().is_empty());
                    seen.reasoning.push(&some(block.get("thinking")));
                }
                "tool_use" => {
                    let input = block.get("input");
                    assert!(matches!(input, Json::Object(_)), "a tool's input is an object");
                    let invalid = input.get("INVALID_JSON");
                    let arguments = if *invalid == Json::Null { input.clone() } else { invalid.clone() };
                    seen.tools.push(tool(block, arguments));
                }
                other => panic!("unknown block {other}"),
            }
        }
        vec![seen]
    }
}

/// A tool's input as a client makes it of the pieces: an object, or a text that is none.
fn input(text: &Units) -> Json {
    if text.is_empty() { Json::Object(Vec::new()) } else { object(text).unwrap_or_else(|| Json::String(text.clone())) }
}

fn tool(block: &Json, arguments: Json) -> SeenTool {
    let (id, name) = (some(block.get("id")), block.get("name").text());
    SeenTool { custom: false, namespace: Units::default(), id, name, arguments }
}

/// Clients refuse empty texts, which can't be sent back.
fn some(text: &Json) -> Units {
    let text = text.text();
    assert!(!text.is_empty());
    text
}

fn sequence(end: &Json) {
    let is_stop = end.get("stop_reason").plain() == "stop_sequence";
    assert_eq!(*end.get("stop_sequence"), if is_stop { Json::String("END".into()) } else { Json::Null });
}

#[derive(Default)]
struct Stream {
    seen: Seen,
    started: bool,
    blocks: Vec<Block>,
    stopped: bool,
}

#[derive(Default)]
struct Block {
    kind: String,
    start: Option<Json>,
    text: Units,
    signed: bool,
    ended: bool,
}

impl Stream {
    fn event(&mut self, name: &str, event: &Json) {
        let kind = event.get("type").plain();
        assert_eq!(name, kind, "clients skip an event whose name is not its type");
        assert!(!self.stopped, "{kind} follows the end");
        assert_eq!(kind == "message_start", !self.started, "{kind}");
        let open = self.blocks.last().is_some_and(|block| !block.ended);
        match kind.as_str() {
            "message_start" => {
                self.started = true;
                let message = event.get("message");
                assert_eq!(*message.get("stop_reason"), Json::Null);
                assert!(message.at(&["usage", "input_tokens"]).number().is_some_and(|count| count > 0));
            }
            "ping" => {}
            "content_block_start" => {
                assert!(!open, "one block is open at a time");
                assert_eq!(place(event.get("index")), self.blocks.len());
                let block = event.get("content_block");
                let kind = block.get("type").plain();
                assert!(block.get("text").text().is_empty() && block.get("thinking").text().is_empty());
                self.blocks.push(Block { kind, start: Some(block.clone()), ..Block::default() });
            }
            "content_block_delta" => {
                assert!(open && place(event.get("index")) == self.blocks.len() - 1, "a delta of a block that is not open");
                let block = self.blocks.last_mut().expect("a block");
                let delta = event.get("delta");
                let kind = delta.get("type").plain();
                assert!(!block.signed, "nothing follows the signature");
                match (block.kind.as_str(), kind.as_str()) {
                    ("text", "text_delta") => block.text.push(&some(delta.get("text"))),
                    ("thinking", "thinking_delta") => block.text.push(&some(delta.get("thinking"))),
                    ("thinking", "signature_delta") => block.signed = !some(delta.get("signature")).is_empty(),
                    ("tool_use", "input_json_delta") => block.text.push(&delta.get("partial_json").text()),
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" => {
                assert!(open && place(event.get("index")) == self.blocks.len() - 1, "a block ends once");
                let block = self.blocks.last_mut().expect("a block");
                assert!(!block.text.is_empty(), "a block of nothing");
                assert_eq!(block.signed, block.kind == "thinking");
                block.ended = true;
            }
            "message_delta" => {
                assert!(!open);
                self.seen.finish = event.at(&["delta", "stop_reason"]).plain();
                sequence(event.get("delta"));
                self.seen.usage = usage(event.get("usage"));
            }
            "message_stop" => self.stopped = true,
            other => panic!("unknown event {other}"),
        }
    }

    fn finish(mut self) -> Seen {
        for block in self.blocks {
            match block.kind.as_str() {
                "text" => self.seen.text.push(&block.text),
                "thinking" => self.seen.reasoning.push(&block.text),
                _ => self.seen.tools.push(tool(&block.start.expect("a start"), input(&block.text))),
            }
        }
        self.seen
    }
}

fn usage(usage: &Json) -> Option<[u64; 4]> {
    let count = |names: &[&str]| usage.at(names).number().unwrap_or_default();
    let cached = count(&["cache_read_input_tokens"]);
    let prompt = usage.get("input_tokens").number()? + cached + count(&["cache_creation_input_tokens"]);
    Some([prompt, usage.get("output_tokens").number()?, cached, count(&["output_tokens_details", "thinking_tokens"])])
}
