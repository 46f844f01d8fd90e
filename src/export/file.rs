//! A file that appears whole or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::ExportError;

/// A file being written, beside where it will be.
#[derive(Debug)]
pub(super) struct Target {
    file: BufWriter<File>,
    written: Written,
}

/// A file that is written and not yet in its place. Removed unless it is kept.
#[derive(Debug)]
pub(super) struct Written {
    partial: PathBuf,
    out: PathBuf,
    kept: bool,
}

impl Target {
    pub(super) fn create(out: &Path) -> Result<Self, ExportError> {
        let failed = |error| ExportError::File { doing: "write", path: out.to_owned(), error };
        match out.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl") => {}
            Some("parquet") => {
                let why = "Parquet comes later; give --out a path that ends in .jsonl";
                return Err(ExportError::Ending { path: out.to_owned(), why });
            }
            _ => {
                let why = "give --out a path that ends in .jsonl, which says the form";
                return Err(ExportError::Ending { path: out.to_owned(), why });
            }
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(format!(".{}.partial", std::process::id()));
        let partial = out.with_file_name(name);
        if out.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let file = File::create(&partial).map_err(failed)?;
        let written = Written { partial, out: out.to_owned(), kept: false };
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), written })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.file.write_all(bytes).map_err(|error| self.written.failed("write", error))
    }

    /// Hands everything to the disk.
    pub(super) fn close(mut self) -> Result<Written, ExportError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|error| self.written.failed("write", error))?;
        Ok(self.written)
    }
}

impl Written {
    /// Where the file is now.
    pub(super) fn path(&self) -> &Path {
        &self.partial
    }

    /// Puts the file in its place, over one that may be there.
    pub(super) fn keep(mut self) -> Result<(), ExportError> {
        std::fs::rename(&self.partial, &self.out).map_err(|error| self.failed("write", error))?;
        self.kept = true;
        Ok(())
    }

    fn failed(&self, doing: &'static str, error: std::io::Error) -> ExportError {
        ExportError::File { doing, path: self.out.clone(), error }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing more can be done about a file that can't be removed; the error that led here is already on its way.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}
