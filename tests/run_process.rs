//! `gleaner run --engine process`: harnesses as plain processes, recorded as in containers, and gone when they should be. Needs no
//! Docker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use support::gleaner::{Start, assert_sampled};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::run::{Bench, Ended};
use support::{until, within};
use tokio::net::TcpListener;

const HARNESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses");

fn bash(command: &str) -> Reply {
    Reply::tools(&[("bash", &json!({"command": command}).to_string())])
}

/// A policy with this script, and a store whose runs ask it and have their sandboxes in a folder of their own.
async fn bench(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Bench) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let bench = processes(Bench::new(policy.url()));
    (policy, bench)
}

/// Docker is nowhere.
fn processes(bench: Bench) -> Bench {
    let temp = bench.dir.path().join("tmp");
    std::fs::create_dir(&temp).unwrap();
    let bench = bench.with_own_cache().with_env("TMPDIR", temp.to_str().unwrap());
    bench.with_env("GLEANER_ENGINE", "process").with_env("DOCKER_HOST", "unix:///no/such/socket")
}

fn words<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["tiny-agent", "--harnesses", HARNESSES], rest].concat()
}

fn verified(bench: &Bench, verify: &str) -> String {
    bench.file("task.jsonl", &json!({"id": "t", "prompt": "p", "files": {"seed": "4\n"}, "verify": verify}).to_string())
}

fn ends(ended: &Ended) -> (Option<i32>, Value, Value) {
    let (_, rollout) = ended.rollout();
    (ended.code, rollout["outcome"].clone(), rollout["reward"].clone())
}

