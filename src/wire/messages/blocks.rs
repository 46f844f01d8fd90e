//! Content blocks, read: what a person, a tool or the system said.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::tools;
use crate::call::{Failure, Part, Text, Tool};
use crate::wire::fields::{self, At, Fields};
use crate::wire::notes::Notes;

/// The fields of blocks that are acted on.
pub(super) const BLOCK: [&str; 15] = [
    "type",
    "text",
    "source",
    "thinking",
    "id",
    "name",
    "input",
    "tool_use_id",
    "content",
    "is_error",
    "title",
    "context",
    "tool_name",
    "tool",
    "citations",
];
const SOURCE: [&str; 5] = ["type", "media_type", "data", "url", "content"];
const TOOL_CHANGE: [&str; 3] = ["type", "name", "definition"];
/// Escaped text between lines.
const LINE: &[u8] = b"\\n";

/// One block.
pub(super) type Block<'de> = Fields<'de, { BLOCK.len() }>;

/// A piece of a content.
#[derive(Clone)]
pub(super) enum Piece {
    Part(Part),
    /// A deferred tool that is told of from here on, by its name.
    Reference(Text),
    /// A tool that is told of from here on, and stands nowhere else.
    Definition(Tool),
}

/// How deep a content lies: a result may hold documents, and a document text and images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// A message's or a tool result's.
    Outer,
    /// A document's or a search result's.
    Inner,
}

/// Reads a content: a string, or a list of blocks.
pub(super) fn read(body: &Bytes, at: &At<'_>, value: &RawValue, depth: Depth, notes: &mut Notes) -> Result<Vec<Piece>, Failure> {
    match value.get().as_bytes().first() {
        Some(b'"') => Ok(Text::of(body, value).map(|text| Piece::Part(Part::Text(text))).into_iter().collect()),
        Some(b'n') => Ok(Vec::new()),
        Some(b'[') => {
            let mut pieces = Vec::new();
            fields::each(body, value, at, &BLOCK, |at, block| {
                let kind = kind(at, &block)?;
                read_block(body, at, &kind, &block, depth, &mut pieces, notes)
            })?;
            Ok(pieces)
        }
        _ => Err(fields::wrong(at, "a string or a list of blocks", value)),
    }
}

/// A block's type.
pub(super) fn kind<'de>(at: &At<'_>, block: &Block<'de>) -> Result<std::borrow::Cow<'de, str>, Failure> {
    block.string(at, "type")?.ok_or_else(|| At::Field(at, "type").invalid("is missing"))
}

/// Reads a block that is neither the assistant's nor a tool's result. One that says nothing to a model is passed over.
pub(super) fn read_block(
    body: &Bytes,
    at: &At<'_>,
    kind: &str,
    block: &Block<'_>,
    depth: Depth,
    pieces: &mut Vec<Piece>,
    notes: &mut Notes,
) -> Result<(), Failure> {
    let text = |text| Piece::Part(Part::Text(text));
    match (kind, depth) {
        ("text", _) => {
            let said = block.required_text(at, "text")?;
            pieces.extend((!said.is_empty()).then(|| text(said)));
        }
        ("image", _) => pieces.push(Piece::Part(read_image(at, block, notes)?)),
        ("document", Depth::Outer) => read_document(body, at, block, pieces, notes)?,
        ("search_result", Depth::Outer) => {
            let head = [block.text(at, "title")?, block.text(at, "source")?];
            let found = block.value("content").map(|value| read(body, &At::Field(at, "content"), value, Depth::Inner, notes));
            with_head(head, found.transpose()?.unwrap_or_default(), pieces);
        }
        ("tool_reference", Depth::Outer) => pieces.push(Piece::Reference(block.required_text(at, "tool_name")?)),
        ("tool_addition" | "tool_removal", Depth::Outer) => {
            read_tool_change(at, block, kind == "tool_addition", pieces, notes)?;
        }
        _ => notes.pass("content block", kind),
    }
    Ok(())
}

