//! What goes on, on standard error: a spinner a rollout on a terminal, plain lines elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::terminal::{counted, harmless};
use crate::harness::Progress;

/// Shows what it is told.
pub(super) struct Watcher {
    /// `None` where standard error is no terminal.
    bars: Option<MultiProgress>,
    /// By rollout, or by the payload that is built.
    shown: Mutex<HashMap<String, ProgressBar>>,
}

impl Watcher {
    /// Looks at standard error.
    pub(super) fn new() -> Self {
        Self { bars: std::io::stderr().is_terminal().then(MultiProgress::new), shown: Mutex::default() }
    }

    /// Shows a line that stays.
    pub(super) fn say(&self, line: &str) {
        match &self.bars {
            Some(bars) => drop(bars.println(line)),
            None => write_line(line),
        }
    }

    /// Shows what a run tells.
    pub(super) fn tell(&self, progress: Progress) {
        match progress {
            Progress::Building { harness, line } => {
                self.update(&format!("building {harness}"), &harmless(&line).replace('\n', " "));
            }
            Progress::Step { rollout, doing } => self.update(&format!("rollout {rollout}"), doing),
            Progress::Ended(report) => {
                let bar = self.shown.lock().unwrap_or_else(PoisonError::into_inner).remove(&format!("rollout {}", report.id));
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                let outcome = super::list::name_of(&report.outcome);
                self.say(&format!("rollout {}: {outcome} after {}", report.id, counted(report.calls, "call")));
            }
        }
    }

    fn update(&self, of: &str, message: &str) {
        let Some(bars) = &self.bars else { return write_line(&format!("{of}: {message}")) };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = shown.entry(of.to_owned()).or_insert_with(|| {
            let bar = bars.add(ProgressBar::new_spinner().with_prefix(of.to_owned()));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed}: {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        bar.set_message(message.to_owned());
    }

    /// Takes away what still moves.
    pub(super) fn done(&self) {
        for (_, bar) in self.shown.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            bar.finish_and_clear();
        }
    }
}

/// A reader that went away is no reason to stop a run.
fn write_line(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
