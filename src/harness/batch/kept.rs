//! What is kept of a batch: what it goes on from.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::harness::digest::Digest;
use crate::harness::{HarnessChoice, Order, Plan, TaskImage, Tasks};
use crate::ids::BatchId;
use crate::store::{Batch, Store, StoreError};

/// A batch as it was ordered, and what its tasks and harnesses were then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub plan: Plan,
    /// The folder of harnesses that was added to the built-in ones.
    #[serde(default)]
    pub harnesses: Option<PathBuf>,
    /// A server runs it: one that starts goes on with it.
    #[serde(default)]
    pub served: bool,
    /// Sums of its harnesses by their names.
    harness_sums: IndexMap<String, String>,
    /// Sums of its tasks by their ids, in the order in which they stand.
    task_sums: IndexMap<String, String>,
}

/// Why a batch can't be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    #[error("there is no batch {0} in {1}")]
    Unknown(BatchId, String),
    #[error("batch {0} was written by another version of Gleaner and can't be read: {1}")]
    Unreadable(BatchId, String),
    #[error("batch {id} was ordered with other things than are there now: {what}; --force goes on with what is there now")]
    Changed { id: BatchId, what: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kept {
    /// What is to be kept of a plan with these orders. `harnesses` is a folder beside the built-in ones. Paths are made whole, so
    /// that they hold wherever it is resumed.
    ///
    /// # Errors
    /// If a path is not there.
    pub fn new(mut plan: Plan, harnesses: Option<&Path>, orders: &[Order]) -> std::io::Result<Self> {
        if let Tasks::Path(path) = &mut plan.tasks {
            *path = std::fs::canonicalize(&*path)?.display().to_string();
        }
        let harnesses = harnesses.map(std::fs::canonicalize).transpose()?;
        let (harness_sums, task_sums) = sums(orders);
        Ok(Self { plan, harnesses, served: false, harness_sums, task_sums })
    }

    /// What is kept of a batch.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub async fn read(store: &dyn Store, id: BatchId) -> Result<Self, ResumeError> {
        Self::of(&store.batch(id).await?.ok_or_else(|| ResumeError::Unknown(id, store.describe()))?)
    }

    /// What is kept of a batch.
    ///
    /// # Errors
    /// If another version wrote it so that this one can't read it.
    pub fn of(batch: &Batch) -> Result<Self, ResumeError> {
        Self::deserialize(&batch.plan).map_err(|error| ResumeError::Unreadable(batch.id, error.to_string()))
    }

    /// Where each of its tasks stands, by its id.
    pub(super) fn places(&self) -> HashMap<&str, usize> {
        self.task_sums.keys().enumerate().map(|(at, id)| (id.as_str(), at)).collect()
    }

    /// Whether these orders are of the same tasks and harnesses.
    pub(super) fn unchanged(&self, id: BatchId, orders: &[Order]) -> Result<(), ResumeError> {
        let (harnesses, tasks) = sums(orders);
        let of_harnesses = changes("harness", &self.harness_sums, &harnesses);
        let mut all: Vec<String> = of_harnesses.chain(changes("task", &self.task_sums, &tasks)).collect();
        if all.is_empty() {
            return Ok(());
        }
        let more = all.len().saturating_sub(SHOWN);
        all.truncate(SHOWN);
        if more > 0 {
            all.push(format!("and {more} more"));
        }
        Err(ResumeError::Changed { id, what: all.join(", ") })
    }
}

/// Changes that an error names.
const SHOWN: usize = 5;

/// Sums of harnesses by their names, and of tasks by their ids.
fn sums(orders: &[Order]) -> (IndexMap<String, String>, IndexMap<String, String>) {
    let (mut harnesses, mut tasks) = (IndexMap::new(), IndexMap::new());
    for order in orders {
        harnesses.entry(order.choice.label()).or_insert_with(|| of_harness(order));
        tasks.entry(order.task.id.clone()).or_insert_with(|| of_task(order));
    }
    (harnesses, tasks)
}

/// What is not as it was.
fn changes<'a>(
    kind: &'a str,
    was: &'a IndexMap<String, String>,
    now: &'a IndexMap<String, String>,
) -> impl Iterator<Item = String> + use<'a> {
    let changed = was.iter().filter_map(move |(name, sum)| match now.get(name) {
        None => Some(format!("{kind} {name} is gone")),
        Some(other) if other != sum => Some(format!("{kind} {name} has changed")),
        Some(_) => None,
    });
    changed.chain(now.keys().filter(|name| !was.contains_key(*name)).map(move |name| format!("{kind} {name} is new")))
}

fn of_task(order: &Order) -> String {
    let mut sum = Digest::default();
    // Writing to a sum can't fail.
    let _ = write!(sum, "{:?}", order.task);
    if let TaskImage::Built(folder) = &order.task.image {
        add_folder(&mut sum, folder);
    }
    format!("{:016x}", sum.get())
}

fn of_harness(order: &Order) -> String {
    let mut sum = Digest::default();
    let _ = write!(sum, "{:?}", order.spec);
    for (path, content) in &order.harness.files {
        sum.part(path.as_bytes()).part(content);
    }
    format!("{:016x}", sum.get())
}

/// Adds a folder's files, in the order of their names. What can't be read counts as empty: building from it says why.
fn add_folder(sum: &mut Digest, folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        sum.part(path.as_os_str().as_encoded_bytes());
        // A link counts by its name: it may lead anywhere.
        match path.symlink_metadata() {
            Ok(facts) if facts.is_dir() => add_folder(sum, &path),
            Ok(facts) if facts.is_file() => drop(sum.part(&std::fs::read(&path).unwrap_or_default())),
            _ => {}
        }
    }
}

/// The group of a task's rollouts in a harness: the same whenever the batch is gone on with, whatever order its tasks stand in.
pub(super) fn group(batch: BatchId, choice: &HarnessChoice, task: &str) -> String {
    let mut sum = Digest::default();
    sum.part(choice.label().as_bytes()).part(task.as_bytes());
    format!("{batch}-{:016x}", sum.get())
}
