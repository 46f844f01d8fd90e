//! Rollouts as harnesses make them, and the samples that they must give.

use std::collections::BTreeMap;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::call::{
    CallStatus, Capture, CaptureLevel, FinishReason, ImageHash, LogprobKind, Sampling, Usage, VersionSource, WeightVersion,
};
use crate::ids::CallId;

#[test]
fn a_call_that_saw_another_image_is_another_conversation() {
    let seen = |number, prompt: &[u32], reply: &[u32], images: &[&[u8]]| {
        let mut turn = turn(number, prompt, reply);
        turn.record.images = images.iter().map(|image| ImageHash::of(image)).collect();
        turn
    };
    // Each prompt extends the last and its reply by ids; the first image of the third call is another than the second's.
    let turns = [
        seen(1, &[1, 9, 9], &[2], &[b"a"]),
        seen(2, &[1, 9, 9, 2, 3, 9, 9], &[4], &[b"a", b"b"]),
        seen(3, &[1, 9, 9, 2, 3, 9, 9, 4, 5], &[6], &[b"c", b"b"]),
        seen(4, &[1, 9, 9, 2, 3, 9, 9, 4, 7], &[8], &[b"a", b"b"]),
    ];
    let built = build(&facts(), &turns, &Rules::default()).unwrap();
    let spans: Vec<Vec<u128>> =
        built.samples.iter().map(|sample| sample.spans.iter().map(|span| span.call_id.0.as_u128() - 100).collect()).collect();
    assert_eq!(spans, [vec![1, 2, 4], vec![3]]);
    assert_eq!(
        built.samples.iter().map(|sample| sample.loss_mask.iter().map(|mask| u32::from(*mask)).sum::<u32>()).sum::<u32>(),
        4
    );
}

pub(super) fn facts() -> RolloutFacts {
    RolloutFacts {
        id: RolloutId(Uuid::from_u128(7)),
        index: 0,
        group_id: None,
        task_id: None,
        harness: Some("react".to_owned()),
        purpose: "train".to_owned(),
        reward: Some(1.0),
        rewards: BTreeMap::from([("reward".to_owned(), 1.0)]),
        outcome: Some("passed".to_owned()),
        metadata: serde_json::Map::new(),
    }
}

/// A delivered reply of level `full`; each log-probability says which call and token it is of.
pub(super) fn turn(number: u32, prompt: &[u32], reply: &[u32]) -> Turn {
    let logprobs = (0..reply.len()).map(|at| -f64::from(number) - f64::from(u32::try_from(at).unwrap()) / 1024.0).collect();
    let usage = Usage { prompt_tokens: prompt.len() as u64, completion_tokens: reply.len() as u64, ..Usage::default() };
    let record = CallRecord {
        images: Vec::new(),
        id: CallId(Uuid::from_u128(u128::from(number) + 100)),
        rollout_id: facts().id,
        started_at: i64::from(number),
        wire: "chat".to_owned(),
        target: "/chat/completions".to_owned(),
        choice: 0,
        policy: "default".to_owned(),
        model: "m".to_owned(),
        stream: true,
        marks: Vec::new(),
        status: CallStatus::Done,
        delivered: Some(true),
        ended_at: Some(i64::from(number) + 1),
        first_event_at: None,
        failure: None,
        message: None,
        finish: Some(FinishReason::Stop),
        usage: Some(usage),
        capture: Capture {
            level: CaptureLevel::Full,
            reason: None,
            prompt_ids: Vec::new(),
            completion_ids: reply.to_vec(),
            logprobs,
            logprob_kind: LogprobKind::Raw,
            constrained: false,
            runs: Vec::new(),
            rendered: None,
        },
        sampling_asked: Sampling::default(),
        sampling_used: Sampling { temperature: Some(1.0), ..Sampling::default() },
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion { version: Some("v1".to_owned()), seq: 1, source: Some(VersionSource::Polled) },
        notes: Vec::new(),
    };
    Turn {
        record,
        prompt: prompt.to_vec().into(),
        messages: Vec::new(),
        tools: Vec::new(),
        trained: true,
        rewards: BTreeMap::new(),
    }
}

