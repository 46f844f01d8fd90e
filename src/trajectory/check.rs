//! The invariants of samples, checked when they are built and by `gleaner export --check`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::assemble::id;
use super::sample::{Reason, SCHEMA, Sample, Span};
use super::{Built, Turn};
use crate::call::CallStatus;
use crate::ids::CallId;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{of} breaks an invariant: {what}")]
pub struct Broken {
    /// The sample's or the call's id.
    pub of: String,
    pub what: String,
}

/// Checks all the samples of one rollout that are given together.
///
/// # Errors
/// The first invariant that does not hold.
pub fn check(samples: &[Sample]) -> Result<(), Broken> {
    let mask_total: u64 = samples.iter().flat_map(|sample| &sample.loss_mask).map(|mask| u64::from(*mask)).sum();
    let mut ids: HashMap<&str, &Sample> = HashMap::new();
    let mut trained = HashSet::new();
    let mut calls: HashMap<CallId, &[u32]> = HashMap::new();
    for (index, sample) in samples.iter().enumerate() {
        let broken = |what: String| Broken { of: format!("sample {}", sample.id), what };
        let holds = |holds: bool, what: &str| if holds { Ok(()) } else { Err(broken(what.to_owned())) };
        holds(sample.schema == SCHEMA, "its schema is another")?;
        holds(sample.index as usize == index, "its index is not its place")?;
        holds(sample.rollout_id == samples[0].rollout_id, "it is of another rollout")?;
        holds(sample.rollout_samples as usize == samples.len(), "rollout_samples is not the number given")?;
        holds(sample.rollout_mask_total == mask_total, "rollout_mask_total is not the sum of the masks given")?;
        alone(sample).map_err(broken)?;
        if let Some(parent) = &sample.parent {
            let other: Option<&Sample> = ids.get(parent.sample_id.as_str()).copied();
            let same = other.is_some_and(|other| {
                let ours = sample.token_ids.get(..parent.at);
                ours.is_some() && ours == other.token_ids.get(..parent.at)
            });
            holds(same, "its tokens are not its parent's up to where it left it")?;
        }
        for Reply { call_id, place, trained: mask, .. } in
            replies(sample).map_err(broken)?.into_iter().filter(|reply| !reply.realigned)
        {
            let tokens = &sample.token_ids[place];
            holds(*calls.entry(call_id).or_insert(tokens) == tokens, "a call's tokens differ between samples")?;
            holds(!mask || trained.insert(call_id), "a call is trained in two samples")?;
        }
        holds(ids.insert(&sample.id, sample).is_none(), "its id is there twice")?;
    }
    Ok(())
}

/// Checks what holds of a sample by itself.
fn alone(sample: &Sample) -> Result<(), String> {
    let len = sample.token_ids.len();
    if sample.loss_mask.len() != len || sample.logprobs.len() != len {
        return Err("token_ids, loss_mask and logprobs differ in length".to_owned());
    }
    if sample.loss_mask.iter().position(|mask| *mask == 1) != Some(sample.prompt_length) {
        return Err("prompt_length is not the index of the first trained token".to_owned());
    }
    let mut outside = 0;
    for Span { start, end, constrained, realigned, call_id, .. } in &sample.spans {
        if *start < outside || end <= start || *end > len {
            return Err(format!("the span of call {call_id} is empty, outside the sequence, or not after the one before it"));
        }
        empty(sample, outside, *start)?;
        let logprobs = &sample.logprobs[*start..*end];
        if *realigned && logprobs.iter().any(Option::is_some) {
            return Err(format!("the span of call {call_id} is realigned and has log-probabilities"));
        }
        if !realigned && logprobs.iter().any(|logprob| !logprob.is_some_and(f64::is_finite)) {
            return Err(format!("a log-probability is missing inside the span of call {call_id}"));
        }
        let mask = &sample.loss_mask[*start..*end];
        if mask.iter().any(|value| *value != mask[0] || *value > 1) || ((*constrained || *realigned) && mask[0] != 0) {
            return Err(format!("the mask of the span of call {call_id} is wrong"));
        }
        outside = *end;
    }
    empty(sample, outside, len)
}

/// What a sample has of one call.
struct Reply {
    call_id: CallId,
    place: Range<usize>,
    realigned: bool,
    trained: bool,
}

