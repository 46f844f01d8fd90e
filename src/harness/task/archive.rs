//! A task's files as tar archives, and its folders as they stand on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Task, TaskFile, User};

/// More than a task's files have together.
const LIMIT: u64 = 1 << 30;

impl Task {
    /// The task's files as a tar archive for the working folder, with the folders that they are in, owned by `user`.
    ///
    /// # Errors
    /// If a path is too long for an archive.
    pub fn archive(&self, user: User) -> io::Result<Vec<u8>> {
        let mut folders = BTreeSet::new();
        for path in self.files.keys() {
            let above = Path::new(path).ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
            folders.extend(above.map(|folder| folder.display().to_string()));
        }
        let files: BTreeMap<&str, TaskFile> = self.files.iter().map(|(path, text)| (&**path, TaskFile::text(text))).collect();
        pack(files.iter().map(|(path, file)| (*path, file)), folders.iter().map(String::as_str), user)
    }
}

/// Files and folders as a tar archive, owned by `user`. Names lose their first slash.
///
/// # Errors
/// If a path is too long for an archive.
pub(in crate::harness) fn pack<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a TaskFile)>,
    folders: impl IntoIterator<Item = &'a str>,
    user: User,
) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, file) in files {
        let mut header = header(user, file.content.len() as u64, file.mode);
        archive.append_data(&mut header, path.trim_start_matches('/'), &file.content[..])?;
    }
    for folder in folders {
        let mut header = header(user, 0, 0o755);
        header.set_entry_type(tar::EntryType::Directory);
        archive.append_data(&mut header, folder.trim_start_matches('/'), io::empty())?;
    }
    archive.into_inner()
}

fn header(user: User, size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_uid(user.uid.into());
    header.set_gid(user.gid.into());
    header.set_size(size);
    header.set_mode(mode);
    header
}

/// All files below a folder of this machine, by their path in it, in order. Links are followed as long as they stay in the folder.
///
/// # Errors
/// If something can't be read, leads out of the folder, is neither file nor folder, or is too large.
pub(in crate::harness) fn read_tree(root: &Path) -> io::Result<BTreeMap<String, TaskFile>> {
    let real = root.canonicalize()?;
    let (mut files, mut size) = (BTreeMap::new(), 0);
    let mut folders = vec![real.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let wrong = |why: &str| io::Error::other(format!("{}: {why}", path.display()));
            if !path.canonicalize().map_err(|error| wrong(&error.to_string()))?.starts_with(&real) {
                return Err(wrong("the link leads out of the folder"));
            }
            let facts = std::fs::metadata(&path)?;
            if facts.is_dir() {
                if path.is_symlink() {
                    return Err(wrong("it is a link to a folder"));
                }
                folders.push(path);
                continue;
            }
            size += facts.len();
            if !facts.is_file() || size > LIMIT {
                return Err(wrong(if facts.is_file() { "the folder is larger than 1 GiB" } else { "it is no file" }));
            }
            let name = path.strip_prefix(&real).unwrap_or(&path);
            let name = name.to_str().ok_or_else(|| wrong("its name is no text"))?.to_owned();
            files.insert(name, TaskFile { content: std::fs::read(&path)?, mode: facts.permissions().mode() & 0o777 });
        }
    }
    Ok(files)
}

/// The same files below another folder.
pub(super) fn below(folder: &str, files: BTreeMap<String, TaskFile>) -> BTreeMap<String, TaskFile> {
    files.into_iter().map(|(path, file)| (PathBuf::from(folder).join(path).display().to_string(), file)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_archive_holds_files_and_their_folders() {
        let files = [("run.sh", "#!/bin/sh\n"), ("a/b/c.txt", "text")].map(|(path, text)| (path.to_owned(), text.to_owned()));
        let task = Task { files: files.into(), ..Task::of_prompt("p") };
        let bytes = task.archive(User { uid: 1000, gid: 1000 }).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            seen.push((entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.uid().unwrap(), text));
        }
        let expected = [("a/b/c.txt", 0o644, "text"), ("run.sh", 0o755, "#!/bin/sh\n"), ("a", 0o755, ""), ("a/b", 0o755, "")];
        assert_eq!(seen, expected.map(|(path, mode, text)| (path.to_owned(), mode, 1000, text.to_owned())));
    }

    #[test]
    fn a_folder_is_read_and_links_out_of_it_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("t/test.sh", "x");
        write("t/data/a", "y");
        write("secret", "z");
        std::os::unix::fs::symlink("test.sh", root.path().join("t/inner")).unwrap();
        let folder = root.path().join("t");
        let names: Vec<String> = read_tree(&folder).unwrap().into_keys().collect();
        assert_eq!(names, ["data/a", "inner", "test.sh"]);
        std::os::unix::fs::symlink("../secret", root.path().join("t/outer")).unwrap();
        let error = read_tree(&folder).unwrap_err().to_string();
        assert!(error.ends_with("t/outer: the link leads out of the folder"), "{error}");
    }
}
