//! Names of the API's closed lists, for its OpenAPI page alone: what is served is the enums' own serde names.
#![expect(dead_code, reason = "described, never built")]

use serde::Serialize;
use utoipa::ToSchema;

/// Whether a rollout takes calls.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RolloutStatus {
    Open,
    Finished,
}

/// What a rollout is for: only `train` is leased to trainers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Purpose {
    Train,
    Eval,
    Record,
}

/// How a rollout ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Passed,
    Failed,
    Truncated,
    TimedOut,
    HarnessError,
    InfraError,
    Cancelled,
}

/// Whether a batch runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BatchStatus {
    Running,
    /// The server that ran it ended, or its engine did not answer for too long: it can be resumed.
    Stopped,
    Cancelled,
    Done,
}

/// A batch to be run.
#[derive(Serialize, ToSchema)]
pub(super) struct Plan {
    /// Tasks themselves, as lines of JSON Lines have them (`{"id", "prompt", "image"?, "files"?, "verify"?, "timeout_s"?, "metadata"?}`),
    /// or the absolute path of a file or folder of tasks on the server's machine.
    #[schema(value_type = Vec<Object>)]
    tasks: (),
    harnesses: Vec<HarnessChoice>,
    /// Rollouts of each task in each harness; 1 if left out.
    samples: Option<u32>,
    /// Harnesses at once; no more than the server's own.
    concurrency: Option<usize>,
    /// Tries of each rollout that ends as `infra_error`.
    attempts: Option<u32>,
    /// Before the tasks' own.
    image: Option<String>,
    /// Before the tasks' own.
    timeout_s: Option<u64>,
    /// Calls that each rollout may make, before the harness's own bound.
    max_calls: Option<u64>,
    /// Tokens that each rollout may sample, before the harness's own bound.
    max_tokens: Option<u64>,
    /// A policy's name in the config.
    policy: Option<String>,
    /// `train` if left out.
    purpose: Option<Purpose>,
    /// Only these of the tasks, by id.
    only: Option<Vec<String>>,
}

/// A harness and the way to run it.
#[derive(Serialize, ToSchema)]
pub(super) struct HarnessChoice {
    /// `HARNESS` or `HARNESS:VARIANT`.
    harness: String,
    wire: Option<String>,
    /// Parameters set otherwise.
    #[schema(value_type = Option<Object>)]
    set: Option<()>,
}

/// How a call stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallStatus {
    Running,
    Done,
    Failed,
    Cancelled,
    Interrupted,
}

/// Why a reply ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

/// How exactly a call's tokens are known.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CaptureLevel {
    /// No ids, or ids that can't be trusted.
    Text,
    /// Prompt and completion ids, not every log-probability.
    Ids,
    /// All ids, and one log-probability for each sampled one.
    Full,
}

/// What log-probabilities are of.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogprobKind {
    Raw,
    Processed,
    Unknown,
}

/// Who said which weights sampled a reply.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum VersionSource {
    Server,
    Declared,
    Polled,
}

/// How tokens are drawn; what is left out is the server's own default.
#[derive(Serialize, ToSchema)]
pub(super) struct Sampling {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: Option<i64>,
    /// A stop string or a list of them.
    #[schema(value_type = Option<Object>)]
    stop: Option<()>,
    /// Further settings by the server's own names: `logit_bias`, `bad_words`, `min_tokens` ...
    #[schema(value_type = Object)]
    others: Option<()>,
}

/// Why a call did not end as a reply.
#[derive(Serialize, ToSchema)]
pub(super) struct Failure {
    kind: String,
    /// The HTTP status that the client got, if nothing was sent yet.
    status: u16,
    message: String,
    /// Seconds.
    retry_after: Option<u64>,
    param: Option<String>,
}

/// Token counts as the server gave them.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the API's names")]
pub(super) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: u64,
    reasoning_tokens: u64,
}

/// What becomes of replies that run while a policy is paused.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PauseMode {
    Drain,
    Resume,
    InPlace,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use utoipa::PartialSchema;

    use super::*;
    use crate::{call, store};

    /// Every name that the page lists is one that serde reads, so the lists can't drift apart unseen.
    fn known<Listed: PartialSchema, Real: DeserializeOwned>() {
        let schema = serde_json::to_value(Listed::schema()).unwrap();
        let text = schema.to_string();
        let names: Vec<serde_json::Value> = match schema.get("enum") {
            Some(names) => serde_json::from_value(names.clone()).unwrap(),
            None => schema["oneOf"].as_array().unwrap().iter().map(|one| one["enum"][0].clone()).collect(),
        };
        assert!(names.len() > 1, "{text}");
        for name in names {
            assert!(serde_json::from_value::<Real>(name.clone()).is_ok(), "{name} is listed and unknown");
        }
    }

    #[test]
    fn listed_names_are_real() {
        known::<RolloutStatus, store::RolloutStatus>();
        known::<Purpose, store::Purpose>();
        known::<Outcome, store::Outcome>();
        known::<BatchStatus, store::BatchStatus>();
        known::<CallStatus, call::CallStatus>();
        known::<PauseMode, crate::policy::PauseMode>();
        known::<FinishReason, call::FinishReason>();
        known::<CaptureLevel, call::CaptureLevel>();
        known::<LogprobKind, call::LogprobKind>();
        known::<VersionSource, call::VersionSource>();
    }
}

/// What a call said of its place among its rollout's conversations.
#[derive(Serialize, ToSchema)]
pub(super) struct Mark {
    /// A header's name, or `foreign`: the call does not look like its harness's own.
    name: String,
    /// What it said; of `foreign`, why.
    value: String,
}
