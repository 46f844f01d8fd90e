//! Several replies to one request. Each is a call of its own, upstream and in the record; all are in flight together and reach the
//! client as one answer, whole or not at all.

mod flight;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll, StreamExt};

use crate::call::{Call, Failure, FailureKind, Reply};
use crate::ids::CallId;
use crate::policy::Policy;
use crate::telemetry::now_ms;
use crate::wire::{Encoder, ReplyHead};

use super::recording::{Place, Recording};
use super::tee::{Delivered, ReplyBody, Sending, interruption};
use super::{Answered, App, JSON, Live, refused, send};

use flight::{Step, Stop};

/// How many bytes the calls of one request may have together: what goes upstream is written for each.
const MOST_BYTES: usize = 512 << 20;

/// What a request asks for.
#[expect(clippy::large_enum_variant, reason = "nearly every request asks for one, which is not to cost a box")]
pub(super) enum Asked {
    One(Call),
    Several(Vec<Call>),
}

impl Asked {
    /// The calls of a request of so many bytes.
    pub(super) fn of(mut calls: Vec<Call>, bytes: usize) -> Result<Self, Failure> {
        if calls.len() > 1 {
            let all = bytes.saturating_mul(calls.len());
            return if all <= MOST_BYTES { Ok(Self::Several(calls)) } else { Err(too_large(calls.len(), bytes)) };
        }
        calls.pop().map(Self::One).ok_or_else(|| Failure::new(FailureKind::Invalid, "the request asks for no reply"))
    }

    /// How many replies.
    pub(super) fn replies(&self) -> u64 {
        match self {
            Self::One(_) => 1,
            Self::Several(calls) => calls.len() as u64,
        }
    }

    /// The model that is asked for.
    pub(super) fn model(&self) -> &str {
        match self {
            Self::One(call) => &call.model,
            Self::Several(calls) => calls.first().map_or("", |call| &call.model),
        }
    }
}

fn too_large(replies: usize, bytes: usize) -> Failure {
    let message = format!("{replies} replies to a request of {bytes} bytes are too much; ask for fewer at once");
    Failure::new(FailureKind::TooLarge, message)
}

/// Serves a request for several replies.
pub(super) async fn serve(
    app: &Arc<App>,
    place: Place<'_>,
    rollout: &Arc<Live>,
    policy: &Arc<dyn Policy>,
    first: CallId,
    request: Bytes,
    calls: Vec<Call>,
) -> Answered {
    let stream = calls.first().is_some_and(|call| call.stream);
    let mut replies = Replies::new(app, rollout, calls.first().map_or(1, |call| call.replies));
    for (call, choice) in calls.into_iter().zip(0..) {
        let id = if choice == 0 { first } else { CallId::generate() };
        let place = Place { choice, ..place };
        let recording = Recording::begin(app, place, Arc::clone(rollout), policy, id, request.clone(), Some(&call)).await;
        let call = Arc::new(call);
        let head = ReplyHead { call_id: first, choice, created: replies.created, model: call.model.clone() };
        let encoder = place.wire.encoder(&call, head);
        let sending = Box::pin(send(Arc::clone(app), Arc::clone(policy), call, Arc::clone(rollout), recording.prepared()));
        replies.add(id, encoder, recording, sending, stream);
    }
    let answered = if stream { replies.stream().await } else { replies.whole().await };
    answered.unwrap_or_else(|failure| refused(place.wire, first, &failure))
}

/// The replies of one answer.
struct Replies {
    app: Arc<App>,
    /// Unix time in seconds.
    created: i64,
    /// How many of them are to one prompt.
    each: u32,
    ids: Vec<CallId>,
    encoders: Vec<Box<dyn Encoder>>,
    ended: Vec<Option<Reply>>,
    flights: SelectAll<BoxStream<'static, (usize, Step)>>,
    stop: Arc<Stop>,
    /// Resolves when all are to end although neither side ended them.
    interrupted: BoxFuture<'static, Failure>,
}

impl Replies {
    fn new(app: &Arc<App>, rollout: &Arc<Live>, each: u32) -> Self {
        Self {
            app: Arc::clone(app),
            created: now_ms() / 1000,
            each,
            ids: Vec::new(),
            encoders: Vec::new(),
            ended: Vec::new(),
            flights: SelectAll::new(),
            stop: Arc::default(),
            interrupted: Box::pin(interruption(Arc::clone(app), Arc::clone(rollout))),
        }
    }

    fn add(&mut self, id: CallId, encoder: Box<dyn Encoder>, recording: Box<Recording>, sending: Sending, stream: bool) {
        let (place, stop) = (self.ids.len(), Arc::clone(&self.stop));
        let steps = flight::steps(recording, sending, stop, stream);
        self.flights.push(Box::pin(steps.map(move |step| (place, step))));
        self.ids.push(id);
        self.encoders.push(encoder);
        self.ended.push(None);
    }

    /// The next step of any of them; `None` when all have ended.
    async fn next(&mut self) -> Option<(usize, Step)> {
        loop {
            tokio::select! {
                biased;
                step = self.flights.next() => return step,
                failure = &mut self.interrupted, if !self.stop.is_said() => self.stop.say(failure),
            }
        }
    }

    /// Ends the others because one has failed, and waits until that is recorded.
    async fn give_up(&mut self, failure: &Failure) {
        let message = format!("another reply to the same request failed: {failure}");
        self.stop.say(Failure::new(FailureKind::Cancelled, message));
        while self.flights.next().await.is_some() {}
    }

    fn delivered(&self) -> Delivered {
        Delivered { recorder: self.app.recorder.clone(), call_id: self.ids[0], others: self.ids[1..].to_vec() }
    }

    /// All of them as one body.
    async fn whole(mut self) -> Result<Answered, Failure> {
        while let Some((place, step)) = self.next().await {
            match step {
                Step::Events(_) => {}
                Step::Ended(reply) => self.ended[place] = Some(reply),
                Step::Failed(failure) => {
                    self.give_up(&failure).await;
                    return Err(failure);
                }
            }
        }
        let (replies, mut out) = (self.take_ended(), Vec::new());
        self.encoders[0].whole(&replies, &mut out);
        let (length, body) = (Some(out.len()), ReplyBody::whole(out.into(), Some(self.delivered())));
        Ok(Answered { call_id: self.ids[0], status: 200, retry_after: None, content_type: JSON, length, body })
    }

    /// The replies of an answer that is whole, in their order.
    fn take_ended(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.ended).into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_may_be_as_large_as_a_body_and_several_may_not() {
        let call = || Call::new("chat");
        assert!(matches!(Asked::of(vec![call()], MOST_BYTES + 1), Ok(Asked::One(_))));
        assert!(matches!(Asked::of(vec![call(), call()], MOST_BYTES / 2), Ok(Asked::Several(calls)) if calls.len() == 2));
        let failure = Asked::of(vec![call(), call()], MOST_BYTES / 2 + 1).err().map(|failure| (failure.kind, failure.status));
        assert_eq!(failure, Some((FailureKind::TooLarge, 413)));
        assert!(Asked::of(Vec::new(), 1).is_err());
    }
}
