//! Fields that the requests of `OpenAI`'s completions, of conversations and of prompts, share.

use super::fields::{At, BOOLEAN, Fields};
use super::notes::Notes;
use crate::call::{Failure, Raw};

/// The format asked for, unless it is plain text, which is no constraint.
pub(super) fn format<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Option<Raw>, Failure> {
    let Some(format) = fields.object(at, "response_format", &["type"])? else { return Ok(None) };
    match format.string(&At::Field(at, "response_format"), "type")?.as_deref() {
        Some("text") => Ok(None),
        _ => fields.keep(at, "response_format"),
    }
}

/// Whether a stream is to end with its usage. What else is asked of its form is dropped, since it is written here.
pub(super) fn stream_options<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>, notes: &mut Notes) -> Result<bool, Failure> {
    let Some(options) = fields.object(at, "stream_options", &["include_usage"])? else { return Ok(false) };
    let at = &At::Field(at, "stream_options");
    for (name, value) in options.rest(at)? {
        if !matches!(value.as_str(), "null" | "false") {
            notes.say(format!("{at}.{} was dropped: the stream's form is Gleaner's own", name.decode()));
        }
    }
    Ok(options.read(at, "include_usage", BOOLEAN)?.unwrap_or(false))
}
