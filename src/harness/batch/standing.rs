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
    /// Of each place that was tried and whose rollout has ended: the rollout that counts, else the last one. By task, harness and index,
    /// as the plan has them.
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
        let choices = Choices(id, &kept.plan.harnesses);
        let places = kept.places();
        let place = |rollout: &Rollout| {
            (rollout.task_id.as_deref().and_then(|task| places.get(task).copied()), choices.find(rollout), rollout.index)
        };
        let mut counting: Vec<_> =
            counting.into_iter().map(|rollout| (place(&rollout), Report::of(&rollout, artifacts))).collect();
        counting.sort_by_key(|(place, _)| *place);
        let is_retry = |rollout: &&Rollout| rollout.outcome == Some(Outcome::InfraError);
        let retries: Vec<usize> = replaced.iter().filter(is_retry).filter_map(|rollout| choices.find(rollout)).collect();
        let of_choice = |(at, choice): (usize, &HarnessChoice)| {
            let reports = counting.iter().filter(|((_, choice, _), _)| *choice == Some(at)).map(|(_, report)| report);
            summary::of(&choice.label(), reports, retries.iter().filter(|of| **of == at).count() as u64)
        };
        let summaries = kept.plan.harnesses.iter().enumerate().map(of_choice).collect();
        let reports = counting.into_iter().map(|(_, report)| report).collect();
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

/// Of each place the rollout that counts; and the others.
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

/// The harnesses of a batch.
struct Choices<'a>(BatchId, &'a [HarnessChoice]);

impl Choices<'_> {
    /// Which of them a rollout is of.
    fn find(&self, rollout: &Rollout) -> Option<usize> {
        let (task, own) = (rollout.task_id.as_deref()?, rollout.group_id.as_deref()?);
        self.1.iter().position(|choice| group(self.0, choice, task) == own)
    }
}
