//! What came of a reply: its tokens, the pieces in which they came, and whether the servers' counts agree.

use std::sync::Arc;

use super::generate::Said;
use super::replicas::Replica;
use crate::call::{Capture, CaptureLevel, Usage, WeightVersion};
use crate::policy::chunk::VersionSpan;

/// The tokens of one reply, counted.
pub(super) struct Tally {
    prompt: usize,
    /// Ids at and above this are none of the model's.
    vocabulary: Option<u32>,
    ids: Vec<u32>,
    pub(super) pieces: Vec<Piece>,
    is_new: bool,
    foreign: Option<String>,
    /// A log-probability that is of another token.
    mixed: Option<String>,
}

/// What one server sampled of it.
pub(super) struct Piece {
    pub replica: Arc<Replica>,
    /// The index of its first token.
    pub start: usize,
    pub versions: Vec<VersionSpan>,
    /// The weights that the server was known to hold when it broke off.
    pub broke_off: Option<WeightVersion>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

/// Why tokens can't be trusted.
#[derive(Debug, PartialEq)]
pub(super) struct Doubt {
    pub reason: String,
    /// The model here and the server's may not be the same any more.
    pub model: bool,
}

impl Tally {
    pub(super) fn new(prompt: &[u32], vocabulary: Option<u32>) -> Self {
        Self { prompt: prompt.len(), vocabulary, ids: Vec::new(), pieces: Vec::new(), is_new: true, foreign: None, mixed: None }
    }

    /// A server begins, or takes the reply up.
    pub(super) fn begin(&mut self, replica: &Arc<Replica>) {
        self.pieces.push(Piece {
            replica: replica.clone(),
            start: self.ids.len(),
            versions: Vec::new(),
            broke_off: None,
            prompt_tokens: None,
            completion_tokens: None,
            cached_tokens: None,
        });
    }

    /// The server breaks off, and holds these weights now: it may have others by the time when the reply ends elsewhere.
    pub(super) fn break_off(&mut self, version: WeightVersion) {
        if let Some(piece) = self.pieces.last_mut() {
            piece.broke_off = Some(version);
        }
    }

    pub(super) fn take(&mut self, said: &Said) {
        self.is_new = false;
        let before = self.ids.len();
        let foreign = |id: &u32| self.vocabulary.is_some_and(|vocabulary| *id >= vocabulary);
        if let (None, Some(at)) = (&self.foreign, said.ids.iter().position(foreign)) {
            let vocabulary = self.vocabulary.unwrap_or_default();
            self.foreign = Some(format!("token {} is {}, of a vocabulary of {vocabulary}", before + at, said.ids[at]));
        }
        let known = said.logprob_ids.len() == said.ids.len() && said.logprobs.len() == said.ids.len();
        let other = said.ids.iter().zip(&said.logprob_ids).position(|(id, of)| id != of).filter(|_| known);
        if let (None, Some(at)) = (&self.mixed, other) {
            let (id, of) = (said.ids[at], said.logprob_ids[at]);
            self.mixed = Some(format!("token {} is {id}, but its log-probability is of {of}", before + at));
        }
        self.ids.extend_from_slice(&said.ids);
        let Some(piece) = self.pieces.last_mut() else { return };
        piece.prompt_tokens = said.prompt_tokens.or(piece.prompt_tokens);
        piece.completion_tokens = said.completion_tokens.or(piece.completion_tokens);
        piece.cached_tokens = said.cached_tokens.or(piece.cached_tokens);
        if !said.versions.is_empty() {
            piece.versions.clone_from(&said.versions);
        }
    }

    /// Nothing has come yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// In how many pieces the reply came.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// How many tokens a piece has.
    fn sampled(&self, at: usize) -> u64 {
        let end = self.pieces.get(at + 1).map_or(self.ids.len(), |next| next.start);
        (end - self.pieces[at].start) as u64
    }

    /// The servers' counts; our own where a server broke off before it told them.
    pub(super) fn usage(&self) -> Usage {
        let completion =
            self.pieces.iter().enumerate().map(|(at, piece)| piece.completion_tokens.unwrap_or_else(|| self.sampled(at)));
        let first = self.pieces.first();
        Usage {
            prompt_tokens: first.and_then(|piece| piece.prompt_tokens).unwrap_or(self.prompt as u64),
            completion_tokens: completion.sum(),
            cached_tokens: first.and_then(|piece| piece.cached_tokens).unwrap_or_default(),
            reasoning_tokens: 0,
        }
    }

