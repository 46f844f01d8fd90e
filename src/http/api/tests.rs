//! The API as a tower service, on a store of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::call::{
    Call, CallEnd, CallStart, CallStatus, Capture, CaptureLevel, Failure, FailureKind, FinishReason, LogprobKind, Raw, RawParts,
    Sampling, WeightVersion,
};
use crate::ids::{CallId, ProcessId, RolloutId};
use crate::policy::{Answer, NoAnswer, Policy, PolicyState, PolicyUpdate, Prepared, Transcript};
use crate::proxy::{App, Policies, ProxySettings, Rollouts};
use crate::record::Recorder;
use crate::store::StoreConfig;
use crate::trajectory::Drift;

/// A policy that is never called; one that is not ready says so.
struct Idle(&'static str, bool);

#[async_trait]
impl Policy for Idle {
    fn name(&self) -> &str {
        self.0
    }

    fn describe(&self) -> String {
        format!("idle server of {}", self.0)
    }

    fn state(&self) -> PolicyState {
        PolicyState::default()
    }

    async fn paused(&self, _now: bool) -> bool {
        std::future::pending().await
    }

    async fn window(&self) -> Option<u64> {
        None
    }

    fn update(&self, _update: PolicyUpdate) -> Result<(), Failure> {
        Ok(())
    }

    fn recall(&self, _last: &WeightVersion) {}

    async fn ready(&self) -> Result<(), Failure> {
        if self.1 { Ok(()) } else { Err(Failure::new(FailureKind::Unavailable, "nobody answers")) }
    }

    async fn models(&self) -> Result<Bytes, Failure> {
        Ok(Bytes::from_static(b"[]"))
    }

    async fn count(&self, _call: &Call) -> Result<u64, Failure> {
        Ok(0)
    }

    async fn prepare(
        &self,
        _call: &Arc<Call>,
        _pinned: &Sampling,
        _transcript: &Transcript,
        _patience: Duration,
    ) -> Result<Prepared, Failure> {
        Err(Failure::new(FailureKind::Unavailable, "idle"))
    }

    async fn send(&self, _prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer> {
        Err(NoAnswer { failure: Failure::new(FailureKind::Unavailable, "idle"), response: Bytes::new() })
    }
}

/// A chat client's request.
const REQUEST: &[u8] =
    br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"bash"}}]}"#;

/// The API and the recorder behind it.
struct Api {
    recorder: Recorder,
    router: Router,
    process_id: ProcessId,
    _folder: TempDir,
}

