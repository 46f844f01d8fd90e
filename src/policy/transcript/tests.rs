//! What harnesses do to what was said, each by itself: found, or told apart with the reason.

use super::*;
use crate::call::{Content, Part, Raw, Rendered, Text, Tool, ToolCall, ToolKind};
use crate::ids::CallId;

/// A rollout whose every prompt and reply has ids of its own.
#[derive(Default)]
struct Talk {
    transcript: Transcript,
    next: u32,
}

impl Talk {
    /// Makes a call with these messages and notes its reply; gives its id.
    fn say(&mut self, messages: &[Message], reply: &Message) -> CallId {
        self.call(&ask(messages), reply)
    }

    fn call(&mut self, call: &Call, reply: &Message) -> CallId {
        let earlier = self.transcript.find(call, "tokenizer", "template").earlier;
        let after = earlier.as_ref().map(|earlier| earlier.call_id);
        let mut prompt_ids = earlier.map(|earlier| earlier.ids).unwrap_or_default();
        prompt_ids.push(self.fresh());
        let completion_ids = vec![self.fresh(), self.fresh()];
        let rendered = Rendered {
            tokenizer_hash: "tokenizer".to_owned(),
            template_hash: "template".to_owned(),
            after,
            ..Rendered::default()
        };
        let capture =
            Capture { level: CaptureLevel::Full, prompt_ids, completion_ids, rendered: Some(rendered), ..Capture::default() };
        let call_id = CallId::generate();
        self.transcript.note(Exchange { call_id, call, reply, capture: &capture });
        call_id
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn find(&self, messages: &[Message]) -> Found {
        self.transcript.find(&ask(messages), "tokenizer", "template")
    }

    /// The call that these messages go on from, and why not from the last one.
    fn after(&self, messages: &[Message]) -> (Option<CallId>, Option<String>) {
        let found = self.find(messages);
        (found.earlier.map(|earlier| earlier.call_id), found.afresh)
    }
}

fn ask(messages: &[Message]) -> Call {
    Call { messages: messages.to_vec(), ..Call::new("chat") }
}

fn text(role: Role, text: &str) -> Message {
    Message::text(role, Text::new(text))
}

fn user(said: &str) -> Message {
    text(Role::User, said)
}

fn result(id: &str, said: &str) -> Message {
    Message { tool_call_id: Some(Text::new(id)), ..text(Role::Tool, said) }
}

fn tool_call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: Text::new(id),
        kind: ToolKind::Function,
        namespace: None,
        name: Text::new(name),
        arguments: Text::new(arguments),
    }
}

fn turn(said: &str, reasoning: Option<&str>, calls: &[ToolCall]) -> Message {
    Message { reasoning: reasoning.map(Text::new), tool_calls: calls.to_vec(), ..text(Role::Assistant, said) }
}

/// The reply that the tests below change: reasoning, text, two calls.
fn reply() -> Message {
    let calls = [
        tool_call("call_1", "bash", "{\"command\": \"ls \\u00e9\", \"n\": [1.0, {\"a\": null, \"b\": true}]}"),
        tool_call("call_2", "read", ""),
    ];
    turn("I look.\n\nThen I read.\n", Some("hm, what is there?\n"), &calls)
}

const SYSTEM: &str = "be brief";

/// A conversation that goes on from `echo` in the place of [`reply`].
fn going_on(echo: &[Message]) -> Vec<Message> {
    let mut messages = vec![text(Role::System, SYSTEM), user("go")];
    messages.extend_from_slice(echo);
    messages.extend([result("x", "a.txt"), result("y", "text")]);
    messages
}

fn talk() -> (Talk, CallId) {
    let mut talk = Talk::default();
    let first = talk.say(&[text(Role::System, SYSTEM), user("go")], &reply());
    (talk, first)
}

/// A reply with one thing changed.
fn changed(change: impl FnOnce(&mut Message)) -> Vec<Message> {
    let mut message = reply();
    change(&mut message);
    vec![message]
}

