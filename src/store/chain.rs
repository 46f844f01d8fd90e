//! Which call's body another's is told by: the calls of each rollout that the next may go on from.
//!
//! A harness sends its history with each call, so a request is nearly the one that it goes on from; and so are the bodies and
//! the prompt's ids that were made of it. What the last calls of each rollout had is kept in memory, within a bound for all: a
//! conversation that was let go begins a new chain, which costs room and nothing else. Chains are bounded in length, so that to read
//! one body few others are read. Whoever writes this names a call by its id and only after it was written, in the same
//! transaction or an earlier one; chains never leave their rollout.

use std::collections::HashMap;

use bytes::Bytes;

use super::body::Base;
use super::delta::{shared_head, shared_tail};
use crate::call::RawKind;
use crate::ids::{CallId, RolloutId};

/// Bodies that are read to read one, at most.
const LONGEST: u32 = 16;
/// And their bytes.
const HEAVIEST: usize = 16 << 20;
/// The same for ids, of which only the tails are read.
const LONGEST_IDS: u32 = 128;
/// Calls of one rollout that are kept: tips of conversations that take turns.
const TIPS: usize = 4;
/// Bytes of bodies and ids that are kept, of all rollouts.
const MOST: usize = 256 << 20;
/// So many bytes in common make a body worth telling by another; ids, by a quarter of that.
const WORTH: usize = 64;

/// A body that another may be told by.
#[derive(Clone)]
pub(super) struct Link {
    pub base: Base,
    pub rest: Bytes,
    length: u32,
    weight: usize,
}

/// The call that another goes on from, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub call: CallId,
    /// Most of its request is in the other's, so that nothing else is likely to go on from it.
    pub whole: bool,
}

/// Ids that a prompt's may be told by.
pub(super) struct Shared {
    pub call: CallId,
    /// How many ids of the call's whole sequence, prompt and reply, the prompt begins with.
    pub count: usize,
    length: u32,
}

/// What is known of the last calls of each rollout.
#[derive(Default)]
pub(super) struct Chains {
    rollouts: HashMap<RolloutId, Recent>,
    bytes: usize,
    turn: u64,
}

#[derive(Default)]
struct Recent {
    /// The newest last.
    calls: Vec<Known>,
    bytes: usize,
    used: u64,
}

struct Known {
    call: CallId,
    parts: [Option<Link>; 4],
    /// The call's whole sequence, and the length of its prompt's chain.
    ids: Option<(Vec<u32>, u32)>,
}

impl Known {
    fn bytes(&self) -> usize {
        let parts = self.parts.iter().flatten().map(|part| part.rest.len()).sum::<usize>();
        parts + self.ids.as_ref().map_or(0, |(ids, _)| ids.len() * 4)
    }
}

impl Chains {
    /// The call that a request goes on from: the one that it shares most with.
    pub(super) fn before(&self, rollout: RolloutId, request: &[u8]) -> Option<Before> {
        let shared = |known: &Known| {
            let other = &known.parts[RawKind::Request as usize].as_ref()?.rest;
            let head = shared_head(request, other);
            let shared = head + shared_tail(&request[head..], &other[head..]);
            Some((shared, Before { call: known.call, whole: shared >= other.len() / 4 * 3 }))
        };
        let (shared, best) = self.rollouts.get(&rollout)?.calls.iter().filter_map(shared).max_by_key(|(shared, _)| *shared)?;
        (shared >= WORTH).then_some(best)
    }

    /// The body of `kind` to tell another by: that of the call before it, or of the newest that has one. None if the chain would
    /// grow too long for another body of `size`.
    pub(super) fn link(&self, rollout: RolloutId, before: Option<CallId>, kind: RawKind, size: usize) -> Option<Link> {
        let calls = &self.rollouts.get(&rollout)?.calls;
        let part = |known: &Known| known.parts[kind as usize].clone();
        let own = calls.iter().find(|known| Some(known.call) == before).and_then(part);
        let link = own.or_else(|| calls.iter().rev().find_map(part))?;
        (link.length < LONGEST && link.weight + size <= HEAVIEST).then_some(link)
    }

