//! One rollout as a pure state machine: what happened goes in, what to do next comes out. It knows no clock and no engine;
//! [`super::driver`] does what it says.

use std::collections::BTreeMap;

use serde::Serialize;

use super::endpoint::Served;
use super::outcome::by_exit;
use super::spec::Meaning;
use crate::store::Outcome;

/// How a harness's process ended, as the sandbox's init saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The deadline ended it.
    pub timed_out: bool,
    /// A cap ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capped: Option<Cap>,
    /// The kernel ended processes of the sandbox because its memory was used up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out_of_memory: bool,
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

/// What a harness says of its run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// What its result says; `None` if there is none that can be read.
    pub meaning: Option<Meaning>,
    /// The words for it, in one line: its own error, or the last that it printed.
    pub words: Option<String>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What was to be done is done: opening, creating, starting.
    Done,
    /// The harness ended.
    Exited(Exit),
    /// What the harness says of its run.
    Read(Said),
    /// What it made is kept, and no more calls are taken: this is what they came to.
    Kept(Served),
    /// The verifier ended, with these rewards.
    Verified(Rewards),
    /// The sandbox has ended, and nothing but what ran in it is to blame.
    Broke(String),
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

#[derive(Clone, Debug, PartialEq)]
enum State {
    Opening,
    Creating,
    Starting,
    Running,
    Reading(Exit),
    Keeping(Exit, Said),
    Verifying(End),
    Finishing,
}

/// How the harness ended, by all that is known of it.
#[derive(Clone, Debug, PartialEq)]
struct End {
    exit: Exit,
    said: Said,
    served: Served,
}

impl End {
    fn meaning(&self) -> Meaning {
        self.said.meaning.unwrap_or_else(|| by_exit(self.exit))
    }

    /// Why nothing that it did may count, if so: the model could not be asked, or the harness broke by itself.
    fn broken(&self) -> Option<(Outcome, String)> {
        let meaning = self.meaning();
        // A harness that ended as it should had what it needed, unless it never had anything.
        let needed = meaning != Meaning::Completed || self.served.answered == 0;
        if let Some(failure) = self.served.failed.as_ref().filter(|failure| needed && failure.is_infrastructure()) {
            return Some((Outcome::InfraError, format!("its last model call failed: {failure}")));
        }
        let ended = self.exit.timed_out || self.exit.capped.is_some();
        (meaning == Meaning::Error && !ended).then(|| (Outcome::HarnessError, self.why()))
    }

    fn why(&self) -> String {
        let how = match (self.said.meaning, self.exit.signal, self.exit.out_of_memory) {
            (Some(_), _, false) => "the harness says that it failed".to_owned(),
            (Some(_), _, true) => "the memory of its sandbox was used up, and the harness says that it failed".to_owned(),
            (None, Some(9), true) => "the harness was killed: the memory of its sandbox was used up".to_owned(),
            (None, _, true) => {
                format!("the memory of its sandbox was used up, and the harness left no result and {}", ended(self.exit))
            }
            (None, Some(9), false) => "the harness left no result and was killed from inside its sandbox".to_owned(),
            (None, _, false) => format!("the harness left no result and {}", ended(self.exit)),
        };
        let words = self.said.words.iter().map(|words| format!(": {words}"));
        let failed = self.served.failed.iter().map(|failure| format!("; its last model call failed: {failure}"));
        std::iter::once(how).chain(words).chain(failed).collect()
    }

