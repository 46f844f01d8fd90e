//! Files of the sandbox, whatever tools its image has.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use std::process::exit;

use crate::{doing, sys};

/// Makes a folder and gives it, with all that is in it on the same file system, to a user. No link is followed. What is the
/// user's is left alone: images are in layers, and a touched file would be copied.
pub fn own(uid: u32, gid: u32, folder: &Path) -> io::Result<()> {
    doing(format_args!("make {}", folder.display()), fs::create_dir_all(folder))?;
    let folder = open(folder, sys::O_DIRECTORY)?;
    let device = folder.metadata()?.dev();
    own_open(&folder, device, uid, gid)
}

fn own_open(folder: &File, device: u64, uid: u32, gid: u32) -> io::Result<()> {
    let is_own = |facts: &Metadata| (facts.uid(), facts.gid()) == (uid, gid);
    if !is_own(&folder.metadata()?) {
        fchown(folder, Some(uid), Some(gid))?;
    }
    // Through the open folder, so that nobody can put a link in its place meanwhile.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let path = entry?.path();
        let facts = fs::symlink_metadata(&path)?;
        if !facts.is_dir() {
            if is_own(&facts) {
                continue;
            }
            match lchown(&path, Some(uid), Some(gid)) {
                // A read-only mount, or gone meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound) => {}
                other => doing(path.display(), other)?,
            }
        } else if let Ok(inner) = open(&path, sys::O_DIRECTORY)
            && inner.metadata()?.dev() == device
        {
            own_open(&inner, device, uid, gid)?;
        }
    }
    Ok(())
}

pub fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(sys::O_NOFOLLOW | sys::O_NONBLOCK | flags).open(path)
}

/// Writes a file; folders that are missing are made. What stood there, a link included, is replaced as a whole.
pub fn write(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("{} is no file's path", path.display())));
    };
    doing(format_args!("make {}", folder.display()), fs::create_dir_all(folder))?;
    let mut name = name.to_owned();
    name.push(".gleaner");
    let partial = folder.join(name);
    let _ = fs::remove_file(&partial);
    let mut file = doing(partial.display(), OpenOptions::new().write(true).create_new(true).open(&partial))?;
    let written = file
        .write_all(content)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    doing(path.display(), written)
}

/// Prints a regular file's first bytes. Exit 3 if it is missing, 4 if it is not a regular file.
pub fn cat(path: &Path, limit: u64) -> io::Result<()> {
    let file = match open(path, 0) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => exit(3),
        // A link, or a socket.
        Err(error) if matches!(error.raw_os_error(), Some(sys::ELOOP | sys::ENXIO)) => exit(4),
        Err(error) => return doing(path.display(), Err(error)),
    };
    if !file.metadata()?.is_file() {
        exit(4);
    }
    io::copy(&mut file.take(limit), &mut io::stdout().lock())?;
    Ok(())
}

/// Removes files, and folders with all that is in them. No link is followed; what is not there is fine, and what can't be removed is
/// moved aside. Nor does what is above them stand in the way then: a folder that is closed to us is opened, what is no folder is removed.
pub fn clear(paths: &[OsString]) -> io::Result<()> {
    for path in paths.iter().map(Path::new) {
        clear_way(path);
        let removed = match fs::symlink_metadata(path) {
            Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(format!(".left-{}", std::process::id()));
                doing(format_args!("remove {}", path.display()), fs::rename(path, aside))?;
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// What can't be done here is seen, and said, when the path itself is removed or made.
fn clear_way(path: &Path) {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    for folder in above.into_iter().rev() {
        match fs::metadata(folder) {
            Ok(facts) if facts.is_dir() && facts.mode() & 0o300 == 0o300 => {}
            Ok(facts) if facts.is_dir() => {
                let _ = fs::set_permissions(folder, Permissions::from_mode(facts.mode() & 0o7777 | 0o700));
            }
            // Also a link that leads nowhere; one that is not there at all can't be removed.
            _ => {
                let _ = fs::remove_file(folder);
            }
        }
    }
}
