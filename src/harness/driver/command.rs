//! Commands of a task in a sandbox: verifiers, and git among files that a harness wrote. They end with all that they started, and see
//! the image's environment and the task's, not the harness's.

use std::time::{Duration, Instant};

use super::{Driver, GRACE, Outcome, READY};
use crate::engine::{ExecResult, ExecSpec, SandboxId};
use crate::harness::task::User;

/// The exit code that our helper gives a command whose time was up.
const TIMED_OUT: i64 = 124;

/// A command of a task.
#[derive(Debug, Default)]
pub(super) struct Command<'a> {
    pub words: &'a [String],
    /// Beside the image's and the task's.
    pub env: Vec<(String, String)>,
    /// The sandbox's own user if `None`.
    pub user: Option<User>,
    pub workdir: Option<String>,
    pub timeout: Duration,
    /// Output past so many bytes is dropped; the config's limit if `None`.
    pub output_limit: Option<usize>,
}

impl Driver<'_> {
    /// Runs a command to its end or deadline; `timed_out` of its result is the command's own.
    pub(super) async fn command(&self, sandbox: &SandboxId, command: Command<'_>) -> Outcome<ExecResult> {
        let (hidden, mut env) = self.surroundings();
        env.extend(command.env);
        let mut words = vec![self.helper.clone(), "exec".to_owned()];
        words.extend(["--deadline-ms".to_owned(), command.timeout.as_millis().to_string()]);
        words.extend(["--grace-ms".to_owned(), GRACE.as_millis().to_string()]);
        for name in hidden.into_iter().filter(|name| !env.iter().any(|(given, _)| given == name)) {
            words.extend(["--unset".to_owned(), name]);
        }
        words.push("--".to_owned());
        words.extend_from_slice(command.words);
        let spec = ExecSpec {
            env,
            workdir: command.workdir,
            user: command.user.map(|user| format!("{}:{}", user.uid, user.gid)),
            output_limit: command.output_limit.unwrap_or(self.stage.config.log_limit_bytes),
            // The helper keeps the deadline; this is for one that can't.
            ..self.exec(words, command.timeout + GRACE + READY)
        };
        let began = Instant::now();
        let mut result = self.stage.engine.exec(sandbox, &spec).await?;
        // A command may end with that code by itself.
        result.timed_out |= result.exit_code == TIMED_OUT && began.elapsed() >= command.timeout;
        Ok(result)
    }

    /// The names that only the harness's environment has, with its key; and of those that it has in another way, how image and task
    /// have them.
    fn surroundings(&self) -> (Vec<String>, Vec<(String, String)>) {
        let task = &self.prepared.order.task.env;
        let of_image = |name: &str| self.prepared.facts.env.iter().find(|(other, _)| other == name).map(|(_, value)| value);
        let (mut hidden, mut changed) = (Vec::new(), Vec::new());
        for (name, _) in &self.launch.env {
            match task.get(name).or_else(|| of_image(name)) {
                Some(value) => changed.push((name.clone(), value.clone())),
                None => hidden.push(name.clone()),
            }
        }
        (hidden, changed)
    }

    /// Runs one of our helper's own commands, which are short.
    pub(super) async fn help(&self, sandbox: &SandboxId, words: &[&str], user: Option<User>) -> Outcome<ExecResult> {
        let words = [&*self.helper].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let user = user.map(|user| format!("{}:{}", user.uid, user.gid));
        Ok(self.stage.engine.exec(sandbox, &ExecSpec { user, ..self.exec(words, READY) }).await?)
    }
}
