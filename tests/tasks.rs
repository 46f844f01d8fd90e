//! Task sets as they are, through `gleaner run`: what solves them gives 1, nothing gives 0, and what only seems to gives 0. Needs Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::policy::{Reply, ScriptedPolicy};
use support::run::{Bench, Ended, containers, containers_are};
use tokio::process::Command;
use tokio::sync::OnceCell;

const TASKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tasks");
const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");
const HARBOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tasks/harbor");
const ROWS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tasks/swe/rows.jsonl");

/// The policy tells the harness to run these commands, one a turn.
async fn bench(seed: u64, commands: &[&str]) -> (ScriptedPolicy, Bench) {
    let bash = |command: &&str| Reply::tools(&[("bash", &json!({ "command": command }).to_string())]);
    let script: Vec<Reply> = commands.iter().map(bash).chain([Reply::text("Done.")]).collect();
    let policy = ScriptedPolicy::start(seed, script).await;
    let bench = Bench::new(policy.url()).with_own_cache();
    (policy, bench)
}

/// The image of the rows, made as their makers do.
async fn image() {
    static MADE: OnceCell<()> = OnceCell::const_new();
    MADE.get_or_init(async || {
        let folder = format!("{TASKS}/swe");
        let built = Command::new("docker")
            .args(["build", "--quiet", "--tag", "gleaner-test-swe:1", &folder])
            .env("DOCKER_BUILDKIT", "0")
            .output();
        let built = built.await.expect("these tests need Docker's client");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    })
    .await;
}

async fn run(bench: &Bench, harness: &str, tasks: &str) -> Ended {
    bench.run(&[harness, "--harnesses", HARNESSES, "--task", tasks]).await
}

fn evidence(bench: &Bench, id: &str) -> Value {
    serde_json::from_str(&bench.artifact(id, "evidence.json")).unwrap()
}

/// The reward and outcome of the only rollout, and its evidence.
fn told(bench: &Bench, ended: &Ended) -> (Value, Value, Value) {
    let (id, rollout) = ended.rollout();
    let evidence = evidence(bench, &id);
    assert!(!rollout["reward"].is_null(), "{ended:?}\n{evidence:#}");
    (rollout["reward"].clone(), rollout["outcome"].clone(), evidence)
}

#[tokio::test]
async fn a_harbor_folder_gives_1_to_its_solution_and_0_to_nothing() {
    let (_policy, bench) = bench(301, &[]).await;
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "oracle", HARBOR).await);
    assert_eq!((&reward, &outcome), (&json!(1.0), &json!("passed")), "{evidence:#}");
    let shown = bench.list().await;
    assert_eq!((&shown[0]["task_id"], &shown[0]["calls"]), (&json!("gleaner/hello-world"), &json!(0)));
    let whole = bench.show(shown[0]["id"].as_str().unwrap()).await;
    assert_eq!(whole["rollout"]["rewards"], json!({"reward": 1.0, "style": 0.5}), "{:#}", whole["rollout"]);
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "nop", HARBOR).await);
    assert_eq!((&reward, &outcome), (&json!(0.0), &json!("failed")), "{evidence:#}");
    assert_eq!(evidence["verify"]["place"], "copy", "its tests reach the outside: {evidence:#}");
}

/// What a harness looks for before its end is not there yet; and what it plants there does not count.
#[tokio::test]
async fn tests_come_in_only_when_the_harness_has_ended() {
    let look =
        "ls -R /tests /solution /gleaner > /logs/artifacts/seen 2>&1; find / -xdev -name 'test_outputs*' >> /logs/artifacts/seen";
    let plant = "mkdir -p /tests /logs/verifier; echo 1 > /logs/verifier/reward.txt; \
                 printf 'import os, sys\\nos._exit(0)\\n' > /tests/test_a.py; ln -sf /dev/null /tests/test_outputs.py; echo x > /tests/test.sh";
    let (_policy, bench) = bench(302, &[look, plant]).await;
    let ended = run(&bench, "tiny-agent", HARBOR).await;
    let (reward, _, evidence) = told(&bench, &ended);
    assert_eq!(reward, json!(0.0), "{evidence:#}");
    let (id, _) = ended.rollout();
    let seen = bench.artifact(&id, "files/logs/artifacts/seen");
    assert_eq!(seen.lines().filter(|line| line.ends_with("No such file or directory")).count(), 3, "{seen}");
    assert!(!seen.contains("test_outputs"), "{seen}");
    assert_eq!(evidence["artifacts"], json!([{"name": "logs/artifacts/seen", "bytes": seen.len()}]), "{evidence:#}");
}

