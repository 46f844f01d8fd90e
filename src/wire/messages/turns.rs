//! From messages to a conversation: one system message before all, one message for each turn of the assistant, every tool's
//! result right after the turn that called it, and what else was said before the next turn as one message after those.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::Deserialize;

use super::blocks::{self, BLOCK, Block, Depth, Piece};
use super::tools::Offered;
use crate::call::{Content, Failure, Message, Part, Raw, Role, Text, ToolCall, ToolKind};
use crate::wire::fields::{self, At, BOOLEAN, Fields, Items};
use crate::wire::notes::Notes;

/// The fields of messages that are acted on.
pub(super) const MESSAGE: [&str; 2] = ["role", "content"];
/// How a text begins that is no part of the prompt: it differs from request to request, and with it would every token after.
const BILLING: &[u8] = b"x-anthropic-billing-header";

/// The messages, as far as they were read.
pub(super) struct Turns<'de> {
    body: &'de Bytes,
    given: bool,
    /// What was said before this request; it stands again where the list comes anew, since the last one counts.
    before: State,
    state: State,
}

/// What was said so far.
#[derive(Clone, Default)]
pub(super) struct State {
    /// What the system said before the conversation's first message.
    system: Vec<Piece>,
    turns: Vec<Turn>,
    folded: usize,
    notes: Notes,
    /// The first result that answers no call.
    orphan: Option<Failure>,
}

#[derive(Clone)]
enum Turn {
    Asked(Asked),
    Said(Said),
}

/// What stands between two turns of the assistant.
#[derive(Clone, Default)]
struct Asked {
    /// With the place of their call.
    results: Vec<(usize, Text, Vec<Piece>)>,
    answered: HashSet<usize>,
    pieces: Vec<Piece>,
}

/// A turn of the assistant.
#[derive(Clone, Default)]
struct Said {
    reasoning: Vec<Text>,
    /// The texts of each message.
    texts: Vec<Text>,
    calls: Vec<ToolCall>,
    places: HashMap<String, usize>,
}

impl<'de> Turns<'de> {
    /// The messages of `body`, after what was said before.
    pub(super) fn after(state: State, body: &'de Bytes) -> Self {
        Self { body, given: false, before: State::default(), state }
    }

    /// What was said with these messages.
    pub(super) fn state(self) -> State {
        self.state
    }

    /// Tells whether there were messages at all.
    pub(super) fn were_given(&self) -> bool {
        self.given
    }

    /// The conversation, with the request's system prompt before it.
    ///
    /// # Errors
    /// If a result answers no call.
    pub(super) fn conversation(
        self,
        system: Vec<Text>,
        offered: &mut Offered,
        notes: &mut Notes,
    ) -> Result<Vec<Message>, Failure> {
        let State { system: leading, turns, folded, notes: own, orphan } = self.state;
        if let Some(orphan) = orphan {
            return Err(orphan);
        }
        notes.add(own);
        if folded > 0 {
            notes.say(format!("{folded} later system messages were passed on as the user's"));
        }
        let mut texts = system;
        for part in resolve(leading, offered, notes) {
            if let Part::Text(text) = part {
                texts.push(text);
            }
        }
        let system = Text::join(&texts, Text::BLANK_LINE).map(|text| Message::text(Role::System, text));
        let mut messages: Vec<Message> = system.into_iter().collect();
        for turn in turns {
            match turn {
                Turn::Asked(asked) => asked.write(offered, notes, &mut messages),
                Turn::Said(said) => messages.push(said.message()),
            }
        }
        Ok(messages)
    }
}

impl State {
    fn asked(&mut self) -> &mut Asked {
        if !matches!(self.turns.last(), Some(Turn::Asked(_))) {
            self.turns.push(Turn::Asked(Asked::default()));
        }
        match self.turns.last_mut() {
            Some(Turn::Asked(asked)) => asked,
            _ => unreachable!("it was pushed just now"),
        }
    }

    fn said(&mut self) -> &mut Said {
        if !matches!(self.turns.last(), Some(Turn::Said(_))) {
            self.turns.push(Turn::Said(Said::default()));
        }
        match self.turns.last_mut() {
            Some(Turn::Said(said)) => said,
            _ => unreachable!("it was pushed just now"),
        }
    }

    /// Later system messages stay where they are, as the user's: moving them to the front would change what was there before, and
    /// with it every token of the conversation; most templates take no system message in the middle.
    fn system(&mut self, pieces: Vec<Piece>) {
        if self.turns.is_empty() {
            self.system.extend(pieces);
        } else if !pieces.is_empty() {
            self.folded += 1;
            self.asked().pieces.extend(pieces);
        }
    }

