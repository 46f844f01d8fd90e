//! Model servers. Each kind is one file; all of them answer a [`Call`] with a stream of [`Event`]s and a [`Capture`].

mod answer;
mod attempt;
mod body;
mod capture;
#[expect(clippy::option_option, reason = "as in scan: the outer one says whether it is JSON, the inner one whether it is null")]
mod chunk;
mod config;
mod decode;
#[cfg(test)]
mod decode_tests;
#[cfg(feature = "exact")]
mod exact;
mod gate;
mod http;
mod images;
mod kind;
mod limit;
mod llamacpp;
mod names;
mod plain;
mod probe;
mod refusal;
mod reread;
#[expect(clippy::option_option, reason = "the outer one says whether it is JSON, the inner one whether it is null")]
mod scan;
mod score;
mod scripted;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod sglang_tests;
#[cfg(test)]
mod stub;
mod texts;
mod tools;
mod transcript;
mod version;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;

use crate::call::{Call, Capture, Event, Failure, FailureKind, Rendered, Reply, Sampling, WeightVersion};

pub use reread::reread;
pub use scripted::{COMMAND, Ending, SCHEME, Sampled, Script, Scripted};
pub use texts::Texts;
pub use transcript::{Earlier, Exchange, Found, Transcript};

#[cfg(feature = "exact")]
#[doc(hidden)]
pub use exact::Prompts;

pub use gate::PauseMode;

pub use config::{ConfigError, ImageUrls, Logprobs, PolicyConfig, PolicyKind, TokenMode};

/// Makes the policy called `name`. Nothing is sent yet: the server is asked what it is when it is first needed, and again
/// until it answers.
///
/// # Errors
/// If the settings are not a policy's.
pub fn connect(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Arc<dyn Policy>, ConfigError> {
    if config.is_scripted() {
        return Ok(Arc::new(Scripted::new(name, config)?));
    }
    if config.tokens != TokenMode::Exact {
        return Ok(Arc::new(server::Server::new(name, config, api_key)?));
    }
    #[cfg(feature = "exact")]
    return Ok(Arc::new(exact::Exact::new(name, config, api_key)?));
    #[cfg(not(feature = "exact"))]
    Err(ConfigError::Exact { name: name.to_owned() })
}

/// A named model server.
#[async_trait]
pub trait Policy: Send + Sync {
    /// The policy's name in the config.
    fn name(&self) -> &str;

    /// What was found out of the server, for the log and the API: kind, address, model, version.
    fn describe(&self) -> String;

    /// Whether the policy can serve, or what stands in the way.
    ///
    /// # Errors
    /// Says why it can't.
    async fn ready(&self) -> Result<(), Failure>;

    /// The models that the server names, as the JSON objects of chat completions' `/v1/models`.
    ///
    /// # Errors
    /// If the server can't be asked.
    async fn models(&self) -> Result<Bytes, Failure>;

    /// How many tokens the prompt of a call has: the server's own count where it counts, else a guess from its length.
    ///
    /// # Errors
    /// If the server can't be reached.
    async fn count(&self, call: &Call) -> Result<u64, Failure>;

    /// How it stands now, without asking the server.
    fn state(&self) -> PolicyState;

    /// Waits until whether it is paused is other than `now`; gives what it is then.
    async fn paused(&self, now: bool) -> bool;

    /// The most tokens of prompt and reply together: the config's, or what the server says. `None` if neither does, or the server
    /// does not answer now.
    async fn window(&self) -> Option<u64>;

    /// Changes what an operator or a trainer may change while calls run.
    ///
    /// # Errors
    /// If it can't be so; then nothing is changed.
    fn update(&self, update: PolicyUpdate) -> Result<(), Failure>;

    /// Takes up the count of weight versions where an earlier process left it.
    fn recall(&self, last: &WeightVersion);

    /// Turns a call into the request that goes upstream: names mapped, sampling pinned, limits clamped. `transcript` is what its
    /// rollout has said before. It must be known what the server is: one that is down is waited for as long as the policy's own `retry_s`
    /// says, or `patience` if that is longer.
    ///
    /// # Errors
    /// If this policy can't serve the call at all.
    async fn prepare(
        &self,
        call: &Arc<Call>,
        pinned: &Sampling,
        transcript: &Transcript,
        patience: Duration,
    ) -> Result<Prepared, Failure>;

    /// Whether [`Policy::prepare`] needs what its call's rollout has said before: nobody else's is read from the store.
    fn splices(&self) -> bool {
        false
    }

    /// The log-probability of each token given those before it, by the server's own prefill; none of the first. Raw: of
    /// the model's own distribution.
    ///
    /// # Errors
    /// If the server can't score tokens, or can't be reached.
    async fn score(&self, _ids: &[u32]) -> Result<Vec<Option<f64>>, Failure> {
        Err(Failure::new(FailureKind::Refused, format!("policy {} can't score tokens", self.name())))
    }

    /// Sends a prepared request and waits for the reply's first bytes. Trouble before them is retried within `retry_s`.
    /// Dropping the future, or the reply, ends the request upstream at once.
    ///
    /// # Errors
    /// If no reply came; what the server did say is in the error.
    async fn send(&self, prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer>;
}

/// How a policy stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// The server's address, without `/v1`.
    pub url: String,
    pub version: WeightVersion,
    /// Calls wait, and what becomes of those that run.
    pub paused: Option<PauseMode>,
    /// Replies that run.
    pub in_flight: usize,
}

/// What to change of a policy; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyUpdate {
    /// The weights that it has from now on.
    pub version: Option<String>,
    pub paused: Option<bool>,
    pub mode: Option<PauseMode>,
    pub url: Option<String>,
}

