//! Token in, token out: Gleaner renders the chat template and tokenizes, sends ids to the server's generate endpoint, takes ids back,
//! and reads reasoning and tool calls itself. What was sampled before is put into the next prompt as it was sampled.
//!
//! ```text
//! Call -> prompt::make (model: template, tokenizer; Transcript: what to splice) -> generate::Dialect::body -> server
//! Events <- parse::Parser (reasoning, text, tool calls) <- detokenizer <- generate::Dialect::read <-------- server
//! ```

#![allow(dead_code, reason = "while it is being built")]

mod generate;
mod model;
mod parse;
mod prompt;
mod prompts;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;

pub use prompts::Prompts;

use super::config::{ConfigError, PolicyConfig};
use super::{Answer, NoAnswer, Policy, PolicyState, PolicyUpdate, Prepared, Transcript};
use crate::call::{Call, Failure, FailureKind, Sampling, WeightVersion};

/// A policy that is sent token ids.
pub(super) struct Exact {
    name: String,
}

impl Exact {
    pub(super) fn new(name: &str, _config: &PolicyConfig, _api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        Ok(Self { name: name.to_owned() })
    }

    fn unbuilt<T>(&self) -> Result<T, Failure> {
        Err(Failure::new(FailureKind::Unavailable, format!("policy {}: not built yet", self.name)))
    }
}

#[async_trait]
impl Policy for Exact {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn state(&self) -> PolicyState {
        PolicyState::default()
    }

    fn update(&self, _update: PolicyUpdate) -> Result<(), Failure> {
        self.unbuilt()
    }

    fn recall(&self, _last: &WeightVersion) {}

    fn splices(&self) -> bool {
        true
    }

    async fn ready(&self) -> Result<(), Failure> {
        self.unbuilt()
    }

    async fn models(&self) -> Result<Bytes, Failure> {
        self.unbuilt()
    }

    async fn count(&self, _call: &Call) -> Result<u64, Failure> {
        self.unbuilt()
    }

    async fn prepare(&self, _call: &Arc<Call>, _pinned: &Sampling, _transcript: &Transcript) -> Result<Prepared, Failure> {
        self.unbuilt()
    }

    async fn send(&self, _prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer> {
        self.unbuilt().map_err(|failure| NoAnswer { failure, response: Bytes::new() })
    }
}
