//! One rollout as a pure state machine: what happened goes in, what to do next comes out. It knows no clock and no engine;
//! [`super::driver`] does what it says.

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
    /// How long it ran.
    pub ms: u64,
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
    /// Run the task's verifier.
    Verify,
    /// Clear away, and end the rollout so.
    Finish(Verdict),
}

/// How a rollout ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub outcome: Outcome,
    pub reward: Option<f64>,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What was to be done is done: opening, creating, starting.
    Done,
    /// The harness ended.
    Exited(Exit),
    /// What the harness's result says; `None` if there is none that can be read.
    Read(Option<Meaning>),
    /// The verifier ended, with this reward.
    Verified(f64),
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
    Verifying { timed_out: bool, meaning: Meaning },
    Finishing,
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
            (State::Reading(exit), Event::Read(meaning)) => self.judge(exit, meaning),
            (State::Verifying { timed_out, meaning }, Event::Verified(reward)) => {
                self.finish(outcome(timed_out, meaning, Some(reward)), Some(reward), None)
            }
            (state, event) => {
                let why = format!("gleaner's own fault: {event:?} while {state:?}");
                self.finish(Outcome::InfraError, None, Some(why))
            }
        }
    }

    fn judge(&mut self, exit: Exit, read: Option<Meaning>) -> Action {
        let meaning = read.unwrap_or_else(|| by_exit(exit));
        let broke = meaning == Meaning::Error && !exit.timed_out;
        if self.verifies && !broke {
            return self.go(State::Verifying { timed_out: exit.timed_out, meaning }, Action::Verify);
        }
        let error = broke.then(|| match read {
            Some(_) => "the harness says that it failed".to_owned(),
            None => format!("the harness left no result and {}", ended(exit)),
        });
        self.finish(outcome(exit.timed_out, meaning, None), None, error)
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }

    fn finish(&mut self, outcome: Outcome, reward: Option<f64>, error: Option<String>) -> Action {
        self.go(State::Finishing, Action::Finish(Verdict { outcome, reward, error }))
    }
}

fn outcome(timed_out: bool, meaning: Meaning, reward: Option<f64>) -> Outcome {
    match (timed_out, meaning, reward) {
        (true, _, _) => Outcome::TimedOut,
        (_, Meaning::Truncated, _) => Outcome::Truncated,
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

    const WELL: Exit = Exit { code: Some(0), signal: None, timed_out: false, ms: 5 };

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
        let mut action = run.step(Event::Read(meaning));
        if action == Action::Verify {
            action = run.step(Event::Verified(reward.unwrap()));
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
        let late = Exit { code: None, signal: Some(9), timed_out: true, ms: 5 };
        let mut run = begun(true);
        let _ = run.step(Event::Exited(late));
        assert_eq!(run.step(Event::Read(None)), Action::Verify);
        let verdict = Verdict { outcome: Outcome::TimedOut, reward: Some(1.0), error: None };
        assert_eq!(run.step(Event::Verified(1.0)), Action::Finish(verdict));
        assert_eq!(ends(late, Some(Meaning::Completed), None), Outcome::TimedOut);
    }

    #[test]
    fn a_harness_error_says_why_and_has_no_reward() {
        let mut run = begun(true);
        let _ = run.step(Event::Exited(Exit { code: None, signal: Some(11), ..WELL }));
        let error = Some("the harness left no result and was ended by signal 11".to_owned());
        let verdict = Verdict { outcome: Outcome::HarnessError, reward: None, error };
        assert_eq!(run.step(Event::Read(None)), Action::Finish(verdict));
    }

    #[test]
    fn trouble_of_ours_and_cancelling_end_a_run_at_any_point() {
        for steps in 0..=3 {
            let (mut run, _) = Run::new(true);
            for _ in 0..steps {
                let _ = run.step(Event::Done);
            }
            let failed = Verdict { outcome: Outcome::InfraError, reward: None, error: Some("no disk".to_owned()) };
            assert_eq!(run.clone().step(Event::Failed("no disk".to_owned())), Action::Finish(failed));
            let cancelled = Verdict { outcome: Outcome::Cancelled, reward: None, error: None };
            assert_eq!(run.step(Event::Cancelled), Action::Finish(cancelled));
        }
    }

    #[test]
    fn an_event_out_of_place_is_an_error_not_a_panic() {
        let (mut run, _) = Run::new(false);
        let Action::Finish(verdict) = run.step(Event::Verified(1.0)) else { panic!() };
        assert_eq!((verdict.outcome, verdict.reward), (Outcome::InfraError, None));
    }
}
