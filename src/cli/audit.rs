//! `gleaner audit`: holds samples against the raw bytes and the policy's own forward pass.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::Stop;
use super::assemble::{PolicyArgs, StoreArgs, connect};
use super::filter::FilterArgs;
use super::terminal::{Paint, counted, harmless, print, table};
use crate::export::{Audit, Group, Report};
use crate::policy::Policy;

/// Derives samples anew from the raw bytes of their calls and compares them, then asks the policy to score each whole sequence by
/// prefill and compares that with the recorded log-probabilities. Exits with 1 where a sample differs, a gap is above its threshold,
/// or nothing could be compared, so that a training run can gate on it.
///
/// Takes rollouts as export does. vLLM and `SGLang` can score; what other servers, or other weights than are served now, have sampled
/// is skipped and counted.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An exported file of samples (.jsonl or .parquet) to look at; without it, those that the store gives. Give the filters that
    /// the export had.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// The widest gap between a recorded log-probability and the policy's score that is taken. Servers of low precision need more.
    #[arg(long, value_name = "GAP", default_value_t = 0.01)]
    threshold: f64,
    /// The largest mean gap that is taken.
    #[arg(long, value_name = "GAP")]
    mean_threshold: Option<f64>,
    /// Look at so many samples at most.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Score so many samples at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    concurrency: usize,
    /// Compare with the raw bytes alone; no policy is asked.
    #[arg(long)]
    no_score: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// Print one JSON object with all that was found.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, args: Args) -> Result<ExitCode, Stop> {
    let mut config = store.config()?;
    if !args.no_score {
        policy.apply(&mut config)?;
    }
    let mut policies: BTreeMap<String, Arc<dyn Policy>> = BTreeMap::new();
    for (name, settings) in config.policies.iter().filter(|_| !args.no_score) {
        policies.insert(name.clone(), connect(name, settings).map_err(Stop::Usage)?);
    }
    let store = store.open().await?;
    let verdict = Verdict { threshold: args.threshold, mean_threshold: args.mean_threshold, scored: !args.no_score };
    let audit = Audit {
        store: store.as_ref(),
        filter: &args.filter.filter(config.record.drift),
        trained: &|policy| config.trained(policy),
        policies: &|name| policies.get(name).cloned(),
        samples: args.samples.as_deref(),
        limit: args.limit,
        concurrency: args.concurrency,
        score: !args.no_score,
    };
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
    let progress = |report: &Report| {
        bar.set_message(counted(report.samples, "sample"));
        bar.tick();
    };
    let done = audit.run(&progress).await;
    bar.finish_and_clear();
    let report = done?;
    let faults = verdict.faults(&report);
    print(&if args.json { json(&report, &faults)? } else { told(&report, &faults) })?;
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is asked of a report.
#[derive(Debug)]
struct Verdict {
    threshold: f64,
    mean_threshold: Option<f64>,
    /// Samples were to be scored.
    scored: bool,
}

impl Verdict {
    /// Why a training run should not go on; nothing if it may.
    fn faults(&self, report: &Report) -> Vec<String> {
        let mut faults = Vec::new();
        if report.different > 0 {
            faults.push(format!("{} from the raw bytes", counted(report.different, "difference")));
        }
        if report.samples == 0 {
            faults.push("no sample was looked at; `gleaner list` shows which rollouts there are".to_owned());
        } else if self.scored && report.compared() == 0 {
            faults.push("no token could be compared with the policy's score".to_owned());
        }
        if report.max() > self.threshold {
            faults.push(format!("the widest gap is {:.6}, above {}", report.max(), self.threshold));
        }
        if let Some(most) = self.mean_threshold.filter(|most| report.mean() > *most) {
            faults.push(format!("the mean gap is {:.6}, above {most}", report.mean()));
        }
        faults
    }
}

fn json(report: &Report, faults: &[String]) -> anyhow::Result<String> {
    let mut all = serde_json::to_value(report).context("writing the report")?;
    all["compared"] = report.compared().into();
    all["mean"] = report.mean().into();
    all["max"] = report.max().into();
    all["faults"] = faults.into();
    Ok(format!("{all}\n"))
}

