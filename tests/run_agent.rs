//! `gleaner run` around a harness that the binary does not know: how runs end, and what they leave when they are broken off.
//! Needs Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::gleaner::{Start, assert_sampled};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::run::{Bench, Ended, containers, containers_are};
use support::until;

const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");

fn bash(command: &str) -> Reply {
    Reply::tools(&[("bash", &json!({"command": command}).to_string())])
}

/// A policy with this script, and a store whose runs ask it.
async fn bench(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Bench) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let bench = Bench::new(policy.url()).with_own_cache();
    (policy, bench)
}

/// The words of a run of the harness.
fn words<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["tiny-agent", "--harnesses", HARNESSES], rest].concat()
}

fn verified(bench: &Bench, verify: &str) -> String {
    bench.file("task.jsonl", &json!({"id": "t", "prompt": "p", "verify": verify}).to_string())
}

/// What `--json` says of the only rollout, beside what the others are.
fn ends(ended: &Ended) -> (Option<i32>, Value, Value) {
    let (_, rollout) = ended.rollout();
    (ended.code, rollout["outcome"].clone(), rollout["reward"].clone())
}

/// Runs the same harness with another agent.
async fn run_own(bench: &Bench, agent: &str) -> Ended {
    for file in ["harness.toml", "build.sh"] {
        let text = std::fs::read_to_string(Path::new(HARNESSES).join("tiny-agent").join(file)).unwrap();
        bench.file(&format!("own/tiny-agent/{file}"), &text);
    }
    bench.file("own/tiny-agent/agent.py", agent);
    let own = bench.dir.path().join("own");
    bench.run(&["tiny-agent", "p", "--harnesses", own.to_str().unwrap()]).await
}

#[tokio::test]
async fn a_folder_outside_the_tree_adds_a_harness() {
    let (policy, bench) = bench(81, [bash("echo 42 > made; cat made"), Reply::text("Done.")]).await;
    let task = verified(&bench, "grep -qx 42 made");
    let ended = bench.run(&words(&["--task", &task])).await;
    let (id, rollout) = ended.rollout();
    let seen = policy.seen();
    let tokens: usize = seen.iter().map(|call| call.tokens.len()).sum();
    let expected = json!({"harness": "tiny-agent", "task_id": "t", "outcome": "passed", "reward": 1.0, "calls": 2,
        "tokens": tokens, "drift": 0});
    assert_eq!((ended.code, rollout), (Some(0), expected), "{ended:?}");
    assert_eq!(seen[1].body["messages"][2]["content"], "42\n");
    let samples = bench.export().await;
    assert_eq!(samples.len(), 1);
    assert_sampled(&samples[0], &seen);
    let evidence: Value = serde_json::from_str(&bench.artifact(&id, "evidence.json")).unwrap();
    assert_eq!((&evidence["means"], &evidence["detail"]), (&json!("completed"), &json!({"/turns": 2})));
}

#[tokio::test]
async fn a_failing_verifier_is_no_error() {
    let (_policy, bench) = bench(82, [Reply::text("I could not.")]).await;
    let task = verified(&bench, "false");
    let ended = bench.run(&words(&["--task", &task])).await;
    assert_eq!(ends(&ended), (Some(0), json!("failed"), json!(0.0)), "{ended:?}");
}

#[tokio::test]
async fn a_run_past_its_time_is_verified() {
    let (_policy, bench) = bench(83, [bash("touch begun; sleep 100")]).await;
    let task = verified(&bench, "test -e begun");
    let ended = bench.run(&words(&["--task", &task, "--timeout", "3"])).await;
    assert_eq!(ends(&ended), (Some(0), json!("timed_out"), json!(1.0)), "{ended:?}");
}

#[tokio::test]
async fn a_policy_that_is_down_is_no_reward() {
    let bench = Bench::new("http://127.0.0.1:9").with_own_cache();
    let config = bench.file("config.toml", "[policies.default]\nretry_s = 1\n");
    let task = verified(&bench, "true");
    let ended = bench.run(&words(&["--task", &task, "--config", &config])).await;
    assert_eq!(ends(&ended), (Some(1), json!("infra_error"), Value::Null), "{ended:?}");
    let (id, _) = ended.rollout();
    let said = "its last model call failed: ";
    assert!(ended.stderr.contains(&id) && ended.stderr.contains(said), "it says what went wrong: {}", ended.stderr);
    assert!(bench.artifact(&id, "stderr.log").contains("503"));
    let shown = bench.show(&id).await;
    assert_eq!(shown["calls"][0]["failure"]["kind"], "unavailable", "{:#}", shown["calls"][0]);
}

