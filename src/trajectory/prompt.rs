//! Prompts that share their tokens: a conversation's calls send it again and again, and keep it once.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use super::Turn;
use crate::call::CallRecord;

/// So many of the sequences met last are tried: the conversations that go on side by side.
const RECENT: usize = 8;

/// A prompt's ids: the beginning of a sequence that others may share.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    sequence: Arc<Vec<u32>>,
    len: usize,
}

impl Prompt {
    /// Which sequence it is the beginning of: equal for those that share one.
    pub(super) fn sequence(&self) -> *const Vec<u32> {
        Arc::as_ptr(&self.sequence)
    }

    /// Whether the two are beginnings of one sequence, so that the shorter is the beginning of the longer.
    pub(super) fn shares(&self, other: &Self) -> bool {
        self.sequence() == other.sequence()
    }
}

impl Deref for Prompt {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.sequence[..self.len]
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self { len: ids.len(), sequence: Arc::new(ids) }
    }
}

/// Makes turns of calls, in the order in which they began: without text, of a policy that is trained, without rewards. Their
/// prompts' ids move from the records into [`Turn::prompt`].
#[must_use]
pub fn turns(records: Vec<CallRecord>) -> Vec<Turn> {
    let mut recent: Vec<Arc<Vec<u32>>> = Vec::new();
    // Later prompts are the longer ones.
    let turn = |mut record: CallRecord| {
        let prompt = share(&mut recent, std::mem::take(&mut record.capture.prompt_ids));
        Turn { record, prompt, messages: Vec::new(), tools: Vec::new(), trained: true, rewards: BTreeMap::new() }
    };
    let mut turns: Vec<Turn> = records.into_iter().rev().map(turn).collect();
    turns.reverse();
    turns
}

fn share(recent: &mut Vec<Arc<Vec<u32>>>, ids: Vec<u32>) -> Prompt {
    if ids.is_empty() {
        return Prompt::default();
    }
    let len = ids.len();
    let sequence = match recent.iter().rposition(|sequence| sequence.starts_with(&ids)) {
        Some(at) => recent.remove(at),
        None => Arc::new(ids),
    };
    if recent.len() == RECENT {
        recent.remove(0);
    }
    recent.push(Arc::clone(&sequence));
    Prompt { sequence, len }
}
