//! Runs a task's verifier, and makes rewards of how it ended.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::room::Room;
use super::{Driver, Outcome, unread};
use crate::engine::ExecResult;
use crate::harness::artifacts::tail;
use crate::harness::run::{Event, Rewards};
use crate::harness::task::{Place, Scoring, Verifier};
use crate::harness::{rewards, testlog};

/// As many missed tests are named in the evidence.
const NAMED: usize = 50;

impl Driver<'_> {
    /// Verifies. Minds by itself whether it is to be broken off: while it makes a sandbox it is not.
    pub(super) async fn verify(&mut self) -> Outcome<Event> {
        let Some(verifier) = &self.prepared.order.task.verifier else { anyhow::bail!("the task has no verifier") };
        if verifier.place == Place::Patched && self.patch.is_none() {
            self.artifacts.note("verify", json!({ "error": "there is no patch to verify" }));
            return Ok(Event::Verified(Rewards::of(0.0)));
        }
        let timeout = Duration::from_secs(verifier.timeout_s.unwrap_or(self.stage.config.verify_timeout_s));
        let room = self.room(verifier, timeout).await?;
        let cancel = self.stage.cancel.clone();
        match cancel.run_until_cancelled(self.judge(verifier, &room, timeout)).await {
            Some(rewards) => rewards.map(Event::Verified),
            None => Ok(Event::Cancelled),
        }
    }

    async fn judge(&mut self, verifier: &Verifier, room: &Room, timeout: Duration) -> Outcome<Rewards> {
        if verifier.place == Place::Patched && !self.patch(room, &verifier.tests).await? {
            return Ok(Rewards::of(0.0));
        }
        let written: Vec<String> = match &verifier.scoring {
            Scoring::Files(paths) => paths.iter().map(|path| self.in_workdir(path)).collect(),
            Scoring::ExitCode | Scoring::Tests { .. } => Vec::new(),
        };
        self.furnish(room, verifier, &written).await?;
        let result = self.run_verifier(room, verifier, timeout).await?;
        self.artifacts.keep("verify.log", &[&result.stdout[..], &result.stderr[..]].concat());
        let mut evidence = Map::from_iter([
            ("place".to_owned(), room.place.into()),
            ("exit_code".to_owned(), result.exit_code.into()),
            ("timed_out".to_owned(), result.timed_out.into()),
            ("output".to_owned(), tail(if result.stderr.is_empty() { &result.stdout } else { &result.stderr }).into()),
        ]);
        let scored = self.score(&verifier.scoring, &written, room, &result, &mut evidence).await;
        self.artifacts.note("verify", Value::Object(evidence));
        scored
    }

    /// The rewards. One that was too slow gives 0, whatever it wrote until then.
    async fn score(
        &self,
        scoring: &Scoring,
        written: &[String],
        room: &Room,
        result: &ExecResult,
        evidence: &mut Map<String, Value>,
    ) -> Outcome<Rewards> {
        let of = |passed| Rewards::of(if passed { 1.0 } else { 0.0 });
        if result.timed_out {
            return Ok(of(false));
        }
        match scoring {
            Scoring::ExitCode => Ok(of(result.exit_code == 0)),
            Scoring::Tests { must_pass, must_hold, form } => {
                let log = [&result.stdout[..], b"\n", &result.stderr[..]].concat();
                let tests = testlog::judge(&String::from_utf8_lossy(&log), *form, result.exit_code, must_pass, must_hold);
                evidence.insert("tests_seen".to_owned(), tests.seen.into());
                evidence.insert("tests_missed".to_owned(), tests.missed.len().into());
                evidence.insert("missed".to_owned(), tests.missed.iter().take(NAMED).cloned().collect());
                Ok(of(tests.missed.is_empty()))
            }
            Scoring::Files(_) => self.read_rewards(written, room, result, evidence).await,
        }
    }

    /// A file that is there and says nothing that could be a reward gives 0, and is told of. That there is none is no verdict at all:
    /// the verifier itself came to grief.
    async fn read_rewards(
        &self,
        written: &[String],
        room: &Room,
        result: &ExecResult,
        evidence: &mut Map<String, Value>,
    ) -> Outcome<Rewards> {
        let limit = (rewards::LIMIT + 1).to_string();
        for path in written {
            let read = self.help(&room.sandbox, &["cat", path, &limit], Some(room.user)).await?;
            if read.exit_code == 3 {
                continue;
            }
            evidence.insert("reward_file".to_owned(), path.clone().into());
            let parsed = if read.exit_code == 0 { rewards::parse(&read.stdout) } else { Err(unread(&read)) };
            return Ok(parsed.unwrap_or_else(|why| {
                evidence.insert("error".to_owned(), format!("{path}: {why}").into());
                Rewards::of(0.0)
            }));
        }
        let last = tail(if result.stderr.is_empty() { &result.stdout } else { &result.stderr });
        anyhow::bail!(
            "the verifier wrote no reward to {}; it ended with exit code {}: {last}",
            written.join(" or "),
            result.exit_code
        )
    }

    /// A path of the task's as an absolute one.
    pub(super) fn in_workdir(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.workdir) }
    }
}
