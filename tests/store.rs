//! `gleaner store` through the binary: a conversation that was cut by a kill is whole, damage is named, deletion works beside a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};
use support::chat;
use support::gleaner::{Gleaner, Start, binary};
use support::policy::{Reply, ScriptedPolicy};
use tokio::process::Command;

const PATH: &str = "/v1/chat/completions";

async fn store(database: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GLEANER_")) {
        command.env_remove(name);
    }
    command.arg("store").args(words).arg("--database").arg(database).output().await.unwrap()
}

async fn store_json(database: &Path, words: &[&str]) -> (Option<i32>, Value) {
    let output = store(database, &[words, &["--json"]].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}; {output:?}"));
    (output.status.code(), value)
}

/// Says one more turn of a conversation, and gives the call's id once its answer is whole.
async fn say(gleaner: &Gleaner, key: &str, messages: &mut Vec<Value>) -> String {
    let turn = messages.len();
    messages.push(json!({"role": "user", "content": format!("turn {turn} {}", format!("word{turn} ").repeat(100))}));
    let body = json!({"model": "any", "stream": true, "messages": messages});
    let mut answer = gleaner.call(PATH, key, &body).await;
    let id = answer.call_id();
    let reply = chat::Reply::read(&mut answer).await;
    assert!(reply.complete, "{reply:?}");
    messages.push(json!({"role": "assistant", "content": reply.text}));
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_a_kill_cut_is_whole_and_is_deleted_whole() {
    let policy = ScriptedPolicy::start(7, []).await;
    policy.otherwise(Reply::text("reply {n} of some words"));
    let mut gleaner = Start::new(policy.url()).run().await;
    let dir = Arc::clone(&gleaner.dir);
    let made = gleaner.rollout(json!({"task_id": "t"})).await;
    let mut messages = vec![json!({"role": "system", "content": "You are one of many. ".repeat(2000)})];
    let mut calls = Vec::new();
    for _ in 0..12 {
        calls.push(say(&gleaner, &made.key, &mut messages).await);
    }
    // In the middle of the chain, with a call in flight.
    let body = json!({"model": "any", "stream": true, "messages": messages});
    let in_flight = gleaner.call(PATH, &made.key, &body).await;
    gleaner.kill().await;
    drop(in_flight);
    let gleaner = Start { dir: Some(Arc::clone(&dir)), ..Start::new(policy.url()) }.run().await;
    for _ in 0..12 {
        calls.push(say(&gleaner, &made.key, &mut messages).await);
    }
    for call in &calls {
        let request: Value = serde_json::from_slice(&gleaner.raw(call, "request").await).unwrap();
        let asked = request["messages"].as_array().unwrap();
        assert_eq!(asked[..], messages[..asked.len()], "the request of call {call}");
    }
    let (code, checked) = store_json(&gleaner.database, &["check"]).await;
    assert_eq!((code, &checked["faults"], &checked["rollouts"]), (Some(0), &json!([]), &json!(1)), "{checked}");
    assert!(checked["requests"].as_u64() >= Some(24) && checked["samples"].as_u64() >= Some(1), "{checked}");
    // Deletion beside the server: an open rollout stays, an ended one goes and its key is refused.
    let (_, kept) = store_json(&gleaner.database, &["prune", "--older-than", "0s"]).await;
    assert_eq!((&kept["rollouts"], gleaner.calls(&made.id).await.len() >= 24), (&json!(0), true), "{kept}");
    gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({})).await;
    let other = gleaner.rollout(json!({"task_id": "other"})).await;
    let mut others = vec![messages[0].clone()];
    let own = say(&gleaner, &other.key, &mut others).await;
    let (code, gone) = store_json(&gleaner.database, &["prune", "--outcome", "passed", "--status", "finished"]).await;
    assert_eq!((code, &gone["rollouts"], gone["bytes"].as_u64() > Some(1000)), (Some(0), &json!(1), true), "{gone}");
    let next = say(&gleaner, &other.key, &mut others).await;
    for call in [own, next] {
        assert!(!gleaner.raw(&call, "request").await.is_empty());
    }
    let (code, checked) = store_json(&gleaner.database, &["check"]).await;
    assert_eq!((code, &checked["faults"], &checked["rollouts"]), (Some(0), &json!([]), &json!(1)), "{checked}");
    let usage = store(&gleaner.database, &["prune"]).await;
    assert_eq!(usage.status.code(), Some(2), "what is to be deleted must be said: {usage:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_is_named_with_its_call() {
    let policy = ScriptedPolicy::start(7, []).await;
    policy.otherwise(Reply::text("reply {n}"));
    let mut gleaner = Start::new(policy.url()).run().await;
    let made = gleaner.rollout(json!({"task_id": "t"})).await;
    let mut messages = Vec::new();
    let calls = [say(&gleaner, &made.key, &mut messages).await, say(&gleaner, &made.key, &mut messages).await];
    gleaner.terminate().await;
    gleaner.ended().await;
    let mut bytes = std::fs::read(&gleaner.database).unwrap();
    // What is new in the second request stands nowhere else.
    let at = bytes.windows(9).position(|window| window == b"turn 2 wo").expect("the second turn's text is in the file");
    bytes[at] ^= 1;
    std::fs::write(&gleaner.database, bytes).unwrap();
    let (code, checked) = store_json(&gleaner.database, &["check"]).await;
    let faults = checked["faults"].as_array().unwrap();
    assert_eq!(code, Some(1), "{checked}");
    assert!(faults.iter().any(|fault| fault["call"] == calls[1].as_str() && fault["part"] == "request"), "{checked}");
    assert!(faults.iter().all(|fault| fault["call"] == calls[1].as_str()), "{checked}");
    let said = String::from_utf8(store(&gleaner.database, &["check"]).await.stdout).unwrap();
    assert!(said.contains(&format!("call {} of rollout {}: request: ", calls[1], made.id)), "{said}");
}
