//! The way of a call through Gleaner: [`handle`] is the whole of it, straight down.

mod rollouts;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ids::ProcessId;
use crate::policy::Policy;
use crate::record::Recorder;
use crate::store::Store;

pub use rollouts::{FinishError, Rollouts};

/// Everything a running Gleaner shares.
pub struct App {
    /// The policies by name; calls go to `default` unless their rollout names another.
    pub policies: BTreeMap<String, Arc<dyn Policy>>,
    /// Where rollouts and calls are read.
    pub store: Arc<dyn Store>,
    /// Where they are written.
    pub recorder: Recorder,
    /// The rollouts that take calls.
    pub rollouts: Rollouts,
    /// This process, as its calls name it.
    pub process_id: ProcessId,
    /// Tasks that outlive a request; awaited at the end.
    pub tasks: TaskTracker,
    /// Cancelled when no new calls are to be taken.
    pub draining: CancellationToken,
}
