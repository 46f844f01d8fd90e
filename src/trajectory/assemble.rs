//! Samples from leaves.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::conversation::with_reasoning;
use super::kind::{Class, Kind};
use super::realign::{self, Lost};
use super::sample::{Parent, SCHEMA, Sample, SampleImage, SampleStatus, Span};
use super::tree::{Key, Step, Tree};
use super::verdict::{Verdict, cut, whole};
use super::{RolloutFacts, Turn};
use crate::call::{CallRecord, Capture, FinishReason, Image, Raw, WeightVersion};

/// What samples are made from beside the turns.
pub(super) struct Grown<'a> {
    pub tree: &'a Tree<'a>,
    pub verdicts: &'a [Verdict],
    pub classes: &'a [Class],
    /// Whom each turn goes on from by its text.
    pub said: &'a [Option<usize>],
}

/// Writes one sample for each leaf.
pub(super) fn samples(rollout: &RolloutFacts, turns: &[Turn], grown: &Grown<'_>, leaves: &[usize]) -> Vec<Sample> {
    let cut_after = cut_after(turns, grown.tree, grown.said);
    let mut trained = HashSet::new();
    let mut claimed = HashMap::new();
    let mut samples = Vec::with_capacity(leaves.len());
    for (index, leaf) in leaves.iter().copied().enumerate() {
        let chain = grown.tree.chain(leaf);
        let last = &turns[leaf];
        let Capture { completion_ids, rendered, .. } = &last.record.capture;
        let mut tokens = Tokens::new([&last.prompt, completion_ids.as_slice()].concat());
        let mut kind = None;
        for placed in placed(&chain, turns, grown.verdicts, &tokens.ids, last.prompt.len()) {
            let turn = placed.turn;
            let train = !placed.realigned && grown.verdicts[turn] == Verdict::Trained && trained.insert(turn);
            tokens.add(&turns[turn], &placed, grown.classes[turn], train);
            if train && kind != Some(Kind::Main) {
                kind = Some(grown.classes[turn].kind);
            }
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
            kind: kind.unwrap_or(grown.classes[leaf].kind),
            prompt_length: tokens.mask.iter().position(|mask| *mask == 1).unwrap_or(tokens.mask.len()),
            token_ids: tokens.ids,
            loss_mask: tokens.mask,
            logprobs: tokens.logprobs,
            spans: tokens.spans,
            reward: rollout.reward,
            rewards: rollout.rewards.clone(),
            outcome: rollout.outcome.clone(),
            status: status(rollout, last, cut_after.contains(&leaf)),
            rollout_mask_total: 0,
            rollout_samples: 0,
            parent: parent(grown.tree, leaf, index, &mut claimed)
                .map(|(sample, at)| Parent { sample_id: id(&turns[leaves[sample]]), at }),
            policy: last.record.policy.clone(),
            model: last.record.model.clone(),
            tokenizer_hash: rendered.as_ref().map(|rendered| rendered.tokenizer_hash.clone()),
            template_hash: rendered.as_ref().map(|rendered| rendered.template_hash.clone()),
            images: images(&messages),
            messages,
            tools: last.tools.clone(),
            metadata: rollout.metadata.clone(),
        });
    }
    total(&mut samples);
    samples
}

/// Where a call's reply stands in a sample.
struct Placed {
    turn: usize,
    place: Range<usize>,
    realigned: bool,
}

/// Places the replies of a sample's way in its `ids`; those that have a span.
fn placed(chain: &[Step], turns: &[Turn], verdicts: &[Verdict], ids: &[u32], prompt: usize) -> Vec<Placed> {
    let exact = |step: &Step| step.agrees >= whole(&turns[step.turn]);
    // Where the next reply begins that stands as it was sampled.
    let mut bound = prompt;
    let mut bounds: Vec<usize> = chain
        .iter()
        .rev()
        .map(|step| {
            let before = bound;
            if exact(step) {
                bound = turns[step.turn].prompt.len();
            }
            before
        })
        .collect();
    bounds.reverse();
    let mut from = 0;
    let mut placed = Vec::with_capacity(chain.len());
    for (step, bound) in chain.iter().zip(bounds) {
        let Turn { record, prompt, .. } = &turns[step.turn];
        let (start, reply) = (prompt.len(), &record.capture.completion_ids);
        let found = if exact(step) {
            Some(start..start + reply.len())
        } else {
            realign::place(ids, from, bound, Lost { start, reply, agrees: step.agrees })
        };
        let Some(place) = found else { continue };
        from = place.end;
        if verdicts[step.turn].has_span() {
            placed.push(Placed { turn: step.turn, place, realigned: !exact(step) });
        }
    }
    placed
}

