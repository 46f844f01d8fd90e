//! What was left out or changed while a request was read, each thing said once.

use std::collections::{BTreeMap, BTreeSet};

/// How many kinds of things are named; a body can hold any number of them.
const NAMED: usize = 20;

#[derive(Default)]
pub(super) struct Notes {
    passed: BTreeMap<(&'static str, String), usize>,
    said: BTreeSet<String>,
    order: Vec<String>,
}

impl Notes {
    /// Notes something, once.
    pub(super) fn say(&mut self, note: impl Into<String>) {
        let note = note.into();
        if self.said.len() < NAMED && self.said.insert(note.clone()) {
            self.order.push(note);
        }
    }

    /// Counts a thing (`what`) of a kind that is passed over.
    pub(super) fn pass(&mut self, what: &'static str, kind: &str) {
        let kind: String = kind.chars().take(64).collect();
        if self.passed.len() < NAMED || self.passed.contains_key(&(what, kind.clone())) {
            *self.passed.entry((what, kind)).or_default() += 1;
        }
    }

    /// All notes.
    pub(super) fn list(self) -> Vec<String> {
        let passed = self.passed.into_iter().map(|((what, kind), count)| match count {
            1 => format!("passed over the {what} {kind}"),
            _ => format!("passed over {count} {what}s {kind}"),
        });
        self.order.into_iter().chain(passed).collect()
    }
}
