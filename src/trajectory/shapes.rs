//! Rollouts of every shape that harnesses and servers give them: weights that change, drift, sub-agents, side calls, replies
//! that were not gone on from; and each reason for which a call is not trained.

use serde_json::json;

use super::cases::{assistant, built, facts, reasons, saying, tokens, turn, user};
use super::*;
use crate::call::{
    CallStatus, Capture, CaptureLevel, Failure, FailureKind, FinishReason, Mark, Rendered, Run, Usage, WeightVersion,
};

fn realigned(turns: &[Turn]) -> Built {
    build(&facts(), turns, &Rules { drift: Drift::Realign, ..Rules::default() }).unwrap()
}

fn spans(sample: &Sample) -> Vec<(u128, usize, usize, bool)> {
    sample.spans.iter().map(|span| (span.call_id.0.as_u128() - 100, span.start, span.end, span.realigned)).collect()
}

fn kinds(turns: &[Turn]) -> Vec<Kind> {
    classify(turns).into_iter().map(|class| class.kind).collect()
}

fn abandoned(turns: &[Turn]) -> Vec<Option<Abandoned>> {
    classify(turns).into_iter().map(|class| class.abandoned).collect()
}

fn system(text: &str) -> Raw {
    Raw::from_value(&json!({"role": "system", "content": text}))
}

fn tool(text: &str) -> Raw {
    Raw::from_value(&json!({"role": "tool", "tool_call_id": "a", "content": text}))
}

