//! What is new in one body beside another, its base.
//!
//! A harness's next request is the last one with a piece put in near its end, sometimes with a mark moved or a field changed; a
//! policy's next reply repeats the prompt's ids. So a body is told as copies out of its base, in the order of the body, and the
//! bytes between them. What both share at their ends costs two comparisons of memory; only where something is left on both sides
//! is it searched: the base's stretches of [`WINDOW`] bytes are looked up, and a match is followed as far as it goes.

use super::pack::{read_varint, varint};

/// Bytes by which a match is found: in the base at multiples of it, in the body anywhere.
const WINDOW: usize = 32;
/// A copy that is shorter doesn't pay for being named.
const SHORTEST: usize = 48;
/// No body is larger.
const LARGEST: usize = 1 << 31;

/// A body told by its base.
#[derive(Debug, Default)]
pub(super) struct Delta {
    /// How many copies there are.
    count: u64,
    /// For each, as varints: the bytes that are new before it, how far it starts from where the last one ended (zigzag), and its
    /// length.
    copies: Vec<u8>,
    /// What is new.
    pub literals: Vec<u8>,
    /// Bytes that are copied.
    pub copied: usize,
}

impl Delta {
    /// What is new in `body` beside `base`.
    pub(super) fn of(body: &[u8], base: &[u8]) -> Self {
        let head = shared_head(body, base);
        let tail = shared_tail(&body[head..], &base[head..]);
        let mut walk = Walk { body, done: 0, source: 0, delta: Self::default() };
        walk.copy(0, 0, head);
        walk.search(head..body.len() - tail, base, head..base.len() - tail);
        walk.copy(body.len() - tail, base.len() - tail, tail);
        walk.delta.literals.extend_from_slice(&body[walk.done..]);
        walk.delta
    }

    /// Writes how the copies go; the literals are the caller's to keep.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        varint(out, self.count);
        out.extend_from_slice(&self.copies);
    }
}

/// Takes the copies off the front of `bytes`: what follows is to be read before they are applied.
pub(super) fn read_copies(bytes: &mut &[u8]) -> Option<Vec<(usize, usize, usize)>> {
    let mut source = 0_i64;
    let count = read_varint(bytes)?;
    let mut copies = Vec::with_capacity(usize::try_from(count).ok()?.min(bytes.len() / 3));
    for _ in 0..count {
        let new = usize::try_from(read_varint(bytes)?).ok()?;
        let from = source.checked_add(unzigzag(read_varint(bytes)?))?;
        let length = read_varint(bytes)?;
        source = from.checked_add(i64::try_from(length).ok()?)?;
        copies.push((new, usize::try_from(from).ok()?, usize::try_from(length).ok()?));
    }
    Some(copies)
}

/// Makes the body again; `None` if it is none of this base's.
pub(super) fn apply(copies: &[(usize, usize, usize)], mut literals: &[u8], base: &[u8]) -> Option<Vec<u8>> {
    let size = copies.iter().try_fold(literals.len(), |size, (.., length)| size.checked_add(*length))?;
    if size > LARGEST {
        return None;
    }
    let mut body = Vec::with_capacity(size);
    for (new, from, length) in copies {
        let (before, rest) = literals.split_at_checked(*new)?;
        body.extend_from_slice(before);
        body.extend_from_slice(base.get(*from..from.checked_add(*length)?)?);
        literals = rest;
    }
    body.extend_from_slice(literals);
    Some(body)
}

/// A walk through a body.
struct Walk<'a> {
    body: &'a [u8],
    /// So far it is told.
    done: usize,
    /// Where in the base the last copy ended.
    source: usize,
    delta: Delta,
}

impl Walk<'_> {
    /// Tells what comes before `at` as new, and `length` bytes from there as a copy.
    fn copy(&mut self, at: usize, from: usize, length: usize) {
        if length < SHORTEST.min(self.body.len() / 2) || length == 0 {
            return;
        }
        let delta = &mut self.delta;
        delta.literals.extend_from_slice(&self.body[self.done..at]);
        delta.count += 1;
        delta.copied += length;
        varint(&mut delta.copies, (at - self.done) as u64);
        varint(&mut delta.copies, zigzag((from as u64).wrapping_sub(self.source as u64).cast_signed()));
        varint(&mut delta.copies, length as u64);
        (self.done, self.source) = (at + length, from + length);
    }

    /// Looks for what a stretch of the body has of a stretch of the base.
    fn search(&mut self, within: std::ops::Range<usize>, base: &[u8], of: std::ops::Range<usize>) {
        if within.len() < SHORTEST || of.len() < SHORTEST {
            return;
        }
        let table = Table::of(base, of.clone());
        let mut at = within.start;
        // Where nothing was found for long, steps grow: odd, so that they meet every phase of the base's stretches.
        let mut missed = 0_usize;
        while at + WINDOW <= within.end {
            let found = table.find(window(self.body, at)).filter(|from| base[*from..from + WINDOW] == self.body[at..at + WINDOW]);
            if let Some(from) = found {
                let before = shared_tail(&self.body[self.done.max(within.start)..at], &base[of.start..from]);
                let after = shared_head(&self.body[at..within.end], &base[from..of.end]);
                if before + after >= SHORTEST {
                    self.copy(at - before, from - before, before + after);
                    at += after;
                    missed = 0;
                    continue;
                }
            }
            missed += 1;
            at += (missed / 64).min(30) | 1;
        }
    }
}

