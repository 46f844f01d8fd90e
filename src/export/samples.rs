//! `samples`: tokens, masks and log-probabilities, one sample a line.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{ExportError, Format, Material, Rows, push_line};
use crate::trajectory::{self, Broken, Sample};

/// Samples, as the API gives them.
pub(super) struct Samples;

impl Format for Samples {
    fn name(&self) -> &'static str {
        "samples"
    }

    fn reads_all(&self) -> bool {
        false
    }

    fn rows(&self, from: &Material, out: &mut Vec<u8>) -> Result<Rows, Broken> {
        let built = trajectory::build(&from.facts, &from.turns, &from.rules)?;
        for sample in &built.samples {
            let json = serde_json::to_vec(sample)
                .map_err(|error| Broken { of: format!("sample {}", sample.id), what: format!("it is not JSON: {error}") })?;
            push_line(out, &json);
        }
        Ok(Rows { written: built.samples.len() as u64, left_out: built.left_out })
    }

    fn check(&self, path: &Path) -> Result<(), ExportError> {
        let mut rollout: Vec<Sample> = Vec::new();
        let mut done = HashSet::new();
        let mut last = 0;
        each_line(path, |line, text| {
            let failed = |what: String| ExportError::Check { line, what };
            last = line;
            let sample: Sample = serde_json::from_str(text).map_err(|error| failed(error.to_string()))?;
            if rollout.first().is_some_and(|first| first.rollout_id != sample.rollout_id) {
                // Only now is it known that the one before was the rollout's last.
                let before = |broken: Broken| ExportError::Check { line: line - 1, what: broken.to_string() };
                trajectory::check(&rollout).map_err(before)?;
                rollout.clear();
            }
            if rollout.is_empty() && !done.insert(sample.rollout_id) {
                return Err(failed(format!("rollout {} is in two places", sample.rollout_id)));
            }
            rollout.push(sample);
            Ok(())
        })?;
        trajectory::check(&rollout).map_err(|broken| ExportError::Check { line: last, what: broken.to_string() })
    }
}

/// Reads a file line by line, counted from 1.
pub(super) fn each_line(path: &Path, mut read: impl FnMut(usize, &str) -> Result<(), ExportError>) -> Result<(), ExportError> {
    let failed = |error| ExportError::File { doing: "read back", path: path.to_owned(), error };
    let lines = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?).lines();
    for (index, line) in lines.enumerate() {
        read(index + 1, &line.map_err(failed)?)?;
    }
    Ok(())
}
