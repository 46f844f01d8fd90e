//! A request, read.

use bytes::Bytes;

use super::items::{ITEM, Input};
use super::tools;
use crate::call::{Call, Failure, Raw, Sampling, Text, Wants};
use crate::wire::fields::{self, At, Fields};

const REQUEST: [&str; 37] = [
    "model",
    "instructions",
    "stream",
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
    "max_output_tokens",
    "reasoning",
    "text",
    "previous_response_id",
    "conversation",
    "background",
    "prompt",
    // What follows is about storing, caching and billing, which no policy does for us.
    "store",
    "include",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "client_metadata",
    "service_tier",
    "truncation",
    "user",
    "safety_identifier",
    "max_tool_calls",
    "stream_options",
    "top_logprobs",
    "input",
];
const FORMAT: [&str; 5] = ["type", "name", "description", "schema", "strict"];
const NUMBER: &str = "a number";
const BOOLEAN: &str = "a boolean";
const COUNT: &str = "a whole number of 0 or more";
const INTEGER: &str = "a whole number";

type Request<'de> = Fields<'de, { REQUEST.len() }>;

/// Reads a request.
pub(super) fn parse(body: &Bytes) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let mut input = Input::new(body);
    let fields = fields::read(body, &REQUEST, "input", &ITEM, &mut input)?;
    if !input.was_given() {
        return Err(At::Field(at, "input").invalid("is missing"));
    }
    refuse(at, &fields)?;
    let instructions = fields.text(at, "instructions")?.filter(|text| !text.is_empty());
    let mut notes = Vec::new();
    let mut offered = Vec::new();
    tools::read(at, &fields, "tools", &mut offered, &mut notes)?;
    let conversation = input.conversation(instructions);
    if conversation.messages.is_empty() {
        return Err(At::Field(at, "input").invalid("must not be empty"));
    }
    notes.extend(conversation.notes);
    tools::add(&mut offered, conversation.tools);
    let tool_choice = tools::read_choice(at, &fields, &mut offered, &mut notes)?;
    // Chat servers refuse to be told how to call tools where there are none, as Codex does when it compacts.
    let has_tools = !offered.is_empty();
    Ok(vec![Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        messages: conversation.messages,
        tools: offered,
        tool_choice: tool_choice.filter(|_| has_tools),
        parallel_tool_calls: fields.read(at, "parallel_tool_calls", BOOLEAN)?.filter(|_| has_tools),
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
        max_tokens: fields.read(at, "max_output_tokens", COUNT)?,
        reasoning_effort: read_effort(at, &fields)?,
        response_format: read_format(at, &fields)?,
        wants: Wants { usage: true, ..Wants::default() },
        notes,
        rest: fields.rest(at)?,
        ..Call::new("responses")
    }])
}

/// What is not served, and can't be passed over: the reply would be to another conversation than the client means.
fn refuse(at: &At<'_>, fields: &Request<'_>) -> Result<(), Failure> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.value(name).is_some() {
            let what = "is not served: responses are not kept for later requests; send the whole conversation as input";
            return Err(At::Field(at, name).invalid(what));
        }
    }
    if fields.read(at, "background", BOOLEAN)? == Some(true) {
        return Err(At::Field(at, "background").invalid("is not served: wait for the reply or stream it"));
    }
    Ok(())
}

fn read_stop(at: &At<'_>, fields: &Request<'_>) -> Result<Option<Raw>, Failure> {
    let Some(value) = fields.value("stop") else { return Ok(None) };
    if !value.get().starts_with('"') && serde_json::from_str::<Vec<String>>(value.get()).is_err() {
        return Err(fields::wrong(&At::Field(at, "stop"), "a string or a list of strings", value));
    }
    fields.keep(at, "stop")
}

fn read_effort(at: &At<'_>, fields: &Request<'_>) -> Result<Option<Text>, Failure> {
    match fields.object(at, "reasoning", &["effort"])? {
        Some(reasoning) => reasoning.text(&At::Field(at, "reasoning"), "effort"),
        None => Ok(None),
    }
}

/// The format of the answer's text, as chat completions has it; `None` for plain text.
fn read_format(at: &At<'_>, fields: &Request<'_>) -> Result<Option<Raw>, Failure> {
    let Some(text) = fields.object(at, "text", &["format"])? else { return Ok(None) };
    let at = &At::Field(at, "text");
    let Some(format) = text.object(at, "format", &FORMAT)? else { return Ok(None) };
    let at = &At::Field(at, "format");
    match format.string(at, "type")?.as_deref() {
        None | Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Raw::from_value(&serde_json::json!({ "type": "json_object" })))),
        Some("json_schema") => {
            let schema = format.keep(at, "schema")?.ok_or_else(|| At::Field(at, "schema").invalid("is missing"))?;
            let format = ChatFormat {
                r#type: "json_schema",
                json_schema: ChatSchema {
                    name: format.required_text(at, "name")?,
                    description: format.text(at, "description")?,
                    schema,
                    strict: format.read(at, "strict", BOOLEAN)?,
                },
            };
            Ok(Some(Raw::from_value(&format)))
        }
        Some(other) => {
            Err(At::Field(at, "type").invalid(format_args!("must be text, json_object or json_schema, not {other:?}")))
        }
    }
}

#[derive(serde::Serialize)]
struct ChatFormat {
    r#type: &'static str,
    json_schema: ChatSchema,
}

#[derive(serde::Serialize)]
struct ChatSchema {
    name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Text>,
    schema: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}
