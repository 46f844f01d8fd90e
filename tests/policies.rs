//! Policies while calls run, through the binary: paused and let go, moved, with new weights.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::chat::request;
use support::client::{get, send};
use support::gleaner::{Gleaner, Start};
use support::policy::{Reply, ScriptedPolicy};
use support::until;

const PATH: &str = "/v1/chat/completions";

async fn put(gleaner: &Gleaner, name: &str, body: Value) -> (u16, Value) {
    let mut answer =
        send(gleaner.addr, "PUT", &format!("/api/v1/policies/{name}"), &[], body.to_string().as_bytes()).await.unwrap();
    (answer.status(), answer.json().await)
}

#[tokio::test]
async fn a_pause_holds_calls_back_and_new_weights_count_on() {
    let policy = ScriptedPolicy::start(3, [Reply::text("one"), Reply::text("two"), Reply::text("three")]).await;
    let gleaner = Start::new(policy.url()).config("[server]\nping_s = 1\n").run().await;
    let made = gleaner.plain_rollout().await;
    let (status, state) = put(&gleaner, "default", json!({"paused": true})).await;
    assert_eq!(status, 200, "{state}");
    assert_eq!(
        (&state["paused"], &state["drained"], &state["mode"], &state["in_flight"]),
        (&json!(true), &json!(true), &json!("drain"), &json!(0))
    );
    let mut waiting = gleaner.call(PATH, &made.key, &request("go", true)).await;
    // The answer has begun with a ping, and nothing has gone upstream.
    assert_eq!((waiting.status(), policy.seen().len()), (200, 0));
    let (_, state) = put(&gleaner, "default", json!({"version": "step-1", "paused": false})).await;
    assert_eq!(
        (&state["version"], &state["version_source"], &state["paused"]),
        (&json!("step-1"), &json!("declared"), &json!(false))
    );
    let first = state["policy_seq"].as_i64().unwrap();
    let body = String::from_utf8(waiting.bytes().await.unwrap()).unwrap();
    assert!(body.starts_with(':') && body.contains("one"), "{body}");
    let record = gleaner.only_call(&made.id).await;
    assert_eq!((&record.0["policy_version"], record.0["policy_seq"].as_i64()), (&json!("step-1"), Some(first)));

    let (_, state) = put(&gleaner, "default", json!({"version": "step-2"})).await;
    assert_eq!(state["policy_seq"].as_i64(), Some(first + 1));
    // It counts on in the next process.
    let dir = gleaner.dir.clone();
    gleaner.terminate().await;
    drop(gleaner);
    let gleaner = Start { dir: Some(dir), ..Start::new(policy.url()) }.run().await;
    let (_, state) = put(&gleaner, "default", json!({})).await;
    assert_eq!((&state["version"], state["policy_seq"].as_i64()), (&json!("step-2"), Some(first + 1)));
    let (_, state) = put(&gleaner, "default", json!({"version": "step-3"})).await;
    assert_eq!(state["policy_seq"].as_i64(), Some(first + 2));
}

#[tokio::test]
async fn a_policy_moves_to_another_server() {
    let (old, new) = (ScriptedPolicy::start(3, [Reply::text("old")]).await, ScriptedPolicy::start(4, [Reply::text("new")]).await);
    let gleaner = Gleaner::start(old.url()).await;
    let made = gleaner.plain_rollout().await;
    let said = async || {
        let mut answer = gleaner.call(PATH, &made.key, &request("go", false)).await;
        answer.json().await["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(said().await, "old");
    let (status, state) = put(&gleaner, "default", json!({"url": format!("{}/v1", new.url())})).await;
    assert_eq!((status, &state["url"]), (200, &json!(new.url())));
    assert_eq!(said().await, "new");
}

#[tokio::test]
async fn what_can_not_be_is_refused_and_changes_nothing() {
    let policy = ScriptedPolicy::start(3, [Reply::text("one")]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let refused = async |name: &str, body: Value| {
        let (status, problem) = put(&gleaner, name, body).await;
        (status, problem["detail"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refused("gone", json!({})).await, (404, "there is no policy gone".to_owned()));
    let (status, detail) = refused("default", json!({"versoin": "a"})).await;
    assert!(status == 400 && detail.contains("unknown field `versoin`"), "{detail}");
    let (status, detail) = refused("default", json!({"url": "file:///etc", "paused": true})).await;
    assert!(status == 400 && detail.contains("file:///etc"), "{detail}");
    let (status, detail) = refused("default", json!({"mode": "resume", "paused": true})).await;
    assert!(status == 400 && detail.contains("tokens = \"exact\""), "{detail}");
    let state = until("the policies", async || Some(gleaner.api("/policies").await["policies"][0].clone())).await;
    assert_eq!((&state["paused"], &state["url"], &state["ready"]), (&json!(false), &json!(policy.url()), &json!(true)));
}

#[tokio::test]
async fn what_is_measured_can_be_read() {
    let policy = ScriptedPolicy::start(4, [Reply::text("one"), Reply::text("two")]).await;
    let gleaner = Start::new(policy.url()).run().await;
    let made = gleaner.plain_rollout().await;
    let mut sampled = 0;
    for _ in 0..2 {
        let answer: Value = gleaner.call(PATH, &made.key, &request("go", false)).await.json().await;
        sampled += answer["usage"]["completion_tokens"].as_u64().unwrap();
    }
    let metrics = String::from_utf8(get(gleaner.addr, "/metrics", &[]).await.bytes().await.unwrap()).unwrap();
    for line in ["gleaner_calls_total{wire=\"chat\",status=\"done\"} 2", &format!("gleaner_sampled_tokens_total {sampled}")] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in {metrics}");
    }
    assert!(sampled > 0 && metrics.contains("gleaner_recorder_commit_seconds"), "{metrics}");
}