/// A sample's tokens while they are filled in.
struct Tokens {
    ids: Vec<u32>,
    mask: Vec<u8>,
    logprobs: Vec<Option<f64>>,
    spans: Vec<Span>,
}

impl Tokens {
    fn new(ids: Vec<u32>) -> Self {
        Self { mask: vec![0; ids.len()], logprobs: vec![None; ids.len()], ids, spans: Vec::new() }
    }

    /// Adds a call's reply: a span for each set of weights that sampled it.
    fn add(&mut self, turn: &Turn, placed: &Placed, class: Class, train: bool) {
        let place = &placed.place;
        if placed.realigned {
            self.spans.push(Span { realigned: true, ..span(turn, place.clone(), &turn.record.version, class) });
            return;
        }
        for (slot, logprob) in self.logprobs[place.clone()].iter_mut().zip(&turn.record.capture.logprobs) {
            *slot = Some(*logprob);
        }
        if train {
            self.mask[place.clone()].fill(1);
        }
        let runs = runs(&turn.record);
        self.spans.extend(runs.map(|(run, version)| span(turn, place.start + run.start..place.start + run.end, version, class)));
    }
}

/// The runs of a reply's tokens, each with the weights that sampled it.
fn runs(record: &CallRecord) -> impl Iterator<Item = (Range<usize>, &WeightVersion)> {
    let (runs, len) = (&record.capture.runs, record.capture.completion_ids.len());
    let sound = runs.first().is_some_and(|run| run.start == 0)
        && runs.windows(2).all(|pair| pair[0].start < pair[1].start)
        && runs.last().is_some_and(|run| run.start < len);
    let runs = if sound { runs.as_slice() } else { &[] };
    let ends = runs.iter().skip(1).map(|run| run.start).chain([len]);
    let several = runs.iter().zip(ends).map(|(run, end)| (run.start..end, &run.version));
    several.chain((!sound).then_some((0..len, &record.version)))
}

/// The conversation up to its last reply, with the reasoning that its tokens have.
fn messages(turns: &[Turn], chain: &[Step]) -> Vec<Raw> {
    let Some((last, before)) = chain.split_last() else { return Vec::new() };
    let replies: Vec<&Raw> = before.iter().filter_map(|step| turns[step.turn].record.message.as_ref()).collect();
    let mut messages = with_reasoning(&turns[last.turn].messages, &replies);
    messages.extend(turns[last.turn].record.message.clone());
    messages
}

fn images(messages: &[Raw]) -> Vec<SampleImage> {
    let unplaced = |image: Image| SampleImage { hash: image.hash, mime: image.mime, start: None, end: None };
    Image::of_messages(messages).into_iter().map(unplaced).collect()
}

pub(super) fn id(leaf: &Turn) -> String {
    format!("smp_{}", leaf.record.id)
}

fn span(turn: &Turn, place: Range<usize>, version: &WeightVersion, class: Class) -> Span {
    let record = &turn.record;
    Span {
        call_id: record.id,
        start: place.start,
        end: place.end,
        policy_version: version.version.clone(),
        policy_seq: version.seq,
        version_source: version.source,
        finish_reason: record.finish,
        sampling: record.sampling_used.clone(),
        logprob_kind: record.capture.logprob_kind,
        constrained: record.capture.constrained,
        rewards: turn.rewards.clone(),
        abandoned: class.abandoned.is_some(),
        abandoned_as: class.abandoned,
        realigned: false,
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
