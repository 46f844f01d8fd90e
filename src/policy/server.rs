//! One model server as a policy: asked what it is when it is first needed, then sent calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;
use tokio::time::Instant;

use super::answer::{Reading, Source};
use super::attempt::{Begun, Post, Retries, Trouble, attempt};
use super::body::{self, Outer};
use super::config::{ConfigError, PolicyConfig, PolicyKind};
use super::decode::Decoder;
use super::gate::Gate;
use super::http::Http;
use super::images;
use super::kind::Dialect;
use super::limit;
use super::llamacpp::Prompt;
use super::names::Names;
use super::plain;
use super::probe::{Found, probe};
use super::score;
use super::version::Versions;
use super::{Answer, NoAnswer, PauseMode, Policy, PolicyState, PolicyUpdate, Prepared, Transcript};
use crate::call::{self, Call, Failure, FailureKind, Sampling, WeightVersion};

/// How soon a server that gave no answer is asked again what it is.
const PROBE_AGAIN: Duration = Duration::from_millis(200);

/// A policy of any kind.
pub(super) struct Server {
    name: String,
    config: PolicyConfig,
    http: Arc<Http>,
    versions: Arc<Versions>,
    gate: Arc<Gate>,
    /// A stream beside tools came with fewer ids than tokens: its parser swallows chunks, and whole bodies are asked for there.
    swallows: Arc<AtomicBool>,
    found: RwLock<Option<Arc<Found>>>,
    /// Held by whoever asks the server what it is, so that it is asked once; when it last gave no answer, and why.
    probing: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl Server {
    pub(super) fn new(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        let http = Arc::new(Http::new(name, config, api_key)?);
        Ok(Self::sharing(name, config.clone(), http, Arc::new(Versions::new(config.version.clone())), Arc::default()))
    }

    /// A policy whose server, weights and gate are another's too.
    pub(super) fn sharing(name: &str, config: PolicyConfig, http: Arc<Http>, versions: Arc<Versions>, gate: Arc<Gate>) -> Self {
        Self {
            name: name.to_owned(),
            config,
            http,
            versions,
            gate,
            swallows: Arc::default(),
            found: RwLock::new(None),
            probing: tokio::sync::Mutex::new(None),
        }
    }

    /// What the server is, if it has been asked.
    fn known(&self) -> Option<Arc<Found>> {
        self.found.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, found: Option<Arc<Found>>) {
        *self.found.write().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Asks anew what the server is: it is another one now.
    pub(super) fn forget(&self) {
        self.remember(None);
    }

    /// What the server is; asks it if nobody has.
    async fn found(&self) -> Result<Arc<Found>, String> {
        if let Some(found) = self.known() {
            return Ok(found);
        }
        let mut failed = self.probing.lock().await;
        if let Some(found) = self.known() {
            return Ok(found);
        }
        // Whoever waited here for another's question takes its answer, and does not wait as long again.
        if let Some((_, reason)) = failed.as_ref().filter(|(at, _)| at.elapsed() < PROBE_AGAIN) {
            return Err(reason.clone());
        }
        let found = match probe(&self.http, &self.config).await {
            Ok(found) => Arc::new(found),
            Err(reason) => {
                *failed = Some((Instant::now(), reason.clone()));
                return Err(reason);
            }
        };
        self.versions.begin(&self.http, found.kind).await;
        tracing::info!(policy.name = self.name, policy.url = self.http.base(), "policy is {found}");
        self.remember(Some(found.clone()));
        Ok(found)
    }

    /// The same, for as long as trouble is retried.
    async fn found_in_time(&self, patience: Duration) -> Result<Arc<Found>, Failure> {
        let mut retries = Retries::new(self.config.retry(patience));
        loop {
            match self.found().await {
                Ok(found) => return Ok(found),
                Err(reason) if !retries.wait(None).await => return Err(self.unreachable(&reason)),
                Err(_) => {}
            }
        }
    }

    fn unreachable(&self, reason: &str) -> Failure {
        Failure::new(FailureKind::Unavailable, format!("policy {} can't be reached: {reason}", self.name))
    }

    fn dialect(&self, found: &Found) -> Dialect {
        Dialect::new(found.kind, self.config.tokens, self.swallows.load(Ordering::Relaxed))
    }

    /// Writes a call's request.
    fn body(&self, call: &Call, names: &Names, found: &Found, sampling: &Sampling, max_tokens: Option<u64>) -> (Bytes, bool) {
        let dialect = self.dialect(found);
        let stream = dialect.stream(call);
        let added = dialect.added(call, self.config.top_logprobs);
        let model = found.model.as_deref().unwrap_or(&call.model);
        let outer = Outer { model, stream, sampling, repetition: dialect.repetition(), max_tokens, added: &added };
        (body::write(call, names, dialect.reasoning(), &outer).into(), stream)
    }

    /// How many tokens a call's prompt has, by the server's own count; `None` if it gives none.
    async fn counted(&self, call: &Call, names: &Names, found: &Found) -> Option<u64> {
        let (dialect, model) = (self.dialect(found), found.model.as_deref().unwrap_or(&call.model));
        if let Some(prompt) = &call.prompt {
            return plain::count(&self.http, found.kind, model, call, prompt).await;
        }
        match found.kind {
            PolicyKind::Vllm => limit::count(&self.http, body::write_tokenize(call, names, dialect.reasoning(), model)).await,
            PolicyKind::Llamacpp => {
                let template = body::write_template(call, names, dialect.reasoning());
                let known = Prompt::ask(self.http.clone(), template.into()).answer().await.map(|known| known.ids.clone());
                known.and_then(Result::ok).map(|ids| ids.len() as u64)
            }
            PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => None,
        }
    }

    /// What was prepared, with another limit.
    fn limited(&self, prepared: &mut Prepared, names: &Names, found: &Found, limit: Option<u64>, why: &str) {
        let asked = prepared.max_tokens_used;
        prepared.body = self.body(&prepared.call, names, found, &prepared.sampling_used, limit).0;
        prepared.max_tokens_used = limit;
        prepared.notes.push(limit::note(asked, limit, why));
    }
}

#[async_trait]
impl Policy for Server {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> String {
        match self.known() {
            Some(found) => format!("{found} at {}", self.http.base()),
            None => format!("not reached yet, at {}", self.http.base()),
        }
    }

    fn state(&self) -> PolicyState {
        let (paused, in_flight) = self.gate.read();
        PolicyState { url: self.http.base(), version: self.versions.known(), paused, in_flight }
    }

    async fn paused(&self, now: bool) -> bool {
        self.gate.paused(now).await
    }

    async fn window(&self) -> Option<u64> {
        self.found().await.ok()?.window
    }

    fn update(&self, update: PolicyUpdate) -> Result<(), Failure> {
        if update.mode == Some(PauseMode::Resume) {
            let message =
                format!("policy {}: replies can be resumed only with tokens = \"exact\"; pause it with another mode", self.name);
            return Err(Failure::invalid("mode", message));
        }
        self.gate.update(&self.http, &self.versions, &update)?;
        if update.url.is_some() {
            self.forget();
        }
        Ok(())
    }

    fn recall(&self, last: &WeightVersion) {
        self.versions.recall(last);
    }

    async fn ready(&self) -> Result<(), Failure> {
        // Asked anew: a server that was there may be gone.
        let found = probe(&self.http, &self.config).await;
        found.map_err(|reason| self.unreachable(&reason))?;
        self.found().await.map(drop).map_err(|reason| self.unreachable(&reason))
    }

    async fn models(&self) -> Result<Bytes, Failure> {
        match self.http.get("/v1/models").await {
            Ok((200, body)) => Ok(body),
            Ok((status, _)) => Err(self.unreachable(&format!("/v1/models answers with status {status}"))),
            Err(error) => Err(self.unreachable(&error.to_string())),
        }
    }

    async fn count(&self, call: &Call) -> Result<u64, Failure> {
        let found = self.found_in_time(Duration::ZERO).await?;
        let names = Names::of(call);
        let counted = self.counted(call, &names, &found).await;
        // Four bytes a token is what English text and code come to.
        let guess = || match &call.prompt {
            Some(call::Prompt::Text(text)) => text.inner().len(),
            _ => body::write_template(call, &names, self.dialect(&found).reasoning()).len(),
        };
        Ok(counted.unwrap_or_else(|| (guess() as u64).div_ceil(4)))
    }

    async fn prepare(
        &self,
        call: &Arc<Call>,
        pinned: &Sampling,
        _transcript: &Transcript,
        patience: Duration,
    ) -> Result<Prepared, Failure> {
        images::check(call, self.config.image_urls, &self.name)?;
        let found = self.found_in_time(patience).await?;
        let names = Names::of(call);
        let sampling_used = call.sampling.with_others(&call.rest).pinned_by(&self.config.sampling).pinned_by(pinned);
        let mut notes = Vec::new();
        let mut max_tokens_used = call.max_tokens;
        // No prompt is empty, so that even the longest limit leaves a token for it.
        if let (Some(asked), Some(window)) = (call.max_tokens, found.window) {
            let most = window.saturating_sub(1).max(1);
            if asked > most {
                max_tokens_used = Some(most);
                notes.push(limit::note(Some(asked), max_tokens_used, &format!("the window is {window}")));
            }
        }
        let (body, stream) = self.body(call, &names, &found, &sampling_used, max_tokens_used);
        if call.stream && !stream {
            notes.push("asked unstreamed: in a stream this server keeps back tokens that it sampled".to_owned());
        }
        Ok(Prepared { body, stream, sampling_used, max_tokens_used, notes, call: call.clone(), prompt: None, patience })
    }

    async fn score(&self, ids: &[u32]) -> Result<Vec<Option<f64>>, Failure> {
        let found = self.found_in_time(Duration::ZERO).await?;
        let scores = score::score(&self.name, &self.http, &found, ids).await?;
        // Whoever compares scores must know whose they are.
        self.versions.current(&self.http).await;
        Ok(scores)
    }

    async fn send(&self, prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer> {
        let nothing = |failure| NoAnswer { failure, response: Bytes::new() };
        let passed = self.gate.pass(&self.name, self.config.pause()).await.map_err(nothing)?;
        let found = self.found_in_time(prepared.patience).await.map_err(nothing)?;
        let dialect = self.dialect(&found);
        let names = Names::of(&prepared.call);
        let mut sent = prepared.clone();
        let mut changed = false;
        let model = found.model.as_deref().unwrap_or(&prepared.call.model);
        let echo = plain::echo(&self.http, found.kind, model, &prepared.call).await;
        let echo = echo.map_err(nothing)?;
        let mut prompt = Prompt::None;
        if dialect.asks_prompt() {
            prompt = match &prepared.call.prompt {
                None => {
                    let template = body::write_template(&prepared.call, &names, dialect.reasoning());
                    Prompt::ask(self.http.clone(), template.into())
                }
                Some(call::Prompt::Text(text)) => Prompt::ask_of(self.http.clone(), text.clone()),
                Some(call::Prompt::Ids(ids)) => Prompt::known(ids.clone()),
            };
            if let Some(left) = limit::left_by_prompt(&mut prompt, &sent, found.window).await {
                self.limited(&mut sent, &names, &found, Some(left), "the prompt leaves no more");
                changed = true;
            }
        }
        let mut retries = Retries::new(self.config.retry(prepared.patience));
        let mut relimited = false;
        let begun = loop {
            let timeout = self.config.first_byte_timeout();
            match prompt.beside(attempt(&self.http, Post::of(&sent), timeout)).await {
                Ok(begun) => break begun,
                Err(Trouble::Again(no_answer, after)) => {
                    if !retries.wait(after).await {
                        // Whatever comes back may be another server.
                        self.remember(None);
                        return Err(no_answer);
                    }
                }
                Err(Trouble::Final(no_answer)) => {
                    if relimited || !dialect.refuses_long() || no_answer.failure.kind != FailureKind::ContextOverflow {
                        if no_answer.failure.status == 404 {
                            self.remember(None);
                        }
                        return Err(no_answer);
                    }
                    let count = self.counted(&prepared.call, &names, &found);
                    let Some(limit) = limit::left_after(&no_answer, &sent, count).await else {
                        return Err(no_answer);
                    };
                    relimited = true;
                    changed = true;
                    self.limited(&mut sent, &names, &found, limit, "the server said that the prompt leaves no more");
                }
            }
        };
        let mut decoder = Decoder::new(&sent.call, names, dialect.source(&sent.call), echo, self.config.max_event_bytes);
        decoder.trims = self.config.top_logprobs > sent.call.wants.top_logprobs.unwrap_or(0) && sent.call.prompt.is_none();
        let source = match begun {
            Begun::Stream(response, first) => Source::Stream { response, first: Some(first) },
            Begun::Whole(body) => Source::Whole(Some(body)),
        };
        if matches!(source, Source::Whole(_)) && sent.stream {
            decoder.notes.push("the server answered with a whole body where a stream was asked for".to_owned());
        }
        let reading = Reading {
            http: self.http.clone(),
            versions: self.versions.clone(),
            dialect,
            source,
            decoder,
            prompt,
            declared: self.config.logprob_kind(),
            prepared: sent,
            changed,
            swallows: self.swallows.clone(),
            _passed: passed,
        };
        Ok(Box::new(reading))
    }
}
