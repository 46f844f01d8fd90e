//! What the model thinks of tokens that it is given (vLLM's `prompt_logprobs`): what it thought when it sampled them.

use serde_json::{Value, json};

use super::Seen;
use super::tokens::word_logprob;

/// The answer to a request for completions that asks for its prompt's log-probabilities, if it is one.
pub(super) fn answer(request: &Value, seen: &[Seen]) -> Option<Value> {
    request["prompt_logprobs"].as_u64()?;
    let ids: Vec<u32> = serde_json::from_value(request["prompt"].clone()).ok()?;
    let mut scores: Vec<f64> = ids.iter().map(|id| word_logprob(*id)).collect();
    for call in seen {
        let (start, sampled) = (call.prompt_ids.len(), call.ids());
        if ids.starts_with(&call.prompt_ids) && ids[start..].starts_with(&sampled) {
            scores[start..start + sampled.len()].copy_from_slice(&call.logprobs());
        }
    }
    let entries = ids.iter().zip(scores).enumerate().map(|(at, (id, logprob))| match at {
        0 => Value::Null,
        _ => json!({ id.to_string(): {"logprob": logprob, "rank": 1, "decoded_token": "x"} }),
    });
    let choice = json!({"index": 0, "text": "x", "logprobs": null, "finish_reason": "length", "stop_reason": null,
                        "prompt_logprobs": entries.collect::<Vec<_>>()});
    let usage = json!({"prompt_tokens": ids.len(), "total_tokens": ids.len() + 1, "completion_tokens": 1});
    Some(json!({"id": "cmpl-score", "object": "text_completion", "created": 1_700_000_000, "model": "scripted",
                "choices": [choice], "usage": usage}))
}