/// Joins the spans of each call: they follow each other, and are trained together or not at all.
fn replies(sample: &Sample) -> Result<Vec<Reply>, String> {
    let mut replies: Vec<Reply> = Vec::new();
    for span in &sample.spans {
        let trained = sample.loss_mask[span.start] == 1;
        match replies.last_mut().filter(|reply| reply.call_id == span.call_id) {
            Some(reply) if reply.place.end == span.start && reply.trained == trained && !reply.realigned && !span.realigned => {
                reply.place.end = span.end;
            }
            Some(_) => return Err(format!("the spans of call {} are not one reply", span.call_id)),
            None => {
                replies.push(Reply { call_id: span.call_id, place: span.start..span.end, realigned: span.realigned, trained });
            }
        }
    }
    let mut seen = HashSet::new();
    match replies.iter().find(|reply| !seen.insert(reply.call_id)) {
        Some(twice) => Err(format!("call {} stands in two places", twice.call_id)),
        None => Ok(replies),
    }
}

/// Checks that nothing is sampled between two spans.
fn empty(sample: &Sample, start: usize, end: usize) -> Result<(), String> {
    let clean =
        sample.loss_mask[start..end].iter().all(|mask| *mask == 0) && sample.logprobs[start..end].iter().all(Option::is_none);
    if clean { Ok(()) } else { Err(format!("tokens {start}..{end} are in no span and have a mask or a log-probability")) }
}

/// Checks that spans are what the calls sampled, and that each call that has ended is trained or left out, never both.
pub(super) fn check_calls(built: &Built, turns: &[Turn]) -> Result<(), Broken> {
    let left_out: HashMap<CallId, Reason> = built.left_out.iter().map(|left| (left.call_id, left.reason)).collect();
    let mut trained: HashMap<CallId, bool> = HashMap::new();
    let known: HashMap<CallId, &Turn> = turns.iter().map(|turn| (turn.record.id, turn)).collect();
    let ids: Vec<String> = turns.iter().map(id).collect();
    let ends: HashMap<&str, &Turn> = ids.iter().map(String::as_str).zip(turns).collect();
    for sample in &built.samples {
        let broken = |what: &str| Broken { of: format!("sample {}", sample.id), what: what.to_owned() };
        let found = replies(sample).map_err(|what| broken(&what))?;
        let last = ends.get(sample.id.as_str()).copied().ok_or_else(|| broken("it ends with no call"))?;
        if sample.token_ids.strip_prefix(&*last.prompt).is_none_or(|rest| rest != last.record.capture.completion_ids) {
            return Err(broken("it is not its last call's prompt and reply"));
        }
        for Reply { call_id, place, trained: mask, .. } in found.into_iter().filter(|reply| !reply.realigned) {
            let exact = known.get(&call_id).is_some_and(|turn| {
                let record = &turn.record;
                let logprobs = record.capture.logprobs.iter().map(|logprob| Some(*logprob));
                begins(sample, place.start, turn, last)
                    && sample.token_ids[place.clone()] == record.capture.completion_ids
                    && sample.logprobs[place].iter().copied().eq(logprobs)
            });
            if !exact {
                return Err(Broken { of: format!("call {call_id}"), what: "its span is not what it sampled".to_owned() });
            }
            *trained.entry(call_id).or_default() |= mask;
        }
    }
    for record in turns.iter().map(|turn| &turn.record) {
        let trained = trained.get(&record.id).copied().unwrap_or_default();
        let left_out = left_out.contains_key(&record.id);
        let what = match (record.status == CallStatus::Running, trained, left_out) {
            (true, false, false) | (false, true, false) | (false, false, true) => continue,
            (true, _, _) => "it is still running, and trained or left out",
            (false, true, true) => "it is trained and left out",
            (false, false, false) => "it is neither trained nor left out",
        };
        return Err(Broken { of: format!("call {}", record.id), what: what.to_owned() });
    }
    Ok(())
}

/// Whether a sample begins with a call's prompt of so many tokens. `last` is the sample's end, whose prompt it is known to begin with.
fn begins(sample: &Sample, start: usize, turn: &Turn, last: &Turn) -> bool {
    turn.prompt.len() == start
        && (turn.prompt.shares(&last.prompt) && start <= last.prompt.len() || sample.token_ids[..start] == *turn.prompt)
}
