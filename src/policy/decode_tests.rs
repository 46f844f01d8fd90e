//! Whole replies, in the forms that servers send them.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::decode::{Decoder, IdSource};
use super::names::Names;
use super::plain::Echo;
use super::stub;
use crate::call::{
    Call, Event, Extra, Failure, FailureKind, FinishReason, Fold, Raw, Text, Tokens, Tool, ToolKind, ToolStart, Usage,
};

fn text(plain: &str) -> Text {
    Text::new(plain)
}

fn decoder(call: &Call, source: IdSource) -> Decoder {
    Decoder::new(&Arc::new(call.clone()), Names::of(call), source, Echo::No, 1 << 20)
}

/// The events of a stream that comes in these pieces, and how it ended.
fn pieces(call: &Call, source: IdSource, pieces: &[&[u8]]) -> (Vec<Event>, Result<(), Failure>) {
    let mut decoder = decoder(call, source);
    let mut events = Vec::new();
    for piece in pieces {
        if let Err(failure) = decoder.push(&Bytes::copy_from_slice(piece), &mut events) {
            return (events, Err(failure));
        }
    }
    let end = decoder.finish(&mut events);
    (events, end)
}

fn stream(call: &Call, source: IdSource, bytes: &str) -> Vec<Event> {
    let (events, end) = pieces(call, source, &[bytes.as_bytes()]);
    assert_eq!(end, Ok(()));
    events
}

fn failed(bytes: &[u8]) -> (usize, FailureKind) {
    let (events, end) = pieces(&stub::call(), IdSource::TokenIds, &[bytes]);
    (events.len(), end.unwrap_err().kind)
}

fn function(name: &str) -> ToolStart {
    ToolStart { id: text("c1"), kind: ToolKind::Function, namespace: None, name: text(name) }
}

const VLLM: &str = concat!(
    "\u{feff}: ping\r\n\r\n",
    r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2,3]}"#,
    "\r\n\r\n",
    r#"data: {"choices":[{"index":0,"delta":{"reasoning":"h\u00e9"},"logprobs":{"content":[{"token":"h","logprob":-0.5,"bytes":[104],"top_logprobs":[]}]},"finish_reason":null,"token_ids":[7]}],"prompt_token_ids":null}"#,
    "\n\n",
    r#"data: {"choices":[{"index":0,"delta":{"content":"ok é","mood":{"a":1}},"logprobs":{"content":[{"token":"ok","logprob":-0.25,"bytes":[],"top_logprobs":[]},{"token":"","logprob":0.0,"bytes":[],"top_logprobs":[]}]},"finish_reason":null,"stop_reason":null,"token_ids":[8,9]}]}"#,
    "\n\n",
    r#"data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","stop_reason":"a","token_ids":[2],"logprobs":{"content":[{"token":"","logprob":-1e-05}]}}]}"#,
    "\n\n",
    r#"data: {"choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}"#,
    "\n\ndata: [DONE]\n\n",
);

fn vllm_events() -> Vec<Event> {
    vec![
        Event::Prompt(vec![1, 2, 3]),
        Event::Reasoning(Text::from_inner(br"h\u00e9")),
        Event::Tokens(Tokens { ids: vec![7], logprobs: vec![-0.5] }),
        Event::Text(text("ok é")),
        Event::Tokens(Tokens { ids: vec![8, 9], logprobs: vec![-0.25, 0.0] }),
        Event::Extra(Extra::Delta { name: text("mood"), value: Raw::from_value(&serde_json::json!({"a": 1})) }),
        Event::Tokens(Tokens { ids: vec![2], logprobs: vec![-1e-05] }),
        Event::StopString(text("a")),
        Event::Extra(Extra::Choice { name: text("stop_reason"), value: Raw::from_value(&"a") }),
        Event::Finish(FinishReason::Stop),
        Event::Usage(Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 2, reasoning_tokens: 0 }),
    ]
}

#[test]
fn a_stream_of_vllm() {
    assert_eq!(stream(&stub::call(), IdSource::TokenIds, VLLM), vllm_events());
    let without_done = VLLM.strip_suffix("data: [DONE]\n\n").unwrap();
    assert_eq!(stream(&stub::call(), IdSource::TokenIds, without_done), vllm_events());
}

#[test]
fn tokens_that_nobody_asked_for_are_passed_over() {
    let events = stream(&stub::call(), IdSource::None, VLLM);
    assert!(!events.iter().any(|event| matches!(event, Event::Prompt(_) | Event::Tokens(_))));
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(cuts in proptest::collection::vec(0..VLLM.len(), 0..12)) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for cut in cuts {
            parts.push(&VLLM.as_bytes()[from..cut]);
            from = cut;
        }
        parts.push(&VLLM.as_bytes()[from..]);
        let (events, end) = pieces(&stub::call(), IdSource::TokenIds, &parts);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(events, vllm_events());
    }
}

