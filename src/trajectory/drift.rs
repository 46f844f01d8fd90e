//! Drift: a conversation goes on, but its tokens don't.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Turn;
use super::tree::Tree;
use super::verdict::whole;

/// What becomes of drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drift {
    /// A sample of its own: each has its tokens as they were.
    #[default]
    Fork,
    /// The conversation stays one sample, of the later prompt's tokens; the reply that they part from is not trained in it.
    Realign,
}

/// A prompt that parts from an earlier reply that reads the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parting {
    /// Whose prompt it is.
    pub turn: usize,
    /// Whom it goes on from by what was said.
    pub earlier: usize,
    /// The reply inside which they part; a turn on the way to `earlier`.
    pub reply: usize,
    /// How many tokens they share.
    pub at: usize,
}

/// Finds where prompts part from earlier replies: the request goes on from a reply by what was said, and its tokens leave that
/// reply's sequence inside a reply. `said` is whom each turn goes on from by its text.
pub(super) fn partings(tree: &Tree<'_>, said: &[Option<usize>], turns: &[Turn]) -> Vec<Parting> {
    let parting = |(turn, earlier): (usize, &Option<usize>)| {
        let earlier = (*earlier)?;
        if tree.parent(turn) == Some(earlier) || !tree.holds(turn) || !tree.holds(earlier) || tree.key(turn) != tree.key(earlier)
        {
            return None;
        }
        let at = tree.shared(turn, earlier).min(turns[turn].prompt.len());
        // Two replies may read the same: then it goes on from the other.
        if tree.parent(turn).is_some_and(|parent| whole(&turns[parent]) > at) {
            return None;
        }
        let mut up = std::iter::successors(Some(earlier), |reply| tree.parent(*reply));
        let reply = up.find(|reply| turns[*reply].prompt.len() <= at).filter(|reply| at < whole(&turns[*reply]))?;
        Some(Parting { turn, earlier, reply, at })
    };
    said.iter().enumerate().filter_map(parting).collect()
}

/// How many places there are.
pub(super) fn count(partings: &[Parting]) -> u64 {
    partings.iter().map(|parting| (parting.reply, parting.at)).collect::<BTreeSet<_>>().len() as u64
}
