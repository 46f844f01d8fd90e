//! Anthropic's Messages through the binary: the right value at the client, the right record, the ids that were sampled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Start, assert_sampled};
use support::messages::{Reply as Seen, request};
use support::policy::{Fault, Gate, Reply, ScriptedPolicy};

const PATH: &str = "/v1/messages?beta=true";
const COUNT: &str = "/v1/messages/count_tokens?beta=true";

async fn start(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let gleaner = Gleaner::start(policy.url()).await;
    (policy, gleaner)
}

/// One call of a fresh rollout that must be recorded exactly.
async fn exact(seed: u64, reply: Reply, body: &Value) -> (Seen, Value) {
    let (policy, gleaner) = start(seed, [reply]).await;
    let rollout = gleaner.plain_rollout().await;
    let mut answer = gleaner.call(PATH, &rollout.key, body).await;
    assert_eq!(answer.status(), 200);
    let id = answer.call_id();
    let client = Seen::read(&mut answer).await;
    assert!(client.complete, "{client:?}");
    let (record, at_policy) = (gleaner.record(&id).await, policy.last());
    assert_eq!((record.status(), record.level()), ("done", "full"), "{record:?}");
    assert_eq!(
        (record.prompt_ids(), record.completion_ids(), record.logprobs()),
        (at_policy.prompt_ids.clone(), at_policy.ids(), at_policy.logprobs())
    );
    assert_eq!(client.usage["input_tokens"], at_policy.prompt_ids.len());
    assert_eq!(client.usage["output_tokens"], at_policy.tokens.len());
    if body["stream"] == true {
        assert_eq!(client.first_usage["input_tokens"], at_policy.prompt_ids.len(), "the server told it before it spoke");
    }
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], std::slice::from_ref(&at_policy));
    (client, at_policy.body)
}

fn with_tools(text: &str, stream: bool, names: &[&str]) -> Value {
    let mut body = request(text, stream);
    let tool = |name: &&str| json!({"name": name, "description": "does it", "input_schema": {"type": "object"}});
    body["tools"] = names.iter().map(tool).collect();
    body
}

