//! Gemini's API through the binary: the right value at the client, the right record, the ids that were sampled.

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
use support::gemini::{Reply as Seen, path, request};
use support::gleaner::{Gleaner, Made, Start, assert_sampled};
use support::policy::{Fault, Gate, Reply, ScriptedPolicy};

/// The three forms of a reply.
const METHODS: [&str; 3] = ["streamGenerateContent?alt=sse", "streamGenerateContent", "generateContent"];

async fn start(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    (policy, gleaner, rollout)
}

/// One call of a fresh rollout that must be recorded exactly.
async fn exact(seed: u64, method: &str, reply: Reply, body: &Value) -> (Seen, Value) {
    let (policy, gleaner, rollout) = start(seed, [reply]).await;
    let mut answer = gleaner.call(&path(method), &rollout.key, body).await;
    assert_eq!(answer.status(), 200);
    let kind = answer.head.header("content-type").unwrap().to_owned();
    assert_eq!(kind, if method.ends_with("sse") { "text/event-stream" } else { "application/json" });
    let id = answer.call_id();
    let client = Seen::read(&mut answer).await;
    assert!(client.complete(), "{client:?}");
    let (record, seen) = (gleaner.record(&id).await, policy.last());
    assert_eq!((record.status(), record.level()), ("done", "full"), "{record:?}");
    assert_eq!(
        (record.prompt_ids(), record.completion_ids(), record.logprobs()),
        (seen.prompt_ids.clone(), seen.ids(), seen.logprobs())
    );
    assert_eq!((&record.0["wire"], &record.0["model"]), (&json!("gemini"), &json!("any-model")));
    let usage = json!({"promptTokenCount": seen.prompt_ids.len(), "candidatesTokenCount": seen.tokens.len(),
                       "totalTokenCount": seen.prompt_ids.len() + seen.tokens.len()});
    assert_eq!(client.usage, usage);
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], std::slice::from_ref(&seen));
    (client, seen.body)
}

fn offered(names: &[&str]) -> Value {
    let functions = names.iter().map(|name| json!({"name": name, "parameters": {"type": "OBJECT"}}));
    json!([{"functionDeclarations": functions.collect::<Vec<_>>()}])
}