/// A request that is ready to go upstream, and what was decided on the way.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The JSON that is sent.
    pub body: Bytes,
    /// Ask the server for a stream.
    pub stream: bool,
    /// The sampling that the server is asked for, what is pinned in place of what was asked.
    pub sampling_used: Sampling,
    /// The most tokens that the server is asked for.
    pub max_tokens_used: Option<u64>,
    /// What was changed or dropped, for people.
    pub notes: Vec<String>,
    /// What a decoder of the reply must know of the call.
    pub call: Arc<Call>,
    /// The prompt, where the policy made it itself.
    pub prompt: Option<Arc<Prompted>>,
    /// How long trouble before the reply's first byte is retried, if that is longer than the policy's own `retry_s`; as it was
    /// prepared with.
    pub patience: Duration,
}

/// A prompt that a policy made itself (`tokens = "exact"`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompted {
    pub ids: Vec<u32>,
    /// How it was made.
    pub rendered: Rendered,
    /// The text with which the prompt ends: a template may begin the reply, as with `<think>`.
    pub ending: String,
}

/// A reply that has begun.
#[async_trait]
pub trait Answer: Send {
    /// Waits for the next bytes from the server and appends the events that they complete. Gives the bytes as they came, or
    /// `None` at the end of a reply that ended well.
    ///
    /// # Errors
    /// If the reply broke off, stalled past the time limit, or said itself that it failed.
    async fn next(&mut self, events: &mut Vec<Event>) -> Result<Option<Bytes>, Failure>;

    /// After the end: what is known of the reply's tokens, checked against the server's own counts. May ask the server.
    async fn capture(&mut self, reply: &Reply) -> Captured;

    /// What was really sent, and all notes, where that is not what was prepared; to be asked at the end.
    fn amended(&self) -> Option<Prepared> {
        None
    }
}

/// What [`Answer::capture`] found.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// The ids, their log-probabilities and how far they can be trusted.
    pub capture: Capture,
    /// The weights that the reply came from.
    pub version: WeightVersion,
    /// The server's answer that gave the prompt's ids, where that was a question of its own.
    pub prompt_raw: Bytes,
}

/// Why there is no reply, and what the server said instead of one.
#[derive(Clone, Debug)]
pub struct NoAnswer {
    /// Why.
    pub failure: Failure,
    /// The body that came, if one did.
    pub response: Bytes,
}
