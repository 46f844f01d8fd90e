//! Gives what a tar archive holds to another user. For engines that can't run a command of root's in a sandbox: what is copied
//! out of it goes back in as the harness's.

use std::io::{Error, Read as _};

/// The same archive with every entry owned by `user`, user and group. Entries that describe the next one pass as they are.
///
/// # Errors
/// If it is no tar archive.
pub fn give(archive: &[u8], user: u64) -> Result<Vec<u8>, Error> {
    let mut given = tar::Builder::new(Vec::with_capacity(archive.len()));
    for entry in tar::Archive::new(archive).entries()?.raw(true) {
        let mut entry = entry?;
        let mut header = entry.header().clone();
        header.set_uid(user);
        header.set_gid(user);
        header.set_cksum();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        given.append(&header, content.as_slice())?;
    }
    given.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry = (String, u64, u64, u32, Vec<u8>);

    fn entries(archive: &[u8]) -> Vec<Entry> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: Result<tar::Entry<'_, _>, Error>| {
            let mut entry: tar::Entry<'_, &[u8]> = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let (uid, gid, mode) = (entry.header().uid(), entry.header().gid(), entry.header().mode());
            (entry.path().unwrap().display().to_string(), uid.unwrap(), gid.unwrap(), mode.unwrap(), content)
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn everything_is_given_and_nothing_else_changes() {
        let long = format!("{}/end", "folder/".repeat(40));
        let mut archive = tar::Builder::new(Vec::new());
        for (path, mode, content) in [("a", 0o755, "text"), (&*long, 0o600, "long"), ("empty", 0o644, "")] {
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(7);
            header.set_mode(mode);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let archive = archive.into_inner().unwrap();
        let expected: Vec<_> =
            entries(&archive).into_iter().map(|(path, _, _, mode, content)| (path, 1000, 1000, mode, content)).collect();
        assert_eq!(expected[1].0, long);
        assert_eq!(entries(&give(&archive, 1000).unwrap()), expected);
        assert!(give(b"no archive, but more than nothing", 1000).is_err());
    }
}
