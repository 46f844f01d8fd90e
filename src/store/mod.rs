//! Where rollouts and calls are kept. SQLite now; the trait is the seam for others.
//!
//! All writing goes through one [`Writer`], which the recorder owns; reading goes through [`Store`] from anywhere.

mod rollout;
mod sqlite;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::{CallEnd, CallRecord, CallStart, RawKind};
use crate::ids::{CallId, RolloutId, RolloutKey};

pub use rollout::{Finish, NewRollout, Outcome, Purpose, Reward, Rollout, RolloutFilter, RolloutStatus};

/// A place that keeps rollouts and calls.
#[async_trait]
pub trait Store: Send + Sync {
    /// Takes the store's one writer of this process.
    ///
    /// # Errors
    /// If the store can't be written.
    fn writer(&self) -> Result<Box<dyn Writer>, StoreError>;

    /// Where the store is, for people.
    fn describe(&self) -> String;

    async fn rollout(&self, id: RolloutId) -> Result<Option<Rollout>, StoreError>;
    async fn rollout_by_key(&self, key: &RolloutKey) -> Result<Option<Rollout>, StoreError>;
    async fn rollout_by_idempotency_key(&self, key: &str) -> Result<Option<Rollout>, StoreError>;
    /// The newest open rollout that calls of this conversation (`[server] open`) belong to.
    async fn rollout_by_conversation(&self, conversation: &str) -> Result<Option<Rollout>, StoreError>;
    /// One page, oldest first.
    async fn rollouts(&self, filter: &RolloutFilter) -> Result<Vec<Rollout>, StoreError>;

    async fn call(&self, id: CallId) -> Result<Option<CallRecord>, StoreError>;
    /// All calls of a rollout, in the order in which they began.
    async fn calls(&self, rollout: RolloutId) -> Result<Vec<CallRecord>, StoreError>;
    /// A call's raw bytes; `None` if there is no such call. Empty if it has none of that kind.
    async fn raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError>;
}

/// The one writer. Blocking: it lives on a thread of its own.
pub trait Writer: Send {
    /// Writes a batch in one transaction, and returns once it is committed to the configured durability.
    ///
    /// # Errors
    /// If nothing of the batch was kept. The writer stays usable.
    fn apply(&mut self, batch: &[Write]) -> Result<(), StoreError>;

    /// Does what is due between batches (checkpoints).
    fn idle(&mut self);
}

/// One thing to write.
#[derive(Clone, Debug)]
pub enum Write {
    CallStart(std::sync::Arc<CallStart>),
    CallEnd(Box<CallEnd>),
    /// The reply's last byte was handed to the client.
    Delivered(CallId),
    /// Kept if no rollout has its idempotency key or its id yet.
    NewRollout(Box<NewRollout>),
    Reward(Reward),
    Finish(Finish),
}

/// What can go wrong with a store.
#[derive(Debug, thiserror::Error)]
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
