//! A policy's servers and its model: found out when they are first needed, checked, and asked for replies.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use secrecy::SecretString;
use tokio::time::Instant;

use super::generate::{Asked, Unfit, Written, write};
use super::model::{Model, ModelError};
use super::parse::Parsers;
use super::replicas::{Lease, Replica, Replicas, Served};
use crate::call::{Call, Failure, FailureKind, Sampling, WeightVersion};
use crate::policy::attempt::{Begun, Post, Retries, Trouble, attempt};
use crate::policy::config::{ConfigError, PolicyConfig};
use crate::policy::gate::{Gate, Passed};
use crate::policy::http::Route;
use crate::policy::version::Versions;
use crate::policy::{NoAnswer, PolicyUpdate, Prompted};

/// How soon a server that gave no answer is asked again what it is, and one that does not fit.
const AGAIN: Duration = Duration::from_millis(200);
const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// What calls of one policy share.
pub(super) struct Contact {
    pub name: String,
    pub config: PolicyConfig,
    pub replicas: Replicas,
    pub versions: Arc<Versions>,
    pub gate: Arc<Gate>,
    opened: RwLock<Option<Arc<Opened>>>,
    /// Held by whoever opens the model, so that it is opened once; when that last failed, and why.
    opening: tokio::sync::Mutex<Option<(Instant, Unopened)>>,
}

/// A model that agrees with the server's.
pub(super) struct Opened {
    pub model: Model,
    pub parsers: Parsers,
    /// What the server is that it was compared with.
    pub served: Arc<Served>,
}

/// Why there is no model.
#[derive(Clone)]
struct Unopened {
    /// It may be there in a moment.
    soon: bool,
    failure: Failure,
}

/// A reply that is asked for, wherever it will come from.
pub(super) struct Request {
    pub call: Arc<Call>,
    pub prompt: Arc<Prompted>,
    pub sampling: Sampling,
    pub max_tokens: Option<u64>,
    /// The server must say what the tokens read as.
    pub text: bool,
    /// How many of the likeliest tokens are wanted with each.
    pub alternatives: u32,
    /// As of what was prepared.
    pub patience: Duration,
}

impl Request {
    /// The request as this server takes it, for a reply of which some tokens are there.
    pub(super) fn written(&self, served: &Served, sampled: &[u32]) -> Written {
        let asked = Asked {
            call: &self.call,
            model: served.found.model.as_deref().unwrap_or(&self.call.model),
            prompt: &self.prompt.ids,
            sampled,
            sampling: &self.sampling,
            max_tokens: self.max_tokens.map(|limit| limit.saturating_sub(sampled.len() as u64)),
            stream: self.streams(served),
            text: self.text,
            alternatives: self.alternatives,
        };
        write(served.endpoint, &asked)
    }

    pub(super) fn streams(&self, served: &Served) -> bool {
        self.call.stream && served.endpoint.unstreamed().is_none()
    }
}

/// A reply that has begun.
pub(super) struct Begin {
    pub lease: Lease,
    pub served: Arc<Served>,
    pub begun: Begun,
    pub body: Bytes,
}

impl Contact {
    pub(super) fn new(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        Ok(Self {
            name: name.to_owned(),
            config: config.clone(),
            replicas: Replicas::new(name, config, api_key)?,
            versions: Arc::new(Versions::new(config.version.clone())),
            gate: Arc::default(),
            opened: RwLock::new(None),
            opening: tokio::sync::Mutex::new(None),
        })
    }

    /// The model, if it is open.
    pub(super) fn known(&self) -> Option<Arc<Opened>> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model; opens it if nobody has.
    pub(super) async fn opened(&self) -> Result<Arc<Opened>, Failure> {
        self.open().await.map_err(|unopened| unopened.failure)
    }

    /// The same, for as long as trouble is retried.
    pub(super) async fn opened_in_time(&self, patience: Duration) -> Result<Arc<Opened>, Failure> {
        let mut retries = Retries::new(self.config.retry(patience));
        loop {
            match self.open().await {
                Ok(opened) => return Ok(opened),
                Err(unopened) if !unopened.soon || !retries.wait(None).await => return Err(unopened.failure),
                Err(_) => {}
            }
        }
    }

    /// Waits while the policy is paused.
    pub(super) async fn pass(&self) -> Result<Passed, Failure> {
        self.gate.pass(&self.name, self.config.pause()).await
    }

