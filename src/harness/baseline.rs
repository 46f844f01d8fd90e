//! What is run in a harness's place to try a task itself: its own solution, which must get the reward, and nothing at all, which must
//! not. Neither has a payload, nor makes a model call.

use std::collections::BTreeMap;

use super::catalog::Harness;
use super::plan::PlanError;
use super::spec::{Spec, SpecError};
use super::task::Task;
use super::template::Launch;

/// What is run in a harness's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The task's own solution.
    Oracle,
    /// Nothing.
    Nop,
}

/// Both, in a harness's words: whatever the exit code, it is the verifier that tells.
const SPEC: &str = r#"
name = "NAME"
version = "1"
description = "DESCRIPTION"
wire = "chat"
[payload]
build = "none"
where = "host"
[run]
command = ["none"]
[outcome]
form = "text"
rules = [{ when = { "/exit" = "*" }, means = "completed" }]
detail = ["/exit"]
"#;

impl Baseline {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Oracle, Self::Nop];

    /// The name that it is run by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Nop => "nop",
        }
    }

    pub(super) fn harness(self) -> Result<Harness, SpecError> {
        let description = match self {
            Self::Oracle => "the task's own solution",
            Self::Nop => "nothing at all",
        };
        let text = SPEC.replace("NAME", self.name()).replace("DESCRIPTION", description);
        let spec = Spec::parse(self.name(), &text)?;
        Ok(Harness { spec, files: BTreeMap::new(), origin: "built in".to_owned(), baseline: Some(self) })
    }

    /// What is started; `helper` is our helper in the sandbox.
    ///
    /// # Errors
    /// If the task has no solution.
    pub(super) fn launch(self, task: &Task, helper: &str) -> anyhow::Result<Launch> {
        let (command, env) = match (self, &task.solution) {
            (Self::Nop, _) => ([helper, "idle", "0"].map(str::to_owned).to_vec(), Vec::new()),
            (Self::Oracle, Some(solution)) => (solution.command.clone(), solution.env.clone().into_iter().collect()),
            (Self::Oracle, None) => return Err(PlanError::NoSolution(task.id.clone()).into()),
        };
        Ok(Launch { command, env, stdin: None, files: Vec::new(), result: None, artifacts: Vec::new() })
    }
}
