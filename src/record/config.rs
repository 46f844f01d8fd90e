//! The `[record]` section.

use serde::{Deserialize, Serialize};

/// How the recorder queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordConfig {
    /// Writes that may wait for the store; when so many do, calls wait before they begin.
    pub queue: usize,
}

impl Default for RecordConfig {
    fn default() -> Self {
        Self { queue: 1024 }
    }
}
