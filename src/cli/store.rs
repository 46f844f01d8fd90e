//! `gleaner store`: looks after what is recorded.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

use super::Stop;
use super::filter::since;
use super::list::named;
use super::terminal::{counted, harmless};
use crate::export::{self, Verified};
use crate::ids::RolloutId;
use crate::store::{Outcome, Prune, Pruned, Rollout, RolloutFilter, RolloutStatus, Store};

/// Looks after the store.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Read all that is recorded and say what is not as it was written: every checksum and hash, every body unpacked, every
    /// request read by its wire, every sample built anew.
    Check {
        /// Print the result as one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete rollouts whole, with their calls and what nobody else refers to. Takes those that fit all that is given.
    ///
    /// Open rollouts stay, unless they are named (`--rollout`, `--status open`); one with a call in flight always stays. May run beside
    /// a server. The file gets smaller step by step (incremental vacuum); that of a store from before there was this command, only with --vacuum.
    Prune(PruneArgs),
}

#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
struct PruneArgs {
    /// Only rollouts without a call or a change since then: how long ago (90s, 15m, 2h, 30d), or RFC 3339
    #[arg(long, value_name = "T", value_parser = since, group = "which")]
    older_than: Option<i64>,
    /// Only rollouts that ended so; may be given more than once
    #[arg(long, value_parser = named::<Outcome>, group = "which")]
    outcome: Vec<Outcome>,
    /// Only rollouts that are `open` or `finished`
    #[arg(long, value_parser = named::<RolloutStatus>, group = "which")]
    status: Option<RolloutStatus>,
    /// Only this rollout; may be given more than once
    #[arg(long, value_name = "ID", group = "which")]
    rollout: Vec<RolloutId>,
    /// Delete nothing, say only what would go
    #[arg(long)]
    dry_run: bool,
    /// Write the file anew afterwards (VACUUM): as small as can be; nobody else can write meanwhile
    #[arg(long, conflicts_with = "dry_run")]
    vacuum: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. `trained` says of a policy's name whether it is trained.
pub(super) async fn run(args: Args, store: &dyn Store, trained: &(dyn Fn(&str) -> bool + Sync)) -> Result<ExitCode, Stop> {
    match args.command {
        Command::Check { json } => check(store, trained, json).await,
        Command::Prune(args) => prune(store, &args).await,
    }
}

async fn check(store: &dyn Store, trained: &(dyn Fn(&str) -> bool + Sync), json: bool) -> Result<ExitCode, Stop> {
    let verified = export::verify(store, trained).await?;
    let text = if json { json_line(&verified)? } else { report(&verified) };
    std::io::stdout().write_all(text.as_bytes()).context("printing the result")?;
    Ok(if verified.store.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(verified: &Verified) -> String {
    let mut text = String::new();
    let store = &verified.store;
    // Writing to a string can't fail.
    for fault in &store.faults {
        let whose = match (fault.call, fault.rollout) {
            (Some(call), Some(rollout)) => format!("call {call} of rollout {rollout}: "),
            (Some(call), None) => format!("call {call}: "),
            (None, Some(rollout)) => format!("rollout {rollout}: "),
            (None, None) => String::new(),
        };
        let _ = writeln!(text, "{whose}{}: {}", fault.part, harmless(&fault.what).replace('\n', " "));
    }
    let _ = writeln!(
        text,
        "{}, {}, {} unpacked, {} hashed, {} read anew, {} built anew",
        counted(store.rollouts, "rollout"),
        counted(store.calls, "call"),
        counted(store.bodies, "body").replace("bodys", "bodies"),
        counted(store.blobs, "blob"),
        counted(verified.requests, "request"),
        counted(verified.samples, "sample"),
    );
    let _ = match store.faults.len() {
        0 => writeln!(text, "all is as it was written"),
        count => writeln!(
            text,
            "{}; what is not named can be read. `gleaner store prune --rollout ID` deletes a rollout that is damaged",
            counted(count as u64, "fault")
        ),
    };
    text
}

async fn prune(store: &dyn Store, args: &PruneArgs) -> Result<ExitCode, Stop> {
    let ids = chosen(store, args).await?;
    let open = args.status == Some(RolloutStatus::Open) || !args.rollout.is_empty();
    let pruned = store.prune(&ids, Prune { open, dry_run: args.dry_run, vacuum: args.vacuum })?;
    let text = if args.json { json_line(&pruned)? } else { said(&pruned, args.dry_run) };
    std::io::stdout().write_all(text.as_bytes()).context("printing the result")?;
    Ok(ExitCode::SUCCESS)
}

fn said(pruned: &Pruned, dry_run: bool) -> String {
    let done = if dry_run { "would delete" } else { "deleted" };
    let mut text = format!(
        "{done} {} with {} and {}: {} bytes\n",
        counted(pruned.rollouts, "rollout"),
        counted(pruned.calls, "call"),
        counted(pruned.blobs, "blob"),
        pruned.bytes
    );
    // Writing to a string can't fail.
    if pruned.artifact_bytes > 0 {
        let _ = writeln!(text, "and what their runs left: {} bytes", pruned.artifact_bytes);
    }
    if pruned.passed_over > 0 {
        let _ = writeln!(text, "passed over: {}, open or with a call in flight", counted(pruned.passed_over, "rollout"));
    }
    if !dry_run {
        let _ = writeln!(text, "the file had {} bytes and has {}", pruned.file_before, pruned.file_after);
        if pruned.rollouts > 0 && pruned.file_after >= pruned.file_before {
            text.push_str("its free room is used again; --vacuum gives it back to the disk\n");
        }
    }
    text
}

/// The rollouts that fit, oldest first.
async fn chosen(store: &dyn Store, args: &PruneArgs) -> Result<Vec<RolloutId>, Stop> {
    let mut chosen = Vec::new();
    for id in &args.rollout {
        let rollout = store.rollout(*id).await?;
        let rollout = rollout.with_context(|| format!("there is no rollout {id}; `gleaner list` shows which there are"))?;
        chosen.extend(fits(&rollout, args).then_some(*id));
    }
    if !args.rollout.is_empty() {
        return Ok(chosen);
    }
    let status = Some(args.status.unwrap_or(RolloutStatus::Finished));
    let mut filter = RolloutFilter { status, limit: 1000, ..RolloutFilter::default() };
    loop {
        let page = store.rollouts(&filter).await?;
        let Some(last) = page.last() else { return Ok(chosen) };
        filter.after = Some(last.id);
        chosen.extend(page.iter().filter(|rollout| fits(rollout, args)).map(|rollout| rollout.id));
    }
}

fn fits(rollout: &Rollout, args: &PruneArgs) -> bool {
    let last = rollout.created_at.max(rollout.ended_at.unwrap_or(0)).max(rollout.last_call_at.unwrap_or(0));
    args.older_than.is_none_or(|time| last < time)
        && args.status.is_none_or(|status| rollout.status == status)
        && (args.outcome.is_empty() || rollout.outcome.is_some_and(|outcome| args.outcome.contains(&outcome)))
}

fn json_line(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(value).context("writing the result")?))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(clap::Command::new("store"));
        Args::from_arg_matches(&command.try_get_matches_from([&["store"], args].concat())?)
    }

