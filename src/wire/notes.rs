//! What was left out or changed while a request was read, each thing said once; bounded, since a body can give any number of
//! occasions.

use std::collections::{BTreeMap, BTreeSet};

/// How many things, and how many kinds of things that are passed over, are named.
const NAMED: usize = 20;
/// How long a note may be, in characters: some quote names that the client chose.
const LONGEST: usize = 500;

/// The notes on one request.
#[derive(Clone, Default)]
pub(super) struct Notes {
    passed: BTreeMap<(&'static str, String), usize>,
    said: BTreeSet<String>,
    order: Vec<String>,
}

impl Notes {
    /// Notes something, once.
    pub(super) fn say(&mut self, note: impl Into<String>) {
        let mut note = note.into();
        if let Some((end, _)) = note.char_indices().nth(LONGEST) {
            note.truncate(end);
        }
        if self.said.len() < NAMED && self.said.insert(note.clone()) {
            self.order.push(note);
        }
    }

    /// Adds what was noted elsewhere on the same request.
    pub(super) fn add(&mut self, others: Self) {
        others.list().into_iter().for_each(|note| self.say(note));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_said_once_and_nothing_without_end() {
        let mut notes = Notes::default();
        for note in ["a", "b", "a"] {
            notes.say(note);
        }
        notes.pass("field", "x");
        notes.pass("block", "y");
        notes.pass("block", "y");
        let mut more = Notes::default();
        more.say("c");
        more.say("b");
        notes.add(more);
        assert_eq!(notes.list(), ["a", "b", "c", "passed over 2 blocks y", "passed over the field x"]);
        let mut many = Notes::default();
        for number in 0..1000 {
            many.say(format!("{number}{}", "é".repeat(LONGEST)));
            many.pass("field", &number.to_string());
        }
        let list = many.list();
        assert_eq!((list.len(), list[0].chars().count()), (2 * NAMED, LONGEST));
    }
}