    /// Takes a reply as it was recorded, in chat completions' form.
    pub(super) fn reply(&mut self, message: &Raw) {
        let Ok(recorded) = message.read::<Recorded>() else { return };
        let text = |raw: Option<Raw>| raw.and_then(|raw| raw.as_text()).filter(|text| !text.is_empty());
        let said = self.said();
        said.reasoning.extend(text(recorded.reasoning_content));
        said.texts.extend(text(recorded.content));
        for call in recorded.tool_calls {
            let (Some(id), Some(name)) = (call.id.as_text(), call.function.name.as_text()) else { continue };
            // As clients send it back that keep the conversation themselves.
            let arguments = text(Some(call.function.arguments)).unwrap_or_else(|| Text::new("{}"));
            said.places.insert(id.decode().into_owned(), said.calls.len());
            said.calls.push(ToolCall { id, kind: ToolKind::Function, namespace: None, name, arguments });
        }
    }

    /// Takes a tool's result.
    fn result(&mut self, body: &Bytes, at: &At<'_>, block: &Block<'_>) -> Result<(), Failure> {
        let id = block.required_text(at, "tool_use_id")?;
        let mut pieces = match block.value("content") {
            Some(value) => blocks::read(body, &At::Field(at, "content"), value, Depth::Outer, &mut self.notes)?,
            None => Vec::new(),
        };
        if block.read(at, "is_error", BOOLEAN)? == Some(true) {
            mark_error(&mut pieces);
        }
        let before = self.turns.iter().rev().find_map(|turn| if let Turn::Said(said) = turn { Some(said) } else { None });
        let place = before.and_then(|said| said.places.get(&*id.decode()).copied());
        let here = &At::Field(at, "tool_use_id");
        let Some(place) = place else {
            // Not refused yet: where the conversation goes on from a thread, that is read first.
            let orphan = || here.invalid(format_args!("answers no tool_use of the turn before it: {id:?}"));
            self.orphan.get_or_insert_with(orphan);
            return Ok(());
        };
        let asked = self.asked();
        if !asked.answered.insert(place) {
            return Err(here.invalid(format_args!("has a tool_result already: {id:?}")));
        }
        asked.results.push((place, id, pieces));
        Ok(())
    }
}

/// A reply as its record has it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Recorded {
    content: Option<Raw>,
    reasoning_content: Option<Raw>,
    tool_calls: Vec<RecordedCall>,
}

#[derive(Deserialize)]
struct RecordedCall {
    id: Raw,
    function: RecordedFunction,
}

#[derive(Deserialize)]
struct RecordedFunction {
    name: Raw,
    arguments: Raw,
}

impl<'de> Items<'de, { MESSAGE.len() }> for Turns<'de> {
    fn begin(&mut self) {
        if std::mem::replace(&mut self.given, true) {
            self.state = self.before.clone();
        } else {
            self.before = self.state.clone();
        }
    }

    fn item(&mut self, at: &At<'_>, item: Fields<'de, { MESSAGE.len() }>) -> Result<(), Failure> {
        let (body, state) = (self.body, &mut self.state);
        let role = item.string(at, "role")?.ok_or_else(|| At::Field(at, "role").invalid("is missing"))?;
        let here = &At::Field(at, "content");
        let value = item.value("content");
        match role.as_ref() {
            "system" => {
                let pieces = match value {
                    Some(value) => blocks::read(body, here, value, Depth::Outer, &mut state.notes)?,
                    // It may say something of the output only.
                    None => Vec::new(),
                };
                state.system(pieces);
                Ok(())
            }
            "user" => read_asked(body, here, value.ok_or_else(|| here.invalid("is missing"))?, state),
            "assistant" => read_said(body, here, value.ok_or_else(|| here.invalid("is missing"))?, state),
            other => Err(At::Field(at, "role").invalid(format_args!("is unknown: {other:?}"))),
        }
    }
}

type Value = serde_json::value::RawValue;

fn read_asked(body: &Bytes, at: &At<'_>, value: &Value, state: &mut State) -> Result<(), Failure> {
    state.asked();
    if !value.get().starts_with('[') {
        let pieces = blocks::read(body, at, value, Depth::Outer, &mut state.notes)?;
        state.asked().pieces.extend(pieces);
        return Ok(());
    }
    fields::each(body, value, at, &BLOCK, |at, block| {
        let kind = blocks::kind(at, &block)?;
        match kind.as_ref() {
            "tool_result" => state.result(body, at, &block),
            "tool_use" => Err(At::Field(at, "type").invalid("can't be tool_use: only the assistant calls tools")),
            kind => {
                let mut pieces = Vec::new();
                blocks::read_block(body, at, kind, &block, Depth::Outer, &mut pieces, &mut state.notes)?;
                state.asked().pieces.extend(pieces);
                Ok(())
            }
        }
    })
}

