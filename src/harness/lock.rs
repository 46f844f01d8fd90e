//! Locks over processes: of several that want the same thing made, one makes it and the others wait.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use tokio_util::sync::CancellationToken;

/// Takes the lock that this file is; it is free again when the file is dropped, or its process ends. `tell` is told if it must wait.
///
/// # Errors
/// If the file can't be made or locked, or on `cancel`.
pub(super) async fn lock(path: &Path, tell: &(dyn Fn(&str) + Send + Sync), cancel: &CancellationToken) -> io::Result<File> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => tell("waiting for another process that builds it"),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let waiting = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    tokio::select! {
        locked = waiting => locked.map_err(io::Error::other)?,
        () = cancel.cancelled() => Err(io::Error::from(io::ErrorKind::Interrupted)),
    }
}
