//! Data sets from recorded rollouts, one file a format.
//!
//! Adding a format is one file, its `mod` line and its row in [`ALL`].

mod earlier;
mod file;
mod filter;
mod load;
mod messages;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::call::CallRecord;
use crate::ids::RolloutId;
use crate::store::{Rollout, Store, StoreError};
use crate::trajectory::{self, Broken, Built, LeftOut, RolloutFacts, Turn};

pub use earlier::Earlier;
pub use filter::{BadFilter, Filter, policy_seq, since};
pub use load::{asked, asked_after};

/// Every format that can be written.
pub static ALL: &[&dyn Format] = &[&samples::Samples, &messages::Messages];

/// A form of data set: JSON Lines, one row a line.
pub trait Format: Sync {
    /// The format's name on the command line.
    fn name(&self) -> &'static str;

    /// Whether rows are made from every request's text, not only from where conversations end.
    fn reads_all(&self) -> bool;

    /// Writes the rows of one rollout, each with its line's end.
    ///
    /// # Errors
    /// If what would be written breaks an invariant.
    fn rows(&self, from: &Material, out: &mut Vec<u8>) -> Result<Rows, Broken>;

    /// Proves what the format promises of a file as it was written.
    ///
    /// # Errors
    /// If it can't be read, or what does not hold and in which line.
    fn check(&self, path: &Path) -> Result<(), ExportError>;
}

/// One rollout, as formats read it.
pub struct Material<'a> {
    pub facts: RolloutFacts,
    pub turns: Vec<Turn>,
    /// Which calls the filters let through.
    pub chosen: &'a (dyn Fn(&CallRecord) -> bool + Sync),
}

/// What was written of one rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub written: u64,
    pub left_out: Vec<LeftOut>,
}

/// What an export came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub format: &'static str,
    pub out: PathBuf,
    /// Rows written.
    pub samples: u64,
    /// Rollouts that matched.
    pub rollouts: u64,
    /// Rollouts that match but have not ended; those whose purpose is `record` are exported while open and not counted here.
    pub still_open: u64,
    /// Calls that gave no row's trained part, by reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// The file was read back and every invariant holds.
    pub checked: bool,
}

/// Why an export could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("rollout {rollout} was not exported: {broken}; this is a fault of Gleaner, please report it")]
    Broken { rollout: RolloutId, broken: Broken },
    #[error("there is no rollout {0}; `gleaner list` shows which there are")]
    UnknownRollout(RolloutId),
    #[error("{path} can't be written in this version: {why}")]
    Ending { path: PathBuf, why: &'static str },
    #[error("could not {doing} {path}: {error}; no new file is there, make room or give --out another path")]
    File { doing: &'static str, path: PathBuf, error: std::io::Error },
    #[error("line {line} of what was written breaks an invariant: {what}; nothing was kept")]
    Check { line: usize, what: String },
}

/// The format of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Format> {
    ALL.iter().copied().find(|format| format.name() == name)
}

/// Builds a rollout's samples from what the store has of it now. `trained` says of a policy's name whether it is trained.
///
/// # Errors
/// If the store fails, or an invariant does not hold.
pub async fn build(store: &dyn Store, rollout: &Rollout, trained: &(dyn Fn(&str) -> bool + Sync)) -> Result<Built, ExportError> {
    let turns = load::turns(store, rollout, trained, false).await?;
    trajectory::build(&load::facts(rollout), &turns, &|_| true)
        .map_err(|broken| ExportError::Broken { rollout: rollout.id, broken })
}

/// Writes a data set of the rollouts that `filter` matches: those that have ended, open ones whose purpose is `record`, and any
/// that is named. One rollout is in memory at a time. The file appears whole or not at all; without a row there is none.
///
/// `progress` is told how far it is after each rollout.
///
/// # Errors
/// If the store fails, the file can't be written, or an invariant does not hold.
pub async fn export(
    format: &dyn Format,
    store: &dyn Store,
    filter: &Filter,
    trained: &(dyn Fn(&str) -> bool + Sync),
    out: &Path,
    check: bool,
    progress: &(dyn Fn(&Summary) + Sync),
) -> Result<Summary, ExportError> {
    let mut target = file::Target::create(out)?;
    let mut summary = Summary { format: format.name(), out: out.to_owned(), ..Summary::default() };
    let chosen = |record: &CallRecord| filter.chooses(record);
    let mut pages = filter::Pages::new(filter);
    let mut lines = Vec::new();
    while let Some(page) = pages.next(store).await? {
        for rollout in page {
            if !filter.matches(&rollout) {
                continue;
            }
            if !filter.ready(&rollout) {
                summary.still_open += 1;
                continue;
            }
            let turns = load::turns(store, &rollout, trained, format.reads_all()).await?;
            let material = Material { facts: load::facts(&rollout), turns, chosen: &chosen };
            lines.clear();
            let rows =
                format.rows(&material, &mut lines).map_err(|broken| ExportError::Broken { rollout: rollout.id, broken })?;
            target.write(&lines)?;
            summary.rollouts += 1;
            summary.samples += rows.written;
            for left in rows.left_out {
                *summary.left_out.entry(left.reason.name()).or_default() += 1;
            }
            progress(&summary);
        }
    }
    if summary.samples > 0 {
        let written = target.close()?;
        if check {
            format.check(written.path())?;
            summary.checked = true;
        }
        written.keep()?;
    }
    Ok(summary)
}

/// Puts one JSON value on one line: what clients sent may have line breaks between its tokens.
fn push_line(out: &mut Vec<u8>, json: &[u8]) {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        out.extend_from_slice(json);
    } else {
        // Inside a string literal a line break is always escaped, so each raw one is white space.
        out.extend(json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    }
    out.push(b'\n');
}