/// Where the base's stretches are, by their hash; of those alike, the first.
struct Table {
    slots: Vec<u32>,
    shift: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "a slot's number is what is left of a hash")]
impl Table {
    fn of(base: &[u8], of: std::ops::Range<usize>) -> Self {
        let bits = (of.len() / WINDOW * 2).next_power_of_two().ilog2().max(4);
        let mut table = Self { slots: vec![0; 1 << bits], shift: 64 - bits };
        for at in (of.start..of.end.saturating_sub(WINDOW - 1)).step_by(WINDOW) {
            let slot = &mut table.slots[(window(base, at) >> table.shift) as usize];
            if *slot == 0 {
                *slot = u32::try_from(at + 1).unwrap_or(0);
            }
        }
        table
    }

    fn find(&self, hash: u64) -> Option<usize> {
        self.slots.get((hash >> self.shift) as usize).filter(|slot| **slot > 0).map(|slot| *slot as usize - 1)
    }
}

/// The hash of the stretch that begins at `at`.
fn window(bytes: &[u8], at: usize) -> u64 {
    let (words, _) = bytes[at..at + WINDOW].as_chunks::<8>();
    let mixed = words
        .iter()
        .fold(0_u64, |hash, word| (hash.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed ^ (mixed >> 29)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// How much two slices share at their beginning.
pub(super) fn shared_head<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    const STEP: usize = 64;
    let blocks = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

/// How much two slices share at their end.
pub(super) fn shared_tail<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    const STEP: usize = 64;
    let blocks = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    let (a, b) = (&a[..a.len() - blocks], &b[..b.len() - blocks]);
    blocks + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn back(delta: &Delta, base: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        delta.write(&mut out);
        let mut rest = out.as_slice();
        let copies = read_copies(&mut rest)?;
        assert!(rest.is_empty());
        apply(&copies, &delta.literals, base)
    }

    fn text(length: usize, mut seed: u64) -> Vec<u8> {
        std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b'a' + seed.to_be_bytes()[0] % 26
        })
        .take(length)
        .collect()
    }

    #[test]
    fn what_moved_is_copied_wherever_it_is() {
        let base = text(200_000, 1);
        let moved =
            [b"new" as &[u8], &base[150_000..], b"mark", &base[..100_000], &text(500, 2), &base[100_000..150_000]].concat();
        let delta = Delta::of(&moved, &base);
        assert!(delta.literals.len() < 700, "{} bytes are new", delta.literals.len());
        assert_eq!(back(&delta, &base), Some(moved));
    }

    #[test]
    fn a_piece_put_in_is_all_that_is_new() {
        let base = text(200_000, 1);
        let piece = text(2_000, 9);
        let body = [&base[..199_900], &piece, &base[199_900..]].concat();
        let delta = Delta::of(&body, &base);
        assert_eq!(delta.literals, piece);
        assert_eq!(back(&delta, &base), Some(body));
    }

    #[test]
    fn another_base_is_refused() {
        let base = text(1_000, 1);
        let delta = Delta::of(&base, &base);
        assert_eq!(back(&delta, &base[..900]), None);
    }

    proptest! {
        #[test]
        fn bodies_come_back(
            base in prop::collection::vec(0_u8..4, 0..3000),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
            new in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut body = Vec::new();
            for (from, to) in cuts {
                let (from, to) = (from.index(base.len() + 1), to.index(base.len() + 1));
                body.extend_from_slice(&base[from.min(to)..from.max(to)]);
                body.extend_from_slice(&new);
            }
            let delta = Delta::of(&body, &base);
            prop_assert_eq!(delta.copied + delta.literals.len(), body.len());
            prop_assert_eq!(back(&delta, &base), Some(body));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, base: Vec<u8>) {
            let mut rest = bytes.as_slice();
            if let Some(copies) = read_copies(&mut rest) {
                let _ = apply(&copies, rest, &base);
            }
        }
    }
}
