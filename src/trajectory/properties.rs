//! Random rollouts: whatever the calls are, the invariants of samples hold.

use proptest::prelude::*;

use super::cases::{assistant, facts, turn, user};
use super::*;
use crate::call::{CallStatus, CaptureLevel};

/// What a harness does next. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    /// The earlier call that it is about.
    of: usize,
    cut: usize,
    new: Vec<u32>,
    reply: Vec<u32>,
    fate: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Begin,
    GoOn,
    Retry,
    /// Compaction, edited history, a sub-agent with the same system prompt.
    Branch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![1 => Just(Kind::Begin), 6 => Just(Kind::GoOn), 2 => Just(Kind::Retry), 2 => Just(Kind::Branch)];
    // Few different tokens, so that sequences share prefixes by chance as well.
    let tokens = |range| prop::collection::vec(0u32..3, range);
    let step = (kind, any::<usize>(), any::<usize>(), tokens(1..4), tokens(0..4), 0u8..24);
    prop::collection::vec(step.prop_map(|(kind, of, cut, new, reply, fate)| Step { kind, of, cut, new, reply, fate }), 1..24)
}

fn whole(turn: &Turn) -> Vec<u32> {
    [&turn.prompt, turn.record.capture.completion_ids.as_slice()].concat()
}

fn turns(steps: &[Step]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let of = (!turns.is_empty()).then(|| &turns[step.of % turns.len()]);
        let prompt = match (step.kind, of) {
            (Kind::Begin, _) | (_, None) => step.new.clone(),
            (Kind::GoOn, Some(of)) => [whole(of), step.new.clone()].concat(),
            (Kind::Retry, Some(of)) => of.prompt.to_vec(),
            (Kind::Branch, Some(of)) => {
                let tokens = whole(of);
                [&tokens[..step.cut % (tokens.len() + 1)], &step.new].concat()
            }
        };
        let mut next = turn(u32::try_from(number).unwrap() + 1, &prompt, &step.reply);
        let record = &mut next.record;
        match step.fate {
            0 => record.status = CallStatus::Cancelled,
            1 => record.status = CallStatus::Failed,
            2 => record.status = CallStatus::Interrupted,
            3 => record.status = CallStatus::Running,
            4 => record.delivered = Some(false),
            5 | 6 => record.delivered = None,
            7 => record.capture.constrained = true,
            8 => {
                record.capture.level = CaptureLevel::Ids;
                record.capture.logprobs.clear();
            }
            9 => record.capture.level = CaptureLevel::Text,
            10 => record.policy = "other".to_owned(),
            11 => next.trained = false,
            _ => {}
        }
        turns.push(next);
    }
    turns
}

