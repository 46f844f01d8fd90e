//! One rollout as a pure state machine: what happened goes in, what to do next comes out. It knows no clock and no engine;
//! [`super::driver`] does what it says.

use std::collections::BTreeMap;

use serde::Serialize;

use super::outcome::by_exit;
use super::spec::Meaning;
use crate::store::Outcome;

/// How a harness's process ended, as the sandbox's init saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The deadline ended it.
    pub timed_out: bool,
    /// A cap ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capped: Option<Cap>,
    /// How long it ran.
    pub ms: u64,
}

/// A bound on what a rollout may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    Calls,
    Tokens,
    /// Of its sandbox's own files.
    Disk,
}

/// The rewards of a rollout: the one that counts, and those of other names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewards {
    pub reward: f64,
    pub named: BTreeMap<String, f64>,
}

impl Rewards {
    /// One reward and no other.
    #[must_use]
    pub fn of(reward: f64) -> Self {
        Self { reward, named: BTreeMap::new() }
    }
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Begin the rollout: its record, its socket.
    Open,
    /// Make the sandbox, with the task's files.
    Create,
    /// Start it and prepare it, up to the point where the harness can go.
    Start,
    /// Let the harness go and wait for its end.
    Await,
    /// Read what the harness says of its run.
    Read,
    /// Keep what it made: patch, chosen files, session. Its model takes no more calls from here on.
    Keep,
    /// Run the task's verifier.
    Verify,
    /// Clear away, and end the rollout so.
    Finish(Verdict),
}

/// How a rollout ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub outcome: Outcome,
    pub rewards: Option<Rewards>,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What was to be done is done: opening, creating, starting, keeping.
    Done,
    /// The harness ended.
    Exited(Exit),
    /// What the harness's result says; `None` if there is none that can be read.
    Read(Option<Meaning>),
    /// The verifier ended, with these rewards.
    Verified(Rewards),
    /// It could not be done, for no fault of harness or model.
    Failed(String),
    /// The user or the server wants it to end.
    Cancelled,
}

/// Where a rollout stands.
#[derive(Clone, Debug)]
pub struct Run {
    verifies: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Opening,
    Creating,
    Starting,
    Running,
    Reading(Exit),
    Keeping(End),
    Verifying(End),
    Finishing,
}

/// How the harness ended, by all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    exit: Exit,
    /// What its result says; `None` if there is none.
    read: Option<Meaning>,
}

impl End {
    fn meaning(self) -> Meaning {
        self.read.unwrap_or_else(|| by_exit(self.exit))
    }

    /// The harness broke by itself.
    fn broke(self) -> bool {
        self.meaning() == Meaning::Error && !self.exit.timed_out && self.exit.capped.is_none()
    }
}

impl Run {
    /// A rollout that has not begun, and the first thing to do. `verifies`: its task has a verifier.
    #[must_use]
    pub fn new(verifies: bool) -> (Self, Action) {
        (Self { verifies, state: State::Opening }, Action::Open)
    }

    /// Takes in what came of the last action, and says what to do next.
    #[must_use]
    pub fn step(&mut self, event: Event) -> Action {
        match (self.state, event) {
            (_, Event::Cancelled) => self.finish(Outcome::Cancelled, None, None),
            (_, Event::Failed(why)) => self.finish(Outcome::InfraError, None, Some(why)),
            (State::Opening, Event::Done) => self.go(State::Creating, Action::Create),
            (State::Creating, Event::Done) => self.go(State::Starting, Action::Start),
            (State::Starting, Event::Done) => self.go(State::Running, Action::Await),
            (State::Running, Event::Exited(exit)) => self.go(State::Reading(exit), Action::Read),
            (State::Reading(exit), Event::Read(read)) => self.go(State::Keeping(End { exit, read }), Action::Keep),
            (State::Keeping(end), Event::Done) => self.judge(end),
            (State::Verifying(end), Event::Verified(rewards)) => {
                self.finish(outcome(end, Some(rewards.reward)), Some(rewards), None)
            }
            (state, event) => {
                let why = format!("gleaner's own fault: {event:?} while {state:?}");
                self.finish(Outcome::InfraError, None, Some(why))
            }
        }
    }

    fn judge(&mut self, end: End) -> Action {
        if self.verifies && !end.broke() {
            return self.go(State::Verifying(end), Action::Verify);
        }
        let error = end.broke().then(|| match end.read {
            Some(_) => "the harness says that it failed".to_owned(),
            None => format!("the harness left no result and {}", ended(end.exit)),
        });
        self.finish(outcome(end, None), None, error)
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }

    fn finish(&mut self, outcome: Outcome, rewards: Option<Rewards>, error: Option<String>) -> Action {
        self.go(State::Finishing, Action::Finish(Verdict { outcome, rewards, error }))
    }
}

fn outcome(end: End, reward: Option<f64>) -> Outcome {
    match (end.exit, end.meaning(), reward) {
        (Exit { timed_out: true, .. }, _, _) => Outcome::TimedOut,
        (Exit { capped: Some(_), .. }, _, _) | (_, Meaning::Truncated, _) => Outcome::Truncated,
        (_, Meaning::Error, _) => Outcome::HarnessError,
        (_, _, Some(reward)) if reward >= 1.0 => Outcome::Passed,
        (_, Meaning::Completed, None) => Outcome::Passed,
        _ => Outcome::Failed,
    }
}

