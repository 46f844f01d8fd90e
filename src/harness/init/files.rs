//! Files of the sandbox, whatever tools its image has.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, chroot, fchown, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

use crate::{doing, sys, usage};

/// Makes a folder and gives it, with all that is in it on the same file system, to a user. No link is followed.
pub fn own(uid: u32, gid: u32, folder: &Path) -> io::Result<()> {
    doing(format_args!("make {}", folder.display()), fs::create_dir_all(folder))?;
    let folder = open(folder, sys::O_DIRECTORY)?;
    let device = folder.metadata()?.dev();
    own_open(&folder, device, uid, gid)
}

fn own_open(folder: &File, device: u64, uid: u32, gid: u32) -> io::Result<()> {
    // Whose it is already stays untouched: an overlay would copy it whole.
    let is_owned = |facts: &fs::Metadata| (facts.uid(), facts.gid()) == (uid, gid);
    if !is_owned(&folder.metadata()?) {
        fchown(folder, Some(uid), Some(gid))?;
    }
    // Through the open folder, so that nobody can put a link in its place meanwhile.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let path = entry?.path();
        let facts = fs::symlink_metadata(&path)?;
        if !facts.is_dir() {
            if is_owned(&facts) {
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

/// Writes standard input to a file; folders that are missing are made and given to the same user. What stood there,
/// a link included, is replaced as a whole.
pub fn write(path: &Path, mode: u32, uid: u32, gid: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| usage());
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    doing(format_args!("make {}", folder.display()), fs::create_dir_all(folder))?;
    for folder in missing {
        chown(folder, Some(uid), Some(gid))?;
    }
    let mut name = path.file_name().unwrap_or_else(|| usage()).to_owned();
    name.push(".gleaner");
    let partial = folder.join(name);
    let _ = fs::remove_file(&partial);
    let mut file = doing(partial.display(), OpenOptions::new().write(true).create_new(true).open(&partial))?;
    let written = io::copy(&mut io::stdin().lock(), &mut file)
        .and_then(|_| fchown(&file, Some(uid), Some(gid)))
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
/// moved aside.
pub fn clear(paths: &[OsString]) -> io::Result<()> {
    for path in paths.iter().map(Path::new) {
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

/// Runs a command among the files of the first process, which is another container's where process ids are shared.
pub fn inside(command: &[OsString]) -> io::Result<()> {
    doing("enter /proc/1/root", chroot("/proc/1/root").and_then(|()| std::env::set_current_dir("/")))?;
    doing(command[0].display(), Err(Command::new(&command[0]).args(&command[1..]).exec()))
}
