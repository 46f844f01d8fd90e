//! A request, read.

use std::collections::HashSet;

use bytes::Bytes;

use super::message::{self, MESSAGE};
use crate::call::{Call, Failure, Message, Raw, Sampling, Text, Tool, ToolChoice, ToolKind, Wants};
use crate::wire::fields::{self, At, Fields, Items};

const REQUEST: [&str; 26] = [
    "model",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "response_format",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "n",
    "audio",
    "modalities",
    "messages",
];
const TOOL: [&str; 3] = ["type", "function", "custom"];
const FUNCTION: [&str; 4] = ["name", "description", "parameters", "format"];
const FORMAT: [&str; 2] = ["type", "grammar"];
const GRAMMAR: [&str; 2] = ["syntax", "definition"];
const CHOICE: [&str; 4] = ["type", "function", "custom", "allowed_tools"];
const ALLOWED: [&str; 2] = ["mode", "tools"];
const NUMBER: &str = "a number";
const BOOLEAN: &str = "a boolean";
const COUNT: &str = "a whole number of 0 or more";
const INTEGER: &str = "a whole number";

struct Messages<'de> {
    body: &'de Bytes,
    list: Option<Vec<Message>>,
}

impl<'de> Items<'de, { MESSAGE.len() }> for Messages<'de> {
    fn begin(&mut self) {
        self.list = Some(Vec::new());
    }

    fn item(&mut self, at: &At<'_>, item: Fields<'de, { MESSAGE.len() }>) -> Result<(), Failure> {
        let message = message::read(self.body, at, &item)?;
        self.list.get_or_insert_default().push(message);
        Ok(())
    }
}

/// Reads a request.
pub(super) fn parse(body: &Bytes) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let mut messages = Messages { body, list: None };
    let fields = fields::read(body, &REQUEST, "messages", &MESSAGE, &mut messages)?;
    let messages = messages.list.ok_or_else(|| At::Field(at, "messages").invalid("is missing"))?;
    if messages.is_empty() {
        return Err(At::Field(at, "messages").invalid("must not be empty"));
    }
    refuse(at, &fields)?;
    let mut tools = Vec::new();
    fields.list(at, "tools", &TOOL, |at, tool| {
        tools.push(read_tool(at, &tool)?);
        Ok(())
    })?;
    let tool_choice = read_choice(at, &fields, &mut tools)?;
    let usage = match fields.object(at, "stream_options", &["include_usage"])? {
        Some(options) => options.read(&At::Field(at, "stream_options"), "include_usage", BOOLEAN)?,
        None => None,
    };
    let max_tokens = match fields.read(at, "max_completion_tokens", COUNT)? {
        Some(most) => Some(most),
        None => fields.read(at, "max_tokens", COUNT)?,
    };
    Ok(vec![Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        messages,
        tools,
        tool_choice,
        parallel_tool_calls: fields.read(at, "parallel_tool_calls", BOOLEAN)?,
        sampling: Sampling {
            temperature: fields.read(at, "temperature", NUMBER)?,
            top_p: fields.read(at, "top_p", NUMBER)?,
            top_k: fields.read(at, "top_k", INTEGER)?,
            min_p: fields.read(at, "min_p", NUMBER)?,
            presence_penalty: fields.read(at, "presence_penalty", NUMBER)?,
            frequency_penalty: fields.read(at, "frequency_penalty", NUMBER)?,
            repetition_penalty: fields.read(at, "repetition_penalty", NUMBER)?,
            seed: fields.read(at, "seed", INTEGER)?,
            stop: read_stop(at, &fields)?,
        },
        max_tokens,
        reasoning_effort: fields.text(at, "reasoning_effort")?,
        response_format: read_format(at, &fields)?,
        wants: Wants {
            usage: usage.unwrap_or(false),
            logprobs: fields.read(at, "logprobs", BOOLEAN)?.unwrap_or(false),
            top_logprobs: fields.read(at, "top_logprobs", COUNT)?,
            token_ids: fields.read(at, "return_token_ids", BOOLEAN)?.unwrap_or(false),
            ..Wants::default()
        },
        rest: fields.rest(at)?,
        ..Call::new("chat")
    }])
}

/// What is not served.
fn refuse(at: &At<'_>, fields: &Fields<'_, { REQUEST.len() }>) -> Result<(), Failure> {
    if fields.read::<u64>(at, "n", COUNT)?.is_some_and(|n| n != 1) {
        return Err(At::Field(at, "n").invalid("must be 1: one reply a call is served; send the call again for another"));
    }
    if fields.value("audio").is_some() {
        return Err(At::Field(at, "audio").invalid("is not served: replies are text"));
    }
    let modalities: Vec<String> = fields.read(at, "modalities", "a list of strings")?.unwrap_or_default();
    if modalities.iter().any(|modality| modality != "text") {
        return Err(At::Field(at, "modalities").invalid("must be [\"text\"]: replies are text"));
    }
    Ok(())
}