#[test]
fn a_reply_is_found_through_what_harnesses_do_to_it() {
    let (talk, first) = talk();
    let echoes: Vec<(&str, Vec<Message>)> = vec![
        ("as it was", vec![reply()]),
        ("ids shortened", changed(|echo| echo.tool_calls[0].id = Text::new("call1"))),
        ("ids gone", changed(|echo| echo.tool_calls.iter_mut().for_each(|call| call.id = Text::new("")))),
        (
            "keys in another order, escapes and spaces, numbers as JavaScript has them",
            changed(|echo| {
                echo.tool_calls[0].arguments = Text::new("{\"n\":[1,{\"b\":true,\"a\":null}],\"command\":\"ls é\"}");
            }),
        ),
        ("no arguments as an object", changed(|echo| echo.tool_calls[1].arguments = Text::new("{}"))),
        (
            "a literal with other escapes",
            changed(|echo| echo.content = Content::Text(Text::from_inner(b"I look.\\u000a\\nThen \\u0049 read.\\n"))),
        ),
        ("text trimmed", changed(|echo| echo.content = Content::Text(Text::new("I look.\n\nThen I read.")))),
        ("reasoning dropped", changed(|echo| echo.reasoning = None)),
        ("reasoning empty", changed(|echo| echo.reasoning = Some(Text::new("")))),
        ("reasoning trimmed", changed(|echo| echo.reasoning = Some(Text::new("hm, what is there?")))),
        (
            "text as parts",
            changed(|echo| {
                let parts = ["I look.", "\n\nThen I read."].map(|text| Part::Text(Text::new(text)));
                echo.content = Content::Parts(parts.to_vec());
            }),
        ),
        ("fields beside", changed(|echo| echo.rest.push((Text::new("refusal"), Raw::from_value(&()))))),
        (
            "text and calls in two messages",
            vec![Message { tool_calls: Vec::new(), ..reply() }, Message { content: Content::Null, reasoning: None, ..reply() }],
        ),
        (
            "calls before the text, each in a message",
            vec![
                turn("", None, &reply().tool_calls[..1]),
                Message { content: Content::Absent, ..turn("", None, &reply().tool_calls[1..]) },
                turn("I look. Then I read.", None, &[]),
            ],
        ),
        ("the text in two messages", vec![turn("I look.", None, &[]), turn("Then I read.", None, &reply().tool_calls)]),
    ];
    for (what, echo) in echoes {
        let messages = going_on(&echo);
        let found = talk.find(&messages);
        assert_eq!(found.afresh, None, "{what}");
        let expected = Earlier { call_id: first, ids: vec![1, 2, 3], reply: (2, 2 + echo.len()) };
        assert_eq!(found.earlier, Some(expected), "{what}");
    }
}

#[test]
fn a_reply_that_says_something_else_is_not_found_and_the_reason_names_it() {
    let (talk, _) = talk();
    let arguments = "its tool calls have other arguments";
    for (what, echo, reason) in [
        ("another text", changed(|echo| echo.content = Content::Text(Text::new("I looked."))), "its text differs"),
        ("no text", changed(|echo| echo.content = Content::Null), "its text differs"),
        ("other reasoning", changed(|echo| echo.reasoning = Some(Text::new("ha"))), "its reasoning differs"),
        ("bad arguments made good", changed(|echo| echo.tool_calls[0].arguments = Text::new("{}")), arguments),
        ("arguments that are no JSON", changed(|echo| echo.tool_calls[1].arguments = Text::new("{")), arguments),
        ("the tool `invalid`", changed(|echo| echo.tool_calls[0].name = Text::new("invalid")), "it calls other tools"),
        ("a call less", changed(|echo| drop(echo.tool_calls.pop())), "it calls other tools"),
        ("calls in another order", changed(|echo| echo.tool_calls.reverse()), "it calls other tools"),
    ] {
        let (after, why) = talk.after(&going_on(&echo));
        let reason = format!("message 3 (assistant) is not what the policy said: {reason}");
        assert_eq!((after, why), (None, Some(reason)), "{what}");
    }
}

#[test]
fn what_the_others_said_counts_to_the_letter() {
    let (talk, _) = talk();
    let reply = reply();
    for (messages, reason) in [
        (
            vec![text(Role::System, "be brief."), user("go"), reply.clone()],
            Some("message 1 (system) is not what it was in the earlier calls"),
        ),
        (vec![user("go"), reply.clone()], Some("message 1 (user) is not what it was in the earlier calls")),
        (
            vec![text(Role::System, SYSTEM), user("go "), reply.clone()],
            Some("message 2 (user) is not what it was in the earlier calls"),
        ),
        (vec![text(Role::System, SYSTEM), user("go"), user("hm?")], Some("message 3 (user) stands where the policy's reply was")),
        // A conversation of its own, and a repeat.
        (vec![text(Role::System, "title?"), user("go")], Some("message 1 (system) is not what it was in the earlier calls")),
        (vec![text(Role::System, SYSTEM), user("go")], None),
    ] {
        assert_eq!(talk.after(&messages), (None, reason.map(str::to_owned)), "{messages:?}");
    }
    // Templates know no developer.
    let developer = [text(Role::Developer, SYSTEM), user("go"), reply];
    assert!(talk.after(&developer).0.is_some());
}

#[test]
fn parts_of_a_user_are_the_text_that_they_make() {
    let mut talk = Talk::default();
    let first = talk.say(&[user("ab")], &turn("c", None, &[]));
    let parts = Content::Parts(vec![Part::Text(Text::new("a")), Part::Text(Text::new("b"))]);
    let messages = [Message { content: parts, ..Message::new(Role::User) }, turn("c", None, &[]), user("d")];
    assert_eq!(talk.after(&messages), (Some(first), None));
}

