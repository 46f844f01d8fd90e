//! Anthropic's Messages, as Claude Code and the official SDKs speak it.

mod blocks;
mod client_tools;
mod error;
mod reply;
mod request;
mod stream;
mod thread;
mod tools;
mod turns;

use bytes::Bytes;

use super::{Encoder, ReplyHead, Target, Wire};
use crate::call::{Call, Failure, Kept};
use crate::ids::CallId;

pub(super) struct Messages;

const COUNT: &str = "/messages/count_tokens";

impl Wire for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/messages", COUNT]
    }

    fn parse(&self, target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(body, self.asks_count(target), None)
    }

    fn needs(&self, _target: Target<'_>, body: &Bytes) -> Vec<CallId> {
        thread::needs(body)
    }

    fn resume(&self, target: Target<'_>, body: &Bytes, earlier: &[&Kept]) -> Result<Vec<Call>, Failure> {
        request::parse(body, self.asks_count(target), Some(earlier))
    }

    fn asks_count(&self, target: Target<'_>) -> bool {
        target.path == COUNT
    }

    fn count(&self, tokens: u64) -> Vec<u8> {
        format!("{{\"input_tokens\":{tokens}}}").into_bytes()
    }

    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::MessagesEncoder::new(call, &head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        error::body(failure, None)
    }

    fn failure_of(&self, failure: &Failure, call_id: CallId) -> Vec<u8> {
        error::body(failure, Some(&reply::hex(call_id)))
    }
}
