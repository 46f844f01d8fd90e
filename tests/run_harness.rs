//! The main job: `gleaner run` with real harnesses, unmodified, in containers without network. What the policy sampled is what a
//! trainer reads, id by id and bit by bit. Needs Docker and, the first time, the package registries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::policy::{Reply, ScriptedPolicy};
use support::run::Bench;
use support::turns::{MAKE, SUBMIT, Turns, call, fenced, task};

/// Two turns on a harness's own wire, of so many rollouts at once.
async fn two_turns(
    harness: &str,
    sampling: u64,
    replies: [Reply; 2],
    streams: bool,
    rollouts: u32,
) -> (Bench, ScriptedPolicy, Vec<String>) {
    let wire = if harness == "codex" { "responses" } else { "chat" };
    Turns { harness, wire, sampling, replies, streams, rollouts, samples: 1, weight: 1 }.check().await
}

fn codex() -> [Reply; 2] {
    [call("exec_command", &json!({"cmd": MAKE})).thinking("I should look first."), Reply::text("Made it in turn {n}.")]
}

#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn codex_is_recorded_exactly() {
    let (bench, policy, ids) = two_turns("codex", 71, codex(), true, 1).await;
    let second = &policy.seen()[1].body["messages"];
    let output = second.as_array().unwrap().iter().find(|message| message["role"] == "tool").unwrap();
    assert!(output["content"].to_string().contains("SEED"), "its shell ran in the container: {output}");
    let evidence: Value = serde_json::from_str(&bench.artifact(&ids[0], "evidence.json")).unwrap();
    assert!(evidence["exit"]["ms"].as_u64().unwrap() < 20_000, "nothing is waited for in vain: {evidence:#}");
}

#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn codex_side_by_side_is_a_group() {
    let (bench, _policy, ids) = two_turns("codex", 72, codex(), true, 2).await;
    let rollouts = bench.list().await;
    let group = &rollouts[0]["group_id"];
    assert!(group.is_string());
    for id in &ids {
        let rollout = rollouts.iter().find(|rollout| rollout["id"] == *id).unwrap();
        assert_eq!((&rollout["group_id"], &rollout["group_size"], &rollout["purpose"]), (group, &json!(2), &json!("train")));
    }
    let mut indices: Vec<u64> = rollouts.iter().map(|rollout| rollout["index"].as_u64().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1]);
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn mini_swe_agent_is_recorded_exactly() {
    let turns = [call("bash", &json!({"command": MAKE})), call("bash", &json!({"command": SUBMIT}))];
    let (_bench, policy, _ids) = two_turns("mini-swe-agent", 73, turns, false, 1).await;
    let second = policy.seen()[1].body["messages"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(second["role"], "tool");
    assert!(second["content"].to_string().contains("SEED"), "its shell ran in the container: {second}");
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn mini_swe_agent_without_tools_is_recorded_exactly() {
    let (_bench, policy, _ids) = two_turns("mini-swe-agent:text", 74, [fenced(MAKE), fenced(SUBMIT)], false, 1).await;
    assert!(policy.seen().iter().all(|seen| seen.body.get("tools").is_none()));
}

/// Nine requests of a minute each would be Codex's own way; it is told to leave most of that to Gleaner.
#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn codex_gives_up_soon_when_the_policy_is_down() {
    let bench = Bench::new("http://127.0.0.1:9");
    let config = bench.file("config.toml", "[policies.default]\nretry_s = 1\n");
    let task = task(&bench);
    let ended = bench.run(&["codex", "--task", &task, "--config", &config]).await;
    let (id, rollout) = ended.rollout();
    let expected = json!({"harness": "codex", "task_id": "upper", "outcome": "infra_error", "reward": null,
        "calls": 3, "tokens": 0, "drift": 0});
    assert_eq!((ended.code, rollout), (Some(1), expected), "{ended:?}");
    let evidence: Value = serde_json::from_str(&bench.artifact(&id, "evidence.json")).unwrap();
    assert_eq!(evidence["means"], "error", "{evidence:#}");
    assert!(evidence["detail"]["/error/message"].as_str().unwrap().contains("can't be reached"), "{evidence:#}");
    assert_eq!(bench.show(&id).await["samples"], json!([]));
}
