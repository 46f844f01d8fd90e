//! `predictions`: the patch of each rollout, one a line, as SWE-bench's evaluation reads them: `{"instance_id",
//! "model_name_or_path", "model_patch"}`. Beside these each line says which rollout it is of and what became of it, which that
//! evaluation passes over. It takes one line of an instance: of several rollouts of a task the last.

use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::{Added, ExportError, Form, Format, Material, Rows, Target, Written, lines};
use crate::store::Artifacts;

/// Patches that rollouts left.
pub(super) struct Predictions;

struct Lines(Target);

impl Format for Predictions {
    fn name(&self) -> &'static str {
        "predictions"
    }

    fn forms(&self) -> &'static [Form] {
        &[Form::JsonLines]
    }

    fn reads_all(&self) -> bool {
        false
    }

    fn begin(&self, _form: Form, target: Target) -> Result<Box<dyn Rows>, ExportError> {
        Ok(Box::new(Lines(target)))
    }

    fn check(&self, _form: Form, path: &Path) -> Result<(), ExportError> {
        lines::each(path, |row, text| {
            let wrong = |what: String| ExportError::Check { row, what };
            let line: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
            let missing = ["instance_id", "model_name_or_path", "model_patch"].into_iter().find(|name| !line[*name].is_string());
            missing.map_or(Ok(()), |name| Err(wrong(format!("it has no text {name}"))))
        })
    }
}

impl Rows for Lines {
    fn add(&mut self, from: &Material) -> Result<Added, ExportError> {
        let Some(patch) = patch(from)? else { return Ok(Added::default()) };
        let facts = &from.facts;
        let harness = facts.harness.as_deref().unwrap_or("unknown");
        let model = from.turns.last().map_or("unknown", |turn| turn.record.model.as_str());
        let line = json!({
            "instance_id": facts.task_id.as_deref().unwrap_or_default(),
            "model_name_or_path": format!("{harness}/{model}"),
            "model_patch": patch,
            "rollout_id": facts.id,
            "rollout_index": facts.index,
            "outcome": facts.outcome,
            "reward": facts.reward,
        });
        writeln!(self.0, "{line}").map_err(|error| self.0.failed(error))?;
        Ok(Added { written: 1, left_out: Vec::new() })
    }

    fn close(self: Box<Self>) -> Result<Written, ExportError> {
        self.0.close()
    }
}

/// The patch that a rollout left; `None` if it left none, or one that is no text.
fn patch(from: &Material) -> Result<Option<String>, ExportError> {
    let id = from.facts.id;
    let failed = |error| ExportError::File { doing: "read", path: from.artifacts.folder(id).join(Artifacts::PATCH), error };
    let Some(mut file) = from.artifacts.open(id, Artifacts::PATCH).map_err(failed)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    if let Ok(patch) = String::from_utf8(bytes) {
        Ok(Some(patch))
    } else {
        tracing::warn!(rollout.id = %id, "its patch is not UTF-8, which JSON can't hold, and is left out");
        Ok(None)
    }
}
