//! SQLite's errors as ours.

use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

use crate::store::StoreError;

/// The extended code of a shared memory file that could not grow, which is what a full disk does to it.
const IOERR_SHMSIZE: i32 = 4874;

/// What `error` means for the store at `path`.
pub(super) fn of_writer(error: &rusqlite::Error, path: &Path) -> StoreError {
    of_code(error.sqlite_error().map(|error| error.extended_code), &error.to_string(), path)
}

/// What `error` means for the store at `path`.
pub(super) fn of_reader(error: &sqlx::Error, path: &Path) -> StoreError {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).and_then(|code| code.parse().ok());
    of_code(code, &error.to_string(), path)
}

/// What an error of the file system means for the store at `path`.
pub(super) fn of_io(error: &io::Error, path: &Path) -> StoreError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(text),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly(text),
        _ => StoreError::Other(text),
    }
}

fn of_code(extended: Option<i32>, message: &str, path: &Path) -> StoreError {
    let text = format!("{}: {message}", path.display());
    let Some(extended) = extended else { return StoreError::Other(text) };
    match rusqlite::ffi::Error::new(extended).code {
        ErrorCode::DiskFull => StoreError::Full(text),
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Locked(text),
        ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied => StoreError::ReadOnly(text),
        ErrorCode::SystemIoFailure if extended == IOERR_SHMSIZE || is_full(path) => StoreError::Full(text),
        _ => StoreError::Other(text),
    }
}

/// SQLite says only "disk I/O error" for some writes that found no room: a write of our own tells.
fn is_full(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return false };
    let probe = folder.join(format!(".gleaner-probe-{}", std::process::id()));
    let written = std::fs::write(&probe, [1; 16 * 1024]);
    // Nothing depends on the probe: one that can't be removed is written over by the next.
    let _ = std::fs::remove_file(&probe);
    written.is_err_and(|error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}
