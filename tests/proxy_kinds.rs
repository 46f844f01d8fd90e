//! What calls are to their rollout, drift, and looking at tokens, through the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Made, Start, binary};
use support::policy::{Reply, ScriptedPolicy};
use support::{until, within};

const PATH: &str = "/v1/chat/completions";

/// Posts a chat request with these headers beside the rollout's key; gives the call's id.
async fn ask(gleaner: &Gleaner, made: &Made, headers: &[(&str, &str)], body: &Value) -> String {
    let headers = [&[("x-api-key", made.key.as_str())], headers].concat();
    let mut answer = gleaner.send("POST", PATH, &headers, body.to_string().as_bytes()).await;
    let id = answer.call_id();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.unwrap();
    until("the note of its delivery", async || (gleaner.record(&id).await.0["delivered"] == true).then_some(())).await;
    id
}

/// Runs a command on the server's store; gives what it prints.
async fn command(gleaner: &Gleaner, arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::new(binary());
    command.args(arguments).arg("--database").arg(&gleaner.database).env_remove("GLEANER_CONFIG");
    let output = within("a command", command.output()).await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[tokio::test]
async fn what_a_harness_says_of_its_calls_is_kept_and_told() {
    let policy = ScriptedPolicy::start(401, [Reply::text("one"), Reply::text("two"), Reply::text("three")]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let body = |text: &str| json!({"model": "m", "messages": [user(text)]});
    ask(&gleaner, &made, &[], &body("a")).await;
    let metadata = r#"{"turn_id": "t", "request_kind": "compaction"}"#;
    ask(&gleaner, &made, &[("x-codex-turn-metadata", metadata)], &body("b")).await;
    let third = ask(&gleaner, &made, &[("X-Claude-Code-Agent-Id", "a7")], &body("c")).await;
    let calls = gleaner.calls(&made.id).await;
    let kinds: Vec<&Value> = calls.iter().map(|call| &call.0["kind"]).collect();
    assert_eq!(kinds, ["main", "compaction", "subagent"]);
    assert_eq!(gleaner.record(&third).await.0["marks"], json!([{"name": "x-claude-code-agent-id", "value": "a7"}]));
    let (samples, _) = gleaner.samples(&made.id).await;
    assert_eq!(samples.iter().map(|sample| &sample["kind"]).collect::<Vec<_>>(), ["main", "compaction", "subagent"]);
    // Left out by kind, each is named.
    let out = gleaner.dir.path().join("s.jsonl");
    let arguments = ["export", "samples", "--out", out.to_str().unwrap(), "--without", "side,compaction", "--check", "--json"];
    let summary: Value = serde_json::from_str(&command(&gleaner, &arguments).await).unwrap();
    assert_eq!((&summary["samples"], &summary["left_out"]), (&json!(2), &json!({"side_call": 1})), "{summary}");
    let shown = command(&gleaner, &["show", &made.id]).await;
    assert!(shown.contains("compaction") && shown.contains("subagent"), "{shown}");
}

/// A tool call that the client sends again under the tool's bare name, so that the next prompt has other tokens for what reads the same.
async fn drifted(config: &str) -> (Gleaner, Made, [String; 2]) {
    let script = [Reply::tools(&[("mcp__look", "{}")]), Reply::text("the second")];
    let policy = ScriptedPolicy::start(402, script).await;
    let gleaner = Start::new(policy.url()).config(config).run().await;
    let made = gleaner.plain_rollout().await;
    let body = |messages: &[Value]| json!({"model": "m", "messages": messages});
    let mut messages = vec![user("a question")];
    let first = ask(&gleaner, &made, &[], &body(&messages)).await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    messages.push(json!({"role": "tool", "tool_call_id": "c", "content": "seen"}));
    let second = ask(&gleaner, &made, &[], &body(&messages)).await;
    (gleaner, made, [first, second])
}

#[tokio::test]
async fn drift_is_one_sample_where_the_config_says_so() {
    let (gleaner, made, [first, second]) = drifted("[record]\ndrift = \"realign\"\n").await;
    assert_eq!(gleaner.api(&format!("/rollouts/{}", made.id)).await["drift"], 1);
    let (samples, left_out) = gleaner.samples(&made.id).await;
    assert_eq!((samples.len(), &left_out), (1, &vec![json!({"call_id": first, "reason": "realigned"})]));
    let spans = samples[0]["spans"].as_array().unwrap();
    assert_eq!(spans.iter().map(|span| &span["call_id"]).collect::<Vec<_>>(), [&first, &second]);
    assert_eq!((&spans[0]["realigned"], &spans[1]["realigned"]), (&json!(true), &Value::Null));
    let out = gleaner.dir.path().join("s.jsonl");
    let arguments = ["export", "samples", "--out", out.to_str().unwrap(), "--check", "--json", "--drift"];
    for (drift, samples) in [("fork", 2), ("realign", 1)] {
        let summary: Value = serde_json::from_str(&command(&gleaner, &[&arguments[..], &[drift]].concat()).await).unwrap();
        assert_eq!(summary["samples"], samples, "{drift}: {summary}");
    }
}

#[tokio::test]
async fn the_place_where_tokens_part_is_shown() {
    let (gleaner, made, [first, second]) = drifted("").await;
    let shown = command(&gleaner, &["show", &made.id, "--tokens"]).await;
    assert!(shown.contains(&format!(", inside the reply of call {first}\n  there: ")), "{shown}");
    assert!(shown.contains(&format!("ids sampled by call {second}")) && shown.contains("\n  here: "), "{shown}");
    let shown = command(&gleaner, &["show", &made.id, "--diff", &first, &second]).await;
    assert!(shown.contains(&format!(" tokens into the reply of call {first}\n")), "{shown}");
    assert!(shown.contains("messages: of call") && shown.contains("with other tool calls"), "{shown}");
}
