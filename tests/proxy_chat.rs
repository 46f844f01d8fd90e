//! Chat completions through the binary: the right value at the client, the right record, the ids that were sampled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::chat::{Reply as Seen, Tool, request};
use support::gleaner::{Gleaner, Start, assert_sampled};
use support::policy::{Reply, ScriptedPolicy};
use support::record::Record;

const PATH: &str = "/v1/chat/completions";

/// One call of a fresh rollout, with what client, store and policy know of it.
struct Called {
    client: Seen,
    record: Record,
    gleaner: Gleaner,
    policy: ScriptedPolicy,
    rollout: String,
}

async fn call(seed: u64, reply: Reply, body: &Value) -> Called {
    let policy = ScriptedPolicy::start(seed, [reply]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    let mut answer = gleaner.call(PATH, &rollout.key, body).await;
    assert_eq!(answer.status(), 200);
    let id = answer.call_id();
    let client = Seen::read(&mut answer).await;
    let record = gleaner.record(&id).await;
    Called { client, record, gleaner, policy, rollout: rollout.id }
}

impl Called {
    /// The record is whole, and its one sample is what was sampled.
    async fn assert_exact(&self) {
        let seen = self.policy.last();
        assert_eq!(self.record.status(), "done", "{:?}", self.record);
        assert_eq!(self.record.level(), "full", "{:?}", self.record);
        assert_eq!(self.record.prompt_ids(), seen.prompt_ids);
        assert_eq!(self.record.completion_ids(), seen.ids());
        assert_eq!(self.record.logprobs(), seen.logprobs());
        let (samples, left_out) = self.gleaner.samples(&self.rollout).await;
        assert_eq!((samples.len(), left_out), (1, vec![]));
        assert_sampled(&samples[0], &[seen]);
    }
}

#[tokio::test]
async fn text_is_the_same_at_client_store_and_policy() {
    for stream in [true, false] {
        let called = call(11, Reply::text("Hello, wörld 👩‍🚀 \"quoted\" \\ done"), &request("hi", stream)).await;
        let text = "Hello, wörld 👩‍🚀 \"quoted\" \\ done";
        let usage = called.client.usage.clone();
        assert_eq!(
            called.client,
            Seen { text: text.to_owned(), finish: Some("stop".to_owned()), complete: true, usage, ..Seen::default() }
        );
        assert_eq!(called.client.usage.is_some(), !stream, "usage is for those who asked");
        assert_eq!(called.record.text(), Some(text));
        called.assert_exact().await;
    }
}

#[tokio::test]
async fn usage_comes_last_where_it_was_asked_for() {
    let mut body = request("hi", true);
    body["stream_options"] = json!({"include_usage": true});
    let called = call(12, Reply::text("three short words"), &body).await;
    let usage = called.client.usage.clone().expect("usage was asked for");
    assert_eq!(usage["completion_tokens"], called.policy.last().tokens.len());
    assert_eq!(usage["prompt_tokens"], called.policy.last().prompt_ids.len());
    called.assert_exact().await;
}

#[tokio::test]
async fn reasoning_keeps_its_place() {
    for (stream, field) in [(true, "reasoning"), (false, "reasoning"), (true, "reasoning_content"), (false, "reasoning_content")]
    {
        let reply = Reply::text("the answer").thinking("first this, then that");
        let reply = Reply { reasoning_field: Some(field.to_owned()), ..reply };
        let called = call(13, reply, &request("think", stream)).await;
        assert_eq!((called.client.reasoning.as_str(), called.client.text.as_str()), ("first this, then that", "the answer"));
        called.assert_exact().await;
    }
}

#[tokio::test]
async fn parallel_tool_calls_stay_apart() {
    for (stream, interleave) in [(true, false), (true, true), (false, false)] {
        let reply = Reply::tools(&[("ls", r#"{"path": "/tmp", "all": true}"#), ("cat", r#"{"file": "a, b: c"}"#)]);
        let mut body = request("look", stream);
        body["tools"] = json!([{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}},
                               {"type": "function", "function": {"name": "cat", "parameters": {"type": "object"}}}]);
        let called = call(14, Reply { interleave, ..reply }, &body).await;
        let tool = |at: usize, name: &str, arguments: &str| Tool {
            id: format!("chatcmpl-tool-0-{at}"),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let want = vec![tool(0, "ls", r#"{"path": "/tmp", "all": true}"#), tool(1, "cat", r#"{"file": "a, b: c"}"#)];
        assert_eq!(called.client.tools, want);
        assert_eq!(called.client.finish.as_deref(), Some("tool_calls"));
        let recorded: Vec<Value> = want.iter().map(Tool::as_json).collect();
        assert_eq!(called.record.message()["tool_calls"], json!(recorded));
        called.assert_exact().await;
    }
}

#[tokio::test]
async fn a_conversation_is_one_sample() {
    let policy =
        ScriptedPolicy::start(15, [Reply::tools(&[("ls", "{\"path\":\"/\"}")]), Reply::text("there are two files")]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.rollout(json!({"task_id": "two-turns"})).await;
    let mut body = request("what is there?", true);
    let first = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [first.tools[0].as_json()]}));
    messages.push(json!({"role": "tool", "tool_call_id": first.tools[0].id, "content": "a b"}));
    let second = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
    assert_eq!(second.text, "there are two files");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
    assert_eq!(samples[0]["task_id"], "two-turns");
    let messages = samples[0]["messages"].as_array().unwrap();
    assert_eq!(messages.last().unwrap()["content"], "there are two files");
}

#[tokio::test]
async fn what_is_not_exact_is_not_called_so() {
    for (reply, reason, level) in [
        (Reply { swallow_ids: true, ..Reply::tools(&[("ls", "{\"a\": 1}")]) }, "ids_incomplete", "text"),
        (Reply { lose_logprobs: true, ..Reply::text("one two three four") }, "logprobs_incomplete", "ids"),
    ] {
        let called = call(16, reply, &request("go", true)).await;
        assert_eq!((called.record.status(), called.record.level()), ("done", level));
        let (samples, left_out) = called.gleaner.samples(&called.rollout).await;
        assert!(samples.iter().all(|sample| sample["loss_mask"].as_array().unwrap().iter().all(|bit| *bit == 0)));
        assert_eq!(left_out.len(), 1);
        assert_eq!((&left_out[0]["call_id"], &left_out[0]["reason"]), (&json!(called.record.id()), &json!(reason)));
    }
}

#[tokio::test]
async fn length_is_told() {
    for stream in [true, false] {
        let mut body = request("count", stream);
        body["max_tokens"] = json!(3);
        let called = call(17, Reply::text("one two three four five"), &body).await;
        assert_eq!((called.client.text.as_str(), called.client.finish.as_deref()), ("one two three ", Some("length")));
        called.assert_exact().await;
    }
}

#[tokio::test]
async fn what_nobody_acts_on_goes_through() {
    let mut body = request("hi", true);
    body["x_new_field"] = json!({"deep": [1, 2.50, "ü"]});
    body["messages"][0]["x_in_message"] = json!("kept");
    let called = call(18, Reply::text("ok"), &body).await;
    let upstream = called.policy.last().body;
    assert_eq!(upstream["x_new_field"], body["x_new_field"]);
    assert_eq!(upstream["messages"], body["messages"]);
    let raw = called.gleaner.raw(called.record.id(), "request").await;
    assert_eq!(String::from_utf8(raw).unwrap(), body.to_string());
    let raw: Value = serde_json::from_slice(&called.gleaner.raw(called.record.id(), "upstream").await).unwrap();
    assert_eq!(raw, upstream);
    called.assert_exact().await;
}

#[tokio::test]
async fn what_shapes_the_reply_reaches_the_policy() {
    let mut body = request("hi", false);
    body["messages"].as_array_mut().unwrap().insert(0, json!({"role": "developer", "content": "be brief"}));
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "object"}}});
    let fields = json!({"response_format": format, "stop": ["\n\n", "END"], "seed": 7, "logit_bias": {"9": -2.5},
        "parallel_tool_calls": false, "presence_penalty": 0.5, "reasoning_effort": "low", "verbosity": "low",
        "prediction": {"type": "content", "content": "x"}, "metadata": {"a": "b"}, "store": true, "user": "me"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body["max_completion_tokens"] = json!(50);
    let called = call(24, Reply::text("{}"), &body).await;
    let upstream = called.policy.last().body;
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(&upstream[name], value, "{name}");
    }
    assert_eq!(upstream["max_tokens"], 50);
    assert_eq!(upstream["messages"][0], json!({"role": "system", "content": "be brief"}), "templates know no developer");
    // Tokens drawn under a grammar are known and not trained.
    let (_, left_out) = called.gleaner.samples(&called.rollout).await;
    assert_eq!((called.record.level(), &left_out[0]["reason"]), ("full", &json!("constrained")));
}

#[tokio::test]
async fn functions_in_the_older_form_are_tools() {
    for stream in [true, false] {
        let arguments = "{\"path\": \"/tmp\"}";
        let mut body = request("look", stream);
        body["functions"] = json!([{"name": "ls", "parameters": {"type": "object"}}]);
        let policy = ScriptedPolicy::start(25, [Reply::tools(&[("ls", arguments)]), Reply::text("one file")]).await;
        let gleaner = Gleaner::start(policy.url()).await;
        let rollout = gleaner.plain_rollout().await;
        let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
        let (mut name, mut given, mut finish) = (String::new(), String::new(), Value::Null);
        let mut take = |choice: &Value, of: &str| {
            assert!(choice[of].get("tool_calls").is_none(), "{choice}");
            name += choice[of]["function_call"]["name"].as_str().unwrap_or_default();
            given += choice[of]["function_call"]["arguments"].as_str().unwrap_or_default();
            finish = choice["finish_reason"].clone();
        };
        if stream {
            let (events, _) = answer.events().await;
            for (_, event) in &events[..events.len() - 1] {
                take(&serde_json::from_str::<Value>(&event.data).unwrap()["choices"][0], "delta");
            }
        } else {
            take(&answer.json().await["choices"][0], "message");
        }
        assert_eq!((name.as_str(), given.as_str(), &finish), ("ls", arguments, &json!("function_call")));
        let upstream = policy.last().body;
        assert_eq!(upstream["tools"], json!([{"type": "function", "function": body["functions"][0]}]));
        assert_eq!((&upstream["parallel_tool_calls"], upstream.get("functions")), (&json!(false), None));
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": null, "function_call": {"name": name, "arguments": given}}));
        messages.push(json!({"role": "function", "name": "ls", "content": "a.txt"}));
        let second = Seen::read(&mut gleaner.call(PATH, &rollout.key, &body).await).await;
        assert_eq!(second.text, "one file");
        // The call's id is not the one that the policy gave, which no client in this form could send back.
        let asked = policy.last().body["messages"].clone();
        assert_eq!((&asked[1]["tool_calls"][0]["id"], &asked[2]["tool_call_id"]), (&json!("call_0"), &json!("call_0")));
        let (samples, left_out) = gleaner.samples(&rollout.id).await;
        assert_eq!((samples.len(), left_out), (1, vec![]));
        assert_sampled(&samples[0], &policy.seen());
    }
}

#[tokio::test]
async fn sampling_is_pinned_and_both_are_recorded() {
    let policy = ScriptedPolicy::start(19, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.rollout(json!({"sampling": {"temperature": 1.0, "top_p": 1.0}})).await;
    let mut body = request("hi", false);
    body["temperature"] = json!(0.25);
    let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
    Seen::read(&mut answer).await;
    let upstream = policy.last().body;
    assert_eq!((&upstream["temperature"], &upstream["top_p"]), (&json!(1.0), &json!(1.0)));
    let record = gleaner.record(&answer.call_id()).await;
    assert_eq!(record.sampling("temperature"), (&json!(0.25), &json!(1.0)));
}

#[tokio::test]
async fn max_tokens_is_clamped_to_the_window() {
    let mut body = request("hi there", false);
    body["max_tokens"] = json!(128_000);
    let called = call(20, Reply::text("ok"), &body).await;
    let sent = called.policy.last().body["max_tokens"].as_u64().expect("no limit went up");
    assert!(sent < 32_768, "{sent} does not fit the window");
    assert_eq!(called.record.max_tokens(), (&json!(128_000), &json!(sent)));
}

#[tokio::test]
async fn a_client_that_asks_for_ids_gets_them() {
    let policy = ScriptedPolicy::start(21, [Reply::text("a b c")]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    let mut body = request("hi", false);
    body["return_token_ids"] = json!(true);
    body["logprobs"] = json!(true);
    let reply = gleaner.call(PATH, &rollout.key, &body).await.json().await;
    let seen = policy.last();
    assert_eq!(reply["prompt_token_ids"], json!(seen.prompt_ids));
    assert_eq!(reply["choices"][0]["token_ids"], json!(seen.ids()));
    assert_eq!(reply["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), seen.tokens.len());
}

#[tokio::test]
async fn the_models_are_the_policys() {
    let policy = ScriptedPolicy::start(22, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    let key = format!("Bearer {}", rollout.key);
    for path in ["/v1/models", "/models"] {
        let mut answer = gleaner.send("GET", path, &[("authorization", &key)], b"").await;
        assert_eq!(answer.json().await["data"][0]["id"], "scripted");
    }
    let mut answer = gleaner.send("GET", "/v1/models/scripted", &[("authorization", &key)], b"").await;
    assert_eq!(answer.json().await["id"], "scripted");
}

#[tokio::test]
async fn a_policys_url_may_end_in_v1() {
    let policy = ScriptedPolicy::start(23, [Reply::text("fine")]).await;
    let gleaner = Start::new(format!("{}/v1", policy.url())).run().await;
    let rollout = gleaner.plain_rollout().await;
    let reply = Seen::read(&mut gleaner.call("/chat/completions", &rollout.key, &request("hi", true)).await).await;
    assert_eq!((reply.text.as_str(), reply.complete), ("fine", true));
}
