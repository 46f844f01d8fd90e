//! Where the samples of an audit come from: rollout by rollout out of the store, or out of a file.

use std::path::Path;

use crate::export::filter::Pages;
use crate::export::samples::{Read, read_samples};
use crate::export::{ExportError, Filter};
use crate::ids::RolloutId;
use crate::store::{Rollout, Store};
use crate::trajectory::Sample;

/// What comes next.
pub(super) enum Found {
    /// A rollout, and what the file has of it, if there is a file.
    Rollout(Box<Rollout>, Option<Vec<Sample>>),
    /// The file has samples of a rollout that the store does not have.
    Gone(RolloutId),
    /// A row of the file is no sample.
    Unread(String),
}

/// Rollouts one after the other.
pub(super) struct Source<'a> {
    store: &'a dyn Store,
    filter: &'a Filter,
    from: From<'a>,
}

enum From<'a> {
    Store { pages: Pages<'a>, page: std::vec::IntoIter<Rollout> },
    File { rows: Read, row: usize, ahead: Option<Box<Sample>> },
}

impl<'a> Source<'a> {
    pub(super) fn open(store: &'a dyn Store, filter: &'a Filter, file: Option<&Path>) -> Result<Self, ExportError> {
        let from = match file {
            None => From::Store { pages: Pages::new(filter), page: Vec::new().into_iter() },
            Some(path) => From::File { rows: read_samples(path)?, row: 0, ahead: None },
        };
        Ok(Self { store, filter, from })
    }

    /// The next rollout that the filter lets through; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Found>, ExportError> {
        match &mut self.from {
            From::Store { pages, page } => loop {
                for rollout in page.by_ref() {
                    if self.filter.matches(&rollout) && self.filter.ready(&rollout) {
                        return Ok(Some(Found::Rollout(Box::new(rollout), None)));
                    }
                }
                match pages.next(self.store).await? {
                    Some(next) => *page = next.into_iter(),
                    None => return Ok(None),
                }
            },
            From::File { rows, row, ahead } => loop {
                let samples = match together(rows, row, ahead) {
                    Ok(samples) => samples,
                    Err(what) => return Ok(Some(Found::Unread(what))),
                };
                let Some(first) = samples.first() else { return Ok(None) };
                let id = first.rollout_id;
                if !self.filter.rollouts.is_empty() && !self.filter.rollouts.contains(&id) {
                    continue;
                }
                match self.store.rollout(id).await? {
                    None => return Ok(Some(Found::Gone(id))),
                    Some(rollout) if !self.filter.matches(&rollout) => {}
                    Some(rollout) => return Ok(Some(Found::Rollout(Box::new(rollout), Some(samples)))),
                }
            },
        }
    }
}

/// The rows of one rollout, which stand together.
fn together(rows: &mut Read, row: &mut usize, ahead: &mut Option<Box<Sample>>) -> Result<Vec<Sample>, String> {
    let mut samples: Vec<Sample> = ahead.take().map(|sample| *sample).into_iter().collect();
    for read in rows.by_ref() {
        *row += 1;
        let sample = read.map_err(|unread| format!("row {row} of the file is no sample: {unread}"))?;
        if samples.first().is_some_and(|first| first.rollout_id != sample.rollout_id) {
            *ahead = Some(Box::new(sample));
            break;
        }
        samples.push(sample);
    }
    Ok(samples)
}
