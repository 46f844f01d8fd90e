//! From a rollout's calls to samples: the forest by token prefix, masks, spans, and why a call gave nothing. Pure.
//!
//! ```text
//! turns -> forest (who goes on from whom, by ids) -> kind -> verdict (trained, or why not) -> leaves -> samples -> check
//! ```

mod abandoned;
mod assemble;
mod check;
mod conversation;
mod drift;
mod forest;
mod kind;
mod leaves;
mod prompt;
mod realign;
mod rules;
mod sample;
mod tree;
mod verdict;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod shapes;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call::{CallRecord, Raw};
use crate::ids::{CallId, RolloutId};

pub use abandoned::Abandoned;
pub use check::{Broken, check};
pub use conversation::{REASONING, hash_arguments, parents, tool_name, with_reasoning};
pub use drift::Drift;
pub use kind::{Class, Kind};
pub use prompt::{Prompt, turns};
pub use rules::{Rules, Without};
pub use sample::{LeftOut, Parent, Reason, SCHEMA, Sample, SampleImage, SampleStatus, Span};
pub use tree::{Needs, needs};
pub use verdict::lost;

use conversation::Threads;
use tree::Tree;
use verdict::Verdict;

/// One call as the forest reads it, with its conversation as text.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Its prompt's ids are in `prompt` and not here.
    pub record: CallRecord,
    pub prompt: Prompt,
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
    /// What each call is to the rollout, in the order in which they began.
    pub classes: Vec<(CallId, Class)>,
}

/// Builds the samples of a rollout from its calls, in the order in which they began, as `rules` choose.
///
/// # Errors
/// If what was built breaks an invariant, which is a fault of ours.
pub fn build(rollout: &RolloutFacts, turns: &[Turn], rules: &Rules<'_>) -> Result<Built, Broken> {
    let mut tree = Tree::grow(turns);
    let threads = Threads::read(turns, &|_| true);
    let partings = drift::partings(&tree, &threads.parents, turns);
    let continued = continued(&tree, &threads.parents, turns);
    let classes = classes(turns, &tree, &threads, &continued);
    if rules.drift == Drift::Realign {
        tree.realign(&partings);
    }
    let verdict = |index: usize| {
        let turn = &turns[index];
        Verdict::of(turn, continued[index], rules.leave_out(&turn.record, classes[index]))
    };
    let mut verdicts: Vec<Verdict> = (0..turns.len()).map(verdict).collect();
    let leaves = leaves::pick(&tree, &verdicts);
    let (leaves, too_long) = leaves::within(rules.max_tokens, leaves, turns);
    let said = &threads.parents;
    let samples = assemble::samples(
        rollout,
        turns,
        &assemble::Grown { tree: &tree, verdicts: &verdicts, classes: &classes, said },
        &leaves,
    );
    verdict::settle(&mut verdicts, &tree, turns, &leaves, &too_long, rules.max_tokens);
    let left_out = verdicts.into_iter().zip(turns).filter_map(|(verdict, turn)| verdict.left_out(&turn.record)).collect();
    let classes = turns.iter().map(|turn| turn.record.id).zip(classes).collect();
    let built = Built { samples, left_out, drift: drift::count(&partings), classes };
    check(&built.samples)?;
    check::check_calls(&built, turns)?;
    Ok(built)
}

/// What each call is to its rollout.
#[must_use]
pub fn classify(turns: &[Turn]) -> Vec<Class> {
    let (tree, threads) = (Tree::grow(turns), Threads::read(turns, &|_| true));
    classes(turns, &tree, &threads, &continued(&tree, &threads.parents, turns))
}

fn classes(turns: &[Turn], tree: &Tree<'_>, threads: &Threads, continued: &[bool]) -> Vec<Class> {
    let abandoned = abandoned::of(turns, tree, threads, continued);
    kind::of(turns, tree, threads, continued)
        .into_iter()
        .zip(abandoned)
        .map(|(kind, abandoned)| Class { kind, abandoned })
        .collect()
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
