//! The `[store]` section, and where a store is when nobody says.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::StoreError;

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Where the store is; without it, [`default_path`].
    pub url: Option<String>,
    /// What a committed record outlives.
    pub durability: Durability,
    /// Seconds to wait for another process's write before a call fails.
    pub busy_timeout_s: u64,
}

impl StoreConfig {
    /// Where the store is.
    #[must_use]
    pub fn location(&self) -> String {
        self.url.clone().unwrap_or_else(|| default_path().to_string_lossy().into_owned())
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { url: None, durability: Durability::Process, busy_timeout_s: 5 }
    }
}

/// What a committed record outlives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The death of the process.
    #[default]
    Process,
    /// A power cut: each commit waits for the disk.
    Power,
}

/// `gleaner/gleaner.db` in the user's data folder (XDG).
#[must_use]
pub fn default_path() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    // Without a home, the working directory is the one place left that people find again.
    data.unwrap_or_default().join("gleaner/gleaner.db")
}

/// The folder that a store's file lies in, for what is kept beside it.
///
/// # Errors
/// If the store's URL names no file.
pub fn folder(config: &StoreConfig) -> Result<PathBuf, StoreError> {
    let path = sqlite_path(&config.location())?;
    Ok(path.parent().map(PathBuf::from).unwrap_or_default())
}

/// The file that a store's URL names.
pub(super) fn sqlite_path(url: &str) -> Result<PathBuf, StoreError> {
    let path = match url.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").unwrap_or(path),
        Some(("postgres" | "postgresql", _)) => {
            return Err(StoreError::Other("PostgreSQL comes later; name a SQLite file, such as sqlite:gleaner.db".into()));
        }
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(StoreError::Other(format!("there is no kind of store named {scheme}; use sqlite:PATH")));
        }
        _ => url,
    };
    if path.is_empty() || path.starts_with(":memory:") || path.contains('\0') {
        return Err(StoreError::Other(format!("{url:?} names no file; use sqlite:PATH")));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_plain_paths_name_files() {
        for (url, path) in [
            ("sqlite:a/b.db", "a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite://b.db", "b.db"),
            ("/a/b.db", "/a/b.db"),
            ("a:b.db", "a:b.db"),
        ] {
            assert_eq!(sqlite_path(url), Ok(PathBuf::from(path)), "{url}");
        }
    }

    #[test]
    fn other_stores_are_refused_with_a_reason() {
        for (url, word) in [
            ("postgres://h/d", "later"),
            ("mysql://h/d", "mysql"),
            ("sqlite:", "names no file"),
            ("sqlite::memory:", "names no file"),
        ] {
            let error = sqlite_path(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }
}
