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

/// The last lines of an output, at most 2,000 bytes of it.
pub(super) fn tail(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(2_000)..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
