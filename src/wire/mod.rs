//! The APIs that clients speak. Each is one module that knows only [`crate::call`], never another wire; how requests are read
//! field by field and noted on, the settings of sampling, and what `OpenAI`'s APIs have in common, they share.
//!
//! Adding one is one module, its `mod` line and its row in [`ALL`].

mod chat;
mod completions;
mod fields;
mod gemini;
mod messages;
mod notes;
mod openai_error;
mod openai_reply;
mod openai_request;
mod openai_tools;
mod responses;
mod sampling;
pub mod sse;
mod target;

pub use target::{Target, percent_decoded};

use bytes::Bytes;

use crate::call::{Call, Event, Failure, Kept, Reply, Usage};
use crate::ids::CallId;

/// Every wire that is served.
pub static ALL: &[&dyn Wire] =
    &[&chat::Chat, &completions::Completions, &responses::Responses, &messages::Messages, &gemini::Gemini];

/// One API that clients speak.
pub trait Wire: Send + Sync {
    /// The wire's name in records and configs.
    fn name(&self) -> &'static str;

    /// The paths that calls are posted to, below [`Wire::bases`]; `{*model}` stands for a model's name and what follows it.
    fn paths(&self) -> &'static [&'static str];

    /// What clients may have between the base URL and the path.
    fn bases(&self) -> &'static [&'static str] {
        &["", "/v1"]
    }

    /// Reads a request. Most ask for one call; one that asks for several replies, or has several prompts, is several calls, in
    /// the order of the replies. The calls' texts are slices of `body`.
    ///
    /// # Errors
    /// If the body is not a request of this wire, or asks for what is not served: a 400 that names the field.
    fn parse(&self, target: Target<'_>, body: &Bytes) -> Result<Vec<Call>, Failure>;

    /// The calls that a request needs to be read whole, which was read before: what [`Call::previous`] and [`Call::quotes`] say,
    /// without reading the rest.
    fn needs(&self, _target: Target<'_>, _body: &Bytes) -> Vec<CallId> {
        Vec::new()
    }

    /// Reads a request that goes on from earlier calls or quotes them ([`Call::previous`], [`Call::quotes`]): `earlier` are those
    /// that are known, and those that these go on from in turn.
    ///
    /// # Errors
    /// As [`Wire::parse`], and if an earlier call that is needed is not among them.
    fn resume(&self, target: Target<'_>, body: &Bytes, _earlier: &[&Kept]) -> Result<Vec<Call>, Failure> {
        self.parse(target, body)
    }

    /// The wire's answers to requests about replies that were given before, if it has such requests.
    fn archive(&self) -> Option<&dyn Archive> {
        None
    }

    /// Whether a request only asks how many tokens its prompt has.
    fn asks_count(&self, _target: Target<'_>) -> bool {
        false
    }

    /// The answer to a request that asked for a count.
    fn count(&self, _tokens: u64) -> Vec<u8> {
        Vec::new()
    }

    /// Begins to write the reply to `call`, one of those that [`Wire::parse`] gave.
    fn encoder(&self, call: &Call, head: ReplyHead) -> Box<dyn Encoder>;

    /// Writes a failure as the JSON body of this wire.
    fn failure(&self, failure: &Failure) -> Vec<u8>;

    /// The same for a failure of this call, on wires whose errors name their request.
    fn failure_of(&self, failure: &Failure, _call_id: CallId) -> Vec<u8> {
        self.failure(failure)
    }
}

/// Requests about replies that were given before, on wires whose server keeps them.
pub trait Archive: Send + Sync {
    /// The paths of such requests, below [`Wire::bases`]; `{id}` stands for the name of a reply.
    fn paths(&self) -> &'static [&'static str];

    /// The call that a request is about.
    ///
    /// # Errors
    /// If no reply of ours has that name, or nothing of that kind is served.
    fn about(&self, method: &str, target: Target<'_>) -> Result<CallId, Failure>;

    /// Answers a request about `kept`; `earlier` are the calls that it goes on from or quotes, as in [`Wire::resume`].
    ///
    /// # Errors
    /// If there is no such call, or its client did not want it kept.
    fn answer(&self, method: &str, target: Target<'_>, kept: Option<&Kept>, earlier: &[&Kept]) -> Result<Vec<u8>, Failure>;
}

/// What a reply says of itself before the model has said anything.
#[derive(Clone, Debug)]
pub struct ReplyHead {
    /// The call, or the first of those that one request asked for.
    pub call_id: CallId,
    /// The reply's place among those of its request.
    pub choice: u32,
    /// Unix time in seconds.
    pub created: i64,
    /// The model's name, as the client asked for it.
    pub model: String,
}

/// Writes one reply in a wire's form: as a stream ([`begin`](Encoder::begin), [`event`](Encoder::event)s, then
/// [`finish`](Encoder::finish) and [`close`](Encoder::close), or [`fail`](Encoder::fail)) or as a whole body
/// ([`whole`](Encoder::whole)). Where one request asked for several replies, each has an encoder of its own for its events and its
/// `finish`; all of them begin, in order, before the first event, and the first of them writes `close` or `whole` for all.
///
/// Only `finish`, `close` and `whole` write what makes a client take the reply as given; they are sent after the record is committed.
pub trait Encoder: Send {
    /// The type of the stream's content.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// The stream's first bytes, if the wire opens a stream before its first event.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// What may leave at once of an event; nothing for one that the client has no use for.
    fn event(&mut self, event: &Event, out: &mut Vec<u8>);

    /// A sign of life that clients pass over.
    fn ping(&mut self, out: &mut Vec<u8>);

    /// The reply's end, and all that was held back until it was recorded.
    fn finish(&mut self, reply: &Reply, out: &mut Vec<u8>);

    /// What ends the stream once all its replies have ended; `usage` is the sum of theirs.
    fn close(&mut self, _usage: Option<&Usage>, _out: &mut Vec<u8>) {}

    /// The wire's own error inside the stream; nothing follows it.
    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>);

    /// All replies of a request as one body; there is at least one.
    fn whole(&mut self, replies: &[Reply], out: &mut Vec<u8>);
}

/// The wire of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Wire> {
    ALL.iter().copied().find(|wire| wire.name() == name)
}
