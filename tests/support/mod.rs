//! What the outside checks share: a scripted model server, the binary under test, and clients of our own.
//!
//! Nothing here uses the crate itself: what it says must be found out from outside.

#![allow(dead_code, reason = "each test crate uses its own part of this module")]
#![allow(unused_imports, reason = "each test crate uses its own part of this module")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::format_push_string,
    clippy::print_stderr,
    reason = "tests"
)]

pub mod chat;
pub mod client;
pub mod dockerd;
pub mod gemini;
pub mod gleaner;
pub mod http1;
pub mod messages;
pub mod policy;
pub mod record;
pub mod responses;
pub mod run;
pub mod turns;

use std::time::Duration;

/// The longest that any single step of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Whether what takes minutes is to be run too (`make test-all`); if not, it is said what is left to that.
pub fn is_wide(what: &str) -> bool {
    let wide = std::env::var_os("GLEANER_TEST_WIDE").is_some();
    if !wide {
        eprintln!("{what} is left to make test-all");
    }
    wide
}

/// Waits for a step, and fails with its name if it takes too long.
pub async fn within<T>(what: &str, step: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, step).await.unwrap_or_else(|_| panic!("{what} took more than {PATIENCE:?}"))
}

/// Asks again and again until `ask` gives something.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}
