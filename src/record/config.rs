//! The `[record]` section.

use serde::{Deserialize, Serialize};

/// How the recorder queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordConfig {
    /// Writes that may wait for the store; when so many do, calls wait before they begin.
    pub queue: usize,
    /// How many alternatives of each sampled token policies are asked for; they are kept in the raw replies.
    pub top_logprobs: u32,
}

impl Default for RecordConfig {
    fn default() -> Self {
        Self { queue: 1024, top_logprobs: 0 }
    }
}
