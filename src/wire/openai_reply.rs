//! What the replies of `OpenAI`'s completions, of conversations and of prompts, share.

use crate::call::{Extra, Failure, Raw, Text};

use super::openai_error;

/// Writes a list of token ids.
pub(super) fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    // A `Vec` takes every write and numbers are always JSON.
    let _ = serde_json::to_writer(out, ids);
}

/// Writes a field after others.
pub(super) fn write_field(out: &mut Vec<u8>, name: &Text, value: &[u8]) {
    out.push(b',');
    out.extend_from_slice(name.literal());
    out.push(b':');
    out.extend_from_slice(value);
}

/// Fields that came more than once (a server may send one with every token): the last stands, in the place of the first.
pub(super) fn last_of_each<'a>(
    extras: &'a [Extra],
    pick: impl Fn(&'a Extra) -> Option<(&'a Text, &'a Raw)>,
) -> Vec<(&'a Text, &'a Raw)> {
    let mut fields: Vec<(&Text, &Raw)> = Vec::new();
    for (name, value) in extras.iter().filter_map(pick) {
        match fields.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => fields.push((name, value)),
        }
    }
    fields
}

/// Writes a failure as an event; nothing follows it.
pub(super) fn write_failure(out: &mut Vec<u8>, failure: &Failure) {
    out.extend_from_slice(b"data: ");
    openai_error::write(out, failure);
    out.extend_from_slice(b"\n\n");
}
