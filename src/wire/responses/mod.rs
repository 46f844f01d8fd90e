//! Responses, as Codex and the official SDKs speak it.

mod archive;
mod content;
mod earlier;
mod echo;
mod hosted;
mod items;
mod logprobs;
mod reply;
mod request;
mod sealed;
mod stream;
mod tools;
mod turns;

use bytes::Bytes;

use self::earlier::Earlier;
use super::{Archive, Encoder, ReplyHead, Target, Wire, openai_error};
use crate::call::{Call, Failure, FailureKind, Kept};
use crate::ids::CallId;

/// Where clients ask how many tokens a request would have.
const COUNT: &str = "/responses/input_tokens";

pub(super) struct Responses;

impl Wire for Responses {
    fn name(&self) -> &'static str {
        "responses"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/responses", COUNT]
    }

    fn parse(&self, _target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(body, None)
    }

    fn needs(&self, _target: Target<'_>, body: &Bytes) -> Vec<CallId> {
        earlier::needs(body)
    }

    fn resume(&self, _target: Target<'_>, body: &Bytes, earlier: &[&Kept]) -> Result<Vec<Call>, Failure> {
        request::parse(body, Some(Earlier(earlier)))
    }

    fn archive(&self) -> Option<&dyn Archive> {
        Some(self)
    }

    fn asks_count(&self, target: Target<'_>) -> bool {
        target.path == COUNT
    }

    fn count(&self, tokens: u64) -> Vec<u8> {
        format!("{{\"object\":\"response.input_tokens\",\"input_tokens\":{tokens}}}").into_bytes()
    }

    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::ResponsesEncoder::new(call, &head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        let mut body = Vec::new();
        match failure.kind {
            // Of responses and items the original says it so.
            FailureKind::NotFound => {
                let is_previous = failure.param.as_deref() == Some("previous_response_id");
                let code = is_previous.then_some("previous_response_not_found");
                openai_error::write_as(&mut body, failure, "invalid_request_error", code);
            }
            _ => openai_error::write(&mut body, failure),
        }
        body
    }
}
