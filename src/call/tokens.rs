//! Tokens and what is known of them.

use serde::{Deserialize, Serialize};

use super::record::WeightVersion;
use crate::ids::CallId;

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
    /// Which weights sampled which of the completion's tokens, where they are not all of one version, or the reply was
    /// resumed elsewhere: in order, the first from 0. Empty: all are of the call's version.
    pub runs: Vec<Run>,
    /// How the prompt was made, where Gleaner made it itself.
    pub rendered: Option<Rendered>,
}

/// A run of a completion's tokens that one set of weights sampled, up to the next run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The index of its first token in the completion.
    pub start: usize,
    pub version: WeightVersion,
}

/// How Gleaner itself made a call's prompt (`tokens = "exact"`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    /// What tokens mean: tokens of two tokenizers are never in one sample.
    pub tokenizer_hash: String,
    pub template_hash: String,
    /// The earlier call whose whole sequence, prompt and reply, the prompt begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<CallId>,
    /// Why the prompt does not go on from the last reply of its rollout's that its messages have, or from none, for people: what
    /// was edited, and where. What stands before that is still as it was if there is an `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub afresh: Option<String>,
    pub history: History,
    pub special: SpecialText,
}

/// What becomes of earlier replies that the template would change, such as reasoning that it drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// The policy sees what it sampled.
    #[default]
    Keep,
    /// The policy sees what the template makes of it; the forest forks.
    Template,
}

/// What becomes of a control token's name that somebody wrote as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpecialText {
    /// It becomes that token, as model servers do by default.
    #[default]
    Control,
    /// It stays text.
    Text,
}
