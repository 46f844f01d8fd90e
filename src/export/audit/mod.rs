//! Holds samples against what they came from: the raw bytes of their calls, and the policy's own forward pass.
//!
//! ```text
//! store or file -> samples ---------------> compare -> differences
//!                  raw bytes -> reread -> build ^
//!                  samples -> policy.score -> gaps, by harness and policy
//! ```

mod derive;
mod gaps;
mod report;
mod score;
mod source;

use std::path::Path;
use std::sync::Arc;

use super::load;
use super::{ExportError, Filter};
use crate::call::CallRecord;
use crate::policy::Policy;
use crate::store::{Rollout, Store, StoreError};
use crate::trajectory::{self, Built, Sample, Turn};

pub use report::{Difference, Gap, Group, Report, Worst};

use score::Scorer;
use source::{Found, Source};

/// What an audit looks at, and with what.
pub struct Audit<'a> {
    pub store: &'a dyn Store,
    pub filter: &'a Filter,
    /// Says of a policy's name whether it is trained.
    pub trained: &'a (dyn Fn(&str) -> bool + Sync),
    /// The policy of a name; `None` if there is none now.
    pub policies: &'a (dyn Fn(&str) -> Option<Arc<dyn Policy>> + Sync),
    /// An exported file of samples, in place of what the store's calls give.
    pub samples: Option<&'a Path>,
    /// At most so many samples.
    pub limit: Option<u64>,
    /// So many samples are scored at a time.
    pub concurrency: usize,
    /// Whether samples are scored; otherwise they are held against the raw bytes alone.
    pub score: bool,
}

impl Audit<'_> {
    /// Does it. One rollout is in memory at a time, and the samples that are being scored. `progress` is told how far it is.
    ///
    /// # Errors
    /// If the store fails or the file can't be read. What the audit finds is in its report.
    pub async fn run(&self, progress: &(dyn Fn(&Report) + Sync)) -> Result<Report, ExportError> {
        let mut source = Source::open(self.store, self.filter, self.samples)?;
        let mut report = Report::default();
        let mut scorer = Scorer::new(self.policies, self.store.weight_versions().await?, self.concurrency);
        while self.limit.is_none_or(|limit| report.samples < limit) {
            match source.next().await? {
                None => break,
                Some(Found::Gone(rollout)) => report.differs(Some(rollout), "the store has no such rollout".to_owned()),
                Some(Found::Unread(what)) => report.differs(None, what),
                Some(Found::Rollout(rollout, given)) => {
                    for sample in self.held_against_bytes(&rollout, given, &mut report).await? {
                        if self.score {
                            scorer.add(sample, &mut report).await;
                        }
                    }
                }
            }
            progress(&report);
        }
        scorer.finish(&mut report).await;
        Ok(report)
    }

    /// Compares a rollout's samples with what the raw bytes give, and hands them on.
    async fn held_against_bytes(
        &self,
        rollout: &Rollout,
        given: Option<Vec<Sample>>,
        report: &mut Report,
    ) -> Result<Vec<Sample>, ExportError> {
        let turns = match load::turns(self.store, rollout, self.trained, false).await {
            Ok(turns) => turns,
            Err(ExportError::Store(StoreError::Other(what))) => {
                report.differs(Some(rollout.id), what);
                return Ok(given.unwrap_or_default());
            }
            Err(error) => return Err(error),
        };
        let recorded = self.built(rollout, &turns);
        let derived = derive::turns(self.store, rollout.id, turns, report).await?;
        report.calls += derived.len() as u64;
        let derived = match self.built(rollout, &derived) {
            Ok(built) => built.samples,
            Err(what) => {
                report.differs(Some(rollout.id), format!("the raw bytes give no samples: {what}"));
                Vec::new()
            }
        };
        let mut drift = 0;
        let mut samples = match (given, recorded) {
            (given, Ok(built)) => {
                drift = built.drift;
                given.unwrap_or(built.samples)
            }
            (given, Err(what)) => {
                report.differs(Some(rollout.id), format!("what is recorded gives no samples: {what}"));
                given.unwrap_or_default()
            }
        };
        derive::compare(rollout.id, &samples, &derived, report);
        if let Some(limit) = self.limit {
            samples.truncate(usize::try_from(limit.saturating_sub(report.samples)).unwrap_or(usize::MAX));
        }
        report.count(rollout, &samples, drift);
        Ok(samples)
    }

    fn built(&self, rollout: &Rollout, turns: &[Turn]) -> Result<Built, String> {
        let chosen = |record: &CallRecord| self.filter.chooses(record);
        trajectory::build(&load::facts(rollout), turns, &self.filter.rules(&chosen)).map_err(|broken| broken.to_string())
    }
}