impl Api {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process_id = ProcessId::generate();
        let database = folder.path().join("gleaner.db");
        let store = crate::store::open(database.to_str().unwrap(), &StoreConfig::default(), process_id).await.unwrap();
        let recorder = Recorder::start(store.writer().unwrap(), 16);
        let policies: Vec<(Arc<dyn Policy>, bool)> =
            vec![(Arc::new(Idle("default", true)), true), (Arc::new(Idle("judge", false)), false)];
        let app = App {
            policies: Policies::new(policies, Vec::new()).unwrap(),
            rollouts: Rollouts::new(Arc::clone(&store), recorder.clone()),
            store,
            recorder: recorder.clone(),
            process_id,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            settings: ProxySettings { ping_s: 10 },
            drift: Drift::Fork,
        };
        Self { recorder, router: super::routes().with_state(Arc::new(app)), process_id, _folder: folder }
    }

    /// Records a call that ended well, at level `full`, with this request and response.
    async fn call(&self, rollout_id: RolloutId, request: &'static [u8], response: &'static [u8]) -> CallId {
        let start = Arc::new(CallStart {
            id: CallId::generate(),
            rollout_id,
            process_id: self.process_id,
            started_at: 1_000,
            wire: "chat",
            target: "/chat/completions".to_owned(),
            choice: 0,
            policy: "default".to_owned(),
            model: "m".to_owned(),
            stream: true,
            marks: Vec::new(),
            request: Bytes::from_static(request),
        });
        let id = start.id;
        self.recorder.call_started(Arc::clone(&start)).await;
        let end = CallEnd {
            start,
            ended_at: 1_020,
            first_event_at: Some(1_010),
            status: CallStatus::Done,
            failure: None,
            raw: RawParts { response: Bytes::from_static(response), ..RawParts::default() },
            message: Some(Raw::from_value(&json!({"role": "assistant", "content": "yes"}))),
            finish: Some(FinishReason::Stop),
            usage: None,
            capture: Capture {
                level: CaptureLevel::Full,
                reason: None,
                prompt_ids: vec![1, 2],
                completion_ids: vec![3],
                logprobs: vec![-0.5],
                logprob_kind: LogprobKind::Raw,
                constrained: false,
                runs: Vec::new(),
                rendered: None,
            },
            sampling_asked: Sampling::default(),
            sampling_used: Sampling { temperature: Some(1.0), ..Sampling::default() },
            max_tokens_asked: None,
            max_tokens_used: Some(7),
            version: WeightVersion::default(),
            notes: vec!["a note".to_owned()],
        };
        self.recorder.call_ended(Box::new(end)).await.unwrap();
        id
    }

    async fn send(&self, request: Request<Body>) -> (u16, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let media = response.headers()[http::header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let expected = if status.is_success() { "application/json" } else { "application/problem+json" };
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert_eq!(media, expected, "{status}: {}", String::from_utf8_lossy(&body));
        let body: Value = serde_json::from_slice(&body).unwrap();
        if !status.is_success() {
            assert_eq!(body["status"], status.as_u16());
        }
        (status.as_u16(), body)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Request::post(path).header("host", "127.0.0.1:8088").body(body.to_string().into()).unwrap()).await
    }

    async fn post_once(&self, key: &str, body: Value) -> (u16, Value) {
        let request = Request::post("/rollouts").header("host", "127.0.0.1:8088").header("idempotency-key", key);
        self.send(request.body(body.to_string().into()).unwrap()).await
    }

    async fn rollout(&self, body: Value) -> RolloutId {
        let (status, made) = self.post("/rollouts", body).await;
        assert_eq!(status, 201, "{made}");
        made["id"].as_str().unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn a_rollout_is_made_with_what_was_said_of_it() {
    let api = Api::new().await;
    let sampling = json!({"temperature": 0.7, "stop": ["\n"]});
    let body = json!({"task_id": "t", "group_id": "g", "group_size": 2, "harness": "codex", "policy": "judge",
        "sampling": sampling, "metadata": {"seed": 3}, "ttl_s": 60});
    let (status, made) = api.post("/rollouts", body).await;
    assert_eq!(status, 201);
    let key = made["key"].as_str().unwrap();
    assert!(key.starts_with("glr_"), "{key}");
    assert_eq!(made["base_url"], format!("http://127.0.0.1:8088/rollouts/{key}"));
    let (status, read) = api.get(&format!("/rollouts/{}", made["id"].as_str().unwrap())).await;
    assert_eq!(status, 200);
    let created_at = made["created_at"].clone();
    let expected = json!({"id": made["id"], "status": "open", "outcome": null, "reward": null, "rewards": {}, "no_reward": false,
        "calls": 0, "tokens": 0, "drift": 0, "policy_versions": [], "purpose": "train", "task_id": "t", "group_id": "g",
        "group_size": 2, "index": 0, "batch_id": null, "attempt": null, "harness": "codex", "policy": "judge", "sampling": sampling,
        "metadata": {"seed": 3},
        "ttl_s": 60, "created_at": created_at, "last_call_at": null, "ended_at": null, "evidence": null});
    assert_eq!(read, expected);
}

#[tokio::test]
async fn purposes_follow_the_group() {
    let api = Api::new().await;
    for (body, purpose) in [
        (json!({}), "record"),
        (json!({"group_id": "g"}), "train"),
        (json!({"group_id": "g", "purpose": "eval"}), "eval"),
        (json!({"group_id": null, "purpose": null}), "record"),
    ] {
        let (_, made) = api.post("/rollouts", body.clone()).await;
        assert_eq!(made["purpose"], purpose, "{body}");
    }
}

#[tokio::test]
async fn bad_bodies_are_refused_with_the_field() {
    let api = Api::new().await;
    for (body, named) in [
        (json!({"task": "t"}), "`task`"),
        (json!({"sampling": {"temprature": 1}}), "`temprature`"),
        (json!({"purpose": "fun"}), "`fun`"),
        (json!({"policy": "nobody"}), "policy"),
        (json!({"group_size": 0}), "group_size"),
        (json!({"ttl_s": 0}), "ttl_s"),
        (json!({"ttl_s": -1}), "invalid value"),
        (json!([]), "not an object"),
    ] {
        let (status, problem) = api.post("/rollouts", body.clone()).await;
        assert_eq!(status, 400, "{body}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{body}: {problem}");
    }
    let broken = Request::post("/rollouts").header("host", "h").body(Body::from("{")).unwrap();
    assert_eq!(api.send(broken).await.0, 400);
}

#[tokio::test]
async fn an_idempotency_key_makes_one_rollout() {
    let api = Api::new().await;
    let body = json!({"task_id": "t", "metadata": {"x": 0.1}});
    let (first, made) = api.post_once("k", body.clone()).await;
    let (second, again) = api.post_once("k", body).await;
    assert_eq!((first, second), (201, 200));
    assert_eq!(made, again);
    let (status, problem) = api.post_once("k", json!({"task_id": "u"})).await;
    assert_eq!(status, 422, "{problem}");
    let (status, other) = api.post_once("l", json!({"task_id": "u"})).await;
    assert_eq!(status, 201);
    assert_ne!(other["id"], made["id"]);
    assert_eq!(api.post_once("", json!({})).await.0, 400);
}

#[tokio::test]
async fn lists_come_in_pages_and_by_filter() {
    let api = Api::new().await;
    let mut ids = Vec::new();
    for at in 0..5 {
        ids.push(json!(api.rollout(json!({"task_id": if at == 3 { "odd" } else { "even" }})).await));
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) = api.get(&format!("/rollouts?limit=2&after={after}")).await;
        assert_eq!(status, 200);
        let rollouts = page["rollouts"].as_array().unwrap();
        assert!(!rollouts.is_empty() && rollouts.len() <= 2);
        seen.extend(rollouts.iter().map(|rollout| rollout["id"].clone()));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    let (_, page) = api.get("/rollouts?task_id=odd&status=open&harness=").await;
    assert_eq!(page["rollouts"][0]["id"], ids[3]);
    assert_eq!((page["rollouts"].as_array().unwrap().len(), &page["next"]), (1, &Value::Null));
    for query in ["limit=x", "stat=open", "status=opened", "after=7"] {
        assert_eq!(api.get(&format!("/rollouts?{query}")).await.0, 400, "{query}");
    }
    let unknown = RolloutId::generate();
    for path in [format!("/rollouts?after={unknown}"), format!("/rollouts/{}/calls?after={unknown}", ids[0].as_str().unwrap())] {
        assert_eq!(api.get(&path).await.0, 400, "{path}");
    }
    assert_eq!(api.get("/rollouts?limit=0").await.1["rollouts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn rewards_replace_and_belong_to_a_rollout_or_a_call() {
    let api = Api::new().await;
    let id = api.rollout(json!({})).await;
    let other = api.rollout(json!({})).await;
    let of_other = api.call(other, b"{}", b"{}").await;
    let own = api.call(id, b"{}", b"{}").await;
    let path = format!("/rollouts/{id}/reward");
    for (body, rewards) in [
        (json!({"reward": 0.5}), json!({"reward": 0.5})),
        (json!({"reward": 1}), json!({"reward": 1.0})),
        (json!({"reward": -2, "name": "style"}), json!({"reward": 1.0, "style": -2.0})),
        (json!({"reward": 7, "call_id": own}), json!({"reward": 1.0, "style": -2.0})),
    ] {
        let (status, rollout) = api.post(&path, body.clone()).await;
        assert_eq!((status, &rollout["rewards"]), (200, &rewards), "{body}");
    }
    assert_eq!(api.get(&format!("/calls/{own}")).await.1["rewards"], json!({"reward": 7.0}));
    for (body, status) in [
        (json!({"reward": 1, "call_id": of_other}), 404),
        (json!({"reward": 1, "call_id": CallId::generate()}), 404),
        (json!({"reward": "1"}), 400),
        (json!({"rewrd": 1}), 400),
        (json!({}), 400),
    ] {
        assert_eq!(api.post(&path, body.clone()).await.0, status, "{body}");
    }
}

#[tokio::test]
async fn an_end_is_what_was_given_or_what_the_reward_says() {
    let api = Api::new().await;
    for (reward, body, outcome) in [
        (None, json!({}), "passed"),
        (Some(0.99), json!({}), "failed"),
        (Some(1.0), json!({"outcome": null}), "passed"),
        (Some(1.0), json!({"outcome": "infra_error"}), "infra_error"),
    ] {
        let id = api.rollout(json!({})).await;
        if let Some(reward) = reward {
            api.post(&format!("/rollouts/{id}/reward"), json!({"reward": reward})).await;
        }
        let (status, ended) = api.post(&format!("/rollouts/{id}/finish"), body).await;
        assert_eq!((status, &ended["status"], &ended["outcome"]), (200, &json!("finished"), &json!(outcome)));
        let (status, again) = api.post(&format!("/rollouts/{id}/finish"), json!({"outcome": "cancelled"})).await;
        assert_eq!((status, again), (200, ended));
    }
    let id = api.rollout(json!({})).await;
    let no_body = Request::post(format!("/rollouts/{id}/finish")).body(Body::empty()).unwrap();
    assert_eq!(api.send(no_body).await.0, 200);
    let id = api.rollout(json!({})).await;
    let (_, ended) = api.post(&format!("/rollouts/{id}/finish"), json!({"no_reward": true})).await;
    assert_eq!(ended["no_reward"], true);
    assert_eq!(api.post(&format!("/rollouts/{id}/finish"), json!({"outcome": "won"})).await.0, 400);
}

#[tokio::test]
async fn calls_are_given_whole_and_raw() {
    let api = Api::new().await;
    let id = api.rollout(json!({})).await;
    let mut calls = vec![api.call(id, b"{not json", b"{\"a\": 1}").await];
    for _ in 0..2 {
        calls.push(api.call(id, REQUEST, b"data: [DONE]").await);
    }
    let (status, page) = api.get(&format!("/rollouts/{id}/calls?limit=2")).await;
    assert_eq!((status, &page["next"]), (200, &json!(calls[1])));
    let mut one = api.get(&format!("/calls/{}", calls[0])).await.1;
    assert_eq!((one["kind"].take(), one["abandoned"].take()), (Value::Null, Value::Null));
    // Only the list looks at the others.
    (one["kind"], one["abandoned"]) = (json!("main"), json!("retry"));
    assert_eq!(page["calls"][0], one);
    let (_, rest) = api.get(&format!("/rollouts/{id}/calls?limit=2&after={}", calls[1])).await;
    assert_eq!((&rest["calls"][0]["id"], &rest["next"]), (&json!(calls[2]), &Value::Null));
    let second = &page["calls"][1];
    assert_eq!(second["messages"], json!([{"role": "user", "content": "hi"}]));
    assert_eq!(second["tools"], json!([{"type": "function", "function": {"name": "bash"}}]));
    let record = &page["calls"][0];
    assert_eq!((&record["messages"], &record["tools"]), (&Value::Null, &Value::Null));
    assert_eq!((&record["message"]["content"], &record["notes"]), (&json!("yes"), &json!(["a note"])));
    assert_eq!(
        (&record["started_at"], &record["max_tokens"]),
        (&json!("1970-01-01T00:00:01Z"), &json!({"asked": null, "used": 7}))
    );
    assert_eq!(
        record["capture"],
        json!({"level": "full", "reason": null, "prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5],
            "logprob_kind": "raw", "constrained": false, "runs": [], "rendered": null})
    );
    assert_eq!(record["sampling"], json!({"asked": {}, "used": {"temperature": 1.0}}));
    for (kind, media, body) in [
        ("request", "application/octet-stream", &b"{not json"[..]),
        ("response", "application/json", b"{\"a\": 1}"),
        ("upstream", "application/octet-stream", b""),
        ("prompt", "application/octet-stream", b""),
    ] {
        let request = Request::get(format!("/calls/{}/{kind}", calls[0])).body(Body::empty()).unwrap();
        let response = api.router.clone().oneshot(request).await.unwrap();
        assert_eq!((response.status(), &response.headers()["content-type"]), (StatusCode::OK, &media.parse().unwrap()));
        assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), body);
    }
}

#[tokio::test]
async fn samples_are_there_while_the_rollout_is_open() {
    let api = Api::new().await;
    let id = api.rollout(json!({"task_id": "t"})).await;
    let call = api.call(id, b"{}", b"{}").await;
    let (status, got) = api.get(&format!("/rollouts/{id}/samples")).await;
    assert_eq!(status, 200);
    // Whether its reply was delivered is not known, so it is in one list or the other, never in both or none.
    let spans: Vec<&Value> = got["samples"].as_array().unwrap().iter().flat_map(|s| s["spans"].as_array().unwrap()).collect();
    let left_out = got["left_out"].as_array().unwrap();
    let trained = spans.iter().filter(|span| span["call_id"] == json!(call)).count();
    assert_eq!(trained + left_out.iter().filter(|left| left["call_id"] == json!(call)).count(), 1, "{got}");
}

#[tokio::test]
async fn what_is_not_there_is_404_and_a_wrong_method_405() {
    let api = Api::new().await;
    let unknown = RolloutId::generate();
    for path in [
        format!("/rollouts/{unknown}"),
        "/rollouts/seven".to_owned(),
        format!("/rollouts/{unknown}/calls"),
        format!("/rollouts/{unknown}/samples"),
        format!("/calls/{unknown}"),
        format!("/calls/{unknown}/response"),
        "/nothing".to_owned(),
    ] {
        assert_eq!(api.get(&path).await.0, 404, "{path}");
    }
    for path in [format!("/rollouts/{unknown}/finish"), "/rollouts/x/finish".to_owned()] {
        assert_eq!(api.post(&path, json!({})).await.0, 404, "{path}");
    }
    assert_eq!(api.post(&format!("/rollouts/{unknown}/reward"), json!({"reward": 1})).await.0, 404);
    assert_eq!(api.post("/policies", json!({})).await.0, 405);
}

#[tokio::test]
async fn policies_say_whether_they_are_ready() {
    let (_, list) = Api::new().await.get("/policies").await;
    let of = |name: &str, ready: bool, reason: Value| {
        json!({"name": name, "url": "", "version": null, "policy_seq": 0, "version_source": null, "paused": false, "mode": null,
            "in_flight": 0, "drained": false, "description": format!("idle server of {name}"), "ready": ready, "reason": reason})
    };
    assert_eq!(
        list,
        json!({"policies": [of("default", true, Value::Null), of("judge", false, json!("nobody answers"))], "next": null})
    );
}

#[tokio::test]
async fn the_openapi_page_is_served() {
    let (status, page) = Api::new().await.get("/openapi.json").await;
    assert_eq!(status, 200);
    assert!(page["openapi"].as_str().unwrap().starts_with("3."), "{}", page["openapi"]);
}
