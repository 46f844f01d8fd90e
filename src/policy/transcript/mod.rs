//! What a rollout has said and sampled so far, for policies that make their prompts themselves.

use crate::call::{Call, Capture, Message};
use crate::ids::CallId;

/// The exchanges of one rollout, kept while it takes calls. Its size grows with what is new in each.
#[derive(Debug, Default)]
pub struct Transcript {}

/// One call that ended well, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    pub call_id: CallId,
    pub call: &'a Call,
    /// What the policy answered.
    pub reply: &'a Message,
    pub capture: &'a Capture,
}

impl Transcript {
    /// Remembers an exchange whose prompt Gleaner made; others are of no use to later prompts.
    pub fn note(&self, exchange: Exchange<'_>) {
        if exchange.capture.rendered.is_none() {}
    }
}
