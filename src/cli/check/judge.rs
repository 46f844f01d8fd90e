//! What a check found: each fault says what is wrong, and what that means for training.

use crate::call::{CallRecord, CallStatus, CaptureLevel, Mark};
use crate::cli::list::name_of;
use crate::cli::show::Branch;
use crate::cli::terminal::counted;
use crate::harness::Report;
use crate::harness::spec::Spec;
use crate::policy::Sampled;
use crate::store::Outcome;
use crate::trajectory::{Built, Sample};

/// Calls of a harness that does what it is told: one to use its shell, one to end.
const CALLS: usize = 2;

/// A harness's run, and all that is known of it.
pub(super) struct Ran<'a> {
    pub report: &'a Report,
    pub spec: &'a Spec,
    /// The harness is told the policy's window.
    pub told_window: bool,
    /// What it was asked.
    pub prompt: &'a str,
    /// Its calls as they are in the store.
    pub calls: &'a [CallRecord],
    pub built: &'a Built,
    pub branches: &'a [Branch],
    /// What the policy says that it was asked, and that it sampled.
    pub sampled: &'a [Sampled],
}

/// What is to be said of a harness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub calls: usize,
    pub samples: usize,
    /// What is wrong with it. It passes if there are none.
    pub faults: Vec<String>,
    /// What is worth knowing.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Of a harness that could not be run.
    pub(super) fn fault(fault: String) -> Self {
        Self { faults: vec![fault], ..Self::default() }
    }
}

/// Judges a run.
pub(super) fn judge(ran: &Ran<'_>) -> Verdict {
    let faults = [outcome(ran), tool(ran), calls(ran), foreign(ran), captured(ran), samples(ran), drift(ran), left_out(ran)];
    let faults = faults.into_iter().chain([whole_prompt(ran), exact(ran)]).flatten().collect();
    Verdict { calls: ran.calls.len(), samples: ran.built.samples.len(), faults, notes: notes(ran) }
}

fn outcome(ran: &Ran<'_>) -> Option<String> {
    let error = ran.report.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match ran.report.outcome {
        Outcome::Passed => None,
        Outcome::Failed if error.is_empty() => {
            Some("the file that its shell was told to make is not there: a reward would tell nothing of the model".to_owned())
        }
        outcome => Some(format!("it ended as {}{error}: no run of it would have a reward to trust", name_of(&outcome))),
    }
}

fn tool(ran: &Ran<'_>) -> Option<String> {
    let first = ran.sampled.first()?;
    if ran.spec.check.fenced.is_some() || ran.sampled.iter().any(|said| said.called.is_some()) {
        return None;
    }
    let offered = if first.offered.is_empty() { "none at all".to_owned() } else { first.offered.join(", ") };
    Some(match &ran.spec.check.tool {
        Some(tool) => format!("it offers no tool {tool}, which [check] tool names; it offers {offered}"),
        None => format!("none of the tools that it offers is known as a shell, name it in [check] tool; it offers {offered}"),
    })
}

fn calls(ran: &Ran<'_>) -> Option<String> {
    let number = ran.calls.len();
    if let Some(call) = ran.calls.iter().find(|call| call.status != CallStatus::Done) {
        let why = call.failure.as_ref().map(|failure| format!(": {}", failure.message)).unwrap_or_default();
        return Some(format!("{} ended as {}{why}: it can't be trained", place(ran, call), name_of(&call.status)));
    }
    let why = match number {
        CALLS => return None,
        0..CALLS => "it ended before it was told to",
        _ => "what it asks beside its task costs tokens and, where it is no known side call, becomes samples of its own",
    };
    Some(format!("it made {} instead of {CALLS}: {why}", counted(number as u64, "call")))
}

fn foreign(ran: &Ran<'_>) -> Option<String> {
    let marked = |call: &CallRecord| call.marks.iter().find(|mark| mark.name == Mark::FOREIGN).map(|mark| mark.value.clone());
    let whys: Vec<String> = ran.calls.iter().filter_map(marked).collect();
    let why = whys.first()?;
    let number = counted(whys.len() as u64, "call");
    Some(format!("{number} of its own taken for foreign ({why}): they would not be trained; mend [signature]"))
}

fn captured(ran: &Ran<'_>) -> Option<String> {
    let done = ran.calls.iter().filter(|call| call.status == CallStatus::Done);
    let call = done.into_iter().find(|call| call.capture.level != CaptureLevel::Full)?;
    let why = call.capture.reason.as_deref().unwrap_or("without a reason");
    Some(format!("{} is recorded as {}, not full: {why}; it can't be trained", place(ran, call), call.capture.level.name()))
}

