//! Gemini, as its command line and the official SDKs speak it.
//!
//! The model and what is asked of it stand in the path. Every field of a request may be spelled as JSON has it (`topP`) or as the
//! API's own schema has it (`top_p`).

mod address;
mod config;
mod contents;
mod error;
mod parts;
mod reply;
mod request;
mod schema;
mod signature;
mod spelling;
mod stream;
mod tools;
mod turns;

use bytes::Bytes;

use self::address::{Address, Verb};
use super::{Encoder, ReplyHead, Target, Wire};
use crate::call::{Call, Failure};

pub(super) struct Gemini;

impl Wire for Gemini {
    fn name(&self) -> &'static str {
        "gemini"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/models/{*model}", "/tunedModels/{*model}"]
    }

    fn bases(&self) -> &'static [&'static str] {
        &["", "/v1beta", "/v1", "/v1alpha"]
    }

    fn parse(&self, target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure> {
        request::parse(&Address::read(target)?, body)
    }

    fn asks_count(&self, target: Target<'_>) -> bool {
        Address::read(target).is_ok_and(|address| address.verb == Verb::Count)
    }

    fn count(&self, tokens: u64) -> Vec<u8> {
        format!("{{\"totalTokens\":{tokens}}}").into_bytes()
    }

    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder> {
        Box::new(stream::GeminiEncoder::new(call.wants, call.replies > 1, &head))
    }

    fn failure(&self, failure: &Failure) -> Vec<u8> {
        let mut body = Vec::new();
        error::write(&mut body, failure);
        body
    }
}
