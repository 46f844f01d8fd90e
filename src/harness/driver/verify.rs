//! Runs a task's verifier.

use std::time::Duration;

use serde_json::json;

use super::{Driver, Outcome};
use crate::engine::ExecSpec;
use crate::harness::artifacts::tail;
use crate::harness::run::{Event, Rewards};

impl Driver<'_> {
    pub(super) async fn verify(&mut self) -> Outcome<Event> {
        let Some(verifier) = &self.prepared.order.task.verifier else { anyhow::bail!("the task has no verifier") };
        let command = verifier.command.clone();
        let timeout = Duration::from_secs(verifier.timeout_s.unwrap_or(self.stage.config.verify_timeout_s));
        // An exec has the sandbox's environment: what the harness got the rollout's key in is emptied.
        let key = self.new.key.expose();
        let secrets = self.launch.env.iter().filter(|(_, value)| value.contains(key));
        let env = secrets.map(|(name, _)| (name.clone(), String::new())).collect();
        let spec = ExecSpec { env, workdir: Some(self.workdir.clone()), ..self.exec(command, timeout) };
        let result = self.execute(&spec).await?;
        self.artifacts.keep("verify.log", &[&result.stdout[..], &result.stderr[..]].concat());
        let evidence = json!({
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "output": tail(if result.stderr.is_empty() { &result.stdout } else { &result.stderr }),
        });
        self.artifacts.note("verify", evidence);
        let passed = result.exit_code == 0 && !result.timed_out;
        Ok(Event::Verified(Rewards::of(if passed { 1.0 } else { 0.0 })))
    }
}
