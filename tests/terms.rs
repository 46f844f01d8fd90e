//! On which terms a rollout's model calls are served: caps, pauses, the end. The runner's endpoint on real sockets, store and proxy;
//! the policy answers by a script in this process, and harnesses are plain processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gleaner::call::{CallStatus, FailureKind, Sampling};
use gleaner::engine::{EngineConfig, Process};
use gleaner::harness::run::Cap;
use gleaner::harness::{
    BatchRun, Catalog, Kept, Ledger, ModelEndpoint, Plan, Report, RolloutConfig, Served, Stage, Terms, helper,
};

use gleaner::http::{Batches, ClientKeys, Http, SocketEndpoint, end};
use gleaner::ids::{BatchId, ProcessId, RolloutId, RolloutKey};
use gleaner::policy::{self, PolicyConfig, PolicyUpdate, SCHEME};
use gleaner::proxy::{App, Policies, ProxySettings, Rollouts};
use gleaner::record::Recorder;
use gleaner::store::{self, Finish, NewRollout, Outcome, Purpose, Reward, RolloutFilter, RolloutStatus, StoreConfig};
use gleaner::trajectory::Drift;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Nothing here takes so long.
const LONG: Duration = Duration::from_mins(1);

/// A store, a proxy before a scripted policy, and the runner's endpoint.
struct Server {
    app: Arc<App>,
    endpoint: SocketEndpoint,
    dir: TempDir,
}

impl Server {
    async fn start(config: PolicyConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process_id = ProcessId::generate();
        let database = dir.path().join("gleaner.db");
        let store = store::open(database.to_str().unwrap(), &StoreConfig::default(), process_id).await.unwrap();
        let recorder = Recorder::start(store.writer().unwrap(), 64);
        let policy = policy::connect("default", &PolicyConfig { url: SCHEME.to_owned(), ..config }, None).unwrap();
        let app = Arc::new(App {
            policies: Policies::new(vec![(policy, true)], Vec::new()).unwrap(),
            rollouts: Rollouts::new(Arc::clone(&store), recorder.clone()),
            store,
            recorder,
            process_id,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            settings: ProxySettings { ping_s: 10 },
            drift: Drift::Fork,
        });
        let http = Http {
            batches: Batches::default(),
            app: Arc::clone(&app),
            admin_key: None,
            client_keys: ClientKeys::default(),
            open: false,
            body_limit: 1 << 20,
            harnesses_reach_it: false,
            compress: false,
            cors_origins: Arc::default(),
            metrics: PrometheusBuilder::new().build_recorder().handle(),
        };
        Self { app, endpoint: SocketEndpoint::new(http), dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("model.sock")
    }

    async fn open(&self, terms: Terms) -> RolloutId {
        self.open_with_key(terms).await.0
    }

    async fn open_with_key(&self, terms: Terms) -> (RolloutId, RolloutKey) {
        let new = rollout();
        let (id, key) = (new.id, new.key.clone());
        self.endpoint.open(new, &terms, &self.socket()).await.unwrap();
        (id, key)
    }

    async fn connect(&self) -> Client {
        Client(UnixStream::connect(self.socket()).await.unwrap())
    }

    fn pause(&self, paused: bool) {
        let update = PolicyUpdate { paused: Some(paused), ..PolicyUpdate::default() };
        self.app.policies.get("default").unwrap().update(update).unwrap();
    }

    /// The statuses of a rollout's calls, and what failed.
    async fn calls(&self, id: RolloutId) -> Vec<(CallStatus, Option<FailureKind>)> {
        self.app.recorder.flush().await.unwrap();
        let calls = self.app.store.calls(id).await.unwrap();
        calls.into_iter().map(|call| (call.status, call.failure.map(|failure| failure.kind))).collect()
    }

    async fn stop(self) {
        // The sockets of rollouts that are not over are served until their endpoint is gone.
        drop(self.endpoint);
        assert_eq!(end(&self.app).await, 0);
    }
}

fn rollout() -> NewRollout {
    NewRollout {
        id: RolloutId::generate(),
        key: RolloutKey::generate(),
        created_at: gleaner::telemetry::now_ms(),
        purpose: Purpose::Record,
        task_id: None,
        group_id: None,
        group_size: None,
        harness: None,
        policy: None,
        sampling: Sampling::default(),
        metadata: serde_json::Map::new(),
        ttl_s: None,
        idempotency_key: None,
        conversation: None,
        index: None,
        run: None,
    }
}

/// A client of chat completions on a rollout's socket, which keeps its connection.
struct Client(UnixStream);

impl Client {
    async fn ask(&mut self) {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all((head + &body).as_bytes()).await.unwrap();
    }