/// The folders of sandboxes that are there.
fn folders(bench: &Bench) -> Vec<PathBuf> {
    std::fs::read_dir(bench.dir.path().join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The command lines of all that lives of a sandbox.
fn living(folder: &Path) -> Vec<String> {
    let mark = format!("GLEANER_SANDBOX={}", folder.display());
    let read = |pid: &str, what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let marked = pids.filter(|pid| read(pid, "environ").split(|&byte| byte == 0).any(|one| one == mark.as_bytes()));
    marked.map(|pid| String::from_utf8_lossy(&read(&pid, "cmdline")).replace('\0', " ")).collect()
}

#[tokio::test]
async fn a_run_is_recorded_and_verified() {
    let (policy, bench) = bench(181, [bash("cat seed; echo 42 > made; pwd; echo $HOME"), Reply::text("Done.")]).await;
    let task = verified(&bench, "grep -qx 42 made && echo looks good");
    let ended = bench.run(&words(&["--task", &task])).await;
    let (id, rollout) = ended.rollout();
    let seen = policy.seen();
    let tokens: usize = seen.iter().map(|call| call.tokens.len()).sum();
    let expected = json!({"harness": "tiny-agent", "task_id": "t", "outcome": "passed", "reward": 1.0, "calls": 2,
        "tokens": tokens, "drift": 0});
    assert_eq!((ended.code, rollout), (Some(0), expected), "{ended:?}");
    let printed = seen[1].body["messages"][2]["content"].as_str().unwrap();
    let [length, workdir, home] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    let temp = bench.dir.path().join("tmp");
    assert!(length == "4" && Path::new(workdir).starts_with(&temp) && Path::new(home).starts_with(&temp), "{printed}");
    let samples = bench.export().await;
    assert_eq!(samples.len(), 1);
    assert_sampled(&samples[0], &seen);
    assert_eq!(bench.artifact(&id, "verify.log"), "looks good\n");
    assert!(ended.stderr.contains("WITHOUT ISOLATION"), "it is said on every run: {}", ended.stderr);
    assert_eq!(folders(&bench), [] as [PathBuf; 0]);
}

/// No link of a verifier's leads to files of the host.
#[tokio::test]
async fn a_reward_that_is_a_link_is_not_read() {
    let (_policy, bench) = bench(186, [Reply::text("Done.")]).await;
    let target = bench.file("secret", "1\n");
    let verify = json!({"command": format!("ln -s {target} reward"), "rewards": "reward"});
    let task = bench.file("task.jsonl", &json!({"id": "t", "prompt": "p", "verify": verify}).to_string());
    let ended = bench.run(&words(&["--task", &task])).await;
    assert_eq!(ends(&ended), (Some(0), json!("failed"), json!(0.0)), "{ended:?}");
    let evidence: Value = serde_json::from_str(&bench.artifact(&ended.rollout().0, "evidence.json")).unwrap();
    assert!(evidence["verify"]["error"].as_str().unwrap().contains("is not a regular file"), "{evidence:#}");
}

#[tokio::test]
async fn a_run_past_its_time_is_verified() {
    let (_policy, bench) = bench(183, [bash("trap '' TERM; touch begun; while :; do sleep 1; done")]).await;
    let task = verified(&bench, "test -e begun");
    let ended = bench.run(&words(&["--task", &task, "--timeout", "2"])).await;
    assert_eq!(ends(&ended), (Some(0), json!("timed_out"), json!(1.0)), "{ended:?}");
    assert_eq!(folders(&bench), [] as [PathBuf; 0]);
}

/// Neighbours have ports, folders and records of their own.
#[tokio::test]
async fn rollouts_side_by_side_do_not_mix() {
    // Each says something else, so that what was sampled tells whose it is.
    let own = |number: u32| bash(&format!("echo {number} > mine; ls; sleep 0.5"));
    let script = [own(1), own(2), own(3), Reply::text("a"), Reply::text("b"), Reply::text("c")];
    let (policy, bench) = bench(184, script).await;
    let task = verified(&bench, "test $(ls | wc -l) = 2");
    let ended = bench.run(&words(&["--task", &task, "--samples", "3", "--concurrency", "3"])).await;
    for rollout in ended.rollouts() {
        assert_eq!((&rollout["outcome"], &rollout["calls"]), (&json!("passed"), &json!(2)), "{ended:?}");
    }
    assert_eq!(policy.seen().len(), 6);
    support::run::assert_all_sampled(&bench.export().await, &policy.seen());
}

#[tokio::test]
async fn a_harness_that_kills_its_init_is_an_infra_error() {
    let (_policy, bench) = bench(185, [bash("kill -9 $(ps -o ppid= -p $PPID)"), Reply::text("never")]).await;
    let ended = bench.run(&words(&["p", "--attempts", "1"])).await;
    assert_eq!(ends(&ended), (Some(1), json!("infra_error"), Value::Null), "{ended:?}");
    assert!(ended.stderr.contains("the sandbox ended with exit code 137 while the harness ran"), "{}", ended.stderr);
    assert_eq!(folders(&bench), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn a_kill_leaves_no_process_and_the_next_run_no_folder() {
    let gate = Gate::closed();
    let daemon = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 & true";
    let (policy, bench) = bench(187, [bash(daemon), Reply::text("a b c").behind(&gate)]).await;
    let running = bench.start(&words(&["p"]), 1).await;
    policy.asked(2).await;
    let [folder] = &folders(&bench)[..] else { panic!("{:?}", folders(&bench)) };
    assert!(living(folder).iter().any(|line| line.starts_with("sh -c trap")), "{:?}", living(folder));
    running.signal("KILL").await;
    assert_eq!(running.ended().await.code, None);
    until("the end of all that ran", async || living(folder).is_empty().then_some(())).await;
    assert!(folder.exists());
    gate.open();
    let ended = bench.run(&words(&["again"])).await;
    assert_eq!(ends(&ended), (Some(0), json!("passed"), Value::Null), "{ended:?}");
    assert_eq!(folders(&bench), [] as [PathBuf; 0]);
}

/// What tries a task itself asks no model, so none need be named. And a batch is found by the beginning of its id.
#[tokio::test]
async fn baselines_need_no_policy() {
    let bench = processes(Bench::new("unused"));
    let task = json!({"id": "t", "prompt": "p", "verify": "test -e made", "solution": "touch made"});
    let task = bench.file("task.jsonl", &task.to_string());
    for (harness, outcome, reward) in [("oracle", "passed", 1.0), ("nop", "failed", 0.0)] {
        let ended = bench.other(&["run", harness, "--task", &task, "--json"]).await;
        assert_eq!(ends(&ended), (Some(0), json!(outcome), json!(reward)), "{ended:?}");
    }
    let ended = bench.other(&["batch", &task, "--harness", "oracle,nop", "--json"]).await;
    let said: Value = serde_json::from_str(ended.stdout.lines().last().unwrap_or_default()).unwrap_or_default();
    assert_eq!((ended.code, &said["rollouts"][1]["reward"]), (Some(0), &json!(0.0)), "{ended:?}");
    let batch = said["batch"].as_str().unwrap();
    let beginning = &batch[..32];
    let ended = bench.other(&["batch", "--resume", beginning, "--json"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let words = ["batch", &task, "--harness", "oracle,tiny-agent", "--harnesses", HARNESSES];
    let ended = bench.other(&words).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("no policy is named"), "{}", ended.stderr);

    let listed: Value = serde_json::from_str(&bench.look(&["list", "batches", "--json"]).await).unwrap();
    let last = listed["batches"].as_array().and_then(|batches| batches.last()).unwrap();
    let expected = json!({"id": batch, "status": "done", "created_at": last["created_at"], "ended": 2, "rollouts": 2,
        "harnesses": ["oracle", "nop"]});
    assert_eq!((listed["batches"].as_array().unwrap().len(), last), (3, &expected));
    let table = bench.look(&["list", "batches", "--limit", "1"]).await;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((table.lines().count(), row[1], row[4], &row[5..]), (2, "done", "2/2", &["oracle,", "nop"][..]), "{table}");
    let of_batch: Value = serde_json::from_str(&bench.look(&["list", "--batch", beginning, "--json"]).await).unwrap();
    assert_eq!(of_batch["rollouts"].as_array().unwrap().len(), 2);
    let shown = bench.look(&["show", of_batch["rollouts"][0]["id"].as_str().unwrap()]).await;
    assert!(shown.contains(&format!("  batch     {batch}\n")), "{shown}");
    let ended = bench.ask(&["list", "batches", "--batch", beginning]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

/// Whoever waits for a server that is not there is told so before the harness has used up its patience.
#[tokio::test]
async fn a_policy_that_is_down_is_named_at_once() {
    let bench = processes(Bench::new("http://127.0.0.1:9"));
    let config = bench.file("config.toml", "[policies.default]\nretry_s = 1\n");
    let ended = bench.run(&words(&["p", "--config", &config])).await;
    let complaint = "policy default can't be reached: http://127.0.0.1:9/";
    let said = ended.stderr.lines().find(|line| line.contains(complaint)).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(said.contains("refused") && said.contains("Each call is retried for 1 s"), "{said}");
    // Of a server that does answer nothing is said.
    let (_policy, bench) = self::bench(190, [Reply::text("Done.")]).await;
    let ended = bench.run(&words(&["p"])).await;
    assert!(!ended.stderr.contains("can't be reached"), "{ended:?}");
}

/// What only a container can have is refused before anything begins.
#[tokio::test]
async fn what_needs_a_container_is_refused() {
    let (policy, bench) = bench(188, []).await;
    let task = bench.file("image.jsonl", &json!({"id": "t", "prompt": "p", "image": "other:1"}).to_string());
    for (words, why) in [
        (words(&["p", "--image", "other:1"]), "it is to run in image other:1; use Docker (--engine docker)"),
        (words(&["--task", &task]), "it is to run in image other:1"),
        (vec!["mini-swe-agent", "p"], "the harness's payload runs at /opt/harness only, where containers have it mounted"),
    ] {
        let ended = bench.run(&words).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    assert_eq!((policy.seen().len(), bench.list().await.len()), (0, 0));
}

/// A harness without isolation could give itself a reward through an API that is open to this machine.
#[tokio::test]
async fn an_open_api_and_harnesses_without_isolation_exclude_each_other() {
    let (policy, bench) = bench(189, []).await;
    let config = bench.file("config.toml", "[engine]\nkind = \"process\"\n");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--policy", &policy.url(), "--config", &config];
    let refused = bench.ask(&serve).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
    assert!(refused.stderr.contains("set GLEANER_ADMIN_KEY"), "{}", refused.stderr);
    let env = vec![("GLEANER_ADMIN_KEY".to_owned(), "secret".to_owned())];
    let mut server = Start { env, ..Start::new(policy.url()).config("[engine]\nkind = \"process\"\n") }.run().await;
    server.kill().await;
}

/// `gleaner run --server` waits for its server, whatever ended that; it goes on where it stood, and leaves no process.
#[tokio::test]
async fn a_server_of_processes_that_starts_again_is_waited_for() {
    let gate = Gate::closed();
    let behind = || Reply::text("Done.").behind(&gate);
    let (policy, bench) = bench(190, [bash("echo 42 > made"), behind(), bash("echo 42 > made"), behind()]).await;
    policy.otherwise(Reply::text("Nothing is made."));
    let temp = bench.dir.path().join("tmp").display().to_string();
    let env =
        [("GLEANER_ADMIN_KEY", "secret"), ("GLEANER_HARNESSES", HARNESSES), ("TMPDIR", &temp), ("DOCKER_HOST", "unix:///none")];
    let env: Vec<(String, String)> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let config = "[engine]\nkind = \"process\"\n[rollout]\nconcurrency = 1\n";
    let database = Some(bench.database());
    let start = || Start { env: env.clone(), database: database.clone(), ..Start::new(policy.url()).config(config) };
    let mut server = start().run().await;
    let (addr, dir) = (server.addr, Arc::clone(&server.dir));
    let again = || Start { listen: addr.to_string(), dir: Some(Arc::clone(&dir)), ..start() };

    let bench = bench.with_env("GLEANER_ADMIN_KEY", "secret");
    let task = verified(&bench, "true");
    let url = format!("http://{addr}");
    let running = bench.start(&["tiny-agent", "--task", &task, "--server", &url, "--samples", "2"], 1).await;
    policy.asked(2).await;
    server.kill().await;
    // It looks while there is no server.
    let listener = TcpListener::bind(addr).await.unwrap();
    drop(within("a look at the server", listener.accept()).await.unwrap());
    drop(listener);
    let mut server = again().run().await;
    // The next try is on its way, and the server ends in good order.
    policy.asked(4).await;
    server.terminate().await;
    assert_eq!(server.ended().await.code(), Some(0), "{}", server.log());
    let _server = again().run().await;
    gate.open();
    let ended = running.ended().await;
    let outcomes: Vec<Value> = ended.rollouts().iter().map(|rollout| rollout["outcome"].clone()).collect();
    assert_eq!((ended.code, outcomes), (Some(0), vec![json!("passed"); 2]), "{ended:?}");
    assert!(ended.stderr.contains("waiting for the server"), "{}", ended.stderr);
    let all = bench.list().await;
    let mut outcomes: Vec<&str> = all.iter().map(|one| one["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["cancelled", "infra_error", "passed", "passed"]);
    assert_eq!(folders(&bench), [] as [PathBuf; 0]);
}
