//! A reply on its way: bytes in, events out, and at the end what its tokens are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::Response;

use super::capture;
use super::decode::Decoder;
use super::gate::Passed;
use super::http::{Http, HttpError, next_chunk};
use super::kind::Dialect;
use super::llamacpp::Prompt;
use super::version::Versions;
use super::{Answer, Captured, Prepared};
use crate::call::{Event, Failure, FailureKind, LogprobKind, Reply};

/// How long the end of a connection's answer is waited for after the stream said that it is over, so that the connection can
/// serve again.
pub(super) const TAIL: Duration = Duration::from_millis(10);

/// Where the bytes come from.
pub(super) enum Source {
    Stream { response: Response, first: Option<Bytes> },
    Whole(Option<Bytes>),
}

/// A reply that has begun.
pub(super) struct Reading {
    pub http: Arc<Http>,
    pub versions: Arc<Versions>,
    pub dialect: Dialect,
    pub source: Source,
    pub decoder: Decoder,
    pub prompt: Prompt,
    /// What the config says of the server's log-probabilities.
    pub declared: Option<LogprobKind>,
    pub prepared: Prepared,
    /// What was sent is not what was prepared.
    pub changed: bool,
    /// To be set when a stream is found to keep ids back.
    pub swallows: Arc<AtomicBool>,
    /// The call counts as in flight until its reply is read.
    pub _passed: Passed,
}

#[async_trait]
impl Answer for Reading {
    async fn next(&mut self, events: &mut Vec<Event>) -> Result<Option<Bytes>, Failure> {
        let (response, first) = match &mut self.source {
            Source::Whole(body) => {
                let Some(body) = body.take() else { return Ok(None) };
                self.decoder.whole(&body, events)?;
                return Ok(Some(body));
            }
            Source::Stream { response, first } => (response, first.take()),
        };
        if self.decoder.is_done() {
            // What still comes is the end of the answer's framing; nobody reads on after `[DONE]`.
            let tail = tokio::time::timeout(TAIL, response.chunk()).await;
            return Ok(tail.ok().and_then(Result::ok).flatten());
        }
        let chunk = match first {
            Some(first) => Some(first),
            None => self.prompt.beside(next_chunk(response, self.http.idle)).await.map_err(|error| broken(&error))?,
        };
        match &chunk {
            Some(bytes) => self.decoder.push(bytes, events)?,
            None => self.decoder.finish(events)?,
        }
        Ok(chunk)
    }

    async fn capture(&mut self, reply: &Reply) -> Captured {
        let told = self.versions.told(&self.decoder.weight_versions);
        let (version, runs) = match told {
            Some(told) => told,
            None => (self.versions.current(&self.http).await, Vec::new()),
        };
        let (prompt, prompt_raw) = if let Some(known) = self.prompt.answer().await {
            (known.ids.clone(), known.raw.clone())
        } else {
            let ids = reply.prompt_ids.clone();
            (ids.ok_or_else(|| "the server gave no prompt ids".to_owned()), Bytes::new())
        };
        let held = self.decoder.grammar_held(reply);
        let mut capture = capture::of(self.dialect, self.declared, &self.prepared, held, prompt, reply);
        if self.dialect.blind().is_none() {
            capture.runs = runs;
        }
        self.notice_swallowed(reply);
        Captured { capture, version, prompt_raw }
    }

    fn amended(&self) -> Option<Prepared> {
        if !self.changed && self.decoder.notes.is_empty() {
            return None;
        }
        let mut prepared = self.prepared.clone();
        prepared.notes.extend_from_slice(&self.decoder.notes);
        Some(prepared)
    }
}

impl Reading {
    /// Notices a stream that gave fewer ids than it sampled although tools' parsers are all that can have kept them back.
    fn notice_swallowed(&mut self, reply: &Reply) {
        let short = reply.usage.is_some_and(|usage| (reply.tokens.ids.len() as u64) < usage.completion_tokens);
        if short && self.prepared.stream && !self.prepared.call.tools.is_empty() && self.dialect.may_swallow() {
            self.swallows.store(true, Ordering::Relaxed);
            self.decoder.notes.push(
                "this server keeps ids back in streams beside tools: calls with tools are asked unstreamed from now on"
                    .to_owned(),
            );
        }
    }
}

/// What it means for a reply that its bytes end.
pub(super) fn broken(error: &HttpError) -> Failure {
    match error {
        HttpError::Silent(_) => Failure::new(FailureKind::TimedOut, format!("the reply stalled: {error}")),
        _ => Failure::new(FailureKind::Cut, format!("the reply broke off: {error}")),
    }
}
