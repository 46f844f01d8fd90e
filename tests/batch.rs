//! `gleaner batch`: what is killed, cancelled or faulty, and how it is gone on with. Most tests run harnesses as plain processes, which
//! takes no time; the large one runs them in Docker as well.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]
#![allow(clippy::print_stdout, reason = "a batch's table is part of the answer")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::run::{Bench, Ended};
use support::{is_wide, until};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses/tiny-agent");
const COUNTED: [&str; 5] = ["passed", "failed", "truncated", "timed_out", "harness_error"];

fn bash(command: &str) -> Reply {
    Reply::tools(&[("bash", &json!({"command": command}).to_string())])
}

/// Holds where a conversation of `policy` was had.
const MADE: &str = "grep -qx 42 made";

/// A policy whose every conversation makes a file and says so.
async fn policy(seed: u64) -> ScriptedPolicy {
    let policy = ScriptedPolicy::start(seed, []).await;
    let first = Reply { text: Some("Turn {n}: I make it.".to_owned()), ..bash("echo 42 > made") };
    policy.each_conversation([first, Reply::text("Done in {n}.")]);
    policy
}

/// Writes harnesses that are the same but for their names, and gives their folder.
fn harnesses(bench: &Bench, names: &[&str]) -> String {
    for name in names {
        for file in ["harness.toml", "build.sh", "agent.py"] {
            let text = std::fs::read_to_string(Path::new(TINY).join(file)).unwrap();
            bench.file(&format!("own/{name}/{file}"), &text.replace("name = \"tiny-agent\"", &format!("name = \"{name}\"")));
        }
    }
    bench.dir.path().join("own").display().to_string()
}

/// Tasks of these ids with their verifiers.
fn tasks(bench: &Bench, tasks: &[(&str, &str)]) -> String {
    let line = |(id, verify): &(&str, &str)| format!("{}\n", json!({"id": id, "prompt": format!("Do {id}."), "verify": verify}));
    bench.file("tasks.jsonl", &tasks.iter().map(line).collect::<String>())
}

/// Runs a command to its end.
async fn ends(bench: &Bench, words: &[&str]) -> Ended {
    bench.spawn(words, 0).await.ended().await
}

