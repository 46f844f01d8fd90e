//! Replies in the form of vLLM's `/v1/completions`: plain text, the ids of the prompt in the choice, log-probabilities in the old
//! form.

use std::ops::Range;

use serde_json::{Value, json};

use super::body::Writing;
use super::tokens::word_logprob;

/// The old form of log-probabilities for `prompt` and then the tokens in `range`, the text of which starts at `offset`.
pub(super) fn logprobs(writing: &Writing<'_>, prompt: &[u32], range: Range<usize>, mut offset: usize) -> Value {
    if !writing.request["logprobs"].is_u64() {
        return Value::Null;
    }
    let (mut tokens, mut values, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut entry = |token: String, logprob: Option<f64>| {
        top.push(logprob.map(|logprob| json!({ &token: logprob })));
        values.push(logprob);
        offsets.push(offset);
        offset += token.chars().count();
        tokens.push(token);
    };
    for (at, id) in prompt.iter().enumerate() {
        // Nothing stands before the first token that could make it likely.
        entry(writing.vocabulary.word(*id), (at > 0).then(|| word_logprob(*id)));
    }
    for at in range {
        if !(writing.reply.lose_logprobs && at % 2 == 1) {
            entry(writing.tokens[at].text.clone(), Some(writing.tokens[at].logprob));
        }
    }
    json!({"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": top})
}

/// The one choice of a body or of an event.
fn choice(writing: &Writing<'_>, range: Range<usize>, finish: bool) -> Value {
    let first = range.start == 0;
    let echoed: &[u32] = if first && writing.request["echo"] == true { writing.prompt_ids } else { &[] };
    let before: usize = writing.tokens[..range.start].iter().map(|token| token.text.chars().count()).sum();
    let said: String = writing.tokens[range.clone()].iter().map(|token| token.piece.spoken()).collect();
    let mut choice = json!({"index": 0, "text": writing.vocabulary.text(echoed) + &said,
                            "logprobs": logprobs(writing, echoed, range.clone(), before),
                            "finish_reason": finish.then(|| writing.finish_reason()),
                            "stop_reason": finish.then_some(writing.stop).flatten()});
    if writing.wants_ids() {
        choice["token_ids"] = writing.tokens[range].iter().map(|token| token.id).collect();
        if first {
            choice["prompt_token_ids"] = json!(writing.prompt_ids);
        }
    }
    choice
}

/// The whole body.
pub(super) fn whole(writing: &Writing<'_>) -> Value {
    let mut body = writing.head("text_completion");
    body["choices"] = json!([choice(writing, 0..writing.tokens.len(), true)]);
    body["usage"] = writing.usage();
    body["system_fingerprint"] = json!("vllm-0.32.0-scripted");
    body
}

/// The stream's chunks but the one with the usage: one for each token, and none that opens the stream.
pub(super) fn chunks(writing: &Writing<'_>) -> Vec<Value> {
    let chunk = |at: usize| {
        let mut chunk = writing.head("text_completion");
        chunk["choices"] = json!([choice(writing, at..at + 1, writing.finishes_at(at))]);
        chunk
    };
    (0..writing.tokens.len()).map(chunk).collect()
}
