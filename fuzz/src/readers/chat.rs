//! Chat completions: deltas added up as openai-python does.

use super::{Reader, Seen, SeenTool, events, list, place, seen};
use crate::call::Reply;
use crate::json::{self, Json, Units};

pub(super) struct Chat;

impl Reader for Chat {
    fn wire(&self) -> &'static str {
        "chat"
    }

    fn request(&self) -> &'static str {
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"go"}]}"#
    }

    fn has_custom_tools(&self) -> bool {
        true
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        for tool in &mut seen.tools {
            if tool.arguments.is_empty() && !tool.custom {
                tool.arguments = "{}".into();
            }
        }
        seen
    }

    fn stream(&self, live: &[u8], held: &[u8]) -> Seen {
        let mut reply = Seen::default();
        let mut roles = String::new();
        let mut chunks: Vec<(bool, Vec<u8>)> = events(live).into_iter().map(|(_, data)| (true, data)).collect();
        chunks.extend(events(held).into_iter().map(|(_, data)| (false, data)));
        assert_eq!(chunks.pop().map(|(_, data)| data), Some(b"[DONE]".to_vec()), "the stream's last event");
        for (live, data) in chunks {
            let chunk = json::ours(&data);
            assert_eq!(chunk.get("object").plain(), "chat.completion.chunk");
            assert!(!chunk.get("id").plain().is_empty());
            assert!(!chunk.has("prompt_token_ids"), "nobody asked for ids");
            assert!(reply.usage.is_none(), "nothing follows the usage");
            reply.usage = usage(chunk.get("usage"));
            assert!(matches!(chunk.get("choices"), Json::List(_)), "every chunk has choices");
            for choice in chunk.get("choices").items() {
                assert_eq!(choice.get("index").number(), Some(0));
                assert!(reply.finish.is_empty(), "nothing of the choice follows its end");
                assert!(!choice.has("token_ids"), "nobody asked for ids");
                reply.finish = choice.get("finish_reason").plain();
                assert!(!live || reply.finish.is_empty(), "the end leaves before the record is committed");
                let delta = choice.get("delta");
                roles += &delta.get("role").plain();
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
                    known.arguments.push(&piece.get(inner).get(field).text());
                }
            }
        }
        assert_eq!(roles, "assistant");
        reply
    }

    fn whole(&self, body: &[u8]) -> Seen {
        let body = json::ours(body);
        assert_eq!(body.get("object").plain(), "chat.completion");
        let [choice] = body.get("choices").items() else { panic!("one choice") };
        let message = choice.get("message");
        assert_eq!(message.get("role").plain(), "assistant");
        assert_eq!(message.get("reasoning"), message.get("reasoning_content"));
        assert!(!choice.has("token_ids") && !body.has("prompt_token_ids"), "nobody asked for ids");
        Seen {
            text: message.get("content").text(),
            reasoning: message.get("reasoning").text(),
            refusal: message.get("refusal").text(),
            tools: list(message.get("tool_calls")).iter().map(tool).collect(),
            finish: choice.get("finish_reason").plain(),
            usage: usage(body.get("usage")),
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
        arguments: inner.get(field).text(),
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