    /// Whether a server answers now: one that was there may be gone.
    pub(super) async fn reachable(&self) -> Result<(), Failure> {
        let mut reasons = Vec::new();
        for replica in self.replicas.all() {
            match replica.asked_anew().await {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(self.unreachable(&reasons.join("; ")).failure)
    }

    /// Compares model and server anew before the next call: something in a reply says that they are not the same any more.
    pub(super) fn doubt(&self, why: &str) {
        tracing::warn!(policy.name = self.name, "the policy's model is checked anew: {why}");
        self.forget();
    }

    /// Takes a model that is open.
    #[cfg(test)]
    pub(super) fn put(&self, opened: Arc<Opened>) {
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
    }

    async fn open(&self) -> Result<Arc<Opened>, Unopened> {
        if let Some(opened) = self.known() {
            return Ok(opened);
        }
        let mut failed = self.opening.lock().await;
        if let Some(opened) = self.known() {
            return Ok(opened);
        }
        // Whoever waited here for another's question takes its answer, and does not wait as long again.
        if let Some((at, unopened)) = failed.as_ref() {
            let again = if unopened.soon { AGAIN } else { REFUSED_AGAIN };
            if at.elapsed() < again {
                return Err(unopened.clone());
            }
        }
        match self.open_at_first().await {
            Ok(opened) => {
                let opened = Arc::new(opened);
                tracing::info!(policy.name = self.name, "policy is {}", self.describe_opened(&opened));
                *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
                *failed = None;
                Ok(opened)
            }
            Err(unopened) => {
                *failed = Some((Instant::now(), unopened.clone()));
                Err(unopened)
            }
        }
    }

    /// Opens the model at the first server that answers and has it.
    async fn open_at_first(&self) -> Result<Opened, Unopened> {
        let (mut silent, mut refused) = (Vec::new(), Vec::new());
        for replica in self.replicas.all() {
            match self.open_at(replica).await {
                Ok(opened) => return Ok(opened),
                Err(Unfit::Unreachable(reason)) => silent.push(reason),
                // What is wrong with the model's files is so at every server.
                Err(Unfit::Kind(reason)) if refused.contains(&reason) => {}
                Err(Unfit::Kind(reason)) => refused.push(reason),
            }
        }
        if refused.is_empty() {
            return Err(self.unreachable(&silent.join("; ")));
        }
        let soon = !silent.is_empty();
        refused.append(&mut silent);
        Err(Unopened { soon, failure: self.refused(&refused.join("; ")) })
    }

    async fn open_at(&self, replica: &Arc<Replica>) -> Result<Opened, Unfit> {
        let served = replica.served().await?;
        let model = Model::open(&self.config, &replica.http, &served.found).await.map_err(|error| self.unfit(replica, error))?;
        let named = served.found.model.as_deref().unwrap_or_default();
        let parsers = Parsers::choose(&self.name, &self.config, model.template(), named);
        let parsers = parsers.map_err(|error| Unfit::Kind(error.to_string()))?;
        self.versions.begin(&replica.http, served.found.kind).await;
        Ok(Opened { model, parsers, served })
    }

    /// A server that has the model, at which the fewest calls run or the prompt's beginning is known, and what it is.
    ///
    /// # Errors
    /// If there is none.
    pub(super) async fn any_agreed(&self, opened: &Opened, prompt: &[u32]) -> Result<(Lease, Arc<Served>), Failure> {
        let (mut but, mut reasons) = (Vec::new(), Vec::new());
        while let Some(lease) = self.replicas.pick(prompt, &but) {
            match self.agreed(&lease.0, opened).await {
                Ok(served) => return Ok((lease, served)),
                Err(reason) => reasons.push(reason),
            }
            lease.0.is_in_trouble();
            but.push(lease.0.clone());
        }
        Err(Failure::new(FailureKind::Unavailable, format!("policy {} has no server to ask: {}", self.name, reasons.join("; "))))
    }

    /// What a server is that is to sample for this model; why it may not, if it may not.
    async fn agreed(&self, replica: &Replica, opened: &Opened) -> Result<Arc<Served>, String> {
        let unreachable = |reason: String| format!("the policy can't be reached: {reason}");
        let served = match replica.served().await {
            Ok(served) => served,
            Err(Unfit::Unreachable(reason) | Unfit::Kind(reason)) => return Err(unreachable(reason)),
        };
        // The one that the model was opened at was compared then.
        if Arc::ptr_eq(&served, &opened.served) {
            return Ok(served);
        }
        match served.agrees(&opened.model, &replica.http).await.map_err(|error| self.unfit(replica, error)) {
            Ok(()) => Ok(served),
            Err(Unfit::Unreachable(reason)) => Err(unreachable(reason)),
            Err(Unfit::Kind(reason)) => {
                let failure = self.refused(&reason);
                tracing::warn!(policy.name = self.name, policy.url = replica.http.base(), "a server is passed over: {failure}");
                Err(failure.message)
            }
        }
    }

    /// Why a server can't be used with a model.
    fn unfit(&self, replica: &Replica, error: ModelError) -> Unfit {
        match error {
            ModelError::Unreachable(reason) => Unfit::Unreachable(reason),
            ModelError::Mismatch(reason) if self.replicas.all().len() > 1 => {
                Unfit::Kind(format!("{}: {reason}", replica.http.base()))
            }
            error => Unfit::Kind(error.to_string()),
        }
    }

    fn unreachable(&self, reason: &str) -> Unopened {
        let failure = Failure::new(FailureKind::Unavailable, format!("policy {} can't be reached: {reason}", self.name));
        Unopened { soon: true, failure }
    }

    fn refused(&self, reason: &str) -> Failure {
        let message = format!("policy {} can't serve with tokens = \"exact\": {reason}", self.name);
        Failure::new(FailureKind::Unavailable, message)
    }

    /// The weights that a server says it holds now.
    pub(super) async fn weights(&self, replica: &Replica) -> WeightVersion {
        if self.replicas.all().len() > 1 {
            self.versions.of(&replica.http).await
        } else {
            self.versions.current(&replica.http).await
        }
    }

    /// The weights of a server's last reply that said so, for one that can't be asked now.
    pub(super) fn weights_at_last(&self, replica: &Replica) -> WeightVersion {
        let last = replica.last_version.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.unwrap_or_else(|| self.versions.known())
    }

    /// The first server's address.
    pub(super) fn url(&self) -> String {
        self.replicas.first().http.base()
    }

    /// Does what an update says; only the first server can be moved.
    pub(super) fn update(&self, update: &PolicyUpdate) -> Result<(), Failure> {
        self.gate.update(&self.replicas.first().http, &self.versions, update)?;
        if update.url.is_some() {
            self.forget();
        }
        Ok(())
    }

    fn forget(&self) {
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = None;
        for replica in self.replicas.all() {
            replica.forget();
        }
    }

    /// What was found out, for the log and the API.
    pub(super) fn describe_opened(&self, opened: &Opened) -> String {
        let all = self.replicas.all();
        let url = self.url();
        let others = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
        let parsers = opened.parsers.describe();
        let parsers = if parsers.is_empty() { String::new() } else { format!(", {parsers}") };
        let Served { found, endpoint, .. } = &*opened.served;
        format!("{found} at {url}{others}, token in, token out by {}{parsers}", endpoint.path())
    }

    /// Asks for a reply of which the tokens in `sampled` are there, at any server but those of `but`, until one begins it or trouble
    /// was retried long enough. A server that has another model is none of them. `ready` is what was written for the server of `opened`.
    pub(super) async fn begin(
        &self,
        opened: &Opened,
        request: &Request,
        sampled: &[u32],
        mut but: Vec<Arc<Replica>>,
        ready: Option<Bytes>,
    ) -> Result<Begin, NoAnswer> {
        let mut retries = Retries::new(self.config.retry(request.patience));
        let (mut last, mut after) = (None, None);
        loop {
            let Some(lease) = self.replicas.pick(&request.prompt.ids, &but) else {
                // All were tried.
                if !retries.wait(after.take()).await {
                    self.replicas.all().iter().for_each(|replica| replica.forget());
                    return Err(last.unwrap_or_else(|| nothing("there is no server to ask".to_owned())));
                }
                but.clear();
                continue;
            };
            let (no_answer, wait) = match self.ask(&lease.0, opened, request, sampled, ready.as_ref()).await {
                Ok((served, begun, body)) => {
                    lease.0.is_well();
                    return Ok(Begin { lease, served, begun, body });
                }
                Err(Trouble::Final(no_answer)) => {
                    if no_answer.failure.status == 404 {
                        lease.0.forget();
                    }
                    return Err(no_answer);
                }
                Err(Trouble::Again(no_answer, wait)) => (no_answer, wait),
            };
            lease.0.is_in_trouble();
            but.push(lease.0.clone());
            (last, after) = (Some(no_answer), wait);
        }
    }

    async fn ask(
        &self,
        replica: &Replica,
        opened: &Opened,
        request: &Request,
        sampled: &[u32],
        ready: Option<&Bytes>,
    ) -> Result<(Arc<Served>, Begun, Bytes), Trouble> {
        let served = self.agreed(replica, opened).await.map_err(|reason| Trouble::Again(nothing(reason), None))?;
        let alike = opened.served.endpoint == served.endpoint && opened.served.found.model == served.found.model;
        let body = match ready.filter(|_| alike) {
            Some(body) => body.clone(),
            None => request.written(&served, sampled).body,
        };
        let stream = request.streams(&served);
        let post = Post { route: Route::At(served.endpoint.path()), body: body.clone(), stream };
        let begun = attempt(&replica.http, post, self.config.first_byte_timeout()).await?;
        Ok((served, begun, body))
    }
}

fn nothing(message: String) -> NoAnswer {
    NoAnswer { failure: Failure::new(FailureKind::Unavailable, message), response: Bytes::new() }
}
