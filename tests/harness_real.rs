//! Real harnesses in real containers against a scripted model. Needs a Docker engine and, the first time, the package
//! registries: `cargo test --test harness_real -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use gleaner::engine::{Docker, EngineConfig, base_image};
use gleaner::harness::run::Cap;
use gleaner::harness::task::{Needs, Verifier};
use gleaner::harness::{Catalog, Choice, ModelEndpoint, Order, Progress, Report, RolloutConfig, Stage, Task, Terms, run_all};
use gleaner::ids::RolloutId;
use gleaner::store::{Finish, NewRollout, Outcome, Purpose, Reward, Rollout, RolloutStatus};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A scripted model: each POST of a rollout gets the next reply. What came in is kept.
#[derive(Default)]
struct Script {
    replies: Vec<(&'static str, String)>,
    kept: Mutex<Kept>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Kept {
    requests: Vec<(RolloutId, Value, String)>,
    rewards: Vec<f64>,
    finished: Vec<Finish>,
    opened: Vec<NewRollout>,
}

#[async_trait]
impl ModelEndpoint for Script {
    async fn open(&self, rollout: NewRollout, _terms: &Terms, socket: &Path) -> anyhow::Result<()> {
        let listener = tokio::net::UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777))?;
        let served = Arc::new(Served { replies: self.replies.clone(), requests: Mutex::default() });
        let router = axum::Router::new().fallback(answer).with_state(served.clone());
        self.kept.lock().unwrap().opened.push(rollout.clone());
        SERVED.lock().unwrap().insert(rollout.id, served);
        self.tasks.spawn(async move { axum::serve(listener, router).await });
        Ok(())
    }

    async fn capped(&self, _rollout: RolloutId) -> Cap {
        std::future::pending().await
    }

    async fn paused(&self, _rollout: RolloutId, _now: bool) -> bool {
        std::future::pending().await
    }

    fn turns(&self, _rollout: RolloutId) -> u64 {
        0
    }

    async fn window(&self, _policy: Option<&str>) -> Option<u64> {
        None
    }

    async fn seal(&self, _rollout: RolloutId) -> gleaner::harness::Served {
        gleaner::harness::Served::default()
    }

    async fn reward(&self, reward: Reward) -> anyhow::Result<()> {
        self.kept.lock().unwrap().rewards.push(reward.value);
        Ok(())
    }

    async fn close(&self, finish: Finish) -> anyhow::Result<Rollout> {
        let served = SERVED.lock().unwrap().remove(&finish.rollout_id);
        let requests = served.map(|served| std::mem::take(&mut *served.requests.lock().unwrap())).unwrap_or_default();
        let mut kept = self.kept.lock().unwrap();
        let new = kept.opened.iter().find(|new| new.id == finish.rollout_id).unwrap().clone();
        let calls = requests.len() as u64;
        kept.requests.extend(requests.into_iter().map(|(body, key)| (finish.rollout_id, body, key)));
        kept.finished.push(finish.clone());
        Ok(closed(new, finish, calls))
    }

    async fn drift(&self, _rollout: RolloutId) -> anyhow::Result<u64> {
        Ok(0)
    }
}

static SERVED: Mutex<BTreeMap<RolloutId, Arc<Served>>> = Mutex::new(BTreeMap::new());

struct Served {
    replies: Vec<(&'static str, String)>,
    requests: Mutex<Vec<(Value, String)>>,
}

async fn answer(State(served): State<Arc<Served>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    if method != Method::POST {
        return StatusCode::NOT_FOUND.into_response();
    }
    let key = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let body: Value =
        serde_json::from_slice(&body).unwrap_or_else(|error| json!({"error": error.to_string(), "uri": uri.path()}));
    let mut requests = served.requests.lock().unwrap();
    requests.push((body, key));
    match served.replies.get(requests.len() - 1) {
        Some((kind, reply)) => ([("content-type", *kind)], reply.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn closed(new: NewRollout, finish: Finish, calls: u64) -> Rollout {
    Rollout {
        id: new.id,
        key: new.key,
        status: RolloutStatus::Finished,
        outcome: Some(finish.outcome),
        index: 0,
        created_at: new.created_at,
        ended_at: Some(finish.at),
        last_call_at: None,
        purpose: new.purpose,
        task_id: new.task_id,
        group_id: new.group_id,
        group_size: new.group_size,
        harness: new.harness,
        policy: new.policy,
        sampling: new.sampling,
        metadata: new.metadata,
        ttl_s: None,
        no_reward: finish.no_reward,
        run: new.run,
        rewards: BTreeMap::new(),
        call_rewards: Vec::new(),
        calls,
        tokens: 0,
        evidence: finish.evidence,
        policy_versions: Vec::new(),
    }
}

/// An unstreamed chat completion.
fn chat(message: &Value) -> (&'static str, String) {
    let reply = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    });
    ("application/json", reply.to_string())
}

fn chat_bash(command: &str) -> (&'static str, String) {
    let function = json!({"name": "bash", "arguments": json!({"command": command}).to_string()});
    chat(
        &json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}),
    )
}