    /// Keeps a body that `after` was told by, for others.
    pub(super) fn keep(&mut self, rollout: RolloutId, call: CallId, kind: RawKind, rest: Bytes, after: Option<&Link>) {
        let (length, weight) = after.map_or((1, rest.len()), |link| (link.length + 1, link.weight + rest.len()));
        let link = Link { base: Base::Call(call), rest, length, weight };
        self.change(rollout, call, |known| known.parts[kind as usize] = Some(link));
    }

    /// What a prompt's ids may be told by: `after`, or the call that has most of them.
    pub(super) fn ids(&self, rollout: RolloutId, after: Option<CallId>, prompt: &[u32]) -> Option<Shared> {
        let calls = &self.rollouts.get(&rollout)?.calls;
        let shared = |known: &Known| {
            let (ids, length) = known.ids.as_ref()?;
            Some(Shared { call: known.call, count: shared_head(prompt, ids), length: *length })
        };
        let named =
            calls.iter().find(|known| Some(known.call) == after).and_then(shared).filter(|shared| shared.count >= WORTH / 4);
        let best = named.or_else(|| calls.iter().filter_map(shared).max_by_key(|shared| shared.count))?;
        (best.count >= WORTH / 4 && best.length < LONGEST_IDS).then_some(best)
    }

    /// Keeps a call's ids, which `shared` tells by another, and lets go of the call `done`, which nothing else goes on from.
    pub(super) fn keep_ids(
        &mut self,
        rollout: RolloutId,
        call: CallId,
        done: Option<CallId>,
        shared: Option<&Shared>,
        (prompt, completion): (&[u32], &[u32]),
    ) {
        let old = done.and_then(|done| self.remove(rollout, done));
        if prompt.is_empty() {
            return;
        }
        // What the old one has in common stays where it is.
        let mut ids = old
            .filter(|old| shared.is_some_and(|shared| shared.call == old.call))
            .and_then(|old| old.ids)
            .map_or_else(Vec::new, |old| old.0);
        ids.truncate(if ids.is_empty() { 0 } else { shared.map_or(0, |shared| shared.count) });
        ids.extend_from_slice(&prompt[ids.len()..]);
        ids.extend_from_slice(completion);
        let length = shared.map_or(1, |shared| shared.length + 1);
        self.change(rollout, call, |known| known.ids = Some((ids, length)));
    }

    /// Lets go of everything: what was kept may not be in the store.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn change(&mut self, rollout: RolloutId, call: CallId, change: impl FnOnce(&mut Known)) {
        self.turn += 1;
        let recent = self.rollouts.entry(rollout).or_default();
        recent.used = self.turn;
        let before = recent.bytes;
        if let Some(known) = recent.calls.iter_mut().find(|known| known.call == call) {
            recent.bytes -= known.bytes();
            change(known);
            recent.bytes += known.bytes();
        } else {
            if recent.calls.len() == TIPS {
                recent.bytes -= recent.calls.remove(0).bytes();
            }
            let mut known = Known { call, parts: [const { None }; 4], ids: None };
            change(&mut known);
            recent.bytes += known.bytes();
            recent.calls.push(known);
        }
        self.bytes = self.bytes - before + recent.bytes;
        if self.bytes > MOST {
            self.shrink();
        }
    }

    fn remove(&mut self, rollout: RolloutId, call: CallId) -> Option<Known> {
        let recent = self.rollouts.get_mut(&rollout)?;
        let at = recent.calls.iter().position(|known| known.call == call)?;
        let known = recent.calls.remove(at);
        recent.bytes -= known.bytes();
        self.bytes -= known.bytes();
        Some(known)
    }

    /// Lets go of the rollouts that had no call for the longest time, until a quarter of the room is free.
    fn shrink(&mut self) {
        let mut oldest: Vec<_> = self.rollouts.iter().map(|(id, recent)| (recent.used, *id)).collect();
        oldest.sort_unstable();
        for (_, id) in oldest {
            if self.bytes <= MOST / 4 * 3 {
                break;
            }
            self.bytes -= self.rollouts.remove(&id).map_or(0, |recent| recent.bytes);
        }
    }
}
