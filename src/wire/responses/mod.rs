//! Responses, as Codex and the official SDKs speak it.

mod content;
mod items;
mod reply;
mod request;
mod stream;
mod tools;
mod turns;

use bytes::Bytes;

use super::{Encoder, ReplyHead, Target, Wire, openai_error};
use crate::call::{Call, Failure};

pub(super) struct Responses;

impl Wire for Responses {
    fn name(&self) -> &'static str {
        "responses"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/responses"]
    }

    fn parse(&self, _target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(body)
    }

    fn encoder(&self, _call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::ResponsesEncoder::new(&head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        let mut body = Vec::new();
        openai_error::write(&mut body, failure);
        body
    }
}
