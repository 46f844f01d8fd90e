//! Tokens and what is known of them.

use serde::{Deserialize, Serialize};

/// A run of sampled tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    pub ids: Vec<u32>,
    /// One for each id, or fewer where the server lost some: counted, never padded. Natural logarithm.
    pub logprobs: Vec<f64>,
}

/// How exactly a call's tokens are known. Checked, never assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// No ids, or ids that can't be trusted.
    #[default]
    Text,
    /// Prompt and completion ids, not every log-probability.
    Ids,
    /// Prompt ids, completion ids and one log-probability for each, as many as the server's usage says.
    Full,
}

impl CaptureLevel {
    /// The level's name, as records and the API give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Ids => "ids",
            Self::Full => "full",
        }
    }
}

/// What a server's log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobKind {
    /// The model's own distribution, before temperature, truncation and grammar.
    Raw,
    /// The distribution that the token was drawn from.
    Processed,
    #[default]
    Unknown,
}

/// The tokens of one call, and how far they can be trusted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capture {
    pub level: CaptureLevel,
    /// Why the level is not `full`, for people.
    pub reason: Option<String>,
    pub prompt_ids: Vec<u32>,
    pub completion_ids: Vec<u32>,
    /// One for each completion id at level `full`; otherwise empty.
    pub logprobs: Vec<f64>,
    pub logprob_kind: LogprobKind,
    /// The tokens were drawn under a grammar that changed their probabilities.
    pub constrained: bool,
}
