//! Completions of prompts that are no conversations, in the API's oldest form.

mod logprobs;
mod prompt;
mod reply;
mod request;
mod stream;

use bytes::Bytes;

use super::{Encoder, ReplyHead, Target, Wire, openai_error};
use crate::call::{Call, Failure};

pub(super) struct Completions;

impl Wire for Completions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/completions"]
    }

    fn parse(&self, _target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(body)
    }

    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::CompletionsEncoder::new(call, &head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        let mut body = Vec::new();
        openai_error::write(&mut body, failure);
        body
    }
}
