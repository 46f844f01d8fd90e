//! Fields that the requests of `OpenAI`'s completions, of conversations and of prompts, share.

use super::fields::{self, At, BOOLEAN, Fields, INTEGER, NUMBER};
use crate::call::{Failure, Raw, Sampling};

/// How tokens are to be drawn.
pub(super) fn sampling<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Sampling, Failure> {
    Ok(Sampling {
        temperature: fields.read(at, "temperature", NUMBER)?,
        top_p: fields.read(at, "top_p", NUMBER)?,
        top_k: fields.read(at, "top_k", INTEGER)?,
        min_p: fields.read(at, "min_p", NUMBER)?,
        presence_penalty: fields.read(at, "presence_penalty", NUMBER)?,
        frequency_penalty: fields.read(at, "frequency_penalty", NUMBER)?,
        repetition_penalty: fields.read(at, "repetition_penalty", NUMBER)?,
        seed: fields.read(at, "seed", INTEGER)?,
        stop: stop(at, fields)?,
    })
}

fn stop<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Option<Raw>, Failure> {
    let Some(value) = fields.value("stop") else { return Ok(None) };
    let is_text = value.get().starts_with('"') || serde_json::from_str::<Vec<String>>(value.get()).is_ok();
    if !is_text {
        return Err(fields::wrong(&At::Field(at, "stop"), "a string or a list of strings", value));
    }
    fields.keep(at, "stop")
}

/// The format asked for, unless it is plain text, which is no constraint.
pub(super) fn format<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Option<Raw>, Failure> {
    let Some(format) = fields.object(at, "response_format", &["type"])? else { return Ok(None) };
    match format.string(&At::Field(at, "response_format"), "type")?.as_deref() {
        Some("text") => Ok(None),
        _ => fields.keep(at, "response_format"),
    }
}

/// Whether a stream is to end with its usage. What else is asked of its form is dropped, since it is written here.
pub(super) fn stream_options<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    notes: &mut Vec<String>,
) -> Result<bool, Failure> {
    let Some(options) = fields.object(at, "stream_options", &["include_usage"])? else { return Ok(false) };
    let at = &At::Field(at, "stream_options");
    for (name, value) in options.rest(at)? {
        if !matches!(value.as_str(), "null" | "false") {
            notes.push(format!("{at}.{} was dropped: the stream's form is Gleaner's own", name.decode()));
        }
    }
    Ok(options.read(at, "include_usage", BOOLEAN)?.unwrap_or(false))
}
