//! What an audit found.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gaps::Gaps;
use crate::ids::RolloutId;
use crate::store::Rollout;
use crate::trajectory::Sample;

/// How many differences are told one by one; the rest are counted.
const TOLD: usize = 100;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Samples that were looked at.
    pub samples: u64,
    /// Calls whose raw bytes were looked at.
    pub calls: u64,
    /// Where samples are not what the raw bytes give.
    pub different: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
    /// Samples that were not scored, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Trained tokens of scored samples that were not compared, by reason.
    pub excluded: BTreeMap<&'static str, u64>,
    /// By harness and policy.
    pub groups: Vec<Group>,
}

/// Something that is not what the raw bytes give.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub rollout_id: Option<RolloutId>,
    pub what: String,
}

/// The samples of one harness and one policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Group {
    pub harness: Option<String>,
    pub policy: String,
    pub samples: u64,
    /// Tokens in all, and those that are trained.
    pub tokens: u64,
    pub trained: u64,
    /// Places where a prompt parts from an earlier reply that reads the same, in the rollouts of these samples.
    pub drift: u64,
    pub gap: Gap,
    /// The tokens that were compared, by the weights that sampled them; "" where the server does not say.
    pub versions: BTreeMap<String, u64>,
    /// Where the gap is widest, if there is one.
    pub worst: Option<Worst>,
    #[serde(skip)]
    gaps: Gaps,
}

/// How far recorded log-probabilities are from those of the policy's own prefill. The percentiles are right to 5 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gap {
    /// Tokens that were compared.
    pub tokens: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    pub sample_id: String,
    /// Its place in the sample.
    pub token: usize,
    pub recorded: f64,
    pub scored: f64,
}

impl Report {
    /// The tokens that were compared in all.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.groups.iter().map(|group| group.gap.tokens).sum()
    }

    /// The widest gap of all.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.groups.iter().map(|group| group.gap.max).fold(0.0, f64::max)
    }

    /// The mean gap over all tokens.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean of so many needs no more")]
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.groups.iter().map(|group| group.gaps.sum()).sum();
        if self.compared() == 0 { 0.0 } else { sum / self.compared() as f64 }
    }

    pub(super) fn differs(&mut self, rollout_id: Option<RolloutId>, what: String) {
        self.different += 1;
        if self.differences.len() < TOLD {
            self.differences.push(Difference { rollout_id, what });
        }
    }

    /// Counts the samples of one rollout.
    pub(super) fn count(&mut self, rollout: &Rollout, samples: &[Sample], drift: u64) {
        self.samples += samples.len() as u64;
        let mut first = true;
        for sample in samples {
            let group = self.group(rollout.harness.as_deref(), &sample.policy);
            group.samples += 1;
            group.tokens += sample.token_ids.len() as u64;
            group.trained += sample.loss_mask.iter().map(|mask| u64::from(*mask)).sum::<u64>();
            group.drift += if first { drift } else { 0 };
            first = false;
        }
    }

    pub(super) fn skip(&mut self, reason: String) {
        // Servers put numbers of their own into what they say.
        let known = self.skipped.len() < TOLD || self.skipped.contains_key(&reason);
        *self.skipped.entry(if known { reason } else { "other reasons".to_owned() }).or_default() += 1;
    }

    /// The group of this harness and policy.
    pub(super) fn group(&mut self, harness: Option<&str>, policy: &str) -> &mut Group {
        let is = |group: &Group| group.harness.as_deref() == harness && group.policy == policy;
        let at = self.groups.iter().position(is).unwrap_or_else(|| {
            self.groups.push(Group { harness: harness.map(str::to_owned), policy: policy.to_owned(), ..Group::default() });
            self.groups.len() - 1
        });
        &mut self.groups[at]
    }
}

impl Group {
    /// Takes a token that was compared, sampled by the weights `version`.
    pub(super) fn compare(&mut self, version: &str, sample_id: &str, token: usize, recorded: f64, scored: f64) {
        let gap = (recorded - scored).abs();
        if gap > self.gaps.max() {
            self.worst = Some(Worst { sample_id: sample_id.to_owned(), token, recorded, scored });
        }
        self.gaps.add(gap);
        match self.versions.get_mut(version) {
            Some(count) => *count += 1,
            None => drop(self.versions.insert(version.to_owned(), 1)),
        }
    }

    /// Says what the gaps so far come to.
    pub(super) fn sum_up(&mut self) {
        let gaps = &self.gaps;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| gaps.percentile(part));
        self.gap = Gap { tokens: gaps.count(), mean: gaps.mean(), p50, p90, p99, max: gaps.max() };
    }
}
