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
    /// Rollouts at once.
    pub concurrency: usize,
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
            concurrency: 2,
            log_limit_bytes: 16 << 20,
            result_limit_bytes: 64 << 20,
            artifact_limit_bytes: 64 << 20,
            patch_limit_bytes: 16 << 20,
        }
    }
}
