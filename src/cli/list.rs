//! `gleaner list`: the rollouts of the store.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::filter::Which;
use super::terminal::{Paint, print, table};
use crate::http::api::{RolloutView, rfc3339};
use crate::ids::BatchId;
use crate::store::{Rollout, RolloutFilter, RolloutStatus, Store, StoreError};

/// Lists rollouts, newest last. Works while a server runs on the same store.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Print one JSON object, `{"rollouts": [...]}`, instead of a table
    #[arg(long)]
    json: bool,
    /// Only rollouts that are `open` or `finished`
    #[arg(long, value_parser = named::<RolloutStatus>)]
    status: Option<RolloutStatus>,
    #[command(flatten)]
    which: Which,
    /// Only rollouts of this batch
    #[arg(long, value_name = "ID")]
    batch: Option<BatchId>,
    /// The newest N; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
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
async fn newest(store: &dyn Store, args: &Args) -> Result<VecDeque<Rollout>, StoreError> {
    const PAGE: u32 = 1000;
    let mut filter = RolloutFilter {
        status: args.status,
        group_id: args.which.group.clone(),
        task_id: args.which.task.clone(),
        harness: args.which.harness.clone(),
        outcome: args.which.outcome,
        purpose: args.which.purpose,
        batch: args.batch,
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
    let text = |text: &Option<String>| super::terminal::harmless(text.as_deref().unwrap_or("-")).replace('\n', " ");
    vec![
        rollout.id.to_string(),
        rfc3339(rollout.created_at).replace('T', " ").chars().take(19).collect(),
        text(&rollout.harness),
        text(&rollout.task_id),
        rollout.outcome.map_or_else(|| name_of(&rollout.status), |outcome| name_of(&outcome)),
        rollout.reward().map_or_else(|| "-".to_owned(), |reward| reward.to_string()),
        rollout.calls.to_string(),
        rollout.tokens.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Outcome, Purpose};

    #[test]
    fn names_go_both_ways() {
        assert_eq!(named::<Outcome>("timed_out").map(|outcome| name_of(&outcome)), Ok("timed_out".to_owned()));
        assert_eq!(named::<Purpose>("record"), Ok(Purpose::Record));
        assert!(named::<Outcome>("won").unwrap_err().contains("unknown variant `won`, expected one of `passed`"));
    }
}
