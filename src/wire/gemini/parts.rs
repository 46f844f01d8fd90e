//! One part of a content, read.

use bytes::Bytes;

use super::signature::{self, Carried};
use super::spelling::spelled;
use crate::call::{Failure, Part, Text};
use crate::wire::fields::{self, At, BOOLEAN, Fields};
use crate::wire::notes::Notes;

/// The fields of a part that are acted on.
pub(super) const PART: [&str; 12] = [
    "text",
    "thought",
    "thoughtSignature",
    "thought_signature",
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
    "inlineData",
    "inline_data",
    "fileData",
    "file_data",
];
const CALL: [&str; 3] = ["id", "name", "args"];
const RESPONSE: [&str; 4] = ["id", "name", "response", "parts"];
const BLOB: [&str; 3] = ["mimeType", "mime_type", "data"];
const FILE: [&str; 4] = ["mimeType", "mime_type", "fileUri", "file_uri"];

type PartFields<'de> = Fields<'de, { PART.len() }>;

/// What a part says.
pub(super) enum Piece {
    Text(Text),
    Thought(Text),
    Image(Text),
    Call(Called),
    Response(Response),
    /// What no policy is told; a note says so.
    Left,
}

/// A call of a function, as the client gives it back.
pub(super) struct Called {
    pub(super) id: Option<Text>,
    pub(super) name: Text,
    /// The JSON text of an object.
    pub(super) arguments: Text,
}

/// What a function gave.
pub(super) struct Response {
    pub(super) id: Option<Text>,
    pub(super) name: Option<Text>,
    /// Texts and images; at least one.
    pub(super) content: Vec<Part>,
}

/// Reads a part, and what its signature carries.
pub(super) fn read(
    body: &Bytes,
    at: &At<'_>,
    part: &PartFields<'_>,
    notes: &mut Notes,
) -> Result<(Piece, Option<Carried>), Failure> {
    let signature = part.string(at, spelled(part, ["thoughtSignature", "thought_signature"]))?;
    let carried = signature.as_deref().and_then(Carried::read);
    let call = spelled(part, ["functionCall", "function_call"]);
    let response = spelled(part, ["functionResponse", "function_response"]);
    let piece = if let Some(called) = part.object(at, call, &CALL)? {
        Piece::Call(read_call(&At::Field(at, call), &called)?)
    } else if let Some(given) = part.object(at, response, &RESPONSE)? {
        Piece::Response(read_response(body, &At::Field(at, response), &given, notes)?)
    } else if let Some(text) = part.text(at, "text")? {
        let thought = part.read(at, "thought", BOOLEAN)?.unwrap_or(false);
        if thought { Piece::Thought(text) } else { Piece::Text(text) }
    } else if let Some(piece) = read_data(body, at, part, notes)? {
        piece
    } else {
        note_left(at, part, notes)?;
        Piece::Left
    };
    Ok((piece, carried))
}

/// Says of a part that nobody here reads what it holds.
fn note_left(at: &At<'_>, part: &PartFields<'_>, notes: &mut Notes) -> Result<(), Failure> {
    let names: Vec<String> = part.rest(at)?.iter().map(|(name, _)| name.decode().into_owned()).collect();
    if !names.is_empty() {
        notes.say(format!("passed over a part with {}", names.join(", ")));
    }
    Ok(())
}

fn read_call(at: &At<'_>, call: &Fields<'_, { CALL.len() }>) -> Result<Called, Failure> {
    let arguments = match call.keep(at, "args")? {
        None => Text::new("{}"),
        Some(args) if args.as_bytes().starts_with(b"{") => Text::new(args.as_str()),
        Some(_) => return Err(At::Field(at, "args").invalid("must be an object")),
    };
    Ok(Called { id: given(call.text(at, "id")?), name: call.required_text(at, "name")?, arguments })
}