/// What is said to people. Writing to a string can't fail.
fn told(report: &Report, faults: &[String]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, {} read anew from their raw bytes, {}",
        counted(report.samples, "sample"),
        counted(report.calls, "call"),
        counted(report.different, "difference")
    );
    for difference in &report.differences {
        let rollout = difference.rollout_id.map(|id| format!("rollout {id}: ")).unwrap_or_default();
        let _ = writeln!(text, "  {rollout}{}", difference.what);
    }
    let untold = report.different.saturating_sub(report.differences.len() as u64);
    if untold > 0 {
        let _ = writeln!(text, "  and {untold} more");
    }
    if !report.groups.is_empty() {
        text.push('\n');
        text.push_str(&groups(&report.groups));
    }
    for group in &report.groups {
        let named: Vec<String> = group.versions.iter().map(|(version, tokens)| format!("{version:?} {tokens}")).collect();
        if !named.is_empty() {
            let _ = writeln!(text, "tokens by weights, {} on {}: {}", harness(group), group.policy, named.join(", "));
        }
        if let Some(worst) = &group.worst {
            let _ = writeln!(
                text,
                "widest gap, {} on {}: token {} of sample {}: recorded {:.6}, scored {:.6}",
                harness(group),
                group.policy,
                worst.token,
                worst.sample_id,
                worst.recorded,
                worst.scored
            );
        }
    }
    for (reason, tokens) in &report.excluded {
        let _ = writeln!(text, "not compared: {} ({reason})", counted(*tokens, "token"));
    }
    for (reason, samples) in &report.skipped {
        let _ = writeln!(text, "not scored: {} ({})", counted(*samples, "sample"), harmless(reason));
    }
    for fault in faults {
        let _ = writeln!(text, "FAILED: {fault}");
    }
    text
}

fn harness(group: &Group) -> &str {
    group.harness.as_deref().unwrap_or("-")
}

fn groups(groups: &[Group]) -> String {
    let head = ["harness", "policy", "samples", "tokens", "trained", "drift", "compared", "mean", "p50", "p90", "p99", "max"];
    let row = |group: &Group| {
        let Group { policy, samples, tokens, trained, drift, gap, .. } = group;
        let counts = [*samples, *tokens, *trained, *drift, gap.tokens].map(|count| count.to_string());
        let gaps = [gap.mean, gap.p50, gap.p90, gap.p99, gap.max].map(|gap| format!("{gap:.6}"));
        [vec![harness(group).to_owned(), policy.clone()], counts.to_vec(), gaps.to_vec()].concat()
    };
    table(&head, &groups.iter().map(row).collect::<Vec<_>>(), Paint::of_stdout())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERDICT: Verdict = Verdict { threshold: 0.01, mean_threshold: None, scored: true };

    #[test]
    fn what_was_not_looked_at_does_not_pass() {
        assert_eq!(VERDICT.faults(&Report::default()).len(), 1);
        let unscored = Report { samples: 1, ..Report::default() };
        assert_eq!(VERDICT.faults(&unscored), ["no token could be compared with the policy's score"]);
        assert_eq!(Verdict { scored: false, ..VERDICT }.faults(&unscored), [""; 0]);
        let different = Report { samples: 1, different: 2, ..Report::default() };
        assert_eq!(Verdict { scored: false, ..VERDICT }.faults(&different), ["2 differences from the raw bytes"]);
    }

    #[test]
    fn reasons_of_servers_can_not_steer_the_terminal() {
        let report = Report { skipped: BTreeMap::from([("\u{1b}[31mno".to_owned(), 2)]), ..Report::default() };
        let text = told(&report, &["it failed".to_owned()]);
        let expected = "0 samples, 0 calls read anew from their raw bytes, 0 differences\n\
                        not scored: 2 samples (\\u{1b}[31mno)\nFAILED: it failed\n";
        assert_eq!(text, expected);
    }
}
