//! Moves what was committed from the write-ahead log into the database, beside the writer and not inside its commits.
//!
//! SQLite's automatic checkpoint runs in the commit that fills the log: the 10 to 20 ms that one call in a thousand then waits
//! were measured. Here a second connection does it about each second; PASSIVE waits for nobody and holds nobody up. Under load
//! it never quite catches up, and a log that isn't wholly moved only grows; so once it is large, the writer itself moves the
//! few pages that are left, between two batches, and then begins the log anew.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use crate::store::StoreError;

/// How often the log is moved.
const EVERY: Duration = Duration::from_secs(1);
/// Pages (of 4 KiB) after which the log is begun anew.
const LARGE: i64 = 16 * 1024;

/// The thread that moves the log.
pub(super) struct Checkpointer {
    state: Arc<State>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Something was committed since the last round.
    dirty: AtomicBool,
    /// The log is large and moved but for its last pages.
    large: AtomicBool,
}

impl Checkpointer {
    /// Starts the thread, with a connection of its own.
    pub(super) fn start(path: &Path, db: Connection) -> Result<Self, StoreError> {
        let state = Arc::<State>::default();
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&state);
        let run = move || {
            let mut failing = false;
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if shared.dirty.swap(false, Ordering::Relaxed) {
                    round(&db, &shared, &mut failing);
                }
            }
        };
        let thread = std::thread::Builder::new().name("gleaner-checkpoint".into()).spawn(run);
        let thread = thread.map_err(|error| super::error::of_io(&error, path))?;
        Ok(Self { state, stop: Some(stop), thread: Some(thread) })
    }

    /// Notes that something was committed.
    pub(super) fn committed(&self) {
        self.state.dirty.store(true, Ordering::Relaxed);
    }

    /// Tells, once, whether the log waits for the writer to move its last pages.
    pub(super) fn wants_writer(&self) -> bool {
        self.state.large.load(Ordering::Relaxed) && self.state.large.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // Only a bug of ours panics there, and it was printed.
            let _ = thread.join();
        }
    }
}

fn round(db: &Connection, state: &State, failing: &mut bool) {
    let moved = move_log(db, "PASSIVE");
    match &moved {
        Ok(pages) => state.large.store(*pages > LARGE, Ordering::Relaxed),
        // The records are safe in the log; the next round tries again.
        Err(error) => {
            state.dirty.store(true, Ordering::Relaxed);
            if !*failing {
                tracing::warn!(%error, "could not move the store's log into the database");
            }
        }
    }
    *failing = moved.is_err();
}

/// Moves the log, and says how many pages it holds.
pub(super) fn move_log(db: &Connection, mode: &str) -> rusqlite::Result<i64> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| row.get(1))
}
