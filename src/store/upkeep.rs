//! Looking after a store: whether all of it is as it was written, and making room.

use serde::Serialize;

use crate::ids::{CallId, RolloutId};

/// What a look at all of a store came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub rollouts: u64,
    pub calls: u64,
    /// Raw bodies that were unpacked, with their checksums looked at.
    pub bodies: u64,
    /// Blobs whose hash was taken anew.
    pub blobs: u64,
    pub faults: Vec<Fault>,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub rollout: Option<RolloutId>,
    pub call: Option<CallId>,
    /// What of it: `record`, a raw body (`request`, `upstream`, `response`, `prompt`), `samples`, a table or `file`.
    pub part: String,
    /// What is wrong, for people.
    pub what: String,
}

/// What may be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prune {
    /// Rollouts that are open too; otherwise they are passed over.
    pub open: bool,
    /// Nothing: say only what would go.
    pub dry_run: bool,
    /// Write the file anew afterwards. Nobody else can write meanwhile, and it takes the store's size on the disk once more.
    pub vacuum: bool,
}

/// What was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub rollouts: u64,
    pub calls: u64,
    pub blobs: u64,
    /// Bytes of their bodies and tokens, as they were kept.
    pub bytes: u64,
    /// Bytes of the files that their runs left.
    pub artifact_bytes: u64,
    /// Rollouts that were passed over: open, with a call in flight, or gone meanwhile.
    pub passed_over: u64,
    /// Bytes of the database's file before and after.
    pub file_before: u64,
    pub file_after: u64,
}
