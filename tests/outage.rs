//! In the middle of a batch the policy goes away for a while, or the engine dies: the batch goes on as if nothing had been. Needs Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]
#![allow(clippy::print_stdout, reason = "what an outage cost is part of the answer")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::dockerd::Dockerd;
use support::is_wide;
use support::policy::{Gate, Reply, ScriptedPolicy, Seen};
use support::run::{Bench, Ended, assert_all_sampled};
use support::turns::call;

const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");
const IMAGE: &str = "gleaner-base:bookworm";
/// How long the policy is down.
const DOWN: Duration = Duration::from_mins(2);

/// A policy that tells each conversation to make a file with this tool, and ends it when the gate is open.
async fn policy(seed: u64, tool: &str, argument: &str) -> (ScriptedPolicy, Gate) {
    let (policy, gate) = (ScriptedPolicy::start(seed, []).await, Gate::closed());
    let mut arguments = json!({});
    arguments[argument] = json!("echo 42 > made");
    policy.each_conversation([call(tool, &arguments), Reply::text("Done in {n}.").behind(&gate)]);
    (policy, gate)
}

/// So many tasks, each of which looks for that file.
fn tasks(bench: &Bench, count: usize) -> String {
    let line = |number| {
        format!("{}\n", json!({"id": format!("t{number}"), "prompt": format!("Do {number}."), "verify": "grep -qx 42 made"}))
    };
    bench.file("tasks.jsonl", &(0..count).map(line).collect::<String>())
}

/// Checks that a batch has ended whole: each place filled once, and all that was sampled to the end in a sample. Gives the rollouts
/// that fill none.
async fn whole(bench: &Bench, ended: &Ended, policy: &ScriptedPolicy, places: usize) -> Vec<Value> {
    let rollouts = bench.list().await;
    assert_eq!(ended.code, Some(0), "{ended:?}\n{rollouts:#?}");
    let (valid, broken): (Vec<Value>, Vec<Value>) = rollouts.into_iter().partition(|rollout| rollout["outcome"] == "passed");
    let filled: BTreeSet<String> = valid.iter().map(|one| format!("{} {}", one["group_id"], one["index"])).collect();
    assert_eq!((valid.len(), filled.len()), (places, places), "{valid:#?}");
    assert!(valid.iter().all(|one| one["reward"] == 1.0 && one["evidence"]["drift"] == 0), "{valid:#?}");
    bench.look(&["store", "check"]).await;
    let ids: BTreeSet<&str> = valid.iter().map(|one| one["id"].as_str().unwrap()).collect();
    let exported: Vec<Value> =
        bench.export().await.into_iter().filter(|sample| ids.contains(sample["rollout_id"].as_str().unwrap())).collect();
    assert_eq!(exported.len(), places);
    if broken.is_empty() {
        let told: Vec<Seen> = policy.seen().into_iter().filter(|seen| seen.finished).collect();
        assert_all_sampled(&exported, &told);
    }
    broken
}

/// With all settings as they are shipped: nothing fails, nothing is tried again, and nothing of a conversation is lost.
async fn a_down_policy_is_waited_for(seed: u64, harness: &str, tool: &str, argument: &str, weight: u32) {
    if !is_wide(&format!("{harness} without a policy for two minutes")) {
        return;
    }
    let (mut policy, gate) = policy(seed, tool, argument).await;
    let bench = Bench::new(policy.url());
    let tasks = tasks(&bench, 2);
    let words =
        ["batch", &tasks, "--harness", harness, "--harnesses", HARNESSES, "--samples", "2", "--concurrency", "2", "--json"];
    let began = Instant::now();
    let running = bench.spawn(&words, weight).await;
    // One by one: real harnesses take seconds each before they ask.
    for asked in 1..=4 {
        policy.asked(asked).await;
    }
    policy.die().await;
    let before = began.elapsed();
    gate.open();
    tokio::time::sleep(DOWN).await;
    policy.come_back();
    let back = Instant::now();
    let ended = running.ended().await;
    let broken = whole(&bench, &ended, &policy, 4).await;
    let calls: Vec<String> = bench.list().await.iter().map(|one| one["calls"].to_string()).collect();
    println!(
        "{harness}: {:.1} s before, {} s without a policy, {:.1} s after; calls of its rollouts: {}",
        before.as_secs_f64(),
        DOWN.as_secs(),
        back.elapsed().as_secs_f64(),
        calls.join(" ")
    );
    assert_eq!(broken, [] as [Value; 0]);
}

#[tokio::test]
async fn codex_waits_for_its_policy() {
    a_down_policy_is_waited_for(951, "codex", "exec_command", "cmd", 2).await;
}

#[tokio::test]
async fn claude_code_waits_for_its_policy() {
    a_down_policy_is_waited_for(952, "claude-code", "Bash", "command", 2).await;
}

/// It does not stream, and repeats nothing by itself.
#[tokio::test]
async fn tiny_agent_waits_for_its_policy() {
    a_down_policy_is_waited_for(953, "tiny-agent", "bash", "command", 2).await;
}

/// Killed while two rollouts are on their second turn, and once more wherever it hits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a dockerd of its own, which needs root"]
async fn a_batch_goes_on_when_its_engine_was_killed() {
    if !is_wide("a batch whose dockerd is killed twice") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut dockerd = Dockerd::start(folder.path());
    dockerd.answers().await;
    dockerd.take_image(IMAGE).await;
    let (policy, gate) = policy(954, "bash", "command").await;
    let bench = Bench::new(policy.url()).with_own_cache().with_env("DOCKER_HOST", dockerd.host());
    let tasks = tasks(&bench, 3);
    let words = ["batch", &tasks, "--harness", "tiny-agent", "--harnesses", HARNESSES, "--samples", "2", "--concurrency", "2"];
    let running = bench.spawn(&[&words[..], &["--engine", "docker", "--json"]].concat(), 2).await;
    for asked in 1..=4 {
        policy.asked(asked).await;
    }
    let open: BTreeSet<String> = bench.list().await.iter().map(|one| one["id"].to_string()).collect();
    let mut killed = async |wait: u64| {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        dockerd.end("-KILL");
        dockerd = Dockerd::start(folder.path());
        dockerd.answers().await;
    };
    killed(0).await;
    gate.open();
    killed(u64::from(std::process::id() % 2000)).await;
    let ended = running.ended().await;
    let broken = whole(&bench, &ended, &policy, 6).await;
    for one in &broken {
        assert_eq!((&one["outcome"], &one["reward"], &one["no_reward"]), (&json!("infra_error"), &Value::Null, &json!(true)));
        println!("{}: {}", one["id"], one["evidence"]["error"]);
    }
    let replaced: BTreeSet<String> = broken.iter().map(|one| one["id"].to_string()).collect();
    assert!(open.len() == 2 && open.is_subset(&replaced), "what the first kill broke is kept: {open:?} {broken:#?}");
    assert_eq!(dockerd.containers().await, [] as [String; 0]);
}
