//! `gleaner batch`: tasks x harnesses x samples.

use std::path::PathBuf;

use super::list::named;
use super::run::How;
use crate::harness::{Plan, Tasks};
use crate::store::Purpose;

/// Runs every task in every harness, several times each, and sums up what came of it. What was broken off, by Ctrl-C or by a kill,
/// is gone on with by `--resume`: no rollout is lost, and none is run twice.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The tasks: a JSON Lines file, a task folder or a folder of them
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    tasks: Option<PathBuf>,
    /// The harnesses, each HARNESS or HARNESS:VARIANT; several with commas
    #[arg(long, value_name = "H[,H]", value_delimiter = ',', required_unless_present = "resume", conflicts_with = "resume")]
    harness: Vec<String>,
    /// Rollouts of each task in each harness: a group
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "resume")]
    samples: u32,
    /// Only the task of this id; may be given more than once
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    only: Vec<String>,
    /// What the rollouts are for: train, eval or record [default: train]
    #[arg(long, value_parser = named::<Purpose>, conflicts_with = "resume")]
    purpose: Option<Purpose>,
    /// Go on with this batch, which nobody runs any more: its id, or the beginning of one if only one begins so
    #[arg(long, value_name = "BATCH")]
    resume: Option<String>,
    /// With --resume: go on although tasks or harnesses are not what they were
    #[arg(long, requires = "resume", conflicts_with = "tasks")]
    force: bool,
    #[command(flatten)]
    pub how: How,
}

/// What `gleaner batch` is asked to run.
pub(super) enum Asked<'a> {
    New(Box<Plan>),
    Resume { batch: &'a str, force: bool },
}

impl Args {
    /// What is to be run.
    pub fn asked(&self) -> Asked<'_> {
        match (&self.resume, &self.tasks) {
            (Some(batch), _) => Asked::Resume { batch, force: self.force },
            (None, tasks) => {
                let tasks = Tasks::Path(tasks.as_deref().unwrap_or("".as_ref()).display().to_string());
                let plan = self.how.plan(&self.harness, tasks, self.samples);
                Asked::New(Box::new(Plan { purpose: self.purpose, only: self.only.clone(), ..plan }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, String> {
        let parsed = Command::try_parse_from([&["batch"], words].concat());
        parsed.map(|command| command.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_are_a_plan() {
        let words =
            ["t.jsonl", "--harness", "codex,react", "--samples", "4", "--concurrency", "8", "--only", "a", "--attempts", "2"];
        let args = parse(&words).unwrap();
        let Asked::New(plan) = args.asked() else { panic!("{args:?}") };
        let names: Vec<_> = plan.harnesses.iter().map(crate::harness::HarnessChoice::label).collect();
        assert_eq!((names, plan.samples), (vec!["codex".to_owned(), "react".to_owned()], 4));
        assert_eq!((plan.concurrency, plan.attempts, plan.only), (Some(8), Some(2), vec!["a".to_owned()]));
        assert_eq!(plan.tasks, Tasks::Path("t.jsonl".to_owned()));
    }

    #[test]
    fn a_batch_is_new_or_gone_on_with() {
        assert!(parse(&[]).is_err() && parse(&["t"]).is_err() && parse(&["--harness", "codex"]).is_err());
        assert!(parse(&["t", "--harness", "codex", "--resume", "x"]).is_err());
        assert!(parse(&["--resume", "x", "--samples", "2"]).is_err());
        assert!(parse(&["t", "--harness", "codex", "--force"]).is_err());
        let args = parse(&["--resume", "x", "--force"]).unwrap();
        assert!(matches!(args.asked(), Asked::Resume { batch: "x", force: true }));
    }
}
