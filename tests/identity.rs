//! Which rollout a call belongs to, and who is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::chat::request;
use support::gleaner::{Gleaner, Start};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::until;

const PATH: &str = "/v1/chat/completions";

async fn start() -> (ScriptedPolicy, Gleaner) {
    let policy = ScriptedPolicy::start(41, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    (policy, gleaner)
}

/// Posts a call with these headers; gives the status and the body.
async fn post(gleaner: &Gleaner, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let mut answer = gleaner.send("POST", path, headers, request("hi", false).to_string().as_bytes()).await;
    (answer.status(), answer.json().await)
}

async fn count(gleaner: &Gleaner, rollout: &str) -> usize {
    gleaner.calls(rollout).await.len()
}

#[tokio::test]
async fn a_key_is_known_in_all_its_places() {
    let (policy, gleaner) = start().await;
    let made = gleaner.plain_rollout().await;
    let bearer = format!("Bearer {}", made.key);
    let query = format!("{PATH}?key={}", made.key);
    let prefixed = format!("/rollouts/{}{PATH}", made.key);
    let bare = format!("/rollouts/{}/chat/completions", made.key);
    let ways: [(&str, Vec<(&str, &str)>); 6] = [
        (PATH, vec![("authorization", &bearer)]),
        (PATH, vec![("x-api-key", &made.key)]),
        (PATH, vec![("x-goog-api-key", &made.key)]),
        (&query, vec![]),
        (&prefixed, vec![]),
        (&bare, vec![("authorization", "Bearer sk-anything-at-all")]),
    ];
    for (at, (path, headers)) in ways.iter().enumerate() {
        let (status, body) = post(&gleaner, path, headers).await;
        assert_eq!(status, 200, "{path} {headers:?}: {body}");
        assert_eq!(count(&gleaner, &made.id).await, at + 1, "{path} {headers:?}");
    }
    assert_eq!(policy.count(), ways.len());
    let other = gleaner.plain_rollout().await;
    assert_eq!(count(&gleaner, &other.id).await, 0);
}

#[tokio::test]
async fn the_base_url_that_is_given_works_as_it_is() {
    let (_policy, gleaner) = start().await;
    let made = gleaner.plain_rollout().await;
    let path = made.base_url.strip_prefix(&format!("http://{}", gleaner.addr)).expect("a base URL of another host");
    let (status, _) = post(&gleaner, &format!("{path}{PATH}"), &[("x-api-key", &made.key)]).await;
    assert_eq!((status, count(&gleaner, &made.id).await), (200, 1));
}

#[tokio::test]
async fn two_identities_that_disagree_are_refused() {
    let (policy, gleaner) = start().await;
    let (one, two) = (gleaner.plain_rollout().await, gleaner.plain_rollout().await);
    let bearer = format!("Bearer {}", one.key);
    let path = format!("/rollouts/{}{PATH}", one.key);
    for (path, headers) in [
        (path.as_str(), vec![("x-api-key", two.key.as_str())]),
        (PATH, vec![("authorization", bearer.as_str()), ("x-api-key", two.key.as_str())]),
        (PATH, vec![("authorization", bearer.as_str()), ("x-gleaner-rollout", two.id.as_str())]),
    ] {
        let (status, body) = post(&gleaner, path, &headers).await;
        assert_eq!(status, 403, "{path} {headers:?}: {body}");
        assert!(body["error"]["message"].is_string(), "{body}");
    }
    assert_eq!((policy.count(), count(&gleaner, &one.id).await, count(&gleaner, &two.id).await), (0, 0, 0));
    let (status, _) = post(&gleaner, PATH, &[("authorization", &bearer), ("x-api-key", &one.key)]).await;
    assert_eq!(status, 200, "two that agree are one");
}

#[tokio::test]
async fn an_unknown_key_is_refused_even_where_the_server_is_open() {
    let (policy, gleaner) = start().await;
    let unknown = "glr_00000000000000000000000000000000";
    let bearer = format!("Bearer {unknown}");
    let path = format!("/rollouts/{unknown}{PATH}");
    for (path, headers) in
        [(PATH, vec![("authorization", bearer.as_str())]), (PATH, vec![("x-api-key", unknown)]), (&path, vec![])]
    {
        let (status, body) = post(&gleaner, path, &headers).await;
        assert_eq!(status, 401, "{path} {headers:?}: {body}");
    }
    assert_eq!(policy.count(), 0);
    let listed = gleaner.api("/rollouts").await;
    assert_eq!(listed["rollouts"], json!([]), "a refused call made a rollout");
}

#[tokio::test]
async fn a_finished_rollout_takes_no_calls() {
    let (policy, gleaner) = start().await;
    let made = gleaner.plain_rollout().await;
    let (status, body) = gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({"outcome": "failed"})).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = post(&gleaner, PATH, &[("x-api-key", &made.key)]).await;
    assert_eq!(status, 409, "{body}");
    assert!(body["error"]["message"].is_string(), "{body}");
    assert_eq!(policy.count(), 0);
    assert_eq!(gleaner.api(&format!("/rollouts/{}", made.id)).await["outcome"], "failed");
}

