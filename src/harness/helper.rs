//! The sandbox's init: a static program that this binary carries, put where engines can mount it from.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::ids::ProcessId;

/// The program. Empty where harnesses can't be run (not Linux).
pub static HELPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// Puts the program into a cache folder and gives its path. Its name is made of its content, so several versions live
/// side by side; processes that do it at the same time don't disturb each other.
///
/// # Errors
/// If the folder can't be written, or this build carries no helper.
pub fn install(cache: &Path) -> io::Result<PathBuf> {
    if HELPER.is_empty() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "harnesses are run on Linux only"));
    }
    let mut hasher = DefaultHasher::new();
    HELPER.hash(&mut hasher);
    let path = cache.join(format!("init-{:016x}", hasher.finish()));
    if is_whole(&path) {
        return Ok(path);
    }
    fs::create_dir_all(cache)?;
    let partial = cache.join(format!("init-{}.partial", ProcessId::generate()));
    let written = write(&partial).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| path)
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    file.write_all(HELPER)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))
}

/// A file of that name that is cut short or was changed is replaced.
fn is_whole(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.permissions().mode() & 0o777 == 0o755)
        && fs::read(path).is_ok_and(|bytes| bytes == HELPER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_installed_once_and_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let path = install(&cache).unwrap();
        assert_eq!(fs::read(&path).unwrap(), HELPER);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        let first = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(install(&cache).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first);

        fs::write(&path, "cut").unwrap();
        assert_eq!(install(&cache).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), HELPER);
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
    }
}
