//! The batches of the store, one line each.

use serde::Serialize;
use serde_json::json;

use super::super::terminal::{Paint, harmless, print, table};
use super::{moment, name_of};
use crate::harness::{HarnessChoice, Kept};
use crate::http::api::rfc3339;
use crate::ids::BatchId;
use crate::store::{BatchBrief, BatchStatus, Store};

/// A batch as `--json` prints it.
#[derive(Serialize)]
struct Line {
    id: BatchId,
    status: BatchStatus,
    created_at: String,
    /// Rollouts that have ended, replaced ones not counted.
    ended: u64,
    /// Rollouts that it is to have.
    rollouts: u64,
    /// What is run; nothing if another version wrote the plan so that this one can't read it.
    harnesses: Vec<String>,
}

/// Lists the newest `limit` of them, all if it is 0, newest last.
pub(super) async fn list(store: &dyn Store, limit: usize, json: bool) -> anyhow::Result<()> {
    let all = store.batches(None, 0).await?;
    let newest = if limit == 0 { &all[..] } else { &all[all.len().saturating_sub(limit)..] };
    if newest.is_empty() && !json {
        tracing::info!("no batches in {}", store.describe());
        return Ok(());
    }
    let mut lines = Vec::with_capacity(newest.len());
    for brief in newest {
        lines.push(line(store, brief).await?);
    }
    let text = if json { format!("{}\n", json!({ "batches": lines })) } else { rendered(&lines, Paint::of_stdout()) };
    Ok(print(&text)?)
}

async fn line(store: &dyn Store, brief: &BatchBrief) -> anyhow::Result<Line> {
    let BatchBrief { id, status, created_at, rollouts } = *brief;
    let kept = Kept::read(store, id).await.ok();
    let harnesses = kept.iter().flat_map(|kept| &kept.plan.harnesses).map(HarnessChoice::label).collect();
    Ok(Line { id, status, created_at: rfc3339(created_at), ended: store.ended(id).await?, rollouts, harnesses })
}

fn rendered(lines: &[Line], paint: Paint) -> String {
    let row = |line: &Line| {
        vec![
            line.id.to_string(),
            name_of(&line.status),
            moment(&line.created_at),
            format!("{}/{}", line.ended, line.rollouts),
            harmless(&line.harnesses.join(", ")).replace('\n', " "),
        ]
    };
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    table(&["batch", "status", "created", "ended", "harnesses"], &rows, paint)
}