#[tokio::test]
async fn a_row_of_swe_bench_gives_1_to_its_patch_and_0_to_nothing() {
    image().await;
    let (_policy, bench) = bench(303, &[]).await;
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "oracle", ROWS).await);
    assert_eq!((&reward, &outcome), (&json!(1.0), &json!("passed")), "{evidence:#}");
    assert_eq!(evidence["patch"]["names"], json!(["calc/__init__.py"]), "{evidence:#}");
    assert_eq!((&evidence["verify"]["place"], &evidence["verify"]["tests_seen"]), (&json!("patched"), &json!(2)));
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "nop", ROWS).await);
    assert_eq!((&reward, &outcome), (&json!(0.0), &json!("failed")), "{evidence:#}");
    assert_eq!(evidence["verify"]["missed"], json!(["test_add (tests.test_calc.TestCalc.test_add)"]), "{evidence:#}");
    assert_eq!(evidence["patch"]["bytes"], 0);
}

/// As a harness would solve it: with a commit of its own, a new file, and a test beside those that are there.
#[tokio::test]
async fn a_row_is_solved_by_a_harness_s_patch() {
    image().await;
    let solve = "sed -i 's/a - b/a + b/' calc/__init__.py && git -c user.name=n -c user.email=e commit -qam fix && echo x > calc/new.py && \
                 git config core.fsmonitor 'touch /tmp/sprung;' && echo y > build.log";
    let (_policy, bench) = bench(304, &[solve]).await;
    let ended = run(&bench, "tiny-agent", ROWS).await;
    let (reward, _, evidence) = told(&bench, &ended);
    assert_eq!(reward, json!(1.0), "{evidence:#}");
    assert_eq!(evidence["patch"]["names"], json!(["build.log", "calc/__init__.py", "calc/new.py"]), "{evidence:#}");
    let patch = bench.artifact(&ended.rollout().0, "patch.diff");
    assert!(
        patch.contains("+    return a + b\n") && patch.len() as u64 == evidence["patch"]["bytes"].as_u64().unwrap(),
        "{patch}"
    );
}

#[tokio::test]
async fn a_patch_that_passes_only_by_editing_the_tests_gives_0() {
    image().await;
    let cheat = "printf 'import unittest\\nclass TestCalc(unittest.TestCase):\\n    def test_add(self): pass\\n    def test_double(self): pass\\n' \
                 > tests/test_calc.py && python3 -m unittest -v tests.test_calc";
    let (_policy, bench) = bench(305, &[cheat]).await;
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "tiny-agent", ROWS).await);
    assert_eq!((&reward, &outcome), (&json!(0.0), &json!("failed")), "{evidence:#}");
    assert_eq!(evidence["patch"]["names"], json!(["tests/test_calc.py"]), "{evidence:#}");
    assert_eq!(evidence["verify"]["tests_missed"], 1, "{evidence:#}");
}

/// A repository that is gone has no patch; that is the harness's doing.
#[tokio::test]
async fn a_repository_that_is_gone_gives_0() {
    image().await;
    let (_policy, bench) = bench(306, &["sed -i 's/a - b/a + b/' calc/__init__.py; rm -rf .git"]).await;
    let (reward, outcome, evidence) = told(&bench, &run(&bench, "tiny-agent", ROWS).await);
    assert_eq!((&reward, &outcome), (&json!(0.0), &json!("failed")), "{evidence:#}");
    assert!(evidence["patch"]["error"].is_string(), "{evidence:#}");
}