#[tokio::test]
async fn an_image_that_is_missing_is_said() {
    let (_policy, bench) = bench(84, []).await;
    let ended = bench.run(&words(&["p", "--image", "gleaner-no-such-image:none"])).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.contains("gleaner-no-such-image:none"), "{}", ended.stderr);
}

#[tokio::test]
async fn a_call_that_is_not_the_harness_s_own_is_foreign() {
    let (_policy, bench) = bench(90, [Reply::text("Mine."), Reply::text("Not mine.")]).await;
    let read = |file: &str| std::fs::read_to_string(Path::new(HARNESSES).join("tiny-agent").join(file)).unwrap();
    let spec = read("harness.toml") + "\n[signature]\nx-agent = \"tiny/*\"\n";
    bench.file("own/tiny-agent/harness.toml", &spec);
    bench.file("own/tiny-agent/build.sh", &read("build.sh"));
    let own = "\"content-type\": \"application/json\", \"x-agent\": \"tiny/1\"}";
    let agent = read("agent.py").replace("\"content-type\": \"application/json\"}", own);
    assert!(agent.contains(own), "{agent}");
    let other = "body = json.dumps({\"model\": \"any\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}).encode()\n\
                 del headers[\"x-agent\"]\nurllib.request.urlopen(urllib.request.Request(url, body, headers)).read()\nprint(";
    bench.file("own/tiny-agent/agent.py", &agent.replace("\nprint(", &format!("\n{other}")));
    let folder = bench.dir.path().join("own");
    let ended = bench.run(&["tiny-agent", "p", "--harnesses", folder.to_str().unwrap()]).await;
    assert_eq!(ends(&ended), (Some(0), json!("passed"), Value::Null), "{ended:?}");
    let (id, _) = ended.rollout();
    let shown = bench.show(&id).await;
    let expected = json!([{"call_id": shown["calls"][1]["id"], "reason": "foreign", "detail": "it has no header x-agent"}]);
    assert_eq!((&shown["left_out"], shown["samples"].as_array().unwrap().len()), (&expected, 1), "{:#}", shown["calls"]);
}

/// Much output right before the end: an engine copies it after the harness has ended.
#[tokio::test]
async fn what_a_harness_prints_is_kept_to_its_end() {
    let (_policy, bench) = bench(85, [Reply::text("Done.")]).await;
    let agent = "print(*range(200_000), sep=\"\\n\"); print(\"{\\\"status\\\": \\\"done\\\"}\")\n";
    let ended = run_own(&bench, agent).await;
    assert_eq!(ends(&ended), (Some(0), json!("passed"), Value::Null), "{ended:?}");
    let expected: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    let (id, _) = ended.rollout();
    assert!(bench.artifact(&id, "stdout.log") == expected + "{\"status\": \"done\"}\n");
}

#[tokio::test]
async fn ctrl_c_ends_every_rollout_and_clears_away() {
    let gate = Gate::closed();
    let (policy, bench) = bench(86, [Reply::text("a b c").behind(&gate), Reply::text("a b c").behind(&gate)]).await;
    let running = bench.start(&words(&["p", "--samples", "2"]), 2).await;
    policy.asked(2).await;
    running.signal("INT").await;
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let rollouts = ended.rollouts();
    assert_eq!(rollouts.len(), 2);
    for rollout in rollouts {
        let id = rollout["id"].as_str().unwrap();
        assert_eq!((&rollout["outcome"], &rollout["reward"]), (&json!("cancelled"), &Value::Null));
        assert_eq!(containers(&format!("gleaner-{id}")).await, [] as [String; 0]);
        assert!(!sockets(id).exists());
        let shown = bench.show(id).await;
        assert_eq!((&shown["rollout"]["status"], &shown["calls"][0]["status"]), (&json!("finished"), &json!("cancelled")));
    }
    policy.hung_up(0).await;
    policy.hung_up(1).await;
}

