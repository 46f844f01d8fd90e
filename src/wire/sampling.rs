//! How tokens are to be drawn, by the names that all wires but Gemini's have for it. Anthropic's own API lacks some of them; its
//! SDKs send those where they are told to.

use super::fields::{self, At, Fields, INTEGER, NUMBER};
use crate::call::{Failure, Raw, Sampling};

/// Reads the settings, with the strings to stop at.
pub(super) fn read<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Sampling, Failure> {
    Ok(Sampling { stop: stop(at, fields)?, ..settings(at, fields)? })
}

/// Reads the settings, on wires that have another field for the strings to stop at.
pub(super) fn settings<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Sampling, Failure> {
    Ok(Sampling {
        temperature: fields.read(at, "temperature", NUMBER)?,
        top_p: fields.read(at, "top_p", NUMBER)?,
        top_k: fields.read(at, "top_k", INTEGER)?,
        min_p: fields.read(at, "min_p", NUMBER)?,
        presence_penalty: fields.read(at, "presence_penalty", NUMBER)?,
        frequency_penalty: fields.read(at, "frequency_penalty", NUMBER)?,
        repetition_penalty: fields.read(at, "repetition_penalty", NUMBER)?,
        seed: fields.read(at, "seed", INTEGER)?,
        stop: None,
        others: serde_json::Map::new(),
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
