//! What the harness changed in its working folder's repository, as a patch.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::command::Command;
use super::git::{self, Base};
use super::{Driver, Outcome, said};
use crate::harness::artifacts::tail;

/// How long git may take, in large repositories on a loaded machine.
const GIT: Duration = Duration::from_mins(3);
/// As many of a patch's files are named in the evidence.
const NAMED: usize = 100;

impl Driver<'_> {
    /// Notes where the repository stands before the harness begins, if its task wants a patch.
    ///
    /// # Errors
    /// If there is no repository with that commit, or no git: the task can't be run in this image.
    pub(super) async fn note_base(&mut self) -> Outcome<()> {
        let (Some(commit), Some(sandbox)) = (&self.prepared.order.task.patch, &self.sandbox) else { return Ok(()) };
        let words = git::base(&self.own_git(), &self.workdir, commit);
        let result = self.command(sandbox, Command { words: &words, timeout: GIT, ..Command::default() }).await?;
        self.base = Base::read(&result.stdout).filter(|_| result.exit_code == 0);
        if self.base.is_some() {
            return Ok(());
        }
        let doing = "looking for the repository whose patch is to be kept";
        if result.timed_out {
            anyhow::bail!("{doing} took more than {GIT:?}");
        }
        anyhow::bail!("{}", self.prepared.unfit.get_or_init(|| format!("{doing}: {}", said(&result))));
    }

    /// Takes the patch and keeps it. One that can't be taken is noted with the reason: the harness may have done anything to the
    /// repository.
    pub(super) async fn take_patch(&mut self) -> Outcome<()> {
        let (Some(base), Some(sandbox)) = (&self.base, &self.sandbox) else { return Ok(()) };
        let limit = self.stage.config.patch_limit_bytes;
        let words = git::take(&self.own_git(), base);
        // One byte more tells a patch that is just as long from a longer one.
        let command = Command { words: &words, timeout: GIT, output_limit: Some(limit + 1), ..Command::default() };
        let result = self.command(sandbox, command).await?;
        let why = if result.timed_out {
            Some(format!("git took more than {GIT:?}"))
        } else if result.stdout.len() > limit {
            Some(format!("it has more than {limit} bytes"))
        } else if result.exit_code != 0 {
            Some(said(&result))
        } else {
            None
        };
        if let Some(why) = why {
            self.artifacts.note("patch", json!({ "error": why }));
            return Ok(());
        }
        self.keep_patch(result.stdout, &tail(&result.stderr));
        Ok(())
    }

    /// `left_out` is what git said that it could not take.
    fn keep_patch(&mut self, patch: Bytes, left_out: &str) {
        let (names, files) = git::files(&patch, NAMED);
        self.artifacts.note("patch", json!({ "bytes": patch.len(), "files": files, "names": names }));
        if !left_out.is_empty() {
            self.artifacts.note("patch_left_out", left_out);
        }
        self.artifacts.keep("patch.diff", &patch);
        self.patch = Some(patch);
    }

    /// The folder that git's scripts may make anew in a sandbox.
    pub(super) fn own_git(&self) -> String {
        format!("{}/gleaner-git", self.places.temp)
    }

    /// Puts the patch, and then the tests, into a fresh sandbox of the task's image. `false` if the patch does not apply: that is the
    /// harness's doing.
    ///
    /// # Errors
    /// If the task's own test patch does not.
    pub(super) async fn patch(&mut self, room: &super::room::Room, tests: &crate::harness::task::TestPatch) -> Outcome<bool> {
        let run = async |words: Vec<String>| {
            let command = Command { words: &words, user: Some(room.user), timeout: GIT, ..Command::default() };
            self.command(&room.sandbox, command).await
        };
        let commit = self.prepared.order.task.patch.as_deref().unwrap_or_default();
        let found = run(git::base(&self.own_git(), &self.workdir, commit)).await?;
        let Some(base) = Base::read(&found.stdout).filter(|_| found.exit_code == 0) else {
            anyhow::bail!("looking for the repository in a fresh sandbox: {}", said(&found));
        };
        let applied = run(git::apply(&base, super::room::PATCH)).await?;
        if applied.exit_code != 0 {
            self.artifacts.note("verify", json!({ "error": format!("the patch does not apply: {}", said(&applied)) }));
            return Ok(false);
        }
        let tested = run(git::tests(&base, tests, super::room::TEST_PATCH)).await?;
        if tested.exit_code != 0 {
            anyhow::bail!("putting the task's tests in place: {}", said(&tested));
        }
        Ok(true)
    }
}
