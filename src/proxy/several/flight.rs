//! One of several calls on its way, recorded as it goes.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::stream::{self, Stream};
use tokio_util::sync::CancellationToken;

use crate::call::{Event, Failure, FailureKind, Reply};
use crate::policy::{Answer, NoAnswer};
use crate::proxy::recording::Recording;
use crate::proxy::tee::{Sending, before_the_end, commit};

/// What became of one call.
#[expect(clippy::large_enum_variant, reason = "it lives for one step")]
pub(super) enum Step {
    /// It has begun, or goes on.
    Events(Vec<Event>),
    /// It has ended well, and that is recorded.
    Ended(Reply),
    /// It has failed, and that is recorded.
    Failed(Failure),
}

/// Ends all calls of a request.
#[derive(Default)]
pub(super) struct Stop {
    why: OnceLock<Failure>,
    said: CancellationToken,
}

impl Stop {
    /// Says that they are to end; the first to say so says why.
    pub(super) fn say(&self, why: Failure) {
        // Whoever comes second is not heard.
        let _ = self.why.set(why);
        self.said.cancel();
    }

    pub(super) fn is_said(&self) -> bool {
        self.said.is_cancelled()
    }

    async fn heard(&self) -> Failure {
        self.said.cancelled().await;
        self.why.get().cloned().unwrap_or_else(|| Failure::new(FailureKind::Cancelled, "the request was given up"))
    }
}

enum Stage {
    Sending(Box<Recording>, Sending),
    Flowing(Box<Recording>, Box<dyn Answer>),
    Over,
}

/// The steps of a call that is being asked for, up to its end; `streamed` says how the client gets it.
pub(super) fn steps(recording: Box<Recording>, sending: Sending, stop: Arc<Stop>, streamed: bool) -> impl Stream<Item = Step> {
    stream::unfold(Stage::Sending(recording, sending), move |stage| step(stage, Arc::clone(&stop), streamed))
}

async fn step(stage: Stage, stop: Arc<Stop>, streamed: bool) -> Option<(Step, Stage)> {
    match stage {
        Stage::Sending(mut recording, sending) => {
            let answer = tokio::select! {
                biased;
                failure = stop.heard() => Err(NoAnswer { failure, response: Bytes::new() }),
                answer = sending => answer,
            };
            match answer {
                Ok(answer) => Some((Step::Events(Vec::new()), Stage::Flowing(recording, answer))),
                Err(NoAnswer { failure, response }) => {
                    recording.received(&response, &[]);
                    fail(recording, failure).await
                }
            }
        }
        Stage::Flowing(mut recording, mut answer) => {
            let mut events = Vec::new();
            let bytes = tokio::select! {
                biased;
                failure = stop.heard() => Err(failure),
                bytes = answer.next(&mut events) => bytes,
            };
            match bytes {
                Ok(Some(bytes)) => {
                    recording.received(&bytes, &events);
                    Some((Step::Events(events), Stage::Flowing(recording, answer)))
                }
                Ok(None) => match commit(&mut recording, answer).await {
                    Ok(reply) => Some((Step::Ended(reply), Stage::Over)),
                    Err(failure) => Some((Step::Failed(failure), Stage::Over)),
                },
                Err(failure) => {
                    // The policy must not go on while this is recorded.
                    drop(answer);
                    fail(recording, if streamed { failure } else { before_the_end(failure) }).await
                }
            }
        }
        Stage::Over => None,
    }
}

async fn fail(mut recording: Box<Recording>, failure: Failure) -> Option<(Step, Stage)> {
    recording.failed(&failure).await;
    Some((Step::Failed(failure), Stage::Over))
}
