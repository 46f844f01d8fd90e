//! `gleaner harness check` itself: it passes what is fit for training, and says of what is not what is wrong with it. Needs Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::run::{Bench, Ended};

const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");

fn original(file: &str) -> String {
    std::fs::read_to_string(Path::new(HARNESSES).join("tiny-agent").join(file)).unwrap()
}

/// Puts `new` in the place of `old`, which must be there.
fn with(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "there is no {old:?} in {text}");
    text.replace(old, new)
}

/// Checks the harness with another agent and more in its description.
async fn check(agent: &str, spec: &str) -> (Bench, Ended) {
    let bench = Bench::new("").with_own_cache();
    bench.file("own/tiny-agent/harness.toml", &(original("harness.toml") + spec));
    bench.file("own/tiny-agent/build.sh", &original("build.sh"));
    bench.file("own/tiny-agent/agent.py", agent);
    let own = bench.dir.path().join("own");
    let words = ["harness", "check", "tiny-agent", "--harnesses", own.to_str().unwrap(), "--timeout", "60", "--json"];
    let ended = bench.other(&words).await;
    (bench, ended)
}

/// What it says of a harness that is wrong: the check, and its faults in one text.
async fn fails(agent: &str, spec: &str) -> (Value, String) {
    let (_bench, ended) = check(agent, spec).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = told(&ended);
    let checked = said["checks"][0].clone();
    // What is left is there to be looked at, and is the test's to remove.
    let kept = Path::new(said["kept"].as_str().unwrap());
    assert!(kept.join("gleaner.db").is_file(), "{said}");
    let artifacts = Path::new(checked["artifacts"].as_str().unwrap());
    assert!(artifacts.starts_with(kept) && artifacts.join("stderr.log").is_file(), "{said}");
    std::fs::remove_dir_all(kept).unwrap();
    assert_eq!(checked["ok"], false, "{checked}");
    let faults: Vec<&str> = checked["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    let faults = faults.join("\n");
    (checked, faults)
}

fn told(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[tokio::test]
async fn a_harness_that_is_fit_for_training_passes() {
    let (_bench, ended) = check(&original("agent.py"), "").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = told(&ended);
    assert_eq!(said["kept"], Value::Null, "nothing is left");
    let mut checked = said["checks"][0].clone();
    let notes = checked["notes"].take();
    for name in ["ms", "rollout", "notes"] {
        checked.as_object_mut().unwrap().shift_remove(name);
    }
    let expected = json!({"harness": "tiny-agent", "version": "1", "wire": "chat", "calls": 2, "samples": 1, "ok": true, "faults": [],
        "outcome": "passed", "artifacts": null});
    assert_eq!(checked, expected);
    let notes = notes.as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect::<Vec<_>>().join("\n");
    for part in ["its shell is bash was a guess", "no [signature]", "not told the policy's window"] {
        assert!(notes.contains(part), "{notes}");
    }
}

#[tokio::test]
async fn a_history_that_is_rewritten_is_more_than_one_sample() {
    let agent =
        with(&original("agent.py"), "messages.append(message)", "messages.append({**message, \"content\": \"I did it.\"})");
    let (checked, faults) = fails(&agent, "").await;
    assert_eq!((&checked["samples"], &checked["outcome"]), (&json!(2), &json!("passed")), "{checked}");
    assert!(faults.starts_with("one conversation became 2 samples instead of 1: the reply of call "), "{faults}");
    assert!(faults.contains("came back with other content"), "it says what was rewritten: {faults}");
    // What is known is no fault, if it is that.
    let known = "\n[check]\nsamples = 2\nbecause = \"came back with other content\"\n";
    let (_bench, ended) = check(&agent, known).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (_, faults) = fails(&agent, &with(known, "other content", "other tools")).await;
    assert!(
        faults.starts_with("one conversation became 2 samples as [check] says, but not because \"came back with other tools\""),
        "{faults}"
    );
    let (_, faults) = fails(&original("agent.py"), known).await;
    assert!(faults.starts_with("one conversation became 1 sample, and [check] says 2"), "{faults}");
}

#[tokio::test]
async fn a_tool_that_is_not_run_makes_no_file() {
    let agent = with(&original("agent.py"), "[\"sh\", \"-c\", command]", "[\"echo\", command]");
    let (checked, faults) = fails(&agent, "").await;
    assert_eq!((&checked["outcome"], &checked["samples"]), (&json!("failed"), &json!(1)), "{checked}");
    assert_eq!(faults.lines().count(), 1, "nothing else is wrong: {faults}");
    assert!(faults.starts_with("the file that its shell was told to make is not there"), "{faults}");
}

#[tokio::test]
async fn a_harness_that_breaks_is_told_with_its_own_words() {
    let (_, faults) = fails("import sys\nsys.exit('out of order')\n", "").await;
    assert!(faults.starts_with("it ended as harness_error: ") && faults.contains("exit code 1"), "{faults}");
    assert!(faults.contains("it made 0 calls instead of 2"), "{faults}");
}

#[tokio::test]
async fn calls_without_the_signature_are_foreign() {
    let (checked, faults) = fails(&original("agent.py"), "\n[signature]\nx-agent = \"tiny/*\"\n").await;
    assert_eq!(checked["samples"], 0, "{checked}");
    assert_eq!(faults.lines().count(), 1, "nothing else is wrong: {faults}");
    assert!(faults.starts_with("2 calls of its own taken for foreign (it has no header x-agent)"), "{faults}");
}

#[tokio::test]
async fn a_wrong_tool_is_told_with_those_that_are_offered() {
    let (checked, faults) = fails(&original("agent.py"), "\n[check]\ntool = \"shell\"\n").await;
    assert_eq!(checked["calls"], 1, "{checked}");
    assert!(faults.contains("it offers no tool shell, which [check] tool names; it offers bash"), "{faults}");
}

#[tokio::test]
async fn a_call_beside_the_task_is_noticed() {
    let title = "title = json.dumps({\"model\": \"any\", \"messages\": [{\"role\": \"user\", \"content\": \"title?\"}]}).encode()\n\
                 urllib.request.urlopen(urllib.request.Request(url, title, headers)).read()\nprint(";
    let agent = with(&original("agent.py"), "\nprint(", &format!("\n{title}"));
    let (checked, faults) = fails(&agent, "").await;
    assert_eq!(checked["calls"], 3, "{checked}");
    assert!(faults.starts_with("it made 3 calls instead of 2"), "{faults}");
}

/// Ours, whose payloads take no time to have; all are in `make test-all`.
#[tokio::test]
#[ignore = "needs Docker and, once, the package registries"]
async fn the_core_of_ours_passes() {
    let bench = Bench::new("");
    let core = ["codex", "claude-code", "mini-swe-agent", "mini-swe-agent:text", "react"];
    let ended = bench.other(&[&["harness", "check"], &core[..]].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.lines().filter(|line| line.ends_with("  ok")).count(), core.len(), "{}", ended.stdout);
}

/// A task set is tried without a model.
#[tokio::test]
async fn a_dry_run_uses_the_shell_once() {
    let bench = Bench::new("scripted:").with_own_cache();
    let ended = bench.run(&["tiny-agent", "Do it.", "--harnesses", HARNESSES]).await;
    let (id, rollout) = ended.rollout();
    let facts = (&rollout["outcome"], &rollout["calls"], &rollout["drift"]);
    assert_eq!((ended.code, facts), (Some(0), (&json!("passed"), &json!(2), &json!(0))), "{ended:?}");
    let calls = bench.show(&id).await["calls"].clone();
    let result = calls[1]["messages"].as_array().unwrap().iter().find(|message| message["role"] == "tool").unwrap();
    assert_eq!(result["content"], "The scripted policy was here.\n");
    let samples = bench.export().await;
    assert_eq!((samples.len(), samples[0]["spans"].as_array().unwrap().len()), (1, 2), "{samples:?}");
}
