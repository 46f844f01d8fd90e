//! `--server URL`: batches that a running server runs, ordered, watched and cancelled from here.

mod server;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::batch::Asked;
use super::progress::Watcher;
use super::runner::Done;
use super::terminal::harmless;
use super::{Signals, run};
use crate::harness::summary::Summary;
use crate::harness::{Plan, Progress, Report, Tasks};
use crate::ids::{BatchId, RolloutId};
use crate::store::{BatchStatus, Outcome};

pub(super) use server::Refused;
use server::Server;

/// Between two looks: so much at least, at most, and as a multiple of what a look took, so that looking costs the server little.
const LOOKS: (Duration, Duration, u32) = (Duration::from_millis(300), Duration::from_secs(10), 20);
/// How long a server that is being started again is waited for.
const AWAY: Duration = Duration::from_mins(5);

/// A batch as the API tells it.
#[derive(Deserialize)]
struct Seen {
    status: BatchStatus,
    rollouts: u64,
    ended: u64,
    running: Vec<Running>,
    waiting: Option<String>,
    error: Option<String>,
    summary: Vec<Summary>,
}

#[derive(Deserialize)]
struct Running {
    id: RolloutId,
    harness: Option<String>,
    task_id: Option<String>,
    index: u32,
    attempt: u32,
    turn: u64,
    doing: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    rollouts: Vec<Row>,
    next: Option<String>,
}

/// A rollout that has ended, as the API tells it.
#[derive(Deserialize)]
struct Row {
    id: RolloutId,
    harness: String,
    task_id: String,
    group_id: Option<String>,
    index: u32,
    outcome: Outcome,
    reward: Option<f64>,
    calls: u64,
    tokens: u64,
    drift: u64,
    #[serde(default)]
    ms: u64,
    #[serde(default)]
    error: Option<String>,
}

/// Has a server do what was asked, to its end or to Ctrl-C, which cancels the batch there.
pub(super) async fn execute(url: &str, asked: &Asked<'_>, how: &run::How) -> anyhow::Result<Done> {
    let server = Server::new(url)?;
    if how.harnesses.is_some() {
        let why =
            "harnesses are the server's with --server: start it with --harnesses, and leave it (GLEANER_HARNESSES) out here";
        return Err(Refused::usage(why).into());
    }
    let id = order(&server, asked).await?;
    let turns: Arc<Mutex<HashMap<RolloutId, u64>>> = Arc::default();
    let told = Arc::clone(&turns);
    let of = move |rollout| told.lock().unwrap_or_else(PoisonError::into_inner).get(&rollout).copied().unwrap_or_default();
    let watch = Watch { server: &server, id, watcher: Watcher::new(Arc::new(of)), turns, begun: HashSet::new(), waiting: None };
    watch.until_it_ends().await
}

/// Orders it, or has the server go on with it; gives its id.
async fn order(server: &Server, asked: &Asked<'_>) -> anyhow::Result<BatchId> {
    let made = match asked {
        Asked::New(plan) => {
            let plan = portable(plan, server.is_here())?;
            // Should an answer get lost, asking again orders nothing twice.
            let key = Uuid::now_v7().to_string();
            server.order("/batches", &serde_json::to_value(&plan)?, &key).await?
        }
        Asked::Resume { batch, force } => {
            let id: BatchId = batch.parse().map_err(|_| Refused::usage("with --server, --resume takes a whole id"))?;
            server.post(&format!("/batches/{id}/resume"), &json!({ "force": force })).await?
        }
    };
    serde_json::from_value(made["id"].clone()).context("the server's answer has no batch's id")
}