#[tokio::test]
async fn a_rollout_that_another_server_finished_takes_no_calls() {
    let (policy, one) = start().await;
    let other = Start { database: Some(one.database.clone()), ..Start::new(policy.url()) }.run().await;
    let made = one.plain_rollout().await;
    assert_eq!(post(&one, PATH, &[("x-api-key", &made.key)]).await.0, 200);
    let (status, body) = other.api_post(&format!("/rollouts/{}/finish", made.id), json!({})).await;
    assert_eq!(status, 200, "{body}");
    // A server trusts what it knows of a rollout for a second.
    until("a 409", async || (post(&one, PATH, &[("x-api-key", &made.key)]).await.0 == 409).then_some(())).await;
}

#[tokio::test]
async fn finishing_a_rollout_cancels_its_calls() {
    let gate = Gate::closed();
    let (policy, gleaner) = start().await;
    policy.then(Reply::text("never said").behind(&gate));
    let made = gleaner.plain_rollout().await;
    let bearer = format!("Bearer {}", made.key);
    let call = async {
        let body = request("hi", true).to_string();
        let mut answer = gleaner.send("POST", PATH, &[("authorization", &bearer)], body.as_bytes()).await;
        if answer.status() == 200 { support::chat::Reply::read(&mut answer).await.complete } else { false }
    };
    let finish = async {
        policy.asked(1).await;
        gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({})).await
    };
    let (complete, (status, _)) = tokio::join!(call, finish);
    assert_eq!((complete, status), (false, 200));
    policy.hung_up(0).await;
    assert_eq!(gleaner.only_call(&made.id).await.status(), "cancelled");
}

#[tokio::test]
async fn an_open_server_places_calls_without_a_key() {
    let (_policy, gleaner) = start().await;
    let (status, _) = post(&gleaner, PATH, &[]).await;
    assert_eq!(status, 200);
    let (status, _) = post(&gleaner, PATH, &[("authorization", "Bearer sk-none")]).await;
    assert_eq!(status, 200);
    let listed = gleaner.api("/rollouts").await;
    let rollouts = listed["rollouts"].as_array().unwrap();
    assert_eq!(rollouts.len(), 1, "both belong to the day's rollout: {listed}");
    assert_eq!((&rollouts[0]["status"], &rollouts[0]["calls"]), (&json!("open"), &json!(2)));
}

#[tokio::test]
async fn an_open_server_knows_a_harness_conversation() {
    let (_policy, gleaner) = start().await;
    for session in ["s-1", "s-2", "s-1"] {
        let (status, _) = post(&gleaner, PATH, &[("session-id", session)]).await;
        assert_eq!(status, 200);
    }
    let listed = gleaner.api("/rollouts").await;
    let mut calls: Vec<u64> = listed["rollouts"].as_array().unwrap().iter().map(|one| one["calls"].as_u64().unwrap()).collect();
    calls.sort_unstable();
    assert_eq!(calls, [1, 2], "{listed}");
}

