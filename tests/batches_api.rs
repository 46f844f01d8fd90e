//! Batches that a server runs: ordered, watched, cancelled and gone on with by the API, and by our own commands with `--server`.
//! Needs Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use support::client::{get, send};
use support::gleaner::{Gleaner, Start};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::run::{Bench, containers_are};
use support::{until, within};
use tempfile::TempDir;

const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");

/// A server with the harnesses of the tests, whose batches ask this policy.
async fn serve(policy: &ScriptedPolicy, dir: Option<Arc<TempDir>>, config: &str) -> Gleaner {
    let env = vec![("GLEANER_HARNESSES".to_owned(), HARNESSES.to_owned())];
    Start { dir, env, ..Start::new(policy.url()).config(config) }.run().await
}

/// An order of this many tasks with so many samples each.
fn order(tasks: usize, samples: u32) -> Value {
    let task = |number: usize| json!({"id": format!("t{number}"), "prompt": "p", "verify": "true"});
    let tasks: Vec<Value> = (0..tasks).map(task).collect();
    json!({"tasks": tasks, "harnesses": [{"harness": "tiny-agent"}], "samples": samples})
}

/// Orders a batch; gives its id.
async fn ordered(gleaner: &Gleaner, order: Value) -> String {
    let (status, made) = gleaner.api_post("/batches", order).await;
    assert_eq!((status, &made["status"]), (201, &json!("running")), "{made}");
    made["id"].as_str().unwrap().to_owned()
}

/// A batch, once this holds of it.
async fn batch_when(gleaner: &Gleaner, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    until(what, async || Some(gleaner.api(&format!("/batches/{id}")).await).filter(|batch| holds(batch))).await
}

async fn batch_ended(gleaner: &Gleaner, id: &str) -> Value {
    batch_when(gleaner, id, "a batch's end", |batch| batch["status"] != "running").await
}

async fn delete(gleaner: &Gleaner, id: &str) -> (u16, Value) {
    let mut answer = send(gleaner.addr, "DELETE", &format!("/api/v1/batches/{id}"), &[], b"").await.unwrap();
    (answer.status(), answer.json().await)
}

/// All rollouts that were run for a batch.
async fn rollouts_of(gleaner: &Gleaner, id: &str) -> Vec<Value> {
    gleaner.api(&format!("/rollouts?batch_id={id}")).await["rollouts"].as_array().unwrap().clone()
}

async fn no_container_of(rollouts: &[Value]) {
    for rollout in rollouts {
        containers_are(&format!("gleaner-{}", rollout["id"].as_str().unwrap()), &[]).await;
    }
}

