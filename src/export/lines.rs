//! JSON Lines, one row a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use super::{Added, ExportError, Material, Rows, Target, Written};
use crate::trajectory::Broken;

/// Writes the rows of one rollout, each with its line's end.
pub(super) type WriteRollout = fn(&Material, &mut Vec<u8>) -> Result<Added, Broken>;

/// A file of JSON Lines that is being written.
pub(super) struct Lines {
    pub target: Target,
    pub write: WriteRollout,
    scratch: Vec<u8>,
}

impl Lines {
    pub(super) fn new(target: Target, write: WriteRollout) -> Self {
        Self { target, write, scratch: Vec::new() }
    }
}

impl Rows for Lines {
    fn add(&mut self, from: &Material) -> Result<Added, ExportError> {
        self.scratch.clear();
        let added = (self.write)(from, &mut self.scratch).map_err(|broken| from.broken(broken))?;
        self.target.write_all(&self.scratch).map_err(|error| self.target.failed(error))?;
        Ok(added)
    }

    fn close(self: Box<Self>) -> Result<Written, ExportError> {
        self.target.close()
    }
}

/// Puts one JSON value on one line: what clients sent may have line breaks between its tokens.
pub(super) fn push(out: &mut Vec<u8>, json: &[u8]) {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        out.extend_from_slice(json);
    } else {
        // Inside a string literal a line break is always escaped, so each raw one is white space.
        out.extend(json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    }
    out.push(b'\n');
}

/// The lines of a file.
pub(super) fn read(path: &Path) -> std::io::Result<impl Iterator<Item = std::io::Result<String>> + use<>> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?).lines())
}

/// Reads a file line by line, counted from 1.
pub(super) fn each(path: &Path, mut each: impl FnMut(usize, &str) -> Result<(), ExportError>) -> Result<(), ExportError> {
    let failed = |error| ExportError::File { doing: "read back", path: path.to_owned(), error };
    for (index, line) in read(path).map_err(failed)?.enumerate() {
        each(index + 1, &line.map_err(failed)?)?;
    }
    Ok(())
}
