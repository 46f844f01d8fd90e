//! Where rollouts and calls are kept. SQLite now; the trait is the seam for others.
//!
//! All writing goes through one [`Writer`], which the recorder owns; reading goes through [`Store`] from anywhere.

mod artifacts;
mod batch;
mod blob;
#[cfg(test)]
mod blob_tests;
mod body;
mod chain;
mod config;
mod delta;
mod pack;
mod packing;
mod rollout;
mod sqlite;
mod upkeep;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::{CallEnd, CallRecord, CallStart, ImageHash, RawKind, WeightVersion};
use crate::ids::{BatchId, CallId, ProcessId, RolloutId, RolloutKey};

pub use artifacts::{Artifact, Artifacts};
pub use batch::{Batch, BatchBrief, BatchStatus, NewBatch};
pub use config::{Durability, StoreConfig, default_path, folder};
pub use rollout::{Finish, NewRollout, Outcome, Purpose, Reward, Rollout, RolloutFilter, RolloutStatus, RunOf};
pub use upkeep::{Checked, Fault, Prune, Pruned};

/// Opens the store at `sqlite:PATH`, `sqlite://PATH` or a plain path; a missing file is created with its folder, an older
/// store is migrated. `process` names the running process, whose calls count as interrupted once it has died.
///
/// # Errors
/// If there is no such kind of store, it can't be read or made, or a newer Gleaner wrote it.
pub async fn open(url: &str, config: &StoreConfig, process: ProcessId) -> Result<Arc<dyn Store>, StoreError> {
    let path = config::sqlite_path(url)?;
    Ok(Arc::new(sqlite::SqliteStore::open(&path, config, process).await?))
}

/// The form that an open store has: it grows with what stores are migrated to.
#[must_use]
pub fn version() -> i64 {
    sqlite::version()
}

/// The file of the store.
///
/// # Errors
/// If its URL names none.
pub fn file(config: &StoreConfig) -> Result<std::path::PathBuf, StoreError> {
    config::sqlite_path(&config.location())
}

/// A place that keeps rollouts and calls.
#[async_trait]
pub trait Store: Send + Sync {
    /// Takes the store's one writer of this process. Blocks for a moment: what dead processes left open is ended first.
    ///
    /// # Errors
    /// If the store can't be written, or the writer was taken already.
    fn writer(&self) -> Result<Box<dyn Writer>, StoreError>;

    /// Where the store is, for people.
    fn describe(&self) -> String;

    /// The files that runs left.
    fn artifacts(&self) -> &Artifacts;

    async fn rollout(&self, id: RolloutId) -> Result<Option<Rollout>, StoreError>;
    async fn rollout_by_key(&self, key: &RolloutKey) -> Result<Option<Rollout>, StoreError>;
    async fn rollout_by_idempotency_key(&self, key: &str) -> Result<Option<Rollout>, StoreError>;
    /// The newest open rollout that calls of this conversation (`[server] open`) belong to.
    async fn rollout_by_conversation(&self, conversation: &str) -> Result<Option<Rollout>, StoreError>;
    /// One page, oldest first.
    async fn rollouts(&self, filter: &RolloutFilter) -> Result<Vec<Rollout>, StoreError>;

    async fn batch(&self, id: BatchId) -> Result<Option<Batch>, StoreError>;
    /// One page, oldest first, of those after `after`; all if `limit` is 0.
    async fn batches(&self, after: Option<BatchId>, limit: u32) -> Result<Vec<BatchBrief>, StoreError>;
    /// How many of a batch's rollouts have ended, replaced ones not counted.
    async fn ended(&self, batch: BatchId) -> Result<u64, StoreError>;

    async fn call(&self, id: CallId) -> Result<Option<CallRecord>, StoreError>;
    /// All calls of a rollout, in the order in which they began.
    async fn calls(&self, rollout: RolloutId) -> Result<Vec<CallRecord>, StoreError>;
    /// A call's raw bytes; `None` if there is no such call. Empty if it has none of that kind.
    async fn raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError>;
    /// The weights that each policy had last, by its name.
    async fn weight_versions(&self) -> Result<BTreeMap<String, WeightVersion>, StoreError>;
    /// The bytes of an image that a request had.
    async fn image(&self, hash: ImageHash) -> Result<Option<Bytes>, StoreError>;

    /// Reads all that is kept, and says what is not as it was written.
    ///
    /// # Errors
    /// If nothing can be read. What is damaged is among the faults, and the rest is read.
    async fn check(&self) -> Result<Checked, StoreError>;

    /// Deletes rollouts whole, with all that is theirs alone, each in a transaction of its own. Blocks: for a command's own thread.
    ///
    /// # Errors
    /// If the store can't be written; those before it are gone, those after it are whole.
    fn prune(&self, rollouts: &[RolloutId], how: Prune) -> Result<Pruned, StoreError>;
}

/// The one writer. Blocking: it lives on a thread of its own. Dropping it leaves the store in order.
pub trait Writer: Send {
    /// Writes a batch in one transaction, and returns once it is committed to the configured durability. Says for each write
    /// whether it was kept: one that is bad in itself fails alone. The writer stays usable whatever fails.
    fn apply(&mut self, batch: &[Write]) -> Vec<Result<(), StoreError>>;

    /// Does what is due between batches.
    fn idle(&mut self);
}

/// One thing to write.
#[derive(Clone, Debug)]
pub enum Write {
    CallStart(Arc<CallStart>),
    /// Brings its start with it where that one was not kept.
    CallEnd(Box<CallEnd>),
    /// The reply's last byte was handed to the client.
    Delivered(CallId),
    /// Kept if no rollout has its idempotency key or its id yet.
    NewRollout(Box<NewRollout>),
    Reward(Reward),
    Finish(Finish),
    /// A policy has these weights from now on.
    PolicyVersion {
        policy: String,
        version: WeightVersion,
    },
    NewBatch(Box<NewBatch>),
    /// What becomes of a batch; [`BatchStatus::Running`] is this process taking it over, which fails while another that lives has it.
    BatchStatus(BatchId, BatchStatus),
    /// Nothing: who waits for it waits for all that was written before.
    Barrier,
}

/// What can go wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the store's disk is full ({0}); make room, calls go on by themselves")]
    Full(String),
    #[error("the store is locked by another process ({0}); calls go on once it is free")]
    Locked(String),
    #[error("the store can't be written ({0}); check the folder's permissions")]
    ReadOnly(String),
    #[error("the store was written by a newer Gleaner ({0}); use that version or another database")]
    Newer(String),
    #[error("the store failed: {0}")]
    Other(String),
}

impl StoreError {
    /// Tells whether it lies in the store's surroundings, not in what was written: the same write may do later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Locked(_) | Self::ReadOnly(_))
    }
}