fn data(chunks: &[serde_json::Value]) -> String {
    chunks.iter().fold(String::new(), |text, chunk| text + &format!("data: {chunk}\n\n"))
}

fn delta(delta: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({"choices": [{"index": 0, "delta": delta}]})
}

fn finish(reason: &str) -> serde_json::Value {
    serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn folded(events: &[Event]) -> Vec<(String, String, String)> {
    let mut fold = Fold::default();
    for event in events {
        fold.push(event);
    }
    let plain = |text: &Text| text.decode().into_owned();
    fold.reply().tool_calls.iter().map(|call| (plain(&call.id), plain(&call.name), plain(&call.arguments))).collect()
}

#[test]
fn tool_calls_are_numbered_anew_whatever_servers_number_them() {
    let piece = |index: u32, id: &str, name: &str, arguments: &str| {
        let mut call = serde_json::json!({"index": index, "function": {"arguments": arguments}});
        if !id.is_empty() {
            call["id"] = id.into();
            call["function"]["name"] = name.into();
        }
        delta(&serde_json::json!({"tool_calls": [call]}))
    };
    let say = |chunks: &[serde_json::Value]| folded(&stream(&stub::call(), IdSource::None, &data(chunks)));
    let expected = |id: &str, name: &str, arguments: &str| (id.to_owned(), name.to_owned(), arguments.to_owned());
    let gaps =
        [piece(1, "a", "f", "{"), piece(4, "b", "g", ""), piece(1, "", "", "}"), piece(4, "", "", "[]"), finish("tool_calls")];
    assert_eq!(say(&gaps), [expected("a", "f", "{}"), expected("b", "g", "[]")]);
    let all_zero = [piece(0, "a", "f", "{"), piece(0, "", "", "}"), piece(0, "b", "g", ""), finish("tool_calls")];
    assert_eq!(say(&all_zero), [expected("a", "f", "{}"), expected("b", "g", "{}")]);
    let repeated = [piece(0, "a", "f", "{"), piece(0, "a", "f", "}"), finish("stop")];
    assert_eq!(say(&repeated), [expected("a", "f", "{}")]);
    let late_name = [
        delta(&serde_json::json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})),
        delta(&serde_json::json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "}"}}]})),
        finish("tool_calls"),
    ];
    assert_eq!(say(&late_name), [expected("call_0", "f", "{}")]);
}

#[test]
fn a_fat_chunk_tells_everything_in_order() {
    let chunk = serde_json::json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "token_ids": [5], "delta": {
    "reasoning": "r", "content": "t", "tool_calls": [
        {"index": 0, "id": "c1", "function": {"name": "f", "arguments": {"a": 1}}},
        {"index": 1, "id": "c1", "function": {"name": "g", "arguments": null}},
    ]}}]});
    assert_eq!(
        stream(&stub::call(), IdSource::TokenIds, &data(&[chunk])),
        [
            Event::Reasoning(text("r")),
            Event::Text(text("t")),
            Event::ToolStart { index: 0, tool: function("f") },
            Event::ToolArguments { index: 0, fragment: text("{\"a\":1}") },
            Event::ToolStart { index: 1, tool: function("g") },
            Event::Tokens(Tokens { ids: vec![5], logprobs: vec![] }),
            Event::ToolArguments { index: 1, fragment: text("{}") },
            Event::Finish(FinishReason::ToolCalls),
        ]
    );
}

#[test]
fn custom_and_grouped_tools_come_back_as_the_client_knows_them() {
    let mut call = stub::call();
    let tool = |kind, namespace: Option<&str>, name| Tool {
        kind,
        namespace: namespace.map(text),
        name: text(name),
        description: None,
        parameters: None,
        rest: Vec::new(),
    };
    call.tools = vec![tool(ToolKind::Custom, None, "patch"), tool(ToolKind::Function, Some("fs"), "read")];
    let piece = |index: u32, name: &str, arguments: &str| {
        delta(
            &serde_json::json!({"tool_calls": [{"index": index, "id": "c1", "function": {"name": name, "arguments": arguments}}]}),
        )
    };
    let more = delta(&serde_json::json!({"tool_calls": [{"index": 0, "function": {"arguments": "a\\n\"}"}}]}));
    let chunks =
        [piece(0, "patch", "{\"input\": \""), piece(1, "fs__read", "{}"), more, piece(2, "patch", "raw"), finish("tool_calls")];
    assert_eq!(
        stream(&call, IdSource::None, &data(&chunks)),
        [
            Event::ToolStart { index: 0, tool: ToolStart { kind: ToolKind::Custom, ..function("patch") } },
            Event::ToolStart { index: 1, tool: ToolStart { namespace: Some(text("fs")), ..function("read") } },
            Event::ToolArguments { index: 1, fragment: text("{}") },
            Event::ToolStart { index: 2, tool: ToolStart { kind: ToolKind::Custom, ..function("patch") } },
            Event::ToolArguments { index: 0, fragment: text("a\n") },
            Event::ToolArguments { index: 2, fragment: text("raw") },
            Event::Finish(FinishReason::ToolCalls),
        ]
    );
}

