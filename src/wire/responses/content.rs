//! The content of an item, read: what a person, a tool or the assistant said.

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::call::{Content, Failure, Part, Raw, Text};
use crate::wire::fields::{self, At, Fields};

/// Why a part by a file's id is refused.
pub(super) const NO_FILES: &str = "is missing: files are not kept, send the image as a data URL";

const PART: [&str; 8] = ["type", "text", "refusal", "image_url", "detail", "file_id", "file_data", "filename"];

/// Reads a string or a list of parts.
pub(super) fn read(body: &Bytes, at: &At<'_>, value: &RawValue) -> Result<Content, Failure> {
    match value.get().as_bytes().first() {
        Some(b'"') => Ok(Text::of(body, value).map_or(Content::Null, Content::Text)),
        Some(b'[') => {
            let mut parts = Vec::new();
            let mut raw = None;
            fields::each(body, value, at, &PART, |at, part| {
                let part = match read_part(at, &part)? {
                    Some(part) => part,
                    // The policy may know it; we need not.
                    None => Part::Opaque(fields::nth(body, at, value, &mut raw, parts.len())?),
                };
                parts.push(part);
                Ok(())
            })?;
            Ok(Content::of_parts(parts))
        }
        Some(b'n') => Ok(Content::Text(Text::new(""))),
        _ => Err(fields::wrong(at, "a string or a list of parts", value)),
    }
}

/// The texts of a content, in order.
pub(super) fn texts(content: &Content) -> Vec<Text> {
    match content {
        Content::Absent | Content::Null => Vec::new(),
        Content::Text(text) => vec![text.clone()],
        Content::Parts(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.clone()),
                _ => None,
            })
            .collect(),
    }
}

/// A part that is acted on; `None` for any other.
fn read_part(at: &At<'_>, part: &Fields<'_, { PART.len() }>) -> Result<Option<Part>, Failure> {
    let kind = part.string(at, "type")?.ok_or_else(|| At::Field(at, "type").invalid("is missing"))?;
    Ok(Some(match kind.as_ref() {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => Part::Text(part.required_text(at, "text")?),
        "refusal" => Part::Text(part.required_text(at, "refusal")?),
        "input_image" => read_image(at, part)?,
        "input_file" => read_file(at, part)?,
        _ => return Ok(None),
    }))
}

fn read_image(at: &At<'_>, part: &Fields<'_, { PART.len() }>) -> Result<Part, Failure> {
    let Some(url) = part.text(at, "image_url")? else {
        return Err(At::Field(at, "image_url").invalid(NO_FILES));
    };
    match part.string(at, "detail")? {
        Some(detail) if detail != "auto" => {
            let image = serde_json::json!({ "url": url.decode(), "detail": detail });
            Ok(Part::Opaque(Raw::from_value(&serde_json::json!({ "type": "image_url", "image_url": image }))))
        }
        _ => Ok(Part::Image(url)),
    }
}

fn read_file(at: &At<'_>, part: &Fields<'_, { PART.len() }>) -> Result<Part, Failure> {
    let Some(data) = part.string(at, "file_data")? else {
        return Err(At::Field(at, "file_data").invalid("is missing: files are not kept, send the data itself"));
    };
    let file = serde_json::json!({ "filename": part.string(at, "filename")?, "file_data": data });
    Ok(Part::Opaque(Raw::from_value(&serde_json::json!({ "type": "file", "file": file }))))
}
