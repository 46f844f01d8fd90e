//! A request, read.

use std::borrow::Cow;

use bytes::Bytes;

use super::earlier::{self, Earlier};
use super::items::{ITEM, Input, State};
use super::{echo, tools};
use crate::call::{Call, Failure, Raw, Text, Wants};
use crate::ids::CallId;
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields, STRINGS};
use crate::wire::notes::Notes;
use crate::wire::sampling;

const REQUEST: [&str; 42] = [
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
    "include",
    "top_logprobs",
    "input",
    // What follows is about storing, caching and billing, which no policy does for us.
    "store",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "client_metadata",
    "service_tier",
    "truncation",
    "user",
    "safety_identifier",
    "stream_options",
    "max_tool_calls",
    "context_management",
    "moderation",
    "access_programs",
    "background_options",
    "image",
];

/// What is left out with a note, since a client could tell: the field, and why nothing comes of it.
const DROPPED: [(&str, &str); 6] = [
    ("max_tool_calls", "it counts tools that run on a provider's servers"),
    ("context_management", "no conversation is compacted here"),
    ("moderation", "nothing is moderated here"),
    ("access_programs", "it is about another provider's models"),
    ("background_options", "nothing runs in the background here"),
    ("image", "images go to the policy as they are"),
];

const REASONING: [&str; 5] = ["effort", "summary", "generate_summary", "context", "mode"];
const TEXT: [&str; 2] = ["format", "verbosity"];
const FORMAT: [&str; 5] = ["type", "name", "description", "schema", "strict"];

type Request<'de> = Fields<'de, { REQUEST.len() }>;

/// Reads a request. Where it goes on from earlier calls or quotes them, these are `earlier`; without them it is read as far as it
/// says by itself.
pub(super) fn parse(body: &Bytes, earlier: Option<Earlier<'_>>) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let before = match earlier {
        Some(earlier) => earlier.before(body)?,
        None => State::default(),
    };
    let mut input = Input::after(before, body, earlier);
    let fields = fields::read(body, &REQUEST, "input", &ITEM, &mut input)?;
    let previous = read_previous(at, &fields)?;
    if !input.was_given() && previous.is_none() {
        return Err(At::Field(at, "input").invalid("is missing"));
    }
    refuse(at, &fields)?;
    let instructions = fields.text(at, "instructions")?.filter(|text| !text.is_empty());
    let mut notes = Notes::default();
    let mut offered = Vec::new();
    tools::read(at, &fields, "tools", &mut offered, &mut notes)?;
    let conversation = input.state().conversation(instructions);
    let is_whole = earlier.is_some() || previous.is_none() && conversation.quotes.is_empty();
    if conversation.messages.is_empty() && is_whole {
        return Err(At::Field(at, "input").invalid("must not be empty"));
    }
    if let (Some(call), true) = (conversation.orphan, is_whole) {
        let message = format!("No tool call found for function call output with call_id {}.", call.decode());
        return Err(Failure::invalid("input", message));
    }
    notes.add(conversation.notes);
    tools::add(&mut offered, conversation.tools);
    let tool_choice = tools::read_choice(at, &fields, &mut offered, &mut notes)?;
    // Chat servers refuse to be told how to call tools where there are none, as Codex does when it compacts.
    let has_tools = !offered.is_empty();
    let reasoning = read_reasoning(at, &fields, &mut notes)?;
    let response_format = read_text(at, &fields, &mut notes)?;
    let include = read_include(at, &fields, &mut notes)?;
    note_dropped(at, &fields, &mut notes)?;
    let stored = fields.read(at, "store", BOOLEAN)?.unwrap_or(true);
    Ok(vec![Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        messages: conversation.messages,
        previous,
        quotes: conversation.quotes,
        tools: offered,
        tool_choice: tool_choice.filter(|_| has_tools),
        parallel_tool_calls: fields.read(at, "parallel_tool_calls", BOOLEAN)?.filter(|_| has_tools),
        sampling: sampling::read(at, &fields)?,
        max_tokens: fields.read(at, "max_output_tokens", COUNT)?,
        reasoning_effort: reasoning.effort,
        response_format,
        wants: Wants {
            usage: true,
            logprobs: include.logprobs,
            top_logprobs: fields.read(at, "top_logprobs", COUNT)?.filter(|_| include.logprobs),
            reasoning_summary: reasoning.summary,
            // Who keeps no responses has nothing else to go on from; some such clients take that for granted.
            sealed_reasoning: include.sealed || !stored,
            ..Wants::default()
        },
        notes: notes.list(),
        rest: fields.rest(at)?,
        echo: echo::take(body, &fields),
        ..Call::new("responses")
    }])
}

