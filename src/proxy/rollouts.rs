//! Rollouts that take calls: which there are, which calls they have in flight, and their end.

use crate::ids::{RolloutId, RolloutKey};
use crate::store::{Finish, NewRollout, Rollout, StoreError};

/// The rollouts of the store, with what only a running process knows of them.
#[derive(Debug)]
pub struct Rollouts {}

impl Rollouts {
    /// Keeps a new rollout. If its idempotency key is known already, gives the rollout that has it.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn create(&self, _new: NewRollout) -> Result<Rollout, StoreError> {
        todo!()
    }

    /// The rollout of this key; finished ones too.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn by_key(&self, _key: &RolloutKey) -> Result<Option<RolloutId>, StoreError> {
        todo!()
    }

    /// Ends a rollout: calls in flight are cancelled and their ends recorded, later ones are refused. Ending an ended one gives
    /// it as it is.
    ///
    /// # Errors
    /// If there is no such rollout, or the store fails.
    pub async fn finish(&self, _finish: Finish) -> Result<Rollout, FinishError> {
        todo!()
    }
}

/// Why a rollout could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum FinishError {
    #[error("there is no rollout {0}")]
    Unknown(RolloutId),
    #[error(transparent)]
    Store(#[from] StoreError),
}