#[tokio::test]
async fn a_batch_is_watched_to_its_end() {
    let gate = Gate::closed();
    let replies = [Reply::text("Done.").behind(&gate), Reply::text("Done.").behind(&gate)];
    let policy = ScriptedPolicy::start(301, replies).await;
    let gleaner = serve(&policy, None, "").await;
    let key = [("idempotency-key", "one")];
    let body = order(1, 2).to_string();
    let mut first = gleaner.send("POST", "/api/v1/batches", &key, body.as_bytes()).await;
    let made = first.json().await;
    assert_eq!((first.status(), &made["rollouts"]), (201, &json!(2)), "{made}");
    let id = made["id"].as_str().unwrap();
    let mut again = gleaner.send("POST", "/api/v1/batches", &key, body.as_bytes()).await;
    assert_eq!((again.status(), again.json().await["id"].as_str()), (200, Some(id)));
    let other = gleaner.send("POST", "/api/v1/batches", &key, order(2, 2).to_string().as_bytes()).await;
    assert_eq!(other.status(), 422);

    let on_a_turn = |rollout: &Value| rollout["turn"] == 1 && rollout["doing"] == "the harness runs";
    let two = |batch: &Value| batch["running"].as_array().unwrap().iter().filter(|rollout| on_a_turn(rollout)).count() == 2;
    let seen = batch_when(&gleaner, id, "two rollouts on their first turn", two).await;
    assert_eq!((&seen["ended"], &seen["groups"]), (&json!(0), &json!({"total": 1, "ready": 0})), "{seen:#}");
    let indices: BTreeSet<u64> = seen["running"].as_array().unwrap().iter().map(|r| r["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, BTreeSet::from([0, 1]));
    gate.open();

    let done = batch_ended(&gleaner, id).await;
    let facts = ["status", "ended", "outcomes", "groups", "running", "error"].map(|name| done[name].clone());
    let expected = [json!("done"), json!(2), json!({"passed": 2}), json!({"total": 1, "ready": 1}), json!([]), Value::Null];
    assert_eq!(facts, expected, "{done:#}");
    assert_eq!((&done["summary"][0]["pass_rate"], &done["summary"][0]["pass_at"]["2"]), (&json!(1.0), &json!(1.0)));
    let rows = gleaner.api(&format!("/batches/{id}/rollouts?limit=1")).await;
    let next = gleaner.api(&format!("/batches/{id}/rollouts?after={}", rows["next"].as_str().unwrap())).await;
    assert_eq!((rows["rollouts"].as_array().unwrap().len(), next["rollouts"].as_array().unwrap().len()), (1, 1));
    assert_eq!(
        (&next["rollouts"][0]["outcome"], &next["rollouts"][0]["reward"], &next["next"]),
        (&json!("passed"), &json!(1.0), &Value::Null)
    );
    let rollouts = rollouts_of(&gleaner, id).await;
    let run: Vec<_> = rollouts.iter().map(|rollout| (rollout["batch_id"].as_str(), rollout["attempt"].as_u64())).collect();
    assert_eq!(run, [(Some(id), Some(1)), (Some(id), Some(1))]);
    let listed = gleaner.api("/batches").await;
    assert_eq!(
        (&listed["batches"][0]["id"], &listed["batches"][0]["status"], &listed["next"]),
        (&json!(id), &json!("done"), &Value::Null)
    );
    let artifacts = gleaner.api(&format!("/rollouts/{}/artifacts", rollouts[0]["id"].as_str().unwrap())).await;
    let names: Vec<&str> = artifacts["artifacts"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"evidence.json") && names.contains(&"stdout.log"), "{names:?}");
    assert_eq!(delete(&gleaner, id).await.0, 409, "it is done");
}

#[tokio::test]
async fn a_wrong_order_names_its_field() {
    let gleaner = serve(&ScriptedPolicy::start(302, []).await, None, "").await;
    let task = json!([{"id": "a", "prompt": "p"}]);
    let tiny = json!([{"harness": "tiny-agent"}]);
    for (body, words) in [
        (json!({}), "`tasks`"),
        (json!({"tasks": task}), "`harnesses`"),
        (json!({"tasks": 7, "harnesses": tiny}), "`tasks` is neither a path nor a list"),
        (json!({"tasks": [{"id": "a", "promt": "p"}], "harnesses": tiny}), "promt"),
        (json!({"tasks": "t.jsonl", "harnesses": tiny}), "not absolute"),
        (json!({"tasks": "/no/such", "harnesses": tiny}), "/no/such"),
        (json!({"tasks": task, "harnesses": []}), "no harness"),
        (json!({"tasks": task, "harnesses": [{"harness": "tiny-agnt"}]}), "tiny-agent"),
        (json!({"tasks": task, "harnesses": [{"harness": "tiny-agent", "set": {"x": "1"}}]}), "x"),
        (json!({"tasks": task, "harnesses": tiny, "samples": 0}), "samples must be at least 1"),
        (json!({"tasks": task, "harnesses": tiny, "concurrency": 0}), "concurrency must be at least 1"),
        (json!({"tasks": task, "harnesses": tiny, "smaples": 2}), "unknown field `smaples`"),
        (json!({"tasks": task, "harnesses": tiny, "only": ["b"]}), "there is no task b"),
        (json!({"tasks": task, "harnesses": tiny, "policy": "judge"}), "policy: there is no policy judge"),
        (json!({"tasks": task, "harnesses": tiny, "max_unleased_groups": 2}), "can't be leased yet"),
    ] {
        let (status, problem) = gleaner.api_post("/batches", body.clone()).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 400 && detail.contains(words), "{body}: {status} {detail}");
    }
    assert_eq!(gleaner.api("/batches").await, json!({"batches": [], "next": null}), "nothing was begun");
    let unknown = "01900000-0000-7000-8000-000000000001";
    for path in [format!("/batches/{unknown}"), format!("/batches/{unknown}/rollouts"), "/batches/x".to_owned()] {
        assert_eq!(get(gleaner.addr, &format!("/api/v1{path}"), &[]).await.status(), 404, "{path}");
    }
    assert_eq!(delete(&gleaner, unknown).await.0, 404);
    assert_eq!(gleaner.api_post(&format!("/batches/{unknown}/resume"), json!({})).await.0, 404);
}