#[tokio::test]
async fn text_is_the_same_at_client_and_store() {
    for stream in [true, false] {
        let text = "Hello, wörld 👩‍🚀 \"q\"";
        let (client, upstream) = exact(131, Reply::text(text), &request("hi", stream)).await;
        assert_eq!((client.text().as_str(), client.kinds()), (text, vec!["text"]));
        assert_eq!((&client.stop_reason, &client.stop_sequence), (&json!("end_turn"), &Value::Null));
        assert_eq!(upstream["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(upstream["max_tokens"], 1000);
    }
}

#[tokio::test]
async fn characters_cut_at_every_byte_arrive_whole() {
    let reply =
        Reply { tool_calls: Reply::tools(&[("f", "{\"a\": \"中, 文\"}")]).tool_calls, ..Reply::text("日, 本 👩‍🚀") };
    let (client, _) = exact(132, reply.thinking("é, ü").with(Fault::ByteByByte), &with_tools("go", true, &["f"])).await;
    assert_eq!((client.text().as_str(), client.content[0]["thinking"].as_str()), ("日, 本 👩‍🚀", Some("é, ü")));
    assert_eq!(client.calls()[0].2, json!({"a": "中, 文"}));
}

#[tokio::test]
async fn parallel_calls_are_blocks_one_after_the_other() {
    for (stream, interleave) in [(true, false), (true, true), (false, false)] {
        let reply = Reply::tools(&[("ls", r#"{"path": "/tmp"}"#), ("cat", r#"{"file": "x, y"}"#)]);
        let body = with_tools("look", stream, &["ls", "cat"]);
        let (client, upstream) = exact(133, Reply { interleave, ..reply }, &body).await;
        let call = |at: usize, name: &str, input: Value| (format!("chatcmpl-tool-0-{at}"), name.to_owned(), input);
        assert_eq!(client.calls(), [call(0, "ls", json!({"path": "/tmp"})), call(1, "cat", json!({"file": "x, y"}))]);
        assert_eq!(client.stop_reason, "tool_use");
        let function = &upstream["tools"][0]["function"];
        assert_eq!((&function["name"], &function["parameters"]), (&json!("ls"), &json!({"type": "object"})));
    }
}

#[tokio::test]
async fn a_call_without_arguments_is_one_of_an_empty_object() {
    for stream in [true, false] {
        let (client, _) = exact(134, Reply::tools(&[("now", "")]), &with_tools("when?", stream, &["now"])).await;
        assert_eq!(client.calls(), [("chatcmpl-tool-0-0".to_owned(), "now".to_owned(), json!({}))]);
        if stream {
            assert_eq!(client.fragments, [["{}"]]);
        }
    }
}

#[tokio::test]
async fn thinking_comes_first_and_is_signed() {
    for stream in [true, false] {
        let calls = Reply::tools(&[("ls", "{}")]).tool_calls;
        let reply = Reply { tool_calls: calls, ..Reply::text("I look.") };
        let (client, _) = exact(135, reply.thinking("first this, then that"), &with_tools("go", stream, &["ls"])).await;
        assert_eq!(client.kinds(), ["thinking", "text", "tool_use"]);
        assert_eq!(client.content[0]["thinking"], "first this, then that");
        assert!(!client.content[0]["signature"].as_str().unwrap().is_empty());
    }
    // No text: no empty block of it.
    let (client, _) = exact(136, Reply::tools(&[("ls", "{}")]).thinking("hm"), &with_tools("go", true, &["ls"])).await;
    assert_eq!(client.kinds(), ["thinking", "tool_use"]);
}

#[tokio::test]
async fn every_path_and_key_is_served() {
    let (policy, gleaner) = start(137, []).await;
    let rollout = gleaner.plain_rollout().await;
    let below = format!("/rollouts/{}", rollout.key);
    let body = request("hi", false).to_string();
    for (path, header) in [
        ("/v1/messages".to_owned(), Some(("x-api-key", rollout.key.clone()))),
        ("/messages".to_owned(), Some(("authorization", format!("Bearer {}", rollout.key)))),
        ("/messages?beta=true".to_owned(), Some(("x-api-key", rollout.key.clone()))),
        (format!("{below}/v1/messages?beta=true"), None),
        (format!("{below}/messages"), None),
    ] {
        let headers: Vec<(&str, &str)> = header.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut answer = gleaner.send("POST", &path, &headers, body.as_bytes()).await;
        assert!(Seen::read(&mut answer).await.complete, "{path}");
    }
    assert_eq!((policy.count(), gleaner.calls(&rollout.id).await.len()), (5, 5));
    let mut answer = gleaner.send("POST", "/v1/messages", &[("x-api-key", "glr_0000")], body.as_bytes()).await;
    assert_eq!((answer.status(), answer.json().await["error"]["type"].clone()), (401, json!("authentication_error")));
}

/// As Claude Code sends it: a billing header that changes, a system message in the middle, `cache_control` that moves, a message
/// that becomes a string, thinking that comes back.
#[tokio::test]
async fn a_claude_code_conversation_is_one_sample() {
    let call =
        Reply { tool_calls: Reply::tools(&[("Bash", r#"{"command": "echo hi"}"#)]).tool_calls, ..Reply::text("I run it.") };
    let (policy, gleaner) = start(138, [call.thinking("I should run it"), Reply::text("It said hi.")]).await;
    let rollout = gleaner.rollout(json!({"harness": "claude-code", "group_id": "g1", "group_size": 1})).await;
    let cached = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let system = |cch: &str| {
        json!([{"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2; cch={cch};")},
               cached("You are an agent."), cached("\nBe brief.")])
    };
    let user = json!({"role": "user", "content": [{"type": "text", "text": "<note>"}, {"type": "text", "text": "run it"}]});
    let mut body = with_tools("", true, &["Bash", "DeferredToolPlaceholder"]);
    body["tools"][1]["defer_loading"] = json!(true);
    body["system"] = system("a1b2c");
    body["messages"] = json!([user, {"role": "system", "content": [cached("# Place")]}]);
    body["metadata"] = json!({"user_id": "u"});
    body["thinking"] = json!({"type": "adaptive", "display": "omitted"});
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    body["output_config"] = json!({"effort": "high"});
    body["max_tokens"] = json!(128_000);
    let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
    let id = answer.call_id();
    let first = Seen::read(&mut answer).await;
    assert_eq!(first.stop_reason, "tool_use");

    let result = json!({"type": "tool_result", "tool_use_id": first.calls()[0].0, "content": "hi", "is_error": false,
                        "cache_control": {"type": "ephemeral"}});
    body["system"] = system("9z8y7");
    body["messages"] = json!([user, {"role": "system", "content": "# Place"}, {"role": "assistant", "content": first.content},
                              {"role": "user", "content": [result]}]);
    let second = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    assert_eq!((second.text().as_str(), &second.stop_reason), ("It said hi.", &json!("end_turn")));

    let upstream = policy.last().body;
    let roles: Vec<&Value> = upstream["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(upstream["messages"][2]["reasoning"], "I should run it");
    assert_eq!(upstream["tools"].as_array().unwrap().len(), 1, "a deferred tool is not offered");
    for unknown in ["system", "metadata", "thinking", "context_management", "output_config"] {
        assert_eq!(upstream.get(unknown), None, "{unknown} is no field of chat completions");
    }
    assert!(!upstream.to_string().contains("billing-header"));
    let raw = gleaner.raw(&id, "request").await;
    assert!(String::from_utf8(raw).unwrap().contains("cch=a1b2c"), "the raw record is what came");
    let record = gleaner.record(&id).await;
    assert_eq!(record.max_tokens().0, &json!(128_000));
    assert!(record.max_tokens().1.as_u64().unwrap() < 32_768, "clamped to the window");
    let notes = record.0["notes"].to_string();
    for note in ["billing header", "passed on as the user's", "deferred tools were not offered"] {
        assert!(notes.contains(note), "{note}: {notes}");
    }
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
}

#[tokio::test]
async fn a_thread_goes_on_from_what_is_in_the_store() {
    let (policy, gleaner) =
        start(152, [Reply::tools(&[("ls", "")]).thinking("where?"), Reply::text("So it is."), Reply::text("Bye.")]).await;
    let rollout = gleaner.plain_rollout().await;
    let mut body = with_tools("look", true, &["ls"]);
    body["system"] = json!("You are brief.");
    body["thread"] = json!({"type": "create"});
    let first = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    let result = json!({"type": "tool_result", "tool_use_id": first.calls()[0].0, "content": "a.txt"});
    let mut last = first;
    for content in [json!([result]), json!("Thanks.")] {
        let thread = json!({"type": "continue", "previous_message_id": last.id});
        let next = json!({"model": "any", "max_tokens": 100, "stream": true, "thread": thread,
                          "messages": [{"role": "user", "content": content}]});
        last = Seen::read(&mut gleaner.call(PATH, &rollout.key, &next).await).await;
        assert!(last.complete, "{last:?}");
        // What one rollout said is no other's.
        let other = gleaner.plain_rollout().await;
        let refused = Seen::read(&mut gleaner.call(PATH, &other.key, &next).await).await.error.unwrap();
        assert_eq!(refused["error"]["details"]["error_code"], "thread_not_found");
    }
    let upstream = policy.last().body;
    let roles: Vec<&Value> = upstream["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
    assert_eq!(upstream["messages"][2]["reasoning"], "where?");
    assert_eq!(upstream["tools"][0]["function"]["name"], "ls");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
}

#[tokio::test]
async fn a_tool_that_is_loaded_changes_nothing_before_it() {
    let search = Reply::tools(&[("ToolSearch", r#"{"query": "fetch"}"#)]);
    let (policy, gleaner) = start(139, [search, Reply::tools(&[("Fetch", r#"{"url": "x"}"#)]), Reply::text("done")]).await;
    let rollout = gleaner.plain_rollout().await;
    let mut body = with_tools("get x", true, &["ToolSearch", "Fetch"]);
    body["tools"][1]["defer_loading"] = json!(true);
    for result in [json!([{"type": "tool_reference", "tool_name": "Fetch"}]), json!("got it")] {
        let client = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
        let result = json!({"type": "tool_result", "tool_use_id": client.calls()[0].0, "content": result});
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": client.content}));
        messages.push(json!({"role": "user", "content": [result]}));
    }
    assert_eq!(Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await.text(), "done");
    let told = &policy.last().body["messages"][2]["content"];
    assert!(told.as_str().unwrap().contains(r#""name":"Fetch","description":"does it""#), "{told}");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
}

#[tokio::test]
async fn a_reply_cut_by_its_length_says_so() {
    for stream in [true, false] {
        let (_policy, gleaner) = start(140, [Reply::text("one two three four five")]).await;
        let rollout = gleaner.plain_rollout().await;
        let mut body = request("count", stream);
        body["max_tokens"] = json!(2);
        let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
        let id = answer.call_id();
        let client = Seen::read(&mut answer).await;
        assert_eq!((client.text().as_str(), &client.stop_reason), ("one two ", &json!("max_tokens")));
        let record = gleaner.record(&id).await;
        assert_eq!((record.status(), record.level(), record.finish_reason()), ("done", "full", Some("length")));
    }
}

#[tokio::test]
async fn the_stop_sequence_that_was_hit_is_told() {
    for (stop_reason, expected) in [("END", "stop_sequence"), ("</s>", "end_turn")] {
        let said = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "to the "}, "finish_reason": "stop", "stop_reason": stop_reason}]});
        let fault = Fault::Status { status: 200, headers: [].into(), body: said.to_string() };
        let (policy, gleaner) = start(141, [Reply::text("").with(fault)]).await;
        let rollout = gleaner.plain_rollout().await;
        let mut body = request("go", false);
        body["stop_sequences"] = json!(["STOP", "END"]);
        let client = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
        let sequence = if expected == "stop_sequence" { json!("END") } else { Value::Null };
        assert_eq!((&client.stop_reason, &client.stop_sequence), (&json!(expected), &sequence));
        assert_eq!(policy.last().body["stop"], json!(["STOP", "END"]));
    }
}

#[tokio::test]
async fn counting_reads_the_whole_prompt_and_is_no_call() {
    let (policy, gleaner) = start(142, []).await;
    let rollout = gleaner.plain_rollout().await;
    let mut counts = Vec::new();
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello there"}]});
    for path in [COUNT, "/v1/messages/count_tokens", "/messages/count_tokens"] {
        let mut answer = gleaner.call(path, &rollout.key, &body).await;
        let said = answer.json().await;
        assert_eq!((answer.status(), said.as_object().unwrap().len()), (200, 1), "{said}");
        counts.push(said["input_tokens"].as_u64().unwrap());
        body["tools"] = with_tools("", false, &["ls"])["tools"].clone();
        if counts.len() == 2 {
            body["system"] = json!("You are an agent with a good many words to read before anything is done at all.");
        }
    }
    assert!(0 < counts[0] && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
    body["messages"] = json!([]);
    let mut answer = gleaner.call(COUNT, &rollout.key, &body).await;
    assert_eq!((answer.status(), answer.json().await["error"]["type"].clone()), (400, json!("invalid_request_error")));
    assert_eq!((policy.count(), gleaner.calls(&rollout.id).await.len()), (0, 0));
}

#[tokio::test]
async fn what_comes_of_a_call_waits_for_no_other() {
    let gate = Gate::closed();
    let calls = Reply::tools(&[("ls", r#"{"path": "/tmp"}"#), ("cat", "{}")]).tool_calls;
    let (_policy, gleaner) = start(143, [Reply { tool_calls: calls, ..Reply::text("I look.") }.behind(&gate)]).await;
    let rollout = gleaner.plain_rollout().await;
    // Text and the pieces of the first call leave as they come; a later block waits for the first call's end.
    gate.pass(6);
    let mut answer = gleaner.call(PATH, &rollout.key, &with_tools("go", true, &["ls", "cat"])).await;
    let mut names = Vec::new();
    loop {
        let event = support::within("an event", answer.event()).await.unwrap().unwrap();
        names.push(event.event.unwrap());
        if event.data.contains("partial_json") {
            break;
        }
    }
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected = ["message_start", block[0], block[1], block[1], block[2], block[0], block[1]];
    assert_eq!(names, expected);
    gate.open();
    let (rest, whole) = answer.events().await;
    assert!(whole && rest.last().unwrap().1.event.as_deref() == Some("message_stop"));
}

#[tokio::test]
async fn a_silent_stream_is_pinged_after_its_start() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(144, [Reply::text("late").behind(&gate)]).await;
    let gleaner = Start::new(policy.url()).config("[server]\nping_s = 1\n").run().await;
    let rollout = gleaner.plain_rollout().await;
    let mut answer = gleaner.call(PATH, &rollout.key, &request("wait for a long time", true)).await;
    answer.comes(b"event: ping\ndata: {\"type\":\"ping\"}\n\n").await;
    gate.open();
    let client = Seen::read(&mut answer).await;
    assert!(client.complete && client.pings > 0, "{client:?}");
    assert!(client.first_usage["input_tokens"].as_u64().unwrap() > 1, "a guess, before the server has told");
    assert_eq!(client.usage["input_tokens"], policy.last().prompt_ids.len());
}

#[tokio::test]
async fn errors_have_anthropic_s_types() {
    let said = |status: u16, message: &str| Fault::Status {
        status,
        headers: [("retry-after".to_owned(), "7".to_owned())].into(),
        body: json!({"error": {"message": message, "type": "x", "code": status}}).to_string(),
    };
    let long = "This model's maximum context length is 8 tokens. However, your request has 9 input tokens.";
    for (fault, status, kind, starts) in [
        (said(429, "slow down"), 429, "rate_limit_error", ""),
        (said(500, "broken"), 503, "overloaded_error", ""),
        (said(400, "no such thing"), 400, "invalid_request_error", "no such thing"),
        (said(404, "no such model"), 404, "not_found_error", "no such model"),
        (said(400, long), 400, "invalid_request_error", "prompt is too long: "),
    ] {
        let policy = ScriptedPolicy::start(145, []).await;
        policy.otherwise(Reply::text("").with(fault));
        let gleaner = Start::new(policy.url()).config("[policies.default]\nretry_s = 1\n").run().await;
        for stream in [true, false] {
            let rollout = gleaner.plain_rollout().await;
            let mut answer = gleaner.call(PATH, &rollout.key, &request("hi", stream)).await;
            let (id, body) = (answer.call_id(), answer.json().await);
            assert_eq!(
                (answer.status(), &body["type"], &body["error"]["type"]),
                (status, &json!("error"), &json!(kind)),
                "{body}"
            );
            assert!(body["error"]["message"].as_str().unwrap().starts_with(starts), "{body}");
            assert_eq!(body["request_id"].as_str().unwrap(), format!("req_{}", id.replace('-', "")), "{body}");
            assert_eq!(answer.head.header("retry-after").is_some(), matches!(status, 429 | 503));
            assert_eq!(gleaner.record(&id).await.status(), "failed");
        }
    }
}

#[tokio::test]
async fn a_broken_stream_ends_with_an_error_event() {
    let calls = Reply::tools(&[("ls", r#"{"path": "/tmp"}"#)]).tool_calls;
    let reply = Reply { tool_calls: calls, ..Reply::text("I look.") };
    let (_policy, gleaner) = start(146, [reply.with(Fault::CutAfter { events: 5 })]).await;
    let rollout = gleaner.plain_rollout().await;
    let mut answer = gleaner.call(PATH, &rollout.key, &with_tools("go", true, &["ls"])).await;
    let id = answer.call_id();
    let client = Seen::read(&mut answer).await;
    let error = client.error.clone().unwrap();
    assert_eq!((client.complete, &error["error"]["type"]), (false, &json!("api_error")), "{client:?}");
    assert_eq!(client.kinds(), ["text"], "the call has not ended");
    assert_eq!(gleaner.record(&id).await.status(), "failed");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out[0]["reason"].as_str()), (0, Some("upstream_error")));
}

#[tokio::test]
async fn a_request_that_is_none_is_recorded_and_not_trained() {
    let (policy, gleaner) = start(147, []).await;
    let rollout = gleaner.plain_rollout().await;
    let mut body = request("hi", true);
    body["messages"] = json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "?"}]}]);
    let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
    let error = answer.json().await;
    assert_eq!((answer.status(), &error["error"]["type"]), (400, &json!("invalid_request_error")), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().starts_with("messages[0].content[0].tool_use_id "), "{error}");
    let record = gleaner.only_call(&rollout.id).await;
    assert_eq!((record.status(), record.failure_kind(), policy.count()), ("failed", Some("invalid"), 0));
    assert_eq!(gleaner.samples(&rollout.id).await.0, Vec::<Value>::new());
}
