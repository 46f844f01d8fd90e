//! Which processes live: each that writes holds a lock on a file of its own beside the database.
//!
//! A lock ends with its process however that ends, unlike a file with a process number in it; and it is seen from other pid
//! namespaces, as long as they share the file.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::ids::ProcessId;

/// The folder of the processes' files.
pub(super) fn folder(database: &Path) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push("-processes");
    database.with_file_name(name)
}

/// A living process's lock; its file goes when it is dropped.
#[derive(Debug)]
pub(super) struct ProcessLock {
    path: PathBuf,
    _file: File,
}

impl ProcessLock {
    /// Locks the file of `process`.
    pub(super) fn take(folder: &Path, process: ProcessId) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(process.to_string());
        // Locked before it has its name, so that nobody meets it unlocked.
        let unnamed = folder.join(format!("{process}.new"));
        let file = File::create(&unnamed)?;
        file.lock()?;
        std::fs::rename(&unnamed, &path)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        // A file that stays is met unlocked, and removed, by the next writer.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Tells whether `process` lives. One that can't be asked counts as living: to end its calls would be worse.
pub(super) fn lives(folder: &Path, process: ProcessId) -> bool {
    match File::open(folder.join(process.to_string())) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        // Shared, so that two who ask don't take each other for the owner.
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        },
    }
}

/// Removes the file of a process that is dead.
pub(super) fn forget(folder: &Path, process: ProcessId) {
    // One that stays does no harm: its row is gone, so it is never asked for again.
    let _ = std::fs::remove_file(folder.join(process.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_as_long_as_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(&dir.path().join("g.db"));
        assert!(folder.ends_with("g.db-processes"));
        let process = ProcessId::generate();
        assert!(!lives(&folder, process));
        let lock = ProcessLock::take(&folder, process).unwrap();
        assert!(lives(&folder, process));
        drop(lock);
        assert!(!lives(&folder, process));
        // A file that a crash left is not locked.
        std::fs::write(folder.join(process.to_string()), "").unwrap();
        assert!(!lives(&folder, process));
        forget(&folder, process);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }
}
