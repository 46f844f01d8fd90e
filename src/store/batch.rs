//! Batches as they are kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::BatchId;

/// A batch to be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NewBatch {
    pub id: BatchId,
    /// Unix time in milliseconds.
    pub created_at: i64,
    /// What it is, as the runner wrote it down: it goes on from that.
    pub plan: Value,
    /// Rollouts that it is to have.
    pub rollouts: u64,
}

/// A batch as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub id: BatchId,
    pub created_at: i64,
    pub plan: Value,
    pub rollouts: u64,
    pub status: BatchStatus,
}

/// A batch in short, without its plan, which may be as large as all its tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchBrief {
    pub id: BatchId,
    pub created_at: i64,
    pub rollouts: u64,
    pub status: BatchStatus,
}

impl Batch {
    /// The same in short.
    #[must_use]
    pub fn brief(&self) -> BatchBrief {
        let Self { id, created_at, rollouts, status, .. } = *self;
        BatchBrief { id, created_at, rollouts, status }
    }
}

/// Whether a batch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// A process that lives runs it.
    Running,
    /// The process that ran it died, or was told to end: it can be resumed.
    Stopped,
    /// Somebody who ordered it does not want it any more.
    Cancelled,
    /// All its rollouts have ended.
    Done,
}
