//! The Responses API through the binary: the right value at the client, the right record, the ids that were sampled.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::format_push_string,
    clippy::format_collect,
    clippy::similar_names,
    reason = "tests"
)]

mod support;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, assert_sampled};
use support::policy::{Reply, ScriptedPolicy};
use support::responses::{Reply as Seen, request};

const PATH: &str = "/v1/responses";

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
    assert!(client.complete(), "{client:?}");
    let (record, seen) = (gleaner.record(&id).await, policy.last());
    assert_eq!((record.status(), record.level()), ("done", "full"), "{record:?}");
    assert_eq!(
        (record.prompt_ids(), record.completion_ids(), record.logprobs()),
        (seen.prompt_ids.clone(), seen.ids(), seen.logprobs())
    );
    let usage = &client.response["usage"];
    assert_eq!(usage["input_tokens"], seen.prompt_ids.len());
    assert_eq!(usage["output_tokens"], seen.tokens.len());
    assert_eq!(usage["total_tokens"], seen.prompt_ids.len() + seen.tokens.len());
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], std::slice::from_ref(&seen));
    (client, seen.body)
}

#[tokio::test]
async fn text_is_the_same_at_client_and_store() {
    for stream in [true, false] {
        let (client, upstream) = exact(31, Reply::text("Hello, wörld 👩‍🚀 \"q\""), &request("hi", stream)).await;
        assert_eq!(client.text, "Hello, wörld 👩‍🚀 \"q\"");
        assert_eq!(support::responses::texts(&client.items), client.text);
        assert_eq!(upstream["messages"], json!([{"role": "user", "content": "hi"}]));
    }
}

#[tokio::test]
async fn parallel_calls_are_items_of_their_own() {
    for (stream, interleave) in [(true, false), (true, true), (false, false)] {
        let reply = Reply::tools(&[("ls", r#"{"path": "/tmp"}"#), ("cat", r#"{"file": "x, y"}"#)]);
        let mut body = request("look", stream);
        body["tools"] = json!([{"type": "function", "name": "ls", "parameters": {"type": "object"}},
                               {"type": "function", "name": "cat", "parameters": {"type": "object"}}]);
        let (client, upstream) = exact(32, Reply { interleave, ..reply }, &body).await;
        let call =
            |at: usize, name: &str, arguments: &str| (format!("chatcmpl-tool-0-{at}"), name.to_owned(), arguments.to_owned());
        assert_eq!(client.calls(), [call(0, "ls", r#"{"path": "/tmp"}"#), call(1, "cat", r#"{"file": "x, y"}"#)]);
        assert_eq!(upstream["tools"][0]["function"]["name"], "ls");
    }
}

#[tokio::test]
async fn reasoning_comes_before_what_it_led_to() {
    for stream in [true, false] {
        let (client, _) = exact(33, Reply::text("the answer").thinking("first this, then that"), &request("think", stream)).await;
        let kinds: Vec<&str> = client.items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "message"]);
        assert!(client.items[0].to_string().contains("first this, then that"), "{}", client.items[0]);
    }
}

#[tokio::test]
async fn a_custom_tool_comes_back_as_one() {
    for stream in [true, false] {
        let mut body = request("patch", stream);
        body["tools"] = json!([{"type": "custom", "name": "apply_patch", "description": "patches",
                                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}]);
        let patch = "*** Begin \"Patch\"\n+line";
        let (policy, gleaner) = start(34, []).await;
        policy.then(Reply::tools(&[("apply_patch", &json!({ "input": patch }).to_string())]));
        let rollout = gleaner.plain_rollout().await;
        let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
        let client = Seen::read(&mut answer).await;
        assert!(client.complete());
        assert_eq!(client.items.len(), 1);
        assert_eq!((&client.items[0]["type"], &client.items[0]["input"]), (&json!("custom_tool_call"), &json!(patch)));
        let parameters = &policy.last().body["tools"][0]["function"]["parameters"];
        assert!(parameters["properties"]["input"].is_object(), "a custom tool is a function of one string: {parameters}");
    }
}

#[tokio::test]
async fn a_namespaced_call_names_its_namespace() {
    let mut body = request("spawn", true);
    body["tools"] = json!([{"type": "namespace", "name": "multi_agent_v1", "description": "agents", "tools": [
        {"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}]}, {"type": "web_search"}]);
    let (policy, gleaner) = start(35, [Reply::text("first, what is it called?")]).await;
    let rollout = gleaner.plain_rollout().await;
    Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    let tools = policy.last().body["tools"].clone();
    assert_eq!(tools.as_array().unwrap().len(), 1, "only functions go up: {tools}");
    policy.then(Reply::tools(&[(tools[0]["function"]["name"].as_str().unwrap(), "{}")]));
    let client = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    let item = &client.items[0];
    assert_eq!((&item["namespace"], &item["name"]), (&json!("multi_agent_v1"), &json!("spawn_agent")));
}

#[tokio::test]
async fn a_codex_conversation_is_one_sample() {
    let call = Reply::tools(&[("exec_command", r#"{"cmd": "echo hi"}"#)]).thinking("I should run it");
    let (policy, gleaner) = start(36, [call, Reply::text("It said hi.")]).await;
    let rollout = gleaner.rollout(json!({"harness": "codex", "group_id": "g1", "group_size": 1})).await;
    let developer = |id: &str, text: &str| json!({"type": "message", "id": id, "role": "developer", "content": [{"type": "input_text", "text": text}]});
    let user = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "run it"}]});
    let mut body = json!({
        "model": "mock-model", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
        "input": [developer("msg_1", "be brief"), developer("msg_2", "no network"), user],
        "tools": [{"type": "function", "name": "exec_command", "parameters": {"type": "object"}}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"summary": "auto"},
        "prompt_cache_key": "k", "client_metadata": {"a": "b"}});
    let first = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    let call_id = first.calls()[0].0.clone();
    let input = body["input"].as_array_mut().unwrap();
    input.extend(first.items.iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": call_id,
                      "output": [{"type": "input_text", "text": "hi"}]}));
    let second = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    assert_eq!((second.text.as_str(), second.ended_by.as_str()), ("It said hi.", "response.completed"));
    let roles: Vec<Value> = policy.last().body["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
    assert_eq!((&samples[0]["harness"], &samples[0]["purpose"]), (&json!("codex"), &json!("train")));
}

#[tokio::test]
async fn a_reply_cut_by_its_length_is_incomplete() {
    for stream in [true, false] {
        let (_policy, gleaner) = start(37, [Reply::text("one two three four five")]).await;
        let rollout = gleaner.plain_rollout().await;
        let mut body = request("count", stream);
        body["max_output_tokens"] = json!(2);
        let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
        let id = answer.call_id();
        let response = if stream {
            let client = Seen::read(&mut answer).await;
            assert_eq!(client.ended_by, "response.incomplete");
            client.response
        } else {
            answer.json().await
        };
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        let record = gleaner.record(&id).await;
        assert_eq!((record.status(), record.level(), record.finish_reason()), ("done", "full", Some("length")));
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_clearly() {
    let (policy, gleaner) = start(38, []).await;
    let rollout = gleaner.plain_rollout().await;
    let mut body = request("go on", true);
    body["previous_response_id"] = json!("resp_1");
    let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json().await["error"]["param"], "previous_response_id");
    let key = format!("Bearer {}", rollout.key);
    let upgrade = [("authorization", key.as_str()), ("connection", "Upgrade"), ("upgrade", "websocket")];
    assert_eq!(gleaner.send("GET", PATH, &upgrade, b"").await.status(), 426);
    assert_eq!(policy.count(), 0);
}
