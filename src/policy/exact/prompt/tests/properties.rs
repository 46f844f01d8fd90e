//! Random conversations through random harnesses.

use proptest::prelude::*;

use super::super::tail::{Form, after_mark};
use super::*;
use crate::call::{Part, Text};

/// What a harness makes of a reply's spelling.
#[derive(Clone, Copy, Debug)]
enum Habit {
    Verbatim,
    DropsReasoning,
    Trims,
    RewritesArguments,
    Parts,
    Splits,
    RenamesIds,
}

/// What a harness does to what was said.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Text,
    Reasoning,
    Tool,
    Arguments,
}

const HABITS: [Habit; 7] = [
    Habit::Verbatim,
    Habit::DropsReasoning,
    Habit::Trims,
    Habit::RewritesArguments,
    Habit::Parts,
    Habit::Splits,
    Habit::RenamesIds,
];

fn echo(reply: &Message, habit: Habit) -> Vec<Message> {
    let mut echo = reply.clone();
    let Content::Text(said) = &reply.content else { panic!("replies of tests are texts") };
    let said = said.decode().into_owned();
    match habit {
        Habit::Verbatim => {}
        Habit::DropsReasoning => echo.reasoning = None,
        Habit::Trims => echo.content = Content::Text(Text::new(said.trim())),
        Habit::RewritesArguments => {
            for call in &mut echo.tool_calls {
                let value: serde_json::Value = serde_json::from_str(&call.arguments.decode()).unwrap();
                call.arguments = Text::new(&serde_json::to_string_pretty(&value).unwrap());
            }
        }
        Habit::Parts => {
            let half = said.floor_char_boundary(said.len() / 2);
            let parts = [&said[..half], &said[half..]].map(|text| Part::Text(Text::new(text)));
            echo.content = Content::Parts(parts.to_vec());
        }
        Habit::Splits => {
            let calls = Message { content: Content::Absent, reasoning: None, ..reply.clone() };
            return vec![Message { tool_calls: Vec::new(), ..reply.clone() }, calls];
        }
        Habit::RenamesIds => echo.tool_calls.iter_mut().for_each(|call| call.id = Text::new("other")),
    }
    vec![echo]
}

/// Changes what a reply says; none where there is nothing of that kind to change.
fn edited(reply: &Message, edit: Edit) -> Option<Message> {
    let mut message = reply.clone();
    match edit {
        Edit::Text => message.content = Content::Text(Text::new("something else")),
        Edit::Reasoning => message.reasoning = Some(Text::new("another thought")),
        Edit::Tool => message.tool_calls.first_mut()?.name = Text::new("invalid"),
        Edit::Arguments => message.tool_calls.first_mut()?.arguments = Text::new("{\"edited\": 1}"),
    }
    Some(message)
}

fn words() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z ]{1,12}",
        Just("the end and then\n\n  in\tthe sand ".to_owned()),
        Just("naïve 👩‍🚀 日本語 \u{301}".to_owned()),
        Just("<tool_response>not one</tool_response>".to_owned()),
        Just("x".repeat(300)),
    ]
}

fn reply() -> impl Strategy<Value = Message> {
    let calls = proptest::collection::vec(("[a-z]{1,4}", "[a-z \"é]{0,6}"), 0..3);
    (words(), proptest::option::of("[a-z ]{1,9}[a-z]"), calls).prop_map(|(said, reasoning, calls)| {
        let calls: Vec<(String, String)> = calls
            .into_iter()
            .map(|(name, value)| (name, serde_json::json!({"b": value, "a": [1.0, null]}).to_string()))
            .collect();
        let calls: Vec<(&str, &str)> = calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
        turn(&said, reasoning.as_deref(), &calls)
    })
}

#[derive(Clone, Debug)]
struct Round {
    reply: Message,
    /// How much of the text one token tells, and whether the reply ended by itself.
    step: usize,
    ended: bool,
    habit: Habit,
    next: String,
}

fn round() -> impl Strategy<Value = Round> {
    let habit = (0..HABITS.len()).prop_map(|at| HABITS[at]);
    (reply(), 1..5_usize, any::<bool>(), habit, words()).prop_map(|(reply, step, ended, habit, next)| Round {
        reply,
        step,
        ended,
        habit,
        next,
    })
}

/// What is said after a reply: each call's result, and mostly somebody's word.
fn answers(round: &Round) -> Vec<Message> {
    let mut new: Vec<Message> = round.reply.tool_calls.iter().map(|_| result(&round.next)).collect();
    if new.is_empty() || round.step > 2 {
        new.push(user(&round.next));
    }
    new
}

