//! The `[policies.NAME]` section.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::scripted::{SCHEME, Script};
use crate::call::{History, LogprobKind, Sampling, SpecialText};

/// One policy's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// What the server is; `auto` asks it.
    pub kind: PolicyKind,
    /// The server's address, with or without `/v1` at its end.
    pub url: String,
    /// Further servers of the same weights, on which a reply can go on when its own dies (`tokens = "exact"`).
    pub urls: Vec<String>,
    /// The model's name at the server; without one, the first that the server names.
    pub model: Option<String>,
    /// The environment variable that holds the server's key.
    pub api_key_env: Option<String>,
    /// How token ids are had.
    pub tokens: TokenMode,
    /// With `tokens = "exact"`: the model's folder (`tokenizer.json`, `tokenizer_config.json`) or GGUF file; without it, the server's own template and
    /// tokenizer are asked.
    pub tokenizer: Option<PathBuf>,
    /// A chat template's file, in place of the model's own.
    pub chat_template: Option<PathBuf>,
    /// What becomes of earlier replies that the template would change.
    pub history: History,
    /// What becomes of a control token's name that somebody wrote as text.
    pub special_text: SpecialText,
    /// The parser of tool calls; without it, the one that the model's template speaks of. `none`: calls stay text.
    pub tool_parser: Option<String>,
    /// The parser of reasoning, likewise.
    pub reasoning_parser: Option<String>,
    /// Sampling that stands whatever a client asks for.
    pub sampling: Sampling,
    /// The most tokens of prompt and reply together; without it, what the server says.
    pub context_window: Option<u64>,
    /// Calls to this policy may be trained on.
    pub train: bool,
    /// Seconds for which trouble before a reply's first byte is retried.
    pub retry_s: u64,
    /// Seconds for which calls wait while the policy is paused.
    pub pause_s: u64,
    /// Seconds to wait for a connection.
    pub connect_timeout_s: u64,
    /// Seconds to wait for a reply's first byte.
    pub first_byte_timeout_s: u64,
    /// Seconds to wait for the next byte of a reply.
    pub idle_timeout_s: u64,
    /// What the server's log-probabilities are of, where that differs from its kind's default.
    pub logprobs: Option<Logprobs>,
    /// The weights' version, where the server doesn't tell it.
    pub version: Option<String>,
    /// The largest event of a stream, in bytes.
    pub max_event_bytes: usize,
    /// How many alternatives of each token the server is asked for, for the record (`[record] top_logprobs`).
    #[serde(skip)]
    pub top_logprobs: u32,
    /// What becomes of calls with links to images, which Gleaner itself never follows.
    pub image_urls: ImageUrls,
    /// What a scripted policy says; one for any harness if `None`.
    #[serde(skip)]
    pub script: Option<Script>,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            kind: PolicyKind::Auto,
            url: "http://127.0.0.1:8000".to_owned(),
            urls: Vec::new(),
            model: None,
            api_key_env: None,
            tokens: TokenMode::Server,
            tokenizer: None,
            chat_template: None,
            history: History::Keep,
            special_text: SpecialText::Control,
            tool_parser: None,
            reasoning_parser: None,
            sampling: Sampling::default(),
            context_window: None,
            train: true,
            retry_s: 60,
            pause_s: 600,
            connect_timeout_s: 10,
            first_byte_timeout_s: 600,
            idle_timeout_s: 300,
            logprobs: None,
            version: None,
            max_event_bytes: 32 << 20,
            top_logprobs: 0,
            image_urls: ImageUrls::Pass,
            script: None,
        }
    }
}

impl PolicyConfig {
    pub(super) fn first_byte_timeout(&self) -> Duration {
        Duration::from_secs(self.first_byte_timeout_s)
    }

    /// Whether it is the scripted policy, by its kind or its URL.
    #[must_use]
    pub fn is_scripted(&self) -> bool {
        self.kind == PolicyKind::Scripted || self.url.starts_with(SCHEME)
    }

    /// For how long trouble is retried by who has this patience.
    pub(super) fn retry(&self, patience: Duration) -> Duration {
        Duration::from_secs(self.retry_s).max(patience)
    }

    pub(super) fn pause(&self) -> Duration {
        Duration::from_secs(self.pause_s)
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout_s)
    }

    pub(super) fn logprob_kind(&self) -> Option<LogprobKind> {
        self.logprobs.map(|logprobs| match logprobs {
            Logprobs::Raw => LogprobKind::Raw,
            Logprobs::Processed => LogprobKind::Processed,
        })
    }
}

/// What a policy's server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// The server is asked, again later if it does not answer at start.
    #[default]
    Auto,
    Vllm,
    Sglang,
    Llamacpp,
    /// Any other server that speaks chat completions.
    Openai,
    /// No server: replies by a script, in this process.
    Scripted,
}

/// How a policy's token ids are had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenMode {
    /// By the server's own switch.
    #[default]
    Server,
    /// Token in, token out.
    Exact,
    /// Not asked for.
    Off,
}

/// What becomes of calls with links (http, https) to images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageUrls {
    /// The server gets the link, and follows it or not.
    #[default]
    Pass,
    /// The client gets a 400.
    Refuse,
}

/// What a server's log-probabilities are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Logprobs {
    /// The model's own distribution.
    Raw,
    /// The distribution that tokens are drawn from.
    Processed,
}

/// Why a policy can't be made of its settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("policy {name}: url {url:?} is not an http or https address")]
    Url { name: String, url: String },
    #[error("policy {name}: this gleaner was built without tokens = \"exact\" (feature `exact`), use \"server\" or \"off\"")]
    Exact { name: String },
    #[error(
        "policy {name}: kind = \"{kind}\" takes no token ids, which tokens = \"exact\" needs; use tokens = \"server\" or \"off\""
    )]
    TakesNoIds { name: String, kind: &'static str },
    #[error("policy {name}: the seed {seed:?} after scripted: is no whole number")]
    Seed { name: String, seed: String },
    #[error("policy {name}: {option} {value:?} is not known, use one of {known}")]
    Parser { name: String, option: &'static str, value: String, known: String },
    #[error("policy {name}: the api key can't be sent in a header")]
    ApiKey { name: String },
    #[error("policy {name}: could not make an http client")]
    Client { name: String, source: reqwest::Error },
}
