//! Rollouts and calls as the API and `--json` show them.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use super::names;
use crate::call::{
    CallRecord, CallStatus, Capture, CaptureLevel, Failure, FinishReason, Image, ImageHash, LogprobKind, Mark, Raw, Rendered,
    Run, Sampling, Usage, VersionSource,
};
use crate::ids::{BatchId, CallId, RolloutId};
use crate::store::{Outcome, Purpose, Rollout, RolloutStatus};
use crate::trajectory::{Abandoned, Class, Kind};

/// A rollout as it stands. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Rollout)]
pub struct RolloutView {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: RolloutId,
    /// Whether it takes calls.
    #[schema(value_type = names::RolloutStatus)]
    pub status: RolloutStatus,
    /// How it ended; null while it is open.
    #[schema(value_type = Option<names::Outcome>)]
    pub outcome: Option<Outcome>,
    /// The reward that counts: the one named `reward`.
    pub reward: Option<f64>,
    /// All rewards of the rollout, by name.
    pub rewards: BTreeMap<String, f64>,
    /// It ended as one that gets no reward.
    pub no_reward: bool,
    /// Calls begun.
    pub calls: u64,
    /// Tokens sampled.
    pub tokens: u64,
    /// Places where a prompt parts from an earlier reply that reads the same; null in lists, where it is not counted.
    pub drift: Option<u64>,
    /// The weight versions of its calls, in order of first use.
    pub policy_versions: Vec<String>,
    /// What its samples are for.
    #[schema(value_type = names::Purpose)]
    pub purpose: Purpose,
    /// What the harness was asked, as whoever made it named it.
    pub task_id: Option<String>,
    /// The group that it is one of.
    pub group_id: Option<String>,
    /// How many rollouts its group has.
    pub group_size: Option<u32>,
    /// Its place in its group, from 0.
    pub index: u32,
    /// The batch that it was run for.
    #[schema(value_type = Option<String>, format = "uuid")]
    pub batch_id: Option<BatchId>,
    /// Which try of its place in the batch it is, from 1.
    pub attempt: Option<u32>,
    /// The harness that drives it.
    pub harness: Option<String>,
    /// The policy that its calls go to; null: the routes decide.
    pub policy: Option<String>,
    /// Pinned for every call.
    #[schema(value_type = names::Sampling)]
    pub sampling: Sampling,
    /// What whoever made it noted.
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Seconds without a call after which it ends as `cancelled`.
    pub ttl_s: Option<u64>,
    /// When it was made.
    pub created_at: String,
    /// When its last call began.
    pub last_call_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// Why it ended as it did: exit code, result, last lines.
    #[schema(value_type = Option<Object>)]
    pub evidence: Option<serde_json::Value>,
}

impl RolloutView {
    /// Shows a rollout; `drift` where it was counted.
    #[must_use]
    pub fn new(rollout: &Rollout, drift: Option<u64>) -> Self {
        Self {
            id: rollout.id,
            status: rollout.status,
            outcome: rollout.outcome,
            reward: rollout.reward(),
            rewards: rollout.rewards.clone(),
            no_reward: rollout.no_reward,
            calls: rollout.calls,
            tokens: rollout.tokens,
            drift,
            policy_versions: rollout.policy_versions.clone(),
            purpose: rollout.purpose,
            task_id: rollout.task_id.clone(),
            group_id: rollout.group_id.clone(),
            group_size: rollout.group_size,
            index: rollout.index,
            batch_id: rollout.run.map(|run| run.batch),
            attempt: rollout.run.map(|run| run.attempt),
            harness: rollout.harness.clone(),
            policy: rollout.policy.clone(),
            sampling: rollout.sampling.clone(),
            metadata: rollout.metadata.clone(),
            ttl_s: rollout.ttl_s,
            created_at: rfc3339(rollout.created_at),
            last_call_at: rollout.last_call_at.map(rfc3339),
            ended_at: rollout.ended_at.map(rfc3339),
            evidence: rollout.evidence.clone(),
        }
    }
}

/// A call's full record. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Call)]
pub struct CallView {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: CallId,
    /// The rollout that it belongs to.
    #[schema(value_type = String, format = "uuid")]
    pub rollout_id: RolloutId,
    /// How it stands.
    #[schema(value_type = names::CallStatus)]
    pub status: CallStatus,
    /// The API that the client spoke: `chat`, `responses`, `messages` ...
    pub wire: String,
    /// Where the request was posted, below the base URL; empty if it was recorded by a Gleaner that did not keep it.
    pub target: String,
    /// The reply's place among those that one request asked for.
    pub choice: u32,
    /// The policy that it went to.
    pub policy: String,
    /// The model's name as the client gave it.
    pub model: String,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// What its headers said of its place among the rollout's conversations.
    #[schema(value_type = Vec<names::Mark>)]
    pub marks: Vec<Mark>,
    /// What it is to its rollout: `main`, `side`, `subagent` or `compaction`; null for a single call, where it is not looked for.
    #[schema(value_type = Option<String>)]
    pub kind: Option<Kind>,
    /// How its reply came not to be gone on from although the harness went on: `retry`, `doubled_limit`, `resumed`, `phantom_call`
    /// or `duplicated`; null if it did not, and for a single call.
    #[schema(value_type = Option<String>)]
    pub abandoned: Option<Abandoned>,
    /// When it came.
    pub started_at: String,
    /// When the policy's first event came.
    pub first_event_at: Option<String>,
    /// When its end was known.
    pub ended_at: Option<String>,
    /// Whether the reply's last byte was handed to the client; null if that is not known.
    pub delivered: Option<bool>,
    /// Why it failed or was cut.
    #[schema(value_type = Option<names::Failure>)]
    pub failure: Option<Failure>,
    /// The request's prompt where it is no conversation: a text, or token ids.
    #[schema(value_type = Option<Object>)]
    pub prompt: Option<Raw>,
    /// The request's messages in chat completions' form; null if the request could not be read.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<Raw>>,
    /// The request's tools in chat completions' form; null if the request could not be read.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Raw>>,
    /// The images of `messages` that came as data, in their order.
    pub images: Vec<ImageView>,
    /// The reply as an assistant's message; also what there was of one that broke off.
    #[schema(value_type = Option<Object>)]
    pub message: Option<Raw>,
    /// Why the reply ended.
    #[schema(value_type = Option<names::FinishReason>)]
    pub finish_reason: Option<FinishReason>,
    /// The server's own counts.
    #[schema(value_type = Option<names::Usage>)]
    pub usage: Option<Usage>,
    /// Its tokens.
    pub capture: CaptureView,
    /// How they were drawn.
    pub sampling: SamplingView,
    /// The most that there could be.
    pub max_tokens: MaxTokensView,
    /// The server's own name of its weights.
    pub policy_version: Option<String>,
    /// Ours: grows with each change of weights.
    pub policy_seq: i64,
    /// Where `policy_version` comes from.
    #[schema(value_type = Option<names::VersionSource>)]
    pub version_source: Option<VersionSource>,
    /// Rewards of this call, by name.
    pub rewards: BTreeMap<String, f64>,
    /// What was changed or dropped on the way.
    pub notes: Vec<String>,
}

