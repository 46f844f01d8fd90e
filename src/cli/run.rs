//! `gleaner run`: real harnesses on tasks, in containers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::harness::ensure_builder_image;
use super::list::name_of;
use super::progress::Watcher;
use super::terminal::{Paint, harmless, print, table};
use crate::engine::{Engine, EngineConfig};
use crate::harness::spec::SpecError;
use crate::harness::{Catalog, Choice, ModelEndpoint, Order, Report, RolloutConfig, Stage, Task, TaskError, fits, run_all};
use crate::store::Outcome;

/// Runs a real harness on a task, in a container whose only way out is the model, and records every call.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The harness, or HARNESS:VARIANT (`gleaner harness list` shows them)
    harness: String,
    /// The wire to speak, of those that the harness can; `gleaner harness list` shows them, its own choice first
    #[arg(long, value_name = "WIRE")]
    wire: Option<String>,
    /// What to ask it
    #[arg(required_unless_present = "task", conflicts_with = "task")]
    prompt: Option<String>,
    /// A JSON Lines file of tasks to run instead: objects with id and prompt, and if need be image, files, verify and a time limit
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Rollouts of each task; more than one are a group, for training
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// The image to run in, before the task's own
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Seconds that the harness may take, before the task's own; building payloads and images is not counted
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Set a parameter of the harness otherwise
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Rollouts at once
    #[arg(long, value_name = "N", value_parser = positive)]
    concurrency: Option<usize>,
    /// A folder of harnesses that adds to the built-in ones or replaces them by name
    #[arg(long, value_name = "DIR", env = "GLEANER_HARNESSES")]
    harnesses: Option<PathBuf>,
    /// Print one last line {"rollouts": [...]} instead of a table
    #[arg(long)]
    json: bool,
    /// Use this running server instead of one of its own
    #[arg(long, value_name = "URL", env = "GLEANER_SERVER")]
    server: Option<String>,
}

/// What `run` needs of whoever assembled the server.
pub(super) struct Surroundings<'a> {
    pub endpoint: Arc<dyn ModelEndpoint>,
    pub engine: Arc<dyn Engine>,
    pub engine_config: &'a EngineConfig,
    pub rollout: &'a RolloutConfig,
    /// Where payloads and our helper are kept; see [`super::harness::cache_folder`].
    pub cache: PathBuf,
    /// Where each rollout's files are kept.
    pub artifacts: &'a Path,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

/// What is to be run. Looked at before anything is started, so that a wrong name costs nothing.
///
/// # Errors
/// If the harness, its variant, wire, a parameter or a task is wrong; see [`is_usage`].
pub(super) fn orders(args: &Args) -> anyhow::Result<Vec<Order>> {
    if args.server.is_some() {
        anyhow::bail!("--server comes in a later version; without it `run` serves the model calls itself, on the same store");
    }
    let catalog = Catalog::load(args.harnesses.as_deref())?;
    let (name, variant) = args.harness.split_once(':').map_or((&*args.harness, None), |(name, variant)| (name, Some(variant)));
    let harness = catalog.get(name)?;
    let spec = harness.spec.clone().with(&Choice { variant, wire: args.wire.as_deref(), set: &args.set })?;
    let tasks = match &args.task {
        Some(path) => Task::load(path)?,
        None => vec![Task::of_prompt(args.prompt.as_deref().unwrap_or_default())],
    };
    let order = |task| Order {
        harness: harness.clone(),
        spec: spec.clone(),
        variant: variant.map(str::to_owned),
        task,
        samples: args.samples,
        image: args.image.clone(),
        timeout: args.timeout.map(Duration::from_secs),
        policy: None,
        purpose: None,
    };
    Ok(tasks.into_iter().map(order).collect())
}

/// Whether an error is the user's to mend on the command line or in a file: exit code 2.
pub(super) fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<SpecError>() || error.is::<TaskError>()
}

/// Runs the command. Ctrl-C and SIGTERM end every rollout as cancelled and clear away.
///
/// # Errors
/// If something could not be done at all; a rollout that went wrong is in the exit code only.
pub(super) async fn run(args: &Args, orders: &[Order], surroundings: Surroundings<'_>) -> anyhow::Result<ExitCode> {
    let cancel = CancellationToken::new();
    let watcher = Watcher::new();
    let running = rollouts(args, orders, &surroundings, &watcher, cancel.clone());
    let reports = running_until_signal(running, super::asked_to_end()?, &watcher, &cancel).await?;
    watcher.done();
    for report in &reports {
        if let Some(error) = &report.error {
            let id = report.id;
            tracing::error!(rollout.id = %id, "{}; what it printed is in {}", harmless(error), report.artifacts.display());
        }
    }
    print(&if args.json { line(&reports) } else { rendered(&reports, Paint::of_stdout()) })?;
    // Cancelled ones that had not begun have no report.
    let all = !cancel.is_cancelled() && reports.iter().all(|report| ended_by_itself(report.outcome));
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn rollouts(
    args: &Args,
    orders: &[Order],
    surroundings: &Surroundings<'_>,
    watcher: &Watcher,
    cancel: CancellationToken,
) -> anyhow::Result<Vec<Report>> {
    let (engine, base) = (surroundings.engine.as_ref(), &surroundings.engine_config.base_image);
    orders.iter().try_for_each(|order| fits(engine, order, base))?;
    for image in orders.iter().map(|order| order.image_or(base)).collect::<BTreeSet<_>>() {
        engine.ensure(image).await?;
    }
    for order in orders {
        ensure_builder_image(&order.harness, engine, base, &surroundings.cache).await?;
    }
    let mut config = surroundings.rollout.clone();
    config.concurrency = args.concurrency.unwrap_or(config.concurrency);
    let stage = Stage {
        engine,
        endpoint: surroundings.endpoint.as_ref(),
        cache: surroundings.cache.clone(),
        artifacts: surroundings.artifacts.to_owned(),
        image: base.clone(),
        limits: surroundings.engine_config.limits(),
        config,
        cancel,
        progress: &|progress| watcher.tell(progress),
    };
    run_all(&stage, orders).await
}

/// Waits for the rollouts; at the first signal they are told to end, and waited for still.
async fn running_until_signal<T>(
    running: impl Future<Output = T>,
    asked_to_end: impl Future<Output = ()>,
    watcher: &Watcher,
    cancel: &CancellationToken,
) -> T {
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return ended,
        () = asked_to_end => {}
    }
    watcher.say("cancelling; removing the sandboxes");
    cancel.cancel();
    running.await
}

