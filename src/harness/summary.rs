//! What a batch comes to, harness by harness: rates, their intervals, and what they cost. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Report;
use crate::store::Outcome;

/// The 97.5th percentile of the normal distribution: both tails together are 5 %.
const Z: f64 = 1.959_963_984_540_054;

/// What the rollouts of one harness come to. Those that ended for no fault of harness or model are counted, and are in no rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The harness as it was chosen: with its variant, wire and settings.
    pub harness: String,
    /// Rollouts that say something of harness and model: all but `infra_error` and `cancelled`.
    pub rollouts: u64,
    /// Those of them that passed: a reward of 1 or more, or without a reward the outcome `passed`.
    pub passed: u64,
    /// Their part; `None` without rollouts.
    pub pass_rate: Option<f64>,
    /// The 95 % interval of the rate by Wilson's score.
    pub interval: Option<[f64; 2]>,
    /// By k: the chance that of k rollouts of a task at least one passes, over the groups that have k.
    pub pass_at: BTreeMap<u32, f64>,
    /// By k: the chance that k rollouts of a task all pass, over the groups that have k.
    pub pass_all: BTreeMap<u32, f64>,
    pub calls: u64,
    /// Tokens sampled.
    pub tokens: u64,
    pub drift: u64,
    /// How long a rollout took, in milliseconds.
    pub mean_ms: Option<u64>,
    pub outcomes: BTreeMap<String, u64>,
    /// Rollouts that ended as `infra_error` and were replaced.
    pub infra_retries: u64,
}

/// Sums up the rollouts of one harness. `infra_retries` are not among them.
#[must_use]
pub fn of<'a>(harness: &str, rollouts: impl IntoIterator<Item = &'a Report>, infra_retries: u64) -> Summary {
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    // By group: how many, and how many of them passed.
    let mut groups: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let (mut calls, mut tokens, mut drift, mut ms) = (0, 0, 0, 0);
    for report in rollouts {
        *outcomes.entry(report.outcome.name().to_owned()).or_default() += 1;
        if !counts(report.outcome) {
            continue;
        }
        let group = groups.entry(report.group.as_deref().unwrap_or_default()).or_default();
        *group = (group.0 + 1, group.1 + u64::from(passed(report)));
        calls += report.calls;
        tokens += report.tokens;
        drift += report.drift;
        ms += report.ms;
    }
    let all: u64 = groups.values().map(|(all, _)| all).sum();
    let passed: u64 = groups.values().map(|(_, passed)| passed).sum();
    let most = groups.values().map(|(all, _)| *all).max().unwrap_or_default();
    let over_groups = |estimate: fn(u64, u64, u64) -> f64| {
        let of_k = |k: u64| {
            let of: Vec<f64> = groups.values().filter(|(n, _)| *n >= k).map(|(n, c)| estimate(*n, *c, k)).collect();
            Some((u32::try_from(k).ok()?, of.iter().sum::<f64>() / float(of.len() as u64)))
        };
        ks(most).filter_map(of_k).collect()
    };
    Summary {
        harness: harness.to_owned(),
        rollouts: all,
        passed,
        pass_rate: (all > 0).then(|| float(passed) / float(all)),
        interval: (all > 0).then(|| wilson(passed, all)),
        pass_at: over_groups(pass_at),
        pass_all: over_groups(pass_all),
        calls,
        tokens,
        drift,
        mean_ms: ms.checked_div(all),
        outcomes,
        infra_retries,
    }
}

/// Whether a rollout that ended so says something of harness and model.
#[must_use]
pub fn counts(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::InfraError | Outcome::Cancelled)
}

/// A reward decides where there is one: what was cut off may have solved its task.
fn passed(report: &Report) -> bool {
    report.reward.map_or(report.outcome == Outcome::Passed, |reward| reward >= 1.0)
}

/// 1, 2, 4 .. `most`, which is always among them.
fn ks(most: u64) -> impl Iterator<Item = u64> {
    let powers = std::iter::successors(Some(1_u64), |k| k.checked_mul(2)).take_while(move |k| *k < most);
    powers.chain((most > 0).then_some(most))
}

/// The 95 % interval of a rate by Wilson's score: E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical
/// Inference", JASA 22 (1927). With p = passed / n: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).
/// Written so that none of n gives 0 to the bit.
fn wilson(passed: u64, n: u64) -> [f64; 2] {
    let (n, p) = (float(n), float(passed) / float(n));
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (4.0 * n * p * (1.0 - p) + Z * Z).sqrt() / (2.0 * n);
    let bound = |value: f64| (value / (1.0 + Z * Z / n)).clamp(0.0, 1.0);
    [bound(middle - half), bound(middle + half)]
}

/// The unbiased estimate that of k rollouts at least one passes, when c of n did: 1 - C(n-c, k) / C(n, k). M. Chen et al.,
/// "Evaluating Large Language Models Trained on Code" (2021), arXiv 2107.03374, section 2.1.
fn pass_at(n: u64, c: u64, k: u64) -> f64 {
    1.0 - share(n - c, n, k)
}

