//! A batch: how far it is, what it came to, and what its rollouts do now.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::super::list::name_of;
use super::super::terminal::{Paint, duration, harmless, print, table};
use super::super::{run, summary};
use crate::harness::{Standing, Tasks};
use crate::http::api::rfc3339;
use crate::ids::{BatchId, RolloutId};
use crate::store::{BatchStatus, Rollout, Store};
use crate::telemetry::now_ms;

/// Between two looks at a batch that is watched.
const LOOK: Duration = Duration::from_secs(1);

/// Prints it as it stands.
pub(super) async fn show(store: &dyn Store, id: BatchId, artifacts: &Path, json: bool) -> anyhow::Result<()> {
    let standing = Standing::read(store, id, artifacts).await?;
    print(&if json { line(&standing) } else { rendered(&standing, Paint::of_stdout()) })?;
    Ok(())
}

/// Prints it again and again until nobody runs it any more: anew on a terminal, elsewhere a line for each turn that a rollout takes
/// and for each end.
pub(super) async fn watch(store: &dyn Store, id: BatchId, artifacts: &Path) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let mut seen = BTreeMap::new();
    loop {
        let standing = Standing::read(store, id, artifacts).await?;
        let runs = standing.batch.status == BatchStatus::Running;
        if terminal {
            // The screen is cleared and the cursor put to its beginning.
            print(&format!("\x1b[2J\x1b[H{}", rendered(&standing, Paint::of_stdout())))?;
        } else {
            print(&news(&standing, &mut seen))?;
        }
        if !runs {
            return if terminal { Ok(()) } else { Ok(print(&rendered(&standing, Paint::of_stdout()))?) };
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What is new since the last look, in which a rollout had begun so many calls, or had ended (`None`).
fn news(standing: &Standing, seen: &mut BTreeMap<RolloutId, Option<u64>>) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    for rollout in &standing.running {
        if seen.insert(rollout.id, Some(rollout.calls)) != Some(Some(rollout.calls)) {
            let _ = writeln!(out, "rollout {} ({}): turn {}", rollout.id, what(rollout), rollout.calls);
        }
    }
    for report in &standing.reports {
        if seen.insert(report.id, None) != Some(None) {
            let _ = writeln!(out, "rollout {}: {}", report.id, report.outcome.name());
        }
    }
    out
}

fn what(rollout: &Rollout) -> String {
    let text = |text: &Option<String>| harmless(text.as_deref().unwrap_or("-")).replace('\n', " ");
    format!("{} on {} #{}", text(&rollout.harness), text(&rollout.task_id), rollout.index)
}

fn rendered(standing: &Standing, paint: Paint) -> String {
    let Standing { batch, kept, running, summaries, .. } = standing;
    let tasks = match &kept.plan.tasks {
        Tasks::Path(path) => path.clone(),
        Tasks::Inline(tasks) => format!("{} given with it", tasks.len()),
    };
    let mut out = format!("{} {}\n", paint.bold("batch"), batch.id);
    let facts = [
        ("status", name_of(&batch.status)),
        ("created", rfc3339(batch.created_at)),
        ("tasks", tasks),
        ("samples", kept.plan.samples.to_string()),
        ("rollouts", format!("{} of {} have ended, {} are running", standing.filled(), batch.rollouts, running.len())),
    ];
    for (name, value) in facts {
        let _ = writeln!(out, "  {name:<9} {}", harmless(&value).replace('\n', " "));
    }
    out.push('\n');
    out.push_str(&summary::rendered(summaries, paint));
    if !running.is_empty() {
        let now = now_ms();
        let row = |rollout: &Rollout| {
            let last = rollout.last_call_at.map_or_else(|| "-".to_owned(), |at| duration(now - at));
            let try_of = rollout.run.map_or(1, |run| run.attempt).to_string();
            vec![
                rollout.id.to_string(),
                what(rollout),
                try_of,
                rollout.calls.to_string(),
                last,
                duration(now - rollout.created_at),
            ]
        };
        let head = ["running", "what", "try", "turn", "since", "in all"];
        let _ = write!(out, "\n{}", table(&head, &running.iter().map(row).collect::<Vec<_>>(), paint));
    }
    out
}

fn line(standing: &Standing) -> String {
    let running = standing.running.iter().map(|rollout| {
        json!({
            "id": rollout.id, "harness": rollout.harness, "task_id": rollout.task_id, "index": rollout.index,
            "attempt": rollout.run.map(|run| run.attempt), "turn": rollout.calls,
            "turn_since": rollout.last_call_at.map(rfc3339), "created_at": rfc3339(rollout.created_at),
        })
    });
    let batch = &standing.batch;
    let all = json!({
        "batch": {
            "id": batch.id, "status": batch.status, "created_at": rfc3339(batch.created_at), "rollouts": batch.rollouts,
            "ended": standing.filled(), "plan": standing.kept.plan,
        },
        "summary": standing.summaries,
        "running": running.collect::<Vec<_>>(),
        "rollouts": run::rows(&standing.reports),
    });
    format!("{all}\n")
}