#[tokio::test]
async fn a_cancelled_batch_leaves_no_container() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(303, [Reply::text("a b").behind(&gate), Reply::text("a b").behind(&gate)]).await;
    let gleaner = serve(&policy, None, "").await;
    let id = ordered(&gleaner, order(3, 1)).await;
    policy.asked(2).await;
    let (status, batch) = within("cancelling", delete(&gleaner, &id)).await;
    assert_eq!((status, &batch["status"], &batch["running"]), (200, &json!("cancelled"), &json!([])), "{batch:#}");
    let rollouts = rollouts_of(&gleaner, &id).await;
    assert!(rollouts.len() >= 2 && rollouts.iter().all(|rollout| rollout["outcome"] == "cancelled"), "{rollouts:#?}");
    no_container_of(&rollouts).await;
    assert_eq!(delete(&gleaner, &id).await.0, 200, "a repeat changes nothing");
    let (status, problem) = gleaner.api_post(&format!("/batches/{id}/resume"), json!({})).await;
    assert_eq!(status, 409, "{problem}");
}

#[tokio::test]
async fn a_server_that_ended_or_died_goes_on_with_its_batch() {
    let gate = Gate::closed();
    let replies = [Reply::text("a b").behind(&gate), Reply::text("a b").behind(&gate)];
    let policy = ScriptedPolicy::start(304, replies).await;
    let mut first = serve(&policy, None, "[rollout]\nresume = false\nconcurrency = 1\n").await;
    let id = ordered(&first, order(2, 1)).await;
    policy.asked(1).await;
    first.terminate().await;
    assert_eq!(first.ended().await.code(), Some(0), "it drains: {}", first.log());
    let dir = Arc::clone(&first.dir);

    let mut second = serve(&policy, Some(Arc::clone(&dir)), "[rollout]\nresume = false\nconcurrency = 1\n").await;
    assert_eq!(second.api(&format!("/batches/{id}")).await["status"], "stopped");
    no_container_of(&rollouts_of(&second, &id).await).await;
    let (status, batch) = second.api_post(&format!("/batches/{id}/resume"), json!({})).await;
    assert_eq!((status, &batch["status"]), (200, &json!("running")), "{batch}");
    assert_eq!(second.api_post(&format!("/batches/{id}/resume"), json!({})).await.0, 409, "it runs");
    policy.asked(2).await;
    second.kill().await;
    gate.open();

    let third = serve(&policy, Some(dir), "").await;
    let done = batch_ended(&third, &id).await;
    assert_eq!((&done["status"], &done["outcomes"]), (&json!("done"), &json!({"passed": 2})), "{done:#}");
    let rollouts = rollouts_of(&third, &id).await;
    let outcome = |rollout: &Value| rollout["outcome"].as_str().unwrap().to_owned();
    let outcomes: Vec<String> = rollouts.iter().map(outcome).collect();
    let of = |name: &str| outcomes.iter().filter(|outcome| *outcome == name).count();
    assert_eq!((of("cancelled"), of("infra_error"), of("passed")), (1, 1, 2), "{outcomes:?}");
    no_container_of(&rollouts).await;
}

