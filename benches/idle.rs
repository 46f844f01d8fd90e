//! What an idle rollout costs Gleaner: `gleaner run --engine process` with harnesses that hold a connection open and say nothing.
//! Prints our processor time and memory for each; the limits are 1 ms a second and 300 KB. Memory is what comes on top of a
//! run with one rollout. `GLEANER_IDLE_ROLLOUTS` says how many; the default is 500.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::cast_precision_loss, reason = "a bench")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WATCHED: Duration = Duration::from_secs(10);
/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_mins(5);
/// The kernel's clock ticks a second, on every Linux that Rust knows.
const TICKS: f64 = 100.0;

const HARNESS: &str = r#"
name = "idler"
version = "1"
description = "holds a connection open and says nothing"
wire = "chat"
[payload]
build = "build.sh"
where = "host"
[run]
command = ["bash", "{{payload}}/idle.sh", "{{root_url}}", "{{prompt}}"]
"#;
const IDLE: &str = "address=${1#http://}\nexec 3<>/dev/tcp/${address%:*}/${address#*:}\necho > \"$2/$$\"\nexec sleep 1000\n";

fn main() {
    let count: usize = std::env::var("GLEANER_IDLE_ROLLOUTS").map_or(500, |count| count.parse().expect("a number"));
    let one = Idle::start(1);
    let base = one.memory_kib();
    one.end();
    let many = Idle::start(count);
    let (cpu, memory) = (many.cpu(), many.memory_kib());
    many.end();
    let cpu = cpu * 1e3 / count as f64;
    let each = (memory - base) / count as f64;
    println!("idle rollouts: {count} at once, each with an open connection, watched for {WATCHED:?}");
    println!("  our processor time of each, a second: {cpu:.3} ms (limit 1)");
    println!("  our memory for each: {each:.0} KiB (limit 300), {memory:.0} KiB in all, {base:.0} with one");
    assert!(cpu < 1.0 && each < 300.0, "an idle rollout costs more than it may");
}

/// A run whose harnesses are all idle.
struct Idle {
    child: Child,
    folder: tempfile::TempDir,
}

impl Idle {
    /// Starts it, and waits until all are idle.
    fn start(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let harness = at("harnesses/idler");
        let (ready, temp) = (at("ready"), at("tmp"));
        for made in [&harness, &ready, &temp] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(harness.join("harness.toml"), HARNESS).unwrap();
        fs::write(harness.join("build.sh"), "cp \"$(dirname \"$0\")/idle.sh\" \"$OUT/\"\n").unwrap();
        fs::write(harness.join("idle.sh"), IDLE).unwrap();
        let count_text = count.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.args(["run", "idler"]).arg(&ready).args(["--engine", "process", "--policy", "http://127.0.0.1:9", "--json"]);
        command.args(["--samples", &count_text, "--concurrency", &count_text]);
        command.arg("--harnesses").arg(at("harnesses")).arg("--database").arg(at("gleaner.db"));
        command.envs([("TMPDIR", &temp), ("XDG_CACHE_HOME", &at("cache")), ("HOME", &at("home"))]);
        command.env("GLEANER_LOG", "error").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let idle = Self { child: command.spawn().unwrap(), folder };
        let begun = Instant::now();
        until("all harnesses are idle", || fs::read_dir(&ready).unwrap().count() == count);
        println!("  {count} started in {:.1} s", begun.elapsed().as_secs_f64());
        idle
    }

    fn proc(&self, name: &str) -> String {
        fs::read_to_string(PathBuf::from("/proc").join(self.child.id().to_string()).join(name)).expect("gleaner runs")
    }

    /// Resident memory.
    fn memory_kib(&self) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }

    /// Processor seconds in each second.
    fn cpu(&self) -> f64 {
        let used = || {
            let stat = self.proc("stat");
            let fields: Vec<f64> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_ascii_whitespace()
                .skip(11)
                .take(2)
                .map(|ticks| ticks.parse().unwrap())
                .collect();
            (fields[0] + fields[1]) / TICKS
        };
        let (before, begun) = (used(), Instant::now());
        std::thread::sleep(WATCHED);
        (used() - before) / begun.elapsed().as_secs_f64()
    }

    /// Breaks it off, as Ctrl-C does, and waits for its end.
    fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success());
        until("the run ends", || self.child.try_wait().unwrap().is_some());
        let left = fs::read_dir(self.folder.path().join("tmp")).unwrap().count();
        assert_eq!(left, 0, "folders of sandboxes are left");
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
