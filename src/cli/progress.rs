//! What goes on, on standard error: on a terminal a bar over all rollouts and a line for each that runs, with its turn; elsewhere a
//! line for each that has ended.

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::terminal::{counted, harmless};
use crate::harness::summary::counts;
use crate::harness::{Progress, Report};
use crate::ids::{BatchId, RolloutId};

/// Lines of running rollouts on a terminal; of more there is only the bar.
const SHOWN: usize = 12;

/// How many calls a rollout has begun.
pub(super) type Turns = Arc<dyn Fn(RolloutId) -> u64 + Send + Sync>;

/// Shows what it is told.
pub(super) struct Watcher {
    /// `None` where standard error is no terminal.
    bars: Option<MultiProgress>,
    turns: Turns,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Over all rollouts, if they are several.
    whole: Option<ProgressBar>,
    begun: Option<Instant>,
    /// By payload that is built.
    builds: HashMap<String, ProgressBar>,
    running: HashMap<RolloutId, Running>,
    /// How many ended so.
    ended: BTreeMap<&'static str, u64>,
    retries: u64,
}

struct Running {
    /// Harness, task, place in the group.
    what: String,
    bar: Option<ProgressBar>,
}

impl Watcher {
    /// Looks at standard error. `turns` says of a running rollout how many calls it has begun.
    pub(super) fn new(turns: Turns) -> Self {
        Self { bars: std::io::stderr().is_terminal().then(MultiProgress::new), turns, state: Mutex::default() }
    }

    /// Says by which id the batch is shown and gone on with, if it has several rollouts; and begins.
    pub(super) fn begin_batch(&self, id: BatchId, rollouts: u64, ended: u64) {
        if rollouts > 1 {
            self.say(&format!("batch {id}: {ended} of {rollouts} rollouts have ended"));
        }
        self.begin(rollouts, ended);
    }

    /// Says that there are so many rollouts, of which so many have ended before.
    pub(super) fn begin(&self, rollouts: u64, ended: u64) {
        let mut state = self.state();
        state.begun = Some(Instant::now());
        if rollouts < 2 {
            return;
        }
        let bar = ProgressBar::new(rollouts).with_position(ended);
        bar.reset_eta();
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        state.whole = Some(if let Some(bars) = &self.bars {
            bars.insert(0, bar)
        } else {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            bar
        });
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
            Progress::Building { harness, line } => self.build(harness, &harmless(&line).replace('\n', " ")),
            Progress::Began { rollout, harness, task_id, index, attempt } => {
                let again = if attempt > 1 { format!(", try {attempt}") } else { String::new() };
                let what = format!("{harness} on {} #{index}{again}", harmless(&task_id).replace('\n', " "));
                self.began(rollout, what);
            }
            Progress::Step { rollout, doing } => self.step(rollout, &doing),
            Progress::Ended(report) => self.ended(&report),
            Progress::Retry { rollout, attempt } => {
                self.state().retries += 1;
                self.say(&format!("rollout {rollout} is replaced by another (try {attempt})"));
            }
            Progress::Waiting { why } => self.say(&format!("waiting for the engine: {why}")),
        }
    }

    fn began(&self, rollout: RolloutId, what: String) {
        let mut state = self.state();
        let shown = state.running.values().filter(|running| running.bar.is_some()).count();
        let bar = self.bars.as_ref().filter(|_| shown < SHOWN).map(|bars| self.spinner(bars, rollout, &what));
        state.running.insert(rollout, Running { what, bar });
    }

    fn spinner(&self, bars: &MultiProgress, rollout: RolloutId, what: &str) -> ProgressBar {
        let bar = bars.add(ProgressBar::new_spinner().with_prefix(what.to_owned()));
        let turns = Arc::clone(&self.turns);
        let turn = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Writing to a line of the terminal can't fail.
            let _ = write!(out, "turn {}", turns(rollout));
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {turn}: {wide_msg}") {
            bar.set_style(style.with_key("turn", turn));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    fn step(&self, rollout: RolloutId, doing: &str) {
        let state = self.state();
        if let Some(bar) = state.running.get(&rollout).and_then(|running| running.bar.as_ref()) {
            bar.set_message(doing.to_owned());
        } else if self.bars.is_none() && state.whole.is_none() {
            write_line(&format!("rollout {rollout}: {doing}"));
        }
    }

    fn ended(&self, report: &Report) {
        let mut state = self.state();
        let running = state.running.remove(&report.id);
        if let Some(bar) = running.as_ref().and_then(|running| running.bar.as_ref()) {
            bar.finish_and_clear();
        }
        *state.ended.entry(report.outcome.name()).or_default() += 1;
        if let Some(whole) = &state.whole {
            if counts(report.outcome) {
                whole.inc(1);
            }
            whole.set_message(state.counts());
        }
        drop(state);
        let what = running.map_or_else(|| report.harness.clone(), |running| running.what);
        let reward = report.reward.map(|reward| format!(", reward {reward}")).unwrap_or_default();
        let why = report.error.as_ref().map(|why| format!(": {}", harmless(why).replace('\n', " "))).unwrap_or_default();
        let calls = counted(report.calls, "call");
        self.say(&format!("rollout {} ({what}): {} after {calls}{reward}{why}", report.id, report.outcome.name()));
    }

    fn build(&self, harness: String, line: &str) {
        let Some(bars) = &self.bars else { return write_line(&format!("building {harness}: {line}")) };
        let mut state = self.state();
        let bar = state.builds.entry(harness).or_insert_with_key(|harness| {
            let bar = bars.add(ProgressBar::new_spinner().with_prefix(format!("building {harness}")));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed}: {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        bar.set_message(line.to_owned());
    }

    /// Takes away what still moves.
    pub(super) fn done(&self) {
        let mut state = self.state();
        let running = state.running.drain().filter_map(|(_, running)| running.bar).collect::<Vec<_>>();
        let builds = state.builds.drain().map(|(_, bar)| bar).collect::<Vec<_>>();
        for bar in running.into_iter().chain(builds).chain(state.whole.take()) {
            bar.finish_and_clear();
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many ended how, and how fast.
    fn counts(&self) -> String {
        let mut parts: Vec<String> = self.ended.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if self.retries > 0 {
            parts.push(format!("{} replaced", self.retries));
        }
        let ended: u64 = self.ended.values().sum();
        let minutes = self.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64() / 60.0);
        if minutes > 0.05 {
            #[expect(clippy::cast_precision_loss, reason = "counts of rollouts are far below 2^52")]
            parts.push(format!("{:.1}/min", ended as f64 / minutes));
        }
        parts.join(", ")
    }
}

/// A reader that went away is no reason to stop a run.
fn write_line(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
