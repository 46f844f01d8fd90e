//! Which turns end a sample.

use super::Turn;
use super::tree::Tree;
use super::verdict::{Verdict, whole};

/// Picks the ends of samples, so that each trained turn lies on a way to one of them: in the order in which conversations began,
/// a branch's before what came after it. Ends with nothing trained on their own part are dropped where something else goes on;
/// otherwise the last of them stays, so that a sample shows how its conversation ended.
pub(super) fn pick(tree: &Tree<'_>, verdicts: &[Verdict]) -> Vec<usize> {
    let useful = useful(tree, verdicts);
    let mut leaves = Vec::new();
    let mut waiting: Vec<usize> = tree.roots().iter().rev().copied().filter(|root| useful[*root]).collect();
    while let Some(turn) = waiting.pop() {
        let children = tree.children(turn);
        let kept: Vec<usize> = children.iter().copied().filter(|child| useful[*child]).collect();
        // A prompt with other tokens for what was sampled shows no end of it.
        match (kept.is_empty(), children.iter().rev().find(|child| tree.extends(**child))) {
            (true, None) => leaves.push(turn),
            (true, Some(last)) => waiting.push(*last),
            (false, _) => waiting.extend(kept.into_iter().rev()),
        }
    }
    leaves
}

/// Which turns are trained or have trained ones after them.
fn useful(tree: &Tree<'_>, verdicts: &[Verdict]) -> Vec<bool> {
    let mut useful: Vec<bool> = verdicts.iter().map(|verdict| *verdict == Verdict::Trained).collect();
    // A turn comes after the one that it goes on from.
    for turn in (0..useful.len()).rev() {
        useful[turn] = useful[turn] || tree.children(turn).iter().any(|child| useful[*child]);
    }
    useful
}

/// Parts the ends whose samples have at most `most` tokens from the others.
pub(super) fn within(most: Option<usize>, leaves: Vec<usize>, turns: &[Turn]) -> (Vec<usize>, Vec<usize>) {
    leaves.into_iter().partition(|leaf| most.is_none_or(|most| whole(&turns[*leaf]) <= most))
}
