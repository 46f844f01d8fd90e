//! The end of a reply leaves only after its record is committed: seen by holding the database's write lock from outside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;
use support::client::Answer;
use support::gleaner::{Gleaner, Made};
use support::policy::{Reply, ScriptedPolicy};
use support::{chat, messages, responses};

/// Long against a commit, short against any busy timeout.
const WHILE_LOCKED: Duration = Duration::from_millis(400);
/// Longer than any busy timeout.
const AFTER_TIMEOUT: Duration = Duration::from_secs(90);

struct Setting {
    policy: ScriptedPolicy,
    gleaner: Gleaner,
    made: Made,
    lock: Connection,
}

/// A server whose database is locked by someone else.
async fn locked(seed: u64, reply: Reply) -> Setting {
    let policy = ScriptedPolicy::start(seed, [reply]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let lock = Connection::open(&gleaner.database).unwrap();
    lock.busy_timeout(Duration::from_secs(5)).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    Setting { policy, gleaner, made, lock }
}

/// The events that come until none has come for a while, or until one says that the stream has ended.
async fn events_for_now(answer: &mut Answer, patience: Duration) -> Vec<Value> {
    let mut events = Vec::new();
    while let Ok(Ok(Some(event))) = tokio::time::timeout(patience, answer.event()).await {
        events.push(serde_json::from_str(&event.data).unwrap_or(Value::String(event.data)));
    }
    events
}

fn ends_chat(event: &Value) -> bool {
    event == "[DONE]" || !event["choices"][0]["finish_reason"].is_null()
}

fn ends_responses(event: &Value) -> bool {
    match event["type"].as_str() {
        Some("response.completed") => true,
        Some("response.output_item.done") => event["item"]["type"] != "reasoning",
        _ => false,
    }
}

/// Of a reply of reasoning, text and a call, in this order.
fn ends_messages(event: &Value) -> bool {
    let last = event["type"] == "content_block_stop" && event["index"] == 2;
    last || event["type"] == "message_delta" || event["type"] == "message_stop"
}

fn is_error(event: &Value) -> bool {
    event.get("error").is_some() || event["type"] == "response.failed"
}

#[tokio::test]
async fn a_streams_end_waits_for_its_record() {
    for (path, body, ends) in [
        ("/v1/chat/completions", chat::request("hi", true), ends_chat as fn(&Value) -> bool),
        ("/v1/responses", responses::request("hi", true), ends_responses),
        ("/v1/messages", messages::request("hi", true), ends_messages),
    ] {
        let reply = Reply { tool_calls: Reply::tools(&[("ls", "{}")]).tool_calls, ..Reply::text("early words") };
        let Setting { gleaner, made, lock, policy } = locked(61, reply.thinking("hm")).await;
        let mut answer = gleaner.call(path, &made.key, &body).await;
        let id = answer.call_id();
        let early = events_for_now(&mut answer, WHILE_LOCKED).await;
        assert!(early.iter().any(|event| event.to_string().contains("words")), "{path}: text comes at once: {early:?}");
        assert!(!early.iter().any(|event| ends(event) || is_error(event)), "{path}: an end before its record: {early:?}");
        assert!(policy.last().finished, "the policy had said all");
        lock.execute_batch("COMMIT").unwrap();
        let late = events_for_now(&mut answer, support::PATIENCE).await;
        assert!(late.iter().any(ends) && !late.iter().any(is_error), "{path}: {late:?}");
        assert_eq!(gleaner.record(&id).await.status(), "done");
    }
}

#[tokio::test]
async fn a_stream_that_could_not_be_recorded_ends_as_an_error() {
    for (path, body, ends) in [
        ("/v1/chat/completions", chat::request("hi", true), ends_chat as fn(&Value) -> bool),
        ("/v1/responses", responses::request("hi", true), ends_responses),
        ("/v1/messages", messages::request("hi", true), ends_messages),
    ] {
        let Setting { gleaner, made, lock, policy } = locked(62, Reply::text("never answered")).await;
        let mut answer = gleaner.call(path, &made.key, &body).await;
        let id = answer.call_id();
        let events = events_for_now(&mut answer, AFTER_TIMEOUT).await;
        assert!(!events.iter().any(ends), "{path}: an end without a record: {events:?}");
        assert!(events.last().is_some_and(is_error), "{path}: {events:?}");
        lock.execute_batch("COMMIT").unwrap();
        // A store that took nothing may know nothing of the call; that it was answered it must not say.
        let mut record = gleaner.send("GET", &format!("/api/v1/calls/{id}"), &[], b"").await;
        let known = record.json().await;
        assert!(record.status() == 404 || known["status"] != "done", "{known}");
        policy.then(Reply::text("and on it goes"));
        let mut answer = gleaner.call("/v1/chat/completions", &made.key, &chat::request("hi", true)).await;
        assert!(chat::Reply::read(&mut answer).await.complete, "calls go on without a restart");
    }
}

#[tokio::test]
async fn a_whole_body_waits_for_its_record() {
    for (path, body) in [
        ("/v1/chat/completions", chat::request("hi", false)),
        ("/v1/responses", responses::request("hi", false)),
        ("/v1/messages", messages::request("hi", false)),
    ] {
        let Setting { gleaner, made, lock, policy } = locked(63, Reply::text("held back")).await;
        let bearer = format!("Bearer {}", made.key);
        let headers = [("authorization", bearer.as_str())];
        let body = body.to_string();
        let mut call = Box::pin(support::client::send(gleaner.addr, "POST", path, &headers, body.as_bytes()));
        let early = tokio::time::timeout(WHILE_LOCKED, async {
            let mut answer = call.as_mut().await.unwrap();
            answer.bytes().await.unwrap()
        });
        assert!(early.await.is_err(), "{path}: a body came before its record");
        assert_eq!(policy.count(), 1);
        drop(call);
        lock.execute_batch("COMMIT").unwrap();
        policy.then(Reply::text("given"));
        assert_eq!(gleaner.call(path, &made.key, &serde_json::from_str(&body).unwrap()).await.status(), 200);
    }
}

#[tokio::test]
async fn a_whole_body_that_could_not_be_recorded_is_a_503() {
    let Setting { gleaner, made, lock, policy } = locked(64, Reply::text("never answered")).await;
    let bearer = format!("Bearer {}", made.key);
    let body = chat::request("hi", false).to_string();
    let headers = [("authorization", bearer.as_str())];
    let call = support::client::send(gleaner.addr, "POST", "/v1/chat/completions", &headers, body.as_bytes());
    let mut answer = tokio::time::timeout(AFTER_TIMEOUT, call).await.expect("no answer at all").unwrap();
    assert_eq!((answer.status(), policy.count()), (503, 1));
    assert!(answer.head.header("retry-after").is_some());
    let said = answer.json().await;
    assert!(said["error"]["message"].as_str().unwrap().contains("could not be recorded"), "{said}");
    lock.execute_batch("COMMIT").unwrap();
}
