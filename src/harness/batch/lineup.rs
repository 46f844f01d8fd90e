//! The places of a batch: in which order they are filled, and which are not yet. Pure.

use std::collections::HashMap;

use crate::harness::summary;
use crate::store::Rollout;

/// One sample of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which order it is of.
    pub order: usize,
    /// Its place in its group.
    pub index: u32,
    /// The number of the next try of it, from 1.
    pub attempt: u32,
}

/// All places in the order in which they are begun; see [`super`]. Orders stand task by task, `harnesses` of each.
pub(super) fn all(orders: usize, harnesses: usize, samples: u32) -> impl Iterator<Item = (usize, u32)> {
    let harnesses = harnesses.max(1);
    let order = move |at: usize| {
        let task = at / harnesses;
        let turned = task * harnesses + (at % harnesses + task) % harnesses;
        // A row that is not whole is not turned.
        if (task + 1) * harnesses <= orders { turned } else { at }
    };
    (0..orders).map(order).flat_map(move |order| (0..samples).map(move |index| (order, index)))
}

/// What became of places so far, by group and index.
#[derive(Default)]
pub(super) struct Filled<'a>(HashMap<(&'a str, u32), Tried>);

#[derive(Default)]
struct Tried {
    attempts: u32,
    filled: bool,
}

impl<'a> Filled<'a> {
    /// By the rollouts of the batch.
    pub(super) fn by(rollouts: impl IntoIterator<Item = &'a Rollout>) -> Self {
        let mut filled = Self::default();
        for rollout in rollouts {
            let (Some(group), Some(run)) = (rollout.group_id.as_deref(), rollout.run) else { continue };
            let tried = filled.0.entry((group, rollout.index)).or_default();
            tried.attempts = tried.attempts.max(run.attempt);
            tried.filled |= rollout.outcome.is_some_and(summary::counts);
        }
        filled
    }

    /// The number of the next try of a place, or `None` if it is filled.
    pub(super) fn next(&self, group: &str, index: u32) -> Option<u32> {
        match self.0.get(&(group, index)) {
            None => Some(1),
            Some(Tried { filled: true, .. }) => None,
            Some(tried) => Some(tried.attempts + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_whole_one_after_the_other_and_harnesses_take_turns() {
        let orders: Vec<usize> = all(9, 3, 2).filter(|(_, index)| *index == 0).map(|(order, _)| order).collect();
        assert_eq!(orders, [0, 1, 2, 4, 5, 3, 8, 6, 7]);
        let places: Vec<_> = all(2, 2, 3).collect();
        assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(all(5, 3, 1).map(|(order, _)| order).collect::<Vec<_>>(), [0, 1, 2, 3, 4], "a row that is not whole");
        assert_eq!(all(3, 0, 1).count(), 3);
    }

    #[test]
    fn at_any_moment_no_harness_is_more_than_a_group_behind() {
        let (harnesses, samples) = (4, 3);
        let mut begun = vec![0_u32; harnesses];
        for (order, _) in all(harnesses * 5, harnesses, samples) {
            begun[order % harnesses] += 1;
            let (most, least) = (begun.iter().max().unwrap(), begun.iter().min().unwrap());
            assert!(most - least <= samples, "{begun:?}");
        }
        assert_eq!(begun, [15; 4]);
    }
}
