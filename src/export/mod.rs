//! Data sets from recorded rollouts, one file a format.
//!
//! Adding a format is one file, its `mod` line and its row in [`ALL`].

mod audit;
mod columns;
mod earlier;
mod file;
mod filter;
mod lines;
mod load;
mod messages;
mod predictions;
mod samples;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::call::CallRecord;
use crate::ids::{CallId, RolloutId};
use crate::store::{Artifacts, Rollout, Store, StoreError};
use crate::trajectory::{self, Broken, Built, Class, Drift, LeftOut, RolloutFacts, Rules, Turn};

pub use audit::{Audit, Difference, Gap, Group, Report, Worst};
pub use columns::{ColumnsError, Writer as ColumnsWriter};
pub use earlier::Earlier;
pub use file::{Form, Target, Written};
pub use filter::{BadFilter, Filter, policy_seq, since};
pub use load::{asked, asked_after};
pub use samples::{Unread, read_samples};
pub use verify::{Verified, verify};

/// Every format that can be written.
pub static ALL: &[&dyn Format] = &[&samples::Samples, &messages::Messages, &predictions::Predictions];

/// A kind of data set.
pub trait Format: Sync {
    /// The format's name on the command line.
    fn name(&self) -> &'static str;

    /// The forms in which it can be written.
    fn forms(&self) -> &'static [Form];

    /// Whether rows are made from every request's text, not only from where conversations end.
    fn reads_all(&self) -> bool;

    /// Begins a file of one of its forms.
    ///
    /// # Errors
    /// If its first bytes can't be written.
    fn begin(&self, form: Form, target: Target) -> Result<Box<dyn Rows>, ExportError>;

    /// Proves what the format promises of a file as it was written.
    ///
    /// # Errors
    /// If it can't be read, or what does not hold and in which row.
    fn check(&self, form: Form, path: &Path) -> Result<(), ExportError>;
}

/// The rows of a file that is being written.
pub trait Rows: Send {
    /// Adds those of one rollout.
    ///
    /// # Errors
    /// If they can't be written, or would break an invariant.
    fn add(&mut self, from: &Material) -> Result<Added, ExportError>;

    /// Writes what still waits, and hands everything to the disk.
    ///
    /// # Errors
    /// If it can't be written.
    fn close(self: Box<Self>) -> Result<Written, ExportError>;
}

/// One rollout, as formats read it.
pub struct Material<'a> {
    pub facts: RolloutFacts,
    pub turns: Vec<Turn>,
    /// What of it is trained.
    pub rules: Rules<'a>,
    /// The files that it left.
    pub artifacts: &'a Artifacts,
}

impl Material<'_> {
    fn broken(&self, broken: Broken) -> ExportError {
        ExportError::Broken { rollout: self.facts.id, broken }
    }
}

/// What one rollout gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Added {
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
    #[error("{path} can't be written: give --out a path that ends in {endings}, which says the form")]
    Ending { path: PathBuf, endings: String },
    #[error("{path} can't be written: {what}")]
    Columns { path: PathBuf, what: String },
    #[error("{path} can't be read: {what}")]
    Unreadable { path: PathBuf, what: String },
    #[error("could not {doing} {path}: {error}; no new file is there, make room or give --out another path")]
    File { doing: &'static str, path: PathBuf, error: std::io::Error },
    #[error("row {row} of what was written breaks an invariant: {what}; nothing was kept")]
    Check { row: usize, what: String },
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
pub async fn build(
    store: &dyn Store,
    rollout: &Rollout,
    trained: &(dyn Fn(&str) -> bool + Sync),
    drift: Drift,
) -> Result<Built, ExportError> {
    let turns = load::turns(store, rollout, trained, false).await?;
    trajectory::build(&load::facts(rollout), &turns, &Rules { drift, ..Rules::default() })
        .map_err(|broken| ExportError::Broken { rollout: rollout.id, broken })
}

/// What each call of a rollout is to it.
///
/// # Errors
/// If the store fails.
pub async fn classes(store: &dyn Store, rollout: &Rollout) -> Result<HashMap<CallId, Class>, ExportError> {
    let turns = load::turns(store, rollout, &|_| true, false).await?;
    Ok(turns.iter().map(|turn| turn.record.id).zip(trajectory::classify(&turns)).collect())
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
    let form = Form::of(out, format.forms())?;
    let mut rows = format.begin(form, Target::create(out)?)?;
    let mut summary = Summary { format: format.name(), out: out.to_owned(), ..Summary::default() };
    let chosen = |record: &CallRecord| filter.chooses(record);
    let rules = filter.rules(&chosen);
    let mut pages = filter::Pages::new(filter);
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
            let material = Material { facts: load::facts(&rollout), turns, rules, artifacts: store.artifacts() };
            let added = rows.add(&material)?;
            summary.rollouts += 1;
            summary.samples += added.written;
            for left in added.left_out {
                *summary.left_out.entry(left.reason.name()).or_default() += 1;
            }
            progress(&summary);
        }
    }
    if summary.samples > 0 {
        let written = rows.close()?;
        if check {
            format.check(form, written.path())?;
            summary.checked = true;
        }
        written.keep()?;
    }
    Ok(summary)
}
