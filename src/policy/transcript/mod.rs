//! What a rollout has said and sampled so far, for policies that make their prompts themselves.
//!
//! Noted exchanges form a trie of what was said: a state stands for all that was said before it, and each state knows the replies that
//! were given there. A call's messages walk along it, and go on from the last reply that they pass. A reply is known by what it says
//! ([`said`]), so that it is found whatever a harness made of its spelling; where a harness left its reasoning out, all replies
//! that say the same are walked on from.

mod said;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::call::{Call, Capture, CaptureLevel, Message, Role};
use crate::ids::CallId;

use said::{Said, Says, Setting, bytes_of, hash};
use walk::State;

#[cfg(feature = "exact")]
pub(super) use said::VARIABLES;

/// The exchanges of one rollout, kept while it takes calls. Its size grows with what is new in each.
#[derive(Debug, Default)]
pub struct Transcript {
    kept: Mutex<Kept>,
}

/// One call that ended well, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    pub call_id: CallId,
    pub call: &'a Call,
    /// What the policy answered.
    pub reply: &'a Message,
    pub capture: &'a Capture,
}

/// What a call's prompt can go on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The last earlier reply that the call's messages pass.
    pub earlier: Option<Earlier>,
    /// What of the messages after it, or of all of them, is not as it was said, in people's words.
    pub afresh: Option<String>,
}

/// An earlier exchange, all of which stands at the beginning of a call's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    pub call_id: CallId,
    /// Its whole sequence, prompt and reply.
    pub ids: Vec<u32>,
    /// The call's messages that are its reply: the first, and the one after the last.
    pub reply: (usize, usize),
}

/// What is kept, behind a lock that is held for moments.
#[derive(Debug, Default)]
struct Kept {
    exchanges: Vec<Sampled>,
    by_call: HashMap<CallId, usize>,
    /// The replies that were given at a state, in the order in which they were noted.
    replies: HashMap<u64, Vec<usize>>,
    /// The states that noted exchanges went through, and whether their calls went on from there.
    known: HashMap<u64, bool>,
    /// What messages say, by their bytes: most of a call's messages were there in the one before.
    read: HashMap<u64, Says>,
    setting: Option<Setting>,
}

/// A noted exchange.
#[derive(Debug)]
struct Sampled {
    call_id: CallId,
    said: Said,
    /// The state after the reply.
    end: u64,
    /// The exchange whose sequence this one's begins like: the one that it goes on from, else the one noted before it.
    base: Option<usize>,
    /// How many ids are that one's, and those that follow.
    shared: usize,
    tail: Vec<u32>,
}

impl Transcript {
    /// Remembers an exchange whose prompt Gleaner made; others are of no use to later prompts.
    pub fn note(&self, exchange: Exchange<'_>) {
        let Exchange { call_id, call, reply, capture } = exchange;
        let Some(rendered) = &capture.rendered else { return };
        if call.prompt.is_some() || capture.level == CaptureLevel::Text || capture.completion_ids.is_empty() {
            return;
        }
        let setting = Setting::of(call, &rendered.tokenizer_hash, &rendered.template_hash);
        let keys: Vec<u64> = call.messages.iter().map(bytes_of).collect();
        let mut kept = self.lock();
        if kept.by_call.contains_key(&call_id) {
            return;
        }
        let after = rendered.after.and_then(|after| kept.by_call.get(&after).copied());
        let walked = kept.walk(hash(&setting), &call.messages, &keys);
        let count = call.messages.len();
        for state in walked.states[..count].iter().flatten() {
            kept.known.insert(state.said, true);
        }
        let along = |at: usize| {
            // That of the exchange which the prompt goes on from.
            let state = walked.states[at].iter().max_by_key(|state| (state.last == after, state.reply.1, state.last));
            state.map_or(0, |state| state.said)
        };
        kept.keep(call_id, along(count), Said::of(&[reply]), after, capture);
        if continues(call) {
            // The client began the reply itself, and may send both as one.
            let begun = count - call.messages.iter().rev().take_while(|message| message.role == Role::Assistant).count();
            let whole: Vec<&Message> = call.messages[begun..].iter().chain([reply]).collect();
            kept.also(call_id, along(begun), Said::of(&whole));
        }
        kept.setting = Some(setting);
    }

    /// Finds what a call's prompt can go on from, where ids and text are those of this tokenizer and this template.
    #[must_use]
    pub fn find(&self, call: &Call, tokenizer_hash: &str, template_hash: &str) -> Found {
        let setting = Setting::of(call, tokenizer_hash, template_hash);
        let keys: Vec<u64> = call.messages.iter().map(bytes_of).collect();
        let mut kept = self.lock();
        let Some(earlier) = &kept.setting else { return Found::default() };
        let other = setting.differs(earlier);
        let root = hash(&setting);
        if let (Some(other), false) = (other, kept.known.contains_key(&root)) {
            return Found { earlier: None, afresh: Some(other.to_owned()) };
        }
        let walked = kept.walk(root, &call.messages, &keys);
        let best = walked.states.iter().flatten().filter(|state| state.last.is_some());
        let best = best.max_by_key(|state| (state.reply.1, state.last)).copied();
        let afresh = kept.parted(&walked, best.as_ref(), call, &keys);
        let earlier = best.and_then(|State { last, reply, .. }| {
            let last = last?;
            Some(Earlier { call_id: kept.exchanges[last].call_id, ids: kept.whole(last), reply })
        });
        Found { earlier, afresh }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn keep(&mut self, call_id: CallId, state: u64, said: Said, after: Option<usize>, capture: &Capture) {
        let base = after.or(self.exchanges.len().checked_sub(1));
        let shared = base.map_or(0, |base| {
            let ids = self.whole(base);
            ids.iter().zip(&capture.prompt_ids).take_while(|(one, other)| one == other).count()
        });
        let tail = [&capture.prompt_ids[shared..], &capture.completion_ids].concat();
        self.by_call.insert(call_id, self.exchanges.len());
        self.reply(state, Sampled { call_id, end: hash(&(state, &said)), said, base, shared, tail });
    }

    /// Keeps another way to find an exchange.
    fn also(&mut self, call_id: CallId, state: u64, said: Said) {
        let base = self.by_call.get(&call_id).copied();
        self.reply(state, Sampled { call_id, end: hash(&(state, &said)), said, base, shared: usize::MAX, tail: Vec::new() });
    }

    fn reply(&mut self, state: u64, sampled: Sampled) {
        self.known.entry(state).or_default();
        self.known.entry(sampled.end).or_default();
        self.replies.entry(state).or_default().push(self.exchanges.len());
        self.exchanges.push(sampled);
    }

    /// The ids of an exchange.
    fn whole(&self, at: usize) -> Vec<u32> {
        let line: Vec<&Sampled> =
            std::iter::successors(self.exchanges.get(at), |sampled| self.exchanges.get(sampled.base?)).collect();
        let mut ids = Vec::new();
        for sampled in line.into_iter().rev() {
            ids.truncate(sampled.shared);
            ids.extend_from_slice(&sampled.tail);
        }
        ids
    }
}

/// Whether the last message is the assistant's and the reply is to go on in it.
pub(super) fn continues(call: &Call) -> bool {
    let asked = call.rest.iter().any(|(name, value)| name.inner() == b"continue_final_message" && value.as_bytes() == b"true");
    asked && call.messages.last().is_some_and(|message| message.role == Role::Assistant)
}
