//! `gleaner export`: writes a data set.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};

use super::filter::FilterArgs;
use super::terminal::counted;
use crate::export::{self, Summary};
use crate::store::Store;
use crate::trajectory::Drift;

/// Writes a data set from recorded rollouts, and says how many samples were written, and which calls were left out and why.
///
/// Takes rollouts that have ended, open ones recorded without a harness of ours (purpose `record`), and any named by --rollout.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `samples`: token ids, loss masks and log-probabilities. `messages`: conversations for SFT. `predictions`: patches, as SWE-bench's evaluation reads them.
    #[arg(value_parser = PossibleValuesParser::new(export::ALL.iter().map(|format| format.name())))]
    format: String,
    /// The file to write; its ending says the form: .jsonl, or for samples .parquet. One that is there is replaced once the new one is whole.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    filter: FilterArgs,
    /// Read the file back and prove the invariants; a file that breaks one is not kept.
    #[arg(long)]
    check: bool,
    /// Print the summary as one line of JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Refuses options that say nothing together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.filter.max_tokens.is_none() || self.format == "samples",
            "--max-tokens counts token ids, which {} has not",
            self.format
        );
        Ok(())
    }
}

/// Carries the command out. `trained` says of a policy's name whether it is trained, `drift` what the
/// config says of it.
pub(super) async fn run(
    args: Args,
    store: &dyn Store,
    trained: &(dyn Fn(&str) -> bool + Sync),
    drift: Drift,
) -> anyhow::Result<ExitCode> {
    let Some(format) = export::named(&args.format) else { bail!("there is no format {}", args.format) };
    let filter = args.filter.filter(drift);
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
    let progress = |summary: &Summary| {
        bar.set_message(format!("{}, {}", counted(summary.rollouts, "rollout"), counted(summary.samples, "sample")));
        bar.tick();
    };
    let done = export::export(format, store, &filter, trained, &args.out, args.check, &progress).await;
    bar.finish_and_clear();
    let summary = done?;
    if args.json {
        let line = serde_json::to_string(&summary).context("writing the summary")?;
        writeln!(std::io::stdout(), "{line}").context("printing the summary")?;
    }
    write!(std::io::stderr(), "{}", report(&summary)).context("printing the summary")?;
    Ok(if summary.samples > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is said to people.
fn report(summary: &Summary) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let rollouts = counted(summary.rollouts, "rollout");
    // Writing to a string can't fail.
    let _ = match (summary.samples, summary.rollouts) {
        (0, 0) if summary.still_open > 0 => writeln!(
            text,
            "nothing was written: the rollouts that match are still open; finish them, or name them with --rollout"
        ),
        (0, 0) => writeln!(text, "nothing was written: no rollout matches; `gleaner list` shows which there are"),
        (0, _) if summary.format == "predictions" => {
            writeln!(text, "nothing was written: {rollouts} matched, and none left a patch")
        }
        (0, _) => writeln!(text, "nothing was written: {rollouts} matched, and none of their calls gives a sample"),
        (count, _) => {
            let checked = if summary.checked { ", every invariant holds" } else { "" };
            let rows = counted(count, if summary.format == "samples" { "sample" } else { "row" });
            writeln!(text, "{rows} of {rollouts} written to {}{checked}", summary.out.display())
        }
    };
    for (reason, calls) in &summary.left_out {
        let _ = writeln!(text, "left out: {} ({reason})", counted(*calls, "call"));
    }
    if summary.still_open > 0 && summary.rollouts > 0 {
        let _ = writeln!(text, "not taken: {} still open", summary.still_open);
    }
    if summary.samples == 0 && summary.left_out.contains_key("text_only") {
        let _ = writeln!(text, "calls without token ids can be exported as conversations: gleaner export messages");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::ids::RolloutId;
    use crate::store::{Outcome, Purpose};
    use crate::trajectory::Without;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(clap::Command::new("export"));
        Args::from_arg_matches(&command.try_get_matches_from(std::iter::once("export").chain(args.iter().copied()))?)
    }

    #[test]
    fn every_filter_of_the_contract_is_read() {
        let id = RolloutId::generate().to_string();
        let args = [
            "samples",
            "--out",
            "a.jsonl",
            "--rollout",
            &id,
            "--group",
            "g",
            "--task",
            "t",
            "--harness",
            "codex",
            "--outcome",
            "timed_out",
            "--purpose",
            "train",
            "--min-reward",
            "-0.5",
            "--since",
            "2h",
            "--policy-seq",
            "..7",
            "--without",
            "side,abandoned",
            "--max-tokens",
            "9",
            "--overlong",
            "drop",
            "--drift",
            "realign",
            "--check",
            "--json",
        ];
        let args = parse(&args).unwrap();
        let filter = args.filter.filter(Drift::Fork);
        assert_eq!((filter.rollouts.len(), filter.outcome, filter.purpose), (1, Some(Outcome::TimedOut), Some(Purpose::Train)));
        assert_eq!(
            (filter.without, filter.max_tokens, filter.drift),
            (vec![Without::Side, Without::Abandoned], Some(9), Drift::Realign)
        );
        assert_eq!((filter.min_reward, filter.policy_seq), (Some(-0.5), Some(i64::MIN..=7)));
    }

    #[test]
    fn wrong_usage_says_what_is_right() {
        let error = |args: &[&str]| parse(args).unwrap_err().to_string();
        assert!(error(&["parquet", "--out", "a"]).contains("samples, messages, predictions"));
        assert!(error(&["samples"]).contains("--out"));
        assert!(error(&["samples", "--out", "a.jsonl", "--without", "titles"]).contains("side"));
        assert!(parse(&["messages", "--out", "a.jsonl", "--max-tokens", "9"]).unwrap().check().is_err());
        assert!(error(&["samples", "--out", "a.jsonl", "--since", "noon"]).contains("RFC 3339"));
        assert!(error(&["samples", "--out", "a.jsonl", "--outcome", "won"]).contains("passed"));
    }

    #[test]
    fn the_report_names_reasons_and_what_to_do() {
        let summary = Summary {
            format: "samples",
            rollouts: 2,
            left_out: BTreeMap::from([("text_only", 3), ("undelivered", 1)]),
            ..Summary::default()
        };
        let one = Summary { samples: 1, rollouts: 1, out: "o".into(), ..Summary::default() };
        assert_eq!(report(&Summary { format: "samples", ..one.clone() }), "1 sample of 1 rollout written to o\n");
        assert_eq!(report(&Summary { format: "messages", ..one }), "1 row of 1 rollout written to o\n");
        assert_eq!(
            report(&summary),
            "nothing was written: 2 rollouts matched, and none of their calls gives a sample\n\
             left out: 3 calls (text_only)\nleft out: 1 call (undelivered)\n\
             calls without token ids can be exported as conversations: gleaner export messages\n"
        );
    }
}
