//! Rollouts as they are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call::Sampling;
use crate::ids::{BatchId, CallId, RolloutId, RolloutKey};

/// A rollout to be kept.
#[derive(Clone, Debug)]
pub struct NewRollout {
    pub id: RolloutId,
    pub key: RolloutKey,
    /// Unix time in milliseconds.
    pub created_at: i64,
    pub purpose: Purpose,
    pub task_id: Option<String>,
    pub group_id: Option<String>,
    pub group_size: Option<u32>,
    pub harness: Option<String>,
    pub policy: Option<String>,
    /// Pinned for every call of the rollout.
    pub sampling: Sampling,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub ttl_s: Option<u64>,
    pub idempotency_key: Option<String>,
    /// The harness's own conversation id, for rollouts that calls without a key open or join.
    pub conversation: Option<String>,
    /// Its place among the rollouts of its group, from 0; the next free one if `None`. One that replaces another has the same.
    pub index: Option<u32>,
    /// What it was run for, if it was run: only the process that runs it can end it, so it ends with that process.
    pub run: Option<RunOf>,
}

/// What a rollout that Gleaner runs itself was run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOf {
    pub batch: BatchId,
    /// Which try it is, from 1: a rollout that ended for no fault of harness or model is replaced by another.
    pub attempt: u32,
}

/// A rollout as it stands.
#[derive(Clone, Debug)]
pub struct Rollout {
    pub id: RolloutId,
    pub key: RolloutKey,
    pub status: RolloutStatus,
    pub outcome: Option<Outcome>,
    /// Rollouts of a group count from 0.
    pub index: u32,
    pub created_at: i64,
    pub ended_at: Option<i64>,
    pub last_call_at: Option<i64>,
    pub purpose: Purpose,
    pub task_id: Option<String>,
    pub group_id: Option<String>,
    pub group_size: Option<u32>,
    pub harness: Option<String>,
    pub policy: Option<String>,
    pub sampling: Sampling,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub ttl_s: Option<u64>,
    pub no_reward: bool,
    pub run: Option<RunOf>,
    /// The rollout's rewards by name; the one that counts is named `reward`.
    pub rewards: BTreeMap<String, f64>,
    /// Rewards of single calls.
    pub call_rewards: Vec<(CallId, String, f64)>,
    /// Calls begun.
    pub calls: u64,
    /// Tokens sampled, by the servers' counts or, where they gave none, by the ids.
    pub tokens: u64,
    /// Why it ended as it did: exit code, result, last lines; an object.
    pub evidence: Option<serde_json::Value>,
    /// The weight versions of its calls, in order of first use.
    pub policy_versions: Vec<String>,
}

impl Rollout {
    /// The name of the reward that counts.
    pub const REWARD: &str = "reward";

    /// The reward that counts.
    #[must_use]
    pub fn reward(&self) -> Option<f64> {
        self.rewards.get(Self::REWARD).copied()
    }
}

/// Whether a rollout takes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutStatus {
    Open,
    Finished,
}

/// What a rollout is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Train,
    Eval,
    Record,
}

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed,
    Truncated,
    TimedOut,
    HarnessError,
    InfraError,
    Cancelled,
}

impl Outcome {
    /// Its name, as people and files have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Truncated => "truncated",
            Self::TimedOut => "timed_out",
            Self::HarnessError => "harness_error",
            Self::InfraError => "infra_error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A reward for a rollout or for one of its calls; a repeat replaces.
#[derive(Clone, Debug)]
pub struct Reward {
    pub rollout_id: RolloutId,
    pub call_id: Option<CallId>,
    pub name: String,
    pub value: f64,
}

/// The end of a rollout; a repeat changes nothing.
#[derive(Clone, Debug)]
pub struct Finish {
    pub rollout_id: RolloutId,
    /// Unix time in milliseconds.
    pub at: i64,
    pub outcome: Outcome,
    pub no_reward: bool,
    pub evidence: Option<serde_json::Value>,
}

/// Which rollouts to list.
#[derive(Clone, Debug, Default)]
pub struct RolloutFilter {
    pub status: Option<RolloutStatus>,
    pub group_id: Option<String>,
    pub task_id: Option<String>,
    pub harness: Option<String>,
    pub outcome: Option<Outcome>,
    pub purpose: Option<Purpose>,
    pub batch: Option<BatchId>,
    /// Only those after this one.
    pub after: Option<RolloutId>,
    /// At most so many; 0 means no limit.
    pub limit: u32,
}
