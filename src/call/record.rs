//! What is kept of a call: known from its start, whole at its end.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::event::{FinishReason, Usage};
use super::failure::Failure;
use super::image::ImageHash;
use super::json::Raw;
use super::request::Sampling;
use super::tokens::Capture;
use crate::ids::{CallId, ProcessId, RolloutId};

/// What is written when a call begins, before the policy is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct CallStart {
    pub id: CallId,
    pub rollout_id: RolloutId,
    /// The process that serves the call; if it dies, the call is interrupted.
    pub process_id: ProcessId,
    /// Unix time in milliseconds.
    pub started_at: i64,
    pub wire: &'static str,
    /// Where it was posted, below the base URL, its query included but for a key.
    pub target: String,
    /// Its place among the calls of one request, which may ask for several replies.
    pub choice: u32,
    /// The policy's name in the config.
    pub policy: String,
    /// The model's name as the client gave it; empty if the request could not be read.
    pub model: String,
    pub stream: bool,
    /// What its headers say of its place among the rollout's conversations.
    pub marks: Vec<Mark>,
    /// The request as the client sent it, its content coding undone.
    pub request: Bytes,
}

/// What a call says of its place among the rollout's conversations: a header that its harness sent, or that the call is
/// not its harness's at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The header's name, or [`Mark::FOREIGN`].
    pub name: String,
    pub value: String,
}

impl Mark {
    /// The call does not look like one of its rollout's harness; the value says why.
    pub const FOREIGN: &str = "foreign";
    /// The field of Codex's `x-codex-turn-metadata` that says what a call is for.
    pub const REQUEST_KIND: &str = "request_kind";
}

/// What is written when a call has ended, well or not, before its end is sent to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct CallEnd {
    pub start: Arc<CallStart>,
    /// Unix time in milliseconds.
    pub ended_at: i64,
    /// Unix time in milliseconds at which the policy's first event came.
    pub first_event_at: Option<i64>,
    pub status: CallStatus,
    pub failure: Option<Failure>,
    pub raw: RawParts,
    /// The reply as an assistant's message in chat completions' form; also what there was of one that broke off.
    pub message: Option<Raw>,
    pub finish: Option<FinishReason>,
    pub usage: Option<Usage>,
    pub capture: Capture,
    pub sampling_asked: Sampling,
    pub sampling_used: Sampling,
    pub max_tokens_asked: Option<u64>,
    pub max_tokens_used: Option<u64>,
    pub version: WeightVersion,
    /// What was changed or dropped on the way, for people.
    pub notes: Vec<String>,
}

/// The bytes of a call beside the client's request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawParts {
    /// What went to the policy.
    pub upstream: Bytes,
    /// What came back from the policy.
    pub response: Bytes,
    /// The server's own answer that gave the prompt's ids, where that was a question of its own.
    pub prompt: Bytes,
}

/// Which of a call's raw bytes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKind {
    Request,
    Upstream,
    Response,
    Prompt,
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// Begun, not ended, its process lives.
    Running,
    /// The model's reply was recorded whole.
    Done,
    /// It was refused, or the policy failed.
    Failed,
    /// The client hung up, or its rollout was finished.
    Cancelled,
    /// Its process died.
    Interrupted,
}

/// Which weights sampled a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightVersion {
    /// The server's own string.
    pub version: Option<String>,
    /// Ours: grows with each change.
    pub seq: i64,
    pub source: Option<VersionSource>,
}

/// Who said which weights they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionSource {
    /// The server, with the reply.
    Server,
    /// The config or the API.
    Declared,
    /// The server, asked beside the reply.
    Polled,
}

/// A call as read back from the store, with what its client sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub record: CallRecord,
    pub request: Bytes,
}

/// A call as read back from the store, without its raw bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRecord {
    /// The images that the policy was sent as data, in their order: their tokens are the same whatever they show.
    pub images: Vec<ImageHash>,
    pub id: CallId,
    pub rollout_id: RolloutId,
    pub started_at: i64,
    pub wire: String,
    pub target: String,
    pub choice: u32,
    pub policy: String,
    pub model: String,
    pub stream: bool,
    /// What its headers said of its place among the rollout's conversations.
    pub marks: Vec<Mark>,
    pub status: CallStatus,
    /// Whether the reply's last byte was handed to the client; `None` if that is not known.
    pub delivered: Option<bool>,
    pub ended_at: Option<i64>,
    pub first_event_at: Option<i64>,
    pub failure: Option<Failure>,
    pub message: Option<Raw>,
    pub finish: Option<FinishReason>,
    pub usage: Option<Usage>,
    pub capture: Capture,
    pub sampling_asked: Sampling,
    pub sampling_used: Sampling,
    pub max_tokens_asked: Option<u64>,
    pub max_tokens_used: Option<u64>,
    pub version: WeightVersion,
    pub notes: Vec<String>,
}