pub(super) fn user(text: &str) -> Raw {
    Raw::from_value(&json!({"role": "user", "content": text}))
}

pub(super) fn assistant(text: &str) -> Raw {
    Raw::from_value(&json!({"role": "assistant", "content": text}))
}

/// With its conversation as text.
pub(super) fn saying(mut turn: Turn, messages: &[Raw], reply: &Raw) -> Turn {
    turn.messages = messages.to_vec();
    turn.record.message = Some(reply.clone());
    turn
}

pub(super) fn built(turns: &[Turn]) -> Built {
    build(&facts(), turns, &Rules::default()).unwrap()
}

pub(super) fn tokens(built: &Built) -> Vec<(&[u32], &[u8])> {
    built.samples.iter().map(|sample| (sample.token_ids.as_slice(), sample.loss_mask.as_slice())).collect()
}

pub(super) fn reasons(built: &Built) -> Vec<(u128, Reason)> {
    built.left_out.iter().map(|left| (left.call_id.0.as_u128() - 100, left.reason)).collect()
}

#[test]
fn a_conversation_is_one_sample() {
    let (ask, say, more, end) = (user("a"), assistant("b"), user("c"), assistant("d"));
    let turns = [
        saying(turn(1, &[1, 2], &[3, 4]), std::slice::from_ref(&ask), &say),
        saying(turn(2, &[1, 2, 3, 4, 9, 5], &[6]), &[ask.clone(), say.clone(), more.clone()], &end),
    ];
    let built = built(&turns);
    let sample = &built.samples[0];
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4, 9, 5, 6][..], &[0, 0, 1, 1, 0, 0, 1][..])]);
    assert_eq!(sample.logprobs, [None, None, Some(-1.0), Some(-1.0 - 1.0 / 1024.0), None, None, Some(-2.0)]);
    assert_eq!(sample.spans.iter().map(|span| (span.start, span.end)).collect::<Vec<_>>(), [(2, 4), (6, 7)]);
    assert_eq!((sample.prompt_length, sample.rollout_mask_total, sample.rollout_samples), (2, 3, 1));
    assert_eq!((sample.status, &sample.parent), (SampleStatus::Complete, &None));
    assert_eq!(sample.messages, [ask, say, more, end]);
    assert_eq!((built.left_out.len(), built.drift), (0, 0));
}

#[test]
fn every_field_of_the_contract_is_there_in_its_order_and_reads_back() {
    let built = built(&[turn(1, &[1], &[2])]);
    let text = serde_json::to_string(&built.samples[0]).unwrap();
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), built.samples[0]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&value),
        "schema id rollout_id rollout_index group_id task_id harness purpose index kind token_ids loss_mask logprobs prompt_length spans \
         reward rewards outcome status rollout_mask_total rollout_samples parent policy model tokenizer_hash template_hash messages \
         tools images metadata"
    );
    assert_eq!(
        names(&value["spans"][0]),
        "call_id start end policy_version policy_seq version_source finish_reason sampling logprob_kind constrained rewards"
    );
}

#[test]
fn a_sub_agent_is_a_sample_of_its_own_that_says_where_it_left() {
    let built = built(&[turn(1, &[1, 2], &[3]), turn(2, &[1, 8], &[9]), turn(3, &[1, 2, 3, 4], &[5])]);
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4, 5][..], &[0, 0, 1, 0, 1][..]), (&[1, 8, 9][..], &[0, 0, 1][..])]);
    assert_eq!(built.samples[1].parent, Some(Parent { sample_id: built.samples[0].id.clone(), at: 1 }));
    assert_eq!(built.samples.iter().map(|s| (s.rollout_mask_total, s.rollout_samples)).collect::<Vec<_>>(), [(3, 2), (3, 2)]);
}

