//! What is kept of a rollout beside its calls: what it printed, its result, and why it ended as it did.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::ids::RolloutId;

/// A rollout's folder of artifacts, and its evidence as it grows.
pub(super) struct Artifacts {
    rollout: RolloutId,
    pub folder: PathBuf,
    /// Of a longer artifact the end is kept.
    limit: usize,
    evidence: Map<String, Value>,
}

impl Artifacts {
    /// Nothing yet; the folder is made with the first artifact.
    pub(super) fn new(root: &std::path::Path, rollout: RolloutId, limit: usize) -> Self {
        Self { rollout, folder: root.join(rollout.to_string()), limit, evidence: Map::new() }
    }

    /// Keeps an artifact, its end if it is too long. That it can't be kept is said, and no reason to fail a rollout.
    pub(super) fn keep(&self, name: &str, content: &[u8]) {
        let content = &content[content.len().saturating_sub(self.limit)..];
        let kept = std::fs::create_dir_all(&self.folder).and_then(|()| std::fs::write(self.folder.join(name), content));
        if let Err(error) = kept {
            tracing::warn!(rollout.id = %self.rollout, folder = %self.folder.display(), name, %error, "could not keep an artifact");
        }
    }

    /// Keeps the regular files of a tar archive in the folder `files`, and gives their names and sizes. Names lead nowhere else; links
    /// and all that is no file are passed over. What can't be kept is added to `left_out`.
    pub(super) fn keep_files(&self, archive: &[u8], left_out: &mut Vec<String>) -> Vec<(String, u64)> {
        let mut kept = Vec::new();
        let mut archive = tar::Archive::new(archive);
        let entries = match archive.entries() {
            Ok(entries) => entries,
            Err(error) => {
                left_out.push(error.to_string());
                return kept;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| self.keep_entry(entry)) {
                Ok(found) => kept.extend(found),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        kept
    }

    fn keep_entry(&self, mut entry: tar::Entry<'_, &[u8]>) -> std::io::Result<Option<(String, u64)>> {
        if !entry.header().entry_type().is_file() {
            return Ok(None);
        }
        let name = safe_name(&entry.path_bytes());
        let path = self.folder.join("files").join(&name);
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
            let mut file = std::fs::File::create_new(&path)?;
            std::io::copy(&mut entry, &mut file)
        });
        match written {
            Ok(bytes) => Ok(Some((name, bytes))),
            Err(error) => Err(std::io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
    }

    /// Adds to the evidence.
    pub(super) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.evidence.insert(name.to_owned(), value.into());
    }

    /// The evidence, kept as an artifact as well.
    pub(super) fn evidence(&mut self) -> Value {
        let evidence = Value::Object(std::mem::take(&mut self.evidence));
        self.keep("evidence.json", format!("{evidence:#}\n").as_bytes());
        evidence
    }
}

/// A name from a sandbox as one of this machine's, below some folder: no step upwards, and nothing that is no text.
fn safe_name(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let steps = name.split('/').filter(|step| !matches!(*step, "" | "." | ".."));
    let steps: Vec<String> = steps.map(|step| step.replace(char::is_control, "_")).collect();
    steps.join("/")
}

/// The last lines of an output, at most 2,000 bytes of it.
pub(super) fn tail(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(2_000)..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive that somebody made up: its names are not what `init pack` writes.
    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o777);
            if *kind == tar::EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
            }
            header.set_cksum();
            archive.append(&header, content.as_bytes()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn files_of_a_sandbox_are_kept_below_their_folder_only() {
        use tar::EntryType::{Directory, Link, Regular, Symlink};
        let root = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(root.path(), RolloutId::generate(), 4);
        let content = archive(&[
            ("work/a.txt", Regular, "one"),
            ("../../up", Regular, "two"),
            ("/abs/b", Regular, "three"),
            ("etc", Symlink, ""),
            ("etc/x", Regular, "four"),
            ("work/a.txt", Regular, "again"),
            ("work/a.txt/x", Regular, "below a file"),
            ("hard", Link, ""),
            ("folder", Directory, ""),
        ]);
        let mut left_out = Vec::new();
        let kept = artifacts.keep_files(&content, &mut left_out);
        let expected = [("work/a.txt", 3), ("up", 3), ("abs/b", 5), ("etc/x", 4)];
        assert_eq!(kept, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].starts_with("work/a.txt: "), "{left_out:?}");
        assert_eq!(std::fs::read(artifacts.folder.join("files/etc/x")).unwrap(), b"four");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
        let cut = artifacts.keep_files(&archive(&[("cut", Regular, &"x".repeat(2_000))])[..1_000], &mut left_out);
        assert!(cut.len() <= 1 && left_out.len() >= 2, "what is cut short is no reason to fail");
    }

    #[test]
    fn a_tail_is_bounded_and_trimmed() {
        assert_eq!(tail(b"\n one \n"), "one");
        assert_eq!(tail(&[b'x'; 5_000]).len(), 2_000);
    }

    #[test]
    fn of_what_is_too_long_the_end_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let mut artifacts = Artifacts::new(root.path(), RolloutId::generate(), 4);
        artifacts.keep("out", b"123456");
        artifacts.note("a", 1);
        assert_eq!(artifacts.evidence(), serde_json::json!({"a": 1}));
        assert_eq!(std::fs::read(artifacts.folder.join("out")).unwrap(), b"3456");
        assert_eq!(std::fs::read(artifacts.folder.join("evidence.json")).unwrap(), b"1\n}\n");
    }
}