    /// The answer's status and body.
    async fn answer(&mut self) -> (u16, Value) {
        let mut seen = Vec::new();
        let read = async {
            loop {
                let text = String::from_utf8_lossy(&seen).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a whole body");
                    if body.len() >= length.parse::<usize>().unwrap() {
                        return (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap());
                    }
                }
                assert!(self.0.read_buf(&mut seen).await.unwrap() > 0, "the connection ended after {text:?}");
            }
        };
        timeout(LONG, read).await.expect("an answer")
    }

    /// The status of one more call; `None` if the connection was closed.
    async fn call_if_open(&mut self) -> Option<u16> {
        self.0.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.ok()?;
        let mut head = [0; 12];
        timeout(LONG, self.0.read_exact(&mut head)).await.expect("an end").ok()?;
        Some(std::str::from_utf8(&head[9..]).unwrap().parse().unwrap())
    }

    async fn call(&mut self) -> (u16, Value) {
        self.ask().await;
        self.answer().await
    }
}

/// Waits until `is` gives true.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, wait).await.unwrap_or_else(|_| panic!("{what} never came"));
}

#[tokio::test]
async fn the_first_call_past_the_cap_is_recorded_and_the_others_are_counted() {
    let server = Server::start(PolicyConfig::default()).await;
    let id = server.open(Terms { max_calls: Some(2), ..Terms::default() }).await;
    let mut client = server.connect().await;
    assert_eq!((client.call().await.0, client.call().await.0, server.endpoint.turns(id)), (200, 200, 2));
    let mut capped = server.endpoint.capped(id);
    assert!(futures::poll!(&mut capped).is_pending(), "what is allowed is no cap");
    let (status, said) = client.call().await;
    let error = &said["error"];
    assert_eq!((status, &error["type"], &error["code"]), (403, &json!("permission_error"), &json!("rollout_capped")));
    assert_eq!(error["message"], "this rollout may have 2 calls (max_calls), and no call past them");
    assert_eq!(timeout(LONG, capped).await.unwrap(), Cap::Calls);
    for _ in 0..100 {
        assert_eq!(client.call().await.0, 403);
    }
    let done = (CallStatus::Done, None);
    assert_eq!(server.calls(id).await, [done, done, (CallStatus::Failed, Some(FailureKind::Capped))]);
    let came_to = Served { begun: 2, answered: 2, refused: 101, failed: None };
    assert_eq!(server.endpoint.seal(id).await, came_to);
    server.stop().await;
}

#[tokio::test]
async fn no_call_begins_once_the_tokens_are_used_up() {
    let server = Server::start(PolicyConfig::default()).await;
    let id = server.open(Terms { max_tokens: Some(1), ..Terms::default() }).await;
    let mut client = server.connect().await;
    // One call may go past it; how long a reply gets is its own limit's business.
    assert_eq!(client.call().await.0, 200);
    let (status, said) = client.call().await;
    assert_eq!((status, &said["error"]["code"]), (403, &json!("rollout_capped")), "{said}");
    assert_eq!(timeout(LONG, server.endpoint.capped(id)).await.unwrap(), Cap::Tokens);
    server.stop().await;
}

