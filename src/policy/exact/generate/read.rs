//! Reads what a generate endpoint says: a stream fed as it comes, or a whole body.

use bytes::Bytes;

use super::{Endpoint, llamacpp, sglang, vllm};
use crate::call::{Failure, FailureKind};
use crate::policy::capture::NO_LOGPROB;
use crate::policy::chunk::VersionSpan;
use crate::policy::refusal;
use crate::wire::sse;

/// What one event of a stream, or a whole body, says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::policy::exact) struct Said {
    /// The tokens that are new.
    pub ids: Vec<u32>,
    /// One for each of them, or fewer where the server lost some.
    pub logprobs: Vec<f64>,
    /// The ids that the log-probabilities are of, where the server says so.
    pub logprob_ids: Vec<u32>,
    /// For each log-probability the likeliest tokens, if the client wants them.
    pub alternatives: Vec<Vec<Alternative>>,
    /// What the tokens read as, where the server says that.
    pub text: Option<String>,
    /// The server's counts so far.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub ended: Option<Ended>,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// Which weights sampled which of all tokens so far.
    pub versions: Vec<VersionSpan>,
}

/// A token that could have been sampled.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::policy::exact) struct Alternative {
    pub id: Option<u32>,
    pub text: Option<String>,
    pub logprob: f64,
}

/// Why the server ended its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy::exact) enum Ended {
    Stop,
    Length,
}

/// A log-probability as it was said; what stands for none is minus infinity, which no check lets pass.
pub(super) fn logprob(said: f64) -> f64 {
    if said <= NO_LOGPROB { f64::NEG_INFINITY } else { said }
}

/// Reads one answer.
pub(in crate::policy::exact) struct Reader {
    endpoint: Endpoint,
    /// The client wants log-probabilities with alternatives.
    alternatives: bool,
    events: sse::Decoder,
    scratch: Vec<sse::ServerEvent>,
    begun: bool,
    ended: bool,
    done: bool,
}

impl Reader {
    /// A reader of an answer from `endpoint` with events of at most `limit` bytes.
    pub(in crate::policy::exact) fn new(endpoint: Endpoint, alternatives: bool, limit: usize) -> Self {
        Self {
            endpoint,
            alternatives,
            events: sse::Decoder::new(limit),
            scratch: Vec::new(),
            begun: false,
            ended: false,
            done: false,
        }
    }

    /// Whether the stream has said that it is over.
    pub(in crate::policy::exact) fn is_done(&self) -> bool {
        self.done
    }

    /// Takes the next bytes of a stream. What was read before a failure counts.
    pub(in crate::policy::exact) fn push(&mut self, bytes: &Bytes, out: &mut Vec<Said>) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.scratch);
        let fed = self.events.push(bytes, &mut events);
        let read = events.drain(..).try_for_each(|event| self.event(&event, out));
        self.scratch = events;
        read?;
        fed.map_err(|error| cut(error.to_string()))
    }

    /// Takes the end of a stream.
    pub(in crate::policy::exact) fn finish(&mut self, out: &mut Vec<Said>) -> Result<(), Failure> {
        if let Some(last) = self.events.finish().map_err(|error| cut(error.to_string()))? {
            self.event(&last, out)?;
        }
        self.done = true;
        if self.ended { Ok(()) } else { Err(cut("the stream ended before the reply did".to_owned())) }
    }

    /// Takes a whole body.
    pub(in crate::policy::exact) fn whole(&mut self, body: &Bytes, out: &mut Vec<Said>) -> Result<(), Failure> {
        self.data(body, out)?;
        self.done = true;
        if self.ended { Ok(()) } else { Err(cut("the server's answer does not say why it ended".to_owned())) }
    }

    fn event(&mut self, event: &sse::ServerEvent, out: &mut Vec<Said>) -> Result<(), Failure> {
        let data = event.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        if data == b"[DONE]" {
            self.done = true;
            return if self.ended { Ok(()) } else { Err(cut("the stream ended before the reply did".to_owned())) };
        }
        self.data(&event.data, out)
    }

    fn data(&mut self, data: &Bytes, out: &mut Vec<Said>) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(data);
        let heard = match self.endpoint {
            Endpoint::VllmGenerate | Endpoint::VllmCompletions => vllm::read(&text, self.alternatives),
            Endpoint::Sglang { .. } => sglang::read(&text, self.alternatives),
            Endpoint::Llamacpp => llamacpp::read(&text, self.alternatives),
        };
        let (said, aborted) = match heard {
            Some(Heard::Said(said)) => (said, None),
            Some(Heard::Aborted(said, why)) => (said, Some(why)),
            Some(Heard::Failed) => return Err(refusal::in_reply(self.kind(), data)),
            None => {
                let start: String = text.chars().take(80).collect();
                return Err(cut(format!("the server sent something that is no reply: {start:?}")));
            }
        };
        self.take(said, out);
        aborted.map_or(Ok(()), |why| Err(cut(format!("the server broke the reply off: {why}"))))
    }

    fn take(&mut self, said: Said, out: &mut Vec<Said>) {
        self.begun |= !said.ids.is_empty();
        self.ended |= said.ended.is_some();
        out.push(said);
    }

    /// What a failure told inside a reply is: before anything was sampled, as if nothing had come.
    fn kind(&self) -> FailureKind {
        if self.begun { FailureKind::Cut } else { FailureKind::Unavailable }
    }
}

/// What a piece of JSON was.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Said(Said),
    /// The server told of an error.
    Failed,
    /// The server gave the reply up (an operator's or a trainer's wish), after what it said; and why.
    Aborted(Said, String),
}

fn cut(message: String) -> Failure {
    Failure::new(FailureKind::Cut, message)
}
