//! `samples`: tokens, masks and log-probabilities, one sample a row.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::columns::{self, ColumnsError};
use super::lines::{self, Lines};
use super::{Added, ExportError, Form, Format, Material, Rows, Target, Written};
use crate::trajectory::{self, Broken, Sample};

/// Samples, as the API gives them.
pub(super) struct Samples;

impl Format for Samples {
    fn name(&self) -> &'static str {
        "samples"
    }

    fn forms(&self) -> &'static [Form] {
        &[Form::JsonLines, Form::Parquet]
    }

    fn reads_all(&self) -> bool {
        false
    }

    fn begin(&self, form: Form, target: Target) -> Result<Box<dyn Rows>, ExportError> {
        Ok(match form {
            Form::JsonLines => Box::new(Lines::new(target, write_lines)),
            Form::Parquet => Box::new(Columns::new(target)?),
        })
    }

    fn check(&self, form: Form, path: &Path) -> Result<(), ExportError> {
        let mut rollout: Vec<Sample> = Vec::new();
        let mut done = HashSet::new();
        let mut row = 0;
        let failed = |row: usize, what: String| ExportError::Check { row, what };
        for sample in read(form, path).map_err(|unread| unread.during_check(path, 0))? {
            row += 1;
            let sample = sample.map_err(|unread| unread.during_check(path, row))?;
            if rollout.first().is_some_and(|first| first.rollout_id != sample.rollout_id) {
                // Only now is it known that the one before was the rollout's last.
                trajectory::check(&rollout).map_err(|broken| failed(row - 1, broken.to_string()))?;
                rollout.clear();
            }
            if rollout.is_empty() && !done.insert(sample.rollout_id) {
                return Err(failed(row, format!("rollout {} is in two places", sample.rollout_id)));
            }
            rollout.push(sample);
        }
        trajectory::check(&rollout).map_err(|broken| failed(row, broken.to_string()))
    }
}

fn write_lines(from: &Material, out: &mut Vec<u8>) -> Result<Added, Broken> {
    let built = trajectory::build(&from.facts, &from.turns, &from.rules)?;
    for sample in &built.samples {
        let json = serde_json::to_vec(sample)
            .map_err(|error| Broken { of: format!("sample {}", sample.id), what: format!("it is not JSON: {error}") })?;
        lines::push(out, &json);
    }
    Ok(Added { written: built.samples.len() as u64, left_out: built.left_out })
}

/// A Parquet file that is being written.
struct Columns {
    writer: columns::Writer<Target>,
    out: PathBuf,
}

impl Columns {
    fn new(target: Target) -> Result<Self, ExportError> {
        let out = target.out().to_owned();
        let writer = columns::Writer::new(target).map_err(|error| failed(&out, error))?;
        Ok(Self { writer, out })
    }
}

impl Rows for Columns {
    fn add(&mut self, from: &Material) -> Result<Added, ExportError> {
        let built = trajectory::build(&from.facts, &from.turns, &from.rules).map_err(|broken| from.broken(broken))?;
        let written = built.samples.len() as u64;
        self.writer.add(built.samples).map_err(|error| failed(&self.out, error))?;
        Ok(Added { written, left_out: built.left_out })
    }

    fn close(self: Box<Self>) -> Result<Written, ExportError> {
        let Self { writer, out } = *self;
        writer.close().map_err(|error| failed(&out, error))?.close()
    }
}

fn failed(out: &Path, error: ColumnsError) -> ExportError {
    match error {
        ColumnsError::Io(error) => ExportError::File { doing: "write", path: out.to_owned(), error },
        error => ExportError::Columns { path: out.to_owned(), what: error.to_string() },
    }
}

/// Why a row could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What is there is no sample.
    #[error("{0}")]
    Sample(String),
}

impl Unread {
    fn during_check(self, path: &Path, row: usize) -> ExportError {
        match self {
            Self::Io(error) => ExportError::File { doing: "read back", path: path.to_owned(), error },
            Self::Sample(what) => ExportError::Check { row, what },
        }
    }
}

impl From<ColumnsError> for Unread {
    fn from(error: ColumnsError) -> Self {
        match error {
            ColumnsError::Io(error) => Self::Io(error),
            error => Self::Sample(error.to_string()),
        }
    }
}

/// The samples of a file, one in memory at a time.
pub type Read = Box<dyn Iterator<Item = Result<Sample, Unread>> + Send>;

fn read(form: Form, path: &Path) -> Result<Read, Unread> {
    Ok(match form {
        Form::JsonLines => {
            let of = |line: io::Result<String>| serde_json::from_str(&line?).map_err(|error| Unread::Sample(error.to_string()));
            Box::new(lines::read(path)?.map(of))
        }
        Form::Parquet => Box::new(columns::Reader::open(File::open(path)?)?.map(|row| row.map_err(Unread::from))),
    })
}

/// Reads a file of samples that an export wrote; its ending says the form. One sample is in memory at a time.
///
/// # Errors
/// If the ending says no form, or the file can't be opened.
pub fn read_samples(path: &Path) -> Result<Read, ExportError> {
    let form = Form::of(path, Samples.forms())?;
    read(form, path).map_err(|unread| match unread {
        Unread::Io(error) => ExportError::Unreadable { path: path.to_owned(), what: error.to_string() },
        Unread::Sample(what) => ExportError::Unreadable { path: path.to_owned(), what },
    })
}