/// The plan as a server can read it: it does not see this machine's files, unless it is `here`.
fn portable(plan: &Plan, here: bool) -> anyhow::Result<Plan> {
    let Tasks::Path(path) = &plan.tasks else { return Ok(plan.clone()) };
    let file = Path::new(path);
    if !file.is_dir() {
        let text =
            std::fs::read_to_string(file).map_err(|error| Refused::usage(format!("reading tasks from {path}: {error}")))?;
        return Ok(Plan { tasks: Tasks::Inline(lines(path, &text)?), ..plan.clone() });
    }
    if !here {
        let why = format!("{path} is a folder, which a server on another machine can't see; run it there, or give JSON Lines");
        return Err(Refused::usage(why).into());
    }
    let whole = std::fs::canonicalize(file).with_context(|| format!("reading tasks from {path}"))?;
    Ok(Plan { tasks: Tasks::Path(whole.display().to_string()), ..plan.clone() })
}

/// The tasks of JSON Lines, or of one list.
fn lines(path: &str, text: &str) -> Result<Vec<Value>, Refused> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|error| Refused::usage(format!("{path}: {error}")));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| Refused::usage(format!("{path}, line {}: {error}", at + 1)))
    };
    lines.map(read).collect()
}

/// Looks at a batch until it has ended.
struct Watch<'a> {
    server: &'a Server,
    id: BatchId,
    watcher: Watcher,
    turns: Arc<Mutex<HashMap<RolloutId, u64>>>,
    /// Rollouts that were seen running, and whose end was not told.
    begun: HashSet<RolloutId>,
    /// What they were last seen waiting for.
    waiting: Option<String>,
}

