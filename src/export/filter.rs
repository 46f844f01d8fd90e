//! Which rollouts, and which of their calls, an export takes.

use std::ops::RangeInclusive;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::ExportError;
use crate::call::CallRecord;
use crate::ids::RolloutId;
use crate::store::{Outcome, Purpose, Rollout, RolloutFilter, RolloutStatus, Store};
use crate::trajectory::{Drift, Rules, Without};

/// What must hold of a rollout; nothing given matches all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these; also while they are open.
    pub rollouts: Vec<RolloutId>,
    pub group: Option<String>,
    pub task: Option<String>,
    pub harness: Option<String>,
    pub outcome: Option<Outcome>,
    pub purpose: Option<Purpose>,
    /// The reward that counts is at least this; without a reward a rollout does not match.
    pub min_reward: Option<f64>,
    /// Begun at or after this Unix time in milliseconds.
    pub since: Option<i64>,
    /// Calls sampled by weights outside this range are context, left out as `filtered`.
    pub policy_seq: Option<RangeInclusive<i64>>,
    /// Calls of these kinds are not trained.
    pub without: Vec<Without>,
    /// Samples of more tokens are dropped, and their calls left out as `over_length`.
    pub max_tokens: Option<usize>,
    pub drift: Drift,
}

/// A filter's text that can't be read; says what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFilter(String);

impl Filter {
    /// Tells whether a rollout is meant.
    #[must_use]
    pub fn matches(&self, rollout: &Rollout) -> bool {
        let same = |wanted: &Option<String>, is: &Option<String>| wanted.is_none() || wanted == is;
        same(&self.group, &rollout.group_id)
            && same(&self.task, &rollout.task_id)
            && same(&self.harness, &rollout.harness)
            && self.outcome.is_none_or(|outcome| rollout.outcome == Some(outcome))
            && self.purpose.is_none_or(|purpose| rollout.purpose == purpose)
            && self.min_reward.is_none_or(|least| rollout.reward().is_some_and(|reward| reward >= least))
            && self.since.is_none_or(|since| rollout.created_at >= since)
    }

    /// Tells whether a rollout's samples can be given: it has ended, or never does so by itself, or was asked for by name.
    #[must_use]
    pub fn ready(&self, rollout: &Rollout) -> bool {
        rollout.status == RolloutStatus::Finished || rollout.purpose == Purpose::Record || self.rollouts.contains(&rollout.id)
    }

    /// What of a rollout's calls is trained; `chosen` says it of each call ([`Filter::chooses`]).
    pub(super) fn rules<'a>(&'a self, chosen: &'a (dyn Fn(&CallRecord) -> bool + Sync)) -> Rules<'a> {
        Rules { drift: self.drift, chosen, without: &self.without, max_tokens: self.max_tokens }
    }

    /// Tells whether a call's tokens may be trained.
    #[must_use]
    pub fn chooses(&self, record: &CallRecord) -> bool {
        let runs = &record.capture.runs;
        self.policy_seq.as_ref().is_none_or(|range| {
            let mut seqs = runs.iter().map(|run| run.version.seq);
            if runs.is_empty() { range.contains(&record.version.seq) } else { seqs.all(|seq| range.contains(&seq)) }
        })
    }
}

/// The rollouts that a filter may match, page by page.
pub(super) struct Pages<'a> {
    filter: &'a Filter,
    next: Option<RolloutFilter>,
}

impl<'a> Pages<'a> {
    const SIZE: u32 = 100;

    pub(super) fn new(filter: &'a Filter) -> Self {
        let next = RolloutFilter {
            status: None,
            group_id: filter.group.clone(),
            task_id: filter.task.clone(),
            harness: filter.harness.clone(),
            outcome: filter.outcome,
            purpose: filter.purpose,
            batch: None,
            after: None,
            limit: Self::SIZE,
        };
        Self { filter, next: Some(next) }
    }

    /// The next page; `None` after the last.
    pub(super) async fn next(&mut self, store: &dyn Store) -> Result<Option<Vec<Rollout>>, ExportError> {
        let Some(mut wanted) = self.next.take() else { return Ok(None) };
        if !self.filter.rollouts.is_empty() {
            let mut named = Vec::new();
            for id in &self.filter.rollouts {
                let rollout = store.rollout(*id).await?.ok_or(ExportError::UnknownRollout(*id))?;
                if named.iter().all(|other: &Rollout| other.id != rollout.id) {
                    named.push(rollout);
                }
            }
            return Ok(Some(named));
        }
        let page = store.rollouts(&wanted).await?;
        if page.len() >= Self::SIZE as usize {
            wanted.after = page.last().map(|rollout| rollout.id);
            self.next = Some(wanted);
        }
        Ok(Some(page))
    }
}

/// Reads `--since`: an RFC 3339 time, or how long ago (`90s`, `15m`, `2h`, `7d`). `now` and the answer are Unix times in
/// milliseconds.
///
/// # Errors
/// If it is neither.
pub fn since(text: &str, now: i64) -> Result<i64, BadFilter> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX));
    }
    let bad =
        || BadFilter(format!("`{text}` is no time: give RFC 3339 (2026-12-01T14:00:00Z) or how long ago (90s, 15m, 2h, 7d)"));
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let number: u32 = number.parse().map_err(|_| bad())?;
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    Ok(now.saturating_sub(i64::from(number).saturating_mul(unit_ms)))
}

/// Reads `--policy-seq`: `V..W`, both included; either may be missing.
///
/// # Errors
/// If it is not such a range, or an empty one.
pub fn policy_seq(text: &str) -> Result<RangeInclusive<i64>, BadFilter> {
    let bad = || BadFilter(format!("`{text}` is no range: give V..W, both included, or V.. or ..W"));
    let (first, last) = text.split_once("..").ok_or_else(bad)?;
    let end = |text: &str, open: i64| if text.is_empty() { Ok(open) } else { text.parse().map_err(|_| bad()) };
    let range = end(first, i64::MIN)?..=end(last, i64::MAX)?;
    if range.is_empty() { Err(bad()) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        assert_eq!(since("1970-01-01T00:00:02.5Z", 0), Ok(2_500));
        assert_eq!(since("1970-01-01T01:00:00+01:00", 0), Ok(0));
        assert_eq!(since("2h", 10_000_000), Ok(2_800_000));
        assert_eq!(since("1d", 86_400_001), Ok(1));
        for bad in ["", "h", "2", "2w", "-2h", "yesterday", "2é"] {
            assert!(since(bad, 0).is_err(), "{bad:?} was read");
        }
    }

    #[test]
    fn a_range_of_weights_includes_both_ends() {
        assert_eq!(policy_seq("3..5"), Ok(3..=5));
        assert_eq!(policy_seq("3.."), Ok(3..=i64::MAX));
        assert_eq!(policy_seq("..5"), Ok(i64::MIN..=5));
        for bad in ["3", "5..3", "a..b", "3...5"] {
            assert!(policy_seq(bad).is_err(), "{bad:?} was read");
        }
    }
}
