//! The gate before a policy: calls pass one by one, are counted while their replies run, and wait while the policy is paused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::PolicyUpdate;
use super::http::Http;
use super::version::Versions;
use crate::call::{Failure, FailureKind, VersionSource};

/// What becomes of replies that run while a policy is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They run to their end.
    #[default]
    Drain,
    /// They are broken off, and go on from the tokens that were sampled (`tokens = "exact"` only).
    Resume,
    /// They run on; the server changes its weights under them and says where.
    InPlace,
}

/// One policy's gate.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    paused: Option<PauseMode>,
    in_flight: usize,
}

/// A call that has passed; it counts as in flight until this is dropped.
#[derive(Debug)]
pub(super) struct Passed(Arc<Gate>);

impl Drop for Passed {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.moved.notify_waiters();
    }
}

impl Gate {
    /// Passes, at once or when the pause ends.
    ///
    /// # Errors
    /// If it does not end in `patience`.
    pub(super) async fn pass(self: &Arc<Self>, name: &str, patience: Duration) -> Result<Passed, Failure> {
        let deadline = Instant::now() + patience;
        loop {
            let moved = self.moved.notified();
            {
                let mut state = self.state();
                if state.paused.is_none() {
                    state.in_flight += 1;
                    return Ok(Passed(Arc::clone(self)));
                }
            }
            if timeout_at(deadline, moved).await.is_err() {
                let message = format!("policy {name} is paused for more than {} s; try again later", patience.as_secs());
                return Err(Failure::new(FailureKind::Unavailable, message));
            }
        }
    }

    /// Closes or opens the gate.
    pub(super) fn set(&self, paused: Option<PauseMode>) {
        self.state().paused = paused;
        self.moved.notify_waiters();
    }

    /// Does what an update says of a policy of this gate.
    ///
    /// # Errors
    /// If its address is none; then nothing is changed.
    pub(super) fn update(&self, http: &Http, versions: &Versions, update: &PolicyUpdate) -> Result<(), Failure> {
        if let Some(url) = update.url.as_ref().filter(|url| !http.move_to(url)) {
            return Err(Failure::invalid("url", format!("url {url:?} is not an http or https address")));
        }
        self.follow(versions, update);
        Ok(())
    }

    /// Does what an update says of weights and pauses.
    pub(super) fn follow(&self, versions: &Versions, update: &PolicyUpdate) {
        if let Some(version) = &update.version {
            versions.see(version.clone(), VersionSource::Declared);
        }
        match (update.paused, update.mode) {
            (Some(true), mode) => self.set(Some(mode.unwrap_or_default())),
            (Some(false), _) => self.set(None),
            (None, Some(mode)) if self.read().0.is_some() => self.set(Some(mode)),
            (None, _) => {}
        }
    }

    /// Waits until whether it is paused is other than `now`; gives what it is then.
    pub(super) async fn paused(&self, now: bool) -> bool {
        loop {
            let moved = self.moved.notified();
            if self.read().0.is_some() != now {
                return !now;
            }
            moved.await;
        }
    }

    /// How it is paused, and how many replies run.
    pub(super) fn read(&self) -> (Option<PauseMode>, usize) {
        let state = *self.state();
        (state.paused, state.in_flight)
    }

    /// Waits until replies that run are to be broken off.
    #[cfg(any(test, feature = "exact"))]
    pub(super) async fn interrupted(&self) {
        loop {
            let moved = self.moved.notified();
            if self.state().paused == Some(PauseMode::Resume) {
                return;
            }
            moved.await;
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_wait_while_it_is_paused_and_are_counted_when_they_have_passed() {
        let gate = Arc::new(Gate::default());
        let first = gate.pass("p", Duration::ZERO).await.unwrap();
        gate.set(Some(PauseMode::Drain));
        let mut waiting = Box::pin(gate.pass("p", Duration::from_mins(1)));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert_eq!(gate.read(), (Some(PauseMode::Drain), 1));
        drop(first);
        assert_eq!(gate.read(), (Some(PauseMode::Drain), 0));
        gate.set(None);
        let passed = waiting.await.unwrap();
        assert_eq!(gate.read(), (None, 1));
        drop(passed);
        gate.set(Some(PauseMode::InPlace));
        let failure = gate.pass("p", Duration::ZERO).await.unwrap_err();
        assert_eq!((failure.status, failure.message.as_str()), (503, "policy p is paused for more than 0 s; try again later"));
    }

    #[tokio::test]
    async fn whoever_waits_for_a_pause_is_told_its_beginning_and_its_end() {
        let gate = Gate::default();
        let mut begun = Box::pin(gate.paused(false));
        assert!(futures::poll!(&mut begun).is_pending());
        gate.set(Some(PauseMode::Drain));
        assert!(begun.await);
        assert!(gate.paused(false).await, "it is so already");
        let mut over = Box::pin(gate.paused(true));
        gate.set(Some(PauseMode::InPlace));
        assert!(futures::poll!(&mut over).is_pending(), "another mode is a pause still");
        gate.set(None);
        assert!(!over.await);
    }

    #[tokio::test]
    async fn only_a_pause_that_resumes_breaks_replies_off() {
        let gate = Arc::new(Gate::default());
        let mut interrupted = Box::pin(gate.interrupted());
        gate.set(Some(PauseMode::Drain));
        assert!(futures::poll!(&mut interrupted).is_pending());
        gate.set(Some(PauseMode::Resume));
        interrupted.await;
    }
}
