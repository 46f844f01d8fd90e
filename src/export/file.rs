//! A file that appears whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::ExportError;

/// In which form a data set is written; its file's ending says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `.jsonl`: a JSON value a line.
    JsonLines,
    /// `.parquet`.
    Parquet,
}

impl Form {
    /// The form of this file, if it is one of `forms`.
    pub(super) fn of(out: &Path, forms: &[Self]) -> Result<Self, ExportError> {
        let ending = out.extension().and_then(|ending| ending.to_str());
        let form = forms.iter().copied().find(|form| ending == Some(form.ending()));
        form.ok_or_else(|| {
            let endings: Vec<String> = forms.iter().map(|form| format!(".{}", form.ending())).collect();
            ExportError::Ending { path: out.to_owned(), endings: endings.join(" or ") }
        })
    }

    fn ending(self) -> &'static str {
        match self {
            Self::JsonLines => "jsonl",
            Self::Parquet => "parquet",
        }
    }
}

/// A file being written, beside where it will be.
#[derive(Debug)]
pub struct Target {
    file: BufWriter<File>,
    written: Written,
}

/// A file that is written and not yet in its place. Removed unless it is kept.
#[derive(Debug)]
pub struct Written {
    partial: PathBuf,
    out: PathBuf,
    kept: bool,
}

impl Target {
    pub(super) fn create(out: &Path) -> Result<Self, ExportError> {
        let failed = |error| ExportError::File { doing: "write", path: out.to_owned(), error };
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

    /// Where the file will be.
    pub(super) fn out(&self) -> &Path {
        &self.written.out
    }

    /// The error that says which file could not be written.
    pub(super) fn failed(&self, error: io::Error) -> ExportError {
        self.written.failed("write", error)
    }

    /// Hands everything to the disk.
    pub(super) fn close(mut self) -> Result<Written, ExportError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|error| self.written.failed("write", error))?;
        Ok(self.written)
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
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

    fn failed(&self, doing: &'static str, error: io::Error) -> ExportError {
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
