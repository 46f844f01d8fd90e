//! A request, read.

use bytes::Bytes;

use super::address::{Address, Verb};
use super::config;
use super::contents::{self, CONTENT, Contents};
use super::spelling::spelled;
use super::tools;
use crate::call::{Call, Failure, Wants};
use crate::wire::fields::{self, At};
use crate::wire::notes::Notes;

const REQUEST: [&str; 17] = [
    "systemInstruction",
    "system_instruction",
    "tools",
    "toolConfig",
    "tool_config",
    "generationConfig",
    "generation_config",
    "cachedContent",
    "cached_content",
    "generateContentRequest",
    "generate_content_request",
    // What follows is about the service, which no policy has.
    "model",
    "safetySettings",
    "safety_settings",
    "labels",
    "store",
    "serviceTier",
];

/// Reads a request: one call for each candidate that it asks for.
pub(super) fn parse(address: &Address, body: &Bytes) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let mut contents = Contents::new(body);
    let fields = fields::read(body, &REQUEST, "contents", &CONTENT, &mut contents)?;
    let wrapped = spelled(&fields, ["generateContentRequest", "generate_content_request"]);
    if let (Verb::Count, Some(request)) = (address.verb, fields.value(wrapped)) {
        let request = body.slice_ref(request.get().as_bytes());
        return parse(address, &request).map_err(|failure| within(wrapped, failure));
    }
    let cached = spelled(&fields, ["cachedContent", "cached_content"]);
    if fields.string(at, cached)?.is_some_and(|name| !name.is_empty()) {
        return Err(At::Field(at, cached).invalid("is not served: nothing is kept between requests; send the whole conversation"));
    }
    let mut notes = Notes::default();
    for (name, value) in fields.rest(at)? {
        if value.as_bytes() != b"null" {
            notes.say(format!("passed over {}", name.decode()));
        }
    }
    let system = spelled(&fields, ["systemInstruction", "system_instruction"]);
    let system = match fields.value(system) {
        Some(value) => contents::read_system(body, &At::Field(at, system), value, &mut notes)?,
        None => None,
    };
    let mut offered = tools::read(at, &fields, &mut notes)?;
    let tool_choice = tools::read_choice(at, &fields, &mut offered)?;
    let config = config::read(at, &fields, spelled(&fields, ["generationConfig", "generation_config"]), &mut notes)?;
    let messages = contents.messages(system, &mut notes)?;
    let stream = address.verb == Verb::Stream;
    let call = Call {
        model: address.model.clone(),
        stream,
        messages,
        // Chat servers refuse to be told how to call tools where there are none.
        tool_choice: tool_choice.filter(|_| !offered.is_empty()),
        tools: offered,
        sampling: config.sampling,
        max_tokens: config.max_tokens,
        reasoning_effort: config.effort,
        response_format: config.format,
        wants: Wants {
            usage: true,
            logprobs: config.logprobs,
            top_logprobs: config.top_logprobs,
            array: stream && !address.events,
            thoughts: config.thoughts,
            ..Wants::default()
        },
        notes: notes.list(),
        ..Call::new("gemini")
    };
    call.times(config.candidates, "generationConfig.candidateCount")
}

/// A failure inside a request that stands in another.
fn within(outer: &str, failure: Failure) -> Failure {
    let Some(field) = &failure.param else { return failure };
    Failure { param: Some(format!("{outer}.{field}")), message: format!("{outer}.{}", failure.message), ..failure }
}
