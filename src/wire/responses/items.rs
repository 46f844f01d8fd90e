//! The items of a request's input, read.

use std::collections::HashMap;

use bytes::Bytes;

use super::earlier::{self, Earlier};
use super::turns::Turns;
use super::{content, hosted, sealed, tools};
use crate::call::{Content, Failure, FailureKind, Message, Reply, Role, Text, Tool, ToolCall, ToolKind};
use crate::ids::CallId;
use crate::wire::fields::{self, At, Fields, Items};
use crate::wire::notes::Notes;
use crate::wire::openai_tools;

/// The fields of items that are acted on.
pub(super) const ITEM: [&str; 23] = [
    "type",
    "role",
    "content",
    "id",
    "call_id",
    "name",
    "arguments",
    "output",
    "status",
    "summary",
    "encrypted_content",
    "namespace",
    "input",
    "tools",
    // What follows is of the original's own tools.
    "action",
    "actions",
    "operation",
    "code",
    "outputs",
    "result",
    "results",
    "queries",
    "error",
];

pub(super) type Item<'de> = Fields<'de, { ITEM.len() }>;

/// The input, as far as it was read.
pub(super) struct Input<'de, 'e> {
    body: &'de Bytes,
    /// The calls that it may quote, if they were looked for.
    earlier: Option<Earlier<'e>>,
    /// What was said before this input.
    before: State,
    state: Option<State>,
    /// The earlier replies that were quoted so far: each has one request, however many items are quoted.
    quoted: HashMap<CallId, Option<Reply>>,
}

/// A conversation as it is read.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) turns: Turns,
    pub(super) tools: Vec<Tool>,
    /// Calls whose replies are quoted by name, and were not looked for yet.
    pub(super) quotes: Vec<CallId>,
    notes: Notes,
}

/// What the input says.
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Tool>,
    pub(super) quotes: Vec<CallId>,
    pub(super) notes: Notes,
    /// The call of an output, if there is no such call in what is known.
    pub(super) orphan: Option<Text>,
}

impl<'de, 'e> Input<'de, 'e> {
    /// An input that goes on from what was said `before`.
    pub(super) fn after(before: State, body: &'de Bytes, earlier: Option<Earlier<'e>>) -> Self {
        Self { body, earlier, before, state: None, quoted: HashMap::new() }
    }

    /// Tells whether there was an input at all.
    pub(super) fn was_given(&self) -> bool {
        self.state.is_some()
    }

    /// All that was said, with this input.
    pub(super) fn state(self) -> State {
        self.state.unwrap_or(self.before)
    }
}

impl State {
    /// The conversation, with the request's instructions before it.
    pub(super) fn conversation(self, instructions: Option<Text>) -> Conversation {
        let Self { turns, tools, quotes, mut notes } = self;
        let (messages, orphan) = turns.messages(instructions, &mut notes);
        Conversation { messages, tools, quotes, notes, orphan }
    }
}

impl<'de> Items<'de, { ITEM.len() }> for Input<'de, '_> {
    fn begin(&mut self) {
        self.state = Some(self.before.clone());
    }

    fn text(&mut self, _at: &At<'_>, text: &str) -> Result<(), Failure> {
        self.state.get_or_insert_default().turns.push(Message::text(Role::User, Text::new(text)));
        Ok(())
    }