fn calling(name: &str) -> Raw {
    let call = json!({"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}});
    Raw::from_value(&json!({"role": "assistant", "content": null, "tool_calls": [call]}))
}

/// A turn of text alone.
fn said(number: u32, messages: &[Raw], reply: &Raw) -> Turn {
    saying(turn(number, &[number], &[9]), messages, reply)
}

fn with_tools(mut turn: Turn) -> Turn {
    turn.tools = vec![Raw::from_value(&json!({"type": "function", "function": {"name": "sh"}}))];
    turn
}

fn marked(mut turn: Turn, name: &str, value: &str) -> Turn {
    turn.record.marks.push(Mark { name: name.to_owned(), value: value.to_owned() });
    turn
}

fn cut(mut turn: Turn) -> Turn {
    turn.record.status = CallStatus::Failed;
    turn.record.failure = Some(Failure::new(FailureKind::Cut, "it broke off"));
    turn.record.capture = Capture::default();
    turn.prompt = Prompt::default();
    turn
}

#[test]
fn a_call_across_a_change_of_weights_has_a_span_of_each() {
    let version = |seq| WeightVersion { version: Some(format!("v{seq}")), seq, source: None };
    let mut across = turn(1, &[1], &[2, 3, 4]);
    across.record.capture.runs = vec![Run { start: 0, version: version(1) }, Run { start: 2, version: version(2) }];
    let built = built(&[across.clone(), turn(2, &[1, 2, 3, 4, 5], &[6])]);
    let spans: Vec<_> = built.samples[0].spans.iter().map(|span| (span.start, span.end, span.policy_seq)).collect();
    assert_eq!(spans, [(1, 3, 1), (3, 4, 2), (5, 6, 1)]);
    assert_eq!(built.samples[0].spans[1].policy_version.as_deref(), Some("v2"));
    assert_eq!(tokens(&built), [(&[1, 2, 3, 4, 5, 6][..], &[0, 1, 1, 1, 0, 1][..])]);

    // Runs that can't be are none.
    across.record.capture.runs[1].start = 3;
    assert_eq!(self::spans(&super::cases::built(&[across]).samples[0]), [(1, 1, 4, false)]);
}

#[test]
fn what_ids_mean_is_never_mixed() {
    let rendered = |number, prompt: &[u32], tokenizer: &str, template: &str| {
        let mut turn = turn(number, prompt, &[number + 10]);
        let rendered =
            Rendered { tokenizer_hash: tokenizer.to_owned(), template_hash: template.to_owned(), ..Rendered::default() };
        turn.record.capture.rendered = Some(rendered);
        turn
    };
    let built = built(&[
        rendered(1, &[1], "a", "x"),
        rendered(2, &[1, 11, 2], "a", "x"),
        rendered(3, &[1, 11, 2, 12, 3], "b", "x"),
        rendered(4, &[1, 11, 2, 12, 3], "a", "y"),
        turn(5, &[1, 11, 2, 12, 3], &[15]),
    ]);
    let identities: Vec<_> =
        built.samples.iter().map(|s| (s.spans.len(), s.tokenizer_hash.as_deref(), s.template_hash.as_deref())).collect();
    let expected = [(2, Some("a"), Some("x")), (1, Some("b"), Some("x")), (1, Some("a"), Some("y")), (1, None, None)];
    assert_eq!(identities, expected);
    assert!(built.samples.iter().all(|sample| sample.parent.is_none()));
}

/// A conversation whose first reply (3 4 5 7) comes back as 3 45 7, and that goes on.
fn drifting() -> [Turn; 3] {
    let said = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")];
    [
        saying(turn(1, &[1, 2], &[3, 4, 5, 7]), &said[..1], &said[1]),
        saying(turn(2, &[1, 2, 3, 45, 7, 6], &[8]), &said[..3], &said[3]),
        saying(turn(3, &[1, 2, 3, 45, 7, 6, 8, 9], &[10]), &said, &assistant("f")),
    ]
}

#[test]
fn drift_that_is_realigned_leaves_one_sample() {
    assert_eq!(built(&drifting()).samples.len(), 2);
    let one = realigned(&drifting());
    assert_eq!(tokens(&one), [(&[1, 2, 3, 45, 7, 6, 8, 9, 10][..], &[0, 0, 0, 0, 0, 0, 1, 0, 1][..])]);
    assert_eq!(spans(&one.samples[0]), [(1, 2, 5, true), (2, 6, 7, false), (3, 8, 9, false)]);
    assert_eq!(one.samples[0].logprobs[2..5], [None; 3]);
    assert_eq!(one.samples[0].messages.len(), 6);
    assert_eq!((reasons(&one), one.drift), (vec![(1, Reason::Realigned)], 1));
}

#[test]
fn a_realigned_reply_is_trained_where_it_was_gone_on_from_exactly() {
    let [first, second, third] = drifting();
    let exact = turn(4, &[1, 2, 3, 4, 5, 7, 11], &[12]);
    let built = realigned(&[first, second, third, exact]);
    let expected: [(&[u32], &[u8]); 2] = [
        (&[1, 2, 3, 45, 7, 6, 8, 9, 10], &[0, 0, 0, 0, 0, 0, 1, 0, 1]),
        (&[1, 2, 3, 4, 5, 7, 11, 12], &[0, 0, 1, 1, 1, 1, 0, 1]),
    ];
    assert_eq!((tokens(&built), reasons(&built)), (expected.to_vec(), vec![]));
}

#[test]
fn of_two_replies_that_read_the_same_the_one_with_the_same_tokens_is_gone_on_from() {
    let (ask, say) = (user("a"), assistant("b"));
    let reply = |number, ids: &[u32]| saying(turn(number, &[1], ids), std::slice::from_ref(&ask), &say);
    let next = saying(turn(3, &[1, 23, 4], &[5]), &[ask.clone(), say.clone(), user("c")], &assistant("d"));
    let built = built(&[reply(1, &[23]), reply(2, &[2, 3]), next]);
    assert_eq!((built.drift, built.samples.len()), (0, 2));
}

#[test]
fn a_side_call_has_no_tools_and_nothing_after_it() {
    let title = said(1, &[system("You make titles."), user("a")], &assistant("T"));
    let ask = [system("You work."), user("do it")];
    let main = with_tools(said(2, &ask, &calling("sh")));
    let next = with_tools(said(3, &[&ask[..], &[calling("sh"), tool("ok")]].concat(), &assistant("done")));
    let turns = [title, main, next];
    assert_eq!(kinds(&turns), [Kind::Side, Kind::Main, Kind::Main]);
    let built = built(&turns);
    assert_eq!(built.samples.iter().map(|sample| sample.kind).collect::<Vec<_>>(), [Kind::Side, Kind::Main, Kind::Main]);
    // Without tools anywhere nothing tells one from the other.
    let bare = [said(1, &[user("a")], &assistant("T")), said(2, &[user("b")], &assistant("U"))];
    assert_eq!(kinds(&bare), [Kind::Main, Kind::Main]);
}

#[test]
fn a_conversation_inside_another_is_a_sub_agent_s() {
    let ask = [system("s"), user("do it")];
    let inner = [system("s"), user("look it up")];
    let turns = [
        with_tools(said(1, &ask, &calling("task"))),
        with_tools(said(2, &inner, &calling("sh"))),
        with_tools(said(3, &[&inner[..], &[calling("sh"), tool("x")]].concat(), &assistant("found"))),
        with_tools(said(4, &[&ask[..], &[calling("task"), tool("found")]].concat(), &assistant("done"))),
    ];
    assert_eq!(kinds(&turns), [Kind::Main, Kind::Subagent, Kind::Subagent, Kind::Main]);
    // The same question asked anew is no other's.
    let mut edited = turns.clone();
    edited[1] = with_tools(said(2, &[system("t"), user("do it")], &calling("sh")));
    assert_eq!(kinds(&edited)[1], Kind::Main);
}

#[test]
fn a_conversation_that_begins_from_a_summary_was_compacted() {
    let ask = [user("do it"), calling("sh"), tool("ok")];
    let summary = "What was done:\nthe file was made and looked at";
    let compact = |tools: bool| {
        let first = with_tools(said(1, &ask[..1], &calling("sh")));
        let messages = [&ask[..], &[user("Summarise.")]].concat();
        let call = said(2, &messages, &assistant(summary));
        [first, if tools { with_tools(call) } else { call }]
    };
    let after = |text: &str| with_tools(said(3, &[user(text)], &assistant("done")));
    let with = |tools: bool, text: &str| kinds(&[&compact(tools)[..], &[after(text)]].concat());
    let quoted = "This goes on from: the file was made and looked at.";
    assert_eq!(with(true, quoted), [Kind::Main, Kind::Compaction, Kind::Main]);
    assert_eq!(with(false, "Another thing."), [Kind::Main, Kind::Compaction, Kind::Main]);
    assert_eq!(with(true, "Another thing."), [Kind::Main; 3]);
    // A last answer without tools is none.
    assert_eq!(kinds(&compact(false)), [Kind::Main; 2]);
}

#[test]
fn a_harness_that_says_what_a_call_is_is_believed() {
    use Kind::{Compaction, Main, Side, Subagent};
    let plain = |number| said(number, &[user("a")], &assistant("b"));
    let turns = [
        marked(plain(1), "x-openai-subagent", "collab_spawn"),
        marked(plain(2), "x-claude-code-agent-id", "a1"),
        marked(plain(3), "x-parent-session-id", "ses_1"),
        marked(plain(4), "request_kind", "turn"),
        marked(plain(5), "request_kind", "compaction"),
        marked(plain(6), "request_kind", "memory"),
        marked(plain(7), "x-openai-subagent", "compact"),
        marked(plain(8), "foreign", "it has no header x"),
    ];
    assert_eq!(kinds(&turns), [Subagent, Subagent, Subagent, Main, Compaction, Side, Compaction, Main]);
}

#[test]
fn asking_the_same_again_is_a_retry_or_one_with_twice_the_limit() {
    let limited = |number, reply: &[u32], limit| {
        let mut turn = turn(number, &[1], reply);
        turn.record.max_tokens_asked = Some(limit);
        turn.record.finish = Some(FinishReason::Length);
        turn
    };
    let turns = [limited(1, &[2], 100), limited(2, &[3], 200), limited(3, &[4], 200), turn(4, &[1, 4, 5], &[6])];
    assert_eq!(abandoned(&turns), [Some(Abandoned::DoubledLimit), Some(Abandoned::Retry), None, None]);
    let built = built(&turns);
    let tags: Vec<_> = built.samples.iter().flat_map(|s| &s.spans).map(|span| (span.abandoned, span.abandoned_as)).collect();
    let expected = [(true, Some(Abandoned::DoubledLimit)), (true, Some(Abandoned::Retry)), (false, None), (false, None)];
    assert_eq!(tags, expected);
}

#[test]
fn going_on_from_a_part_of_a_cut_reply_is_told_by_what_is_said_of_it() {
    let ask = [user("do it")];
    let first = |reply: &Raw| cut(said(1, &ask, reply));
    let next = |after: &[Raw]| said(2, &[&ask[..], after].concat(), &assistant("done"));
    let how = |reply: &Raw, after: &[Raw]| abandoned(&[first(reply), next(after)])[0];
    let reminder = user("<system-reminder>Your response above was cut off mid-stream. Resume directly.</system-reminder>");
    assert_eq!(how(&assistant("half a"), &[assistant("half a"), reminder]), Some(Abandoned::Resumed));
    assert_eq!(how(&calling("sh"), &[calling("sh"), tool("Tool execution aborted")]), Some(Abandoned::PhantomCall));
    assert_eq!(how(&assistant("whole"), &[assistant("whole")]), Some(Abandoned::Duplicated));
    assert_eq!(how(&assistant("half"), &[]), Some(Abandoned::Retry));
    assert_eq!(how(&assistant("half"), &[user("and now?")]), None);
    // So is one that was recorded whole and did not reach its client, though the next prompt extends it.
    let mut unsent = saying(turn(1, &[1], &[2]), &ask, &assistant("whole"));
    unsent.record.delivered = Some(false);
    let after = saying(turn(2, &[1, 2, 3], &[4]), &[&ask[..], &[assistant("whole"), user("c")]].concat(), &assistant("done"));
    assert_eq!(needs(&[unsent.clone(), after.clone()]), Needs::All);
    assert_eq!(abandoned(&[unsent, after]), [Some(Abandoned::Duplicated), None]);
    // A reply that was had whole is simply gone on from.
    assert_eq!(abandoned(&[said(1, &ask, &assistant("b")), next(&[assistant("b"), user("c")])]), [None, None]);
}

/// One call for each reason of the contract's list, the reason, and what is said of it.
#[test]
fn each_reason_of_the_list_is_provoked() {
    let alone = |number: u32| turn(number, &[number], &[90]);
    let change = |number: u32, change: &dyn Fn(&mut CallRecord)| {
        let mut turn = alone(number);
        change(&mut turn.record);
        turn
    };
    let mut judge = alone(12);
    judge.trained = false;
    let side = |turn: Turn| saying(turn, &[user("title?")], &assistant("T"));
    let mut text = change(1, &|record| record.capture = Capture { reason: Some("no ids came".to_owned()), ..Capture::default() });
    text.prompt = Prompt::default();
    let turns = vec![
        text,
        change(2, &|record| record.capture.level = CaptureLevel::Text),
        change(3, &|record| record.capture.level = CaptureLevel::Ids),
        change(4, &|record| record.capture.constrained = true),
        change(5, &|record| {
            record.capture.completion_ids.clear();
            record.usage = Some(Usage::default());
        }),
        change(6, &|record| record.delivered = Some(false)),
        change(7, &|record| record.status = CallStatus::Interrupted),
        cut(alone(8)),
        marked(alone(9), "foreign", "user-agent is curl"),
        with_tools(alone(10)),
        marked(side(alone(11)), "request_kind", "title"),
        judge,
        turn(13, &[13, 13, 13, 13], &[90]),
        change(14, &|record| record.version.seq = 7),
        turn(15, &[15], &[90]),
        turn(16, &[15], &[91]),
        saying(turn(17, &[17], &[18, 19]), &[user("a")], &assistant("b")),
        saying(turn(18, &[17, 1819], &[91]), &[user("a"), assistant("b"), user("c")], &assistant("d")),
    ];
    let rules = Rules {
        drift: Drift::Realign,
        chosen: &|record| record.version.seq < 7,
        without: &[Without::Side, Without::Abandoned],
        max_tokens: Some(4),
    };
    let built = build(&facts(), &turns, &rules).unwrap();
    let expected = [
        (1, Reason::TextOnly, Some("no ids came")),
        (2, Reason::IdsIncomplete, None),
        (3, Reason::LogprobsIncomplete, None),
        (4, Reason::Constrained, None),
        (5, Reason::NoOutput, None),
        (6, Reason::Undelivered, None),
        (7, Reason::Interrupted, None),
        (8, Reason::UpstreamError, Some("it broke off")),
        (9, Reason::Foreign, Some("user-agent is curl")),
        (11, Reason::SideCall, None),
        (12, Reason::UntrainedPolicy, None),
        (13, Reason::OverLength, Some("its sample has more than 4 tokens")),
        (14, Reason::Filtered, None),
        (15, Reason::Abandoned, Some("retry")),
        (17, Reason::Realigned, None),
    ];
    let found: Vec<_> =
        built.left_out.iter().map(|left| (left.call_id.0.as_u128() - 100, left.reason, left.detail.as_deref())).collect();
    assert_eq!(found, expected);
    let trained: Vec<_> = built.samples.iter().map(|sample| sample.token_ids.clone()).collect();
    assert_eq!(trained, [vec![10, 90], vec![15, 91], vec![17, 1819, 91]]);
}

#[test]
fn what_a_sample_that_is_too_long_shares_is_trained_in_the_next() {
    let turns = [turn(1, &[1], &[2]), turn(2, &[1, 2, 3, 3, 3], &[4]), turn(3, &[1, 2, 5], &[6])];
    let built = build(&facts(), &turns, &Rules { max_tokens: Some(4), ..Rules::default() }).unwrap();
    assert_eq!(tokens(&built), [(&[1, 2, 5, 6][..], &[0, 1, 0, 1][..])]);
    assert_eq!(reasons(&built), [(2, Reason::OverLength)]);
}