/// The harness has ended, and may have left anything: a call in flight, a connection, its key.
#[tokio::test]
async fn a_sealed_rollout_takes_no_calls_and_waits_for_its_verdict() {
    let server = Server::start(PolicyConfig::default()).await;
    let (id, key) = server.open_with_key(Terms::default()).await;
    let (mut idle, mut waiting) = (server.connect().await, server.connect().await);
    assert_eq!(idle.call().await.0, 200);
    server.pause(true);
    waiting.ask().await;
    until("the second call", async || server.endpoint.turns(id) == 2).await;
    let came_to = server.endpoint.seal(id).await;
    assert_eq!(came_to, Served { begun: 2, answered: 1, refused: 0, failed: None });
    assert_eq!(waiting.answer().await.0, 409);
    // Closed, unless it asked before that was noticed.
    assert!(matches!(idle.call_if_open().await, None | Some(409)));
    assert!(UnixStream::connect(server.socket()).await.is_err());
    let refused = server.app.rollouts.by_key(&key).await.map(drop).expect_err("its key opens nothing any more");
    assert_eq!((refused.kind, refused.status), (FailureKind::Ended, 409));
    let expected = [(CallStatus::Done, None), (CallStatus::Cancelled, Some(FailureKind::Ended))];
    assert_eq!(server.calls(id).await, expected);

    assert_eq!(server.app.store.rollout(id).await.unwrap().unwrap().status, RolloutStatus::Open);
    server.endpoint.reward(Reward { rollout_id: id, call_id: None, name: "reward".to_owned(), value: 1.0 }).await.unwrap();
    let finish = Finish { rollout_id: id, at: 1, outcome: Outcome::Passed, no_reward: false, evidence: None };
    let closed = server.endpoint.close(finish).await.unwrap();
    assert_eq!((closed.status, closed.outcome, closed.reward()), (RolloutStatus::Finished, Some(Outcome::Passed), Some(1.0)));
    server.stop().await;
}

#[tokio::test]
async fn the_endpoint_tells_of_the_policy_s_window_and_pauses() {
    let server = Server::start(PolicyConfig { context_window: Some(40_960), ..PolicyConfig::default() }).await;
    assert_eq!(server.endpoint.window(None).await, Some(40_960));
    let id = server.open(Terms::default()).await;
    let mut paused = server.endpoint.paused(id, false);
    assert!(futures::poll!(&mut paused).is_pending());
    server.pause(true);
    assert!(timeout(LONG, paused).await.unwrap());
    let mut over = server.endpoint.paused(id, true);
    assert!(futures::poll!(&mut over).is_pending());
    server.pause(false);
    assert!(!timeout(LONG, over).await.unwrap());
    server.stop().await;
}

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses/tiny-agent");

/// Runs tiny-agent, or another agent in its place, as a plain process; `plan` says how.
async fn run(server: &Server, agent: Option<&str>, plan: Value) -> Report {
    let own = server.dir.path().join("harnesses");
    let folder = own.join("tiny-agent");
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["harness.toml", "build.sh", "agent.py"] {
        std::fs::copy(Path::new(TINY).join(file), folder.join(file)).unwrap();
    }
    if let Some(agent) = agent {
        std::fs::write(folder.join("agent.py"), agent).unwrap();
    }
    let mut whole = json!({"tasks": [{"id": "t", "prompt": "p"}], "harnesses": [{"harness": "tiny-agent"}], "attempts": 1});
    whole.as_object_mut().unwrap().extend(plan.as_object().unwrap().clone());
    let plan: Plan = serde_json::from_value(whole).unwrap();
    let orders = plan.orders(&Catalog::load(Some(&own)).unwrap()).unwrap();
    let (cache, artifacts) = (server.dir.path().join("cache"), server.dir.path().join("artifacts"));
    let config = EngineConfig::default();
    let engine = Process::new(&config, helper::install(&cache).unwrap(), "test-terms", Arc::new(|_| true)).unwrap();
    let stage = Stage {
        engine: &engine,
        endpoint: &server.endpoint,
        cache,
        artifacts: artifacts.clone(),
        image: config.base_image.clone(),
        limits: config.limits(),
        config: RolloutConfig::default(),
        room: Arc::new(Semaphore::new(1)),
        cancel: CancellationToken::new(),
        progress: &|_| {},
    };
    let ledger = Ledger { store: server.app.store.as_ref(), recorder: &server.app.recorder };
    let kept = Kept::new(plan, Some(&own), &orders).unwrap();
    let batch = BatchRun::begin(&ledger, BatchId::generate(), &kept, orders).await.unwrap();
    timeout(LONG, batch.run(&stage, &ledger)).await.expect("the run ends").unwrap();
    let rollouts = server.app.store.rollouts(&RolloutFilter::default()).await.unwrap();
    assert_eq!(rollouts.len(), 1);
    Report::of(&rollouts[0], &artifacts)
}

