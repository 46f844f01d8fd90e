//! `gleaner doctor`: looks at the surroundings and says what to fix.

mod machine;
mod model;
mod runs;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use super::Stop;
use super::assemble::{EngineArgs, PolicyArgs, StoreArgs};
use super::terminal::{Paint, counted, harmless, print};
use crate::config::Config;
use crate::engine::{Finding, Health};

/// Looks at all that a run needs, and says what is missing and what to do. Asks the policy for one token.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A folder of harnesses that adds to the built-in ones or replaces them by name
    #[arg(long, value_name = "DIR", env = "GLEANER_HARNESSES")]
    harnesses: Option<PathBuf>,
    /// Print one JSON object {"checks": [...], "faults": N} instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs the command: exit code 1 if a run would fail.
///
/// # Errors
/// If the config can't be read; whatever else is wrong is among what is said.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, engine: &EngineArgs, args: &Args) -> Result<ExitCode, Stop> {
    let mut config = store.config()?;
    policy.name(&mut config);
    engine.apply(&mut config);
    let findings = look(&config, args).await;
    let faults = findings.iter().filter(|finding| finding.state == Health::Fault).count();
    if args.json {
        print(&format!("{}\n", json!({ "checks": findings, "faults": faults })))?;
    } else {
        print(&rendered(&findings, Paint::of_stdout()))?;
    }
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn look(config: &Config, args: &Args) -> Vec<Finding> {
    let mut findings = machine::look();
    findings.extend(runs::look(config, args.harnesses.as_deref()).await);
    findings.push(runs::store(config).await);
    findings.extend(machine::room(config).await);
    findings.extend(model::look(config).await);
    findings
}

fn rendered(findings: &[Finding], paint: Paint) -> String {
    let width = findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or_default();
    // Writing to a string can't fail.
    let mut text = String::new();
    for Finding { name, state, seen, advice } in findings {
        let word = match state {
            Health::Ok => paint.green("ok     "),
            Health::Warning => paint.bold("warning"),
            Health::Fault => paint.bold("FAULT  "),
        };
        let told = harmless(seen).replace('\n', " ");
        let _ = writeln!(text, "{word}  {name:width$}  {told}");
        if let Some(advice) = advice {
            let _ = writeln!(text, "{:9}{:width$}  -> {}", "", "", harmless(advice));
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count() as u64;
    let (faults, warnings) = (counted(count(Health::Fault), "fault"), counted(count(Health::Warning), "warning"));
    let _ = writeln!(text, "{faults}, {warnings}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_says_what_to_do() {
        let findings = [
            Finding::ok("engine", "Docker"),
            Finding::warning("open files", "64", "ulimit -n 4096"),
            Finding::fault("store", "read\u{1b}only", "chmod"),
        ];
        let expected = "ok       engine      Docker\n\
                        warning  open files  64\n\
                        \u{20}                    -> ulimit -n 4096\n\
                        FAULT    store       read\\u{1b}only\n\
                        \u{20}                    -> chmod\n\
                        1 fault, 1 warning\n";
        assert_eq!(rendered(&findings, Paint::none()), expected);
    }
}
