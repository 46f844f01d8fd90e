//! Keeps what a rollout leaves: what it printed, its result, its patch, the files that its task names.

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Driver, Outcome, READY, said, unread};
use crate::engine::ExecSpec;
use crate::harness::artifacts::tail;
use crate::harness::outcome::Printed;
use crate::harness::run::{Event, Said};
use crate::harness::{outcome, output};

/// As many files that were not kept are named in the evidence.
const LEFT_OUT: usize = 50;

impl Driver<'_> {
    pub(super) async fn read(&mut self) -> Outcome<Event> {
        let (stdout, stderr) = self.keep_output().await;
        let last_line = outcome::last_line(if stderr.is_empty() { &stdout } else { &stderr });
        let spec = &self.prepared.order.spec.outcome;
        let printed = Printed::new(&stdout, &stderr, self.exit);
        let result = match &self.launch.result {
            None => stdout,
            Some(path) => {
                let limit = self.stage.config.result_limit_bytes;
                let command = vec![self.helper.clone(), "cat".to_owned(), path.clone(), limit.to_string()];
                let result = self.execute(&ExecSpec { output_limit: limit, ..self.exec(command, READY) }).await?;
                let name = Path::new(path).file_name().map_or("result".into(), |name| name.to_string_lossy());
                if result.exit_code == 0 {
                    self.artifacts.keep(&format!("result-{name}"), &result.stdout);
                } else {
                    self.artifacts.note("result", json!(format!("{path}: {}", unread(&result))));
                }
                result.stdout
            }
        };
        let reading = outcome::read(spec, &result, &printed).or_else(|| outcome::read_exit(spec, self.exit?));
        if let Some(reading) = &reading {
            self.artifacts.note("means", json!(reading.meaning));
            self.artifacts.note("detail", Value::Object(reading.detail.clone()));
        }
        let words = reading.as_ref().and_then(outcome::words).or(last_line);
        Ok(Event::Read(Said { meaning: reading.map(|reading| reading.meaning), words }))
    }

    /// Keeps what the harness printed, and gives it: standard output, standard error.
    pub(super) async fn keep_output(&mut self) -> (Bytes, Bytes) {
        let Some(sandbox) = &self.sandbox else { return Default::default() };
        match output::read(self.stage.engine, sandbox, self.control.as_mut()).await {
            Ok(output) => {
                self.artifacts.keep("stdout.log", &output.stdout);
                self.artifacts.keep("stderr.log", &output.stderr);
                let last = tail(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
                self.artifacts.note("last_lines", json!(last));
                if !output.whole {
                    self.artifacts.note("output", "its end may be missing");
                }
                (output.stdout, output.stderr)
            }
            Err(error) => {
                self.artifacts.note("output", json!(format!("could not be read: {error}")));
                Default::default()
            }
        }
    }

    /// Keeps what the harness made: its patch, and the files that task and harness name.
    pub(super) async fn keep(&mut self) -> Outcome<Event> {
        let served = self.stage.endpoint.seal(self.new.id).await;
        self.artifacts.note("calls", json!(served));
        self.take_patch().await?;
        self.keep_files().await?;
        Ok(Event::Kept(served))
    }

    async fn keep_files(&mut self) -> Outcome<()> {
        let named = self.prepared.order.task.artifacts.iter().chain(&self.launch.artifacts);
        let mut paths: Vec<String> = named.map(|path| self.in_workdir(path)).collect();
        paths.sort();
        paths.dedup();
        let Some(sandbox) = self.sandbox.clone().filter(|_| !paths.is_empty()) else { return Ok(()) };
        let config = &self.stage.config;
        let (limit, each) = (config.artifact_limit_bytes.to_string(), config.log_limit_bytes.to_string());
        let words = [&*self.helper, "pack", &limit, &each].map(str::to_owned).into_iter().chain(paths).collect();
        // Headers and padding come on top.
        let output_limit = 2 * config.artifact_limit_bytes + (32 << 20);
        let result = self.stage.engine.exec(&sandbox, &ExecSpec { output_limit, ..self.exec(words, READY) }).await?;
        if result.exit_code != 0 {
            self.artifacts.note("artifacts", json!({ "error": said(&result) }));
            return Ok(());
        }
        let mut left_out: Vec<String> = String::from_utf8_lossy(&result.stderr).lines().map(str::to_owned).collect();
        let kept = self.artifacts.keep_files(&result.stdout, &mut left_out);
        let kept: Vec<Value> = kept.into_iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        self.artifacts.note("artifacts", kept);
        if !left_out.is_empty() {
            left_out.truncate(LEFT_OUT);
            self.artifacts.note("artifacts_left_out", left_out);
        }
        Ok(())
    }
}
