//! Completions: texts joined, the prompt before them where it is asked for.

use super::{Reader, Request, Seen, events, list, place, plain, seen};
use crate::call::{FinishReason, Reply};
use crate::json::{self, Json};

pub(super) struct Completions;

impl Reader for Completions {
    fn wire(&self) -> &'static str {
        "completions"
    }

    fn requests(&self) -> &'static [Request] {
        &[
            ("/completions", r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"prompt":"go"}"#),
            ("/completions", r#"{"model":"m","n":3,"stream":true,"stream_options":{"include_usage":true},"prompt":"go"}"#),
        ]
    }

    fn has_tools(&self) -> bool {
        false
    }

    fn has_reasoning(&self) -> bool {
        false
    }

    fn has_refusals(&self) -> bool {
        false
    }

    fn echoes(&self) -> bool {
        true
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        let said = std::mem::replace(&mut seen.text, reply.prompt_text.as_ref().map(plain).unwrap_or_default());
        seen.text.push(&said);
        // It has no refusals, and no policy gives any here.
        seen.refusal = Default::default();
        seen.finish = match reply.finish {
            Some(FinishReason::Length) => "length",
            Some(FinishReason::ContentFilter) => "content_filter",
            _ => "stop",
        }
        .to_owned();
        seen.usage = seen.usage.map(|[prompt, completion, cached, _]| [prompt, completion, cached, 0]);
        seen
    }

    fn stream(&self, _request: Request, choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen> {
        let mut replies = vec![Seen::default(); choices];
        let mut chunks: Vec<(bool, Vec<u8>)> = events(live).into_iter().map(|(_, data)| (true, data)).collect();
        chunks.extend(events(held).into_iter().map(|(_, data)| (false, data)));
        assert_eq!(chunks.pop().map(|(_, data)| data), Some(b"[DONE]".to_vec()), "the stream's last event");
        for (live, data) in chunks {
            let chunk = json::ours(&data);
            assert_eq!(chunk.get("object").plain(), "text_completion");
            assert!(replies[0].usage.is_none(), "nothing follows the usage");
            replies[0].usage = usage(chunk.get("usage"));
            for choice in list(chunk.get("choices")) {
                let reply = &mut replies[place(choice.get("index"))];
                add(reply, choice);
                assert!(!live || reply.finish.is_empty(), "the end leaves before the record is committed");
            }
        }
        replies
    }

    fn whole(&self, body: &[u8]) -> Vec<Seen> {
        let body = json::ours(body);
        let mut replies = vec![Seen::default(); list(body.get("choices")).len()];
        for choice in list(body.get("choices")) {
            add(&mut replies[place(choice.get("index"))], choice);
        }
        replies[0].usage = usage(body.get("usage"));
        replies
    }
}

fn add(reply: &mut Seen, choice: &Json) {
    assert!(reply.finish.is_empty(), "nothing of the choice follows its end");
    assert!(!choice.has("token_ids") && !choice.has("prompt_token_ids"), "nobody asked for ids");
    reply.text.push(&choice.get("text").text());
    reply.finish = choice.get("finish_reason").plain();
}

fn usage(usage: &Json) -> Option<[u64; 4]> {
    let prompt = usage.get("prompt_tokens").number()?;
    let completion = usage.get("completion_tokens").number().expect("completion_tokens");
    assert_eq!(usage.get("total_tokens").number(), Some(prompt + completion));
    let cached = usage.at(&["prompt_tokens_details", "cached_tokens"]).number().unwrap_or_default();
    Some([prompt, completion, cached, 0])
}