#[test]
fn the_longest_earlier_sequence_is_gone_on_from() {
    let mut talk = Talk::default();
    let mut messages = vec![user("1")];
    let mut ids: Vec<CallId> = Vec::new();
    for at in 0..5 {
        ids.push(talk.say(&messages, &turn(&format!("a{at}"), None, &[])));
        messages.extend([turn(&format!("a{at}"), None, &[]), user(&format!("u{at}"))]);
    }
    let found = talk.find(&messages);
    assert_eq!(found.earlier.unwrap(), Earlier { call_id: ids[4], ids: (1..=15).collect(), reply: (9, 10) });
    // An edit far back: what was before it stays, the rest is told.
    messages[5] = turn("edited", None, &[]);
    let (after, why) = talk.after(&messages);
    assert_eq!(
        (after, why.as_deref()),
        (Some(ids[1]), Some("message 6 (assistant) is not what the policy said: its text differs"))
    );
    messages[5] = turn("a2", None, &[]);
    messages[4] = user("edited");
    let (after, why) = talk.after(&messages);
    assert_eq!((after, why.as_deref()), (Some(ids[1]), Some("message 5 (user) is not what it was in the earlier calls")));
    // The edited conversation goes on by itself.
    let edited = talk.say(&messages, &turn("new", None, &[]));
    messages.extend([turn("new", None, &[]), user("more")]);
    assert_eq!(talk.after(&messages), (Some(edited), None));
}

#[test]
fn messages_of_an_assistant_that_never_spoke_are_told() {
    let (talk, first) = talk();
    let mut messages = going_on(&[reply()]);
    messages.extend([turn("made up", None, &[]), user("so?")]);
    assert_eq!(talk.after(&messages), (Some(first), Some("message 6 (assistant) was not said by the policy".to_owned())));
    messages[5] = reply();
    let elsewhere = "message 6 (assistant) was said by the policy, but after something else".to_owned();
    assert_eq!(talk.after(&messages), (Some(first), Some(elsewhere)));
}

#[test]
fn of_retries_the_last_is_taken_unless_the_reasoning_tells() {
    let mut talk = Talk::default();
    let said = |reasoning: &str| turn("a", Some(reasoning), &[]);
    let one = talk.say(&[user("1")], &said("one"));
    let two = talk.say(&[user("1")], &said("two"));
    let next = |echo: Message| [user("1"), echo, user("2")];
    assert_eq!(talk.after(&next(turn("a", None, &[]))), (Some(two), None));
    assert_eq!(talk.after(&next(said("two"))), (Some(two), None));
    assert_eq!(talk.after(&next(said("one"))), (Some(one), None));
    assert_eq!(talk.after(&next(said("three"))).0, None);
    // Both are gone on from, and neither is mistaken for the other where reasoning is dropped later.
    let three = talk.say(&next(said("one")), &turn("b", None, &[]));
    let dropped = [user("1"), turn("a", None, &[]), user("2"), turn("b", None, &[]), user("3")];
    let found = talk.find(&dropped).earlier.unwrap();
    assert_eq!((found.call_id, found.ids), (three, vec![1, 2, 3, 7, 8, 9]));
    let mut other = dropped;
    other[1] = said("two");
    let (after, why) = talk.after(&other);
    assert_eq!((after, why.is_some()), (Some(two), true));
}

#[test]
fn the_same_reply_twice_is_the_one_noted_last() {
    let mut talk = Talk::default();
    let replies: Vec<CallId> = (0..100).map(|_| talk.say(&[user("1")], &turn("a", None, &[]))).collect();
    assert_eq!(talk.after(&[user("1"), turn("a", None, &[])]), (replies.last().copied(), None));
}

#[test]
fn a_client_that_begins_the_reply_may_send_both_as_one() {
    let mut talk = Talk::default();
    let rest = vec![(Text::new("continue_final_message"), Raw::from_value(&true))];
    let call = Call { rest, ..ask(&[user("1"), turn("Once upon", None, &[])]) };
    let first = talk.call(&call, &turn(" a time", None, &[]));
    for echo in [vec![turn("Once upon a time", None, &[])], vec![turn("Once upon", None, &[]), turn(" a time", None, &[])]] {
        let messages = [vec![user("1")], echo, vec![user("2")]].concat();
        let (after, why) = talk.after(&messages);
        assert_eq!((after, why), (Some(first), None), "{messages:?}");
    }
    let both = [user("1"), turn("Once upon a time", None, &[]), user("2")];
    let second = talk.say(&both, &turn("b", None, &[]));
    let found = talk.find(&[&both[..], &[turn("b", None, &[]), user("3")]].concat());
    assert_eq!(found.earlier.map(|earlier| (earlier.call_id, earlier.ids)), Some((second, (1..=6).collect())));
}