    /// What disagrees; the tokens are known for sure if nothing does.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        for (at, piece) in self.pieces.iter().enumerate() {
            let (sent, sampled) = ((self.prompt + piece.start) as u64, self.sampled(at));
            let last = at + 1 == self.pieces.len();
            match (piece.prompt_tokens, piece.completion_tokens) {
                (Some(counted), _) if counted != sent => {
                    let reason = format!("{sent} prompt ids were sent, but the server counted {counted} tokens");
                    return Some(Doubt { reason, model: true });
                }
                (_, Some(counted)) if counted != sampled => {
                    let reason = format!("{sampled} completion ids, but the server counted {counted} tokens");
                    return Some(Doubt { reason, model: false });
                }
                (None, _) | (_, None) if last => {
                    let reason = "the server gave no usage to check the ids against".to_owned();
                    return Some(Doubt { reason, model: false });
                }
                _ => {}
            }
        }
        self.foreign.clone().map(|reason| Doubt { reason, model: true })
    }

    /// Takes from a capture what is not for sure.
    pub(super) fn judge(&self, capture: &mut Capture, doubt: Option<&Doubt>) {
        let (level, reason) = match (doubt, &self.mixed) {
            (Some(doubt), _) => (CaptureLevel::Text, &doubt.reason),
            (None, Some(mixed)) => (CaptureLevel::Ids.min(capture.level), mixed),
            (None, None) => return,
        };
        capture.level = level;
        capture.reason = Some(reason.clone());
        capture.logprobs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::replicas::Replicas;
    use super::*;
    use crate::policy::PolicyConfig;

    fn said(ids: &[u32], logprob_ids: &[u32]) -> Said {
        Said { ids: ids.to_vec(), logprobs: vec![-0.5; logprob_ids.len()], logprob_ids: logprob_ids.to_vec(), ..Said::default() }
    }

    /// What is left of a full capture after these were told.
    fn judged(vocabulary: Option<u32>, all: &[Said]) -> (CaptureLevel, Option<String>, Option<bool>) {
        let replicas = Replicas::new("p", &PolicyConfig::default(), None).unwrap();
        let mut tally = Tally::new(&[1, 2], vocabulary);
        tally.begin(replicas.first());
        for said in all {
            tally.take(said);
        }
        let sampled = all.iter().map(|said| said.ids.len() as u64).sum();
        tally.take(&Said { prompt_tokens: Some(2), completion_tokens: Some(sampled), ..Said::default() });
        let doubt = tally.doubt();
        let mut capture = Capture { level: CaptureLevel::Full, ..Capture::default() };
        tally.judge(&mut capture, doubt.as_ref());
        (capture.level, capture.reason, doubt.map(|doubt| doubt.model))
    }

    #[test]
    fn a_foreign_id_and_a_log_probability_of_another_token_are_named() {
        let fine = said(&[5, 6], &[5, 6]);
        assert_eq!(judged(Some(7), std::slice::from_ref(&fine)), (CaptureLevel::Full, None, None));
        let foreign = "token 2 is 7, of a vocabulary of 7".to_owned();
        assert_eq!(judged(Some(7), &[fine.clone(), said(&[7], &[7])]), (CaptureLevel::Text, Some(foreign), Some(true)));
        assert_eq!(judged(None, &[fine.clone(), said(&[7], &[7])]), (CaptureLevel::Full, None, None));
        let mixed = "token 3 is 6, but its log-probability is of 9".to_owned();
        assert_eq!(judged(None, &[fine.clone(), said(&[5, 6], &[5, 9])]), (CaptureLevel::Ids, Some(mixed), None));
        // Fewer than tokens: which is of which is not known, and their number says so.
        assert_eq!(judged(None, &[said(&[5, 6], &[6])]), (CaptureLevel::Full, None, None));
    }

    #[test]
    fn a_server_that_gives_no_counts_is_not_believed() {
        let replicas = Replicas::new("p", &PolicyConfig::default(), None).unwrap();
        let mut tally = Tally::new(&[1, 2], None);
        tally.begin(replicas.first());
        tally.take(&said(&[5], &[5]));
        let counted = Usage { prompt_tokens: 2, completion_tokens: 1, ..Usage::default() };
        assert_eq!(tally.usage(), counted, "clients are told our own count");
        let reason = "the server gave no usage to check the ids against".to_owned();
        assert_eq!(tally.doubt(), Some(Doubt { reason, model: false }));
    }
}
