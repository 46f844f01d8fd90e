//! Ends a harness that fills the disk, where the engine does not bound it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::engine::{Engine, SandboxId};

/// Between two looks. Who writes as fast as the disk can is some gigabytes past the bound then.
const EVERY: Duration = Duration::from_secs(5);
/// Looking at a sandbox with many files takes long; no more than one part of so many of the time goes into it.
const SHARE: u32 = 50;

/// Waits until a sandbox has used more of the disk than `limit`, and gives the bytes; for ever if there is no limit or the engine
/// keeps it.
pub(super) async fn overfull(engine: &dyn Engine, sandbox: &SandboxId, limit: Option<u64>) -> u64 {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut pause = EVERY;
    loop {
        sleep(pause).await;
        let began = Instant::now();
        match engine.disk_used(sandbox).await {
            Ok(Some(used)) if used > limit => return used,
            Ok(None) => return std::future::pending().await,
            // A sandbox that can't be looked at is no fuller for it.
            Ok(Some(_)) | Err(_) => {}
        }
        pause = EVERY.max(began.elapsed() * SHARE);
    }
}