fn read_image(at: &At<'_>, block: &Block<'_>, notes: &mut Notes) -> Result<Part, Failure> {
    let here = &At::Field(at, "source");
    let source = block.object(at, "source", &SOURCE)?.ok_or_else(|| here.invalid("is missing"))?;
    match source.string(here, "type")?.as_deref() {
        Some("base64") => {
            let (kind, data) = (source.required_text(here, "media_type")?, source.required_text(here, "data")?);
            Ok(Part::Image(Text::from_inner(&[b"data:", kind.inner(), b";base64,", data.inner()].concat())))
        }
        Some("url") => Ok(Part::Image(source.required_text(here, "url")?)),
        Some(other) => {
            notes.say(format!("an image given as {other:.40} became a text that says so: files are not kept"));
            Ok(Part::Text(Text::new("[an image that can't be shown here]")))
        }
        None => Err(At::Field(here, "type").invalid("is missing")),
    }
}

fn read_document(
    body: &Bytes,
    at: &At<'_>,
    block: &Block<'_>,
    pieces: &mut Vec<Piece>,
    notes: &mut Notes,
) -> Result<(), Failure> {
    let here = &At::Field(at, "source");
    let source = block.object(at, "source", &SOURCE)?.ok_or_else(|| here.invalid("is missing"))?;
    let said = match source.string(here, "type")?.as_deref() {
        Some("text") => vec![Piece::Part(Part::Text(source.required_text(here, "data")?))],
        Some("content") => {
            let at = &At::Field(here, "content");
            let value = source.value("content").ok_or_else(|| at.invalid("is missing"))?;
            read(body, at, value, Depth::Inner, notes)?
        }
        Some(other) => {
            let kind = source.string(here, "media_type")?.unwrap_or_else(|| other.to_owned().into());
            let kind: String = kind.chars().take(64).collect();
            notes.say(format!("a document ({kind}) became a text that says so: only documents of text are read"));
            vec![Piece::Part(Part::Text(Text::new(&format!("[a document ({kind}) that can't be read here]"))))]
        }
        None => return Err(At::Field(here, "type").invalid("is missing")),
    };
    with_head([block.text(at, "title")?, block.text(at, "context")?], said, pieces);
    Ok(())
}

/// Puts lines before the first text of a content, as one text with it.
fn with_head(head: [Option<Text>; 2], said: Vec<Piece>, pieces: &mut Vec<Piece>) {
    let head: Vec<Text> = head.into_iter().flatten().filter(|line| !line.is_empty()).collect();
    let mut said = said.into_iter().peekable();
    if let Some(head) = Text::join(&head, LINE) {
        let first = match said.next_if(|piece| matches!(piece, Piece::Part(Part::Text(_)))) {
            Some(Piece::Part(Part::Text(text))) => Text::join(&[head, text], Text::BLANK_LINE),
            _ => Some(head),
        };
        pieces.extend(first.map(|text| Piece::Part(Part::Text(text))));
    }
    pieces.extend(said);
}

/// A tool that is offered, or no longer, from here on.
fn read_tool_change(
    at: &At<'_>,
    block: &Block<'_>,
    added: bool,
    pieces: &mut Vec<Piece>,
    notes: &mut Notes,
) -> Result<(), Failure> {
    let here = &At::Field(at, "tool");
    let tool = block.object(at, "tool", &TOOL_CHANGE)?.ok_or_else(|| here.invalid("is missing"))?;
    match tool.string(here, "type")?.as_deref() {
        Some("tool_reference") if added => pieces.push(Piece::Reference(tool.required_text(here, "name")?)),
        Some("tool_reference") => {
            let name = tool.required_text(here, "name")?;
            let text = Text::from_inner(&[b"The tool ", name.inner(), b" can't be called any more."].concat());
            pieces.push(Piece::Part(Part::Text(text)));
        }
        Some("tool_definition") => pieces.extend(tools::read_one(here, &tool, "definition", notes)?.map(Piece::Definition)),
        _ => notes.pass("content block", if added { "tool_addition" } else { "tool_removal" }),
    }
    Ok(())
}
