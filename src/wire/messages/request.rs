//! A request, read.

use bytes::Bytes;

use super::thread::{self, Held};
use super::tools::Offered;
use super::turns::{self, MESSAGE, Turns};
use crate::call::{Call, Content, Failure, Kept, Message, Raw, Rest, Role, Sampling, Text, Wants};
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields, STRINGS};
use crate::wire::notes::Notes;
use crate::wire::sampling;

const REQUEST: [&str; 39] = [
    "model",
    "system",
    "stream",
    "tools",
    "tool_choice",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "thinking",
    "output_config",
    "output_format",
    "context_management",
    "thread",
    // Sampling and templating that no field of Anthropic's says; its SDKs send them where they are told to.
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "chat_template_kwargs",
    // What follows is about caching, billing and places, which no policy does for us.
    "metadata",
    "cache_control",
    "betas",
    "anthropic_beta",
    "anthropic_version",
    "service_tier",
    "inference_geo",
    "speed",
    "diagnostics",
    "billing_policy",
    "fallbacks",
    "fallback_credit_token",
    "user_profile_id",
    "workspace_id",
    // What runs on Anthropic's own servers.
    "container",
    "mcp_servers",
    "compaction",
    "messages",
];

type Request<'de> = Fields<'de, { REQUEST.len() }>;

/// Reads a request; one that only asks for a count needs no limit of tokens. One that goes on from a thread says of which call,
/// and is read whole once the calls of the thread are given.
pub(super) fn parse(body: &Bytes, counts: bool, earlier: Option<&[&Kept]>) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let Held { state, first } = earlier.map(|earlier| thread::held(body, earlier)).transpose()?.unwrap_or_default();
    let mut turns = Turns::after(state, body);
    let fields = fields::read(body, &REQUEST, "messages", &MESSAGE, &mut turns)?;
    let previous = thread::previous(at, &fields)?;
    if previous.is_some() && earlier.is_none() {
        let stream = fields.read(at, "stream", BOOLEAN)?.unwrap_or(false);
        let model = fields.string(at, "model")?.unwrap_or_default().into_owned();
        return Ok(vec![Call { model, stream, previous, ..Call::new("messages") }]);
    }
    if !turns.were_given() {
        return Err(At::Field(at, "messages").invalid("is missing"));
    }
    let mut notes = Notes::default();
    let (system, mut offered) = read_frame(body, at, &fields, first, &mut notes)?;
    let choice = offered.choose(at, &fields, &mut notes)?;
    let messages = turns.conversation(system, &mut offered, &mut notes)?;
    offered.note_hidden(&mut notes);
    if !messages.iter().any(|message| message.role != Role::System) {
        return Err(At::Field(at, "messages").invalid("must not be empty"));
    }
    let rest = read_rest(at, &fields, messages.last(), &mut notes)?;
    let (effort, format) = read_output(at, &fields, &mut notes)?;
    pass_over(at, &fields, &mut notes)?;
    Ok(vec![Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        messages,
        tools: offered.tools,
        tool_choice: choice.tool,
        parallel_tool_calls: choice.parallel,
        sampling: Sampling { stop: read_stop(at, &fields)?, ..sampling::settings(at, &fields)? },
        max_tokens: read_limit(at, &fields, counts)?,
        reasoning_effort: effort,
        response_format: format,
        wants: Wants { usage: true, ..Wants::default() },
        rest,
        previous,
        notes: notes.list(),
        ..Call::new("messages")
    }])
}

/// The system prompt and the tools: the request's own, or else those of the one that began its thread.
fn read_frame(
    body: &Bytes,
    at: &At<'_>,
    fields: &Request<'_>,
    first: Option<&Bytes>,
    notes: &mut Notes,
) -> Result<(Vec<Text>, Offered), Failure> {
    let here = &At::Field(at, "system");
    let begun = first.map(|first| Ok((first, fields::read_plain(first, &["system", "tools"])?))).transpose()?;
    let system = match &begun {
        Some((first, begun)) if fields.value("system").is_none() => {
            turns::read_system(first, here, begun.value("system"), notes)?
        }
        _ => turns::read_system(body, here, fields.value("system"), notes)?,
    };
    let offered = match &begun {
        Some((_, begun)) if fields.value("tools").is_none() => Offered::read(at, begun, notes)?,
        _ => Offered::read(at, fields, notes)?,
    };
    Ok((system, offered))
}

fn read_limit(at: &At<'_>, fields: &Request<'_>, counts: bool) -> Result<Option<u64>, Failure> {
    let here = &At::Field(at, "max_tokens");
    match fields.read(at, "max_tokens", COUNT)? {
        Some(0) => Err(here.invalid("must be 1 or more")),
        None if !counts => Err(here.invalid("is missing")),
        limit => Ok(limit),
    }
}

