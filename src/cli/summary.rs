//! What a batch came to, as a table.

use std::collections::BTreeSet;

use super::terminal::{Paint, duration, table};
use crate::harness::summary::Summary;

/// One line a harness.
pub(super) fn rendered(summaries: &[Summary], paint: Paint) -> String {
    let ks: BTreeSet<u32> = summaries.iter().flat_map(|summary| summary.pass_at.keys().copied()).collect();
    let at = ks.iter().map(|k| format!("pass@{k}"));
    // Of one rollout both say the same.
    let all = ks.iter().filter(|k| **k > 1).map(|k| format!("pass^{k}"));
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let first = words(&["harness", "rollouts", "pass rate"]);
    let last = words(&["calls", "tokens", "drift", "mean time", "outcomes", "infra retries"]);
    let head: Vec<String> = first.into_iter().chain(at).chain(all).chain(last).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = summaries.iter().map(|summary| row(summary, &ks)).collect();
    table(&head, &rows, paint)
}

fn row(summary: &Summary, ks: &BTreeSet<u32>) -> Vec<String> {
    let share = |value: Option<&f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let rate = match (summary.pass_rate, summary.interval) {
        (Some(rate), Some([low, high])) => format!("{rate:.3} ({low:.3} to {high:.3})"),
        _ => "-".to_owned(),
    };
    let outcomes: Vec<String> = summary.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let at = ks.iter().map(|k| share(summary.pass_at.get(k)));
    let all = ks.iter().filter(|k| **k > 1).map(|k| share(summary.pass_all.get(k)));
    let first = [summary.harness.clone(), summary.rollouts.to_string(), rate];
    let last = [
        summary.calls.to_string(),
        summary.tokens.to_string(),
        summary.drift.to_string(),
        summary.mean_ms.map_or_else(|| "-".to_owned(), |ms| duration(ms.cast_signed())),
        if outcomes.is_empty() { "-".to_owned() } else { outcomes.join(", ") },
        summary.infra_retries.to_string(),
    ];
    first.into_iter().chain(at).chain(all).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_harness() {
        let codex = Summary {
            harness: "codex".to_owned(),
            rollouts: 4,
            passed: 1,
            pass_rate: Some(0.25),
            interval: Some([0.0456, 0.6994]),
            pass_at: [(1, 0.25), (2, 0.5)].into(),
            pass_all: [(1, 0.25), (2, 0.0)].into(),
            calls: 8,
            tokens: 100,
            drift: 0,
            mean_ms: Some(1_500),
            outcomes: [("failed".to_owned(), 3), ("passed".to_owned(), 1)].into(),
            infra_retries: 2,
        };
        let none = crate::harness::summary::of("react", &[], 0);
        let expected = "\
harness  rollouts  pass rate               pass@1  pass@2  pass^2  calls  tokens  drift  mean time  outcomes            infra retries
codex    4         0.250 (0.046 to 0.699)  0.250   0.500   0.000   8      100     0      1.5 s      3 failed, 1 passed  2
react    0         -                       -       -       -       0      0       0      -          -                   0
";
        assert_eq!(rendered(&[codex, none], Paint::none()), expected);
    }
}