fn templates() -> [(&'static Tiny, bool); 3] {
    [(&QWEN3, false), (&QWEN2_5, false), (&SMOLLM2, true)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each prompt is all of the last sequence and what is new, whatever harnesses do to the spelling, and differently in each request.
    #[test]
    fn a_conversation_is_one_sequence(rounds in proptest::collection::vec(round(), 1..6), template in 0..3_usize) {
        let (tiny, tool_role) = templates()[template];
        let mut talk = Talk::new(tiny);
        let mut history: Vec<Result<Message, Message>> = vec![Err(text(Role::System, "s")), Err(user("the task"))];
        let mut before: Option<(CallId, Vec<u32>)> = None;
        for (at, round) in rounds.iter().enumerate() {
            let messages: Vec<Message> = history.iter().enumerate().flat_map(|(place, message)| match message {
                Err(message) => vec![message.clone()],
                Ok(reply) => echo(reply, HABITS[(round.habit as usize + place) % HABITS.len()]),
            }).collect();
            let prompt = talk.prompt(&ask(&messages));
            if let Some((call_id, whole)) = &before {
                let last = &rounds[at - 1];
                let closing = if last.ended { "" } else { "<|im_end|>" };
                let tail = tiny.encode(&(closing.to_owned() + &chatml(&answers(last), tool_role)));
                prop_assert_eq!(prompt.rendered.after, Some(*call_id));
                prop_assert_eq!(&prompt.rendered.afresh, &None);
                prop_assert_eq!(&prompt.ids, &[&whole[..], &tail].concat());
            }
            let end = if round.ended { "<|im_end|>" } else { "" };
            let completion = tiny.drifting(&(sampled(&round.reply) + end), round.step);
            before = Some(talk.say(&ask(&messages), &round.reply, completion));
            history.push(Ok(round.reply.clone()));
            history.extend(answers(round).into_iter().map(Err));
        }
    }

    /// An edited reply is never taken for what was said: the prompt goes on from before it, or from nothing.
    #[test]
    fn an_edit_is_never_spliced(
        rounds in proptest::collection::vec(round(), 1..5),
        place in any::<prop::sample::Index>(),
        edit in prop_oneof![Just(Edit::Text), Just(Edit::Reasoning), Just(Edit::Tool), Just(Edit::Arguments)],
    ) {
        let tiny = &*QWEN2_5;
        let mut talk = Talk::new(tiny);
        let mut messages = vec![user("the task")];
        let mut said: Vec<(usize, CallId, Vec<u32>)> = Vec::new();
        for round in &rounds {
            let (call_id, whole) = talk.says(&messages, &round.reply);
            said.push((messages.len(), call_id, whole));
            messages.push(round.reply.clone());
            messages.extend(answers(round));
        }
        let at = place.index(said.len());
        let Some(other) = edited(&messages[said[at].0], edit) else { return Ok(()) };
        messages[said[at].0] = other;
        let prompt = talk.prompt(&ask(&messages));
        let expected = at.checked_sub(1).map(|at| &said[at]);
        prop_assert_eq!(prompt.rendered.after, expected.map(|(_, call_id, _)| *call_id));
        let named = format!("message {} (assistant) is not what the policy said", said[at].0 + 1);
        prop_assert!(prompt.rendered.afresh.clone().unwrap_or_default().starts_with(&named), "{:?}", prompt.rendered.afresh);
        let before = expected.map(|(_, _, whole)| whole.as_slice()).unwrap_or_default();
        prop_assert!(prompt.ids.starts_with(before));
        // This template shows no reasoning.
        prop_assert!(matches!(edit, Edit::Reasoning) || !prompt.ids.starts_with(&said[at].2));
    }

    /// What stands after a reply is the same text whether old messages are whole or abridged.
    #[test]
    fn old_messages_abridged_leave_the_tail_as_it_is(
        rounds in proptest::collection::vec(round(), 1..6),
        system in proptest::option::of(words()),
        template in 0..3_usize,
        place in any::<prop::sample::Index>(),
    ) {
        let (tiny, _) = templates()[template];
        let mut messages: Vec<Message> = system.iter().map(|said| text(Role::System, said)).collect();
        messages.push(user("the task"));
        let mut replies = Vec::new();
        for round in &rounds {
            replies.push(messages.len());
            messages.push(round.reply.clone());
            messages.extend(answers(round));
        }
        let at = replies[place.index(replies.len())];
        let call = ask(&messages);
        let names = Names::of(&call);
        let making = Making::new(&tiny.model, &PolicyConfig::default(), &call, &names, &mut Vec::new()).unwrap();
        let tail = |form| run(after_mark(&making, (at, at + 1), form)).unwrap();
        let (abridged, whole) = (tail(Form::Abridged), tail(Form::Whole));
        prop_assert!(whole.is_some());
        prop_assert_eq!(abridged, whole);
    }
}
