//! What a policy may tell a harness to do, and what a broken harness does by itself: the host and a neighbour go on untouched, and the
//! outcome names what happened. Needs Docker. What a sandbox reaches is `isolation.rs`'s; the init's own strength `engine_docker.rs`'s.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]
#![allow(clippy::print_stdout, reason = "what an attack used up is part of the answer")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::post;
use support::is_wide;
use support::policy::{Fault, Reply, ScriptedPolicy};
use support::run::{Bench, Ended, Running, containers};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/harnesses/tiny-agent");

/// What the neighbour's policy tells it; its verifier looks at what came of it.
const NEIGHBOUR: &str = "echo 42 > made; cat made";

/// An attack beside a neighbour who minds his own business.
struct Attack {
    policy: ScriptedPolicy,
    bench: Bench,
    /// The harness's program, if it is not to be the usual one.
    agent: Option<String>,
    verify: &'static str,
    config: String,
}

/// What came of it.
struct Fallout {
    rollout: Value,
    id: String,
    bench: Bench,
    policy: ScriptedPolicy,
    evidence: Value,
}

impl Attack {
    /// The policy tells the harness to run these commands, one a turn.
    async fn of(seed: u64, commands: &[&str]) -> Self {
        let policy = ScriptedPolicy::start(seed, []).await;
        let bash =
            |command: &&str| json!({"tool_calls": [{"name": "bash", "arguments": json!({"command": command}).to_string()}]});
        for (mark, commands) in [("attack-mark", commands), ("neighbour-mark", &[NEIGHBOUR][..])] {
            let done = json!({"text": "Done."});
            let replies: Vec<Value> = commands.iter().map(bash).chain([done]).collect();
            post(policy.addr, "/__script", &[], &json!({"when": mark, "replies": replies})).await.json().await;
        }
        let bench = Bench::new(policy.url()).with_own_cache();
        Self { policy, bench, agent: None, verify: "true", config: String::new() }
    }

    /// The harness itself is this program for the attacker, and what it is for the neighbour.
    async fn by(seed: u64, agent: &str) -> Self {
        Self { agent: Some(agent.to_owned()), ..Self::of(seed, &[]).await }
    }

    async fn run(self, words: &[&str]) -> Fallout {
        let ended = self.start(words).await.ended().await;
        self.fallout(&ended).await
    }

    async fn start(&self, words: &[&str]) -> Running {
        for file in ["harness.toml", "build.sh", "agent.py"] {
            let text = std::fs::read_to_string(Path::new(TINY).join(file)).unwrap();
            let text = match (&self.agent, file) {
                (Some(agent), "agent.py") => {
                    let indented: String = agent.lines().map(|line| format!("    {line}\n")).collect();
                    format!("import sys\nif \"attack-mark\" in sys.argv[1]:\n{indented}    sys.exit(0)\n{text}")
                }
                _ => text,
            };
            self.bench.file(&format!("own/tiny-agent/{file}"), &text);
        }
        let tasks = [
            json!({"id": "attack", "prompt": "attack-mark", "verify": self.verify}),
            json!({"id": "neighbour", "prompt": "neighbour-mark", "verify": "grep -qx 42 made"}),
        ];
        let tasks = self.bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
        let config = self.bench.file("config.toml", &self.config);
        let own = self.bench.dir.path().join("own").display().to_string();
        let usual = ["tiny-agent", "--harnesses", &own, "--task", &tasks, "--concurrency", "2", "--config", &config];
        self.bench.start(&[&usual, words].concat(), 2).await
    }

    async fn fallout(self, ended: &Ended) -> Fallout {
        let of = |task: &str| {
            let found = ended.rollouts().into_iter().find(|rollout| rollout["task_id"] == task);
            found.unwrap_or_else(|| panic!("no rollout of {task}: {ended:?}"))
        };
        let (rollout, neighbour) = (of("attack"), of("neighbour"));
        assert_eq!((&neighbour["outcome"], &neighbour["reward"]), (&json!("passed"), &json!(1.0)), "{ended:?}");
        assert_eq!(neighbour["calls"], 2, "{ended:?}");
        let id = rollout["id"].as_str().unwrap().to_owned();
        assert_eq!(containers(&format!("gleaner-{id}")).await, [] as [String; 0], "its container is left");
        let evidence = serde_json::from_str(&self.bench.artifact(&id, "evidence.json")).unwrap();
        Fallout { rollout, id, bench: self.bench, policy: self.policy, evidence }
    }
}

