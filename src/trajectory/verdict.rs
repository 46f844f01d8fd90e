//! Whether a call's reply is trained, and if not, why.

use std::collections::HashSet;

use super::Turn;
use super::sample::{LeftOut, Reason};
use super::tree::Tree;
use crate::call::{CallRecord, CallStatus, CaptureLevel, Mark};

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has not ended: neither trained nor left out.
    Running,
    /// Its tokens are trained.
    Trained,
    /// Its tokens are exact, so they have a span, but are not trained.
    Masked(Reason, Option<String>),
    /// It is context at most.
    Dropped(Reason, Option<String>),
}

impl Verdict {
    /// Judges a call. `continued` says that a later call goes on from its reply, `left_out` why whoever asks
    /// for samples does not want it.
    pub(super) fn of(turn: &Turn, continued: bool, left_out: Option<(Reason, Option<String>)>) -> Self {
        let record = &turn.record;
        if record.status == CallStatus::Running {
            return Self::Running;
        }
        if let Some(lost) = lost(record, turn.trained, continued) {
            return Self::Dropped(lost.reason, lost.detail);
        }
        if let Some(verdict) = below_full(turn) {
            return verdict;
        }
        if record.capture.constrained {
            return Self::Masked(Reason::Constrained, None);
        }
        left_out.map_or(Self::Trained, |(reason, detail)| Self::Masked(reason, detail))
    }

    /// Tells whether the call's tokens have a span.
    pub(super) fn has_span(&self) -> bool {
        matches!(self, Self::Trained | Self::Masked(..))
    }

    /// The entry in `left_out` for a call that gives no trained token.
    pub(super) fn left_out(self, record: &CallRecord) -> Option<LeftOut> {
        let (reason, detail) = match self {
            Self::Running | Self::Trained => return None,
            Self::Masked(reason, detail) | Self::Dropped(reason, detail) => (reason, detail),
        };
        Some(LeftOut { call_id: record.id, reason, detail })
    }
}

/// Names the calls that would be trained and are in no sample: those whose samples are too long, and those for whose replies later
/// prompts have other tokens.
pub(super) fn settle(
    verdicts: &mut [Verdict],
    tree: &Tree<'_>,
    turns: &[Turn],
    leaves: &[usize],
    too_long: &[usize],
    most: Option<usize>,
) {
    let exact = |leaves: &[usize]| {
        let steps = leaves.iter().flat_map(|leaf| tree.chain(*leaf));
        steps.filter(|step| step.agrees >= whole(&turns[step.turn])).map(|step| step.turn).collect::<HashSet<usize>>()
    };
    let (given, dropped) = (exact(leaves), exact(too_long));
    for (turn, verdict) in verdicts.iter_mut().enumerate().filter(|(turn, _)| !given.contains(turn)) {
        if *verdict == Verdict::Trained {
            let most = most.unwrap_or_default();
            *verdict = if dropped.contains(&turn) {
                Verdict::Masked(Reason::OverLength, Some(format!("its sample has more than {most} tokens")))
            } else {
                Verdict::Masked(Reason::Realigned, None)
            };
        }
    }
}

/// The tokens of prompt and reply together.
pub(super) fn whole(turn: &Turn) -> usize {
    turn.prompt.len() + turn.record.capture.completion_ids.len()
}

/// Why a call that has ended gives nothing to train, whatever is known of its tokens: it is of a policy that is not trained, is not its
/// harness's own, or no client had its reply whole. `continued` says that a later call goes on from its reply.
#[must_use]
pub fn lost(record: &CallRecord, trained: bool, continued: bool) -> Option<LeftOut> {
    let foreign = record.marks.iter().find(|mark| mark.name == Mark::FOREIGN);
    let reason = match record.status {
        _ if !trained => Reason::UntrainedPolicy,
        _ if foreign.is_some() => Reason::Foreign,
        CallStatus::Failed => Reason::UpstreamError,
        CallStatus::Cancelled => Reason::Undelivered,
        CallStatus::Interrupted => Reason::Interrupted,
        // Where a crash left it unknown, a later call that goes on from the reply shows that the client had it.
        CallStatus::Running | CallStatus::Done if !record.delivered.unwrap_or(continued) => Reason::Undelivered,
        CallStatus::Running | CallStatus::Done => return None,
    };
    let failed = record.failure.as_ref().map(|failure| &failure.message);
    let detail = foreign.filter(|_| reason == Reason::Foreign).map(|mark| &mark.value).or(failed).cloned();
    Some(LeftOut { call_id: record.id, reason, detail })
}

/// What stands in the way of a whole reply being trained, as far as its tokens go. The level is what the policy found; it is
/// believed only as far as the ids themselves bear it out.
fn below_full(turn: &Turn) -> Option<Verdict> {
    let Turn { record, prompt, .. } = turn;
    let capture = &record.capture;
    let dropped = |reason| Some(Verdict::Dropped(reason, capture.reason.clone()));
    let said_nothing = record.usage.is_some_and(|usage| usage.completion_tokens == 0);
    if capture.completion_ids.is_empty() && (said_nothing || capture.level > CaptureLevel::Text) {
        return dropped(Reason::NoOutput);
    }
    match capture.level {
        CaptureLevel::Text if capture.completion_ids.is_empty() && prompt.is_empty() => dropped(Reason::TextOnly),
        CaptureLevel::Text => dropped(Reason::IdsIncomplete),
        CaptureLevel::Ids | CaptureLevel::Full if prompt.is_empty() => dropped(Reason::IdsIncomplete),
        CaptureLevel::Ids => dropped(Reason::LogprobsIncomplete),
        CaptureLevel::Full => {
            let exact = capture.logprobs.len() == capture.completion_ids.len() && capture.logprobs.iter().all(|p| p.is_finite());
            if exact { None } else { dropped(Reason::LogprobsIncomplete) }
        }
    }
}

/// Tells whether the call's ids can stand in the forest, as tokens or as context.
pub(super) fn has_ids(turn: &Turn) -> bool {
    turn.record.status != CallStatus::Running && turn.record.capture.level >= CaptureLevel::Ids && !turn.prompt.is_empty()
}

/// Tells whether the call broke off.
pub(super) fn cut(record: &CallRecord) -> bool {
    matches!(record.status, CallStatus::Failed | CallStatus::Cancelled | CallStatus::Interrupted)
}
