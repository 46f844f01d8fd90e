//! The folder that a sandbox has for itself.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

const PREFIX: &str = "gleaner-sandbox-";
/// The variable that all of a sandbox's processes have: by it they are found, whoever their parent is.
const MARK: &str = "GLEANER_SANDBOX";
/// The file that says whose it is.
const OWNER: &str = "owner";
/// A folder without an owner is being made, or was left by a process that died while it did. That takes no time.
const MAKING: Duration = Duration::from_hours(1);

pub(super) const HOME: &str = "home";
pub(super) const TEMP: &str = "tmp";
pub(super) const WORK: &str = "work";
/// What was printed.
pub(super) const LOGS: &str = "logs";

/// A sandbox's folder: its home, its temporary and its working folder, and what it printed.
pub(super) struct Folder {
    pub path: PathBuf,
}

/// Who runs this process: user and group.
pub(super) fn user() -> io::Result<(u32, u32)> {
    let own = fs::metadata("/proc/self")?;
    Ok((own.uid(), own.gid()))
}

impl Folder {
    /// Makes one for this owner. Nobody but its user may look into it.
    pub fn make(root: &Path, owner: &str) -> io::Result<Self> {
        let id = Uuid::new_v4().simple().to_string();
        // Short: it stands in the paths of sockets, which may have 107 bytes.
        let folder = Self { path: root.join(format!("{PREFIX}{}", &id[..16])) };
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        private(&folder.path)?;
        let made = fs::write(folder.path.join(OWNER), owner)
            .and_then(|()| [HOME, TEMP, WORK, LOGS].iter().try_for_each(|name| private(&folder.path.join(name))));
        if made.is_err() {
            let _ = folder.remove();
        }
        made.map(|()| folder)
    }

    /// What stands in the environment of all of its processes.
    pub fn mark(&self) -> String {
        let (name, value) = self.mark_pair();
        format!("{name}={value}")
    }

    /// The same in two.
    pub fn mark_pair(&self) -> (&'static str, String) {
        (MARK, self.path.display().to_string())
    }

    /// Whether a path is in it, or is it; links are followed. One that is not there yet is in it if the folder that it will be in is.
    pub fn holds(&self, path: &Path) -> bool {
        let Ok(own) = self.path.canonicalize() else { return false };
        let there = path.ancestors().find_map(|path| path.canonicalize().ok());
        there.is_some_and(|there| there.starts_with(own))
            && !path.components().any(|part| part == std::path::Component::ParentDir)
    }

    /// Removes it with all that is in it, whatever permissions that has; links are not followed. One that is gone is fine.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(_) => {
                open_up(&self.path)?;
                fs::remove_dir_all(&self.path)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Those of this user in `root` whose owners do not live any more.
    pub fn left_in(root: &Path, is_alive: &dyn Fn(&str) -> bool) -> Vec<Self> {
        let (Ok(user), Ok(entries)) = (user(), fs::read_dir(root)) else { return Vec::new() };
        let entries = entries.flatten().filter(|entry| {
            let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            // Of the entry itself: whatever a link leads to is not ours.
            named && entry.metadata().is_ok_and(|facts| facts.is_dir() && facts.uid() == user.0)
        });
        entries.map(|entry| Self { path: entry.path() }).filter(|folder| folder.is_left(is_alive)).collect()
    }

    fn is_left(&self, is_alive: &dyn Fn(&str) -> bool) -> bool {
        if let Ok(owner) = fs::read_to_string(self.path.join(OWNER)) {
            !owner.is_empty() && !is_alive(&owner)
        } else {
            let changed = fs::metadata(&self.path).and_then(|facts| facts.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > MAKING))
        }
    }
}

/// Lets its owner into every folder below: a harness may have shut some.
fn open_up(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it_is_told_apart_from_what_only_seems_to_be() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::make(root.path(), "me").unwrap();
        let work = folder.path.join(WORK);
        std::os::unix::fs::symlink("/etc", work.join("out")).unwrap();
        let held = ["work", "work/new/deep", "work/out", "work/out/passwd", "work/../../x", ""]
            .map(|path| folder.holds(&folder.path.join(path)));
        assert_eq!(held, [true, true, false, false, false, true]);
        assert!(!folder.holds(Path::new("/etc")) && !folder.holds(root.path()));
    }

    #[test]
    fn only_those_of_the_dead_are_left() {
        let root = tempfile::tempdir().unwrap();
        let [dead, living] = ["dead", "living"].map(|owner| Folder::make(root.path(), owner).unwrap());
        let made = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (begun, old) = (made("gleaner-sandbox-00"), made("gleaner-sandbox-11"));
        fs::File::open(&old).unwrap().set_modified(std::time::SystemTime::now() - 2 * MAKING).unwrap();
        std::os::unix::fs::symlink(&dead.path, root.path().join("gleaner-sandbox-22")).unwrap();
        made("gleaner-of-somebody-else");
        let mut left: Vec<PathBuf> =
            Folder::left_in(root.path(), &|owner| owner == "living").into_iter().map(|one| one.path).collect();
        left.sort();
        let mut expected = vec![dead.path, old];
        expected.sort();
        assert_eq!(left, expected);
        assert!(living.path.exists() && begun.exists());
    }

    #[test]
    fn it_is_removed_whatever_was_shut_in_it() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join("kept");
        fs::write(&kept, "x").unwrap();
        let folder = Folder::make(root.path(), "me").unwrap();
        let shut = folder.path.join("work/shut");
        fs::create_dir_all(shut.join("inner")).unwrap();
        std::os::unix::fs::symlink(root.path(), shut.join("inner/link")).unwrap();
        for path in [shut.join("inner"), shut] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
        folder.remove().unwrap();
        folder.remove().expect("removing twice is fine");
        assert!(!folder.path.exists() && kept.exists());
    }
}
