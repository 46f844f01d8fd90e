//! One message of a request, read.

use bytes::Bytes;

use super::history::History;
use crate::call::{Content, Failure, Message, Part, Raw, Role, Text, ToolCall, ToolKind};
use crate::wire::fields::{self, At, Fields};
use crate::wire::openai_tools;

/// The fields of a message that are acted on.
pub(super) const MESSAGE: [&str; 10] = [
    "role",
    "content",
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "name",
    "audio",
];
const PART: [&str; 4] = ["type", "text", "image_url", "refusal"];
const IMAGE: [&str; 2] = ["url", "detail"];
const TOOL_CALL: [&str; 4] = ["id", "type", "function", "custom"];
const CALLED: [&str; 3] = ["name", "arguments", "input"];

/// Reads a message that follows those of `history`.
pub(super) fn read(
    body: &Bytes,
    at: &At<'_>,
    fields: &Fields<'_, { MESSAGE.len() }>,
    history: &mut History,
) -> Result<Message, Failure> {
    let name = fields.string(at, "role")?.ok_or_else(|| At::Field(at, "role").invalid("is missing"))?;
    // The older form of a tool's result says whose it is by the tool's name.
    let is_function = name == "function";
    let role = if is_function { Some(Role::Tool) } else { Role::parse(&name) };
    let role = role.ok_or_else(|| At::Field(at, "role").invalid(format_args!("is unknown: {name:?}")))?;
    let mut message = Message::new(role);
    message.content = read_content(body, at, fields)?;
    message.rest = fields.rest(at)?;
    if fields.value("audio").is_some() {
        return Err(At::Field(at, "audio").invalid("is not served: replies are text"));
    }
    read_refusal(at, fields, &mut message)?;
    let name = fields.text(at, "name")?;
    (message.reasoning, message.reasoning_field) = read_reasoning(body, at, fields, &mut message)?;
    fields.list(at, "tool_calls", &TOOL_CALL, |at, call| {
        message.tool_calls.push(read_tool_call(body, at, &call)?);
        Ok(())
    })?;
    message.tool_call_id = fields.text(at, "tool_call_id")?;
    if let Some(call) = fields.object(at, "function_call", &CALLED)? {
        let mut call = read_called(body, &At::Field(at, "function_call"), &call, ToolKind::Function)?;
        call.id = history.begin(&call.name);
        message.tool_calls.push(call);
    }
    if is_function {
        message.tool_call_id = history.answer(name.as_ref());
    } else {
        message.rest.extend(name.map(|name| (Text::new("name"), Raw::from_json(name.literal().to_vec()))));
    }
    history.take(at, &message)?;
    Ok(message)
}

/// An earlier refusal is what the assistant said; templates know no other word for it.
fn read_refusal(at: &At<'_>, fields: &Fields<'_, { MESSAGE.len() }>, message: &mut Message) -> Result<(), Failure> {
    let Some(refusal) = fields.text(at, "refusal")? else { return Ok(()) };
    match &message.content {
        Content::Absent | Content::Null => message.content = Content::Text(refusal),
        Content::Text(text) if text.is_empty() => message.content = Content::Text(refusal),
        _ => message.rest.push((Text::new("refusal"), Raw::from_json(refusal.literal().to_vec()))),
    }
    Ok(())
}

/// The reasoning and the field that it came in. Clients that were given both fields send both back: then neither is preferred.
fn read_reasoning(
    body: &Bytes,
    at: &At<'_>,
    fields: &Fields<'_, { MESSAGE.len() }>,
    message: &mut Message,
) -> Result<(Option<Text>, Option<&'static str>), Failure> {
    let mut read = |name: &'static str| -> Result<Option<Text>, Failure> {
        let Some(value) = fields.value(name) else { return Ok(None) };
        let text = Text::of(body, value);
        if text.is_none() {
            // Some providers put an object here; it is theirs to read.
            message.rest.push((Text::new(name), fields::keep(body, &At::Field(at, name), value)?));
        }
        Ok(text)
    };
    Ok(match (read("reasoning")?, read("reasoning_content")?) {
        (Some(one), Some(other)) if other.is_empty() => (Some(one), Some("reasoning")),
        (Some(one), Some(other)) if one.is_empty() => (Some(other), Some("reasoning_content")),
        (Some(one), Some(_)) => (Some(one), None),
        (Some(one), None) => (Some(one), Some("reasoning")),
        (None, Some(other)) => (Some(other), Some("reasoning_content")),
        (None, None) => (None, None),
    })
}