/// Wherever it runs, a verifier has neither the rollout's key nor a way to the model.
#[tokio::test]
async fn a_verifier_has_no_key_and_no_socket() {
    let probe = "env; tr '\\0' '\\n' </proc/1/environ; cat /proc/self/environ; ls -l /run/gleaner; \
                 python3 - <<'END'\nimport socket\nfor family, at in [(socket.AF_UNIX, '/run/gleaner/model.sock'), (socket.AF_UNIX, '/run/gleaner/control.sock'), \
                 (socket.AF_INET, ('127.0.0.1', 8080))]:\n    try:\n        socket.socket(family).connect(at)\n        print('REACHED', at)\n    except OSError as error:\n        \
                 print('refused', at)\nEND\ntest -e /work/made && test -e /tmp/made";
    for (seed, fresh) in [(307, false), (308, true)] {
        let (_policy, bench) = bench(seed, &["echo x > made; echo y > /tmp/made; env > /tmp/env"]).await;
        let task = json!({"id": "t", "prompt": "p", "verify": {"command": probe, "fresh": fresh}, "artifacts": ["/tmp/env"]});
        let task = bench.file("task.jsonl", &task.to_string());
        let ended = run(&bench, "tiny-agent", &task).await;
        let (reward, _, evidence) = told(&bench, &ended);
        assert_eq!(reward, json!(1.0), "{evidence:#}");
        assert_eq!(evidence["verify"]["place"], if fresh { "copy" } else { "own" });
        let (id, _) = ended.rollout();
        let environment = bench.artifact(&id, "files/tmp/env");
        let key = environment.lines().find_map(|line| line.strip_prefix("KEY=")).expect("the harness has a key");
        let seen = bench.artifact(&id, "verify.log");
        assert!(!seen.contains(key) && !seen.contains("glr_") && !seen.contains("KEY=") && !seen.contains("BASE_URL="), "{seen}");
        assert!(seen.contains("PATH=") && !seen.contains("REACHED"), "{seen}");
        assert_eq!(seen.matches("refused").count(), 3, "{seen}");
    }
}

/// What a verifier may write in place of a reward, all in one run; each task is its own.
#[tokio::test]
async fn rewards_are_read_safely() {
    let (_policy, bench) = bench(309, &[]).await;
    let cases = [
        ("number", "echo 0.25 > reward", json!(0.25), ""),
        ("named", "echo '{\"reward\": 1, \"a\": 0.5}' > reward", json!(1.0), ""),
        ("fails", "echo 1 > reward; exit 3", json!(1.0), ""),
        ("link", "echo 1 > real; ln -s real reward", json!(0.0), "is not a regular file"),
        ("folder", "mkdir reward", json!(0.0), "is not a regular file"),
        ("fifo", "mkfifo reward", json!(0.0), "is not a regular file"),
        (
            "socket",
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"reward\")'",
            json!(0.0),
            "is not a regular file",
        ),
        ("large", "truncate -s 2G reward", json!(0.0), "it has more than"),
        ("nan", "echo NaN > reward", json!(0.0), "NaN is no reward"),
        ("inf", "echo -inf > reward", json!(0.0), "-inf is no reward"),
        ("nested", "echo '{\"reward\": {\"x\": 1}}' > reward", json!(0.0), "reward: it is no number"),
        ("slow", "echo 1 > reward; trap '' TERM; setsid sleep 300 & sleep 300; sleep 300", json!(0.0), ""),
        ("none", "exit 7", Value::Null, ""),
    ];
    let line = |(name, command, ..): &(&str, &str, Value, &str)| {
        let timeout = if *name == "slow" { 1 } else { 60 };
        json!({"id": name, "prompt": "p", "verify": {"command": command, "rewards": "reward", "timeout_s": timeout}}).to_string()
    };
    let lines: Vec<String> = cases.iter().map(line).collect();
    let tasks = bench.file("tasks.jsonl", &lines.join("\n"));
    let ended = bench.start(&["nop", "--task", &tasks, "--concurrency", "3"], 3).await.ended().await;
    assert_eq!(ended.code, Some(1), "one has no verdict: {ended:?}");
    let rollouts = ended.rollouts();
    for (name, _, reward, why) in &cases {
        let rollout =
            rollouts.iter().find(|rollout| rollout["task_id"] == *name).unwrap_or_else(|| panic!("{name}: {rollouts:?}"));
        let evidence = evidence(&bench, rollout["id"].as_str().unwrap());
        assert_eq!(rollout["reward"], *reward, "{name}: {evidence:#}");
        let said = evidence["verify"]["error"].as_str().unwrap_or_default();
        assert!(said.contains(why) && said.is_empty() == why.is_empty(), "{name}: {evidence:#}");
        assert_eq!(evidence["verify"]["timed_out"], *name == "slow", "{name}: {evidence:#}");
    }
    let none = rollouts.iter().find(|rollout| rollout["task_id"] == "none").unwrap();
    assert_eq!(none["outcome"], "infra_error");
    let error = evidence(&bench, none["id"].as_str().unwrap())["error"].clone();
    assert!(
        error.as_str().unwrap().starts_with("the verifier wrote no reward to /work/reward; it ended with exit code 7"),
        "{error}"
    );
}

