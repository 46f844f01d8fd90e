//! Responses.

use bytes::Bytes;

use super::{Encoder, ReplyHead, Wire};
use crate::call::{Call, Failure};

pub(super) struct Responses;

impl Wire for Responses {
    fn name(&self) -> &'static str {
        "responses"
    }
    fn path(&self) -> &'static str {
        "/responses"
    }
    fn parse(&self, _body: &Bytes) -> Result<Call, Failure> {
        todo!()
    }
    fn encoder(&self, _call: &Call, _head: ReplyHead) -> Box<dyn Encoder> {
        todo!()
    }
    fn failure(&self, _failure: &Failure) -> Vec<u8> {
        todo!()
    }
}
