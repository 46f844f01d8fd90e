//! The prompts of a request: a text, ids, or a list of either.

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::call::{Failure, Prompt, Text};
use crate::wire::fields::{self, At};

const WHAT: &str = "a string, a list of strings, a list of token ids or a list of such lists";

/// Reads them; there is at least one.
pub(super) fn read(body: &Bytes, at: &At<'_>, value: &RawValue) -> Result<Vec<Prompt>, Failure> {
    if let Some(text) = Text::of(body, value) {
        return Ok(vec![Prompt::Text(text)]);
    }
    let list = value.get().strip_prefix('[').ok_or_else(|| fields::wrong(at, WHAT, value))?;
    if !list.trim_start().starts_with(['"', '[']) {
        return ids(at, value).map(|prompt| vec![prompt]);
    }
    let elements: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|_| fields::wrong(at, WHAT, value))?;
    elements.iter().enumerate().map(|(index, element)| one(body, &At::Index(at, index), element)).collect()
}

/// One of several.
fn one(body: &Bytes, at: &At<'_>, value: &RawValue) -> Result<Prompt, Failure> {
    match Text::of(body, value) {
        Some(text) => Ok(Prompt::Text(text)),
        None if value.get().starts_with('[') => ids(at, value),
        None => Err(fields::wrong(at, "a string or a list of token ids", value)),
    }
}

fn ids(at: &At<'_>, value: &RawValue) -> Result<Prompt, Failure> {
    let ids: Vec<u32> =
        serde_json::from_str(value.get()).map_err(|_| at.invalid("must be token ids, whole numbers of 0 or more"))?;
    if ids.is_empty() { Err(at.invalid("must not be empty")) } else { Ok(Prompt::Ids(ids)) }
}
