//! What a rollout's calls have used, against what its terms allow, and how they ended.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::SetOnce;

use crate::call::{Failure, FailureKind};
use crate::harness::run::Cap;
use crate::harness::{Served, Terms};

/// A client that hangs up after so long without a byte of its reply gave up on the policy.
const PATIENCE: Duration = Duration::from_secs(30);

/// What terms bound.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Calls,
    Tokens,
}

/// Counts a rollout's calls.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// None are known of a rollout that Gleaner does not run itself.
    terms: OnceLock<Terms>,
    begun: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    tokens: AtomicU64,
    capped: SetOnce<Bound>,
    failed: Mutex<Option<Failure>>,
}

impl Meter {
    /// Sets the terms, once and before the first call.
    pub fn agree(&self, terms: &Terms) {
        self.terms.get_or_init(|| terms.clone());
    }

    /// What the rollout's own calls look like.
    pub fn signature(&self) -> &BTreeMap<String, String> {
        &self.terms().signature
    }

    /// How long its calls wait for a policy that is down, beyond what any call does. One that has had no reply has nothing to lose.
    pub fn patience(&self) -> Duration {
        if self.answered.load(Relaxed) > 0 { self.terms().patience } else { Duration::ZERO }
    }

    /// Calls begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Counts calls that are about to begin, all or none of them.
    ///
    /// # Errors
    /// If the terms don't allow them; none are allowed from then on.
    pub fn begin(&self, calls: u64) -> Result<(), Failure> {
        let terms = self.terms();
        if terms.max_tokens.is_some_and(|most| self.tokens.load(Relaxed) >= most) {
            return Err(self.refuse(Bound::Tokens));
        }
        let most = terms.max_calls.unwrap_or(u64::MAX);
        let more = |begun: u64| begun.checked_add(calls).filter(|begun| *begun <= most);
        self.begun.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|_| self.refuse(Bound::Calls))
    }

    /// Why a call need not even be read: one was refused before.
    pub fn barred(&self) -> Option<Failure> {
        self.capped.get().map(|bound| self.refuse(*bound))
    }

    /// Waits until a call is refused.
    pub async fn capped(&self) -> Cap {
        match self.capped.wait().await {
            Bound::Calls => Cap::Calls,
            Bound::Tokens => Cap::Tokens,
        }
    }

    /// Counts tokens that were sampled, as they come.
    pub fn sampled(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }

    /// Notes that a call has ended: with its reply, or with why there is none.
    pub fn ended(&self, failure: Option<&Failure>) {
        match failure.map(|failure| failure.kind) {
            None => {
                self.answered.fetch_add(1, Relaxed);
            }
            // Its own doing, or ours on purpose.
            Some(FailureKind::Cancelled | FailureKind::Ended | FailureKind::Capped) => return,
            Some(_) => {}
        }
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failure.cloned();
    }

    /// Notes that a client hung up; `silent` is how long it had waited for the reply's first byte in vain.
    pub fn hung_up(&self, silent: Option<Duration>) {
        if let Some(waited) = silent.filter(|waited| *waited >= PATIENCE) {
            let message = format!("the harness hung up after {} s without a byte of its reply", waited.as_secs());
            self.ended(Some(&Failure::new(FailureKind::TimedOut, message)));
        }
    }

    /// What the calls came to so far.
    pub fn read(&self) -> Served {
        Served {
            begun: self.begun.load(Relaxed),
            answered: self.answered.load(Relaxed),
            refused: self.refused.load(Relaxed),
            failed: self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn terms(&self) -> &Terms {
        self.terms.get_or_init(Terms::default)
    }

    fn refuse(&self, bound: Bound) -> Failure {
        self.refused.fetch_add(1, Relaxed);
        // The first word stands.
        let _ = self.capped.set(bound);
        let terms = self.terms();
        let (most, what, option) = match bound {
            Bound::Calls => (terms.max_calls, "calls", "max_calls"),
            Bound::Tokens => (terms.max_tokens, "sampled tokens", "max_tokens"),
        };
        let most = most.unwrap_or_default();
        Failure::new(FailureKind::Capped, format!("this rollout may have {most} {what} ({option}), and no call past them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(max_calls: Option<u64>, max_tokens: Option<u64>) -> Meter {
        let meter = Meter::default();
        meter.agree(&Terms { max_calls, max_tokens, ..Terms::default() });
        meter
    }

    #[tokio::test]
    async fn calls_past_the_cap_are_refused_and_counted() {
        let meter = meter(Some(3), None);
        meter.begin(1).unwrap();
        let mut capped = Box::pin(meter.capped());
        assert!(futures::poll!(&mut capped).is_pending());
        assert_eq!(meter.barred(), None);
        let refused = meter.begin(3).unwrap_err();
        let expected = "this rollout may have 3 calls (max_calls), and no call past them";
        assert_eq!((refused.status, refused.message.as_str()), (403, expected));
        assert_eq!(capped.await, Cap::Calls);
        assert_eq!(meter.barred(), Some(refused));
        assert_eq!(meter.read(), Served { begun: 1, refused: 2, ..Served::default() });
    }

    #[tokio::test]
    async fn no_call_begins_once_so_many_tokens_were_sampled() {
        let meter = meter(None, Some(10));
        for _ in 0..2 {
            meter.begin(1).unwrap();
            meter.sampled(9);
        }
        assert!(meter.begin(1).unwrap_err().message.contains("10 sampled tokens (max_tokens)"));
        assert_eq!(meter.capped().await, Cap::Tokens);
    }

    #[test]
    fn without_terms_nothing_is_bounded() {
        let meter = Meter::default();
        meter.sampled(u64::MAX);
        assert_eq!((meter.begin(u64::MAX), meter.barred()), (Ok(()), None));
    }

    #[test]
    fn a_policy_is_waited_for_once_it_has_answered() {
        let meter = Meter::default();
        let patience = Duration::from_mins(10);
        meter.agree(&Terms { patience, ..Terms::default() });
        meter.ended(Some(&Failure::new(FailureKind::Unavailable, "down")));
        assert_eq!(meter.patience(), Duration::ZERO);
        meter.ended(None);
        assert_eq!(meter.patience(), patience);
    }

    #[test]
    fn the_last_call_that_was_not_broken_off_is_remembered() {
        let meter = Meter::default();
        let down = Failure::new(FailureKind::Unavailable, "down");
        meter.ended(Some(&down));
        for kind in [FailureKind::Cancelled, FailureKind::Ended, FailureKind::Capped] {
            meter.ended(Some(&Failure::new(kind, "")));
        }
        meter.hung_up(Some(Duration::from_secs(1)));
        meter.hung_up(None);
        assert_eq!(meter.read(), Served { failed: Some(down), ..Served::default() });
        meter.ended(None);
        assert_eq!(meter.read(), Served { answered: 1, ..Served::default() });
        meter.hung_up(Some(Duration::from_secs(40)));
        let failed = meter.read().failed.unwrap();
        assert!(failed.is_infrastructure() && failed.message.contains("after 40 s"), "{failed}");
    }
}
