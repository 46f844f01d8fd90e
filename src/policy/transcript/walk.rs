//! A call's messages along what was said before: which replies they pass, and where they part from it.

use super::said::{Said, Says, hash};
use super::{Kept, continues};
use crate::call::{Call, Message, Role};

/// How many replies that say the same are walked on from.
const MOST: usize = 64;

/// All that was said up to a place among a call's messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub said: u64,
    /// The last exchange that was passed.
    pub last: Option<usize>,
    /// The messages that are its reply: the first, and the one after the last.
    pub reply: (usize, usize),
}

/// The states of a call's messages.
#[derive(Debug)]
pub(super) struct Walked {
    /// For each place: before the first message, before the second ... after the last.
    pub states: Vec<Vec<State>>,
}

impl Kept {
    /// Walks from `root`; `keys` are of the messages' bytes.
    pub(super) fn walk(&mut self, root: u64, messages: &[Message], keys: &[u64]) -> Walked {
        let mut states: Vec<Vec<State>> = vec![Vec::new(); messages.len() + 1];
        states[0].push(State { said: root, last: None, reply: (0, 0) });
        for at in 0..messages.len() {
            self.read.entry(keys[at]).or_insert_with(|| Says::of(&messages[at]));
            let here = std::mem::take(&mut states[at]);
            for state in &here {
                match &self.read[&keys[at]] {
                    Says::Other(said) => push(&mut states[at + 1], State { said: hash(&(state.said, said)), ..*state }),
                    Says::Assistant(said) => {
                        let unknown = State { said: hash(&(state.said, said)), ..*state };
                        if !self.replied(*state, at, messages, said, &mut states) {
                            push(&mut states[at + 1], unknown);
                        }
                    }
                }
            }
            states[at] = here;
        }
        Walked { states }
    }

    /// Takes the replies that stand at `at`, in one message or in several; says whether there is any.
    fn replied(&self, state: State, at: usize, messages: &[Message], said: &Said, states: &mut [Vec<State>]) -> bool {
        let Some(replies) = self.replies.get(&state.said) else { return false };
        let run = messages[at..].iter().take_while(|message| message.role == Role::Assistant).count();
        let mut any = false;
        for end in at + 1..=at + run {
            let joined;
            let said = if end == at + 1 {
                said
            } else {
                joined = Said::of(&messages[at..end].iter().collect::<Vec<_>>());
                &joined
            };
            for reply in replies.iter().copied().filter(|reply| self.exchanges[*reply].said.differs(said).is_none()) {
                any = true;
                push(&mut states[end], State { said: self.exchanges[reply].end, last: Some(reply), reply: (at, end) });
            }
        }
        any
    }

    /// Why a call is not all an earlier exchange and new messages, in people's words; `None` if it is, or repeats an earlier call, or
    /// begins as none did. `best` is what it can go on from.
    pub(super) fn parted(&self, walked: &Walked, best: Option<&State>, call: &Call, keys: &[u64]) -> Option<String> {
        let (rest, count) = (best.map_or(0, |state| state.reply.1), call.messages.len());
        let spoken = (rest..count).find(|at| call.messages[*at].role == Role::Assistant);
        // What a client itself begins the reply with is no claim of what was said.
        let spoken = spoken.filter(|at| at + 1 < count || !continues(call));
        if best.is_some() && spoken.is_none() {
            return None;
        }
        let end = spoken.unwrap_or(count);
        let known = |at: usize| walked.states[at].iter().rev().find(|state| self.known.contains_key(&state.said));
        let (at, state) = (0..=end).rev().find_map(|at| Some((at, known(at)?)))?;
        let name = |at: usize| format!("message {} ({})", at + 1, call.messages[at].role.name());
        if at < end {
            if self.replies.contains_key(&state.said) {
                return Some(format!("{} stands where the policy's reply was", name(at)));
            }
            if self.known.get(&state.said) == Some(&true) {
                return Some(format!("{} is not what it was in the earlier calls", name(at)));
            }
        }
        let at = spoken?;
        let Says::Assistant(said) = self.read.get(&keys[at])? else { return None };
        let reply = walked.states[at].iter().rev().find_map(|state| self.replies.get(&state.said)?.last());
        Some(match reply.and_then(|reply| self.exchanges[*reply].said.differs(said)) {
            Some(differs) => format!("{} is not what the policy said: {differs}", name(at)),
            None if self.exchanges.iter().any(|other| other.said.differs(said).is_none()) => {
                format!("{} was said by the policy, but after something else", name(at))
            }
            None => format!("{} was not said by the policy", name(at)),
        })
    }
}

/// Adds a state, once.
fn push(states: &mut Vec<State>, state: State) {
    if let Some(same) = states.iter_mut().find(|same| same.said == state.said) {
        // Of replies that say the same, the one that was noted last.
        if (state.reply.1, state.last) > (same.reply.1, same.last) {
            *same = state;
        }
    } else if states.len() < MOST {
        states.push(state);
    } else if let Some(oldest) = states.iter_mut().min_by_key(|state| state.last) {
        *oldest = state;
    }
}
