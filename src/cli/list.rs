//! `gleaner list`: the rollouts of the store, or its batches.

mod batches;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::filter::Which;
use super::show::batch_of;
use super::terminal::{Paint, harmless, print, table};
use crate::http::api::{RolloutView, rfc3339};
use crate::store::{Rollout, RolloutFilter, RolloutStatus, Store};

/// Lists rollouts or batches, newest last. Works while a server runs on the same store.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// What to list; the filters are of rollouts
    #[arg(default_value = "rollouts")]
    what: What,
    /// Print one JSON object, `{"rollouts": [...]}` or `{"batches": [...]}`, instead of a table
    #[arg(long)]
    json: bool,
    /// Only rollouts that are `open` or `finished`
    #[arg(long, value_parser = named::<RolloutStatus>)]
    status: Option<RolloutStatus>,
    #[command(flatten)]
    which: Which,
    /// Only rollouts of this batch: its id, or the beginning of one if only one begins so
    #[arg(long, value_name = "BATCH")]
    batch: Option<String>,
    /// The newest N; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Rollouts,
    Batches,
}

impl Args {
    /// Refuses filters of rollouts where batches are listed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let help = "all batches are listed: --status, --batch and the other filters are of rollouts; leave them out";
        ensure!(self.what == What::Rollouts || !self.is_filtered(), help);
        Ok(())
    }

    /// Whether only some rollouts are asked for.
    fn is_filtered(&self) -> bool {
        let Which { group, task, harness, outcome, purpose } = &self.which;
        let texts = [group, task, harness, &self.batch];
        self.status.is_some() || outcome.is_some() || purpose.is_some() || texts.into_iter().any(Option::is_some)
    }
}

/// Reads a name of a closed list, as serde knows it.
pub(super) fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
    T::deserialize(name).map_err(|error| error.to_string())
}

/// The name of a value of a closed list.
pub(super) fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

/// Runs the command.
pub(super) async fn run(args: Args, store: Arc<dyn Store>) -> anyhow::Result<ExitCode> {
    if args.what == What::Batches {
        return batches::list(store.as_ref(), args.limit, args.json).await.map(|()| ExitCode::SUCCESS);
    }
    let rollouts = newest(store.as_ref(), &args).await?;
    if args.json {
        let views: Vec<RolloutView> = rollouts.iter().map(|rollout| RolloutView::new(rollout, None)).collect();
        print(&format!("{}\n", serde_json::json!({ "rollouts": views })))?;
    } else if rollouts.is_empty() {
        tracing::info!("no rollouts in {}", store.describe());
    } else {
        print(&rendered(&rollouts, Paint::of_stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The last `limit` rollouts that fit, read page by page so that a large store takes no large memory.
async fn newest(store: &dyn Store, args: &Args) -> anyhow::Result<VecDeque<Rollout>> {
    const PAGE: u32 = 1000;
    let batch = match &args.batch {
        Some(text) => Some(batch_of(store, text).await?),
        None => None,
    };
    let mut filter = RolloutFilter {
        status: args.status,
        group_id: args.which.group.clone(),
        task_id: args.which.task.clone(),
        harness: args.which.harness.clone(),
        outcome: args.which.outcome,
        purpose: args.which.purpose,
        batch,
        after: None,
        limit: PAGE,
    };
    let mut newest = VecDeque::new();
    loop {
        let page = store.rollouts(&filter).await?;
        let last = page.len() < PAGE as usize;
        filter.after = page.last().map(|rollout| rollout.id);
        newest.extend(page);
        if args.limit > 0 {
            newest.drain(..newest.len().saturating_sub(args.limit));
        }
        if last {
            return Ok(newest);
        }
    }
}

fn rendered(rollouts: &VecDeque<Rollout>, paint: Paint) -> String {
    let head = ["rollout", "created", "harness", "task", "outcome", "reward", "calls", "tokens"];
    let rows: Vec<Vec<String>> = rollouts.iter().map(row).collect();
    table(&head, &rows, paint)
}

fn row(rollout: &Rollout) -> Vec<String> {
    let text = |text: &Option<String>| harmless(text.as_deref().unwrap_or("-")).replace('\n', " ");
    vec![
        rollout.id.to_string(),
        moment(&rfc3339(rollout.created_at)),
        text(&rollout.harness),
        text(&rollout.task_id),
        rollout.outcome.map_or_else(|| name_of(&rollout.status), |outcome| name_of(&outcome)),
        rollout.reward().map_or_else(|| "-".to_owned(), |reward| reward.to_string()),
        rollout.calls.to_string(),
        rollout.tokens.to_string(),
    ]
}

/// A time of RFC 3339 as a table has it, to the second.
fn moment(time: &str) -> String {
    time.replace('T', " ").chars().take(19).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::store::{Outcome, Purpose};

    #[test]
    fn rollouts_are_listed_unless_batches_are_asked_for() {
        let parse = |words: &[&str]| {
            let command = Args::augment_args(clap::Command::new("list"));
            let found = command.try_get_matches_from([&["list"], words].concat()).unwrap();
            let args = Args::from_arg_matches(&found).unwrap();
            (args.what, args.check().is_ok())
        };
        assert_eq!(parse(&[]), (What::Rollouts, true));
        assert_eq!(parse(&["--batch", "019a"]), (What::Rollouts, true));
        assert_eq!(parse(&["batches", "--json"]), (What::Batches, true));
        assert_eq!(parse(&["batches", "--outcome", "passed"]), (What::Batches, false));
    }

    #[test]
    fn names_go_both_ways() {
        assert_eq!(named::<Outcome>("timed_out").map(|outcome| name_of(&outcome)), Ok("timed_out".to_owned()));
        assert_eq!(named::<Purpose>("record"), Ok(Purpose::Record));
        assert!(named::<Outcome>("won").unwrap_err().contains("unknown variant `won`, expected one of `passed`"));
    }
}