    fn item(&mut self, at: &At<'_>, item: Item<'de>) -> Result<(), Failure> {
        let (body, earlier) = (self.body, self.earlier);
        let state = self.state.get_or_insert_default();
        let kind = item.string(at, "type")?;
        // A reference needs no type; a message always has a role.
        let is_bare = item.value("role").is_none() && item.value("id").is_some() && item.value("content").is_none();
        match kind.as_deref().unwrap_or(if is_bare { "item_reference" } else { "message" }) {
            "message" => read_message(body, at, &item, &mut state.turns)?,
            "reasoning" => match read_reasoning(body, at, &item)? {
                Some(texts) => state.turns.reasoning(texts),
                None => state.notes.say("passed over reasoning that only another provider can read"),
            },
            "function_call" => state.turns.call(read_call(body, at, &item, ToolKind::Function)?),
            "custom_tool_call" => state.turns.call(read_call(body, at, &item, ToolKind::Custom)?),
            "function_call_output" | "custom_tool_call_output" => state.turns.push(read_output(body, at, &item)?),
            "additional_tools" => tools::read(at, &item, "tools", &mut state.tools, &mut state.notes)?,
            "item_reference" => quote(at, &item, earlier, state, &mut self.quoted)?,
            "compaction_trigger" => {
                let what = "compaction_trigger is not served: no policy compacts; send a request for a summary instead";
                return Err(At::Field(at, "type").invalid(what));
            }
            kind => {
                if kind == "tool_search_output" {
                    tools::read(at, &item, "tools", &mut state.tools, &mut state.notes)?;
                }
                // What was never ours to tell, and what is new: the conversation goes on without it.
                if !hosted::read(kind, body, at, &item, &mut state.turns)? {
                    if let Some(call) = item.text(at, "call_id")? {
                        state.turns.untold(&call);
                    }
                    state.notes.say(format!("passed over an input item of type {kind}"));
                }
            }
        }
        Ok(())
    }
}

/// Takes the item of an earlier reply that is meant by its name.
fn quote(
    at: &At<'_>,
    item: &Item<'_>,
    earlier: Option<Earlier<'_>>,
    state: &mut State,
    quoted: &mut HashMap<CallId, Option<Reply>>,
) -> Result<(), Failure> {
    let name = item.string(at, "id")?.ok_or_else(|| At::Field(at, "id").invalid("is missing"))?;
    let missing = || {
        let message = format!(
            "Item with id '{name}' not found. It must be of a whole response of the same rollout that was not sent with store: false; \
             else send the item itself."
        );
        Failure { param: Some(At::Field(at, "id").to_string()), ..Failure::new(FailureKind::NotFound, message) }
    };
    let (call, piece) = earlier::item(&name).ok_or_else(missing)?;
    match earlier {
        None => state.quotes.push(call),
        Some(earlier) => {
            let reply = quoted.entry(call).or_insert_with(|| earlier.quoted(call));
            let said = reply.as_ref().and_then(|reply| earlier::piece(reply, piece));
            state.turns.reply(&said.ok_or_else(missing)?);
        }
    }
    Ok(())
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

/// The reasoning itself, else what we sealed of it, else its summary: what stands in several of them is the same. `None` if it
/// came sealed by others alone.
fn read_reasoning(body: &Bytes, at: &At<'_>, item: &Item<'_>) -> Result<Option<Vec<Text>>, Failure> {
    let texts = |name| -> Result<Vec<Text>, Failure> {
        let Some(value) = item.value(name) else { return Ok(Vec::new()) };
        let mut texts = content::texts(&content::read(body, &At::Field(at, name), value)?);
        texts.retain(|text| !text.is_empty());
        Ok(texts)
    };
    let plain = texts("content")?;
    if !plain.is_empty() {
        return Ok(Some(plain));
    }
    let sealed = item.string(at, "encrypted_content")?.filter(|sealed| !sealed.is_empty());
    if let Some(text) = sealed.as_deref().and_then(sealed::open) {
        return Ok(Some(vec![text]));
    }
    let summary = texts("summary")?;
    Ok((!summary.is_empty() || sealed.is_none()).then_some(summary))
}

fn read_call(body: &Bytes, at: &At<'_>, item: &Item<'_>, kind: ToolKind) -> Result<ToolCall, Failure> {
    let given = item.value(if kind == ToolKind::Custom { "input" } else { "arguments" });
    let arguments = openai_tools::arguments(body, kind, given);
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
        Some(b'{') => Content::Text(Text::new(fields::keep(body, here, value)?.as_str())),
        _ => content::read(body, here, value)?,
    };
    Ok(Message { content, tool_call_id: Some(item.required_text(at, "call_id")?), ..Message::new(Role::Tool) })
}