impl Fallout {
    fn ended(&self, outcome: &str, reward: Option<f64>) {
        let expected = (&json!(outcome), &json!(reward));
        assert_eq!((&self.rollout["outcome"], &self.rollout["reward"]), expected, "{:#}", self.evidence);
    }

    fn error(&self) -> &str {
        self.evidence["error"].as_str().unwrap_or_else(|| panic!("nothing is said to be wrong: {:#}", self.evidence))
    }

    /// What the attack's commands printed, turn by turn.
    fn printed(&self) -> Vec<String> {
        let seen = self.policy.seen();
        let last = seen.iter().rfind(|seen| seen.mark.as_deref() == Some("attack-mark")).expect("it never asked");
        let messages = last.body["messages"].as_array().unwrap();
        let tools = messages.iter().filter(|message| message["role"] == "tool");
        tools.map(|message| message["content"].as_str().unwrap().trim().to_owned()).collect()
    }
}

/// Keys, in all that a process of the harness's user may read.
const KEYS: &str = "(cat /proc/*/environ /proc/*/cmdline; ls -R /run/gleaner; cat -r /run/gleaner/*) 2>/dev/null \
                    | tr '\\0' '\\n' | grep -aoE 'glr_[a-z0-9]{8,}' | sort -u | wc -l";

#[tokio::test]
async fn the_sandbox_is_its_own_and_nobody_else_s() {
    let attack = Attack::of(
        301,
        &[
            "kill -9 1; kill -STOP 1; kill -TERM 1; echo alive",
            KEYS,
            "ls /run/gleaner; ls /proc | grep -c '^[0-9]*$' | awk '{ print ($1 < 10) }'",
            "rm -rf /opt/harness /opt/gleaner /run/gleaner /etc /work \"$HOME\" 2>/dev/null; ls -A /work \"$HOME\"; ls /opt/harness",
            "(trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &) ; echo daemon",
        ],
    )
    .await;
    let fallout = attack.run(&[]).await;
    // It sees its own key, no other process but its own, and can't destroy what is not its own.
    let expected = ["alive", "1", "model.sock\n1", "/home/agent:\n\n/work:\nagent.py", "daemon"];
    assert_eq!(fallout.printed(), expected, "{:#}", fallout.evidence);
    fallout.ended("passed", Some(1.0));
}

/// Memory, the memory file systems and processes, one after the other: each is the attacker's own loss.
#[tokio::test]
async fn what_a_sandbox_uses_up_is_its_own() {
    let hog = "python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 20))'; echo $?";
    let fill =
        "head -c 1G /dev/zero > /tmp/big; head -c 1G /dev/zero > \"$HOME/big\"; stat -c %s /tmp/big; rm /tmp/big \"$HOME/big\"";
    // Whatever process ends, its place is taken at once, the shell's own too.
    let forks = "python3 -c 'import os, time\nwhile True:\n    try: child = os.fork()\n    \
                 except OSError: child = 1; open(\"/tmp/full\", \"w\").close()\n    if not child: time.sleep(1000)' \
                 >/dev/null 2>&1 & while ! test -e /tmp/full; do :; done; echo full";
    let attack = Attack::of(302, &[hog, fill, forks, "echo never"]).await;
    let attack = Attack { config: "[engine]\nmemory = \"192m\"\npids = 64\n".to_owned(), ..attack };
    let fallout = attack.run(&[]).await;
    let printed = fallout.printed();
    assert_eq!(printed.len(), 3, "{printed:?} {:#}", fallout.evidence);
    // The command was killed and the harness went on; there was no more room than a part of the memory; no process was left to make.
    assert!(printed[0].ends_with("137"), "{printed:?}");
    assert!(printed[1].contains("No space left on device") && printed[1].ends_with(&(48 << 20).to_string()), "{printed:?}");
    assert_eq!(printed[2], "full", "{printed:?}");
    fallout.ended("harness_error", None);
    let expected = "the memory of its sandbox was used up, and the harness left no result and ended with exit code 1: \
                    BlockingIOError: [Errno 11] Resource temporarily unavailable";
    assert_eq!((fallout.error(), &fallout.evidence["out_of_memory"]), (expected, &json!(true)));
}

