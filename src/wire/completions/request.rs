//! A request, read.

use bytes::Bytes;

use super::prompt;
use crate::call::{Call, Failure, Wants};
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields};
use crate::wire::notes::Notes;
use crate::wire::{openai_request, sampling};

const REQUEST: [&str; 23] = [
    "model",
    "prompt",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "n",
    "best_of",
    "echo",
    "logprobs",
    "suffix",
    "return_token_ids",
    "response_format",
    "prompt_embeds",
    "use_beam_search",
];
/// How many replies a request may ask for, to all its prompts together.
const MOST_CALLS: usize = 256;

/// Reads a request.
pub(super) fn parse(body: &Bytes) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let fields = fields::read_plain(body, &REQUEST)?;
    refuse(at, &fields)?;
    let prompt_at = &At::Field(at, "prompt");
    let prompts = prompt::read(body, prompt_at, fields.value("prompt").ok_or_else(|| prompt_at.invalid("is missing"))?)?;
    let n = fields.read(at, "n", COUNT)?.unwrap_or(1);
    let mut notes = Notes::default();
    if let Some(best_of) = fields.read::<u64>(at, "best_of", COUNT)? {
        if best_of != n {
            let what = "must be n: replies that are not given are not sampled; ask for more with n and choose";
            return Err(At::Field(at, "best_of").invalid(what));
        }
        notes.say("best_of was dropped: it is n");
    }
    let all = u64::try_from(prompts.len()).unwrap_or(u64::MAX).saturating_mul(n);
    if prompts.len() > 1 && all > MOST_CALLS as u64 {
        let what = format_args!("has {} prompts, which with n = {n} is more than {MOST_CALLS} replies", prompts.len());
        return Err(prompt_at.invalid(what));
    }
    let logprobs = fields.read(at, "logprobs", COUNT)?;
    let usage = openai_request::stream_options(at, &fields, &mut notes)?;
    let call = Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        sampling: sampling::read(at, &fields)?,
        max_tokens: fields.read(at, "max_tokens", COUNT)?,
        response_format: openai_request::format(at, &fields)?,
        wants: Wants {
            usage,
            logprobs: logprobs.is_some(),
            top_logprobs: logprobs,
            token_ids: fields.read(at, "return_token_ids", BOOLEAN)?.unwrap_or(false),
            prompt: fields.read(at, "echo", BOOLEAN)?.unwrap_or(false),
            ..Wants::default()
        },
        rest: fields.rest(at)?,
        notes: notes.list(),
        ..Call::new("completions")
    };
    let mut calls = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        calls.extend(Call { prompt: Some(prompt), ..call.clone() }.times(n, "n")?);
    }
    Ok(calls)
}

/// What is not served.
fn refuse(at: &At<'_>, fields: &Fields<'_, { REQUEST.len() }>) -> Result<(), Failure> {
    if fields.text(at, "suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(At::Field(at, "suffix").invalid("is not served: text is completed at its end only"));
    }
    if fields.value("prompt_embeds").is_some() {
        return Err(At::Field(at, "prompt_embeds").invalid("is not served: a prompt is text or token ids"));
    }
    if fields.read(at, "use_beam_search", BOOLEAN)?.unwrap_or(false) {
        return Err(At::Field(at, "use_beam_search").invalid("is not served: its replies are searched for, not sampled"));
    }
    Ok(())
}
