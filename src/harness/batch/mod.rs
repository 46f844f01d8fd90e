//! Many rollouts that were ordered together: kept with what they are made of, run side by side, gone on with after anything.
//!
//! A batch has a *place* for each sample of each task in each harness. A place is filled by a rollout that says something of
//! harness and model; one that ended for other reasons stays in the store, and another takes its place. What is to be done is
//! therefore only ever read from the store: a batch that was killed is resumed by running the places that are not filled.
//!
//! **Order.** Task by task, in each task harness by harness, in each harness all its samples. So groups are whole early, one after
//! the other; what is there at any moment compares the harnesses on the same tasks; and no harness is ever more than a group
//! behind another. Which harness of a task comes first goes round, so that none is always the one that a broken-off batch lacks.

mod crew;
mod kept;
mod lineup;
mod standing;
#[cfg(test)]
mod tests;

use crate::ids::BatchId;
use crate::record::Recorder;
use crate::store::{BatchStatus, NewBatch, Store, Write};
use crate::telemetry::now_ms;

use super::{Catalog, Order, Plan, Stage};

pub use kept::{Kept, ResumeError};
pub use standing::Standing;

/// Where batches are kept: read from the store, written through the recorder.
#[derive(Clone, Copy)]
pub struct Ledger<'a> {
    pub store: &'a dyn Store,
    pub recorder: &'a Recorder,
}

/// A batch that this process runs.
pub struct BatchRun {
    pub id: BatchId,
    pub plan: Plan,
    pub orders: Vec<Order>,
}

impl BatchRun {
    /// Keeps a new batch, which is this process's to run from now on. `orders` are the plan's.
    ///
    /// # Errors
    /// If it can't be kept.
    pub async fn begin(ledger: &Ledger<'_>, id: BatchId, kept: &Kept, orders: Vec<Order>) -> anyhow::Result<Self> {
        let rollouts = orders.iter().map(|order| u64::from(order.samples)).sum();
        let new = NewBatch { id, created_at: now_ms(), plan: serde_json::to_value(kept)?, rollouts };
        ledger.recorder.write(Write::NewBatch(Box::new(new))).await?;
        Ok(Self { id, plan: kept.plan.clone(), orders })
    }

    /// Takes over a batch that nobody runs. `force` goes on although its tasks or harnesses are not what they were.
    ///
    /// # Errors
    /// If there is no such batch, another process runs it, it was cancelled, or its tasks or harnesses have changed.
    pub async fn resume(ledger: &Ledger<'_>, id: BatchId, catalog: &Catalog, force: bool) -> anyhow::Result<Self> {
        let kept = Kept::read(ledger.store, id).await?;
        let orders = kept.plan.orders(catalog)?;
        if !force {
            kept.unchanged(id, &orders)?;
        }
        ledger.recorder.write(Write::BatchStatus(id, BatchStatus::Running)).await?;
        Ok(Self { id, plan: kept.plan, orders })
    }

    /// Runs the places that are not filled. A rollout that goes wrong is no error; what became of each stands in the store, see
    /// [`Standing`]. Whatever happens the batch is not running afterwards: it is done if all places are filled, else stopped.
    ///
    /// # Errors
    /// If the engine does not answer for too long, or records can't be kept. Also if the batch has one order only and that one
    /// can't be prepared (its image is missing, its payload can't be built): then nothing was run.
    pub async fn run(&self, stage: &Stage<'_>, ledger: &Ledger<'_>) -> anyhow::Result<()> {
        let ended = crew::run(self, stage, ledger).await;
        let status = match ended {
            Ok(true) => BatchStatus::Done,
            Ok(false) | Err(_) => BatchStatus::Stopped,
        };
        let noted = ledger.recorder.write(Write::BatchStatus(self.id, status)).await;
        ended?;
        Ok(noted?)
    }
}
