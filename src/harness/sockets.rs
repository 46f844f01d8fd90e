//! The folder of a rollout's sockets, mounted into its sandbox.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::ids::RolloutId;

/// The folder of a rollout's sockets on the host, removed at the end. Its path is short: a socket's may have 107 bytes.
pub(super) struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Makes it.
    ///
    /// # Errors
    /// If it can't be made.
    pub(super) fn make(id: RolloutId) -> std::io::Result<Self> {
        let id = id.0.simple().to_string();
        // The end of an id is random, its beginning the time.
        let path = Path::new("/tmp").join(format!("gleaner-{}", &id[16..]));
        std::fs::create_dir(&path)?;
        let folder = Self(path);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "could not remove a folder of sockets");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_folders_are_short_and_removed() {
        let folder = SocketFolder::make(RolloutId::generate()).unwrap();
        let path = folder.path().to_owned();
        assert!(path.join("control.sock").as_os_str().len() < 60 && path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