#[test]
fn other_tools_variables_and_tokenizers_begin_anew() {
    let (talk, first) = talk();
    let call = ask(&going_on(&[reply()]));
    let reason = |call: &Call, tokenizer| {
        let found = talk.transcript.find(call, tokenizer, "template");
        (found.earlier.map(|earlier| earlier.call_id), found.afresh)
    };
    assert_eq!(reason(&call, "tokenizer"), (Some(first), None));
    let other = "the tokenizer or the chat template is not that of the earlier calls";
    assert_eq!(reason(&call, "another"), (None, Some(other.to_owned())));
    let tool = Tool {
        kind: ToolKind::Function,
        namespace: None,
        name: Text::new("bash"),
        description: None,
        parameters: None,
        rest: Vec::new(),
    };
    let tools = Call { tools: vec![tool], ..call.clone() };
    assert_eq!(reason(&tools, "tokenizer"), (None, Some("its tools are not those of the earlier calls".to_owned())));
    let kwargs = Raw::from_value(&serde_json::json!({ "enable_thinking": false }));
    let variables = Call { rest: vec![(Text::new("chat_template_kwargs"), kwargs)], ..call.clone() };
    let other = "its template variables are not those of the earlier calls";
    assert_eq!(reason(&variables, "tokenizer"), (None, Some(other.to_owned())));
    let user = Call { rest: vec![(Text::new("user"), Raw::from_value(&"me"))], ..call };
    assert_eq!(reason(&user, "tokenizer"), (Some(first), None));
}

#[test]
fn what_can_t_be_gone_on_from_is_not_kept() {
    let transcript = Transcript::default();
    let (call, reply) = (ask(&[user("1")]), turn("a", None, &[]));
    let whole = Capture {
        level: CaptureLevel::Full,
        prompt_ids: vec![1],
        completion_ids: vec![2],
        rendered: Some(Rendered::default()),
        ..Capture::default()
    };
    let note = |call: &Call, capture: &Capture| {
        transcript.note(Exchange { call_id: CallId::generate(), call, reply: &reply, capture });
        transcript.find(&ask(&[user("1"), turn("a", None, &[])]), "", "").earlier.is_some()
    };
    assert!(!note(&call, &Capture { rendered: None, ..whole.clone() }));
    assert!(!note(&call, &Capture { level: CaptureLevel::Text, ..whole.clone() }));
    assert!(!note(&call, &Capture { completion_ids: Vec::new(), ..whole.clone() }));
    let plain = Call { prompt: Some(crate::call::Prompt::Ids(vec![1])), messages: Vec::new(), ..call.clone() };
    assert!(!note(&plain, &whole));
    assert!(note(&call, &whole));
}

#[test]
fn a_prompt_that_is_not_what_it_says_is_kept_whole() {
    let transcript = Transcript::default();
    let note = |messages: &[Message], reply: &Message, prompt_ids: Vec<u32>, after| {
        let rendered = Some(Rendered { after, ..Rendered::default() });
        let completion_ids = vec![9];
        let capture = Capture { level: CaptureLevel::Ids, prompt_ids, completion_ids, rendered, ..Capture::default() };
        let call_id = CallId::generate();
        transcript.note(Exchange { call_id, call: &ask(messages), reply, capture: &capture });
        call_id
    };
    let first = note(&[user("1")], &turn("a", None, &[]), vec![1, 2], None);
    let mut messages = vec![user("1"), turn("a", None, &[]), user("2")];
    note(&messages, &turn("b", None, &[]), vec![1, 7, 8], Some(first));
    messages.push(turn("b", None, &[]));
    assert_eq!(transcript.find(&ask(&messages), "", "").earlier.unwrap().ids, [1, 7, 8, 9]);
}

#[test]
fn a_message_that_says_nothing_is_part_of_the_reply_before_it() {
    let mut talk = Talk::default();
    let first = talk.say(&[user("1")], &turn("a", None, &[]));
    let empty = Message::new(Role::Assistant);
    let second = talk.say(&[user("1"), turn("a", None, &[]), empty.clone(), user("2")], &turn("b", None, &[]));
    for messages in [
        vec![user("1"), turn("a", None, &[]), user("2"), turn("b", None, &[])],
        vec![user("1"), turn("a", None, &[]), empty, user("2"), turn("b", None, &[])],
    ] {
        assert_eq!(talk.after(&messages), (Some(second), None), "{messages:?}");
        assert_eq!(talk.after(&messages[..2]), (Some(first), None));
    }
}