fn samples(ran: &Ran<'_>) -> Option<String> {
    let check = &ran.spec.check;
    let (number, expected) = (ran.built.samples.len(), check.samples.unwrap_or(1));
    let because = check.because.as_deref().unwrap_or_default();
    let whys: Vec<&str> = ran.branches.iter().map(|branch| branch.why.as_str()).collect();
    let whys = if whys.is_empty() { "its calls do not go on from each other".to_owned() } else { whys.join("; ") };
    match number {
        // Why there is none is said of the calls.
        0 => None,
        _ if number < expected => Some(format!(
            "one conversation became {}, and [check] says {expected} ({because}): it rewrites less now",
            counted(number as u64, "sample")
        )),
        _ if number > expected => Some(format!(
            "one conversation became {number} samples instead of {expected}: {whys}; it rewrites its history, so what comes after is \
             trained apart from what came before; if it can't be told not to, [check] samples and because say so"
        )),
        _ if ran.branches.iter().any(|branch| !branch.why.contains(because)) => {
            Some(format!("one conversation became {number} samples as [check] says, but not because \"{because}\": {whys}"))
        }
        _ => None,
    }
}

fn drift(ran: &Ran<'_>) -> Option<String> {
    let places = counted(ran.built.drift, "place");
    // Reasoning that is left out parts the tokens of messages that are linked without it: where [check] says so, that is known.
    let known = ran.spec.check.samples.filter(|_| samples(ran).is_none()).map_or(0, |expected| expected.saturating_sub(1) as u64);
    (ran.built.drift > known).then(|| {
        format!("drift in {places}: messages that read as they were said came back as other tokens, and are not trained together")
    })
}

fn left_out(ran: &Ran<'_>) -> Option<String> {
    // What has a line of its own is not said twice.
    let said = |id| {
        let call = ran.calls.iter().find(|call| call.id == id);
        call.is_none_or(|call| {
            call.status != CallStatus::Done
                || call.capture.level != CaptureLevel::Full
                || call.marks.iter().any(|mark| mark.name == Mark::FOREIGN)
        })
    };
    let left = ran.built.left_out.iter().find(|left| !said(left.call_id))?;
    let call = ran.calls.iter().find(|call| call.id == left.call_id)?;
    let detail = left.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    Some(format!("{} gives no trained token: {}{detail}", place(ran, call), left.reason.name()))
}

fn whole_prompt(ran: &Ran<'_>) -> Option<String> {
    let first = ran.sampled.first()?;
    let whole = first.texts.iter().any(|text| text.contains(ran.prompt));
    (!whole)
        .then(|| "the task's words did not reach the model as they are: look how its template passes the prompt on".to_owned())
}

/// Holds what is recorded, and what a trainer would read, against what the policy sampled, bit by bit.
fn exact(ran: &Ran<'_>) -> Option<String> {
    let done: Vec<&CallRecord> = ran.calls.iter().filter(|call| call.status == CallStatus::Done).collect();
    if let Some(call) = done.iter().find(|call| !ran.sampled.iter().any(|said| recorded(call, said))) {
        return Some(format!("{} is recorded with other tokens than were sampled; this is a fault of Gleaner", place(ran, call)));
    }
    let wrong = ran.built.samples.iter().find(|sample| !holds(sample, &done))?;
    Some(format!("sample {} is not what its calls sampled; this is a fault of Gleaner, please report it", wrong.id))
}

fn recorded(call: &CallRecord, said: &Sampled) -> bool {
    let capture = &call.capture;
    // Not every level has log-probabilities, which another line says.
    let levelled = capture.level != CaptureLevel::Full || same_bits(&capture.logprobs, &said.logprobs);
    capture.prompt_ids == said.prompt_ids && capture.completion_ids == said.ids && levelled
}

fn holds(sample: &Sample, done: &[&CallRecord]) -> bool {
    let trained = sample.loss_mask.iter().enumerate().filter(|(_, mask)| **mask == 1).map(|(at, _)| at);
    let mut covered = trained.map(|at| sample.spans.iter().any(|span| (span.start..span.end).contains(&at)));
    covered.all(|covered| covered)
        && sample.spans.iter().all(|span| {
            let Some(call) = done.iter().find(|call| call.id == span.call_id) else { return false };
            let logprobs: Vec<f64> = sample.logprobs[span.start..span.end].iter().filter_map(|logprob| *logprob).collect();
            sample.token_ids[..span.start] == call.capture.prompt_ids
                && sample.token_ids[span.start..span.end] == call.capture.completion_ids
                && same_bits(&logprobs, &call.capture.logprobs)
        })
}

fn same_bits(one: &[f64], other: &[f64]) -> bool {
    one.iter().map(|number| number.to_bits()).eq(other.iter().map(|number| number.to_bits()))
}

fn place(ran: &Ran<'_>, call: &CallRecord) -> String {
    let at = ran.calls.iter().position(|other| other.id == call.id).unwrap_or_default();
    format!("call {}", at + 1)
}

