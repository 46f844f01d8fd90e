//! Chat completions: deltas added up as openai-python does.

use super::{Reader, Request, Seen, SeenTool, events, list, place, seen};
use crate::call::Reply;
use crate::json::{self, Json, Units};

pub(super) struct Chat;

impl Reader for Chat {
    fn wire(&self) -> &'static str {
        "chat"
    }

    fn requests(&self) -> &'static [Request] {
        &[
            (
                "/chat/completions",
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"go"}]}"#,
            ),
            (
                "/chat/completions",
                r#"{"model":"m","n":3,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"go"}]}"#,
            ),
        ]
    }

    fn has_custom_tools(&self) -> bool {
        true
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        for tool in &mut seen.tools {
            if tool.arguments == Json::String(Units::default()) && !tool.custom {
                tool.arguments = Json::String("{}".into());
            }
        }
        seen
    }

    fn stream(&self, _request: Request, choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen> {
        let mut replies = vec![Seen::default(); choices];
        let mut roles = vec![String::new(); choices];
        let mut chunks: Vec<(bool, Vec<u8>)> = events(live).into_iter().map(|(_, data)| (true, data)).collect();
        chunks.extend(events(held).into_iter().map(|(_, data)| (false, data)));
        assert_eq!(chunks.pop().map(|(_, data)| data), Some(b"[DONE]".to_vec()), "the stream's last event");
        for (live, data) in chunks {
            let chunk = json::ours(&data);
            assert_eq!(chunk.get("object").plain(), "chat.completion.chunk");
            assert!(!chunk.get("id").plain().is_empty());
            assert!(!chunk.has("prompt_token_ids"), "nobody asked for ids");
            assert!(replies[0].usage.is_none(), "nothing follows the usage");
            replies[0].usage = usage(chunk.get("usage"));
            assert!(matches!(chunk.get("choices"), Json::List(_)), "every chunk has choices");
            for choice in chunk.get("choices").items() {
                let at = place(choice.get("index"));
                roles[at] += &choice.at(&["delta", "role"]).plain();
                add(&mut replies[at], choice);
                assert!(!live || replies[at].finish.is_empty(), "the end leaves before the record is committed");
            }
        }
        assert!(roles.iter().all(|role| role == "assistant"), "{roles:?}");
        replies
    }

    fn whole(&self, body: &[u8]) -> Vec<Seen> {
        let body = json::ours(body);
        assert_eq!(body.get("object").plain(), "chat.completion");
        assert!(!body.has("prompt_token_ids"), "nobody asked for ids");
        let mut replies = Vec::new();
        for choice in list(body.get("choices")) {
            assert_eq!(place(choice.get("index")), replies.len());
            let message = choice.get("message");
            assert_eq!(message.get("role").plain(), "assistant");
            assert_eq!(message.get("reasoning"), message.get("reasoning_content"));
            assert!(!choice.has("token_ids"), "nobody asked for ids");
            replies.push(Seen {
                text: message.get("content").text(),
                reasoning: message.get("reasoning").text(),
                refusal: message.get("refusal").text(),
                tools: list(message.get("tool_calls")).iter().map(tool).collect(),
                finish: choice.get("finish_reason").plain(),
                usage: None,
            });
        }
        replies[0].usage = usage(body.get("usage"));
        replies
    }
}

/// Adds a choice's delta to what it has said.
fn add(reply: &mut Seen, choice: &Json) {
    assert!(reply.finish.is_empty(), "nothing of the choice follows its end");
    assert!(!choice.has("token_ids"), "nobody asked for ids");
    reply.finish = choice.get("finish_reason").plain();
    let delta = choice.get("delta");
    reply.text.push(&delta.get("content").text());
    reply.refusal.push(&delta.get("refusal").text());
    reply.reasoning.push(&delta.get("reasoning_content").text());
    assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"));
    for piece in list(delta.get("tool_calls")) {
        let index = place(piece.get("index"));
        if index == reply.tools.len() {
            reply.tools.push(tool(piece));
            continue;
        }
        // Strings are joined by whoever adds up deltas, so these come once.
        assert!(!piece.has("id") && !piece.has("type"));
        let known = &mut reply.tools[index];
        let (inner, field) = if known.custom { ("custom", "input") } else { ("function", "arguments") };
        assert!(!piece.get(inner).has("name"));
        if let Json::String(arguments) = &mut known.arguments {
            arguments.push(&piece.get(inner).get(field).text());
        }
    }
}

fn tool(call: &Json) -> SeenTool {
    let custom = match call.get("type").plain().as_str() {
        "custom" => true,
        "function" => false,
        other => panic!("a tool call of type {other:?}"),
    };
    let (inner, field) = if custom { ("custom", "input") } else { ("function", "arguments") };
    let inner = call.get(inner);
    SeenTool {
        custom,
        namespace: Units::default(),
        id: call.get("id").text(),
        name: inner.get("name").text(),
        arguments: Json::String(inner.get(field).text()),
    }
}

fn usage(usage: &Json) -> Option<[u64; 4]> {
    let prompt = usage.get("prompt_tokens").number()?;
    let completion = usage.get("completion_tokens").number().expect("completion_tokens");
    assert_eq!(usage.get("total_tokens").number(), Some(prompt + completion));
    let cached = usage.at(&["prompt_tokens_details", "cached_tokens"]).number().unwrap_or_default();
    let reasoning = usage.at(&["completion_tokens_details", "reasoning_tokens"]).number().unwrap_or_default();
    Some([prompt, completion, cached, reasoning])
}