fn read_content(body: &Bytes, at: &At<'_>, fields: &Fields<'_, { MESSAGE.len() }>) -> Result<Content, Failure> {
    let Some(value) = fields.raw("content") else { return Ok(Content::Absent) };
    let at = &At::Field(at, "content");
    match value.get().as_bytes().first() {
        Some(b'n') => Ok(Content::Null),
        Some(b'"') => Ok(Text::of(body, value).map_or(Content::Null, Content::Text)),
        Some(b'[') => {
            let mut parts = Vec::new();
            let mut raw = None;
            fields::each(body, value, at, &PART, |at, part| {
                let part = match read_part(body, at, &part)? {
                    Some(part) => part,
                    None => Part::Opaque(fields::nth(body, at, value, &mut raw, parts.len())?),
                };
                parts.push(part);
                Ok(())
            })?;
            Ok(Content::Parts(parts))
        }
        _ => Err(fields::wrong(at, "a string, null or a list of parts", value)),
    }
}

/// A part that is acted on; `None` for any other.
fn read_part(body: &Bytes, at: &At<'_>, part: &Fields<'_, { PART.len() }>) -> Result<Option<Part>, Failure> {
    let kind = part.string(at, "type")?.ok_or_else(|| At::Field(at, "type").invalid("is missing"))?;
    Ok(match kind.as_ref() {
        "text" => Some(Part::Text(part.required_text(at, "text")?)),
        "image_url" => read_image(body, at, part)?.map(Part::Image),
        "refusal" => Some(Part::Text(part.required_text(at, "refusal")?)),
        "input_audio" => return Err(At::Field(at, "type").invalid("must not be input_audio: prompts are text and images")),
        _ => None,
    })
}

/// The string that names an image; `None` for one with more to it (a level of detail) than that.
fn read_image(body: &Bytes, at: &At<'_>, part: &Fields<'_, { PART.len() }>) -> Result<Option<Text>, Failure> {
    let Some(value) = part.value("image_url") else { return Err(At::Field(at, "image_url").invalid("is missing")) };
    if let Some(url) = Text::of(body, value) {
        return Ok(Some(url));
    }
    let at = &At::Field(at, "image_url");
    let image = fields::object(body, value, at, &IMAGE)?;
    let url = image.required_text(at, "url")?;
    let plain = image.string(at, "detail")?.is_none_or(|detail| detail == "auto");
    Ok(plain.then_some(url))
}

fn read_tool_call(body: &Bytes, at: &At<'_>, call: &Fields<'_, { TOOL_CALL.len() }>) -> Result<ToolCall, Failure> {
    let (field, kind) = match call.string(at, "type")?.as_deref() {
        Some("custom") => ("custom", ToolKind::Custom),
        Some("function") | None => ("function", ToolKind::Function),
        Some(other) => return Err(At::Field(at, "type").invalid(format_args!("must be function or custom, not {other:?}"))),
    };
    let inner_at = &At::Field(at, field);
    let inner = call.object(at, field, &CALLED)?.ok_or_else(|| inner_at.invalid("is missing"))?;
    let id = call.text(at, "id")?.unwrap_or_else(|| Text::new(""));
    Ok(ToolCall { id, ..read_called(body, inner_at, &inner, kind)? })
}

/// Which tool is called, and with what.
fn read_called(body: &Bytes, at: &At<'_>, inner: &Fields<'_, { CALLED.len() }>, kind: ToolKind) -> Result<ToolCall, Failure> {
    let given = inner.value(if kind == ToolKind::Custom { "input" } else { "arguments" });
    let arguments = openai_tools::arguments(body, kind, given);
    Ok(ToolCall { id: Text::new(""), kind, namespace: None, name: inner.required_text(at, "name")?, arguments })
}
