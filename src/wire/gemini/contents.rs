//! The contents of a request, read one by one: what was said, by whom.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::parts::{self, PART, Piece};
use super::spelling::spelled;
use super::turns::Turns;
use crate::call::{Content, Failure, Message, Part, Role, Text};
use crate::wire::fields::{self, At, Fields, Items};
use crate::wire::notes::Notes;

/// The fields of a content that are acted on.
pub(super) const CONTENT: [&str; 2] = ["role", "parts"];

/// The contents, as far as they were read.
pub(super) struct Contents<'de> {
    body: &'de Bytes,
    turns: Option<Turns>,
    notes: Notes,
}

impl<'de> Contents<'de> {
    pub(super) fn new(body: &'de Bytes) -> Self {
        Self { body, turns: None, notes: Notes::default() }
    }

    /// The conversation, with the system's instruction before it.
    pub(super) fn messages(self, system: Option<Text>, notes: &mut Notes) -> Result<Vec<Message>, Failure> {
        notes.add(self.notes);
        let at = At::Field(&At::Body, "contents");
        let turns = self.turns.ok_or_else(|| at.invalid("is missing"))?;
        let messages = turns.messages(notes);
        if messages.is_empty() {
            return Err(at.invalid("must not be empty"));
        }
        Ok(system.map(|text| Message::text(Role::System, text)).into_iter().chain(messages).collect())
    }
}

impl<'de> Items<'de, { CONTENT.len() }> for Contents<'de> {
    fn begin(&mut self) {
        self.turns = Some(Turns::default());
        self.notes = Notes::default();
    }

    fn text(&mut self, _at: &At<'_>, text: &str) -> Result<(), Failure> {
        self.turns.get_or_insert_default().user(vec![Part::Text(Text::new(text))]);
        Ok(())
    }

    fn item(&mut self, at: &At<'_>, item: Fields<'de, { CONTENT.len() }>) -> Result<(), Failure> {
        let (body, notes) = (self.body, &mut self.notes);
        let turns = self.turns.get_or_insert_default();
        let role = item.string(at, "role")?;
        let said = match role.as_deref().unwrap_or_default() {
            // A content without a role is the user's, unless only the model can have said it.
            "" => !calls(at, &item)?,
            "user" | "function" | "tool" => true,
            "model" => false,
            other => return Err(At::Field(at, "role").invalid(format_args!("must be user or model, not {other:?}"))),
        };
        let mut given = Vec::new();
        let before = turns.said();
        item.list(at, "parts", &PART, |at, part| {
            let (piece, carried) = parts::read(body, at, &part, notes)?;
            if !said {
                return turns.model(at, piece, carried, notes);
            }
            match piece {
                Piece::Text(text) | Piece::Thought(text) => given.push(Part::Text(text)),
                Piece::Image(url) => given.push(Part::Image(url)),
                Piece::Response(response) => turns.answered(at, response, notes)?,
                Piece::Call(_) => return Err(at.invalid("must not be a functionCall: those are the model's")),
                Piece::Left => given.push(Part::Text(Text::new(""))),
            }
            Ok(())
        })?;
        if !given.is_empty() {
            turns.user(given);
        } else if turns.said() == before {
            notes.say(format!("passed over {at}, which says nothing"));
        }
        Ok(())
    }
}

/// Tells whether one of the parts is the call of a function.
fn calls(at: &At<'_>, item: &Fields<'_, { CONTENT.len() }>) -> Result<bool, Failure> {
    let mut calls = false;
    item.list(at, "parts", &PART, |_, part| {
        calls |= part.value(spelled(&part, ["functionCall", "function_call"])).is_some();
        Ok(())
    })?;
    Ok(calls)
}

/// Reads the system's instruction: a string, a part, a list of them, or a content of any role.
pub(super) fn read_system(body: &Bytes, at: &At<'_>, value: &RawValue, notes: &mut Notes) -> Result<Option<Text>, Failure> {
    let mut texts = Vec::new();
    let mut read = |at: &At<'_>, part: Fields<'_, { PART.len() }>| -> Result<(), Failure> {
        match parts::read(body, at, &part, notes)?.0 {
            Piece::Text(text) | Piece::Thought(text) => texts.push(text),
            Piece::Left => {}
            _ => notes.say(format!("passed over {at}, which is no text")),
        }
        Ok(())
    };
    match value.get().as_bytes().first() {
        Some(b'"') => texts.extend(Text::of(body, value)),
        Some(b'[') => fields::each(body, value, at, &PART, read)?,
        _ => {
            let content = fields::object(body, value, at, &CONTENT)?;
            if content.value("parts").is_some() {
                content.list(at, "parts", &PART, read)?;
            } else {
                read(at, fields::object(body, value, at, &PART)?)?;
            }
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(Text::join(&texts, Text::BLANK_LINE))
}

/// The content of a message of these parts, without texts that say nothing beside others.
pub(super) fn content(mut parts: Vec<Part>) -> Content {
    if parts.len() > 1 {
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    }
    Content::of_parts(parts)
}