fn read_said(body: &Bytes, at: &At<'_>, value: &Value, state: &mut State) -> Result<(), Failure> {
    if let Some(text) = Text::of(body, value) {
        state.said().texts.push(text);
        return Ok(());
    }
    if !value.get().starts_with('[') {
        return Err(fields::wrong(at, "a string or a list of blocks", value));
    }
    let mut texts = Vec::new();
    state.said();
    fields::each(body, value, at, &BLOCK, |at, block| {
        let kind = blocks::kind(at, &block)?;
        match kind.as_ref() {
            "text" => texts.push(block.required_text(at, "text")?),
            "thinking" => {
                let thought = block.text(at, "thinking")?.filter(|thought| !thought.is_empty());
                state.said().reasoning.extend(thought);
            }
            "tool_use" => read_call(body, at, &block, state.said())?,
            "tool_result" => {
                return Err(At::Field(at, "type").invalid("can't be tool_result: the user gives a tool's results"));
            }
            kind => state.notes.pass("content block", kind),
        }
        Ok(())
    })?;
    // Pieces of one message are of one text; nothing was between them that the model said.
    state.said().texts.extend(Text::join(&texts, b""));
    Ok(())
}

fn read_call(body: &Bytes, at: &At<'_>, block: &Block<'_>, said: &mut Said) -> Result<(), Failure> {
    let id = block.required_text(at, "id")?;
    let name = block.required_text(at, "name")?;
    let here = &At::Field(at, "input");
    let value = block.raw("input").ok_or_else(|| here.invalid("is missing"))?;
    if !value.get().starts_with('{') {
        return Err(fields::wrong(here, "an object", value));
    }
    let arguments = Text::new(fields::keep(body, here, value)?.as_str());
    if said.places.insert(id.decode().into_owned(), said.calls.len()).is_some() {
        return Err(At::Field(at, "id").invalid(format_args!("must be unique: {id:?}")));
    }
    said.calls.push(ToolCall { id, kind: ToolKind::Function, namespace: None, name, arguments });
    Ok(())
}

/// Chat completions has no place for it, and a tool may have failed without a word.
fn mark_error(pieces: &mut Vec<Piece>) {
    const MARK: &[u8] = b"Error: ";
    match pieces.first_mut() {
        Some(Piece::Part(Part::Text(text))) => *text = Text::from_inner(&[MARK, text.inner()].concat()),
        _ => pieces.insert(0, Piece::Part(Part::Text(Text::from_inner(MARK.trim_ascii_end())))),
    }
}

/// The parts of a content, with the tools that it tells of spelt out.
fn resolve(pieces: Vec<Piece>, offered: &mut Offered, notes: &mut Notes) -> Vec<Part> {
    let part = |piece| match piece {
        Piece::Part(part) => part,
        Piece::Reference(name) => Part::Text(offered.tell(&name, notes)),
        Piece::Definition(tool) => Part::Text(Offered::tell_new(&tool, notes)),
    };
    pieces.into_iter().map(part).collect()
}

impl Asked {
    fn write(mut self, offered: &mut Offered, notes: &mut Notes, messages: &mut Vec<Message>) {
        self.results.sort_by_key(|(place, ..)| *place);
        let silent = self.results.is_empty();
        for (_, id, pieces) in self.results {
            let content = Content::of_parts(resolve(pieces, offered, notes));
            messages.push(Message { content, tool_call_id: Some(id), ..Message::new(Role::Tool) });
        }
        if silent || !self.pieces.is_empty() {
            let content = Content::of_parts(resolve(self.pieces, offered, notes));
            messages.push(Message { content, ..Message::new(Role::User) });
        }
    }
}

impl Said {
    fn message(mut self) -> Message {
        self.texts.retain(|text| !text.is_empty());
        // Pieces of reasoning are of one stream; nothing was between them.
        let reasoning = Text::join(&self.reasoning, b"");
        Message::turn(Text::join(&self.texts, Text::BLANK_LINE), reasoning, self.calls)
    }
}

/// The texts of the request's own system prompt, without what is there for billing.
pub(super) fn read_system(body: &Bytes, at: &At<'_>, value: Option<&Value>, notes: &mut Notes) -> Result<Vec<Text>, Failure> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let mut texts = Vec::new();
    for piece in blocks::read(body, at, value, Depth::Inner, notes)? {
        let Piece::Part(Part::Text(text)) = piece else { continue };
        if !text.inner().starts_with(BILLING) {
            texts.extend((!text.is_empty()).then_some(text));
            continue;
        }
        notes.say("the billing header of the system prompt was kept out of the prompt");
        let inner = text.inner();
        if let Some(end) = memchr::memmem::find(inner, b"\\n") {
            let rest = Text::from_inner(&inner[end + 2..]);
            texts.extend((!rest.is_empty()).then_some(rest));
        }
    }
    Ok(texts)
}
