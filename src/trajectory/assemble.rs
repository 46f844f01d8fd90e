//! Samples from leaves.

use std::collections::{HashMap, HashSet};

use super::conversation::with_reasoning;
use super::sample::{Parent, SCHEMA, Sample, SampleImage, SampleStatus, Span};
use super::tree::{Key, Tree};
use super::verdict::{Verdict, cut};
use super::{RolloutFacts, Turn};
use crate::call::{FinishReason, Image, Raw};

/// Writes one sample for each leaf. `said` is whom each turn goes on from by its text.
pub(super) fn samples(
    rollout: &RolloutFacts,
    turns: &[Turn],
    tree: &Tree<'_>,
    verdicts: &[Verdict],
    said: &[Option<usize>],
    leaves: &[usize],
) -> Vec<Sample> {
    let abandoned = abandoned(turns, tree, said);
    let cut_after = cut_after(turns, tree, said);
    let mut trained = HashSet::new();
    let mut claimed = HashMap::new();
    let mut samples = Vec::with_capacity(leaves.len());
    for (index, leaf) in leaves.iter().copied().enumerate() {
        let chain = tree.chain(leaf);
        let last = &turns[leaf];
        let capture = &last.record.capture;
        let token_ids = [capture.prompt_ids.as_slice(), &capture.completion_ids].concat();
        let mut loss_mask = vec![0; token_ids.len()];
        let mut logprobs = vec![None; token_ids.len()];
        let mut spans = Vec::new();
        for turn in chain.iter().copied().filter(|turn| verdicts[*turn].has_span()) {
            let span = span(&turns[turn], abandoned.contains(&turn));
            for (slot, logprob) in logprobs[span.start..span.end].iter_mut().zip(&turns[turn].record.capture.logprobs) {
                *slot = Some(*logprob);
            }
            if verdicts[turn] == Verdict::Trained && trained.insert(turn) {
                loss_mask[span.start..span.end].fill(1);
            }
            spans.push(span);
        }
        let messages = messages(turns, &chain);
        samples.push(Sample {
            schema: SCHEMA.to_owned(),
            id: id(last),
            rollout_id: rollout.id,
            rollout_index: rollout.index,
            group_id: rollout.group_id.clone(),
            task_id: rollout.task_id.clone(),
            harness: rollout.harness.clone(),
            purpose: rollout.purpose.clone(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            prompt_length: loss_mask.iter().position(|mask| *mask == 1).unwrap_or(loss_mask.len()),
            token_ids,
            loss_mask,
            logprobs,
            spans,
            reward: rollout.reward,
            rewards: rollout.rewards.clone(),
            outcome: rollout.outcome.clone(),
            status: status(rollout, last, cut_after.contains(&leaf)),
            rollout_mask_total: 0,
            rollout_samples: 0,
            parent: parent(tree, leaf, index, &mut claimed)
                .map(|(sample, at)| Parent { sample_id: id(&turns[leaves[sample]]), at }),
            policy: last.record.policy.clone(),
            model: last.record.model.clone(),
            tokenizer_hash: None,
            template_hash: None,
            images: images(&messages),
            messages,
            tools: last.tools.clone(),
            metadata: rollout.metadata.clone(),
        });
    }
    total(&mut samples);
    samples
}

/// The conversation up to its last reply, with the reasoning that its tokens have.
fn messages(turns: &[Turn], chain: &[usize]) -> Vec<Raw> {
    let Some((last, before)) = chain.split_last() else { return Vec::new() };
    let replies: Vec<&Raw> = before.iter().filter_map(|turn| turns[*turn].record.message.as_ref()).collect();
    let mut messages = with_reasoning(&turns[*last].messages, &replies);
    messages.extend(turns[*last].record.message.clone());
    messages
}

fn images(messages: &[Raw]) -> Vec<SampleImage> {
    let unplaced = |image: Image| SampleImage { hash: image.hash, mime: image.mime, start: None, end: None };
    Image::of_messages(messages).into_iter().map(unplaced).collect()
}

fn id(leaf: &Turn) -> String {
    format!("smp_{}", leaf.record.id)
}

fn span(turn: &Turn, abandoned: bool) -> Span {
    let record = &turn.record;
    let start = record.capture.prompt_ids.len();
    Span {
        call_id: record.id,
        start,
        end: start + record.capture.completion_ids.len(),
        policy_version: record.version.version.clone(),
        policy_seq: record.version.seq,
        version_source: record.version.source,
        finish_reason: record.finish,
        sampling: record.sampling_used.clone(),
        logprob_kind: record.capture.logprob_kind,
        constrained: record.capture.constrained,
        rewards: turn.rewards.clone(),
        abandoned,
    }
}

fn status(rollout: &RolloutFacts, last: &Turn, cut_after: bool) -> SampleStatus {
    if cut_after || cut(&last.record) {
        return SampleStatus::Aborted;
    }
    let stopped = matches!(rollout.outcome.as_deref(), Some("truncated" | "timed_out"));
    if stopped || last.record.finish == Some(FinishReason::Length) { SampleStatus::Truncated } else { SampleStatus::Complete }
}

/// The earlier sample that shares the most tokens with this one, and how many. Marks this one's way as taken.
fn parent<'a>(
    tree: &Tree<'a>,
    leaf: usize,
    sample: usize,
    claimed: &mut HashMap<(Key<'a>, usize), usize>,
) -> Option<(usize, usize)> {
    let key = tree.key(leaf);
    for (place, depth) in tree.path(leaf) {
        if let Some(first) = claimed.get(&(key, place)) {
            return Some((*first, depth));
        }
        claimed.insert((key, place), sample);
    }
    None
}

/// The turns whose reply was not gone on from, because the same was asked again.
fn abandoned(turns: &[Turn], tree: &Tree<'_>, said: &[Option<usize>]) -> HashSet<usize> {
    let gone_on: HashSet<usize> = said.iter().copied().flatten().collect();
    let mut last_asked: HashMap<_, Vec<usize>> = HashMap::new();
    let mut abandoned = HashSet::new();
    for turn in (0..turns.len()).filter(|turn| tree.holds(*turn)) {
        let record = &turns[turn].record;
        let asked = last_asked.entry((tree.key(turn), record.capture.prompt_ids.as_slice())).or_default();
        // Several replies to one request were asked for once.
        let again = asked.last().is_some_and(|last| turns[*last].record.choice >= record.choice);
        if again {
            abandoned.extend(asked.drain(..));
        }
        asked.push(turn);
    }
    abandoned.retain(|turn| tree.children(*turn).is_empty() && !gone_on.contains(turn));
    abandoned
}

/// The turns after which a call without ids broke off and nothing else went on.
fn cut_after(turns: &[Turn], tree: &Tree<'_>, said: &[Option<usize>]) -> HashSet<usize> {
    let mut last_after = HashMap::new();
    for (turn, earlier) in said.iter().enumerate() {
        if let Some(earlier) = earlier {
            last_after.insert(*earlier, turn);
        }
    }
    let broke_off = |turn: usize| !tree.holds(turn) && cut(&turns[turn].record);
    last_after.into_iter().filter(|(_, turn)| broke_off(*turn)).map(|(earlier, _)| earlier).collect()
}

/// Says in each sample what all of them are together.
fn total(samples: &mut [Sample]) {
    let mask_total = samples.iter().flat_map(|sample| &sample.loss_mask).map(|mask| u64::from(*mask)).sum();
    let count = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    for sample in samples {
        sample.rollout_mask_total = mask_total;
        sample.rollout_samples = count;
    }
}
