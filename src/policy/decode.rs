//! From the bytes of a server's completions to events: a stream fed as it comes, or a whole body.

use std::sync::Arc;

use bytes::Bytes;

use super::chunk::VersionSpan;
use super::chunk::{Choice, Chunk, CountedUsage, LogprobEntry, Unknown};
use super::names::Names;
use super::plain::Echo;
use super::refusal;
use super::tools::Tools;
use crate::call::{Call, Event, Extra, Failure, FailureKind, FinishReason, Raw, Reply, Text, Tokens, Usage};
use crate::wire::sse;

/// Where a kind of server puts its token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdSource {
    /// vLLM: `prompt_token_ids`, and `token_ids` beside each delta.
    TokenIds,
    /// `SGLang`: in `sglext` at a stream's end, or beside the choice of a whole body.
    Sglang,
    /// llama.cpp: the `id` of each log-probability's entry, or all of them in `__verbose` of a whole body.
    Entries,
    /// Not at all, or nobody asked.
    None,
}

/// A grammar that waits for a tool call to begin.
type Lazy = bool;

/// Reads one reply.
#[derive(Debug)]
pub(super) struct Decoder {
    call: Arc<Call>,
    source: IdSource,
    events: sse::Decoder,
    scratch: Vec<sse::ServerEvent>,
    tools: Tools,
    finished: bool,
    /// Something of the reply's own has been told.
    begun: bool,
    said_text: bool,
    empty_text: bool,
    done: bool,
    echo: Echo,
    /// The prompt's text, until the server's own has come.
    echoed: Option<Text>,
    /// The grammar that llama.cpp held over the reply, and whether only over its tool calls.
    grammar: Option<Lazy>,
    /// The server was asked for more alternatives of each token than the client wants to see.
    pub trims: bool,
    /// Which weights sampled which tokens, as far as the server says.
    pub weight_versions: Vec<VersionSpan>,
    /// What was odd in the bytes, for people.
    pub notes: Vec<String>,
}

impl Decoder {
    /// A decoder for the reply to `call`, with events of at most `limit` bytes.
    pub(super) fn new(call: &Arc<Call>, names: Names, source: IdSource, echo: Echo, limit: usize) -> Self {
        Self {
            call: call.clone(),
            source,
            events: sse::Decoder::new(limit),
            scratch: Vec::new(),
            tools: Tools::new(call, names),
            finished: false,
            begun: false,
            said_text: false,
            empty_text: false,
            done: false,
            echo,
            echoed: None,
            grammar: None,
            trims: false,
            weight_versions: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether the stream has said that it is over.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Takes the next bytes of a stream.
    pub(super) fn push(&mut self, bytes: &Bytes, out: &mut Vec<Event>) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.scratch);
        let fed = self.events.push(bytes, &mut events);
        let read = events.drain(..).try_for_each(|event| self.event(&event, out));
        self.scratch = events;
        read?;
        fed.map_err(|error| broken(error.to_string()))
    }

    /// Takes the end of a stream.
    pub(super) fn finish(&mut self, out: &mut Vec<Event>) -> Result<(), Failure> {
        if let Some(last) = self.events.finish().map_err(|error| broken(error.to_string()))? {
            self.event(&last, out)?;
        }
        if self.finished { Ok(()) } else { Err(broken("the stream ended before the reply did".to_owned())) }
    }

    /// Takes a whole body.
    pub(super) fn whole(&mut self, body: &Bytes, out: &mut Vec<Event>) -> Result<(), Failure> {
        self.data(body, true, out)?;
        if !self.finished {
            // A whole body without a reason is whole nonetheless.
            self.end(FinishReason::Stop, out);
        }
        Ok(())
    }

    /// Whether the server itself held a grammar over the tokens of `reply`.
    pub(super) fn grammar_held(&self, reply: &Reply) -> bool {
        self.grammar.is_some_and(|lazy| !lazy || !reply.tool_calls.is_empty())
    }

    fn event(&mut self, event: &sse::ServerEvent, out: &mut Vec<Event>) -> Result<(), Failure> {
        let data = event.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        if data == b"[DONE]" {
            self.done = true;
            return if self.finished { Ok(()) } else { Err(broken("the stream ended before the reply did".to_owned())) };
        }
        if &event.name[..] == b"error" {
            return Err(self.said_error(&event.data));
        }
        self.data(&event.data, false, out)
    }