fn chat_text(command: &str) -> (&'static str, String) {
    chat(&json!({"role": "assistant", "content": format!("THOUGHT: so.\n\n```mswea_bash_command\n{command}\n```")}))
}

/// A streamed response of one item.
fn response(item: &Value) -> (&'static str, String) {
    let usage = json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15});
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1"}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": {"id": "resp_1", "output": [item], "usage": usage}}),
    ];
    let stream = events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
    ("text/event-stream", stream.collect())
}

fn response_shell(command: &str) -> (&'static str, String) {
    response(&json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command",
        "arguments": json!({"cmd": command}).to_string()}))
}

fn response_text(text: &str) -> (&'static str, String) {
    response(&json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": text}]}))
}

/// A task whose file must have been copied by a shell command, and whose verifier sees no key.
fn task() -> Task {
    Task {
        id: "copy".to_owned(),
        files: BTreeMap::from([("in/seed.txt".to_owned(), "seed\n".to_owned())]),
        verifier: Some(Verifier::shell("grep -qx seed made.txt && ! env | grep -q glr_ && test \"$(id -u)\" = 1000")),
        ..Task::of_prompt("Copy in/seed.txt to made.txt, \"quoted\" & <all>.")
    }
}

struct Ran {
    reports: Vec<Report>,
    script: Arc<Script>,
    artifacts: tempfile::TempDir,
}

fn cache() -> PathBuf {
    // Shared between runs: payloads are large.
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"), PathBuf::from);
    base.join("gleaner")
}

async fn docker() -> Docker {
    let docker = Docker::connect(&EngineConfig::default(), "harness-real", Arc::new(|_| true)).await.unwrap();
    base_image::ensure(&docker, base_image::DEFAULT).await.unwrap();
    docker
}

async fn run(
    catalog: &Catalog,
    name: &str,
    task: Task,
    samples: u32,
    replies: Vec<(&'static str, String)>,
    cancel: CancellationToken,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Ran {
    let engine = docker().await;
    let script = Arc::new(Script { replies, ..Script::default() });
    let artifacts = tempfile::tempdir().unwrap();
    let (name, variant) = name.split_once(':').map_or((name, None), |(name, variant)| (name, Some(variant)));
    let harness = catalog.get(name).unwrap().clone();
    let spec = harness.spec.clone().with(&Choice { variant, ..Choice::default() }).unwrap();
    let variant = variant.map(str::to_owned);
    let order = Order {
        harness,
        spec,
        variant,
        task,
        samples,
        image: None,
        timeout: None,
        max_calls: None,
        max_tokens: None,
        policy: None,
        purpose: None,
    };
    let stage = Stage {
        engine: &engine,
        endpoint: script.as_ref(),
        cache: if name == "shell" { artifacts.path().join("cache") } else { cache() },
        artifacts: artifacts.path().to_owned(),
        image: base_image::DEFAULT.to_owned(),
        limits: EngineConfig::default().limits(),
        config: RolloutConfig::default(),
        cancel,
        progress,
    };
    let reports = run_all(&stage, &[order]).await.unwrap();
    Ran { reports, script, artifacts }
}

async fn run_real(name: &str, replies: Vec<(&'static str, String)>) -> Ran {
    let ran = run(&Catalog::load(None).unwrap(), name, task(), 1, replies, CancellationToken::new(), &|_| {}).await;
    let report = &ran.reports[0];
    let said = |name: &str| std::fs::read_to_string(report.artifacts.join(name)).unwrap_or_default();
    let facts = format!("{report:?}\n{}\n{}\n{}", said("evidence.json"), said("stdout.log"), said("stderr.log"));
    assert_eq!((report.outcome, report.reward, report.calls), (Outcome::Passed, Some(1.0), 2), "{facts}");
    let kept = ran.script.kept.lock().unwrap();
    assert_eq!(kept.rewards, [1.0]);
    assert_eq!(kept.finished.len(), 1);
    assert_eq!(kept.opened[0].purpose, Purpose::Record);
    let key = format!("Bearer {}", kept.opened[0].key.expose());
    assert!(kept.requests.iter().all(|(_, _, sent)| *sent == key), "{:?}", kept.requests);
    assert!(kept.requests[0].1.to_string().contains("Copy in/seed.txt to made.txt, \\\"quoted\\\" & <all>."), "{facts}");
    drop(kept);
    ran
}

const COPY: &str = "cat in/seed.txt > made.txt";
const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn codex_runs_its_shell_tool_and_answers() {
    let ran = run_real("codex", vec![response_shell(COPY), response_text("Done.")]).await;
    let kept = ran.script.kept.lock().unwrap();
    assert_eq!(kept.requests[1].1["input"].as_array().unwrap().last().unwrap()["type"], "function_call_output");
    assert_eq!(kept.finished[0].evidence.as_ref().unwrap()["means"], "completed");
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn mini_swe_agent_runs_its_tool_and_submits() {
    let ran = run_real("mini-swe-agent", vec![chat_bash(COPY), chat_bash(SUBMIT)]).await;
    let kept = ran.script.kept.lock().unwrap();
    assert_eq!(kept.requests[1].1["messages"].as_array().unwrap().last().unwrap()["role"], "tool");
    let evidence = kept.finished[0].evidence.as_ref().unwrap();
    assert_eq!(evidence["detail"], json!({"/info/exit_status": "Submitted", "/info/model_stats/api_calls": 2}));
    assert!(ran.artifacts.path().join(ran.reports[0].id.to_string()).join("result-trajectory.json").is_file());
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn mini_swe_agent_runs_without_tools() {
    let ran = run_real("mini-swe-agent:text", vec![chat_text(COPY), chat_text(SUBMIT)]).await;
    assert!(ran.script.kept.lock().unwrap().requests.iter().all(|(_, body, _)| body.get("tools").is_none()));
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn a_model_that_calls_no_tool_has_failed_and_a_refused_call_is_the_harnesss_error() {
    let prose = || chat(&json!({"role": "assistant", "content": "I would rather talk."}));
    let catalog = Catalog::load(None).unwrap();
    let replies = vec![prose(), prose(), prose(), prose()];
    let ran = run(&catalog, "mini-swe-agent", task(), 1, replies, CancellationToken::new(), &|_| {}).await;
    assert_eq!((ran.reports[0].outcome, ran.reports[0].reward), (Outcome::Failed, Some(0.0)), "{:?}", ran.reports);
    let ran = run(&catalog, "mini-swe-agent", task(), 1, Vec::new(), CancellationToken::new(), &|_| {}).await;
    assert_eq!((ran.reports[0].outcome, ran.reports[0].reward), (Outcome::HarnessError, None), "{:?}", ran.reports);
}

/// A harness that is a shell command, from a folder outside the tree.
fn shell(command: &str, outcome: &str) -> (tempfile::TempDir, Catalog) {
    let folder = tempfile::tempdir().unwrap();
    let command = serde_json::to_string(command).unwrap();
    let text = format!(
        "name = \"shell\"\nversion = \"1\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"build.sh\"\nwhere = \"host\"\n\
         [run]\ncommand = [\"sh\", \"-c\", {command}]\nenv = {{ KEY = \"{{{{key}}}}\" }}\n{outcome}"
    );
    std::fs::write(folder.path().join("harness.toml"), text).unwrap();
    std::fs::write(folder.path().join("build.sh"), "touch $OUT/x\n").unwrap();
    let catalog = Catalog::load(Some(folder.path())).unwrap();
    (folder, catalog)
}

async fn run_shell(command: &str, task: Task, outcome: &str) -> Report {
    let (_folder, catalog) = shell(command, outcome);
    let mut ran = run(&catalog, "shell", task, 1, Vec::new(), CancellationToken::new(), &|_| {}).await;
    ran.reports.remove(0)
}

/// Where the engine's storage has no quotas: the sandbox is ended soon after, and verified as it is.
#[tokio::test]
#[ignore = "needs Docker"]
async fn who_fills_the_disk_is_ended() {
    let needs = Needs { disk_bytes: Some(20 << 20), timeout_s: Some(60), ..Needs::default() };
    let task = Task { needs, verifier: Some(Verifier::shell("test -s big")), ..Task::of_prompt("p") };
    let report = run_shell("head -c 60000000 /dev/zero >big || exit 0; exec sleep 1000", task, "").await;
    let evidence: Value =
        serde_json::from_slice(&std::fs::read(report.artifacts.join("evidence.json")).unwrap_or_default()).unwrap_or_default();
    // With quotas the harness is told by the system, and goes on.
    if report.outcome != Outcome::Passed {
        assert_eq!((report.outcome, report.reward), (Outcome::Truncated, Some(1.0)), "{report:?}");
    }
    assert!(report.ms < 45_000, "{report:?} {evidence}");
}

#[tokio::test]
#[ignore = "needs Docker"]
async fn outcomes_are_told_apart() {
    let prompt = || Task::of_prompt("p");
    let ends = |report: Report| (report.outcome, report.reward);
    assert_eq!(ends(run_shell("test -n \"$KEY\"", prompt(), "").await), (Outcome::Passed, None));
    assert_eq!(ends(run_shell("exit 3", prompt(), "").await), (Outcome::HarnessError, None));
    assert_eq!(ends(run_shell("kill -9 $$", prompt(), "").await), (Outcome::HarnessError, None));
    let verified = |verify: &str| Task { verifier: Some(Verifier::shell(verify)), ..Task::of_prompt("p") };
    assert_eq!(
        ends(run_shell("echo x > x", verified("test -z \"$KEY\" && grep -q x x"), "").await),
        (Outcome::Passed, Some(1.0))
    );
    assert_eq!(ends(run_shell("true", verified("false"), "").await), (Outcome::Failed, Some(0.0)));
    let late = Task { needs: Needs { timeout_s: Some(1), ..Needs::default() }, ..verified("test -e x") };
    assert_eq!(ends(run_shell("touch x; sleep 60", late, "").await), (Outcome::TimedOut, Some(1.0)));
    let rules = "[outcome]\nfile = \"{{home}}/r.json\"\nrules = [{ when = { \"/end\" = \"long\" }, means = \"truncated\" }]\n";
    assert_eq!(
        ends(run_shell("echo '{\"end\":\"long\"}' > ~/r.json; exit 1", verified("false"), rules).await),
        (Outcome::Truncated, Some(0.0))
    );
    let linked = run_shell("ln -s /etc/passwd ~/r.json; exit 1", prompt(), rules).await;
    assert_eq!(linked.outcome, Outcome::HarnessError);
    assert_eq!(linked.error.as_deref(), Some("the harness left no result and ended with exit code 1"));
}

#[tokio::test]
#[ignore = "needs Docker"]
async fn cancelling_removes_the_sandboxes_of_a_group() {
    let (_folder, catalog) = shell("sleep 600", "");
    let cancel = CancellationToken::new();
    let running = Mutex::new(0);
    let progress = |progress: Progress| {
        if matches!(progress, Progress::Step { doing: "the harness runs", .. }) {
            let mut running = running.lock().unwrap();
            *running += 1;
            if *running == 2 {
                cancel.cancel();
            }
        }
    };
    let ran = run(&catalog, "shell", Task::of_prompt("p"), 2, Vec::new(), cancel.clone(), &progress).await;
    let outcomes: Vec<_> = ran.reports.iter().map(|report| report.outcome).collect();
    assert_eq!(outcomes, [Outcome::Cancelled, Outcome::Cancelled]);
    {
        let kept = ran.script.kept.lock().unwrap();
        assert_eq!(kept.finished.len(), 2);
        let group: Vec<_> = kept.opened.iter().map(|new| (new.group_id.clone(), new.group_size, new.purpose)).collect();
        assert!(group[0].0.is_some() && group[0] == group[1], "{group:?}");
        assert_eq!((group[0].1, group[0].2), (Some(2), Purpose::Train));
    }
    for report in &ran.reports {
        let name = format!("name=gleaner-{}", report.id);
        let output = tokio::process::Command::new("docker").args(["ps", "-aq", "--filter", &name]).output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}