/// An image that a request brought with it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Image)]
pub struct ImageView {
    /// SHA-256 of its bytes; `/images/{hash}` gives them.
    #[schema(value_type = String)]
    pub hash: ImageHash,
    /// As the client said.
    pub mime: String,
    /// How many bytes it has.
    pub bytes: u64,
}

impl From<Image> for ImageView {
    fn from(image: Image) -> Self {
        let Image { hash, mime, bytes } = image;
        Self { hash, mime, bytes }
    }
}

/// A call's tokens, and how far they can be trusted.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CaptureView {
    /// `full`, `ids` or `text`.
    #[schema(value_type = names::CaptureLevel)]
    pub level: CaptureLevel,
    /// Why the level is not `full`.
    pub reason: Option<String>,
    /// The ids that the server read.
    pub prompt_ids: Vec<u32>,
    /// The ids that it sampled.
    pub completion_ids: Vec<u32>,
    /// Natural logarithms, one for each completion id at level `full`; otherwise empty.
    pub logprobs: Vec<f64>,
    /// What the log-probabilities are of.
    #[schema(value_type = names::LogprobKind)]
    pub logprob_kind: LogprobKind,
    /// The tokens were drawn under a grammar.
    pub constrained: bool,
    /// Which weights sampled which tokens, where they are not all of the call's version or the reply was resumed elsewhere.
    #[schema(value_type = Vec<Object>)]
    pub runs: Vec<Run>,
    /// How the prompt was made, where Gleaner made it.
    #[schema(value_type = Option<Object>)]
    pub rendered: Option<Rendered>,
}

impl From<Capture> for CaptureView {
    fn from(capture: Capture) -> Self {
        let Capture { level, reason, prompt_ids, completion_ids, logprobs, logprob_kind, constrained, runs, rendered } = capture;
        Self { level, reason, prompt_ids, completion_ids, logprobs, logprob_kind, constrained, runs, rendered }
    }
}

/// How tokens were drawn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SamplingView {
    /// As the client asked.
    #[schema(value_type = names::Sampling)]
    pub asked: Sampling,
    /// As it went to the policy.
    #[schema(value_type = names::Sampling)]
    pub used: Sampling,
}

/// The most tokens that the reply might have.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MaxTokensView {
    /// As the client asked.
    pub asked: Option<u64>,
    /// As it went to the policy.
    pub used: Option<u64>,
}

impl CallView {
    /// With what the call is to its rollout.
    #[must_use]
    pub fn classed(self, class: Class) -> Self {
        Self { kind: Some(class.kind), abandoned: class.abandoned, ..self }
    }

    /// Shows a call of `rollout`, without its request's messages and tools.
    #[must_use]
    pub fn new(call: CallRecord, rollout: &Rollout) -> Self {
        let rewards = rollout.call_rewards.iter().filter(|(id, ..)| *id == call.id);
        Self {
            rewards: rewards.map(|(_, name, value)| (name.clone(), *value)).collect(),
            id: call.id,
            rollout_id: call.rollout_id,
            status: call.status,
            wire: call.wire,
            target: call.target,
            choice: call.choice,
            policy: call.policy,
            model: call.model,
            stream: call.stream,
            marks: call.marks,
            kind: None,
            abandoned: None,
            started_at: rfc3339(call.started_at),
            first_event_at: call.first_event_at.map(rfc3339),
            ended_at: call.ended_at.map(rfc3339),
            delivered: call.delivered,
            failure: call.failure,
            prompt: None,
            messages: None,
            tools: None,
            images: Vec::new(),
            message: call.message,
            finish_reason: call.finish,
            usage: call.usage,
            capture: call.capture.into(),
            sampling: SamplingView { asked: call.sampling_asked, used: call.sampling_used },
            max_tokens: MaxTokensView { asked: call.max_tokens_asked, used: call.max_tokens_used },
            policy_version: call.version.version,
            policy_seq: call.version.seq,
            version_source: call.version.source,
            notes: call.notes,
        }
    }
}

/// Writes Unix milliseconds as RFC 3339 in UTC.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_796_134_800_250), "2026-12-01T14:20:00.25Z");
    }
}
