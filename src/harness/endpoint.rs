//! What the runner needs of whoever serves the model: handed in from above.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use super::run::Cap;
use crate::call::Failure;
use crate::ids::RolloutId;
use crate::store::{Finish, NewRollout, Reward, Rollout};

/// On which terms a rollout's model calls are served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// What the harness's own calls look like: header names and patterns of their values.
    pub signature: BTreeMap<String, String>,
    /// Calls that it may make, foreign ones included.
    pub max_calls: Option<u64>,
    /// Tokens that it may sample: no call begins once so many were.
    pub max_tokens: Option<u64>,
    /// How long a policy that is down is waited for, once it has answered a call of this rollout.
    pub patience: Duration,
}

/// What a rollout's model calls came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Served {
    /// Calls begun.
    pub begun: u64,
    /// Calls that got their reply whole.
    pub answered: u64,
    /// Calls refused because the terms were used up. Only the first of them is recorded.
    pub refused: u64,
    /// Why the last call got no reply, if it got none. Calls that the harness itself broke off don't count, nor refused ones.
    pub failed: Option<Failure>,
}

/// The model as the runner's rollouts reach it, and where their records are kept.
#[async_trait]
pub trait ModelEndpoint: Send + Sync {
    /// Keeps a new rollout and serves its model calls, and nothing else, on a unix socket at `socket`, which any user may
    /// connect to, until the rollout is sealed or closed.
    async fn open(&self, rollout: NewRollout, terms: &Terms, socket: &Path) -> anyhow::Result<()>;

    /// Waits until the rollout asks for more than its terms allow. May be broken off and asked again.
    async fn capped(&self, rollout: RolloutId) -> Cap;

    /// Waits until whether the rollout's policy is paused is other than `now`.
    async fn paused(&self, rollout: RolloutId, now: bool) -> bool;

    /// Calls begun so far.
    fn turns(&self, rollout: RolloutId) -> u64;

    /// The tokens that prompt and reply may have together, as the policy of this name (the one that calls go to by themselves
    /// if `None`) says; `None` if it does not.
    async fn window(&self, policy: Option<&str>) -> Option<u64>;

    /// Takes no more calls: those in flight are cancelled, the socket is closed. The rollout stays open for its verdict. Gives what
    /// its calls came to.
    async fn seal(&self, rollout: RolloutId) -> Served;

    /// Keeps a reward.
    async fn reward(&self, reward: Reward) -> anyhow::Result<()>;

    /// Ends a rollout: calls in flight are cancelled, its socket is closed. Gives it as it stands then.
    async fn close(&self, finish: Finish) -> anyhow::Result<Rollout>;

    /// Counts the places where a prompt parts from an earlier reply that reads the same.
    async fn drift(&self, rollout: RolloutId) -> anyhow::Result<u64>;
}
