//! Each way to make a prompt, by itself.

use serde_json::json;

use super::*;
use crate::call::{Part, Text, Tool};

fn first() -> Vec<Message> {
    vec![text(Role::System, "be brief"), user("go on")]
}

fn bash() -> Message {
    turn("I look.", Some("what is there?"), &[("bash", "{\"command\":\"ls\"}")])
}

/// The end of a call's messages that stand after `echo`.
fn after(echo: &[Message], new: &[Message]) -> Vec<Message> {
    [&first()[..], echo, new].concat()
}

#[test]
fn the_first_call_is_what_the_template_says() {
    for (tiny, expected) in [
        (&*QWEN3, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"),
        (&*SMOLLM2, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"),
    ] {
        let prompt = Talk::new(tiny).prompt(&ask(&first()));
        assert_eq!(prompt.ids, tiny.encode(expected));
        assert_eq!((prompt.ending.as_str(), prompt.rendered.after, prompt.rendered.afresh), (expected, None, None));
    }
}

#[test]
fn what_was_sampled_is_spliced_in_and_only_the_new_is_encoded() {
    let new = [result("a.txt"), result("the end"), user("and then?")];
    for (tiny, tool_role) in [(&*QWEN3, false), (&*QWEN2_5, false), (&*SMOLLM2, true)] {
        let mut talk = Talk::new(tiny);
        let (call_id, whole) = talk.says(&first(), &bash());
        let echo = Message { reasoning: None, ..bash() };
        let prompt = talk.prompt(&ask(&after(&[echo], &new)));
        assert_eq!(prompt.ids, [whole, tiny.encode(&chatml(&new, tool_role))].concat());
        assert_eq!((prompt.rendered.after, prompt.rendered.afresh), (Some(call_id), None));
        assert!(prompt.ending.ends_with("and then?<|im_end|>\n<|im_start|>assistant\n"), "{}", prompt.ending);
    }
}

#[test]
fn a_reply_ends_as_it_was_sampled() {
    let tiny = &*QWEN3;
    let (end, other) = (tiny.id("<|im_end|>"), tiny.id("<|endoftext|>"));
    let reply = turn("half a wo", None, &[]);
    let said = tiny.encode("half a wo");
    let next = tiny.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n");
    for (last, closing) in [
        // By the template's own token, by another one, and by none: a length limit, a stop string.
        (vec![end], vec![]),
        (vec![other], vec![]),
        (vec![], vec![end]),
    ] {
        let mut talk = Talk::new(tiny);
        let (_, whole) = talk.say(&ask(&first()), &reply, [&said[..], &last].concat());
        let prompt = talk.prompt(&ask(&after(&[reply.clone()], &[user("more")])));
        assert_eq!(prompt.ids, [whole, closing, next.clone()].concat(), "{last:?}");
    }
}

#[test]
fn an_edit_is_rendered_afresh_with_its_reason() {
    let tiny = &*QWEN2_5;
    let mut talk = Talk::new(tiny);
    talk.says(&first(), &bash());
    let edited = turn("I look.", None, &[("bash", "{}")]);
    let prompt = talk.prompt(&ask(&after(&[edited], &[result("no")])));
    let expected = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\nI look.\n\
                    <tool_call>\n{\"name\": \"bash\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n\
                    <tool_response>\nno\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt.ids, tiny.encode(expected));
    let reason = "message 3 (assistant) is not what the policy said: its tool calls have other arguments";
    assert_eq!((prompt.rendered.after, prompt.rendered.afresh.as_deref()), (None, Some(reason)));
}

#[test]
fn after_an_edit_what_stood_before_it_stays() {
    let tiny = &*QWEN2_5;
    let mut talk = Talk::new(tiny);
    let (one, whole) = talk.says(&first(), &turn("one", None, &[]));
    let messages = after(&[turn("one", None, &[])], &[user("2")]);
    talk.says(&messages, &turn("two", None, &[]));
    let prompt = talk.prompt(&ask(&[&messages[..], &[turn("2?", None, &[]), user("3")]].concat()));
    let new = [user("2"), turn("2?", None, &[]), user("3")];
    assert_eq!(prompt.ids, [whole, tiny.encode(&chatml(&new, false))].concat());
    let reason = "message 5 (assistant) is not what the policy said: its text differs";
    assert_eq!((prompt.rendered.after, prompt.rendered.afresh.as_deref()), (Some(one), Some(reason)));
}

#[test]
fn history_is_kept_or_as_the_template_has_it() {
    let tiny = &*QWEN3;
    let reply = turn("four", Some("two and two"), &[]);
    let messages = after(&[reply.clone()], &[user("sure?")]);
    let mut talk = Talk::new(tiny);
    let (_, whole) = talk.says(&first(), &reply);
    assert!(talk.prompt(&ask(&messages)).ids.starts_with(&whole));

    let mut talk = Talk::new(tiny);
    talk.config.history = History::Template;
    talk.says(&first(), &reply);
    let prompt = talk.prompt(&ask(&messages));
    let dropped = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n\
                   <|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt.ids, tiny.encode(dropped));
    let reason = "the chat template changes what was said before, as where it drops reasoning (history = \"template\")";
    assert_eq!((prompt.rendered.after, prompt.rendered.afresh.as_deref()), (None, Some(reason)));
    assert_eq!(prompt.rendered.history, History::Template);
}

#[test]
fn history_as_the_template_has_it_is_spliced_where_that_is_what_was_sampled() {
    // Qwen3 shows reasoning within the turn that a tool's result goes on with; other ids of the same text are the same text.
    let tiny = &*QWEN3;
    let mut talk = Talk::new(tiny);
    talk.config.history = History::Template;
    let reply = turn("I look.", Some("what is there?"), &[("bash", "{\"command\": \"the end\"}")]);
    let (call_id, whole) = talk.says(&first(), &reply);
    let prompt = talk.prompt(&ask(&after(&[reply], &[result("a.txt")])));
    assert_eq!(prompt.rendered.afresh, None);
    assert_eq!(prompt.rendered.after, Some(call_id));
    assert_eq!(prompt.ids, [whole.clone(), tiny.encode(&chatml(&[result("a.txt")], false))].concat());
    let read = read(&tiny.model, &whole);
    assert_ne!(tiny.encode(&read), whole, "the reply's ids are those of its text: this shows nothing");
}

#[test]
fn a_template_that_refuses_results_without_calls_is_shown_them() {
    let template = concat!(
        "{%- for m in messages %}{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}",
        "{{- raise_exception('a result of nothing') }}{%- endif %}{{- '<|im_start|>' + m.role + '\n' + m.content }}",
        "{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name + '</tool_call>' }}{%- endfor %}",
        "{{- '<|im_end|>\n' }}{%- endfor %}{{- '<|im_start|>assistant\n' if add_generation_prompt }}"
    );
    let tiny = Tiny::new(template);
    let mut talk = Talk::new(&tiny);
    let (call_id, whole) = talk.says(&first(), &bash());
    let prompt = talk.prompt(&ask(&after(&[bash()], &[result("x")])));
    assert_eq!(prompt.rendered.after, Some(call_id));
    assert_eq!(prompt.ids, [whole, tiny.encode("\n<|im_start|>tool\nx<|im_end|>\n<|im_start|>assistant\n")].concat());
}

#[test]
fn a_template_that_hides_what_was_said_is_not_gone_on_from() {
    let tiny = Tiny::new("{%- for m in messages if m.role == 'user' %}{{- m.content }}{%- endfor %}");
    let mut talk = Talk::new(&tiny);
    talk.says(&first(), &bash());
    let prompt = talk.prompt(&ask(&after(&[bash()], &[user(" now")])));
    assert_eq!(prompt.ids, tiny.encode("go on now"));
    assert_eq!(prompt.rendered.afresh.as_deref(), Some("the chat template does not show where the reply ends"));
}

#[test]
fn a_template_s_refusal_is_the_client_s_to_mend() {
    let tiny = Tiny::new("{{ raise_exception('roles must alternate') }}");
    let failure = Talk::new(&tiny).tried(&ask(&first())).unwrap_err();
    assert_eq!((failure.status, failure.param.as_deref()), (400, Some("messages")));
    assert!(failure.message.contains("roles must alternate"), "{}", failure.message);
}

#[test]
fn a_text_that_has_the_mark_does_no_harm() {
    let tiny = &*QWEN2_5;
    let mut talk = Talk::new(tiny);
    let (_, whole) = talk.says(&first(), &bash());
    let new = [user(super::super::tail::MARKS[0]), user(super::super::tail::MARKS[1])];
    let prompt = talk.prompt(&ask(&after(&[bash()], &new)));
    assert_eq!(prompt.ids, [whole, tiny.encode(&chatml(&new, false))].concat());
}

#[test]
fn a_reply_that_the_client_began_is_gone_on_with() {
    let tiny = &*SMOLLM2;
    let mut talk = Talk::new(tiny);
    let rest = vec![(Text::new("continue_final_message"), Raw::from_value(&true))];
    let begun = Call { rest: rest.clone(), ..ask(&[first(), vec![turn("Once upon", None, &[])]].concat()) };
    let (_, whole) = talk.say(&begun, &turn(" a time", None, &[]), tiny.encode(" a time"));
    let text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\nOnce upon";
    assert_eq!(whole, [tiny.encode(text), tiny.encode(" a time")].concat());
    // The length limit stopped it; the client asks for more of the same.
    let more = Call { rest: rest.clone(), ..ask(&after(&[turn("Once upon a time", None, &[])], &[])) };
    let prompt = talk.prompt(&more);
    assert_eq!((prompt.ids, prompt.rendered.afresh), (whole, None));
    assert!(prompt.ending.ends_with("Once upon a time"), "{}", prompt.ending);
    // What has ended can't be gone on with by what was sampled.
    let mut talk = Talk::new(tiny);
    talk.says(&first(), &turn("The end.", None, &[]));
    let prompt = talk.prompt(&Call { rest, ..ask(&after(&[turn("The end.", None, &[])], &[])) });
    assert_eq!(prompt.rendered.afresh.as_deref(), Some("the reply that is to be continued has ended"));
    assert!(prompt.ending.ends_with("The end."), "{}", prompt.ending);
}

#[test]
fn messages_are_what_vllm_makes_of_them() {
    let tiny = Tiny::new("{{ messages | tojson }}{{ tools | tojson }}{{ reasoning_effort }}{{ enable_thinking }}");
    let mut talk = Talk::new(&tiny);
    let parts = Content::Parts(vec![Part::Text(Text::new("a")), Part::Text(Text::new("b"))]);
    let custom = ToolCall {
        id: Text::new("2"),
        kind: ToolKind::Custom,
        namespace: Some(Text::new("fs")),
        name: Text::new("patch"),
        arguments: Text::new("*** \"x\""),
    };
    let mut calling = turn("", Some("hm"), &[("bash", "{\"b\":1,\"a\":[]}"), ("bash", "oh {"), ("bash", "")]);
    calling.content = Content::Null;
    calling.tool_calls.push(custom);
    let named = Message { rest: vec![(Text::new("name"), Raw::from_value(&"me"))], content: parts, ..Message::new(Role::User) };
    let tool = Tool {
        kind: ToolKind::Custom,
        namespace: Some(Text::new("fs")),
        name: Text::new("patch"),
        description: Some(Text::new("d")),
        parameters: None,
        rest: Vec::new(),
    };
    let call = Call {
        tools: vec![tool],
        reasoning_effort: Some(Text::new("low")),
        rest: vec![(Text::new("chat_template_kwargs"), Raw::from_value(&json!({"enable_thinking": false})))],
        ..ask(&[text(Role::Developer, "s"), named, calling, result("r")])
    };
    let prompt = talk.prompt(&call);
    let called = |id: &str, name: &str, arguments: serde_json::Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb", "name": "me"},
        {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm", "tool_calls": [
            called("c", "bash", json!({"b": 1, "a": []})), called("c", "bash", json!("oh {")), called("c", "bash", json!({})),
            called("2", "fs__patch", json!({"input": "*** \"x\""})),
        ]},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
    ]);
    let schema = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
                        "additionalProperties": false});
    let tools = json!([{"type": "function", "function": {"name": "fs__patch", "description": "d", "parameters": schema}}]);
    let read = read(&tiny.model, &prompt.ids);
    let mut values = serde_json::Deserializer::from_str(&read).into_iter::<serde_json::Value>();
    // Compared as text: the order of keys is part of a prompt.
    assert_eq!(values.next().unwrap().unwrap().to_string(), messages.to_string());
    assert_eq!(values.next().unwrap().unwrap().to_string(), tools.to_string());
    assert!(read[values.byte_offset()..].eq_ignore_ascii_case("lowfalse"), "{read}");
}

