//! The files that runs leave (what was printed, results, patches), in a folder beside the store: one for each rollout.
//!
//! What lies there was made by harnesses and models, so nothing in it is believed: no link is followed, neither at the end of a
//! path nor on its way, and only regular files are read.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::ids::RolloutId;

/// A rollout has no more files than this; more are not listed.
const MOST: usize = 10_000;

/// All rollouts' files.
#[derive(Clone, Debug, Default)]
pub struct Artifacts {
    root: PathBuf,
}

/// One file of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Artifact {
    /// Its path below the rollout's folder, parts joined by `/`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

impl Artifacts {
    /// The name of the patch that a harness made in its working folder.
    pub const PATCH: &str = "patch.diff";

    /// Those below the folder `root`.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where each rollout has its folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A rollout's folder; there is none if it left nothing.
    #[must_use]
    pub fn folder(&self, rollout: RolloutId) -> PathBuf {
        self.root.join(rollout.to_string())
    }

    /// A rollout's files by name; empty if it left none. Blocks.
    ///
    /// # Errors
    /// If its folder can't be read.
    pub fn list(&self, rollout: RolloutId) -> io::Result<Vec<Artifact>> {
        let mut found = Vec::new();
        match walk(&self.folder(rollout), "", &mut found) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Opens a rollout's file of this name; `None` if there is none that is a regular file. Blocks.
    ///
    /// # Errors
    /// If it is there and can't be opened.
    pub fn open(&self, rollout: RolloutId, name: &str) -> io::Result<Option<File>> {
        match open_below(&self.folder(rollout), name) {
            Ok(file) => Ok(Some(file).filter(|file| file.metadata().is_ok_and(|facts| facts.is_file()))),
            // A link says that there is a loop.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a rollout's folder; gives the bytes of its files. Blocks.
    ///
    /// # Errors
    /// If it is there and can't be removed.
    pub fn remove(&self, rollout: RolloutId) -> io::Result<u64> {
        let bytes = self.bytes(rollout)?;
        match std::fs::remove_dir_all(self.folder(rollout)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(bytes),
        }
    }

    /// The bytes of a rollout's files. Blocks.
    ///
    /// # Errors
    /// If its folder can't be read.
    pub fn bytes(&self, rollout: RolloutId) -> io::Result<u64> {
        Ok(self.list(rollout)?.iter().map(|artifact| artifact.bytes).sum())
    }
}

/// Adds the regular files below a folder. Names that are not UTF-8 can't be asked for, so they are not told either.
fn walk(folder: &Path, prefix: &str, found: &mut Vec<Artifact>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Of the entry itself, not of what a link leads to.
        let facts = entry.metadata()?;
        let name = format!("{prefix}{name}");
        if facts.is_dir() {
            walk(&entry.path(), &format!("{name}/"), found)?;
        } else if facts.is_file() && found.len() < MOST {
            found.push(Artifact { name, bytes: facts.len() });
        }
    }
    Ok(())
}

/// Opens `root/name` for reading, part by part, so that no link can lead away, whoever changes the folder meanwhile.
fn open_below(root: &Path, name: &str) -> Result<File, Errno> {
    let parts: Vec<&str> = name.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains('\0')) {
        return Err(Errno::NOENT);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: OwnedFd = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let (last, folders) = parts.split_last().ok_or(Errno::NOENT)?;
    for folder in folders {
        at = rustix::fs::openat(&at, *folder, flags | OFlags::DIRECTORY, Mode::empty())?;
    }
    // A pipe that nobody writes to must not hold us up.
    Ok(File::from(rustix::fs::openat(&at, *last, flags | OFlags::NONBLOCK, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A rollout's folder with a file in it, a secret beside it, and every way from one to the other.
    fn hostile() -> (tempfile::TempDir, Artifacts, RolloutId) {
        let dir = tempfile::tempdir().unwrap();
        let (artifacts, rollout) = (Artifacts::new(dir.path().join("artifacts")), RolloutId::generate());
        let folder = artifacts.folder(rollout);
        std::fs::create_dir_all(folder.join("files/a b")).unwrap();
        for (name, text) in [("patch.diff", "+1"), ("files/a b/%2e%2e\n\\é", "odd")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(dir.path().join("secret"), folder.join("link")).unwrap();
        symlink("../../secret", folder.join("files/link")).unwrap();
        symlink(dir.path(), folder.join("files/folder")).unwrap();
        symlink("link", folder.join("files/loop")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
        (dir, artifacts, rollout)
    }

    #[test]
    fn regular_files_are_listed_and_read() {
        let (_dir, artifacts, rollout) = hostile();
        let named = |name: &str, bytes| Artifact { name: name.to_owned(), bytes };
        let odd = "files/a b/%2e%2e\n\\é";
        assert_eq!(artifacts.list(rollout).unwrap(), [named(odd, 3), named("patch.diff", 2)]);
        let mut text = String::new();
        artifacts.open(rollout, odd).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), artifacts.bytes(rollout).unwrap()), ("odd", 5));
        assert_eq!(artifacts.list(RolloutId::generate()).unwrap(), []);
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        let (dir, artifacts, rollout) = hostile();
        let absolute = dir.path().join("secret").display().to_string();
        for name in [
            "link",
            "files/link",
            "files/loop",
            "files/folder/secret",
            "../../secret",
            "files/../../../secret",
            "./patch.diff",
            "files//a b/%2e%2e\n\\é",
            absolute.as_str(),
            "files",
            "pipe",
            "patch.diff/",
            "patch.diff/x",
            "patch.diff\0",
            "none",
            "",
            &"x".repeat(300),
        ] {
            assert!(artifacts.open(rollout, name).unwrap().is_none(), "{name:?} was opened");
        }
    }

    #[test]
    fn removing_leaves_what_links_lead_to() {
        let (dir, artifacts, rollout) = hostile();
        assert_eq!(artifacts.remove(rollout).unwrap(), 5);
        assert!(!artifacts.folder(rollout).exists() && dir.path().join("secret").exists());
        assert_eq!(artifacts.remove(rollout).unwrap(), 0);
    }
}
