//! What a trainer reads: `gleaner.sample.v1`, field for field as trainers know it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::abandoned::Abandoned;
use super::kind::Kind;
use crate::call::{FinishReason, ImageHash, LogprobKind, Raw, Sampling, VersionSource};
use crate::ids::{CallId, RolloutId};

/// The schema's name, which every sample carries.
pub const SCHEMA: &str = "gleaner.sample.v1";

/// One leaf of the forest: a whole token sequence, and what was sampled in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// [`SCHEMA`].
    pub schema: String,
    /// Made from the leaf's call, so it stays while the calls stay.
    pub id: String,
    pub rollout_id: RolloutId,
    /// The rollout's place in its group.
    pub rollout_index: u32,
    pub group_id: Option<String>,
    pub task_id: Option<String>,
    pub harness: Option<String>,
    pub purpose: String,
    /// The sample's place among those of its rollout.
    pub index: u32,
    /// What its trained calls are to the rollout: `main` if any of them is, else what the last is.
    pub kind: Kind,
    /// The whole sequence: prompt and everything after.
    pub token_ids: Vec<u32>,
    /// One for each token: 1 was sampled by the policy and is trained by this sample.
    pub loss_mask: Vec<u8>,
    /// One for each token: natural logarithm inside spans, null outside.
    pub logprobs: Vec<Option<f64>>,
    /// The index of the first token with mask 1.
    pub prompt_length: usize,
    /// In order of their place, never overlapping.
    pub spans: Vec<Span>,
    pub reward: Option<f64>,
    pub rewards: BTreeMap<String, f64>,
    pub outcome: Option<String>,
    pub status: SampleStatus,
    /// Trained tokens of all the samples of this rollout that are given with this one.
    pub rollout_mask_total: u64,
    /// How many samples of this rollout are given with this one, itself included.
    pub rollout_samples: u32,
    pub parent: Option<Parent>,
    pub policy: String,
    pub model: String,
    /// What ids mean (`tokens = "exact"`); null where the server tokenizes.
    pub tokenizer_hash: Option<String>,
    /// The chat template (`tokens = "exact"`); null where the server renders it.
    pub template_hash: Option<String>,
    /// The same conversation as text, in chat completions' form, reasoning kept.
    pub messages: Vec<Raw>,
    pub tools: Vec<Raw>,
    /// The images of `messages` that came as data, in the order in which they stand there.
    pub images: Vec<SampleImage>,
    pub metadata: Map<String, Value>,
}

/// Tokens that one call sampled with one set of weights: a call across a change of weights has several, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub call_id: CallId,
    /// The index of the first token.
    pub start: usize,
    /// The index after the last token.
    pub end: usize,
    pub policy_version: Option<String>,
    pub policy_seq: i64,
    pub version_source: Option<VersionSource>,
    pub finish_reason: Option<FinishReason>,
    /// As used, pinned settings included.
    pub sampling: Sampling,
    pub logprob_kind: LogprobKind,
    /// The tokens were drawn under a grammar; they are not trained.
    pub constrained: bool,
    /// Rewards of this call alone.
    pub rewards: BTreeMap<String, f64>,
    /// The reply was not gone on from although the harness went on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
    /// How that came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abandoned_as: Option<Abandoned>,
    /// A later prompt has other tokens for what the call sampled; they stand here, were not sampled, and are not trained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub realigned: bool,
}

/// An image of a sample's conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleImage {
    /// SHA-256 of its bytes, by which the API gives them.
    pub hash: ImageHash,
    pub mime: String,
    /// The index of its first token; null where the server does not say which tokens stand for images, as none does yet.
    pub start: Option<usize>,
    /// The index after its last token; null as `start` is.
    pub end: Option<usize>,
}

/// Where a branch left an earlier sample of its rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub sample_id: String,
    /// How many tokens the two share.
    pub at: usize,
}

/// How a sample ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleStatus {
    Complete,
    /// By the limit of tokens, or its rollout was stopped by a limit.
    Truncated,
    /// Its last call was cut.
    Aborted,
}

/// A call that gives no trained token, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub call_id: CallId,
    pub reason: Reason,
    /// More, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Why a call gives no trained token; a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The server gave no ids.
    TextOnly,
    /// Some ids came, but they do not add up.
    IdsIncomplete,
    /// The ids are known, their log-probabilities are not.
    LogprobsIncomplete,
    /// Drawn under a grammar.
    Constrained,
    /// Later prompts have other tokens for it.
    Realigned,
    /// Nothing was sampled.
    NoOutput,
    /// The client never had the whole reply.
    Undelivered,
    /// The process that served the call died.
    Interrupted,
    UpstreamError,
    /// It does not look like its harness's own.
    Foreign,
    /// Left out by its kind.
    SideCall,
    /// Left out because its reply was not gone on from.
    Abandoned,
    /// The policy is one that is not trained.
    UntrainedPolicy,
    /// Its sample has too many tokens.
    OverLength,
    /// A filter of the export left it out.
    Filtered,
}

impl Reason {
    /// The reason's name, as samples and the API give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TextOnly => "text_only",
            Self::IdsIncomplete => "ids_incomplete",
            Self::LogprobsIncomplete => "logprobs_incomplete",
            Self::Constrained => "constrained",
            Self::Realigned => "realigned",
            Self::NoOutput => "no_output",
            Self::Undelivered => "undelivered",
            Self::Interrupted => "interrupted",
            Self::UpstreamError => "upstream_error",
            Self::Foreign => "foreign",
            Self::SideCall => "side_call",
            Self::Abandoned => "abandoned",
            Self::UntrainedPolicy => "untrained_policy",
            Self::OverLength => "over_length",
            Self::Filtered => "filtered",
        }
    }
}
