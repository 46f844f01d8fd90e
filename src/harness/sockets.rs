//! The folder of a rollout's sockets, mounted into its sandbox.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::ids::RolloutId;

const ROOT: &str = "/tmp";
const PREFIX: &str = "gleaner-";
/// The socket that the model answers on.
pub(super) const MODEL: &str = "model.sock";
/// The socket that the sandbox's init connects to.
pub(super) const CONTROL: &str = "control.sock";
/// What a folder is named until it is locked.
const UNLOCKED: &str = "new-gleaner-";
/// One that is not locked is being made, or was left by a process that died while it did. That takes no time.
const MAKING: Duration = Duration::from_hours(1);

/// The folder of a rollout's sockets on the host, removed at the end. Its path is short: a socket's may have 107 bytes. It is locked
/// from the moment that it has its name, so that one whose process has died is told from one that has no sockets yet.
pub(super) struct SocketFolder {
    path: PathBuf,
    _lock: File,
}

impl SocketFolder {
    /// Makes it.
    ///
    /// # Errors
    /// If it can't be made.
    pub(super) fn make(id: RolloutId) -> std::io::Result<Self> {
        let id = id.0.simple().to_string();
        // The end of an id is random, its beginning the time.
        let named = |prefix: &str| Path::new(ROOT).join(format!("{prefix}{}", &id[16..]));
        let (unlocked, path) = (named(UNLOCKED), named(PREFIX));
        std::fs::create_dir(&unlocked)?;
        let named = lock(&unlocked).and_then(|lock| std::fs::rename(&unlocked, &path).map(|()| lock));
        match named {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                // What went wrong is said; the folder is empty.
                let _ = std::fs::remove_dir(&unlocked);
                Err(error)
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks a folder for as long as the file is open, and lets others look into it.
fn lock(folder: &Path) -> std::io::Result<File> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    let file = File::open(folder)?;
    file.lock()?;
    Ok(file)
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(folder = %self.path.display(), %error, "could not remove a folder of sockets");
            }
            _ => {}
        }
    }
}

/// Makes a rollout's folder and a socket in it, and removes them; gives the socket's path.
///
/// # Errors
/// If no rollout could have its sockets.
pub fn try_out() -> std::io::Result<PathBuf> {
    let folder = SocketFolder::make(RolloutId::generate())?;
    let path = folder.path().join(CONTROL);
    std::os::unix::net::UnixListener::bind(&path).map(|_| path)
}

/// Removes the folders that processes of this user which died have left; gives their number. That one can't be removed is said,
/// and no reason to fail.
pub(super) async fn sweep() -> usize {
    sweep_in(Path::new(ROOT)).await
}

async fn sweep_in(root: &Path) -> usize {
    // Whose this process is.
    let (Ok(own), Ok(entries)) = (std::fs::metadata("/proc/self"), std::fs::read_dir(root)) else { return 0 };
    let mut removed = 0;
    for entry in entries.flatten() {
        let id = entry.file_name();
        let name = id.to_str().unwrap_or_default();
        let id = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(UNLOCKED)).unwrap_or_default();
        let named = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Of the entry itself: whatever a link leads to is not ours.
        let ours = entry.metadata().is_ok_and(|facts| facts.is_dir() && facts.uid() == own.uid());
        if !named || !ours || !is_left(&entry.path()).await {
            continue;
        }
        match std::fs::remove_dir_all(entry.path()) {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::warn!(folder = %entry.path().display(), %error, "could not remove a folder of sockets that was left");
            }
        }
    }
    removed
}

/// Whether it is nobody's any more: its lock is free, and nobody listens there.
async fn is_left(folder: &Path) -> bool {
    let unlocked = File::open(folder).is_ok_and(|file| file.try_lock_shared().is_ok());
    match UnixStream::connect(folder.join(MODEL)).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => unlocked,
        Err(error) if error.kind() == ErrorKind::NotFound => unlocked && (has_name(folder) || is_old(folder)),
        _ => false,
    }
}

fn has_name(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

fn is_old(folder: &Path) -> bool {
    let changed = std::fs::metadata(folder).and_then(|facts| facts.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > MAKING))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_folders_are_short_and_removed() {
        let folder = SocketFolder::make(RolloutId::generate()).unwrap();
        let path = folder.path().to_owned();
        assert!(path.join(CONTROL).as_os_str().len() < 60 && path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_folders_that_nobody_listens_in_are_swept() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = root.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let left = folder("gleaner-0123456789abcdef");
        drop(UnixListener::bind(left.join(MODEL)).unwrap());
        let live = folder("gleaner-00000000000000aa");
        let _listener = UnixListener::bind(live.join(MODEL)).unwrap();
        let begun = folder("gleaner-00000000000000bb");
        let sealed = folder("gleaner-0000000000000011");
        drop(UnixListener::bind(sealed.join(MODEL)).unwrap());
        let _locks = [&begun, &sealed].map(|folder| lock(folder).unwrap());
        let died_early = folder("gleaner-00000000000000ee");
        let others = folder("gleaner-of-somebody-else");
        drop(UnixListener::bind(others.join(MODEL)).unwrap());
        let [made, old] = ["new-gleaner-00000000000000cc", "new-gleaner-00000000000000ff"].map(folder);
        let hours_ago = std::time::SystemTime::now() - 2 * MAKING;
        File::open(&old).unwrap().set_modified(hours_ago).unwrap();
        std::os::unix::fs::symlink(&others, root.path().join("gleaner-00000000000000dd")).unwrap();
        assert_eq!(sweep_in(root.path()).await, 3);
        let stays = [&left, &live, &begun, &sealed, &died_early, &others, &made, &old].map(|path| path.exists());
        assert_eq!(stays, [false, true, true, true, false, true, true, false]);
    }
}