fn evidence(report: &Report) -> Value {
    serde_json::from_slice(&std::fs::read(report.artifacts.join("evidence.json")).unwrap()).unwrap()
}

#[tokio::test]
async fn a_harness_that_never_stops_asking_is_ended_at_its_cap() {
    let server = Server::start(PolicyConfig::default()).await;
    let agent = r#"
import os, urllib.error, urllib.request
body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
headers = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
while True:
    try:
        urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, headers)).read()
    except urllib.error.HTTPError:
        pass
"#;
    let report = run(&server, Some(agent), json!({"max_calls": 3})).await;
    let facts = evidence(&report);
    // The fourth is the one that was refused.
    assert_eq!((report.outcome, report.reward, report.error, report.calls), (Outcome::Truncated, None, None, 4), "{facts:#}");
    assert_eq!((&facts["exit"]["capped"], &facts["exit"]["signal"]), (&json!("calls"), &json!(15)), "{facts:#}");
    assert_eq!((&facts["calls"]["begun"], &facts["calls"]["answered"]), (&json!(3), &json!(3)), "{facts:#}");
    assert!(facts["calls"]["refused"].as_u64() >= Some(1), "{facts:#}");
    server.stop().await;
}

/// What the first calls need is a paused policy's to give: the harness's time is not.
#[tokio::test]
async fn a_harness_s_time_stands_still_while_its_policy_is_paused() {
    let server = Server::start(PolicyConfig::default()).await;
    server.pause(true);
    let limit = Duration::from_secs(5);
    let pause = async {
        let open = RolloutFilter { status: Some(RolloutStatus::Open), ..RolloutFilter::default() };
        let asked = async || {
            let rollouts = server.app.store.rollouts(&open).await.unwrap();
            rollouts.first().is_some_and(|rollout| server.endpoint.turns(rollout.id) == 1)
        };
        until("the first call", asked).await;
        // The harness runs since before this moment, so that its time would be over.
        tokio::time::sleep(limit + Duration::from_secs(1)).await;
        server.pause(false);
    };
    let begun = Instant::now();
    let (report, ()) = tokio::join!(run(&server, None, json!({"timeout_s": limit.as_secs()})), pause);
    assert_eq!((report.outcome, report.calls, report.error.clone()), (Outcome::Passed, 2, None), "{:#}", evidence(&report));
    assert!(begun.elapsed() > limit);
    server.stop().await;
}

/// A harness that breaks because nobody answers any more can't be blamed.
#[tokio::test]
async fn a_policy_that_goes_away_is_an_infrastructure_error() {
    let server = Server::start(PolicyConfig { pause_s: 0, ..PolicyConfig::default() }).await;
    let away = async {
        let open = RolloutFilter { status: Some(RolloutStatus::Open), ..RolloutFilter::default() };
        let asked = async || {
            let rollouts = server.app.store.rollouts(&open).await.unwrap();
            rollouts.first().is_some_and(|rollout| rollout.calls > 0)
        };
        until("the first call", asked).await;
        server.pause(true);
    };
    let agent = r#"
import os, urllib.request
body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
headers = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
while True:
    urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, headers)).read()
"#;
    let (report, ()) = tokio::join!(run(&server, Some(agent), json!({"max_calls": u64::MAX})), away);
    let facts = evidence(&report);
    assert_eq!((report.outcome, report.reward), (Outcome::InfraError, None), "{facts:#}");
    let error = report.error.unwrap();
    assert!(error.starts_with("its last model call failed: policy default is paused"), "{error}");
    assert_eq!(facts["calls"]["failed"]["kind"], "unavailable", "{facts:#}");
    assert!(facts["calls"]["answered"].as_u64() >= Some(1), "{facts:#}");
    server.stop().await;
}
