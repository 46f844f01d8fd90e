//! The APIs that clients speak. Each is one module that knows only [`crate::call`], never another wire; how requests are read
//! field by field, and the error form of `OpenAI`'s APIs, they share.
//!
//! Adding one is one module, its `mod` line and its row in [`ALL`].

mod chat;
mod fields;
mod openai_error;
mod responses;
pub mod sse;

use bytes::Bytes;

use crate::call::{Call, Event, Failure, Reply};
use crate::ids::CallId;

/// Every wire that is served.
pub static ALL: &[&dyn Wire] = &[&chat::Chat, &responses::Responses];

/// One API that clients speak.
pub trait Wire: Send + Sync {
    /// The wire's name in records and configs.
    fn name(&self) -> &'static str;

    /// The path that calls are posted to, below `/v1` or the base URL itself.
    fn path(&self) -> &'static str;

    /// Reads a request. The call's texts are slices of `body`.
    ///
    /// # Errors
    /// If the body is not a request of this wire, or asks for what is not served: a 400 that names the field.
    fn parse(&self, body: &Bytes) -> Result<Call, Failure>;

    /// Begins to write the reply to `call`.
    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder>;

    /// Writes a failure as the JSON body of this wire.
    fn failure(&self, failure: &Failure) -> Vec<u8>;
}

/// What a reply says of itself before the model has said anything.
#[derive(Clone, Debug)]
pub struct ReplyHead {
    pub call_id: CallId,
    /// Unix time in seconds.
    pub created: i64,
    /// The model's name, as the client asked for it.
    pub model: String,
}

/// Writes one reply in a wire's form: as a stream ([`begin`](Encoder::begin), [`event`](Encoder::event)s, then
/// [`finish`](Encoder::finish) or [`fail`](Encoder::fail)) or as a whole body ([`whole`](Encoder::whole)).
///
/// Only `finish` and `whole` write what makes a client take the reply as given; they are sent after the record is committed.
pub trait Encoder: Send {
    /// The stream's first bytes, if the wire opens a stream before its first event.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// What may leave at once of an event; nothing for one that the client has no use for.
    fn event(&mut self, event: &Event, out: &mut Vec<u8>);

    /// A sign of life that clients pass over.
    fn ping(&mut self, out: &mut Vec<u8>);

    /// The reply's end, and all that was held back until it was recorded.
    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>);

    /// The wire's own error inside the stream; nothing follows it.
    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>);

    /// The whole reply as one body.
    fn whole(&mut self, reply: &Reply, out: &mut Vec<u8>);
}

/// The wire of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Wire> {
    ALL.iter().copied().find(|wire| wire.name() == name)
}
