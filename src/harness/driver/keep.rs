//! Keeps what a rollout leaves: what it printed, its result, its patch, the files that its task names.

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Driver, Outcome, READY};
use crate::engine::{ExecResult, ExecSpec};
use crate::harness::artifacts::tail;
use crate::harness::outcome::Printed;
use crate::harness::run::{Event, Said};
use crate::harness::{outcome, output};

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

    /// Keeps what the harness made.
    pub(super) async fn keep(&mut self) -> Outcome<Event> {
        let served = self.stage.endpoint.seal(self.new.id).await;
        self.artifacts.note("calls", json!(served));
        Ok(Event::Kept(served))
    }
}

fn unread(result: &ExecResult) -> String {
    match result.exit_code {
        3 => "is missing".to_owned(),
        4 => "is not a regular file".to_owned(),
        code => format!("could not be read (exit code {code}): {}", tail(&result.stderr)),
    }
}
