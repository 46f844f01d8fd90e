//! The items of a request's input, read.

use bytes::Bytes;

use super::turns::Turns;
use super::{content, tools};
use crate::call::{Failure, Message, Role, Text, Tool, ToolCall, ToolKind};
use crate::wire::fields::{self, At, Fields, Items};

/// The fields of items that are acted on.
pub(super) const ITEM: [&str; 11] =
    ["type", "role", "content", "summary", "call_id", "namespace", "name", "arguments", "input", "output", "tools"];

type Item<'de> = Fields<'de, { ITEM.len() }>;

/// The input, as far as it was read.
pub(super) struct Input<'de> {
    body: &'de Bytes,
    state: Option<State>,
}

#[derive(Default)]
struct State {
    turns: Turns,
    tools: Vec<Tool>,
    notes: Vec<String>,
}

/// What the input says.
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Tool>,
    pub(super) notes: Vec<String>,
}

impl<'de> Input<'de> {
    pub(super) fn new(body: &'de Bytes) -> Self {
        Self { body, state: None }
    }

    /// Tells whether there was an input at all.
    pub(super) fn was_given(&self) -> bool {
        self.state.is_some()
    }

    /// The conversation, with the request's instructions before it.
    pub(super) fn conversation(self, instructions: Option<Text>) -> Conversation {
        let State { turns, tools, mut notes } = self.state.unwrap_or_default();
        let messages = turns.messages(instructions, &mut notes);
        Conversation { messages, tools, notes }
    }
}

impl<'de> Items<'de, { ITEM.len() }> for Input<'de> {
    fn begin(&mut self) {
        self.state = Some(State::default());
    }

    fn text(&mut self, _at: &At<'_>, text: &str) -> Result<(), Failure> {
        self.state.get_or_insert_default().turns.push(Message::text(Role::User, Text::new(text)));
        Ok(())
    }

    fn item(&mut self, at: &At<'_>, item: Item<'de>) -> Result<(), Failure> {
        let state = self.state.get_or_insert_default();
        let kind = item.string(at, "type")?;
        match kind.as_deref().unwrap_or("message") {
            "message" => read_message(self.body, at, &item, &mut state.turns),
            "reasoning" => {
                state.turns.reasoning(read_reasoning(self.body, at, &item)?);
                Ok(())
            }
            "function_call" => {
                state.turns.call(read_call(self.body, at, &item, ToolKind::Function)?);
                Ok(())
            }
            "custom_tool_call" => {
                state.turns.call(read_call(self.body, at, &item, ToolKind::Custom)?);
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" => {
                state.turns.push(read_output(self.body, at, &item)?);
                Ok(())
            }
            "additional_tools" => tools::read(at, &item, "tools", &mut state.tools, &mut state.notes),
            // These stand for history that only the server that made them can tell.
            kind @ ("item_reference" | "compaction" | "compaction_trigger" | "compaction_summary") => {
                Err(At::Field(at, "type").invalid(format_args!("{kind} is not served: send the items themselves")))
            }
            // Calls of hosted tools, which were never offered, their outputs, and what is new: the conversation is whole without.
            kind => {
                state.notes.push(format!("passed over an input item of type {kind}"));
                Ok(())
            }
        }
    }
}

fn read_message(body: &Bytes, at: &At<'_>, item: &Item<'_>, turns: &mut Turns) -> Result<(), Failure> {
    let role = item.string(at, "role")?.ok_or_else(|| At::Field(at, "role").invalid("is missing"))?;
    let value = item.raw("content").ok_or_else(|| At::Field(at, "content").invalid("is missing"))?;
    let content = content::read(body, &At::Field(at, "content"), value)?;
    match Role::parse(&role) {
        Some(Role::System | Role::Developer) => turns.system(content),
        Some(Role::User) => turns.push(Message { content, ..Message::new(Role::User) }),
        Some(Role::Assistant) => turns.said(&content),
        Some(Role::Tool) | None => return Err(At::Field(at, "role").invalid(format_args!("is unknown: {role:?}"))),
    }
    Ok(())
}

/// The reasoning itself, else its summary; nothing if it came encrypted alone, which we never send.
fn read_reasoning(body: &Bytes, at: &At<'_>, item: &Item<'_>) -> Result<Vec<Text>, Failure> {
    for name in ["content", "summary"] {
        let Some(value) = item.value(name) else { continue };
        let mut texts = content::texts(&content::read(body, &At::Field(at, name), value)?);
        texts.retain(|text| !text.is_empty());
        if !texts.is_empty() {
            return Ok(texts);
        }
    }
    Ok(Vec::new())
}

fn read_call(body: &Bytes, at: &At<'_>, item: &Item<'_>, kind: ToolKind) -> Result<ToolCall, Failure> {
    let name = if kind == ToolKind::Function { "arguments" } else { "input" };
    // Some clients send the object itself where its text belongs.
    let given = item.value(name).map(|value| Text::of(body, value).unwrap_or_else(|| Text::new(value.get())));
    let arguments = match (kind, given) {
        // Templates read a function's arguments as JSON, which nothing is not.
        (ToolKind::Function, given) => given.filter(|text| !text.is_empty()).unwrap_or_else(|| Text::new("{}")),
        (ToolKind::Custom, given) => given.unwrap_or_else(|| Text::new("")),
    };
    Ok(ToolCall {
        id: item.required_text(at, "call_id")?,
        kind,
        namespace: item.text(at, "namespace")?,
        name: item.required_text(at, "name")?,
        arguments,
    })
}

fn read_output(body: &Bytes, at: &At<'_>, item: &Item<'_>) -> Result<Message, Failure> {
    let here = &At::Field(at, "output");
    let value = item.raw("output").ok_or_else(|| here.invalid("is missing"))?;
    let content = match value.get().as_bytes().first() {
        Some(b'{') => crate::call::Content::Text(Text::new(fields::keep(body, here, value)?.as_str())),
        _ => content::read(body, here, value)?,
    };
    Ok(Message { content, tool_call_id: Some(item.required_text(at, "call_id")?), ..Message::new(Role::Tool) })
}
