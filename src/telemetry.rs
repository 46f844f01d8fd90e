//! Logs and metrics of the process, and its clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time now: Unix time in milliseconds.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
