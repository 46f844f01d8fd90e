//! Carries files in and out of a sandbox's folder, and nowhere else: its files are the host's.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use bytes::Bytes;

use super::folder::Folder;

/// What is brought out at most, in bytes.
const LIMIT: usize = 1 << 30;

fn outside(own: &Folder) -> io::Error {
    let why = format!("it is not in the sandbox's folder {}, and files of the host are left alone", own.path.display());
    io::Error::new(ErrorKind::PermissionDenied, why)
}

/// Unpacks an archive into `folder`; the archive's owners are not kept.
pub(super) fn unpack(own: &Folder, folder: &Path, tar: &[u8]) -> io::Result<()> {
    if !own.holds(folder) {
        return Err(outside(own));
    }
    let mut archive = tar::Archive::new(tar);
    archive.set_preserve_permissions(true);
    archive.unpack(folder)
}

/// Packs a file or folder, links as links.
pub(super) fn pack(own: &Folder, path: &Path) -> io::Result<Bytes> {
    let facts = path.symlink_metadata()?;
    // Of a link it is the place that counts: what it leads to is not packed.
    if !own.holds(if facts.is_symlink() { path.parent().unwrap_or(path) } else { path }) {
        return Err(outside(own));
    }
    let mut builder = tar::Builder::new(Bounded(Vec::new()));
    builder.follow_symlinks(false);
    let name = path.file_name().map_or_else(|| Path::new("files"), Path::new);
    if facts.is_dir() {
        builder.append_dir_all(name, path)?;
    } else {
        builder.append_path_with_name(path, name)?;
    }
    Ok(builder.into_inner()?.0.into())
}

/// Refuses to grow past the limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LIMIT {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {LIMIT} bytes")));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn archive(path: &str, content: &str) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        builder.append_data(&mut header, path, content.as_bytes()).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_come_in_and_out_and_links_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        let own = Folder::make(root.path(), "me").unwrap();
        let work = own.path.join("work");
        unpack(&own, &work, &archive("a/run.sh", "#!/bin/sh\n")).unwrap();
        std::os::unix::fs::symlink(&kept, work.join("link")).unwrap();
        for folder in [work.join("link"), kept.clone(), work.join("../..")] {
            let error = unpack(&own, &folder, &archive("x", "y")).unwrap_err();
            assert!(error.to_string().contains("files of the host are left alone"), "{error}");
        }
        unpack(&own, &work, &archive("link/x", "y")).expect_err("not through a link either");
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);

        let packed = pack(&own, &work).unwrap();
        let mut archive = tar::Archive::new(&packed[..]);
        let mut names: Vec<(String, u32)> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.path().unwrap().display().to_string(), u32::from(entry.header().entry_type().as_byte())))
            .collect();
        names.sort();
        let expected = [("work/", b'5'), ("work/a", b'5'), ("work/a/run.sh", b'0'), ("work/link", b'2')];
        let trimmed: Vec<(&str, u32)> = names.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        let same = |(name, kind): (&str, u8), (other, kind2): (&str, u32)| {
            name.trim_end_matches('/') == other.trim_end_matches('/') && u32::from(kind) == kind2
        };
        assert!(trimmed.len() == 4 && expected.into_iter().zip(trimmed.iter().copied()).all(|(a, b)| same(a, b)), "{trimmed:?}");
        assert_eq!(pack(&own, &kept).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(pack(&own, &work.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