/// The unbiased estimate that k rollouts all pass, when c of n did: C(c, k) / C(n, k). S. Yao et al., "τ-bench" (2024),
/// arXiv 2406.12045, section 3.
fn pass_all(n: u64, c: u64, k: u64) -> f64 {
    share(c, n, k)
}

/// C(m, k) / C(n, k) for m, k ≤ n, as a product: the binomials themselves grow out of all bounds.
fn share(m: u64, n: u64, k: u64) -> f64 {
    if k > m { 0.0 } else { (0..k).map(|i| float(m - i) / float(n - i)).product() }
}

#[expect(clippy::cast_precision_loss, reason = "counts of rollouts are far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::ids::RolloutId;

    fn report(group: &str, outcome: Outcome, reward: Option<f64>) -> Report {
        Report {
            id: RolloutId::generate(),
            harness: "codex".to_owned(),
            task_id: "t".to_owned(),
            group: Some(group.to_owned()),
            index: 0,
            outcome,
            reward,
            calls: 2,
            tokens: 30,
            drift: 1,
            ms: 1_000,
            error: None,
            artifacts: PathBuf::new(),
        }
    }

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-4
    }

    #[test]
    fn binomials_are_as_by_hand() {
        // n = 4, c = 1: of six pairs three have the one that passed.
        assert!(close(pass_at(4, 1, 1), 0.25) && close(pass_at(4, 1, 2), 0.5) && close(pass_at(4, 1, 4), 1.0));
        // n = 4, c = 3: of six pairs three are of those that passed.
        assert!(close(pass_all(4, 3, 1), 0.75) && close(pass_all(4, 3, 2), 0.5) && close(pass_all(4, 3, 4), 0.0));
        assert!(close(pass_at(5, 0, 3), 0.0) && close(pass_at(5, 5, 3), 1.0) && close(pass_all(5, 5, 5), 1.0));
        // Binomials of 1,000 over 500 have 300 digits.
        assert!(close(pass_at(1_000, 1, 500), 0.5) && close(pass_all(1_000, 999, 500), 0.5));
    }

    #[test]
    fn intervals_are_as_published() {
        // 8 of 10 and 0 of 10 (Brown, Cai, DasGupta 2001 have the formula; the values are R's prop.test(correct = FALSE)).
        let [low, high] = wilson(8, 10);
        assert!(close(low, 0.4902) && close(high, 0.9433), "{low} {high}");
        let [low, high] = wilson(0, 10);
        assert!(close(low, 0.0) && close(high, 0.2775), "{low} {high}");
        let lows = (1..100).map(|n| wilson(0, n)[0]);
        assert!(lows.clone().all(|low| low.to_bits() == 0), "{:?}", lows.collect::<Vec<_>>());
        let [low, high] = wilson(10, 10);
        assert!(close(low, 0.7225) && close(high, 1.0), "{low} {high}");
    }

    #[test]
    fn powers_of_two_and_the_whole_group() {
        let all = |most| ks(most).collect::<Vec<_>>();
        assert_eq!([all(0), all(1), all(2), all(4), all(6)], [vec![], vec![1], vec![1, 2], vec![1, 2, 4], vec![1, 2, 4, 6]]);
    }

    #[test]
    fn a_harness_is_summed_up() {
        let rollouts = [
            report("a", Outcome::Passed, Some(1.0)),
            report("a", Outcome::Failed, Some(0.5)),
            report("b", Outcome::TimedOut, Some(1.0)),
            report("b", Outcome::HarnessError, None),
            report("c", Outcome::Passed, None),
            report("c", Outcome::InfraError, None),
            report("c", Outcome::Cancelled, None),
        ];
        let summary = of("codex", &rollouts, 3);
        let outcomes =
            [("cancelled", 1), ("failed", 1), ("harness_error", 1), ("infra_error", 1), ("passed", 2), ("timed_out", 1)];
        let expected = Summary {
            harness: "codex".to_owned(),
            rollouts: 5,
            passed: 3,
            pass_rate: Some(0.6),
            interval: Some(wilson(3, 5)),
            // Of the groups a and b one half each, of c the one that is left; two has only a and b.
            pass_at: [(1, 2.0 / 3.0), (2, 1.0)].into(),
            pass_all: [(1, 2.0 / 3.0), (2, 0.0)].into(),
            calls: 10,
            tokens: 150,
            drift: 5,
            mean_ms: Some(1_000),
            outcomes: outcomes.map(|(name, count)| (name.to_owned(), count)).into(),
            infra_retries: 3,
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn nothing_has_no_rate() {
        let summary = of("codex", &[report("a", Outcome::Cancelled, None)], 0);
        assert_eq!((summary.rollouts, summary.pass_rate, summary.interval, summary.mean_ms), (0, None, None, None));
        assert!(summary.pass_at.is_empty() && summary.pass_all.is_empty());
    }
}