#[test]
fn what_branches_share_is_trained_once() {
    let built = built(&[turn(1, &[1], &[2]), turn(2, &[1, 2, 3], &[4]), turn(3, &[1, 2, 5], &[6])]);
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4][..], &[0, 1, 0, 1][..]), (&[1, 2, 5, 6][..], &[0, 0, 0, 1][..])]);
    assert_eq!(built.samples[1].spans.len(), 2);
    assert_eq!(built.samples[1].prompt_length, 3);
}

#[test]
fn a_reply_that_was_asked_for_again_is_trained_and_tagged() {
    let built = built(&[turn(1, &[1], &[2]), turn(2, &[1], &[3]), turn(3, &[1, 3, 4], &[5])]);
    let tags: Vec<_> = built.samples.iter().flat_map(|s| &s.spans).map(|span| span.abandoned).collect();
    assert_eq!(tokens(&built), [(&[1, 2][..], &[0, 1][..]), (&[1, 3, 4, 5][..], &[0, 1, 0, 1][..])]);
    assert_eq!(tags, [true, false, false]);
}

#[test]
fn several_replies_to_one_request_are_samples_and_not_abandoned_for_each_other() {
    let choice = |number, reply, choice| {
        let mut turn = turn(number, &[1], &[reply]);
        turn.record.choice = choice;
        turn
    };
    let asked_once = [choice(1, 2, 0), choice(2, 3, 1), choice(3, 4, 2)];
    let tags = |turns: &[Turn]| -> Vec<bool> {
        built(turns).samples.iter().flat_map(|sample| &sample.spans).map(|span| span.abandoned).collect()
    };
    let samples = built(&asked_once);
    let expected = [2, 3, 4].map(|reply| vec![1, reply]);
    assert_eq!(samples.samples.iter().map(|sample| sample.token_ids.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(tags(&asked_once), [false; 3]);
    let again = [asked_once.as_slice(), &[choice(4, 5, 0)]].concat();
    assert_eq!(tags(&again), [true, true, true, false]);
}

#[test]
fn an_undelivered_reply_leaves_no_sample_beside_its_retry() {
    let mut cut = turn(1, &[1], &[2]);
    cut.record.status = CallStatus::Cancelled;
    let mut unsent = turn(2, &[1], &[7]);
    unsent.record.delivered = Some(false);
    let built = built(&[cut, unsent, turn(3, &[1], &[3])]);
    assert_eq!(tokens(&built), [(&[1, 3][..], &[0, 1][..])]);
    assert_eq!(reasons(&built), [(1, Reason::Undelivered), (2, Reason::Undelivered)]);
    assert_eq!(built.samples[0].status, SampleStatus::Complete);
}

#[test]
fn a_reply_that_a_crash_left_unknown_counts_if_it_was_gone_on_from() {
    let unknown = |number, prompt: &[u32], reply: &[u32]| {
        let mut turn = turn(number, prompt, reply);
        turn.record.delivered = None;
        turn
    };
    let built = built(&[unknown(1, &[1], &[2]), unknown(2, &[1, 2, 3], &[4])]);
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4][..], &[0, 1, 0, 0][..])]);
    assert_eq!(reasons(&built), [(2, Reason::Undelivered)]);
}

