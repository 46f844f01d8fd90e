//! What can go wrong with a call, before each wire says it in its own form.

use serde::{Deserialize, Serialize};

/// The kind of a failure; each wire has its own status and type for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request is not what the wire asks for.
    Invalid,
    /// No key, or one that is unknown.
    Unauthorized,
    /// Two identities that disagree, or a place that this caller may not reach.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The method is not one of the path's.
    MethodNotAllowed,
    /// The rollout has ended.
    Ended,
    /// The rollout has used up what its terms allow.
    Capped,
    /// The body is larger than allowed.
    TooLarge,
    /// The prompt does not fit the model's window.
    ContextOverflow,
    /// A websocket was asked for where there is none.
    UpgradeRequired,
    /// The policy refused the request (a 4xx of its own).
    Refused,
    /// The policy is overloaded or asked to wait.
    RateLimited,
    /// The policy can't be reached, failed, or answered with something that is no answer.
    Unavailable,
    /// The policy did not answer in time.
    TimedOut,
    /// The reply broke off after it had begun.
    Cut,
    /// The record could not be stored, so the reply may not count as given.
    NotRecorded,
    /// The client hung up.
    Cancelled,
    /// The server is shutting down.
    Draining,
}

/// A call that did not end as a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// The HTTP status to answer with, if nothing was sent yet.
    pub status: u16,
    /// For the client: what happened, to what, and what to do.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
    /// The field of the request that is at fault.
    pub param: Option<String>,
}

impl Failure {
    /// A failure with its kind's usual status.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let status = match kind {
            FailureKind::Invalid | FailureKind::ContextOverflow | FailureKind::Refused => 400,
            FailureKind::Unauthorized => 401,
            FailureKind::Forbidden | FailureKind::Capped => 403,
            FailureKind::NotFound => 404,
            FailureKind::MethodNotAllowed => 405,
            FailureKind::Ended => 409,
            FailureKind::TooLarge => 413,
            FailureKind::UpgradeRequired => 426,
            FailureKind::RateLimited => 429,
            FailureKind::Cancelled => 499,
            FailureKind::Unavailable
            | FailureKind::TimedOut
            | FailureKind::Cut
            | FailureKind::NotRecorded
            | FailureKind::Draining => 503,
        };
        let retry_after = matches!(status, 429 | 503).then_some(1);
        Self { kind, status, message: message.into(), retry_after, param: None }
    }

    /// A request that is not what the wire asks for, with the field at fault.
    #[must_use]
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(FailureKind::Invalid, message) }
    }

    /// Whether neither client nor model could help it: the policy's server or Gleaner itself was in trouble.
    #[must_use]
    pub fn is_infrastructure(&self) -> bool {
        match self.kind {
            FailureKind::RateLimited
            | FailureKind::Unavailable
            | FailureKind::TimedOut
            | FailureKind::Cut
            | FailureKind::NotRecorded
            | FailureKind::Draining => true,
            FailureKind::Invalid
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::MethodNotAllowed
            | FailureKind::Ended
            | FailureKind::Capped
            | FailureKind::TooLarge
            | FailureKind::ContextOverflow
            | FailureKind::UpgradeRequired
            | FailureKind::Refused
            | FailureKind::Cancelled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_tried_again_says_when() {
        for (kind, status, retry_after) in [
            (FailureKind::Invalid, 400, None),
            (FailureKind::ContextOverflow, 400, None),
            (FailureKind::Unauthorized, 401, None),
            (FailureKind::Capped, 403, None),
            (FailureKind::TooLarge, 413, None),
            (FailureKind::UpgradeRequired, 426, None),
            (FailureKind::RateLimited, 429, Some(1)),
            (FailureKind::Unavailable, 503, Some(1)),
            (FailureKind::NotRecorded, 503, Some(1)),
        ] {
            let expected = Failure { kind, status, message: "m".to_owned(), retry_after, param: None };
            assert_eq!(Failure::new(kind, "m"), expected);
        }
    }
}
