//! From a rollout's calls to samples: the forest by token prefix, masks, spans, and why a call gave nothing. Pure.
//!
//! ```text
//! turns -> forest (who goes on from whom, by ids) -> verdict (trained, or why not) -> leaves -> samples -> check
//! ```

mod assemble;
mod check;
mod conversation;
mod drift;
mod forest;
mod leaves;
mod sample;
mod tree;
mod verdict;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod properties;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call::{CallRecord, Raw};
use crate::ids::RolloutId;

pub use check::{Broken, check};
pub use conversation::{REASONING, hash_arguments, parents, tool_name, with_reasoning};
pub use sample::{LeftOut, Parent, Reason, SCHEMA, Sample, SampleImage, SampleStatus, Span};
pub use tree::{Needs, needs};
pub use verdict::lost;

use tree::Tree;
use verdict::Verdict;

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
    /// The outcome's name, as the API gives it.
    pub outcome: Option<String>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// What a rollout's calls became.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Built {
    pub samples: Vec<Sample>,
    /// Every call that gives no trained token, with its reason, in the order in which they began.
    pub left_out: Vec<LeftOut>,
    /// Places where a prompt parts from an earlier reply that reads the same.
    pub drift: u64,
}

/// Builds the samples of a rollout from its calls, in the order in which they began. Calls that `chosen` refuses are context,
/// left out as `filtered`.
///
/// # Errors
/// If what was built breaks an invariant, which is a fault of ours.
pub fn build(rollout: &RolloutFacts, turns: &[Turn], chosen: &dyn Fn(&CallRecord) -> bool) -> Result<Built, Broken> {
    let records: Vec<&CallRecord> = turns.iter().map(|turn| &turn.record).collect();
    let tree = Tree::grow(&records);
    let said = conversation::parents(turns, &|_| true);
    let continued = continued(&tree, &said, turns);
    let verdicts: Vec<Verdict> = turns
        .iter()
        .enumerate()
        .map(|(index, turn)| Verdict::of(&turn.record, turn.trained, continued[index], chosen(&turn.record)))
        .collect();
    let leaves = leaves::pick(&tree, &verdicts);
    let samples = assemble::samples(rollout, turns, &tree, &verdicts, &said, &leaves);
    let left_out = verdicts.into_iter().zip(&records).filter_map(|(verdict, record)| verdict.left_out(record)).collect();
    let built = Built { samples, left_out, drift: drift::count(&tree, &said, &records) };
    check(&built.samples)?;
    check::check_calls(&built, &records)?;
    Ok(built)
}

/// Which replies a later call goes on from, by their ids or by what was said.
fn continued(tree: &Tree<'_>, said: &[Option<usize>], turns: &[Turn]) -> Vec<bool> {
    let mut continued = vec![false; turns.len()];
    for (index, said) in said.iter().enumerate() {
        for parent in [tree.parent(index), *said].into_iter().flatten() {
            continued[parent] = true;
        }
    }
    continued
}