/// Files that a task and a harness name are kept, and nothing that a name or a link leads to.
#[tokio::test]
async fn artifacts_are_files_of_the_sandbox_only() {
    let make = "mkdir -p out/deep; echo one > out/a; echo two > out/deep/b; ln -s /etc/passwd out/link; ln -s /etc out/folder; mkfifo out/fifo; \
                head -c 20000000 /dev/zero > out/large; echo mine > ~/session";
    let (_policy, bench) = bench(310, &[make]).await;
    let task = json!({"id": "t", "prompt": "p", "artifacts": ["out", "/home/agent/session", "missing"]});
    let task = bench.file("task.jsonl", &task.to_string());
    let ended = run(&bench, "tiny-agent", &task).await;
    let (id, _) = ended.rollout();
    let evidence = evidence(&bench, &id);
    let kept = json!([{"name": "home/agent/session", "bytes": 5}, {"name": "work/out/a", "bytes": 4}, {"name": "work/out/deep/b", "bytes": 4}]);
    assert_eq!(evidence["artifacts"], kept, "{evidence:#}");
    let left_out = json!([
        "/work/missing: No such file or directory (os error 2)",
        "/work/out/fifo: it is no file",
        "/work/out/large: its 20000000 bytes are too many"
    ]);
    assert_eq!(evidence["artifacts_left_out"], left_out, "{evidence:#}");
    assert_eq!(bench.artifact(&id, "files/work/out/deep/b"), "two\n");
    assert!(!bench.dir.path().join("artifacts").join(&id).join("files/work/out/link").exists());
}

#[tokio::test]
async fn a_verifier_s_sandbox_is_gone_when_it_is_broken_off() {
    let (_policy, bench) = bench(311, &[]).await;
    let task = json!({"id": "t", "prompt": "p", "verify": {"command": "sleep 300", "fresh": true}});
    let task = bench.file("task.jsonl", &task.to_string());
    let running = bench.start(&["nop", "--task", &task], 2).await;
    let id = support::until("the rollout", async || {
        bench.list().await.first().map(|rollout| rollout["id"].as_str().unwrap().to_owned())
    })
    .await;
    // The harness's sandbox, a copy of it, and this one: on a loaded machine that takes its time.
    let name = format!("gleaner-{id}-verify");
    let begun = async {
        while containers(&name).await != ["running"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(3), begun).await.expect("the verifier's sandbox runs");
    running.signal("INT").await;
    let ended = running.ended().await;
    assert_eq!((ended.code, &ended.rollout().1["outcome"]), (Some(1), &json!("cancelled")), "{ended:?}");
    containers_are(&format!("gleaner-{id}"), &[]).await;
}

/// No second try would find a repository where the first found none.
#[tokio::test]
async fn a_task_that_does_not_fit_its_image_is_tried_once() {
    let (_policy, bench) = bench(313, &[]).await;
    let task = bench.file("task.jsonl", r#"{"id": "t", "prompt": "p", "patch": true}"#);
    let ended = bench.start(&["nop", "--task", &task, "--samples", "3", "--concurrency", "1"], 3).await.ended().await;
    assert_eq!((ended.code, ended.rollouts().len()), (Some(1), 3), "{ended:?}");
    for rollout in ended.rollouts() {
        let id = rollout["id"].as_str().unwrap();
        let shown = bench.show(id).await;
        let error = shown["rollout"]["evidence"]["error"].as_str().unwrap_or_else(|| panic!("{shown:#}")).to_owned();
        assert!(error.contains("looking for the repository whose patch is to be kept"), "{error}");
        assert_eq!(rollout["outcome"], "infra_error", "{ended:?}");
    }
    assert!(!ended.stderr.contains("is replaced"), "{ended:?}");
}

#[tokio::test]
async fn what_can_t_be_run_is_said_before_anything_starts() {
    let (_policy, bench) = bench(312, &[]).await;
    let task = bench.file("task.jsonl", r#"{"id": "t", "prompt": "p", "verify": {"comand": "true"}}"#);
    let ended = run(&bench, "nop", &task).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("line 1: verify: unknown field `comand`") && ended.stderr.contains("did you mean command?"),
        "{ended:?}"
    );
    let task = bench.file("task.jsonl", r#"{"id": "t", "prompt": "p"}"#);
    let ended = run(&bench, "oracle", &task).await;
    assert!(ended.code == Some(2) && ended.stderr.contains("task t has none"), "{ended:?}");
    assert!(Path::new(TASKS).is_dir());
}