    #[test]
    fn a_deletion_says_of_what() {
        assert!(parse(&["check", "--json"]).is_ok());
        for nothing in [&["prune"][..], &["prune", "--dry-run"], &["prune", "--vacuum", "--dry-run", "--status", "open"]] {
            assert!(parse(nothing).is_err(), "{nothing:?}");
        }
        let args = ["prune", "--older-than", "30d", "--outcome", "failed", "--outcome", "infra_error", "--vacuum"];
        let Command::Prune(args) = parse(&args).unwrap().command else { panic!("another command") };
        assert_eq!(args.outcome, [Outcome::Failed, Outcome::InfraError]);
        assert!(args.older_than.is_some() && args.vacuum && args.status.is_none() && args.rollout.is_empty());
    }

    #[test]
    fn faults_are_named_and_counted() {
        let (rollout, call) = (RolloutId::generate(), crate::ids::CallId::generate());
        let fault = crate::store::Fault { rollout: Some(rollout), call: Some(call), part: "request".into(), what: "a\nb".into() };
        let mut verified = Verified { requests: 1, samples: 2, ..Verified::default() };
        assert!(
            report(&verified).ends_with("1 request read anew, 2 samples built anew\nall is as it was written\n"),
            "{}",
            report(&verified)
        );
        verified.store.faults.push(fault);
        let text = report(&verified);
        assert!(text.starts_with(&format!("call {call} of rollout {rollout}: request: a b\n")), "{text}");
        assert!(text.contains("1 fault; "), "{text}");
    }
}
