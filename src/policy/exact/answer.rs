//! A reply as the proxy reads it.

use std::sync::PoisonError;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;

use super::flow::Flow;
use super::tally::Piece;
use crate::call::{Event, Failure, FailureKind, Reply, Run, WeightVersion};
use crate::policy::capture::{self, Claim};
use crate::policy::config::TokenMode;
use crate::policy::kind::Dialect;
use crate::policy::{Answer, Captured, Prepared};

type Step = (Box<Flow>, Vec<Event>, Result<Option<Bytes>, Failure>);

/// A reply that has begun. Whoever reads it may turn away at any time and come back: a step that was begun then goes on where it was,
/// however many servers it asks.
pub(super) struct Reading {
    now: Now,
    /// What went upstream at last, if that is not what was prepared.
    amended: Option<Prepared>,
}

enum Now {
    Waiting(Box<Flow>),
    Stepping(BoxFuture<'static, Step>),
    /// Only while it changes.
    Between,
}

impl Reading {
    pub(super) fn new(flow: Flow) -> Self {
        let amended = flow.changed.then(|| flow.sent.clone());
        Self { now: Now::Waiting(Box::new(flow)), amended }
    }
}

#[async_trait]
impl Answer for Reading {
    async fn next(&mut self, events: &mut Vec<Event>) -> Result<Option<Bytes>, Failure> {
        self.now = match std::mem::replace(&mut self.now, Now::Between) {
            Now::Waiting(mut flow) => Now::Stepping(Box::pin(async move {
                let mut events = Vec::new();
                let step = flow.step(&mut events).await;
                (flow, events, step)
            })),
            now => now,
        };
        let Now::Stepping(stepping) = &mut self.now else { return Err(lost()) };
        let (flow, said, step) = stepping.await;
        if flow.changed {
            self.amended = Some(flow.sent.clone());
        }
        self.now = Now::Waiting(flow);
        events.extend(said);
        step
    }

    async fn capture(&mut self, reply: &Reply) -> Captured {
        let Now::Waiting(flow) = &self.now else { return Captured::default() };
        let (version, runs) = versions(flow).await;
        let prompt = flow.request.prompt.clone();
        let dialect = Dialect::new(flow.served.found.kind, TokenMode::Exact, false);
        let declared = flow.contact().config.logprob_kind();
        let claim = Claim {
            prompt: Ok(prompt.ids.clone()),
            logprob_kind: dialect.logprob_kind(declared, &flow.request.sampling, flow.held.grammar),
            constrained: flow.held.grammar || flow.held.narrowed,
        };
        let mut capture = capture::check(claim, reply);
        let doubt = flow.tally.doubt();
        flow.tally.judge(&mut capture, doubt.as_ref());
        if let Some(doubt) = doubt.filter(|doubt| doubt.model) {
            flow.contact().doubt(&doubt.reason);
        }
        capture.runs = runs;
        capture.rendered = Some(prompt.rendered.clone());
        Captured { capture, version, prompt_raw: Bytes::new() }
    }

    fn amended(&self) -> Option<Prepared> {
        self.amended.clone()
    }
}

/// A step that panicked.
fn lost() -> Failure {
    Failure::new(FailureKind::Cut, "the reply was lost inside Gleaner")
}

/// The weights that ended the reply, and all of them where there were several or the reply was taken up.
async fn versions(flow: &Flow) -> (WeightVersion, Vec<Run>) {
    let mut runs = Vec::new();
    for piece in &flow.tally.pieces {
        let (version, spans) = of_piece(flow, piece).await;
        if spans.is_empty() {
            runs.push(Run { start: piece.start, version });
        } else {
            runs.extend(spans.into_iter().map(|run| Run { start: piece.start + run.start, ..run }));
        }
    }
    let last = runs.last().map(|run| run.version.clone()).unwrap_or_default();
    (last, if runs.len() > 1 { runs } else { Vec::new() })
}

async fn of_piece(flow: &Flow, piece: &Piece) -> (WeightVersion, Vec<Run>) {
    if let Some((version, runs)) = flow.contact().versions.told(&piece.versions) {
        *piece.replica.last_version.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.clone());
        return (version, runs);
    }
    match &piece.broke_off {
        Some(version) => (version.clone(), Vec::new()),
        None => (flow.contact().weights(&piece.replica).await, Vec::new()),
    }
}
