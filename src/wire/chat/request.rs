//! A request, read.

use bytes::Bytes;

use super::history::History;
use super::message::{self, MESSAGE};
use super::tools;
use crate::call::{Call, Failure, Message, Wants};
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields, Items, STRINGS};
use crate::wire::notes::Notes;
use crate::wire::{openai_request, sampling};

const REQUEST: [&str; 28] = [
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
    "functions",
    "function_call",
    "messages",
];

struct Messages<'de> {
    body: &'de Bytes,
    list: Option<Vec<Message>>,
    history: History,
}

impl<'de> Items<'de, { MESSAGE.len() }> for Messages<'de> {
    fn begin(&mut self) {
        self.list = Some(Vec::new());
        self.history = History::default();
    }

    fn item(&mut self, at: &At<'_>, item: Fields<'de, { MESSAGE.len() }>) -> Result<(), Failure> {
        let message = message::read(self.body, at, &item, &mut self.history)?;
        self.list.get_or_insert_default().push(message);
        Ok(())
    }
}

/// Reads a request.
pub(super) fn parse(body: &Bytes) -> Result<Vec<Call>, Failure> {
    let at = &At::Body;
    let mut messages = Messages { body, list: None, history: History::default() };
    let fields = fields::read(body, &REQUEST, "messages", &MESSAGE, &mut messages)?;
    let messages = messages.list.ok_or_else(|| At::Field(at, "messages").invalid("is missing"))?;
    if messages.is_empty() {
        return Err(At::Field(at, "messages").invalid("must not be empty"));
    }
    refuse(at, &fields)?;
    let tools::Offered { tools, choice, parallel, older } = tools::read(at, &fields)?;
    let mut notes = Notes::default();
    let usage = openai_request::stream_options(at, &fields, &mut notes)?;
    let max_tokens = match fields.read(at, "max_completion_tokens", COUNT)? {
        Some(most) => Some(most),
        None => fields.read(at, "max_tokens", COUNT)?,
    };
    let call = Call {
        model: fields.string(at, "model")?.unwrap_or_default().into_owned(),
        stream: fields.read(at, "stream", BOOLEAN)?.unwrap_or(false),
        messages,
        tools,
        tool_choice: choice,
        parallel_tool_calls: parallel,
        sampling: sampling::read(at, &fields)?,
        max_tokens,
        reasoning_effort: fields.text(at, "reasoning_effort")?,
        response_format: openai_request::format(at, &fields)?,
        wants: Wants {
            usage,
            logprobs: fields.read(at, "logprobs", BOOLEAN)?.unwrap_or(false),
            top_logprobs: fields.read(at, "top_logprobs", COUNT)?,
            token_ids: fields.read(at, "return_token_ids", BOOLEAN)?.unwrap_or(false),
            function_call: older,
            ..Wants::default()
        },
        rest: fields.rest(at)?,
        notes: notes.list(),
        ..Call::new("chat")
    };
    call.times(fields.read(at, "n", COUNT)?.unwrap_or(1), "n")
}

/// What is not served.
fn refuse(at: &At<'_>, fields: &Fields<'_, { REQUEST.len() }>) -> Result<(), Failure> {
    if fields.value("audio").is_some() {
        return Err(At::Field(at, "audio").invalid("is not served: replies are text"));
    }
    let modalities: Vec<String> = fields.read(at, "modalities", STRINGS)?.unwrap_or_default();
    if modalities.iter().any(|modality| modality != "text") {
        return Err(At::Field(at, "modalities").invalid("must be [\"text\"]: replies are text"));
    }
    Ok(())
}