/// The folder of a rollout's sockets.
fn sockets(id: &str) -> PathBuf {
    Path::new("/tmp").join(format!("gleaner-{}", &id.replace('-', "")[16..]))
}

#[tokio::test]
async fn a_kill_leaves_nothing_that_the_next_run_does_not_clear_away() {
    let gate = Gate::closed();
    let (policy, bench) = bench(87, [bash("true"), Reply::text("a b c").behind(&gate)]).await;
    let running = bench.start(&words(&["p"]), 1).await;
    policy.asked(2).await;
    let id = bench.list().await[0]["id"].as_str().unwrap().to_owned();
    let name = format!("gleaner-{id}");
    assert_eq!(containers(&name).await, ["running"]);
    running.signal("KILL").await;
    assert_eq!(running.ended().await.code, None);
    // Another test's run may sweep it away as soon as it has ended.
    until("the container's end", async || (!containers(&name).await.contains(&"running".to_owned())).then_some(())).await;
    gate.open();
    let ended = bench.run(&words(&["again"])).await;
    assert_eq!(ends(&ended), (Some(0), json!("passed"), Value::Null), "{ended:?}");
    containers_are(&name, &[]).await;
    assert!(!sockets(&id).exists());
    let shown = bench.show(&id).await;
    let statuses: Vec<&Value> = shown["calls"].as_array().unwrap().iter().map(|call| &call["status"]).collect();
    assert_eq!(statuses, [&json!("done"), &json!("interrupted")], "{:#}", shown["rollout"]);
    assert_eq!(shown["left_out"][0]["reason"], "interrupted", "{:#}", shown["left_out"]);
    assert_sampled(&shown["samples"][0], &policy.seen()[..1]);
}

/// From inside a container the socket serves the model, and neither the API nor any other rollout.
#[tokio::test]
async fn the_socket_serves_the_model_only() {
    let probe = r#"
import json, os, urllib.error, urllib.request
base = os.environ["BASE_URL"].removesuffix("/v1")
def ask(path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json", **headers})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
def chat(key, path="/v1/chat/completions"):
    return ask(path, {"model": "m", "messages": [{"role": "user", "content": "x"}]}, **({"authorization": "Bearer " + key} if key else {}))
own, other = os.environ["KEY"], OTHER
print(json.dumps({"status": "done", "turns": {
    "api": [ask("/api/v1/rollouts"), ask("/api/v1/rollouts", {}), ask("/api/v1/openapi.json"), ask("/healthz"), ask("/metrics")],
    "reward": ask("/api/v1/rollouts/ID/reward", {"reward": 1}, authorization="Bearer " + own),
    "models": ask("/v1/models"),
    "other": [chat(other), chat("", "/rollouts/" + other + "/v1/chat/completions")],
    "unknown": chat("glr_00000000000000000000000000000000"),
    "own": [chat(own), chat(""), chat("sk-anything"), chat(own, "/rollouts/" + own + "/v1/chat/completions")],
}}))
"#;
    let (policy, bench) = bench(88, []).await;
    let mut server = Start { database: Some(bench.database()), ..Start::new(policy.url()) }.run().await;
    let other = server.rollout(json!({})).await;
    let agent = probe.replace("OTHER", &format!("{:?}", other.key)).replace("/ID/", &format!("/{}/", other.id));
    let ended = run_own(&bench, &agent).await;
    let (id, rollout) = ended.rollout();
    let evidence: Value = serde_json::from_str(&bench.artifact(&id, "evidence.json")).unwrap();
    let expected = json!({
        "api": [404, 404, 404, 404, 404], "reward": 404, "models": 200, "other": [403, 403], "unknown": 401,
        "own": [200, 200, 200, 200],
    });
    assert_eq!(evidence["detail"]["/turns"], expected, "{evidence:#}");
    assert_eq!((ended.code, &rollout["calls"]), (Some(0), &json!(4)), "all are this rollout's: {ended:?}");
    assert_eq!(server.calls(&other.id).await.len(), 0);
    server.kill().await;
}