#[tokio::test]
async fn text_is_the_same_at_client_and_store() {
    for method in METHODS {
        let (client, upstream) = exact(71, method, Reply::text("Hello, wörld 👩‍🚀 \"q\""), &request("hi")).await;
        assert_eq!((client.text.as_str(), client.finish.as_deref()), ("Hello, wörld 👩‍🚀 \"q\"", Some("STOP")));
        assert_eq!(upstream["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(upstream["stream"] == true, method != "generateContent");
    }
}

#[tokio::test]
async fn characters_cut_at_any_byte_are_whole_for_the_client() {
    let reply = Reply { text: Some("中文 é👩‍🚀".into()), ..Reply::tools(&[("ls", r#"{"p": "/中"}"#)]) };
    let mut body = request("look");
    body["tools"] = offered(&["ls"]);
    let (client, _) = exact(70, METHODS[0], reply.thinking("先想").with(Fault::ByteByByte), &body).await;
    assert_eq!((client.text.as_str(), &client.calls[0].2), ("中文 é👩‍🚀", &json!({"p": "/中"})));
}

#[tokio::test]
async fn a_sign_of_life_is_nothing_to_any_client() {
    for (method, sign) in [(METHODS[0], &b"2\r\n\n\n\r\n"[..]), (METHODS[1], b"1\r\n\n\r\n")] {
        // A piece of the body of its own, as it is framed on the connection.
        let gate = Gate::closed();
        let policy = ScriptedPolicy::start(69, [Reply::text("early late").behind(&gate)]).await;
        let gleaner = Start::new(policy.url()).config("[server]\nping_s = 1").run().await;
        let rollout = gleaner.plain_rollout().await;
        gate.pass(2);
        let mut answer = gleaner.call(&path(method), &rollout.key, &request("hi")).await;
        answer.comes(sign).await;
        gate.open();
        let client = Seen::read(&mut answer).await;
        assert_eq!((client.text.as_str(), client.complete()), ("early late", true));
    }
}

/// Seen by holding the database's write lock from outside.
#[tokio::test]
async fn the_end_and_its_calls_wait_for_the_record() {
    for method in &METHODS[..2] {
        let reply = Reply { text: Some("early words".into()), ..Reply::tools(&[("ls", "{}")]) };
        let (policy, gleaner, rollout) = start(68, [reply.thinking("hm")]).await;
        let lock = rusqlite::Connection::open(&gleaner.database).unwrap();
        lock.busy_timeout(support::PATIENCE).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut answer = gleaner.call(&path(method), &rollout.key, &request("hi")).await;
        answer.comes(b"words").await;
        support::until("the policy's end", async || policy.last().finished.then_some(())).await;
        let early = tokio::time::timeout(std::time::Duration::from_millis(400), answer.comes(b"functionCall"));
        assert!(early.await.is_err(), "{method}: a call came before its record");
        lock.execute_batch("COMMIT").unwrap();
        let client = Seen::read(&mut answer).await;
        assert_eq!((client.text.as_str(), client.calls.len(), client.complete()), ("early words", 1, true));
    }
}

#[tokio::test]
async fn parallel_calls_come_whole_with_the_end() {
    for (method, interleave) in [(METHODS[0], false), (METHODS[0], true), (METHODS[1], true), (METHODS[2], false)] {
        let reply = Reply::tools(&[("ls", r#"{"path": "/tmp"}"#), ("cat", "")]);
        let mut body = request("look");
        body["tools"] = offered(&["ls", "cat"]);
        let (client, upstream) = exact(72, method, Reply { interleave, ..reply }, &body).await;
        let call = |at: usize, name: &str, args| (format!("chatcmpl-tool-0-{at}"), name.to_owned(), args);
        assert_eq!(client.calls, [call(0, "ls", json!({"path": "/tmp"})), call(1, "cat", json!({}))]);
        assert_eq!(client.finish.as_deref(), Some("STOP"));
        assert_eq!(upstream["tools"][0]["function"]["parameters"], json!({"type": "object"}));
    }
}

#[tokio::test]
async fn thoughts_are_shown_to_who_asks_and_recorded_anyway() {
    for method in METHODS {
        for asked in [true, false] {
            let mut body = request("think");
            body["generationConfig"] = json!({"thinkingConfig": {"includeThoughts": asked}});
            let (policy, gleaner, rollout) = start(73, [Reply::text("the answer").thinking("first this, then that")]).await;
            let mut answer = gleaner.call(&path(method), &rollout.key, &body).await;
            let id = answer.call_id();
            let client = Seen::read(&mut answer).await;
            assert_eq!((client.text.as_str(), client.complete()), ("the answer", true));
            assert_eq!(client.thoughts, if asked { "first this, then that" } else { "" });
            let record = gleaner.record(&id).await;
            assert!(record.message().to_string().contains("first this, then that"), "{record:?}");
            assert_eq!(record.completion_ids(), policy.last().ids());
        }
    }
}

/// A conversation as the command line has it: two turns of tools, by id, thoughts dropped and arguments written anew.
#[tokio::test]
async fn a_conversation_of_the_command_line_is_one_sample() {
    let first = Reply { text: Some("Let me look.".into()), ..Reply::tools(&[("run", r#"{"z": "ls",  "a": 1}"#)]) };
    let second = Reply::tools(&[("run", r#"{"z": "a"}"#), ("run", r#"{"z": "b"}"#)]).thinking("two at once");
    let script = [first.thinking("I should look"), second, Reply::text("Done.").thinking("that is all")];
    let (policy, gleaner, _) = start(74, script).await;
    let rollout = gleaner.rollout(json!({"harness": "gemini-cli", "group_id": "g1", "group_size": 1})).await;
    let at = format!("/rollouts/{}/v1beta/models/any-model:streamGenerateContent?alt=sse", rollout.key);
    let mut body = request("run it");
    body["systemInstruction"] = json!({"role": "user", "parts": [{"text": "be brief"}]});
    body["tools"] = offered(&["run"]);
    body["generationConfig"] = json!({"temperature": 1, "topP": 0.95, "topK": 64, "thinkingConfig": {"includeThoughts": true}});
    let headers = [("x-goog-api-key", rollout.key.as_str())];
    let mut turns = 0;
    let last = loop {
        let mut answer = support::client::post(gleaner.addr, &at, &headers, &body).await;
        let client = Seen::read(&mut answer).await;
        assert!(client.complete(), "{client:?}");
        let contents = body["contents"].as_array_mut().unwrap();
        contents.push(client.given_back());
        if client.calls.is_empty() {
            break client;
        }
        turns += 1;
        // The answers come in another order than the calls.
        let parts = client.calls.iter().rev().map(|(id, name, args)| {
            json!({"functionResponse": {"id": id, "name": name, "response": {"output": format!("ran {}", args["z"])}}})
        });
        contents.push(json!({"role": "user", "parts": parts.collect::<Vec<_>>()}));
    };
    assert_eq!((last.text.as_str(), turns), ("Done.", 2));
    let messages = policy.last().body["messages"].clone();
    let said: Vec<(&str, &str)> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or_default()))
        .collect();
    let ran = [("tool", "ran \"a\""), ("tool", "ran \"b\"")];
    let expected =
        [("system", "be brief"), ("user", "run it"), ("assistant", "Let me look."), ("tool", "ran \"ls\""), ("assistant", "")];
    assert_eq!(said, [&expected[..], &ran[..]].concat());
    assert_eq!((&messages[2]["reasoning"], &messages[4]["reasoning"]), (&json!("I should look"), &json!("two at once")));
    let arguments = &messages[2]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, r#"{"z": "ls",  "a": 1}"#, "arguments come back to the letter");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
    assert_eq!((&samples[0]["harness"], &samples[0]["purpose"]), (&json!("gemini-cli"), &json!("train")));
    let kept: Vec<&Value> = samples[0]["messages"].as_array().unwrap().iter().map(|m| &m["reasoning_content"]).collect();
    assert_eq!([kept[2], kept[4], kept[7]], [&json!("I should look"), &json!("two at once"), &json!("that is all")]);
}

/// A conversation as a chat of the SDKs has it: every chunk a content of its own, no ids, answers by name and order.
#[tokio::test]
async fn a_chat_of_the_sdks_is_one_sample() {
    let first = Reply::tools(&[("get", r#"{"n": 1}"#), ("put", "{}"), ("get", r#"{"n": 2}"#)]).thinking("three");
    let (policy, gleaner, rollout) = start(75, [first, Reply::text("So be it.")]).await;
    let mut body = request("go");
    body["tools"] = offered(&["get", "put"]);
    let first = Seen::read(&mut gleaner.call(&path(METHODS[0]), &rollout.key, &body).await).await;
    let contents = body["contents"].as_array_mut().unwrap();
    for mut content in first.contents {
        for part in content["parts"].as_array_mut().unwrap() {
            if let Some(call) = part.get_mut("functionCall") {
                call.as_object_mut().unwrap().remove("id");
            }
        }
        contents.push(content);
    }
    let gave = |name: &str, output: &str| json!({"functionResponse": {"name": name, "response": {"result": output}}});
    contents.push(json!({"role": "user", "parts": [gave("get", "one"), gave("get", "two"), gave("put", "ok")]}));
    let second = Seen::read(&mut gleaner.call(&path(METHODS[0]), &rollout.key, &body).await).await;
    assert_eq!((second.text.as_str(), second.finish.as_deref()), ("So be it.", Some("STOP")));
    let messages = policy.last().body["messages"].clone();
    let tools: Vec<(&Value, &Value)> =
        messages.as_array().unwrap()[2..].iter().map(|message| (&message["tool_call_id"], &message["content"])).collect();
    let text = |output: &str| json!({"result": output}).to_string();
    assert_eq!(
        tools,
        [
            (&json!("call_0"), &json!(text("one"))),
            (&json!("call_1"), &json!(text("ok"))),
            (&json!("call_2"), &json!(text("two")))
        ]
    );
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
}

#[tokio::test]
async fn every_base_and_every_place_of_the_key_is_served() {
    let (policy, gleaner, rollout) = start(76, []).await;
    let key = rollout.key.as_str();
    let method = "models/a%2Fb:generateContent";
    let places = [
        (format!("/v1beta/{method}"), Some("x-goog-api-key")),
        (format!("/v1/{method}"), Some("x-goog-api-key")),
        (format!("/v1alpha/{method}"), Some("authorization")),
        (format!("/{method}"), Some("x-goog-api-key")),
        (format!("/v1beta/{method}?key={key}"), None),
        (format!("/rollouts/{key}/v1beta/{method}"), None),
        (format!("/rollouts/{key}/{method}?key={key}"), Some("x-goog-api-key")),
        ("/v1beta/models/some/org/m:7b:generateContent".to_owned(), Some("x-goog-api-key")),
        ("/v1beta/tunedModels/t:generateContent".to_owned(), Some("x-goog-api-key")),
    ];
    for (path, header) in &places {
        policy.then(Reply::text("yes"));
        let value = if *header == Some("authorization") { format!("Bearer {key}") } else { key.to_owned() };
        let headers: Vec<(&str, &str)> = header.iter().map(|name| (*name, value.as_str())).collect();
        let mut answer = support::client::post(gleaner.addr, path, &headers, &request("hi")).await;
        assert_eq!((answer.status(), Seen::read(&mut answer).await.text.as_str()), (200, "yes"), "{path}");
    }
    let calls = gleaner.calls(&rollout.id).await;
    let models: Vec<&str> = calls.iter().map(|call| call.0["model"].as_str().unwrap()).collect();
    let slashed = ["a/b"; 7];
    assert_eq!(models, [&slashed[..], &["some/org/m:7b", "tunedModels/t"]].concat());
    assert!(!calls.iter().any(|call| call.0.to_string().contains(key)), "no record holds a key");
}

#[tokio::test]
async fn a_prompt_is_counted_and_leaves_no_record() {
    let (policy, gleaner, rollout) = start(77, []).await;
    let plain = request("one two three");
    let inner = json!({"generateContentRequest": {"model": "models/any-model", "contents": plain["contents"],
                       "systemInstruction": {"parts": [{"text": "be brief"}]}}});
    let mut counts = Vec::new();
    for body in [plain, inner] {
        let mut answer = gleaner.call(&path("countTokens"), &rollout.key, &body).await;
        assert_eq!(answer.status(), 200);
        let counted = answer.json().await;
        counts.push(counted["totalTokens"].as_u64().unwrap());
        assert_eq!(counted, json!({"totalTokens": counts.last()}));
    }
    assert!(0 < counts[0] && counts[0] < counts[1], "a system instruction counts too: {counts:?}");
    assert_eq!((gleaner.calls(&rollout.id).await.len(), policy.count()), (0, 0));
}

#[tokio::test]
async fn a_reply_cut_by_its_length_gives_no_broken_call() {
    for method in METHODS {
        let reply = Reply { text: Some("I look. ".into()), ..Reply::tools(&[("ls", r#"{"path": "/a b"}"#)]) };
        let mut body = request("look");
        body["tools"] = offered(&["ls"]);
        body["generationConfig"] = json!({"maxOutputTokens": 5});
        let (client, _) = exact(78, method, reply, &body).await;
        assert_eq!((client.text.as_str(), client.calls.len(), client.finish.as_deref()), ("I look. ", 0, Some("MAX_TOKENS")));
    }
}

#[tokio::test]
async fn a_malformed_call_is_told_and_never_mended() {
    for method in METHODS {
        let mut body = request("look");
        body["tools"] = offered(&["ls"]);
        let (client, _) = exact(79, method, Reply::tools(&[("ls", r#"{"path": "/tmp""#)]), &body).await;
        assert_eq!((client.calls.len(), client.finish.as_deref()), (0, Some("MALFORMED_FUNCTION_CALL")));
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_as_an_error() {
    for method in &METHODS[..2] {
        for fault in [Fault::CutAfter { events: 4 }, Fault::ErrorEvent { events: 4 }] {
            let (_policy, gleaner, rollout) = start(80, [Reply::text("one two three four five").with(fault)]).await;
            let mut answer = gleaner.call(&path(method), &rollout.key, &request("count")).await;
            assert_eq!(answer.status(), 200);
            let id = answer.call_id();
            let client = Seen::read(&mut answer).await;
            assert!(client.text.starts_with("one ") && client.finish.is_none() && client.whole, "{client:?}");
            let error = client.error.unwrap();
            assert_eq!((&error["code"], &error["status"]), (&json!(503), &json!("UNAVAILABLE")));
            assert_eq!(gleaner.record(&id).await.status(), "failed");
        }
    }
}

#[tokio::test]
async fn a_policy_s_refusal_keeps_its_status_and_words() {
    let body = json!({"error": {"message": "This model's maximum context length is 8 tokens. However, your request has 9 input tokens.",
                                "code": 400}});
    let overflow = Fault::Status { status: 400, headers: <_>::default(), body: body.to_string() };
    let (_policy, gleaner, rollout) = start(81, [Reply::text("x").with(overflow)]).await;
    let mut answer = gleaner.call(&path(METHODS[0]), &rollout.key, &request("hi")).await;
    assert_eq!(answer.status(), 400);
    let error = answer.json().await["error"].clone();
    assert_eq!((&error["code"], &error["status"]), (&json!(400), &json!("INVALID_ARGUMENT")));
    assert!(
        error["message"].as_str().unwrap().starts_with("The input token count exceeds the maximum number of tokens"),
        "{error}"
    );
}

#[tokio::test]
async fn what_is_not_served_is_refused_in_the_api_s_form() {
    let (policy, gleaner, rollout) = start(82, []).await;
    let refused = async |path: &str, key: &str, body: &Value| {
        let mut answer = gleaner.call(path, key, body).await;
        let error = answer.json().await["error"].clone();
        assert_eq!(error["code"], answer.status());
        (
            answer.status(),
            error["status"].as_str().unwrap().to_owned(),
            error["details"][0]["fieldViolations"][0]["field"].clone(),
        )
    };
    let with = |field: &str, value: Value| {
        let mut body = request("hi");
        body[field] = value;
        body
    };
    let named = |status, name: &str, field: Value| (status, name.to_owned(), field);
    let key = rollout.key.as_str();
    let cached = refused(&path(METHODS[0]), key, &with("cachedContent", json!("cachedContents/1"))).await;
    assert_eq!(cached, named(400, "INVALID_ARGUMENT", json!("cachedContent")));
    let image = refused(&path("generateContent"), key, &with("generationConfig", json!({"responseModalities": ["IMAGE"]}))).await;
    assert_eq!(image, named(400, "INVALID_ARGUMENT", json!("generationConfig.responseModalities")));
    let count = refused(&path("countTokens"), key, &json!({})).await;
    assert_eq!(count, named(400, "INVALID_ARGUMENT", json!("contents")));
    assert_eq!(refused(&path("embedContent"), key, &json!({})).await, named(404, "NOT_FOUND", Value::Null));
    assert_eq!(refused(&path(METHODS[0]), "glr_wrong", &request("hi")).await, named(401, "UNAUTHENTICATED", Value::Null));
    let authorization = format!("Bearer {key}");
    let get = gleaner.send("PUT", &path("generateContent"), &[("authorization", &authorization)], b"").await.status();
    assert_eq!((get, policy.count()), (405, 0));
}