/// The same question answered the slow way: is there a later call in the forest that begins with the whole of this one?
fn gone_on(turns: &[Turn], index: usize) -> bool {
    let of = &turns[index];
    let tokens = whole(of);
    turns[index + 1..]
        .iter()
        .any(|later| verdict::has_ids(later) && later.record.policy == of.record.policy && later.prompt.starts_with(&tokens))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn each_call_is_trained_in_one_sample_or_left_out(steps in steps()) {
        let turns = turns(&steps);
        let built = build(&facts(), &turns, &Rules::default()).map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        prop_assert_eq!(check(&built.samples), Ok(()));
        for (index, turn) in turns.iter().enumerate() {
            let record = &turn.record;
            let capture = &record.capture;
            let masked: Vec<(&[u32], Vec<f64>)> = built.samples.iter().flat_map(|sample| {
                sample.spans.iter().filter(|span| span.call_id == record.id && sample.loss_mask[span.start] == 1).map(|span| {
                    let logprobs = sample.logprobs[span.start..span.end].iter().copied().flatten().collect();
                    (&sample.token_ids[span.start..span.end], logprobs)
                })
            }).collect();
            let reason = built.left_out.iter().find(|left| left.call_id == record.id).map(|left| left.reason);
            let exact = turn.trained && record.status == CallStatus::Done && capture.level == CaptureLevel::Full
                && !capture.constrained && !capture.completion_ids.is_empty();
            match record.delivered {
                Some(true) if exact => {
                    prop_assert_eq!(&masked, &[(capture.completion_ids.as_slice(), capture.logprobs.clone())]);
                    prop_assert_eq!(reason, None);
                }
                None if exact && !masked.is_empty() => {
                    prop_assert_eq!(masked.len(), 1);
                    prop_assert!(gone_on(&turns, index));
                }
                _ => {
                    prop_assert!(masked.is_empty());
                    prop_assert_eq!(reason.is_none(), record.status == CallStatus::Running);
                }
            }
        }
    }

    #[test]
    fn a_sample_is_the_whole_sequence_of_its_last_call(steps in steps()) {
        let turns = turns(&steps);
        let built = build(&facts(), &turns, &Rules::default()).map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        for sample in &built.samples {
            let last = turns.iter().find(|turn| sample.id == format!("smp_{}", turn.record.id));
            prop_assert_eq!(last.map(whole), Some(sample.token_ids.clone()));
            prop_assert_eq!(last.map(|turn| &turn.record.policy), Some(&sample.policy));
        }
    }

    #[test]
    fn a_call_goes_on_from_the_longest_whole_sequence(steps in steps()) {
        let turns = turns(&steps);
        let tree = Tree::grow(&turns);
        for (index, later) in turns.iter().enumerate().filter(|(_, turn)| verdict::has_ids(turn)) {
            let slow = turns[..index].iter().filter(|turn| {
                verdict::has_ids(turn)
                    && turn.record.policy == later.record.policy
                    && !turn.record.capture.completion_ids.is_empty()
                    && later.prompt.starts_with(&whole(turn))
            }).map(|turn| whole(turn).len()).max();
            prop_assert_eq!(tree.parent(index).map(|parent| whole(&turns[parent]).len()), slow);
            for (other, turn) in turns.iter().enumerate().filter(|(other, _)| tree.holds(*other)) {
                let same = turn.record.policy == later.record.policy;
                let (a, b) = (whole(later), whole(turn));
                let shared = if same { a.iter().zip(&b).take_while(|(a, b)| a == b).count() } else { 0 };
                prop_assert_eq!(tree.shared(index, other), shared);
            }
        }
    }

    #[test]
    fn prompts_that_share_their_tokens_give_the_same(steps in steps()) {
        let turns = turns(&steps);
        let records = turns.iter().map(|turn| {
            let mut record = turn.record.clone();
            record.capture.prompt_ids = turn.prompt.to_vec();
            record
        });
        let mut shared = super::turns(records.collect());
        for (shared, turn) in shared.iter_mut().zip(&turns) {
            shared.trained = turn.trained;
            prop_assert_eq!(&shared.prompt[..], &turn.prompt[..]);
        }
        let built = |turns: &[Turn]| build(&facts(), turns, &Rules::default());
        prop_assert_eq!(built(&shared), built(&turns));
    }

    #[test]
    fn realigned_drift_keeps_the_invariants(steps in steps()) {
        let mut turns = turns(&steps);
        speak(&mut turns, &steps);
        let realigned = build(&facts(), &turns, &Rules { drift: Drift::Realign, ..Rules::default() });
        let realigned = realigned.map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        let forked = build(&facts(), &turns, &Rules::default()).map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        prop_assert_eq!(check(&realigned.samples), Ok(()));
        prop_assert_eq!(realigned.drift, forked.drift);
        // What is lost by it is named, and nothing else is.
        let left_out: Vec<_> = realigned.left_out.iter().filter(|left| left.reason != Reason::Realigned).collect();
        prop_assert_eq!(left_out, forked.left_out.iter().collect::<Vec<_>>());
    }
}

/// Gives each turn a conversation: one goes on from the turn that its step is about as text, whatever became of the tokens.
fn speak(turns: &mut [Turn], steps: &[Step]) {
    for index in 0..turns.len() {
        let step = &steps[index];
        let before = (index > 0).then(|| step.of % index);
        let mut messages = match (step.kind, before) {
            (Kind::Begin, _) | (_, None) => Vec::new(),
            (Kind::Retry, Some(of)) => turns[of].messages.clone(),
            (Kind::GoOn | Kind::Branch, Some(of)) => {
                let reply = turns[of].record.message.clone();
                turns[of].messages.iter().cloned().chain(reply).collect()
            }
        };
        if step.kind != Kind::Retry || before.is_none() {
            messages.push(user(&format!("{:?}", step.new)));
        }
        turns[index].messages = messages;
        turns[index].record.message = Some(assistant(&format!("{:?}", step.reply)));
    }
}