#[test]
fn calls_below_full_are_context_and_split_nothing() {
    let mut ids = turn(2, &[1, 2, 3], &[4]);
    ids.record.capture.level = CaptureLevel::Ids;
    ids.record.capture.logprobs.clear();
    let mut text = turn(3, &[], &[]);
    text.record.capture = Capture { level: CaptureLevel::Text, ..Capture::default() };
    text.record.usage = None;
    let mut some = turn(4, &[1, 2, 3, 4, 5], &[6, 7]);
    some.record.capture.level = CaptureLevel::Text;
    some.record.capture.reason = Some("2 ids, usage says 3".to_owned());
    let built = built(&[turn(1, &[1], &[2]), ids, text, some, turn(5, &[1, 2, 3, 4, 5, 6, 7, 8], &[9])]);
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[0, 1, 0, 0, 0, 0, 0, 0, 1][..])]);
    assert_eq!(reasons(&built), [(2, Reason::LogprobsIncomplete), (3, Reason::TextOnly), (4, Reason::IdsIncomplete)]);
    assert_eq!(built.left_out[2].detail.as_deref(), Some("2 ids, usage says 3"));
}

#[test]
fn tokens_under_a_grammar_have_a_span_and_no_mask() {
    let mut forced = turn(2, &[1, 2, 3], &[4]);
    forced.record.capture.constrained = true;
    let built = built(&[turn(1, &[1], &[2]), forced]);
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4][..], &[0, 1, 0, 0][..])]);
    assert_eq!((built.samples[0].spans.len(), built.samples[0].logprobs[3]), (2, Some(-2.0)));
    assert_eq!(reasons(&built), [(2, Reason::Constrained)]);
}

#[test]
fn each_call_without_a_trained_token_says_why() {
    let with = |number, change: &dyn Fn(&mut Turn)| {
        let mut turn = turn(number, &[number], &[9]);
        change(&mut turn);
        turn
    };
    let built = built(&[
        with(1, &|turn| turn.record.status = CallStatus::Failed),
        with(2, &|turn| turn.record.status = CallStatus::Interrupted),
        with(3, &|turn| turn.trained = false),
        with(4, &|turn| turn.record.capture.completion_ids.clear()),
        with(5, &|turn| turn.record.status = CallStatus::Running),
        with(6, &|turn| turn.record.capture.logprobs[0] = f64::NEG_INFINITY),
    ]);
    assert_eq!(
        reasons(&built),
        [
            (1, Reason::UpstreamError),
            (2, Reason::Interrupted),
            (3, Reason::UntrainedPolicy),
            (4, Reason::NoOutput),
            (6, Reason::LogprobsIncomplete)
        ]
    );
    assert_eq!(built.samples, []);
}

#[test]
fn calls_of_two_policies_or_models_share_no_sample() {
    let mut other = turn(2, &[1, 2, 3], &[4]);
    other.record.policy = "judge".to_owned();
    let mut model = turn(3, &[1, 2, 3], &[4]);
    model.record.model = "n".to_owned();
    let built = built(&[turn(1, &[1], &[2]), other, model]);
    assert_eq!(
        built.samples.iter().map(|s| (s.policy.as_str(), s.model.as_str())).collect::<Vec<_>>(),
        [("default", "m"), ("judge", "m"), ("default", "n")]
    );
    assert!(built.samples.iter().all(|sample| sample.parent.is_none()));
}

#[test]
fn a_reply_that_comes_back_as_other_tokens_is_drift_and_forks_once() {
    let (ask, say, more) = (user("a"), assistant("b"), user("c"));
    let first = saying(turn(1, &[1, 2], &[3, 4, 5]), std::slice::from_ref(&ask), &say);
    let next = [ask.clone(), assistant("b"), more.clone()];
    let again = |number| saying(turn(number, &[1, 2, 3, 9, 6], &[7]), &next, &assistant("d"));
    let last = [&next[..], &[assistant("d"), user("e")]].concat();
    let third = saying(turn(4, &[1, 2, 3, 9, 6, 7, 8], &[9]), &last, &assistant("f"));
    let built = built(&[first.clone(), again(2), again(3), third]);
    assert_eq!((built.drift, built.samples.len()), (1, 3));
    assert_eq!(built.samples[1].parent.as_ref().map(|parent| parent.at), Some(3));

    // A reply that was edited is a branch, not drift.
    let edited = saying(turn(2, &[1, 2, 3, 9, 6], &[7]), &[ask, assistant("x"), more], &assistant("d"));
    assert_eq!(build(&facts(), &[first, edited], &Rules::default()).unwrap().drift, 0);
}

