//! Token in, token out: Gleaner renders the chat template and tokenizes, sends ids to the server's generate endpoint, takes ids back,
//! and reads reasoning and tool calls itself. What was sampled before is put into the next prompt as it was sampled.
//!
//! ```text
//! Call -> prompt::make (model: template, tokenizer; Transcript: what to splice) -> generate::write -> a server (replicas)
//! Events <- parse::Parser (reasoning, text, tool calls) <- detokenizer <- generate::Reader <--------- another, if that one dies
//! ```
//! `contact` knows servers and model, `flow` is one reply on its way through them, `tally` counts its tokens.
//!
//! Where in its ids a server puts an image only the server knows: a call with one is had by the server's own tokens.

mod answer;
mod contact;
mod flow;
mod generate;
mod model;
mod parse;
mod prompt;
mod prompts;
mod replicas;
mod speech;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;

pub use prompts::Prompts;

use super::config::{ConfigError, PolicyConfig, PolicyKind, TokenMode};
use super::images;
use super::limit;
use super::names::Names;
use super::score;
use super::server::Server;
use super::{Answer, NoAnswer, Policy, PolicyState, PolicyUpdate, Prepared, Transcript};
use crate::call::{Call, Failure, FailureKind, Sampling, WeightVersion};

use answer::Reading;
use contact::{Contact, Opened, Request};
use flow::Flow;
use speech::Speech;

/// A policy that is sent token ids.
pub(super) struct Exact {
    contact: Arc<Contact>,
    /// The first server, by its own tokens: for calls with images.
    by_server: Server,
}

/// What is said of a call that was not sent as ids.
const BY_SERVER: &str =
    "it has an image, whose ids only the server knows: it was asked as chat completions, with the server's own tokens";

impl Exact {
    pub(super) fn new(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        if config.kind == PolicyKind::Openai {
            return Err(ConfigError::TakesNoIds { name: name.to_owned(), kind: "openai" });
        }
        let contact = Arc::new(Contact::new(name, config, api_key)?);
        let own = PolicyConfig { tokens: TokenMode::Server, ..config.clone() };
        let http = contact.replicas.first().http.clone();
        let by_server = Server::sharing(name, own, http, contact.versions.clone(), contact.gate.clone());
        Ok(Self { contact, by_server })
    }

    fn request(&self, prepared: &Prepared, opened: &Opened) -> Result<Request, Failure> {
        let unmade = || {
            Failure::new(
                FailureKind::Unavailable,
                format!("policy {} was sent a call that it did not prepare", self.contact.name),
            )
        };
        let wants = prepared.call.wants;
        let asked = wants.top_logprobs.filter(|_| wants.logprobs);
        Ok(Request {
            call: prepared.call.clone(),
            prompt: prepared.prompt.clone().ok_or_else(unmade)?,
            sampling: prepared.sampling_used.clone(),
            max_tokens: prepared.max_tokens_used,
            text: opened.model.detokenizer().is_none(),
            alternatives: asked.unwrap_or(0).max(self.contact.config.top_logprobs),
            patience: prepared.patience,
        })
    }
}

#[async_trait]
impl Policy for Exact {
    fn name(&self) -> &str {
        &self.contact.name
    }

    fn describe(&self) -> String {
        match self.contact.known() {
            Some(opened) => self.contact.describe_opened(&opened),
            None => format!("not reached yet, at {}", self.contact.url()),
        }
    }

    fn state(&self) -> PolicyState {
        let (paused, in_flight) = self.contact.gate.read();
        PolicyState { url: self.contact.url(), version: self.contact.versions.known(), paused, in_flight }
    }

    async fn paused(&self, now: bool) -> bool {
        self.contact.gate.paused(now).await
    }

    async fn window(&self) -> Option<u64> {
        self.contact.opened().await.ok()?.served.found.window
    }

    fn update(&self, update: PolicyUpdate) -> Result<(), Failure> {
        self.contact.update(&update)?;
        if update.url.is_some() {
            self.by_server.forget();
        }
        Ok(())
    }

    fn recall(&self, last: &WeightVersion) {
        self.contact.versions.recall(last);
    }

    fn splices(&self) -> bool {
        true
    }

    async fn ready(&self) -> Result<(), Failure> {
        self.contact.reachable().await?;
        self.contact.opened().await.map(drop)
    }

