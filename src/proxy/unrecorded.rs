//! Calls whose end the store did not take: their clients were told so, and the store is told as soon as it takes it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{CallEnd, CallStart, CallStatus, Capture, Failure, RawParts, Sampling, WeightVersion};
use crate::telemetry::now_ms;

use super::App;

const AGAIN: Duration = Duration::from_secs(1);

/// Tries to record that a call failed until the store takes it or the process ends. Its bytes are let go, so that a store that
/// stays full costs little memory for each call.
pub(super) fn keep_trying(app: &Arc<App>, start: &CallStart, failure: Failure) {
    let start = Arc::new(CallStart { request: Bytes::new(), ..start.clone() });
    let (stopping, recorder) = (app.stopping.clone(), app.recorder.clone());
    app.tasks.spawn(async move {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
            if recorder.call_ended(Box::new(end(&start, &failure))).await.is_ok() {
                return;
            }
        }
    });
}

fn end(start: &Arc<CallStart>, failure: &Failure) -> CallEnd {
    CallEnd {
        start: Arc::clone(start),
        ended_at: now_ms(),
        first_event_at: None,
        status: CallStatus::Failed,
        failure: Some(failure.clone()),
        raw: RawParts::default(),
        message: None,
        finish: None,
        usage: None,
        capture: Capture::default(),
        sampling_asked: Sampling::default(),
        sampling_used: Sampling::default(),
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: vec!["the call's bytes were let go while the store could not take them".to_owned()],
    }
}