fn read_stop(at: &At<'_>, fields: &Fields<'_, { REQUEST.len() }>) -> Result<Option<Raw>, Failure> {
    let Some(value) = fields.value("stop") else { return Ok(None) };
    let is_text = value.get().starts_with('"') || serde_json::from_str::<Vec<String>>(value.get()).is_ok();
    if !is_text {
        return Err(fields::wrong(&At::Field(at, "stop"), "a string or a list of strings", value));
    }
    fields.keep(at, "stop")
}

/// The format asked for, unless it is plain text, which is no constraint.
fn read_format(at: &At<'_>, fields: &Fields<'_, { REQUEST.len() }>) -> Result<Option<Raw>, Failure> {
    let Some(format) = fields.object(at, "response_format", &["type"])? else { return Ok(None) };
    match format.string(&At::Field(at, "response_format"), "type")?.as_deref() {
        Some("text") => Ok(None),
        _ => fields.keep(at, "response_format"),
    }
}

fn read_tool(at: &At<'_>, tool: &Fields<'_, { TOOL.len() }>) -> Result<Tool, Failure> {
    let kind = tool.string(at, "type")?;
    let (field, kind) = match kind.as_deref() {
        Some("function") | None => ("function", ToolKind::Function),
        Some("custom") => ("custom", ToolKind::Custom),
        Some(other) => return Err(At::Field(at, "type").invalid(format_args!("must be function or custom, not {other:?}"))),
    };
    let inner_at = &At::Field(at, field);
    let inner = tool.object(at, field, &FUNCTION)?.ok_or_else(|| inner_at.invalid("is missing"))?;
    let mut description = inner.text(inner_at, "description")?;
    if kind == ToolKind::Custom {
        description = describe_grammar(inner_at, &inner, description)?;
    }
    Ok(Tool {
        kind,
        namespace: None,
        name: inner.required_text(inner_at, "name")?,
        description,
        parameters: if kind == ToolKind::Function { inner.keep(inner_at, "parameters")? } else { None },
        rest: inner.rest(inner_at)?,
    })
}

/// Policies are offered a custom tool as a function, which has no grammar: the model must be told it to be able to keep to it.
fn describe_grammar(
    at: &At<'_>,
    tool: &Fields<'_, { FUNCTION.len() }>,
    description: Option<Text>,
) -> Result<Option<Text>, Failure> {
    let at = &At::Field(at, "format");
    let Some(format) = tool.object(at, "format", &FORMAT)? else { return Ok(description) };
    let Some(grammar) = format.object(at, "grammar", &GRAMMAR)? else { return Ok(description) };
    let at = &At::Field(at, "grammar");
    let syntax = grammar.string(at, "syntax")?.unwrap_or_default();
    let definition = grammar.string(at, "definition")?.unwrap_or_default();
    let before = description.as_ref().map(Text::decode).unwrap_or_default();
    Ok(Some(Text::new(&format!("{before}\n\nThe input must fit this {syntax} grammar:\n{definition}"))))
}

/// Reads the choice of a tool; of a list of allowed ones, the others are taken out of `tools`.
fn read_choice(
    at: &At<'_>,
    fields: &Fields<'_, { REQUEST.len() }>,
    tools: &mut Vec<Tool>,
) -> Result<Option<ToolChoice>, Failure> {
    let Some(value) = fields.value("tool_choice") else { return Ok(None) };
    let at = &At::Field(at, "tool_choice");
    if let Some(name) = fields::string(value) {
        return mode(at, &name).map(Some);
    }
    let Some(choice) = fields.object(&At::Body, "tool_choice", &CHOICE)? else { return Ok(None) };
    let kind = choice.string(at, "type")?;
    match kind.as_deref() {
        Some("function" | "custom") => {
            let name = chosen_name(at, &choice)?;
            Ok(Some(ToolChoice::Named { namespace: None, name }))
        }
        Some("allowed_tools") => {
            let at = &At::Field(at, "allowed_tools");
            let allowed = choice.object(&At::Field(&At::Body, "tool_choice"), "allowed_tools", &ALLOWED)?;
            let allowed = allowed.ok_or_else(|| at.invalid("is missing"))?;
            let mut names = HashSet::new();
            allowed.list(at, "tools", &CHOICE, |at, tool| {
                names.insert(chosen_name(at, &tool)?.decode().into_owned());
                Ok(())
            })?;
            tools.retain(|tool| names.contains(tool.name.decode().as_ref()));
            let chosen = allowed.string(at, "mode")?;
            mode(&At::Field(at, "mode"), chosen.as_deref().unwrap_or("auto")).map(Some)
        }
        _ => Err(At::Field(at, "type").invalid("must be function, custom or allowed_tools")),
    }
}

fn chosen_name(at: &At<'_>, choice: &Fields<'_, { CHOICE.len() }>) -> Result<Text, Failure> {
    for field in ["function", "custom"] {
        if let Some(inner) = choice.object(at, field, &["name"])? {
            return inner.required_text(&At::Field(at, field), "name");
        }
    }
    Err(At::Field(at, "function").invalid("is missing"))
}

fn mode(at: &At<'_>, name: &str) -> Result<ToolChoice, Failure> {
    match name {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" | "any" => Ok(ToolChoice::Required),
        other => Err(at.invalid(format_args!("must be auto, none, required or a tool, not {other:?}"))),
    }
}
