//! Samples scored by their policy, several at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use super::report::Report;
use crate::call::{Failure, FailureKind, LogprobKind, WeightVersion};
use crate::policy::Policy;
use crate::trajectory::{Sample, Span};

/// Why trained tokens are not compared.
const OTHER_WEIGHTS: &str = "sampled by weights that are not served now";
const UNKNOWN_WEIGHTS: &str = "only one of record and server says which weights";
const NOT_RAW: &str = "the log-probabilities are not the model's own";

/// Why a sample's scores are thrown away.
const CHANGED: &str = "the policy's weights changed while it scored";

/// A policy that can be asked, or why it can't.
type Known = Result<Arc<dyn Policy>, String>;

/// One sample's scores, or why it has none.
type Scored = (Sample, Option<String>, Result<Vec<Option<f64>>, Failure>);

/// Scores samples.
pub(super) struct Scorer<'a> {
    policies: &'a (dyn Fn(&str) -> Option<Arc<dyn Policy>> + Sync),
    /// What each policy's weights were when the store was written to last: a declared version is known from there alone.
    last: BTreeMap<String, WeightVersion>,
    known: HashMap<String, Known>,
    running: FuturesUnordered<BoxFuture<'static, Scored>>,
    concurrency: usize,
}

impl<'a> Scorer<'a> {
    pub(super) fn new(
        policies: &'a (dyn Fn(&str) -> Option<Arc<dyn Policy>> + Sync),
        last: BTreeMap<String, WeightVersion>,
        concurrency: usize,
    ) -> Self {
        Self { policies, last, known: HashMap::new(), running: FuturesUnordered::new(), concurrency: concurrency.max(1) }
    }

    /// Begins to score a sample, once there is room. One that can't be is counted with the reason.
    pub(super) async fn add(&mut self, sample: Sample, report: &mut Report) {
        if !sample.images.is_empty() {
            return report.skip("a policy can't be sent an image's tokens".to_owned());
        }
        let policy = match self.policy(&sample.policy).await {
            Ok(policy) => policy,
            Err(reason) => return report.skip(reason),
        };
        let now = policy.state().version.version;
        if comparable(&sample, now.as_deref()).next().is_none() {
            exclude(&sample, now.as_deref(), report);
            return report.skip("it has no token that could be compared".to_owned());
        }
        while self.running.len() >= self.concurrency {
            self.wait(report).await;
        }
        self.running.push(Box::pin(async move {
            let scores = policy.score(&sample.token_ids).await;
            // Those who load weights don't wait for an audit.
            let then = policy.state().version.version;
            let changed = || Failure::new(FailureKind::Unavailable, CHANGED.to_owned());
            let scores = if then == now { scores } else { Err(changed()) };
            (sample, now, scores)
        }));
    }

    /// Waits for all that are being scored.
    pub(super) async fn finish(mut self, report: &mut Report) {
        while !self.running.is_empty() {
            self.wait(report).await;
        }
        for group in &mut report.groups {
            group.sum_up();
        }
    }

    async fn policy(&mut self, name: &str) -> Known {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let known = match (self.policies)(name) {
            None => Err(format!("no policy is named {name}; give --policy URL, or the config file that names it")),
            Some(policy) => {
                if let Some(last) = self.last.get(name) {
                    policy.recall(last);
                }
                policy.ready().await.map(|()| policy).map_err(|failure| failure.message)
            }
        };
        self.known.insert(name.to_owned(), known.clone());
        known
    }

    async fn wait(&mut self, report: &mut Report) {
        let Some((sample, now, scores)) = self.running.next().await else { return };
        match scores {
            Err(failure) => report.skip(failure.message),
            Ok(scores) if scores.len() != sample.token_ids.len() => {
                report.skip(format!("the policy gave {} scores for {} tokens", scores.len(), sample.token_ids.len()));
            }
            Ok(scores) => {
                exclude(&sample, now.as_deref(), report);
                compare(&sample, now.as_deref(), &scores, report);
            }
        }
    }
}

fn compare(sample: &Sample, now: Option<&str>, given: &[Option<f64>], report: &mut Report) {
    let group = report.group(sample.harness.as_deref(), &sample.policy);
    let mut unscored = 0;
    for span in comparable(sample, now) {
        for token in trained(sample, span) {
            match (sample.logprobs[token], given[token]) {
                (Some(recorded), Some(scored)) => {
                    let version = span.policy_version.as_deref().unwrap_or_default();
                    group.compare(version, &sample.id, token, recorded, scored);
                }
                _ => unscored += 1,
            }
        }
    }
    if unscored > 0 {
        *report.excluded.entry("the policy gave no score").or_default() += unscored;
    }
}

/// Counts the trained tokens that are not compared.
fn exclude(sample: &Sample, now: Option<&str>, report: &mut Report) {
    for span in &sample.spans {
        if let Some(reason) = reason(span, now) {
            let tokens = trained(sample, span).count() as u64;
            if tokens > 0 {
                *report.excluded.entry(reason).or_default() += tokens;
            }
        }
    }
}

/// The spans whose trained tokens the policy, with the weights that it has now, can be asked about.
fn comparable<'a>(sample: &'a Sample, now: Option<&'a str>) -> impl Iterator<Item = &'a Span> {
    sample.spans.iter().filter(move |span| reason(span, now).is_none() && trained(sample, span).next().is_some())
}

/// Places of the tokens of a span that are trained. A sample of somebody's file may have anything.
fn trained<'a>(sample: &'a Sample, span: &Span) -> impl Iterator<Item = usize> + use<'a> {
    let most = sample.loss_mask.len().min(sample.logprobs.len()).min(sample.token_ids.len());
    (span.start.min(most)..span.end.min(most)).filter(|token| sample.loss_mask[*token] == 1)
}

fn reason(span: &Span, now: Option<&str>) -> Option<&'static str> {
    match (span.logprob_kind, span.policy_version.as_deref(), now) {
        (LogprobKind::Processed | LogprobKind::Unknown, ..) => Some(NOT_RAW),
        (_, Some(then), Some(now)) if then != now => Some(OTHER_WEIGHTS),
        (_, Some(_), None) | (_, None, Some(_)) => Some(UNKNOWN_WEIGHTS),
        _ => None,
    }
}