#[tokio::test]
async fn a_harness_that_eats_all_memory_is_killed_and_named() {
    let attack = Attack::by(303, "b = []\nwhile True: b.append(bytearray(1 << 20))").await;
    let attack = Attack { config: "[engine]\nmemory = \"128m\"\n".to_owned(), ..attack };
    let fallout = attack.run(&[]).await;
    fallout.ended("harness_error", None);
    assert_eq!(fallout.error(), "the harness was killed: the memory of its sandbox was used up");
}

/// A request that is larger than any, 10,000 calls, and no ear for TERM.
#[tokio::test]
async fn a_flood_of_calls_ends_at_the_cap() {
    let agent = r#"import collections, http.client, json, os, signal, urllib.parse
signal.signal(signal.SIGTERM, signal.SIG_IGN)
address = urllib.parse.urlsplit(os.environ["BASE_URL"]).netloc
connection = http.client.HTTPConnection(address)
def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0
print(ask("x" * (65 << 20)), flush=True)
connection.close()
print(json.dumps(collections.Counter(ask("attack-mark") for _ in range(10_000))), flush=True)"#;
    let attack = Attack { verify: "false", ..Attack::by(304, agent).await };
    let fallout = attack.run(&["--max-calls", "5"]).await;
    fallout.ended("truncated", Some(0.0));
    let calls = fallout.bench.show(&fallout.id).await["calls"].as_array().unwrap().clone();
    let failures: Vec<Option<&str>> = calls.iter().map(|call| call["failure"]["kind"].as_str()).collect();
    assert_eq!(failures, [Some("too_large"), None, None, None, None, Some("capped")], "{:#}", fallout.evidence);
    assert_eq!(fallout.evidence["exit"]["capped"], "calls", "{:#}", fallout.evidence);
    assert!(fallout.evidence["calls"]["refused"].as_u64() >= Some(1), "{:#}", fallout.evidence);
}

/// More than any engine should keep, and then the result: what is kept is bounded, here and by the engine, and so is our memory.
async fn output_without_end(seed: u64, megabytes: u64) {
    let agent = format!(
        "import os\nlines = (b\"x\" * 1023 + b\"\\n\") * 64\nfor _ in range({megabytes} * 16): os.write(1, lines)\n\
         os.write(1, b'{{\"status\": \"done\"}}\\n')"
    );
    let attack = Attack::by(seed, &agent).await;
    let running = attack.start(&[]).await;
    let (pid, began) = (running.pid(), Instant::now());
    let (ended, used) = tokio::join!(running.ended(), Used::until_it_ends(pid, &attack.bench));
    let fallout = attack.fallout(&ended).await;
    fallout.ended("passed", Some(1.0));
    let kept = fallout.bench.artifact(&fallout.id, "stdout.log");
    assert!(kept.len() <= 17 << 20 && kept.ends_with("{\"status\": \"done\"}\n"), "{} bytes were kept", kept.len());
    println!("{megabytes} MB in {:.1} s: {used:?}, {} bytes kept", began.elapsed().as_secs_f64(), kept.len());
    assert!((1..=33 << 20).contains(&used.log_bytes), "the engine keeps two files of 16 MB: {used:?}");
    assert!((1..=200 << 10).contains(&used.memory_kb), "{used:?}");
}

/// The most that was used at any moment.
#[derive(Debug, Default)]
struct Used {
    /// Memory of our own process.
    memory_kb: u64,
    /// The engine's own log of the attacker's container, on its disk.
    log_bytes: u64,
}

