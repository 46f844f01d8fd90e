//! What a prompt leaves of a window for its reply.

use std::future::Future;

use bytes::Bytes;
use serde::Deserialize;

use super::http::Http;
use super::llamacpp::Prompt;
use super::refusal;
use super::{NoAnswer, Prepared};

/// Tokens that a template may put around a call's content, beyond one for each byte of it.
const TEMPLATE: u64 = 1024;

/// The limit that a known prompt leaves, if the one that was prepared is more. Waits for the prompt's ids only where it could
/// be: a token is at least a byte.
pub(super) async fn left_by_prompt(prompt: &mut Prompt, prepared: &Prepared, window: Option<u64>) -> Option<u64> {
    let (limit, window) = (prepared.max_tokens_used?, window?);
    if limit + prepared.body.len() as u64 + TEMPLATE <= window {
        return None;
    }
    let length = prompt.answer().await?.ids.as_ref().ok()?.len() as u64;
    let left = window.saturating_sub(length);
    // A prompt that fills the window is refused by the server itself.
    (left > 0 && limit > left).then_some(left)
}

#[derive(Deserialize)]
struct Count {
    count: u64,
}

/// The limit to try after a server refused prompt and limit together: what the prompt leaves, or no limit, which servers take
/// as the same. `None` if the prompt alone is too long, or no limit was asked.
pub(super) async fn left_after(
    refused: &NoAnswer,
    sent: &Prepared,
    count: impl Future<Output = Option<u64>>,
) -> Option<Option<u64>> {
    let limit = sent.max_tokens_used?;
    let (window, prompt) = refusal::window_and_prompt(&refused.response)?;
    let prompt = match prompt {
        Some(prompt) => prompt,
        // It stopped counting where the limit began; vLLM counts whole prompts too.
        None => match count.await {
            Some(count) => count,
            // Without a limit a plain prompt gets sixteen tokens, which is not what was asked for.
            None => return sent.call.prompt.is_none().then_some(None),
        },
    };
    let left = window.saturating_sub(prompt);
    (left > 0 && left < limit).then_some(Some(left))
}

/// The length that vLLM's `/tokenize` counts; `None` if it does not count.
pub(super) async fn count(http: &Http, question: Vec<u8>) -> Option<u64> {
    match http.ask("/tokenize", Bytes::from(question)).await {
        Ok((200, answer)) => serde_json::from_slice::<Count>(&answer).ok().map(|count| count.count),
        _ => None,
    }
}

/// Says what became of a limit.
pub(super) fn note(asked: Option<u64>, used: Option<u64>, why: &str) -> String {
    let shown = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
    format!("max_tokens {} became {}: {why}", shown(asked), shown(used))
}
