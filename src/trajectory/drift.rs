//! Drift: a conversation goes on, but its tokens don't.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::call::CallRecord;

/// Counts the places where a prompt parts from an earlier reply that reads the same: the request goes on from a reply by what was
/// said, and its tokens leave that reply's sequence inside a reply. `said` is whom each turn goes on from by its text.
pub(super) fn count(tree: &Tree<'_>, said: &[Option<usize>], records: &[&CallRecord]) -> u64 {
    let mut places = BTreeSet::new();
    for (turn, earlier) in said.iter().enumerate() {
        let Some(earlier) = *earlier else { continue };
        if !tree.holds(turn) || !tree.holds(earlier) || tree.key(turn) != tree.key(earlier) {
            continue;
        }
        let at = tree.shared(turn, earlier).min(records[turn].capture.prompt_ids.len());
        let parted = tree.chain(earlier).into_iter().find(|reply| {
            let capture = &records[*reply].capture;
            let start = capture.prompt_ids.len();
            (start..start + capture.completion_ids.len()).contains(&at)
        });
        places.extend(parted.map(|reply| (reply, at)));
    }
    places.len() as u64
}
