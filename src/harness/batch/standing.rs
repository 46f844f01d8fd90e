//! A batch as it stands in the store, whoever runs it.

use std::collections::HashMap;
use std::path::Path;

use super::kept::{Kept, ResumeError, group};
use crate::harness::summary::{self, Summary};
use crate::harness::{HarnessChoice, Report};
use crate::ids::BatchId;
use crate::store::{Batch, BatchStatus, Outcome, Rollout, RolloutFilter, RolloutStatus, Store};

/// What became of a batch so far.
pub struct Standing {
    pub batch: Batch,
    pub kept: Kept,
    /// Of each place that was tried and whose rollout has ended: the rollout that counts, else the last one.
    pub reports: Vec<Report>,
    /// Rollouts that are running. Those that a process left open when it died are not: the next one that writes ends them.
    pub running: Vec<Rollout>,
    /// By harness, in the plan's order.
    pub summaries: Vec<Summary>,
}

impl Standing {
    /// Reads it. `artifacts` is the folder of all rollouts' artifacts.
    ///
    /// # Errors
    /// If there is no such batch or it can't be read.
    pub async fn read(store: &dyn Store, id: BatchId, artifacts: &Path) -> Result<Self, ResumeError> {
        let batch = store.batch(id).await?.ok_or_else(|| ResumeError::Unknown(id, store.describe()))?;
        let kept = Kept::of(&batch)?;
        let filter = RolloutFilter { batch: Some(id), ..RolloutFilter::default() };
        let rollouts = store.rollouts(&filter).await?;
        let (mut running, ended): (Vec<_>, Vec<_>) =
            rollouts.into_iter().partition(|rollout| rollout.status == RolloutStatus::Open);
        running.retain(|_| batch.status == BatchStatus::Running);
        let (counting, replaced) = by_place(ended);
        let label = |rollout: &Rollout| label(id, &kept.plan.harnesses, rollout);
        let of_harness = |choice: &HarnessChoice| {
            let own = choice.label();
            let reports: Vec<Report> = counting
                .iter()
                .filter(|rollout| label(rollout).as_deref() == Some(own.as_str()))
                .map(|rollout| Report::of(rollout, artifacts))
                .collect();
            let is_retry =
                |rollout: &&Rollout| rollout.outcome == Some(Outcome::InfraError) && label(rollout).as_ref() == Some(&own);
            summary::of(&own, &reports, replaced.iter().filter(is_retry).count() as u64)
        };
        let summaries = kept.plan.harnesses.iter().map(of_harness).collect();
        let reports = counting.iter().map(|rollout| Report::of(rollout, artifacts)).collect();
        Ok(Self { batch, kept, reports, running, summaries })
    }

    /// Places that have a rollout which says something of harness and model.
    #[must_use]
    pub fn filled(&self) -> u64 {
        self.reports.iter().filter(|report| summary::counts(report.outcome)).count() as u64
    }

    /// Whether all have.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.filled() >= self.batch.rollouts
    }
}

/// Of each place the rollout that counts, in the order in which places were begun; and the others.
fn by_place(ended: Vec<Rollout>) -> (Vec<Rollout>, Vec<Rollout>) {
    let (mut counting, mut replaced): (Vec<Rollout>, Vec<Rollout>) = Default::default();
    let mut at: HashMap<(Option<String>, u32), usize> = HashMap::new();
    for rollout in ended {
        let place = *at.entry((rollout.group_id.clone(), rollout.index)).or_insert(counting.len());
        match counting.get_mut(place) {
            None => counting.push(rollout),
            Some(other) if rank(&rollout) > rank(other) => replaced.push(std::mem::replace(other, rollout)),
            Some(_) => replaced.push(rollout),
        }
    }
    (counting, replaced)
}

/// One that counts comes before any other; of others the last.
fn rank(rollout: &Rollout) -> (bool, u32) {
    (rollout.outcome.is_some_and(summary::counts), rollout.run.map_or(0, |run| run.attempt))
}

/// Which of the batch's harnesses a rollout is of.
fn label(batch: BatchId, choices: &[HarnessChoice], rollout: &Rollout) -> Option<String> {
    let (task, own) = (rollout.task_id.as_deref()?, rollout.group_id.as_deref()?);
    choices.iter().find(|choice| group(batch, choice, task) == own).map(HarnessChoice::label)
}