#[tokio::test]
async fn a_closed_server_refuses_calls_without_a_key() {
    let policy = ScriptedPolicy::start(42, []).await;
    let gleaner = Start::new(policy.url()).config("[server]\nopen = false\n").run().await;
    for headers in [vec![], vec![("authorization", "Bearer sk-none")], vec![("x-gleaner-rollout", "no-client-key")]] {
        let (status, body) = post(&gleaner, PATH, &headers).await;
        assert_eq!(status, 401, "{headers:?}: {body}");
    }
    assert_eq!(policy.count(), 0);
    assert_eq!(gleaner.api("/rollouts").await["rollouts"], json!([]));
}

#[tokio::test]
async fn a_client_key_with_a_header_names_a_rollout() {
    let policy = ScriptedPolicy::start(43, []).await;
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let keys = dir.path().join("client_keys");
    std::fs::write(&keys, "client-key-one\nclient-key-two\n").unwrap();
    let config = format!("[server]\nopen = false\n[auth]\nclient_keys_file = {:?}\n", keys.display().to_string());
    let gleaner = Start { dir: Some(dir), ..Start::new(policy.url()).config(config) }.run().await;
    let made = gleaner.plain_rollout().await;
    let named = ("x-gleaner-rollout", made.id.as_str());
    let (status, body) = post(&gleaner, PATH, &[("authorization", "Bearer client-key-two"), named]).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(count(&gleaner, &made.id).await, 1);
    let (status, _) = post(&gleaner, PATH, &[("authorization", "Bearer wrong"), named]).await;
    assert_eq!(status, 401);
    let (status, _) = post(&gleaner, PATH, &[("x-api-key", &made.key)]).await;
    assert_eq!(status, 200, "a rollout's key needs no client key");
}

#[tokio::test]
async fn a_rollout_key_never_opens_the_api() {
    let policy = ScriptedPolicy::start(44, []).await;
    let env = vec![("GLEANER_ADMIN_KEY".to_owned(), "admin-secret".to_owned())];
    let gleaner = Start { env, ..Start::new(policy.url()) }.run().await;
    let get = async |key: &str| {
        let bearer = format!("Bearer {key}");
        gleaner.send("GET", "/api/v1/rollouts", &[("authorization", &bearer)], b"").await.status()
    };
    assert_eq!(gleaner.send("GET", "/api/v1/rollouts", &[], b"").await.status(), 401);
    let headers = [("authorization", "Bearer admin-secret")];
    let mut made = gleaner.send("POST", "/api/v1/rollouts", &headers, b"{}").await;
    let made = made.json().await;
    assert_eq!(get(made["key"].as_str().unwrap()).await, 401);
    assert_eq!(get("admin-secret").await, 200);
}

#[tokio::test]
async fn the_open_api_refuses_other_sites() {
    let (_policy, gleaner) = start().await;
    for header in [("host", "evil.example"), ("origin", "http://evil.example")] {
        let status = gleaner.send("GET", "/api/v1/rollouts", &[header], b"").await.status();
        assert!((400..500).contains(&status), "{header:?} got {status}");
    }
}

#[tokio::test]
async fn a_key_is_checked_before_the_body_is_read() {
    let (_policy, gleaner) = start().await;
    let headers =
        [("x-api-key", "glr_00000000000000000000000000000000"), ("expect", "100-continue"), ("content-length", "1000000")];
    let head_only = until("an answer to a head", async || {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(gleaner.addr).await.ok()?;
        let mut head = format!("POST {PATH} HTTP/1.1\r\nhost: {}\r\n", gleaner.addr);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
        let mut bytes = [0; 12];
        stream.read_exact(&mut bytes).await.ok()?;
        Some(bytes)
    })
    .await;
    assert_eq!(&head_only, b"HTTP/1.1 401");
}