fn notes(ran: &Ran<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(because) = ran.spec.check.because.as_ref().filter(|_| ran.built.samples.len() > 1) {
        notes.push(format!("{} as it is known to be: {because}", counted(ran.built.samples.len() as u64, "sample")));
    }
    if let Some(said) = ran.sampled.iter().find(|said| said.guessed) {
        let tool = said.called.as_deref().unwrap_or_default();
        notes.push(format!("that its shell is {tool} was a guess: say it in [check] tool and argument"));
    }
    if ran.spec.signature.is_empty() {
        notes.push("it has no [signature]: model calls of code that it runs would be taken for its own, and trained".to_owned());
    }
    if !ran.told_window {
        notes.push("it is not told the policy's window (no parameter context_window): it finds out by failing".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::harness::Catalog;
    use crate::ids::RolloutId;

    fn report(outcome: Outcome) -> Report {
        Report {
            id: RolloutId::generate(),
            harness: "h".to_owned(),
            task_id: "t".to_owned(),
            group: None,
            index: 0,
            outcome,
            reward: None,
            calls: 0,
            tokens: 0,
            drift: 0,
            ms: 1,
            error: None,
            artifacts: PathBuf::new(),
        }
    }

    fn said(offered: &[&str], called: Option<&str>, guessed: bool) -> Sampled {
        Sampled {
            prompt_ids: vec![1],
            ids: vec![2],
            logprobs: vec![-0.5],
            offered: offered.iter().map(|name| (*name).to_owned()).collect(),
            texts: vec!["do it now".to_owned()],
            called: called.map(str::to_owned),
            guessed,
        }
    }

    fn verdict(outcome: Outcome, sampled: &[Sampled], change: impl Fn(&mut Spec)) -> Verdict {
        let mut spec = Catalog::load(None).unwrap().get("codex").unwrap().spec.clone();
        spec.check = crate::harness::CheckSpec::default();
        spec.signature = [("x".to_owned(), "y".to_owned())].into();
        change(&mut spec);
        judged(outcome, &spec, sampled, 0)
    }

    fn judged(outcome: Outcome, spec: &Spec, sampled: &[Sampled], drift: u64) -> Verdict {
        let built = Built { samples: Vec::new(), left_out: Vec::new(), drift, classes: Vec::new() };
        judge(&Ran {
            report: &report(outcome),
            spec,
            told_window: true,
            prompt: "do it",
            calls: &[],
            built: &built,
            branches: &[],
            sampled,
        })
    }

    #[test]
    fn a_tool_that_is_not_there_is_named_with_those_that_are() {
        let none = verdict(Outcome::Failed, &[said(&["read", "write"], None, false)], |_| {});
        assert!(none.faults[0].contains("is not there"), "{none:?}");
        assert!(none.faults[1].ends_with("name it in [check] tool; it offers read, write"), "{none:?}");
        let other = verdict(Outcome::Failed, &[said(&[], None, false)], |spec| spec.check.tool = Some("sh".to_owned()));
        assert!(other.faults[1].ends_with("no tool sh, which [check] tool names; it offers none at all"), "{other:?}");
    }

    #[test]
    fn a_prompt_that_was_changed_and_a_run_that_broke_are_told() {
        let mut changed = said(&["bash"], Some("bash"), true);
        changed.texts = vec!["do&#32;it".to_owned()];
        let broke = verdict(Outcome::HarnessError, &[changed], |_| {});
        assert!(broke.faults[0].starts_with("it ended as harness_error"), "{broke:?}");
        assert!(broke.faults.last().unwrap().starts_with("the task's words did not reach"), "{broke:?}");
        assert_eq!(broke.notes, ["that its shell is bash was a guess: say it in [check] tool and argument"]);
    }

    #[test]
    fn what_a_harness_is_not_told_is_noted() {
        let bare = verdict(Outcome::Passed, &[said(&["bash"], Some("bash"), false)], |spec| spec.signature.clear());
        assert_eq!(bare.notes.len(), 1);
        assert!(bare.notes[0].starts_with("it has no [signature]"), "{bare:?}");
        assert_eq!(bare.faults, ["it made 0 calls instead of 2: it ended before it was told to"]);
    }

    #[test]
    fn drift_is_a_fault_unless_it_is_of_the_samples_that_the_harness_says() {
        let mut spec = Catalog::load(None).unwrap().get("codex").unwrap().spec.clone();
        let drifted = |spec: &Spec, drift| {
            let verdict = judged(Outcome::Passed, spec, &[said(&["bash"], Some("bash"), false)], drift);
            verdict.faults.iter().any(|fault| fault.starts_with("drift in "))
        };
        spec.check = crate::harness::CheckSpec::default();
        assert!(drifted(&spec, 1));
        spec.check.samples = Some(2);
        spec.check.because = Some("without its reasoning".to_owned());
        assert!(!drifted(&spec, 1) && drifted(&spec, 2));
    }

    #[test]
    fn log_probabilities_are_held_against_each_other_to_the_last_bit() {
        assert!(same_bits(&[-0.1], &[-0.1]) && !same_bits(&[-0.1], &[-0.1 - f64::EPSILON]) && !same_bits(&[], &[-0.1]));
        assert!(!same_bits(&[0.0], &[-0.0]));
    }
}
