//! Chat completions.

mod calls;
mod history;
mod message;
mod reply;
mod request;
mod stream;
mod tools;

use bytes::Bytes;

use super::{Encoder, ReplyHead, Target, Wire, openai_error};
use crate::call::{Call, Failure};

pub(super) struct Chat;

impl Wire for Chat {
    fn name(&self) -> &'static str {
        "chat"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/chat/completions"]
    }

    fn parse(&self, _target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(body)
    }

    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::ChatEncoder::new(call, &head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        let mut body = Vec::new();
        openai_error::write(&mut body, failure);
        body
    }
}