    fn outcome(&self, reward: Option<f64>) -> Outcome {
        match (self.exit, self.meaning(), reward) {
            (Exit { timed_out: true, .. }, _, _) => Outcome::TimedOut,
            (Exit { capped: Some(_), .. }, _, _) | (_, Meaning::Truncated, _) => Outcome::Truncated,
            (_, Meaning::Error, _) => Outcome::HarnessError,
            (_, _, Some(reward)) if reward >= 1.0 => Outcome::Passed,
            (_, Meaning::Completed, None) => Outcome::Passed,
            _ => Outcome::Failed,
        }
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
        match (self.state.clone(), event) {
            (_, Event::Cancelled) => self.finish(Outcome::Cancelled, None, None),
            (_, Event::Broke(why)) => self.finish(Outcome::HarnessError, None, Some(why)),
            (_, Event::Failed(why)) => self.finish(Outcome::InfraError, None, Some(why)),
            (State::Opening, Event::Done) => self.go(State::Creating, Action::Create),
            (State::Creating, Event::Done) => self.go(State::Starting, Action::Start),
            (State::Starting, Event::Done) => self.go(State::Running, Action::Await),
            (State::Running, Event::Exited(exit)) => self.go(State::Reading(exit), Action::Read),
            (State::Reading(exit), Event::Read(said)) => self.go(State::Keeping(exit, said), Action::Keep),
            (State::Keeping(exit, said), Event::Kept(served)) => self.judge(End { exit, said, served }),
            (State::Verifying(end), Event::Verified(rewards)) => {
                self.finish(end.outcome(Some(rewards.reward)), Some(rewards), None)
            }
            (state, event) => {
                let why = format!("gleaner's own fault: {event:?} while {state:?}");
                self.finish(Outcome::InfraError, None, Some(why))
            }
        }
    }

    fn judge(&mut self, end: End) -> Action {
        match end.broken() {
            Some((outcome, why)) => self.finish(outcome, None, Some(why)),
            None if self.verifies => self.go(State::Verifying(end), Action::Verify),
            None => self.finish(end.outcome(None), None, None),
        }
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }

    fn finish(&mut self, outcome: Outcome, rewards: Option<Rewards>, error: Option<String>) -> Action {
        self.go(State::Finishing, Action::Finish(Verdict { outcome, rewards, error }))
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
    use crate::call::{Failure, FailureKind};

    const WELL: Exit = Exit { code: Some(0), signal: None, timed_out: false, capped: None, out_of_memory: false, ms: 5 };
    const KILLED: Exit = Exit { code: None, signal: Some(9), ..WELL };

    /// A run up to the harness's end.
    fn begun(verifies: bool) -> Run {
        let (mut run, first) = Run::new(verifies);
        assert_eq!(first, Action::Open);
        assert_eq!(run.step(Event::Done), Action::Create);
        assert_eq!(run.step(Event::Done), Action::Start);
        assert_eq!(run.step(Event::Done), Action::Await);
        run
    }

    /// Calls that were answered, and why the last one was not if it was not.
    fn served(answered: u64, failed: Option<FailureKind>) -> Served {
        Served { begun: 9, answered, failed: failed.map(|kind| Failure::new(kind, "it said so")), ..Served::default() }
    }

    /// The verdict on a run whose harness ended so, said so, was served so, and would be verified so.
    fn verdict(exit: Exit, said: Said, served: Served, reward: Option<f64>) -> Verdict {
        let mut run = begun(reward.is_some());
        assert_eq!(run.step(Event::Exited(exit)), Action::Read);
        assert_eq!(run.step(Event::Read(said)), Action::Keep);
        let mut action = run.step(Event::Kept(served));
        if action == Action::Verify {
            action = run.step(Event::Verified(Rewards::of(reward.unwrap())));
        }
        let Action::Finish(verdict) = action else { panic!("{action:?}") };
        verdict
    }

    fn means(meaning: Option<Meaning>) -> Said {
        Said { meaning, words: None }
    }

    fn ends(exit: Exit, meaning: Option<Meaning>, reward: Option<f64>) -> Outcome {
        verdict(exit, means(meaning), served(9, None), reward).outcome
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
        let late = Exit { timed_out: true, ..KILLED };
        let mut run = begun(true);
        let _ = run.step(Event::Exited(late));
        assert_eq!(run.step(Event::Read(Said::default())), Action::Keep);
        assert_eq!(run.step(Event::Kept(served(9, None))), Action::Verify);
        let rewards = Rewards { reward: 1.0, named: BTreeMap::from([("style".to_owned(), 0.5)]) };
        let verdict = Verdict { outcome: Outcome::TimedOut, rewards: Some(rewards.clone()), error: None };
        assert_eq!(run.step(Event::Verified(rewards)), Action::Finish(verdict));
        assert_eq!(ends(late, Some(Meaning::Completed), None), Outcome::TimedOut);
    }

    #[test]
    fn a_capped_run_is_truncated_and_verified() {
        let capped = Exit { signal: Some(15), capped: Some(Cap::Calls), ..KILLED };
        assert_eq!(ends(capped, None, Some(1.0)), Outcome::Truncated);
        assert_eq!(ends(capped, Some(Meaning::Error), Some(0.0)), Outcome::Truncated);
        assert_eq!(ends(capped, None, None), Outcome::Truncated);
    }

    /// No reward, and the words say what was seen.
    #[test]
    fn a_harness_error_says_why_and_has_no_reward() {
        let crashed = Exit { signal: Some(11), ..KILLED };
        let memory = Exit { out_of_memory: true, ..KILLED };
        let shell = Exit { code: Some(137), signal: None, ..memory };
        let own = Said { meaning: Some(Meaning::Error), words: Some("no such tool".to_owned()) };
        for (exit, said, last, why) in [
            (crashed, Said::default(), None, "the harness left no result and was ended by signal 11"),
            (KILLED, Said::default(), None, "the harness left no result and was killed from inside its sandbox"),
            (memory, Said::default(), None, "the harness was killed: the memory of its sandbox was used up"),
            (
                shell,
                Said::default(),
                None,
                "the memory of its sandbox was used up, and the harness left no result and ended with exit code 137",
            ),
            (WELL, own.clone(), None, "the harness says that it failed: no such tool"),
            (
                WELL,
                own,
                Some(FailureKind::Refused),
                "the harness says that it failed: no such tool; its last model call failed: it said so",
            ),
        ] {
            let expected = Verdict { outcome: Outcome::HarnessError, rewards: None, error: Some(why.to_owned()) };
            assert_eq!(verdict(exit, said, served(9, last), Some(1.0)), expected);
        }
    }

    /// The model's command died of it, and the harness went on.
    #[test]
    fn memory_that_ran_out_is_no_error_of_a_harness_that_lived() {
        assert_eq!(ends(Exit { out_of_memory: true, ..WELL }, None, Some(1.0)), Outcome::Passed);
    }

    #[test]
    fn a_policy_that_was_down_is_no_fault_of_the_harness() {
        use Meaning::{Completed, Error, GaveUp, Truncated};
        let (late, lied) = (Exit { timed_out: true, ..KILLED }, Exit { code: Some(1), ..WELL });
        let capped = Exit { capped: Some(Cap::Calls), ..KILLED };
        let infra = |exit, meaning, answered, kind| {
            let verdict = verdict(exit, means(meaning), served(answered, Some(kind)), Some(1.0));
            if verdict.outcome == Outcome::InfraError {
                assert_eq!((verdict.rewards, verdict.error.unwrap().as_str()), (None, "its last model call failed: it said so"));
                return true;
            }
            false
        };
        for (exit, meaning) in
            [(WELL, Some(Error)), (WELL, Some(GaveUp)), (WELL, Some(Truncated)), (lied, None), (late, None), (capped, None)]
        {
            for kind in [FailureKind::Unavailable, FailureKind::TimedOut, FailureKind::Cut, FailureKind::NotRecorded] {
                assert!(infra(exit, meaning, 9, kind), "{exit:?} {meaning:?} {kind:?}");
            }
            assert!(!infra(exit, meaning, 9, FailureKind::Refused), "{exit:?} {meaning:?}");
        }
        assert!(!infra(WELL, Some(Completed), 9, FailureKind::Unavailable), "a side call may fail at the end");
        assert!(infra(WELL, Some(Completed), 0, FailureKind::Unavailable), "there was no model at all");
        assert!(infra(WELL, None, 0, FailureKind::RateLimited));
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
            let broke = Verdict { outcome: Outcome::HarnessError, rewards: None, error: Some("memory".to_owned()) };
            assert_eq!(run.clone().step(Event::Broke("memory".to_owned())), Action::Finish(broke));
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