fn ended_by_itself(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Passed | Outcome::Failed | Outcome::Truncated | Outcome::TimedOut)
}

/// A rollout as `--json` prints it.
#[derive(Serialize)]
struct Row<'a> {
    id: String,
    harness: &'a str,
    task_id: &'a str,
    outcome: Outcome,
    reward: Option<f64>,
    calls: u64,
    tokens: u64,
    drift: u64,
}

fn line(reports: &[Report]) -> String {
    let row = |report: &'_ Report| {
        json!(Row {
            id: report.id.to_string(),
            harness: &report.harness,
            task_id: &report.task_id,
            outcome: report.outcome,
            reward: report.reward,
            calls: report.calls,
            tokens: report.tokens,
            drift: report.drift,
        })
    };
    format!("{}\n", json!({ "rollouts": reports.iter().map(row).collect::<Vec<_>>() }))
}

fn rendered(reports: &[Report], paint: Paint) -> String {
    let row = |report: &Report| {
        vec![
            report.id.to_string(),
            report.harness.clone(),
            harmless(&report.task_id).replace('\n', " "),
            name_of(&report.outcome),
            report.reward.map_or_else(|| "-".to_owned(), |reward| reward.to_string()),
            report.calls.to_string(),
            report.tokens.to_string(),
            report.drift.to_string(),
        ]
    };
    let head = ["rollout", "harness", "task", "outcome", "reward", "calls", "tokens", "drift"];
    table(&head, &reports.iter().map(row).collect::<Vec<_>>(), paint)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::ids::RolloutId;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from([&["run"], words].concat()).map(|command| command.args)
    }

    #[test]
    fn one_of_prompt_and_tasks_is_needed() {
        assert!(parse(&["codex"]).is_err());
        assert!(parse(&["codex", "p", "--task", "t"]).is_err());
        assert!(parse(&["codex", "p", "--samples", "0"]).is_err());
        assert!(parse(&["codex", "p", "--timeout", "0"]).is_err());
        let orders = orders(&parse(&["mini-swe-agent:text", "p", "--set", "steps=4", "--timeout", "9"]).unwrap()).unwrap();
        let order = &orders[0];
        assert_eq!((order.task.prompt.as_str(), order.variant.as_deref(), order.samples), ("p", Some("text"), 1));
        assert_eq!(order.timeout, Some(Duration::from_secs(9)));
    }

    #[test]
    fn wrong_names_are_wrong_usage() {
        for words in [
            &["codx", "p"][..],
            &["codex:x", "p"],
            &["codex", "p", "--wire", "x"],
            &["codex", "p", "--set", "x=1"],
            &["codex", "--task", "/no/such"],
        ] {
            assert!(is_usage(&orders(&parse(words).unwrap()).unwrap_err()), "{words:?}");
        }
    }

    #[test]
    fn reports_are_a_table_or_a_line() {
        let id: RolloutId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let report = Report {
            id,
            harness: "codex".to_owned(),
            task_id: "t\n1".to_owned(),
            outcome: Outcome::TimedOut,
            reward: Some(0.0),
            calls: 2,
            tokens: 30,
            drift: 0,
            group: None,
            index: 0,
            ms: 5,
            error: None,
            artifacts: PathBuf::new(),
        };
        let expected = "rollout                               harness  task  outcome    reward  calls  tokens  drift\n\
                        01900000-0000-7000-8000-000000000001  codex    t 1   timed_out  0       2      30      0\n";
        assert_eq!(rendered(std::slice::from_ref(&report), Paint::none()), expected);
        let expected = "{\"rollouts\":[{\"id\":\"01900000-0000-7000-8000-000000000001\",\"harness\":\"codex\",\"task_id\":\"t\\n1\",\
                        \"outcome\":\"timed_out\",\"reward\":0.0,\"calls\":2,\"tokens\":30,\"drift\":0}]}\n";
        assert_eq!(line(&[report]), expected);
    }
}