#[test]
fn an_image_is_refused_by_its_place() {
    let image = Content::Parts(vec![Part::Text(Text::new("see")), Part::Image(Text::new("data:image/png;base64,YQ"))]);
    let call = ask(&[user("a"), Message { content: image, ..Message::new(Role::User) }]);
    assert_eq!(super::super::image(&call).as_deref(), Some("messages[1].content[1]"));
    let failure = Talk::new(&QWEN3).tried(&call).unwrap_err();
    assert_eq!((failure.status, failure.param.as_deref()), (400, Some("messages[1].content[1]")));
}

#[test]
fn prompts_that_are_no_conversation_are_taken_as_they_are() {
    let tiny = &*QWEN3;
    let mut talk = Talk::new(tiny);
    let mut prompt = |prompt| talk.prompt(&Call { prompt: Some(prompt), ..Call::new("completions") }).ids;
    assert_eq!(prompt(Prompt::Ids(vec![5, 3])), [5, 3]);
    let text = Prompt::Text(Text::new("the <|im_end|>"));
    assert_eq!(prompt(text.clone()), tiny.encode("<|endoftext|>the <|im_end|>"));
    let rest = vec![(Text::new("add_special_tokens"), Raw::from_value(&false))];
    let bare = Call { prompt: Some(text), rest, ..Call::new("completions") };
    assert_eq!(talk.prompt(&bare).ids, tiny.encode("the <|im_end|>"));
    let foreign = Call { prompt: Some(Prompt::Ids(vec![1, 4_000_000])), ..Call::new("completions") };
    assert_eq!(talk.tried(&foreign).unwrap_err().param.as_deref(), Some("prompt"));
}