impl Watch<'_> {
    async fn until_it_ends(mut self) -> anyhow::Result<Done> {
        let mut signals = Signals::listen()?;
        let first = self.look().await?;
        self.watcher.begin_batch(self.id, first.rollouts, first.ended);
        let (mut cancelled, mut left) = (false, false);
        let server = self.server;
        let path = format!("/batches/{}", self.id);
        let seen = {
            let seeing = self.follow();
            tokio::pin!(seeing);
            tokio::select! {
                seen = &mut seeing => Some(seen),
                () = signals.next() => None,
            }
        };
        let seen = if let Some(seen) = seen {
            seen?
        } else {
            cancelled = true;
            self.watcher.say("cancelling the batch on the server (once more to leave at once)");
            tokio::select! {
                deleted = server.delete(&path) => drop(deleted?),
                () = signals.next() => left = true,
            }
            ensure!(!left, "batch {} is being cancelled; the server at {} goes on with that", self.id, server.base());
            self.look().await?
        };
        let reports = self.reports().await?;
        for report in reports.iter().filter(|report| self.begun.contains(&report.id)) {
            self.watcher.tell(Progress::Ended(report.clone()));
        }
        self.watcher.done();
        if let Some(error) = &seen.error {
            bail!("batch {} stopped on the server: {error}", self.id);
        }
        let whole = seen.status == BatchStatus::Done;
        if seen.status == BatchStatus::Stopped {
            let id = self.id;
            self.watcher
                .say(&format!("batch {id} is not whole; go on with: gleaner batch --resume {id} --server {}", server.base()));
        }
        Ok(Done { id: self.id, reports, summaries: seen.summary, whole, cancelled })
    }

    /// Tells what is seen until the batch runs no more.
    async fn follow(&mut self) -> anyhow::Result<Seen> {
        let (least, most, times) = LOOKS;
        let mut away: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let pause = match self.look().await {
                Ok(seen) => {
                    away = None;
                    self.tell(&seen).await;
                    if seen.status != BatchStatus::Running {
                        return Ok(seen);
                    }
                    (began.elapsed() * times).clamp(least, most)
                }
                Err(error) if error.is::<Refused>() => return Err(error),
                Err(error) => {
                    if away.get_or_insert(began).elapsed() > AWAY {
                        return Err(error);
                    }
                    self.watcher.say(&format!("waiting for the server: {error:#}"));
                    Duration::from_secs(2)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn look(&self) -> anyhow::Result<Seen> {
        let seen = self.server.get(&format!("/batches/{}", self.id)).await?;
        serde_json::from_value(seen).context("reading what the server says of the batch")
    }

    async fn tell(&mut self, seen: &Seen) {
        if seen.waiting != self.waiting {
            self.waiting.clone_from(&seen.waiting);
            self.waiting.iter().for_each(|waiting| self.watcher.say(&harmless(waiting)));
        }
        let running: HashSet<RolloutId> = seen.running.iter().map(|running| running.id).collect();
        let ended: Vec<RolloutId> = self.begun.difference(&running).copied().collect();
        for id in ended {
            // What can't be read now is told at the end.
            if let Ok(report) = self.ended(id).await {
                self.begun.remove(&id);
                self.watcher.tell(Progress::Ended(report));
            }
        }
        let turns = seen.running.iter().map(|running| (running.id, running.turn)).collect();
        *self.turns.lock().unwrap_or_else(PoisonError::into_inner) = turns;
        for running in &seen.running {
            let rollout = running.id;
            if self.begun.insert(rollout) {
                let (harness, task_id) =
                    (running.harness.clone().unwrap_or_default(), running.task_id.clone().unwrap_or_default());
                let (index, attempt) = (running.index, running.attempt);
                self.watcher.tell(Progress::Began { rollout, harness, task_id, index, attempt });
            }
            if let Some(doing) = running.doing.clone() {
                self.watcher.tell(Progress::Step { rollout, doing: doing.into() });
            }
        }
    }

    /// A rollout that is not running any more.
    async fn ended(&self, id: RolloutId) -> anyhow::Result<Report> {
        let mut rollout = self.server.get(&format!("/rollouts/{id}")).await?;
        rollout["error"] = rollout["evidence"]["error"].clone();
        Ok(serde_json::from_value::<Row>(rollout)?.into())
    }

    /// Of each sample the rollout that counts.
    async fn reports(&self) -> anyhow::Result<Vec<Report>> {
        let (mut reports, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.server.get(&format!("/batches/{}/rollouts?limit=1000{after}", self.id)).await?;
            let page: Page = serde_json::from_value(page).context("reading the batch's rollouts")?;
            reports.extend(page.rollouts.into_iter().map(Report::from));
            match page.next {
                Some(next) => after = format!("&after={next}"),
                None => return Ok(reports),
            }
        }
    }
}

impl From<Row> for Report {
    fn from(row: Row) -> Self {
        let Row { id, harness, task_id, group_id, index, outcome, reward, calls, tokens, drift, ms, error } = row;
        let artifacts = format!("the server's store; gleaner show {id} lists it").into();
        Self { id, harness, task_id, group: group_id, index, outcome, reward, calls, tokens, drift, ms, error, artifacts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(path: &Path) -> Plan {
        serde_json::from_value(json!({"tasks": path.display().to_string(), "harnesses": [{"harness": "codex"}]})).unwrap()
    }

    #[test]
    fn tasks_of_a_file_are_sent_and_folders_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.jsonl");
        std::fs::write(&file, "{\"id\": \"a\"}\n\n{\"id\": \"b\"}\n").unwrap();
        let given = Tasks::Inline(vec![json!({"id": "a"}), json!({"id": "b"})]);
        for here in [true, false] {
            assert_eq!(portable(&plan(&file), here).unwrap().tasks, given);
        }
        std::fs::write(&file, "[{\"id\": \"a\"}, {\"id\": \"b\"}]").unwrap();
        assert_eq!(portable(&plan(&file), false).unwrap().tasks, given);
        let whole = Tasks::Path(std::fs::canonicalize(dir.path()).unwrap().display().to_string());
        assert_eq!(portable(&plan(dir.path()), true).unwrap().tasks, whole);
        let error = portable(&plan(dir.path()), false).unwrap_err();
        assert!(error.to_string().contains("can't see") && error.is::<Refused>(), "{error}");
        std::fs::write(&file, "{\"id\": \"a\"}\n{").unwrap();
        assert!(portable(&plan(&file), true).unwrap_err().to_string().contains("line 2"));
    }
}
