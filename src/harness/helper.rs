//! Our helper in sandboxes. A stand-in until the real one is merged.

use std::io;
use std::path::{Path, PathBuf};

/// Where the helper is on the host; it is written into the cache if it is not there.
///
/// # Errors
/// If it can't be written.
pub fn install(_cache: &Path) -> io::Result<PathBuf> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