fn ended(exit: Exit) -> String {
    match (exit.code, exit.signal) {
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        (Some(code), _) => format!("ended with exit code {code}"),
        _ => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Exit = Exit { code: Some(0), signal: None, timed_out: false, capped: None, ms: 5 };

    /// A run up to the harness's end.
    fn begun(verifies: bool) -> Run {
        let (mut run, first) = Run::new(verifies);
        assert_eq!(first, Action::Open);
        assert_eq!(run.step(Event::Done), Action::Create);
        assert_eq!(run.step(Event::Done), Action::Start);
        assert_eq!(run.step(Event::Done), Action::Await);
        run
    }

    /// The outcome of a run whose harness ended so, said so, and was verified so.
    fn ends(exit: Exit, meaning: Option<Meaning>, reward: Option<f64>) -> Outcome {
        let mut run = begun(reward.is_some());
        assert_eq!(run.step(Event::Exited(exit)), Action::Read);
        assert_eq!(run.step(Event::Read(meaning)), Action::Keep);
        let mut action = run.step(Event::Done);
        if action == Action::Verify {
            action = run.step(Event::Verified(Rewards::of(reward.unwrap())));
        }
        let Action::Finish(verdict) = action else { panic!("{action:?}") };
        verdict.outcome
    }

    #[test]
    fn the_result_decides_before_the_exit_code() {
        use Meaning::{Completed, Error, GaveUp, Truncated};
        let lied = Exit { code: Some(1), ..WELL };
        for (exit, meaning, reward, outcome) in [
            (WELL, Some(Completed), None, Outcome::Passed),
            (WELL, Some(Completed), Some(1.0), Outcome::Passed),
            (WELL, Some(Completed), Some(0.5), Outcome::Failed),
            (lied, Some(Completed), None, Outcome::Passed),
            (WELL, Some(GaveUp), None, Outcome::Failed),
            (WELL, Some(GaveUp), Some(1.0), Outcome::Passed),
            (WELL, Some(Error), Some(1.0), Outcome::HarnessError),
            (WELL, Some(Truncated), Some(1.0), Outcome::Truncated),
            (lied, Some(Truncated), None, Outcome::Truncated),
            (WELL, None, None, Outcome::Passed),
            (lied, None, Some(1.0), Outcome::HarnessError),
        ] {
            assert_eq!(ends(exit, meaning, reward), outcome, "{exit:?} {meaning:?} {reward:?}");
        }
    }

    #[test]
    fn a_run_past_its_deadline_is_verified_whatever_it_says() {
        let late = Exit { code: None, signal: Some(9), timed_out: true, capped: None, ms: 5 };
        let mut run = begun(true);
        let _ = run.step(Event::Exited(late));
        assert_eq!(run.step(Event::Read(None)), Action::Keep);
        assert_eq!(run.step(Event::Done), Action::Verify);
        let rewards = Rewards { reward: 1.0, named: BTreeMap::from([("style".to_owned(), 0.5)]) };
        let verdict = Verdict { outcome: Outcome::TimedOut, rewards: Some(rewards.clone()), error: None };
        assert_eq!(run.step(Event::Verified(rewards)), Action::Finish(verdict));
        assert_eq!(ends(late, Some(Meaning::Completed), None), Outcome::TimedOut);
    }

    #[test]
    fn a_capped_run_is_truncated_and_verified() {
        let capped = Exit { code: None, signal: Some(15), capped: Some(Cap::Calls), ..WELL };
        assert_eq!(ends(capped, None, Some(1.0)), Outcome::Truncated);
        assert_eq!(ends(capped, Some(Meaning::Error), Some(0.0)), Outcome::Truncated);
        assert_eq!(ends(capped, None, None), Outcome::Truncated);
    }

    #[test]
    fn a_harness_error_says_why_and_has_no_reward() {
        let mut run = begun(true);
        let _ = run.step(Event::Exited(Exit { code: None, signal: Some(11), ..WELL }));
        let error = Some("the harness left no result and was ended by signal 11".to_owned());
        let verdict = Verdict { outcome: Outcome::HarnessError, rewards: None, error };
        assert_eq!(run.step(Event::Read(None)), Action::Keep);
        assert_eq!(run.step(Event::Done), Action::Finish(verdict));
    }

    #[test]
    fn trouble_of_ours_and_cancelling_end_a_run_at_any_point() {
        for steps in 0..=3 {
            let (mut run, _) = Run::new(true);
            for _ in 0..steps {
                let _ = run.step(Event::Done);
            }
            let failed = Verdict { outcome: Outcome::InfraError, rewards: None, error: Some("no disk".to_owned()) };
            assert_eq!(run.clone().step(Event::Failed("no disk".to_owned())), Action::Finish(failed));
            let cancelled = Verdict { outcome: Outcome::Cancelled, rewards: None, error: None };
            assert_eq!(run.step(Event::Cancelled), Action::Finish(cancelled));
        }
    }

    #[test]
    fn an_event_out_of_place_is_an_error_not_a_panic() {
        let (mut run, _) = Run::new(false);
        let Action::Finish(verdict) = run.step(Event::Verified(Rewards::of(1.0))) else { panic!() };
        assert_eq!((verdict.outcome, verdict.rewards), (Outcome::InfraError, None));
    }
}
