//! Whether a call's reply is trained, and if not, why.

use super::sample::{LeftOut, Reason};
use crate::call::{CallRecord, CallStatus, CaptureLevel};

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has not ended: neither trained nor left out.
    Running,
    /// Its tokens are trained.
    Trained,
    /// Its tokens are exact, so they have a span, but are not trained.
    Masked(Reason),
    /// It is context at most.
    Dropped(Reason, Option<String>),
}

impl Verdict {
    /// Judges a call. `continued` says that a later call goes on from its reply, `chosen` that the filters let it through.
    pub(super) fn of(record: &CallRecord, trained: bool, continued: bool, chosen: bool) -> Self {
        if record.status == CallStatus::Running {
            return Self::Running;
        }
        if let Some(lost) = lost(record, trained, continued) {
            return Self::Dropped(lost.reason, lost.detail);
        }
        if let Some(verdict) = below_full(record) {
            return verdict;
        }
        if record.capture.constrained {
            Self::Masked(Reason::Constrained)
        } else if chosen {
            Self::Trained
        } else {
            Self::Masked(Reason::Filtered)
        }
    }

    /// Tells whether the call's tokens have a span.
    pub(super) fn has_span(&self) -> bool {
        matches!(self, Self::Trained | Self::Masked(_))
    }

    /// The entry in `left_out` for a call that gives no trained token.
    pub(super) fn left_out(self, record: &CallRecord) -> Option<LeftOut> {
        let (reason, detail) = match self {
            Self::Running | Self::Trained => return None,
            Self::Masked(reason) => (reason, None),
            Self::Dropped(reason, detail) => (reason, detail),
        };
        Some(LeftOut { call_id: record.id, reason, detail })
    }
}

/// Why a call that has ended gives nothing to train, whatever is known of its tokens: it is of a policy that is not trained, or no
/// client had its reply whole. `continued` says that a later call goes on from its reply.
#[must_use]
pub fn lost(record: &CallRecord, trained: bool, continued: bool) -> Option<LeftOut> {
    let reason = match record.status {
        _ if !trained => Reason::UntrainedPolicy,
        CallStatus::Failed => Reason::UpstreamError,
        CallStatus::Cancelled => Reason::Undelivered,
        CallStatus::Interrupted => Reason::Interrupted,
        // Where a crash left it unknown, a later call that goes on from the reply shows that the client had it.
        CallStatus::Running | CallStatus::Done if !record.delivered.unwrap_or(continued) => Reason::Undelivered,
        CallStatus::Running | CallStatus::Done => return None,
    };
    let detail = record.failure.as_ref().map(|failure| failure.message.clone());
    Some(LeftOut { call_id: record.id, reason, detail })
}

/// What stands in the way of a whole reply being trained, as far as its tokens go. The level is what the policy found; it is
/// believed only as far as the ids themselves bear it out.
fn below_full(record: &CallRecord) -> Option<Verdict> {
    let capture = &record.capture;
    let dropped = |reason| Some(Verdict::Dropped(reason, capture.reason.clone()));
    let said_nothing = record.usage.is_some_and(|usage| usage.completion_tokens == 0);
    if capture.completion_ids.is_empty() && (said_nothing || capture.level > CaptureLevel::Text) {
        return dropped(Reason::NoOutput);
    }
    match capture.level {
        CaptureLevel::Text if capture.completion_ids.is_empty() && capture.prompt_ids.is_empty() => dropped(Reason::TextOnly),
        CaptureLevel::Text => dropped(Reason::IdsIncomplete),
        CaptureLevel::Ids | CaptureLevel::Full if capture.prompt_ids.is_empty() => dropped(Reason::IdsIncomplete),
        CaptureLevel::Ids => dropped(Reason::LogprobsIncomplete),
        CaptureLevel::Full => {
            let exact = capture.logprobs.len() == capture.completion_ids.len() && capture.logprobs.iter().all(|p| p.is_finite());
            if exact { None } else { dropped(Reason::LogprobsIncomplete) }
        }
    }
}

/// Tells whether the call's ids can stand in the forest, as tokens or as context.
pub(super) fn has_ids(record: &CallRecord) -> bool {
    record.status != CallStatus::Running && record.capture.level >= CaptureLevel::Ids && !record.capture.prompt_ids.is_empty()
}

/// Tells whether the call broke off.
pub(super) fn cut(record: &CallRecord) -> bool {
    matches!(record.status, CallStatus::Failed | CallStatus::Cancelled | CallStatus::Interrupted)
}