#[test]
fn a_whole_body_of_llamacpp_has_all_ids() {
    let body = serde_json::json!({
        "choices": [{"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": "ok 👩"},
            "logprobs": {"content": [{"id": 19556, "token": "ok", "bytes": [111], "logprob": -1.5, "top_logprobs": [{"id": 1, "token": "x", "bytes": [], "logprob": -1.0}]}]}}],
        "object": "chat.completion", "usage": {"completion_tokens": 3, "prompt_tokens": 31},
        "__verbose": {"tokens": [19556, 28, 10668], "generation_settings": {"grammar": "", "grammar_lazy": false}, "prompt": "p"},
    });
    let mut call = stub::call();
    call.wants.logprobs = true;
    let mut events = Vec::new();
    decoder(&call, IdSource::Entries).whole(&body.to_string().into(), &mut events).unwrap();
    let shown = serde_json::json!({"content": [{"token": "ok", "logprob": -1.5, "bytes": [111], "top_logprobs": []}]});
    assert_eq!(
        events,
        [
            Event::Text(text("ok 👩")),
            Event::Tokens(Tokens { ids: vec![19556, 28, 10668], logprobs: vec![-1.5] }),
            Event::Extra(Extra::Choice { name: text("logprobs"), value: Raw::from_value(&shown) }),
            Event::Finish(FinishReason::Length),
            Event::Usage(Usage { prompt_tokens: 31, completion_tokens: 3, ..Usage::default() }),
        ]
    );
}

#[test]
fn an_empty_reply_is_an_empty_text() {
    let chunks = [delta(&serde_json::json!({"role": "assistant", "content": ""})), finish("stop")];
    let expected = [Event::Text(text("")), Event::Finish(FinishReason::Stop)];
    assert_eq!(stream(&stub::call(), IdSource::None, &data(&chunks)), expected);
}

#[test]
fn what_is_no_reply_is_a_failure() {
    let begun = data(&[delta(&serde_json::json!({"content": "a"}))]);
    let after = |tail: &str| format!("{begun}{tail}").into_bytes();
    assert_eq!(failed(b""), (0, FailureKind::Cut));
    assert_eq!(failed(&after("")), (1, FailureKind::Cut));
    assert_eq!(failed(&after("data: [DONE]\n\n")), (1, FailureKind::Cut));
    assert_eq!(failed(&after("data: oops\n\n")), (1, FailureKind::Cut));
    assert_eq!(failed(&after("data: {\"choices\":[{\"delta\n\n")), (1, FailureKind::Cut));
    assert_eq!(failed(&after("data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n")), (1, FailureKind::Cut));
    assert_eq!(failed(&after("event: error\ndata: gone\n\n")), (1, FailureKind::Cut));
    assert_eq!(failed(b"data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n"), (0, FailureKind::Unavailable));
    assert_eq!(failed(b"data: {\"error\":{\"message\":\"m\",\"code\":422}}\n\n"), (0, FailureKind::Refused));
    let big = format!("data: {}\n\n", "x".repeat(2 << 20));
    assert_eq!(failed(&after(&big)), (1, FailureKind::Cut));
}

#[test]
fn bytes_that_are_not_utf8_are_replaced_and_noted() {
    let mut decoder = decoder(&stub::call(), IdSource::TokenIds);
    let mut events = Vec::new();
    let bytes = Bytes::from_static(
        b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xffb\"},\"token_ids\":[1],\"finish_reason\":\"stop\"}]}\n\n",
    );
    decoder.push(&bytes, &mut events).unwrap();
    assert_eq!(events[..2], [Event::Text(text("a\u{FFFD}b")), Event::Tokens(Tokens { ids: vec![1], logprobs: vec![] }),]);
    assert_eq!(decoder.notes.len(), 1);
}