    async fn models(&self) -> Result<Bytes, Failure> {
        let mut reason = String::new();
        for replica in self.contact.replicas.all() {
            match replica.http.get("/v1/models").await {
                Ok((200, body)) => return Ok(body),
                Ok((status, _)) => reason = format!("/v1/models answers with status {status}"),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(Failure::new(FailureKind::Unavailable, format!("policy {} can't be reached: {reason}", self.contact.name)))
    }

    async fn count(&self, call: &Call) -> Result<u64, Failure> {
        let opened = self.contact.opened_in_time(Duration::ZERO).await?;
        if prompt::image(call).is_some() {
            return self.by_server.count(call).await;
        }
        let (names, transcript) = (Names::of(call), Transcript::default());
        let made = prompt::make(&opened.model, &self.contact.config, call, &names, &transcript, &mut Vec::new()).await?;
        Ok(made.ids.len() as u64)
    }

    async fn prepare(
        &self,
        call: &Arc<Call>,
        pinned: &Sampling,
        transcript: &Transcript,
        patience: Duration,
    ) -> Result<Prepared, Failure> {
        let config = &self.contact.config;
        images::check(call, config.image_urls, &self.contact.name)?;
        let opened = self.contact.opened_in_time(patience).await?;
        if prompt::image(call).is_some() {
            let mut prepared = self.by_server.prepare(call, pinned, transcript, patience).await?;
            prepared.notes.push(BY_SERVER.to_owned());
            return Ok(prepared);
        }
        let mut notes = Vec::new();
        let made = prompt::make(&opened.model, config, call, &Names::of(call), transcript, &mut notes).await?;
        let served = &*opened.served;
        let max_tokens_used = limit_behind(call, made.ids.len() as u64, served.found.window, &mut notes)?;
        let mut prepared = Prepared {
            body: Bytes::new(),
            stream: false,
            sampling_used: call.sampling.with_others(&call.rest).pinned_by(&config.sampling).pinned_by(pinned),
            max_tokens_used,
            notes,
            call: call.clone(),
            prompt: Some(Arc::new(made)),
            patience,
        };
        let request = self.request(&prepared, &opened)?;
        let written = request.written(served, &[]);
        prepared.notes.extend(written.notes);
        prepared.body = written.body;
        prepared.stream = request.streams(served);
        if let Some(why) = served.endpoint.unstreamed().filter(|_| call.stream) {
            prepared.notes.push(why.to_owned());
        }
        Ok(prepared)
    }

    async fn score(&self, ids: &[u32]) -> Result<Vec<Option<f64>>, Failure> {
        let opened = self.contact.opened_in_time(Duration::ZERO).await?;
        let (lease, served) = self.contact.any_agreed(&opened, ids).await?;
        let scores = score::score(&self.contact.name, &lease.0.http, &served.found, ids).await?;
        // Whoever compares scores must know whose they are.
        self.contact.weights(&lease.0).await;
        Ok(scores)
    }

    async fn send(&self, prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer> {
        if prepared.prompt.is_none() {
            return self.by_server.send(prepared).await;
        }
        let unsent = |failure| NoAnswer { failure, response: Bytes::new() };
        let passed = self.contact.pass().await.map_err(unsent)?;
        let opened = self.contact.opened_in_time(prepared.patience).await.map_err(unsent)?;
        let request = self.request(prepared, &opened).map_err(unsent)?;
        let begin = self.contact.begin(&opened, &request, &[], Vec::new(), Some(prepared.body.clone())).await?;
        let parser = opened.parsers.begin(&request.call, Names::of(&request.call), &request.prompt.ending);
        let speech = Speech::new(&request.call, &opened.model, &request.sampling, parser);
        Ok(Box::new(Reading::new(Flow::new(self.contact.clone(), opened, request, speech, prepared.clone(), begin, passed))))
    }
}

/// The limit of a reply behind a prompt of so many tokens.
fn limit_behind(call: &Call, prompt: u64, window: Option<u64>, notes: &mut Vec<String>) -> Result<Option<u64>, Failure> {
    let Some(window) = window else { return Ok(call.max_tokens) };
    if prompt >= window {
        let message =
            format!("This model's maximum context length is {window} tokens. However, your request has {prompt} input tokens.");
        return Err(Failure::new(FailureKind::ContextOverflow, message));
    }
    let left = window - prompt;
    match call.max_tokens {
        Some(asked) if asked > left => {
            notes.push(limit::note(Some(asked), Some(left), &format!("the prompt leaves no more of the window of {window}")));
            Ok(Some(left))
        }
        asked => Ok(asked),
    }
}