#[test]
fn status_tells_how_a_conversation_ended() {
    let status = |turns: &[Turn], outcome: &str| {
        let facts = RolloutFacts { outcome: Some(outcome.to_owned()), ..facts() };
        build(&facts, turns, &Rules::default()).unwrap().samples.iter().map(|sample| sample.status).collect::<Vec<_>>()
    };
    let first = saying(turn(1, &[1], &[2]), &[user("a")], &assistant("b"));
    assert_eq!(status(std::slice::from_ref(&first), "passed"), [SampleStatus::Complete]);
    assert_eq!(status(std::slice::from_ref(&first), "timed_out"), [SampleStatus::Truncated]);
    let mut long = first.clone();
    long.record.finish = Some(FinishReason::Length);
    assert_eq!(status(&[long], "passed"), [SampleStatus::Truncated]);

    let mut cut = turn(2, &[1, 2, 3], &[4]);
    cut.record.status = CallStatus::Cancelled;
    assert_eq!(status(&[first.clone(), cut], "passed"), [SampleStatus::Aborted]);
    let mut lost = saying(turn(2, &[], &[]), &[user("a"), assistant("b"), user("c")], &assistant(""));
    lost.record.status = CallStatus::Interrupted;
    lost.record.capture = Capture::default();
    assert_eq!(needs(&[first.clone(), lost.clone()]), Needs::All);
    assert_eq!(status(&[first.clone(), lost.clone()], "passed"), [SampleStatus::Aborted]);
    let after = saying(turn(3, &[1, 2, 3], &[4]), &[user("a"), assistant("b"), user("c")], &assistant("d"));
    assert_eq!(status(&[first, lost, after], "passed"), [SampleStatus::Complete]);
}

#[test]
fn a_filtered_call_is_context_and_named() {
    let mut old = turn(1, &[1], &[2]);
    old.record.version.seq = 0;
    let turns = [old, turn(2, &[1, 2, 3], &[4])];
    let built = build(&facts(), &turns, &Rules { chosen: &|record| record.version.seq >= 1, ..Rules::default() }).unwrap();
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4][..], &[0, 0, 0, 1][..])]);
    assert_eq!(reasons(&built), [(1, Reason::Filtered)]);
}

type Tamper<'a> = &'a dyn Fn(&mut Vec<Sample>);

#[test]
fn a_sample_that_was_tampered_with_is_found() {
    let samples = built(&[turn(1, &[1], &[2, 3]), turn(2, &[1, 2, 3, 4], &[5]), turn(3, &[1, 9], &[8])]).samples;
    assert_eq!(check(&samples), Ok(()));
    let tamperings: [Tamper<'_>; 15] = [
        &|s| s[0].schema.clear(),
        &|s| s[0].loss_mask[0] = 1,
        &|s| s[0].loss_mask[1] = 0,
        &|s| s[0].logprobs[1] = None,
        &|s| s[0].logprobs[3] = Some(-1.0),
        &|s| s[0].prompt_length = 2,
        &|s| s[0].rollout_mask_total += 1,
        &|s| s[1].spans[0].end += 5,
        &|s| s[1].token_ids[0] = 7,
        &|s| s[1].id = s[0].id.clone(),
        &|s| s[0].spans[0].constrained = true,
        &|s| drop(s.pop()),
        &|s| s[0].spans[0].realigned = true,
        &|s| s[0].spans[1].call_id = s[0].spans[0].call_id,
        &|s| s[0].spans[0].end -= 1,
    ];
    for (number, tamper) in tamperings.iter().enumerate() {
        let mut tampered = samples.clone();
        tamper(&mut tampered);
        assert!(check(&tampered).is_err(), "tampering {number} was not found");
    }
}
