//! `gleaner run`: a real harness on tasks, in containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use super::list::name_of;
use super::remote::Refused;
use super::terminal::{Paint, harmless, table};
use crate::harness::spec::SpecError;
use crate::harness::{HarnessChoice, Plan, PlanError, Report, ResumeError, TaskError, Tasks};
use crate::store::{Outcome, Purpose};

/// Runs a real harness on a task, in a container whose only way out is the model, and records every call.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The harness, or HARNESS:VARIANT (`gleaner harness list` shows them)
    harness: String,
    /// What to ask it
    #[arg(required_unless_present = "task", conflicts_with = "task")]
    prompt: Option<String>,
    /// Tasks to run instead: a Harbor task folder, a folder of them, or a file of JSON Lines: our own tasks or SWE-bench rows
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,
    /// Rollouts of each task; more than one are a group, for training
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    #[command(flatten)]
    pub how: How,
}

/// How harnesses are run, whatever on.
#[derive(clap::Args, Debug)]
pub(super) struct How {
    /// The wire to speak, of those that the harness can; `gleaner harness list` shows them, its own choice first
    #[arg(long, value_name = "WIRE")]
    wire: Option<String>,
    /// Set a parameter of the harness otherwise
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// The image to run in, before the task's own
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Seconds that the harness may take, before the task's own; building payloads and images is not counted
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Calls to the model that each rollout may make; then its harness is ended, and it is truncated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_calls: Option<u64>,
    /// Tokens that each rollout may sample: no call begins once so many were
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: Option<u64>,
    /// Harnesses at once; as many rollouts again may be prepared, verified and cleared away meanwhile
    #[arg(long, value_name = "N", value_parser = positive)]
    concurrency: Option<usize>,
    /// Tries of each rollout that ends for no fault of harness or model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: Option<u32>,
    /// A folder of harnesses that adds to the built-in ones or replaces them by name
    #[arg(long, value_name = "DIR", env = "GLEANER_HARNESSES")]
    pub harnesses: Option<PathBuf>,
    /// Print one last line of JSON, {"rollouts": [...]}, instead of a table
    #[arg(long)]
    pub json: bool,
    /// Use this running server instead of one of its own
    #[arg(long, value_name = "URL", env = "GLEANER_SERVER")]
    pub server: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

impl How {
    /// The plan to run these harnesses (`HARNESS` or `HARNESS:VARIANT`) so on these tasks.
    pub fn plan(&self, harnesses: &[String], tasks: Tasks, samples: u32) -> Plan {
        let set: BTreeMap<String, String> = self.set.iter().cloned().collect();
        let choice = |harness: &String| HarnessChoice { harness: harness.clone(), wire: self.wire.clone(), set: set.clone() };
        Plan {
            tasks,
            harnesses: harnesses.iter().map(choice).collect(),
            samples,
            concurrency: self.concurrency,
            attempts: self.attempts,
            image: self.image.clone(),
            timeout_s: self.timeout,
            max_calls: self.max_calls,
            max_tokens: self.max_tokens,
            policy: None,
            purpose: None,
            only: Vec::new(),
        }
    }
}

impl Args {
    /// What is to be run: a small batch, so that it can be found and gone on with as any other.
    pub fn plan(&self) -> Plan {
        let tasks = match &self.task {
            Some(path) => Tasks::Path(path.display().to_string()),
            None => Tasks::Inline(vec![json!({"id": "prompt", "prompt": self.prompt.as_deref().unwrap_or_default()})]),
        };
        let plan = self.how.plan(std::slice::from_ref(&self.harness), tasks, self.samples);
        // One by itself is to be looked at; several are a group to learn from.
        Plan { purpose: (self.samples == 1).then_some(Purpose::Record), ..plan }
    }
}

/// Whether an error is the user's to mend on the command line or in a file: exit code 2.
pub(super) fn is_usage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.usage)
        || error.is::<SpecError>()
        || error.is::<TaskError>()
        || error.is::<PlanError>()
        || matches!(error.downcast_ref(), Some(ResumeError::Unknown(..)))
}

/// Whether a rollout ended as one does that ran to its end.
pub(super) fn ended_by_itself(outcome: Outcome) -> bool {
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

/// Rollouts as `--json` prints them.
pub(super) fn rows(reports: &[Report]) -> Value {
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
    reports.iter().map(row).collect()
}

/// Rollouts as a table.
pub(super) fn rendered(reports: &[Report], paint: Paint) -> String {
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
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::harness::{Catalog, Order};
    use crate::ids::RolloutId;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from([&["run"], words].concat()).map(|command| command.args)
    }

    fn orders(words: &[&str]) -> anyhow::Result<Vec<Order>> {
        parse(words)?.plan().orders(&Catalog::load(None)?)
    }

    #[test]
    fn one_of_prompt_and_tasks_is_needed() {
        assert!(parse(&["codex"]).is_err());
        assert!(parse(&["codex", "p", "--task", "t"]).is_err());
        assert!(parse(&["codex", "p", "--samples", "0"]).is_err());
        assert!(parse(&["codex", "p", "--timeout", "0"]).is_err());
        let orders = orders(&["mini-swe-agent:text", "p", "--set", "steps=4", "--timeout", "9"]).unwrap();
        let order = &orders[0];
        assert_eq!((order.task.prompt.as_str(), order.choice.variant(), order.samples), ("p", Some("text"), 1));
        assert_eq!((order.timeout, order.purpose), (Some(Duration::from_secs(9)), Some(Purpose::Record)));
        assert_eq!(parse(&["codex", "p", "--samples", "2"]).unwrap().plan().purpose, None);
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
            assert!(is_usage(&orders(words).unwrap_err()), "{words:?}");
        }
    }

    #[test]
    fn reports_are_a_table_or_rows() {
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
        let expected = "[{\"id\":\"01900000-0000-7000-8000-000000000001\",\"harness\":\"codex\",\"task_id\":\"t\\n1\",\
                        \"outcome\":\"timed_out\",\"reward\":0.0,\"calls\":2,\"tokens\":30,\"drift\":0}]";
        assert_eq!(rows(&[report]).to_string(), expected);
    }
}
