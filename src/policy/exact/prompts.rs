//! Prompts without a server, for benchmarks.

use super::model::Model;
use super::prompt;
use crate::call::{Call, Failure, FailureKind};
use crate::policy::names::Names;
use crate::policy::{PolicyConfig, Prompted, Transcript};

/// Makes prompts as a policy of this config does.
pub struct Prompts {
    model: Model,
    config: PolicyConfig,
}

impl Prompts {
    /// Reads the config's `tokenizer`.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn open(config: PolicyConfig) -> Result<Self, Failure> {
        let model = Model::read(&config).await.map_err(|error| Failure::new(FailureKind::Unavailable, error.to_string()))?;
        Ok(Self { model, config })
    }

    /// Makes a call's prompt.
    ///
    /// # Errors
    /// If the template refuses it.
    pub async fn make(&self, call: &Call, transcript: &Transcript) -> Result<Prompted, Failure> {
        prompt::make(&self.model, &self.config, call, &Names::of(call), transcript, &mut Vec::new()).await
    }
}
