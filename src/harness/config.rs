//! The config's section `[rollout]`.

use serde::{Deserialize, Serialize};

/// How rollouts run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutConfig {
    /// Seconds that a harness may take where neither user, task nor harness says so.
    pub timeout_s: u64,
    /// Seconds that a verifier may take; one that takes longer gives reward 0.
    pub verify_timeout_s: u64,
    /// Calls to the model that a rollout may make where neither user nor harness says so; foreign ones count.
    pub max_calls: u64,
    /// Tokens that a rollout may sample where neither user nor harness says so: no call begins once so many were.
    pub max_tokens: u64,
    /// Harnesses at once. As many rollouts again may be prepared, verified and cleared away meanwhile.
    pub concurrency: usize,
    /// Tries of each rollout that ends for no fault of harness or model (`infra_error`).
    pub attempts: u32,
    /// Seconds that rollouts wait for an engine that does not answer any more before the batch is stopped.
    pub engine_wait_s: u64,
    /// Seconds that a rollout waits for a policy that is down and has answered it before; for one that has not, the policy's own
    /// `retry_s`.
    pub policy_wait_s: u64,
    /// A server that starts goes on with the batches that one ran before.
    pub resume: bool,
    /// Of longer output the end is kept.
    pub log_limit_bytes: usize,
    /// Of a result file no more is read.
    pub result_limit_bytes: usize,
    /// Of the files that task and harness name to be kept, so many bytes together; each at most `log_limit_bytes`. Of a sandbox's
    /// temporary files so many come with it into a verifier's copy.
    pub artifact_limit_bytes: usize,
    /// A patch that is longer is not taken, and so gets no reward.
    pub patch_limit_bytes: usize,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            timeout_s: 1_800,
            verify_timeout_s: 600,
            max_calls: 500,
            max_tokens: 1_000_000,
            concurrency: 2,
            attempts: 3,
            engine_wait_s: 300,
            policy_wait_s: 600,
            resume: true,
            log_limit_bytes: 16 << 20,
            result_limit_bytes: 64 << 20,
            artifact_limit_bytes: 64 << 20,
            patch_limit_bytes: 16 << 20,
        }
    }
}
