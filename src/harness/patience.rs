//! Waiting for an engine that does not answer: it may have been restarted.

use std::time::Duration;

use tokio::time::Instant;

use super::{Progress, Stage};
use crate::engine::EngineError;

/// Between two questions; each time twice as long, up to the last.
const FIRST: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_millis(500) };
const LAST: Duration = Duration::from_secs(10);

/// Waits until the engine answers, for as long as the config says (`engine_wait_s`), and no longer than the rollouts are wanted.
///
/// # Errors
/// If it does not.
pub(super) async fn answers(stage: &Stage<'_>) -> Result<(), EngineError> {
    let until = Instant::now() + Duration::from_secs(stage.config.engine_wait_s);
    let mut pause = FIRST;
    loop {
        let Err(error) = stage.engine.ready().await else { return Ok(()) };
        if stage.cancel.is_cancelled() || Instant::now() + pause > until {
            return Err(error);
        }
        (stage.progress)(Progress::Waiting { why: error.to_string() });
        stage.cancel.run_until_cancelled(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(LAST);
    }
}
