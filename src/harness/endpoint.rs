//! What the runner needs of whoever serves the model: handed in from above.

use std::collections::BTreeMap;
use std::path::Path;

use async_trait::async_trait;

use crate::ids::RolloutId;
use crate::store::{Finish, NewRollout, Reward, Rollout};

/// The model as the runner's rollouts reach it, and where their records are kept.
#[async_trait]
pub trait ModelEndpoint: Send + Sync {
    /// Keeps a new rollout and serves its model calls, and nothing else, on a unix socket at `socket`, which any user may
    /// connect to, until the rollout is closed. `signature` is what the harness's own calls look like: header names and patterns of
    /// their values.
    async fn open(&self, rollout: NewRollout, signature: &BTreeMap<String, String>, socket: &Path) -> anyhow::Result<()>;

    /// Keeps a reward.
    async fn reward(&self, reward: Reward) -> anyhow::Result<()>;

    /// Ends a rollout: calls in flight are cancelled, its socket is closed. Gives it as it stands then.
    async fn close(&self, finish: Finish) -> anyhow::Result<Rollout>;

    /// Counts the places where a prompt parts from an earlier reply that reads the same.
    async fn drift(&self, rollout: RolloutId) -> anyhow::Result<u64>;
}
