//! What a process does for a batch that it runs, for whoever looks.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

use super::lock;
use crate::harness::Progress;
use crate::ids::RolloutId;
use crate::telemetry::now_ms;

/// A batch while it runs.
pub struct Live {
    /// Ends its rollouts as cancelled.
    pub(super) cancel: CancellationToken,
    /// Cancelled once it has ended.
    pub(super) ended: CancellationToken,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    note: Option<String>,
    rollouts: HashMap<RolloutId, Doing>,
}

/// What a rollout does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    pub what: Cow<'static, str>,
    /// Unix time in milliseconds.
    pub since: i64,
}

impl Live {
    /// A batch that `cancel` ends.
    pub(super) fn new(cancel: CancellationToken) -> Self {
        Self { cancel, ended: CancellationToken::new(), seen: Mutex::default() }
    }

    /// What its rollouts wait for, all of them: a payload that is built, an engine that does not answer.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        lock(&self.seen).note.clone()
    }

    /// What a rollout does; `None` if it is not run by this process.
    #[must_use]
    pub fn doing(&self, rollout: RolloutId) -> Option<Doing> {
        lock(&self.seen).rollouts.get(&rollout).cloned()
    }

    pub(super) fn tell(&self, progress: Progress) {
        let mut seen = lock(&self.seen);
        match progress {
            Progress::Building { harness, line } => seen.note = Some(format!("building {harness}: {line}")),
            Progress::Waiting { why } => seen.note = Some(why),
            Progress::Step { rollout, doing } => {
                seen.note = None;
                seen.rollouts.insert(rollout, Doing { what: doing, since: now_ms() });
            }
            Progress::Ended(report) => {
                seen.rollouts.remove(&report.id);
            }
            Progress::Began { .. } | Progress::Retry { .. } => {}
        }
    }
}