/// The call that the request goes on from.
fn read_previous(at: &At<'_>, fields: &Request<'_>) -> Result<Option<CallId>, Failure> {
    let Some(name) = fields.string(at, "previous_response_id")? else { return Ok(None) };
    earlier::response(&name).map(Some).ok_or_else(|| earlier::no_previous(&name))
}

/// What is not served, and can't be passed over: the reply would be to another conversation than the client means.
fn refuse(at: &At<'_>, fields: &Request<'_>) -> Result<(), Failure> {
    for (name, what) in [
        ("conversation", "is not served: go on from a response by previous_response_id, or send the whole conversation as input"),
        ("prompt", "is not served: prompts are not kept; send what it says as instructions and input"),
    ] {
        if fields.value(name).is_some() {
            return Err(At::Field(at, name).invalid(what));
        }
    }
    if fields.read(at, "background", BOOLEAN)? == Some(true) {
        return Err(At::Field(at, "background").invalid("is not served: wait for the reply or stream it"));
    }
    Ok(())
}

fn note_dropped(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<(), Failure> {
    for (name, why) in DROPPED {
        if fields.value(name).is_some() {
            notes.say(format!("dropped {name}: {why}"));
        }
    }
    if fields.string(at, "truncation")?.is_some_and(|truncation| truncation != "disabled") {
        notes.say("dropped truncation: a prompt that does not fit is refused, not cut");
    }
    if let Some(tier) = fields.string(at, "service_tier")?.filter(|tier| tier != "auto" && tier != "default") {
        notes.say(format!("dropped service_tier {tier}: all are served alike"));
    }
    Ok(())
}

/// What a request includes beside what is always there.
#[derive(Default)]
struct Include {
    logprobs: bool,
    sealed: bool,
}

fn read_include(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<Include, Failure> {
    let mut include = Include::default();
    let Some(value) = fields.value("include") else { return Ok(include) };
    let names: Vec<Cow<'_, str>> =
        serde_json::from_str(value.get()).map_err(|_| fields::wrong(&At::Field(at, "include"), STRINGS, value))?;
    for name in names {
        match name.as_ref() {
            "message.output_text.logprobs" => include.logprobs = true,
            "reasoning.encrypted_content" => include.sealed = true,
            // Input is always given back with its images.
            "message.input_image.image_url" | "computer_call_output.output.image_url" => {}
            other => notes.say(format!("dropped include {other}: no reply has it")),
        }
    }
    Ok(include)
}

struct Reasoning {
    effort: Option<Text>,
    summary: bool,
}

fn read_reasoning(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<Reasoning, Failure> {
    let Some(reasoning) = fields.object(at, "reasoning", &REASONING)? else {
        return Ok(Reasoning { effort: None, summary: false });
    };
    let at = &At::Field(at, "reasoning");
    for (name, usual) in [("context", "auto"), ("mode", "standard")] {
        if let Some(value) = reasoning.string(at, name)?.filter(|value| value != usual) {
            notes.say(format!("dropped reasoning.{name} {value}: the policy's template decides that"));
        }
    }
    let summary = reasoning.string(at, "summary")?.or(reasoning.string(at, "generate_summary")?);
    Ok(Reasoning { effort: reasoning.text(at, "effort")?, summary: summary.is_some_and(|summary| summary != "none") })
}

/// The format of the answer's text, as chat completions has it; `None` for plain text.
fn read_text(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<Option<Raw>, Failure> {
    let Some(text) = fields.object(at, "text", &TEXT)? else { return Ok(None) };
    let at = &At::Field(at, "text");
    if text.string(at, "verbosity")?.is_some_and(|verbosity| verbosity != "medium") {
        notes.say("dropped text.verbosity: policies know no such setting");
    }
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
