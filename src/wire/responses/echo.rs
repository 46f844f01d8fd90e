//! The fields of a request that its response repeats, as the original's does.

use bytes::Bytes;

use crate::call::{Raw, Rest, Text};
use crate::wire::fields::Fields;
use crate::wire::sse;

/// What a response says of its request: the field, and what it says where the request said nothing.
const SAID: [(&str, &str); 18] = [
    ("background", "false"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("store", "true"),
    ("temperature", "null"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", "\"auto\""),
    ("top_logprobs", "0"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
    ("prompt_cache_retention", "null"),
];

/// As [`SAID`], of fields that are most of a request's bytes.
const LONG: [(&str, &str); 2] = [("instructions", "null"), ("tools", "[]")];

/// Takes what a response will repeat of its request.
pub(super) fn take<const N: usize>(body: &Bytes, fields: &Fields<'_, N>) -> Rest {
    let named = SAID.iter().chain(&LONG);
    // Nobody here looks into it, and who sent it can read it.
    named.filter_map(|(name, _)| Some((Text::new(name), Raw::of(body, fields.value(name)?)))).collect()
}

/// Writes `,"name":value` for each field that is short. Requests are served as `default`, whatever they ask for.
pub(super) fn write(out: &mut Vec<u8>, echo: &Rest) {
    write_each(out, echo, &SAID);
    out.extend_from_slice(b",\"service_tier\":\"default\"");
}

/// Writes those that are long; none of what they say if the response is only begun, since a client that streams reads them three
/// times otherwise (40 KB each time, with Codex), and has sent them itself.
pub(super) fn write_long(out: &mut Vec<u8>, echo: &Rest, begun: bool) {
    write_each(out, if begun { &[] } else { echo }, &LONG);
}

fn write_each(out: &mut Vec<u8>, echo: &[(Text, Raw)], fields: &[(&str, &str)]) {
    for (name, default) in fields {
        let said = echo.iter().find(|(known, _)| known.inner() == name.as_bytes());
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        out.extend_from_slice(&sse::one_line(said.map_or(default.as_bytes(), |(_, value)| value.as_bytes())));
    }
}