fn read_response(
    body: &Bytes,
    at: &At<'_>,
    response: &Fields<'_, { RESPONSE.len() }>,
    notes: &mut Notes,
) -> Result<Response, Failure> {
    let mut content = vec![Part::Text(read_output(at, response)?)];
    response.list(at, "parts", &PART, |at, part| {
        match read_data(body, at, &part, notes)? {
            Some(Piece::Text(text)) => content.push(Part::Text(text)),
            Some(Piece::Image(url)) => content.push(Part::Image(url)),
            Some(_) => {}
            None => note_left(at, &part, notes)?,
        }
        Ok(())
    })?;
    Ok(Response { id: given(response.text(at, "id")?), name: given(response.text(at, "name")?), content })
}

/// What a function gave, as text: the value of `output` where there is nothing beside it (the API gives that key this meaning), else
/// the whole object.
fn read_output(at: &At<'_>, response: &Fields<'_, { RESPONSE.len() }>) -> Result<Text, Failure> {
    let Some(given) = response.keep(at, "response")? else { return Ok(Text::new("")) };
    if let Some(text) = given.as_text() {
        return Ok(text);
    }
    let output = response.object(at, "response", &["output"])?;
    let at = &At::Field(at, "response");
    match output {
        Some(output) if output.rest(at)?.is_empty() => match output.keep(at, "output")? {
            Some(output) => Ok(output.as_text().unwrap_or_else(|| Text::new(output.as_str()))),
            None => Ok(Text::new(given.as_str())),
        },
        _ => Ok(Text::new(given.as_str())),
    }
}

/// Data beside the text, if the part has any.
fn read_data(body: &Bytes, at: &At<'_>, part: &PartFields<'_>, notes: &mut Notes) -> Result<Option<Piece>, Failure> {
    let name = spelled(part, ["inlineData", "inline_data"]);
    if let Some(value) = part.value(name) {
        let at = &At::Field(at, name);
        return read_blob(at, &fields::object(body, value, at, &BLOB)?, notes).map(Some);
    }
    let name = spelled(part, ["fileData", "file_data"]);
    let Some(value) = part.value(name) else { return Ok(None) };
    let at = &At::Field(at, name);
    let file = fields::object(body, value, at, &FILE)?;
    let mime = file.string(at, spelled(&file, ["mimeType", "mime_type"]))?.unwrap_or_default();
    let name = spelled(&file, ["fileUri", "file_uri"]);
    let uri = file.text(at, name)?.ok_or_else(|| At::Field(at, name).invalid("is missing"))?;
    let plain = uri.decode();
    if mime.starts_with("image/") && (plain.starts_with("http://") || plain.starts_with("https://")) {
        return Ok(Some(Piece::Image(uri)));
    }
    notes.say(format!("left out a file of type {mime:?}: only images by http are passed on"));
    Ok(Some(Piece::Left))
}

fn read_blob(at: &At<'_>, blob: &Fields<'_, { BLOB.len() }>, notes: &mut Notes) -> Result<Piece, Failure> {
    let mime = blob.string(at, spelled(blob, ["mimeType", "mime_type"]))?.unwrap_or_default();
    let data = blob.string(at, "data")?.ok_or_else(|| At::Field(at, "data").invalid("is missing"))?;
    if mime.starts_with("image/") {
        return Ok(Piece::Image(Text::new(&format!("data:{mime};base64,{}", signature::standard(&data)))));
    }
    if is_text(&mime) {
        let text = signature::text(&data).ok_or_else(|| At::Field(at, "data").invalid("must be text in base64"))?;
        return Ok(Piece::Text(Text::new(&text)));
    }
    notes.say(format!("left out data of type {mime:?}: only images and text are passed on"));
    Ok(Piece::Left)
}

fn is_text(mime: &str) -> bool {
    let kind = mime.split(';').next().unwrap_or_default().trim();
    let named = ["application/json", "application/xml", "application/javascript", "application/x-yaml", "application/yaml"];
    kind.starts_with("text/") || named.contains(&kind)
}

/// A string that says something; clients that have none may send an empty one.
fn given(text: Option<Text>) -> Option<Text> {
    text.filter(|text| !text.is_empty())
}
