//! From a rollout's calls to samples: the forest by token prefix, masks, spans, and why a call gave nothing. Pure.

mod forest;
mod sample;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call::{CallRecord, Raw};
use crate::ids::{CallId, RolloutId};

pub use sample::{LeftOut, Reason, Sample, Span};

/// One call as the forest reads it, with its conversation as text.
#[derive(Clone, Debug)]
pub struct Turn {
    pub record: CallRecord,
    /// The request's messages and tools in chat completions' form; empty if the request could not be read.
    pub messages: Vec<Raw>,
    pub tools: Vec<Raw>,
    /// Whether the policy is one that is trained.
    pub trained: bool,
    /// Named rewards of this call.
    pub rewards: BTreeMap<String, f64>,
}

/// What a sample says of the rollout it comes from.
#[derive(Clone, Debug)]
pub struct RolloutFacts {
    pub id: RolloutId,
    pub index: u32,
    pub group_id: Option<String>,
    pub task_id: Option<String>,
    pub harness: Option<String>,
    pub purpose: String,
    pub reward: Option<f64>,
    pub rewards: BTreeMap<String, f64>,
    /// The outcome's name in the contract.
    pub outcome: Option<String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// What a rollout's calls became.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Built {
    pub samples: Vec<Sample>,
    /// Every call that gives no trained token, with its reason.
    pub left_out: Vec<LeftOut>,
    /// Places where a prompt parts from an earlier reply that reads the same.
    pub drift: u64,
}

/// Builds the samples of a rollout from its calls, in the order in which they began.
#[must_use]
pub fn build(_rollout: &RolloutFacts, _turns: &[Turn]) -> Built {
    let _ = CallId::generate;
    todo!()
}