fn read_stop(at: &At<'_>, fields: &Request<'_>) -> Result<Option<Raw>, Failure> {
    let stop = fields.read::<Vec<String>>(at, "stop_sequences", STRINGS)?;
    Ok(stop.filter(|stop| !stop.is_empty()).map(|stop| Raw::from_value(&stop)))
}

/// What goes to the policy beside the fields that every wire has.
fn read_rest(at: &At<'_>, fields: &Request<'_>, last: Option<&Message>, notes: &mut Notes) -> Result<Rest, Failure> {
    let mut rest = Vec::new();
    let mut add = |name: &str, value: Raw| rest.push((Text::new(name), value));
    let thinking = fields.object(at, "thinking", &["type", "budget_tokens"])?;
    let here = &At::Field(at, "thinking");
    let kind = thinking.as_ref().map(|thinking| thinking.string(here, "type")).transpose()?.flatten();
    if thinking.is_some_and(|thinking| thinking.value("budget_tokens").is_some()) {
        notes.say("thinking.budget_tokens was not passed on: how long a policy thinks, its template and max_tokens say");
    }
    match fields.keep(at, "chat_template_kwargs")? {
        Some(given) => add("chat_template_kwargs", given),
        // The name that templates of policies that can do without thinking know it by.
        None if kind.as_deref() == Some("disabled") => {
            add("chat_template_kwargs", Raw::from_value(&serde_json::json!({ "enable_thinking": false })));
            notes.say("thinking was disabled by the template's enable_thinking");
        }
        None => {}
    }
    // The client has begun the reply itself.
    if let Some(Message { role: Role::Assistant, content: Content::Text(text), tool_calls, .. }) = last
        && tool_calls.is_empty()
        && !text.is_empty()
    {
        add("add_generation_prompt", Raw::from_value(&false));
        add("continue_final_message", Raw::from_value(&true));
        notes.say("the reply goes on from the assistant's message at the end");
    }
    Ok(rest)
}

/// The effort, in the words that policies know, and the format of the answer's text, as chat completions has it.
fn read_output(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<(Option<Text>, Option<Raw>), Failure> {
    let format = read_format(at, fields)?;
    let Some(config) = fields.object(at, "output_config", &["effort", "format"])? else { return Ok((None, format)) };
    let at = &At::Field(at, "output_config");
    let effort = match config.text(at, "effort")? {
        // Servers refuse what is above their own scale.
        Some(effort) if matches!(&*effort.decode(), "xhigh" | "max") => {
            notes.say(format!("the effort {} was passed on as high", effort.decode()));
            Some(Text::new("high"))
        }
        effort => effort,
    };
    Ok((effort, read_format_of(at, "format", &config)?.or(format)))
}

fn read_format(at: &At<'_>, fields: &Request<'_>) -> Result<Option<Raw>, Failure> {
    read_format_of(at, "output_format", fields)
}

fn read_format_of<const N: usize>(at: &At<'_>, name: &str, fields: &Fields<'_, N>) -> Result<Option<Raw>, Failure> {
    #[derive(serde::Serialize)]
    struct Format {
        r#type: &'static str,
        json_schema: Named,
    }
    #[derive(serde::Serialize)]
    struct Named {
        name: &'static str,
        schema: Raw,
        strict: bool,
    }
    let Some(format) = fields.object(at, name, &["type", "schema"])? else { return Ok(None) };
    let at = &At::Field(at, name);
    match format.string(at, "type")?.as_deref() {
        Some("json_schema") => {
            let schema = format.keep(at, "schema")?.ok_or_else(|| At::Field(at, "schema").invalid("is missing"))?;
            let json_schema = Named { name: "output", schema, strict: true };
            Ok(Some(Raw::from_value(&Format { r#type: "json_schema", json_schema })))
        }
        Some(other) => Err(At::Field(at, "type").invalid(format_args!("must be json_schema, not {other:?}"))),
        None => Err(At::Field(at, "type").invalid("is missing")),
    }
}

/// Notes what a policy can't do.
fn pass_over(at: &At<'_>, fields: &Request<'_>, notes: &mut Notes) -> Result<(), Failure> {
    for name in ["mcp_servers", "container", "compaction"] {
        if fields.value(name).is_some_and(|value| !matches!(value.get(), "[]" | "{}")) {
            notes.say(format!("{name} was passed over: it is what Anthropic's own servers do"));
        }
    }
    if let Some(management) = fields.object(at, "context_management", &["edits"])? {
        let at = &At::Field(at, "context_management");
        management.list(at, "edits", &["type"], |at, edit| {
            let kind = edit.string(at, "type")?.unwrap_or_default();
            // Thinking is kept anyway.
            if !kind.starts_with("clear_thinking") {
                notes.pass("context edit", &kind);
            }
            Ok(())
        })?;
    }
    for name in fields.unknown() {
        notes.pass("field", name);
    }
    Ok(())
}