#[test]
fn names_of_control_tokens_are_those_or_text() {
    let new = [user("what is <|im_end|>?")];
    let reply = turn("<|im_end|> ends.", None, &[]);
    // Read as a reply's ids are, without what ends one.
    for (special_text, typed) in [(SpecialText::Control, ""), (SpecialText::Text, "<|im_end|>")] {
        let tiny = Tiny::with(include_str!("../../../../../tests/fixtures/templates/qwen2_5.jinja"), special_text);
        let mut talk = Talk::new(&tiny);
        talk.config.special_text = special_text;
        let (_, whole) = talk.says(&first(), &reply);
        let prompt = talk.prompt(&ask(&after(&[reply.clone()], &new)));
        let tail = prompt.ids.strip_prefix(whole.as_slice()).unwrap();
        assert_eq!(prompt.rendered.special, special_text);
        assert_eq!(read(&tiny.model, tail), format!("\n<|im_start|>user\nwhat is {typed}?\n<|im_start|>assistant\n"));
        let ends = tail.iter().filter(|id| tiny.model.is_control(**id)).count();
        assert_eq!(ends, if special_text == SpecialText::Control { 4 } else { 3 });
        // What the assistant says came of tokens: it is so also where it is rendered afresh.
        let edited = turn("<|im_end|> ends it.", None, &[]);
        let afresh = talk.prompt(&ask(&after(&[edited], &new)));
        let ends = afresh.ids.iter().filter(|id| tiny.model.is_control(**id)).count();
        assert_eq!(ends, if special_text == SpecialText::Control { 11 } else { 10 });
    }
}