    fn data(&mut self, data: &Bytes, whole: bool, out: &mut Vec<Event>) -> Result<(), Failure> {
        let healed;
        let (data, text) = if let Ok(text) = std::str::from_utf8(data) {
            (data, text)
        } else {
            let note = "the server's reply held bytes that are not UTF-8; they read as U+FFFD";
            if !self.notes.iter().any(|noted| noted == note) {
                self.notes.push(note.to_owned());
            }
            healed = Bytes::from(String::from_utf8_lossy(data).into_owned());
            (&healed, std::str::from_utf8(&healed).unwrap_or_default())
        };
        let chunk = Chunk::read(text, self.call.wants.logprobs).ok_or_else(|| {
            let start: String = text.chars().take(80).collect();
            broken(format!("the server sent something that is no completion: {start:?}"))
        })?;
        let failed = chunk.error.is_some() || chunk.is_error;
        if failed {
            return Err(self.said_error(data));
        }
        if whole && chunk.choice.is_none() {
            return Err(broken("the server's answer has no choices".to_owned()));
        }
        match std::mem::replace(&mut self.echo, Echo::No) {
            Echo::No => {}
            Echo::Ours(text) => out.push(Event::PromptText(text)),
            Echo::Servers(text) => {
                out.push(Event::PromptText(text.clone()));
                self.echoed = Some(text);
            }
        }
        if let (Some(ids), IdSource::TokenIds) = (chunk.prompt_token_ids, self.source) {
            out.push(Event::Prompt(ids));
        }
        if let (Some(sglext), IdSource::Sglang) = (chunk.sglext, self.source) {
            out.extend(sglext.input_ids.map(Event::Prompt));
            let ids = sglext.output_ids.and_then(|replies| replies.into_iter().next());
            out.extend(ids.map(|ids| Event::Tokens(Tokens { ids, logprobs: Vec::new() })));
        }
        if let Some(metadata) = chunk.metadata {
            self.weight_versions = metadata.spans();
        }
        let verbose = chunk.verbose.map(|verbose| {
            let settings = verbose.generation_settings;
            self.grammar = settings.grammar.0.then_some(settings.grammar_lazy).or(self.grammar);
            if !verbose.stopping_word.is_empty() {
                out.push(Event::StopString(Text::new(&verbose.stopping_word)));
            }
            verbose.tokens
        });
        let finish = match chunk.choice {
            Some(choice) => self.choice(data, choice, verbose, whole, out),
            None => None,
        };
        if let (Some(reason), false) = (finish, self.finished) {
            self.end(reason, out);
        }
        if let Some(usage) = chunk.usage {
            out.push(Event::Usage(counted(&usage)));
        }
        Ok(())
    }