#[tokio::test]
async fn a_batch_that_comes_later_gets_its_turn() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(305, [Reply::text("a b").behind(&gate)]).await;
    let gleaner = serve(&policy, None, "[rollout]\nconcurrency = 1\n").await;
    let mut greedy = order(4, 1);
    greedy["concurrency"] = json!(50);
    let long = ordered(&gleaner, greedy).await;
    policy.asked(1).await;
    let short = ordered(&gleaner, order(1, 1)).await;
    batch_when(&gleaner, &short, "the short one waiting", |batch| batch["status"] == "running").await;
    gate.open();
    for id in [&long, &short] {
        assert_eq!(batch_ended(&gleaner, id).await["status"], "done");
    }
    let begun = async |id: &str| -> Vec<String> {
        let rollouts = rollouts_of(&gleaner, id).await;
        rollouts.iter().map(|rollout| rollout["created_at"].as_str().unwrap().to_owned()).collect()
    };
    let (long, short) = (begun(&long).await, begun(&short).await);
    assert!(short[0] < long[2], "not after all of the long one: {short:?} {long:?}");
}

#[tokio::test]
async fn our_own_commands_use_a_running_server() {
    let policy = ScriptedPolicy::start(306, []).await;
    let gleaner = serve(&policy, None, "").await;
    let url = format!("http://{}", gleaner.addr);
    let bench = Bench::new(policy.url());
    let ran = bench.run(&["tiny-agent", "p", "--server", &url]).await;
    let (id, rollout) = ran.rollout();
    assert_eq!((ran.code, &rollout["outcome"], &rollout["calls"]), (Some(0), &json!("passed"), &json!(1)), "{ran:?}");
    assert_eq!(gleaner.calls(&id).await.len(), 1, "it is in the server's store");
    assert!(!bench.database().exists(), "and in none of its own");
    let tasks = bench.file(
        "tasks.jsonl",
        "{\"id\": \"a\", \"prompt\": \"p\", \"verify\": \"true\"}\n{\"id\": \"b\", \"prompt\": \"p\", \"verify\": \"false\"}\n",
    );
    let said = bench.look(&["batch", &tasks, "--harness", "tiny-agent", "--server", &url, "--json"]).await;
    let line: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let outcomes: Vec<_> =
        line["rollouts"].as_array().unwrap().iter().map(|r| (r["task_id"].clone(), r["outcome"].clone())).collect();
    assert_eq!(outcomes, [(json!("a"), json!("passed")), (json!("b"), json!("failed"))], "{said}");
    assert_eq!(line["summary"][0]["pass_rate"], 0.5, "{said}");
    for (words, code, text) in [
        (&["tiny-agnt", "p", "--server", &url][..], 2, "tiny-agent"),
        (&["tiny-agent", "p", "--server", &url, "--harnesses", HARNESSES], 2, "harnesses are the server's"),
        (&["tiny-agent", "--task", "/no/such", "--server", &url], 2, "/no/such"),
        (&["tiny-agent", "p", "--server", "127.0.0.1:1"], 2, "http://"),
        (&["tiny-agent", "p", "--server", "http://127.0.0.1:1"], 1, "asking the server at http://127.0.0.1:1"),
    ] {
        let ended = bench.run(words).await;
        assert!(ended.code == Some(code) && ended.stderr.contains(text), "{words:?}: {ended:?}");
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_batch_on_the_server() {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(307, [Reply::text("a b").behind(&gate)]).await;
    let gleaner = serve(&policy, None, "").await;
    let bench = Bench::new(policy.url());
    let running = bench.start(&["tiny-agent", "p", "--server", &format!("http://{}", gleaner.addr)], 1).await;
    policy.asked(1).await;
    running.signal("INT").await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &ended.rollout().1["outcome"]), (Some(1), &json!("cancelled")), "{ended:?}");
    let batches = gleaner.api("/batches").await;
    assert_eq!(batches["batches"][0]["status"], "cancelled");
    no_container_of(&rollouts_of(&gleaner, batches["batches"][0]["id"].as_str().unwrap()).await).await;
    policy.hung_up(0).await;
}