/// The last line of a batch with `--json`.
fn last(ended: &Ended) -> Value {
    let last = ended.stdout.lines().last().unwrap_or_else(|| panic!("it printed nothing: {ended:?}"));
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The one batch of a store.
async fn batch_of(bench: &Bench) -> String {
    until("a batch", async || {
        let db = bench.database();
        let listed = bench.list().await;
        let group = listed.first().and_then(|rollout| rollout["group_id"].as_str().map(str::to_owned));
        // A group's id begins with its batch's.
        group.filter(|_| db.exists()).map(|group| group[..36].to_owned())
    })
    .await
}

fn outcomes(rollouts: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for rollout in rollouts {
        let outcome = rollout["outcome"].as_str().unwrap_or("open").to_owned();
        *counts.entry(outcome).or_default() += 1;
    }
    counts
}

fn counts(rollout: &Value) -> bool {
    rollout["outcome"].as_str().is_some_and(|outcome| COUNTED.contains(&outcome))
}

/// A draw that differs from run to run: where a kill falls shall not be the same each time.
fn draw(below: usize) -> usize {
    use std::hash::{BuildHasher, Hasher};
    let hash = std::collections::hash_map::RandomState::new().build_hasher().finish();
    usize::try_from(hash % below as u64).unwrap()
}

/// What runs of these rollouts may have left on the machine.
async fn left_of(rollouts: &[Value]) -> Vec<String> {
    let ids: Vec<&str> = rollouts.iter().map(|rollout| rollout["id"].as_str().unwrap()).collect();
    let folder = |id: &str| format!("gleaner-{}", &id.replace('-', "")[16..]);
    let folders: BTreeSet<String> = ids.iter().map(|id| folder(id)).collect();
    let listed = std::fs::read_dir("/tmp").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<String> = listed.filter(|name| folders.contains(name.trim_start_matches("new-"))).collect();
    let words = ["ps", "--all", "--format", "{{.Names}}"];
    let output = tokio::process::Command::new("docker").args(words).output().await;
    // Without Docker there are no containers.
    let names = output.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default();
    left.extend(names.lines().filter(|name| ids.iter().any(|id| name.contains(id))).map(str::to_owned));
    left
}

/// 3 tasks x 4 harnesses x 4 samples, killed three times and gone on with.
///
/// Two of the tasks are verified by `verify`, which must hold; the third fails.
async fn survives_kills(
    engine: &str,
    harnesses: &str,
    folder: Option<&str>,
    verify: &str,
    bench: &Bench,
    policy: &ScriptedPolicy,
) {
    let tasks = tasks(bench, &[("one", verify), ("two", verify), ("three", "false")]);
    let own: Vec<&str> = folder.iter().flat_map(|folder| ["--harnesses", *folder]).collect();
    let what = ["batch", &tasks, "--harness", harnesses, "--samples", "4", "--concurrency", "2", "--json", "--engine", engine];
    let mut words = [&what[..], &own].concat();
    let (mut batch, mut open) = (String::new(), BTreeSet::new());
    for kill in 0..3 {
        let (before, asked) = (policy.count(), 3 + draw(9));
        let running = bench.spawn(&words, 4).await;
        // One by one: real harnesses take seconds each before they ask.
        for call in 1..=asked {
            policy.asked(before + call).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(draw(300) as u64)).await;
        running.signal("KILL").await;
        let ended = running.ended().await;
        assert_eq!(ended.code, None, "kill {kill} came too late: {ended:?}");
        // Reading ends nothing.
        let rollouts = bench.list().await;
        open.extend(rollouts.iter().filter(|one| one["status"] == "open").map(|one| one["id"].to_string()));
        batch = batch_of(bench).await;
        words = ["batch", "--resume", &batch, "--json", "--engine", engine].to_vec();
        // The folder of harnesses is kept with the batch.
    }
    let ended = bench.spawn(&words, 4).await.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = last(&ended);
    let rollouts = bench.list().await;
    let valid: Vec<&Value> = rollouts.iter().filter(|rollout| counts(rollout)).collect();
    let places: BTreeSet<(String, u64)> =
        valid.iter().map(|one| (one["group_id"].to_string(), one["index"].as_u64().unwrap())).collect();
    assert_eq!((valid.len(), places.len()), (48, 48), "{:?}", outcomes(&rollouts));
    let groups: BTreeSet<&String> = places.iter().map(|(group, _)| group).collect();
    assert!(groups.len() == 12 && places.iter().all(|(_, index)| *index < 4), "{places:?}");
    let replaced: BTreeSet<String> =
        rollouts.iter().filter(|one| one["outcome"] == "infra_error").map(|one| one["id"].to_string()).collect();
    assert_eq!(replaced, open, "those in flight at a kill, and no others, are kept as infra_error");
    assert_eq!(rollouts.len(), 48 + replaced.len());
    for one in rollouts.iter().filter(|one| one["outcome"] == "infra_error") {
        assert_eq!(one["evidence"]["error"], "the gleaner process that ran it died", "{one:#}");
        assert_eq!((&one["reward"], &one["no_reward"]), (&Value::Null, &json!(true)));
    }
    let shown: BTreeSet<&str> = said["rollouts"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(shown, valid.iter().map(|one| one["id"].as_str().unwrap()).collect());
    let mut retries = 0;
    for summary in said["summary"].as_array().unwrap() {
        let expected = json!({"rollouts": 12, "passed": 8, "drift": 0, "outcomes": {"failed": 4, "passed": 8}});
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&summary[name], value, "{summary:#}");
        }
        assert_eq!((&summary["pass_at"]["4"], &summary["pass_all"]["4"]), (&json!(2.0 / 3.0), &json!(2.0 / 3.0)));
        retries += summary["infra_retries"].as_u64().unwrap();
    }
    assert_eq!(usize::try_from(retries).unwrap(), replaced.len());
    assert_eq!(left_of(&rollouts).await, [] as [String; 0]);
    // A batch that is whole has nothing to do, and its table is printed again.
    let calls = policy.count();
    let again = bench.spawn(&["batch", "--resume", &batch, "--engine", engine], 0).await.ended().await;
    assert_eq!((again.code, policy.count()), (Some(0), calls), "{again:?}");
    println!("{}", again.stdout);
    assert!(again.stdout.lines().count() == 5 && again.stdout.contains("4 failed, 8 passed"), "{}", again.stdout);
    bench.look(&["store", "check"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_processes_survives_kills() {
    let policy = policy(941).await;
    let bench = Bench::new(policy.url()).with_own_cache();
    let folder = harnesses(&bench, &["tiny-a", "tiny-b", "tiny-c", "tiny-d"]);
    survives_kills("process", "tiny-a,tiny-b,tiny-c,tiny-d", Some(&folder), MADE, &bench, &policy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_containers_survives_kills() {
    let policy = policy(942).await;
    let bench = Bench::new(policy.url()).with_own_cache();
    let folder = harnesses(&bench, &["tiny-a", "tiny-b", "tiny-c", "tiny-d"]);
    survives_kills("docker", "tiny-a,tiny-b,tiny-c,tiny-d", Some(&folder), MADE, &bench, &policy).await;
}

/// The same with four real harnesses, each on its own wire. They think for long before they begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_real_harnesses_survives_kills() {
    if !is_wide("a batch of real harnesses that is killed") {
        return;
    }
    let policy = ScriptedPolicy::start(943, []).await;
    policy.otherwise(Reply::text("There is nothing to do in {n}."));
    let bench = Bench::new(policy.url());
    // Each has a shell tool of its own: that they use it is what `gleaner harness check` looks at.
    survives_kills("docker", "codex,claude-code,qwen-code,gemini-cli", None, "true", &bench, &policy).await;
}

/// A batch that is on its way, with every reply behind a gate.
async fn gated(seed: u64) -> (ScriptedPolicy, Bench, Gate, [String; 2]) {
    let gate = Gate::closed();
    let policy = ScriptedPolicy::start(seed, []).await;
    policy.each_conversation([bash("echo {n}").behind(&gate), Reply::text("Done in {n}.").behind(&gate)]);
    let bench = Bench::new(policy.url()).with_own_cache();
    let paths = [tasks(&bench, &[("a", "true"), ("b", "true")]), harnesses(&bench, &["tiny"])];
    (policy, bench, gate, paths)
}

const PROCESS: [&str; 4] = ["--engine", "process", "--concurrency", "2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_cancels_and_a_resume_goes_on() {
    let (policy, bench, gate, [tasks, folder]) = gated(944).await;
    let words = [&["batch", &tasks, "--harness", "tiny", "--harnesses", &folder, "--samples", "2"][..], &PROCESS].concat();
    let running = bench.spawn(&words, 0).await;
    policy.asked(2).await;
    let batch = batch_of(&bench).await;
    // While it runs nobody else does.
    let resume = [&["batch", "--resume", &batch][..], &PROCESS[..2]].concat();
    let other = ends(&bench, &resume).await;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.stderr.contains(&format!("batch {batch} is being run by a gleaner process already")), "{other:?}");
    running.signal("INT").await;
    let ended = running.ended().await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&format!("gleaner batch --resume {batch}")), "it says how to go on: {}", ended.stderr);
    assert_eq!(outcomes(&bench.list().await), BTreeMap::from([("cancelled".to_owned(), 2)]));
    let standing: Value = serde_json::from_str(&bench.look(&["show", &batch, "--json"]).await).unwrap();
    assert_eq!((&standing["batch"]["status"], &standing["batch"]["ended"]), (&json!("stopped"), &json!(0)));
    gate.open();
    let ended = ends(&bench, &[&resume[..], &["--json"]].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let expected = [("cancelled", 2), ("passed", 4)].map(|(name, count)| (name.to_owned(), count));
    assert_eq!(outcomes(&bench.list().await), expected.into());
    assert_eq!(last(&ended)["rollouts"].as_array().unwrap().len(), 4);
    let standing: Value = serde_json::from_str(&bench.look(&["show", &batch[..13], "--json"]).await).unwrap();
    assert_eq!((&standing["batch"]["status"], &standing["summary"][0]["infra_retries"]), (&json!("done"), &json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_watched_from_elsewhere() {
    let (policy, bench, gate, [tasks, folder]) = gated(945).await;
    let words = [&["batch", &tasks, "--harness", "tiny", "--harnesses", &folder][..], &PROCESS].concat();
    let running = bench.spawn(&words, 0).await;
    policy.asked(2).await;
    let batch = batch_of(&bench).await;
    let standing: Value = serde_json::from_str(&bench.look(&["show", &batch, "--json"]).await).unwrap();
    let turns: Vec<_> = standing["running"].as_array().unwrap().iter().map(|one| (&one["task_id"], &one["turn"])).collect();
    assert_eq!(turns, [(&json!("a"), &json!(1)), (&json!("b"), &json!(1))], "{standing:#}");
    let table = bench.look(&["show", &batch]).await;
    assert!(table.contains("0 of 2 have ended, 2 are running") && table.contains("tiny on a #0"), "{table}");
    let watch = ["show", &batch, "--watch"];
    let (watched, ended) = tokio::join!(bench.look(&watch), async {
        gate.open();
        running.ended().await
    });
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(watched.contains("2 passed"), "its end is its table: {watched}");
    assert_eq!(ended.stderr.lines().filter(|line| line.contains("passed after 2 calls")).count(), 2, "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_faulty_fails_alone_and_what_changed_is_refused() {
    let policy = policy(946).await;
    let bench = Bench::new(policy.url()).with_own_cache();
    let folder = harnesses(&bench, &["whole", "broken"]);
    bench.file("own/broken/build.sh", "echo there is no such package >&2; exit 3\n");
    let tasks = tasks(&bench, &[("a", "true")]);
    let words = ["batch", &tasks, "--harness", "whole,broken", "--harnesses", &folder, "--samples", "2", "--json"];
    let ended = ends(&bench, &[&words[..], &PROCESS].concat()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = last(&ended);
    let seen: BTreeSet<(String, String)> = said["rollouts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["harness"].to_string(), one["outcome"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [("\"broken\"", "infra_error"), ("\"whole\"", "passed")];
    assert_eq!(seen, expected.map(|(harness, outcome)| (harness.to_owned(), outcome.to_owned())).into());
    let rollouts = bench.list().await;
    assert_eq!(rollouts.len(), 4, "what can't be built is not tried again and again: {:?}", outcomes(&rollouts));
    let faulty = rollouts.iter().find(|one| one["harness"] == "broken").unwrap();
    assert!(faulty["evidence"]["error"].as_str().unwrap().contains("there is no such package"), "{faulty:#}");
    // Mended, it is another harness than was ordered.
    let build = std::fs::read_to_string(Path::new(TINY).join("build.sh")).unwrap();
    bench.file("own/broken/build.sh", &build);
    let batch = said["batch"].as_str().unwrap();
    let resume = [&["batch", "--resume", batch, "--json"][..], &PROCESS[..2]].concat();
    let refused = ends(&bench, &resume).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("harness broken has changed"), "{}", refused.stderr);
    let ended = ends(&bench, &[&resume[..], &["--force"]].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(last(&ended)["summary"][1]["infra_retries"], 2);
    // By itself it is an error.
    bench.file("own/broken/build.sh", "echo there is no such package >&2; exit 4\n");
    let alone = ["batch", &tasks, "--harness", "broken", "--harnesses", &folder];
    let ended = ends(&bench, &[&alone[..], &PROCESS].concat()).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.contains("there is no such package"), "{}", ended.stderr);
}

#[tokio::test]
async fn wrong_usage_is_said() {
    let bench = Bench::new("http://127.0.0.1:9").with_own_cache();
    let tasks = tasks(&bench, &[("a", "true")]);
    for (words, said) in [
        (&["batch", &tasks, "--harness", "codx"][..], "did you mean codex?"),
        (&["batch", &tasks, "--harness", "codex,codex"], "named twice"),
        (&["batch", &tasks, "--harness", "codex", "--only", "b"], "there is no task b (did you mean a?)"),
        (&["batch", "/no/such", "--harness", "codex"], "/no/such"),
        (&["batch", &tasks, "--harness", "codex", "--resume", "x"], "cannot be used with"),
    ] {
        let ended = ends(&bench, words).await;
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {}", ended.stderr);
    }
    let unknown = ends(&bench, &["batch", "--resume", "01900000-0000-7000-8000-000000000001", "--engine", "process"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("there is no rollout or batch"), "{}", unknown.stderr);
}