    fn choice(
        &mut self,
        body: &Bytes,
        mut choice: Choice,
        verbose: Option<Vec<u32>>,
        whole: bool,
        out: &mut Vec<Event>,
    ) -> Option<FinishReason> {
        let before = out.len();
        let echoed = self.echoed.take_if(|_| choice.delta.content.is_some());
        if let (Some(ids), IdSource::TokenIds | IdSource::Sglang) = (choice.prompt_token_ids.take(), self.source) {
            if echoed.is_some() {
                // The prompt's log-probabilities are the client's; what is recorded are the reply's.
                choice.entries.drain(..ids.len().min(choice.entries.len()));
            }
            out.push(Event::Prompt(ids));
        }
        let delta = choice.delta;
        let said = |json: Option<&str>| json.and_then(|json| Text::slice(body, json)).filter(|text| !text.is_empty());
        if let Some(text) = said(delta.reasoning).or_else(|| said(delta.reasoning_content)) {
            out.push(Event::Reasoning(text));
        }
        if let Some(raw) = delta.content {
            let text = Text::slice(body, raw);
            match text.map(|text| echoed.as_ref().and_then(|echoed| after(echoed, &text)).unwrap_or(text)) {
                Some(text) if text.is_empty() => self.empty_text = true,
                Some(text) => {
                    self.said_text = true;
                    out.push(Event::Text(text));
                }
                None => out.push(Event::Extra(Extra::Delta { name: Text::new("content"), value: Raw::slice(body, raw) })),
            }
        }
        if let Some(text) = said(delta.refusal) {
            out.push(Event::Refusal(text));
        }
        for piece in delta.tool_calls.iter().flatten() {
            self.tools.push(body, piece, whole, out);
        }
        if let Some(tokens) = self.tokens(choice.token_ids, &choice.entries, verbose) {
            out.push(Event::Tokens(tokens));
        }
        if let Some(raw) = choice.logprobs {
            let value = match self.source {
                IdSource::Entries => super::llamacpp::client_logprobs(raw, self.call.wants),
                _ if self.trims => super::llamacpp::client_logprobs(raw, self.call.wants),
                IdSource::TokenIds | IdSource::Sglang | IdSource::None => Raw::slice(body, raw),
            };
            out.push(Event::Extra(Extra::Choice { name: Text::new("logprobs"), value }));
        }
        // The stop string that was hit, or the id of a stop token; vLLM's name and SGLang's.
        let stopped =
            choice.unknown.iter().find(|(name, _)| matches!(*name, "stop_reason" | "matched_stop")).map(|(_, value)| *value);
        if let Some(stop) = said(stopped) {
            out.push(Event::StopString(stop));
        }
        extras(body, delta.unknown, out, |name, value| Extra::Delta { name, value });
        extras(body, choice.unknown, out, |name, value| Extra::Choice { name, value });
        self.begun |= out.len() > before;
        choice.finish_reason.map(|reason| FinishReason::parse(reason.trim_matches('"')))
    }

    fn tokens(&self, token_ids: Option<Vec<u32>>, entries: &[LogprobEntry], all: Option<Vec<u32>>) -> Option<Tokens> {
        if self.source == IdSource::None {
            return None;
        }
        let ids = match self.source {
            IdSource::TokenIds | IdSource::Sglang => token_ids.unwrap_or_default(),
            _ => match all.filter(|ids| !ids.is_empty()) {
                Some(ids) => ids,
                None => entries.iter().filter_map(|entry| entry.id).collect(),
            },
        };
        let logprobs: Vec<f64> = entries.iter().filter_map(|entry| entry.logprob).collect();
        (!ids.is_empty() || !logprobs.is_empty()).then_some(Tokens { ids, logprobs })
    }

    fn end(&mut self, reason: FinishReason, out: &mut Vec<Event>) {
        self.finished = true;
        if self.empty_text && !self.said_text && self.tools.is_empty() {
            out.push(Event::Text(Text::new("")));
        }
        self.tools.finish(out);
        out.push(Event::Finish(reason));
    }

    /// The failure that a server tells of inside its reply.
    fn said_error(&self, data: &[u8]) -> Failure {
        let kind = if self.begun { FailureKind::Cut } else { FailureKind::Unavailable };
        refusal::in_reply(kind, data)
    }
}

/// What stands behind the prompt in a text that repeats it.
fn after(prompt: &Text, text: &Text) -> Option<Text> {
    text.decode().strip_prefix(&*prompt.decode()).map(Text::new)
}

fn broken(message: String) -> Failure {
    Failure::new(FailureKind::Cut, message)
}

fn extras(body: &Bytes, unknown: Unknown, out: &mut Vec<Event>, extra: impl Fn(Text, Raw) -> Extra) {
    for (name, value) in unknown {
        out.push(Event::Extra(extra(Text::from_inner(name.as_bytes()), Raw::slice(body, value))));
    }
}

fn counted(usage: &CountedUsage) -> Usage {
    let prompt = usage.prompt_tokens_details.as_ref();
    let completion = usage.completion_tokens_details.as_ref();
    Usage {
        prompt_tokens: usage.prompt_tokens.unwrap_or_default(),
        completion_tokens: usage.completion_tokens.unwrap_or_default(),
        cached_tokens: prompt.and_then(|details| details.cached_tokens).unwrap_or_default(),
        reasoning_tokens: completion.and_then(|details| details.reasoning_tokens).unwrap_or_default(),
    }
}
