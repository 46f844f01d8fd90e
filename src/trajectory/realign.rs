//! Where an earlier reply stands in a later prompt that has other tokens for it.

use std::ops::Range;

/// So many of a reply's last tokens are looked for at most: enough to tell its end from other places.
const TAIL: usize = 8;

/// A reply that is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost<'a> {
    /// Where it stood in its own sequence.
    pub start: usize,
    pub reply: &'a [u32],
    /// How many tokens of its own sequence are the same here.
    pub agrees: usize,
}

/// Finds the reply in `ids`, from `from` on and before `bound`; `None` if there is no telling where it is.
pub(super) fn place(ids: &[u32], from: usize, bound: usize, lost: Lost<'_>) -> Option<Range<usize>> {
    let Lost { start, reply, agrees } = lost;
    if from >= bound || reply.is_empty() {
        return None;
    }
    if start > agrees {
        // Something before it is other tokens: it stands elsewhere, if its own are the same.
        let found = find(&ids[from..bound], reply)? + from;
        return Some(found..found + reply.len());
    }
    let start = start.max(from);
    let same = agrees.clamp(start, bound);
    let rest = reply.get(same - start..).unwrap_or_default();
    let window = &ids[same..bound.min(same + 2 * rest.len() + TAIL)];
    // Where the two come together again: the longest end of the reply that stands here.
    let again =
        (1..=rest.len().min(TAIL)).rev().find_map(|len| find(window, &rest[rest.len() - len..]).map(|at| same + at + len));
    let end = again.unwrap_or(start + reply.len()).clamp(start, bound);
    (start < end).then_some(start..end)
}

fn find(ids: &[u32], wanted: &[u32]) -> Option<usize> {
    let first = wanted.first()?;
    let mut at = 0;
    while let Some(next) = ids[at..].iter().position(|id| id == first) {
        at += next;
        if ids[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_where_its_last_tokens_stand() {
        // The reply 3 4 5 9 came back as 3 45 9.
        let lost = Lost { start: 2, reply: &[3, 4, 5, 9], agrees: 3 };
        assert_eq!(place(&[1, 2, 3, 45, 9, 7, 8], 0, 7, lost), Some(2..5));
        // Nothing of it comes back: as long as it was, but not beyond what comes next.
        assert_eq!(place(&[1, 2, 3, 45, 46, 47, 48], 0, 7, lost), Some(2..6));
        assert_eq!(place(&[1, 2, 3, 45, 46, 47, 48], 0, 4, lost), Some(2..4));
        // All of it is other tokens.
        assert_eq!(place(&[1, 2, 6, 9, 7], 0, 5, Lost { agrees: 2, ..lost }), Some(2..4));
    }

    #[test]
    fn a_reply_behind_others_is_looked_for() {
        let lost = Lost { start: 6, reply: &[5, 9], agrees: 3 };
        assert_eq!(place(&[1, 2, 3, 4, 5, 5, 9, 7], 3, 8, lost), Some(5..7));
        assert_eq!(place(&[1, 2, 3, 4, 5, 5, 9, 7], 6, 8, lost), None);
        assert_eq!(place(&[1, 2, 3], 3, 3, lost), None);
    }
}
