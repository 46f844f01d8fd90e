//! Chat completions.

use bytes::Bytes;

use super::{Encoder, ReplyHead, Wire};
use crate::call::{Call, Failure};

pub(super) struct Chat;

impl Wire for Chat {
    fn name(&self) -> &'static str {
        "chat"
    }
    fn path(&self) -> &'static str {
        "/chat/completions"
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