impl Used {
    async fn until_it_ends(pid: u32, bench: &Bench) -> Self {
        let (mut used, mut log) = (Self::default(), None);
        while let Some(peak) = peak_memory_kb(pid) {
            used.memory_kb = peak;
            if log.is_none() {
                log = log_of_attacker(bench).await;
            }
            used.log_bytes = used.log_bytes.max(log.as_deref().map_or(0, size));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        used
    }
}

/// `None` once the process has ended.
fn peak_memory_kb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// The folder in which the engine keeps the output of the attacker's container, once that is there.
async fn log_of_attacker(bench: &Bench) -> Option<PathBuf> {
    let rollouts = bench.list().await;
    let id = rollouts.iter().find(|rollout| rollout["task_id"] == "attack")?["id"].as_str()?;
    let words = ["inspect", "--format", "{{.LogPath}}", &format!("gleaner-{id}")];
    let told = tokio::process::Command::new("docker").args(words).output().await.ok()?;
    let path = String::from_utf8(told.stdout).ok()?;
    Some(Path::new(path.trim()).parent().filter(|_| told.status.success())?.to_owned())
}

/// All that lies in a folder, whatever is removed meanwhile.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file).map(|facts| facts.len()).sum()
}

#[tokio::test]
async fn output_without_end_is_bounded_and_its_end_is_kept() {
    output_without_end(305, 200).await;
}

#[tokio::test]
async fn ten_gigabytes_of_output_are_bounded_and_their_end_is_kept() {
    if is_wide("a harness that writes 10 GB") {
        output_without_end(310, 10 << 10).await;
    }
}

/// Where the engine's storage has quotas the system itself says no; elsewhere the harness is ended soon after, and verified as it is.
#[tokio::test]
async fn who_fills_the_disk_is_bounded_or_ended() {
    let attack = Attack::of(309, &["head -c 200M /dev/zero > big && sleep 1000; echo full"]).await;
    let attack = Attack { verify: "test -s big", config: "[engine]\ndisk = \"64m\"\n".to_owned(), ..attack };
    let fallout = attack.run(&["--timeout", "120"]).await;
    if fallout.evidence["exit"]["capped"] == "disk" {
        fallout.ended("truncated", Some(1.0));
        assert!(fallout.evidence["disk_bytes"].as_u64() > Some(64 << 20), "{:#}", fallout.evidence);
    } else {
        fallout.ended("passed", Some(1.0));
        assert!(fallout.printed()[0].contains("No space left on device"), "{:?}", fallout.printed());
    }
}

/// Trouble of the policy is retried within `retry_s` and `policy_wait_s`, unseen; past both it is nobody's failure in the rollout.
#[tokio::test]
async fn a_policy_that_is_down_for_a_while_is_waited_for_and_for_longer_is_infrastructure() {
    let down = || {
        let fault = Fault::Status { status: 503, headers: [].into(), body: "{}".to_owned() };
        Reply::default().with(fault)
    };
    let turn = || Reply::tools(&[("bash", &json!({"command": "touch made"}).to_string())]);
    for (seed, outages, retry_s, outcome, calls) in
        [(306, 2, 20, "passed", 2), (311, 3, 1, "passed", 2), (307, 50, 1, "infra_error", 2)]
    {
        let script = [turn()].into_iter().chain((0..outages).map(|_| down())).chain([Reply::text("Done.")]);
        let policy = ScriptedPolicy::start(seed, script).await;
        let bench = Bench::new(policy.url()).with_own_cache();
        let config =
            format!("[policies.default]\nretry_s = {retry_s}\n[rollout]\npolicy_wait_s = 3\n[engine]\nkind = \"process\"\n");
        let config = bench.file("config.toml", &config);
        let folder = Path::new(TINY).parent().unwrap().display().to_string();
        let ended = bench.run(&["tiny-agent", "--harnesses", &folder, "p", "--attempts", "1", "--config", &config]).await;
        let (id, rollout) = ended.rollout();
        assert_eq!((&rollout["outcome"], &rollout["calls"]), (&json!(outcome), &json!(calls)), "{ended:?}");
        if outcome == "infra_error" {
            let evidence: Value = serde_json::from_str(&bench.artifact(&id, "evidence.json")).unwrap();
            let error = evidence["error"].as_str().unwrap();
            assert!(error.starts_with("its last model call failed: the policy answered with status 503"), "{error}");
        }
    }
}
