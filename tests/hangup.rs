//! Who hangs up: the client, and the server when it is told to end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use support::chat::{Reply as Seen, request};
use support::client;
use support::gleaner::{Gleaner, Start};
use support::policy::{Fault, Gate, Reply, ScriptedPolicy};
use support::until;

const PATH: &str = "/v1/chat/completions";
const PROMPTLY: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_the_request_upstream() {
    for (path, body) in [(PATH, request("hi", true)), ("/v1/responses", support::responses::request("hi", true))] {
        let gate = Gate::closed();
        let policy = ScriptedPolicy::start(51, [Reply::text("one two three four").behind(&gate)]).await;
        let gleaner = Gleaner::start(policy.url()).await;
        let made = gleaner.plain_rollout().await;
        let mut answer = gleaner.call(path, &made.key, &body).await;
        gate.pass(3);
        until("a piece of text", async || answer.event().await.unwrap().filter(|event| event.data.contains("one ")).map(|_| ()))
            .await;
        let left = Instant::now();
        drop(answer);
        let noticed = policy.hung_up(0).await - left;
        assert!(noticed < PROMPTLY, "the policy saw it after {noticed:?}");
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.failure_kind()), ("cancelled", Some("cancelled")));
        assert!(record.text().is_some_and(|text| text.starts_with("one ")), "what came is kept: {record:?}");
        let (_, left_out) = gleaner.samples(&made.id).await;
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        assert_eq!(left_out[0]["reason"], "undelivered");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_anything_came_ends_the_request_too() {
    for (stream, fault) in [(true, Some(Fault::StallBefore)), (false, Some(Fault::StallBefore)), (false, None)] {
        let gate = Gate::closed();
        let policy = ScriptedPolicy::start(52, [Reply { fault, ..Reply::text("late").behind(&gate) }]).await;
        let gleaner = Gleaner::start(policy.url()).await;
        let made = gleaner.plain_rollout().await;
        let bearer = format!("Bearer {}", made.key);
        let body = request("hi", stream).to_string();
        let headers = [("authorization", bearer.as_str())];
        let call = client::send(gleaner.addr, "POST", PATH, &headers, body.as_bytes());
        let asked = tokio::select! {
            _ = call => panic!("an answer came"),
            () = policy.asked(1) => Instant::now(),
        };
        let noticed = policy.hung_up(0).await - asked;
        assert!(noticed < PROMPTLY, "stream {stream}: the policy saw it after {noticed:?}");
        assert_eq!(gleaner.only_call(&made.id).await.status(), "cancelled");
    }
}

#[tokio::test]
async fn a_client_that_leaves_at_once_leaves_nothing_running() {
    let policy = ScriptedPolicy::start(53, []).await;
    policy.otherwise(Reply { pace_ms: 5, ..Reply::text("some words that take their time to come out one by one") });
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let bearer = format!("Bearer {}", made.key);
    let body = request("hi", true).to_string();
    for millis in 0..20 {
        let headers = [("authorization", bearer.as_str())];
        let call = client::send(gleaner.addr, "POST", PATH, &headers, body.as_bytes());
        // Each leaves at another point of the way; where, is not what is asked here.
        let _ = tokio::time::timeout(Duration::from_millis(millis), call).await;
    }
    until("the end of all calls", async || {
        gleaner.calls(&made.id).await.iter().all(|call| call.status() == "cancelled").then_some(())
    })
    .await;
    let left = policy.seen().iter().filter(|seen| !seen.finished && seen.hung_up.is_none()).count();
    assert_eq!(left, 0, "requests that go on upstream");
}

/// More than a connection takes that nobody reads from.
fn flood() -> Reply {
    Reply::text("a flood ").with(Fault::LongLine { bytes: 5 << 20 })
}

#[tokio::test]
async fn a_rollout_ends_although_a_client_reads_nothing_of_its_stream() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(57, [flood().behind(&gate)]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    gate.pass(2);
    let mut answer = gleaner.call(PATH, &made.key, &request("hi", true)).await;
    answer.comes(b"xxxx").await;
    let (status, ended) = gleaner.api_post(&format!("/rollouts/{}/finish", made.id), serde_json::json!({})).await;
    assert_eq!((status, &ended["status"]), (200, &serde_json::json!("finished")), "{ended}");
    let record = gleaner.only_call(&made.id).await;
    assert_eq!((record.status(), record.failure_kind()), ("cancelled", Some("ended")));
    let (events, whole) = answer.events().await;
    let last = &events.last().expect("the error").1.data;
    assert!(whole && last.contains("was finished while this call ran"), "{last}");
}

#[tokio::test]
async fn two_requests_alike_are_two_calls() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(54, []).await;
    policy.otherwise(Reply::text("said twice").behind(&gate));
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let body = request("hi", true);
    let read = async || Seen::read(&mut gleaner.call(PATH, &made.key, &body).await).await;
    let open = async {
        policy.asked(2).await;
        gate.open();
    };
    let (one, two, ()) = tokio::join!(read(), read(), open);
    assert_eq!((one.complete, two.complete, gleaner.calls(&made.id).await.len()), (true, true, 2));
}

#[tokio::test]
async fn sigterm_lets_streams_finish_and_takes_no_more() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(55, [Reply::text("to be finished").behind(&gate)]).await;
    let mut gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let body = request("hi", true);
    let mut answer = gleaner.call(PATH, &made.key, &body).await;
    let id = answer.call_id();
    gate.pass(2);
    Seen::next_text(&mut answer).await.expect("no text came");
    gleaner.terminate().await;
    until("the refusal of new calls", async || {
        let headers = [("x-api-key", made.key.as_str())];
        match client::send(gleaner.addr, "POST", PATH, &headers, body.to_string().as_bytes()).await {
            Ok(answer) => (answer.status() == 503).then_some(()),
            Err(_) => Some(()),
        }
    })
    .await;
    gate.open();
    let (events, whole) = answer.events().await;
    assert!(whole);
    assert_eq!(events.last().map(|(_, event)| event.data.as_str()), Some("[DONE]"));
    assert_eq!(gleaner.ended().await.code(), Some(0), "{}", gleaner.log());
    let again = Start { dir: Some(gleaner.dir.clone()), ..Start::new(policy.url()) }.run().await;
    let record = again.record(&id).await;
    assert_eq!((record.status(), record.text()), ("done", Some("to be finished")));
    assert_eq!(record.delivered(), Some(true));
}

#[tokio::test]
async fn sigterm_with_nothing_to_do_ends_at_once() {
    let policy = ScriptedPolicy::start(56, []).await;
    let mut gleaner = Gleaner::start(policy.url()).await;
    let begun = Instant::now();
    gleaner.terminate().await;
    assert_eq!(gleaner.ended().await.code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

#[tokio::test]
async fn sigterm_does_not_wait_for_a_policy_that_says_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gleaner = Gleaner::start(format!("http://{}", silent.local_addr().unwrap())).await;
    // It has been asked what it is, and does not say.
    let _asked = support::within("the question", silent.accept()).await.unwrap();
    let begun = Instant::now();
    gleaner.terminate().await;
    assert_eq!(gleaner.ended().await.code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}
