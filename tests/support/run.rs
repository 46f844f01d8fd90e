//! `gleaner run` and the commands that look at what it left, as a user starts them, on a store in a folder of its own.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::gleaner::{assert_sampled, binary};
use super::policy::Seen;
use super::until;

/// Containers at once, over all tests of a program.
static CONTAINERS: Semaphore = Semaphore::const_new(4);
/// Nothing here takes so long, on a loaded machine: some harnesses think for ten seconds of both cores before they begin.
const LONG: Duration = Duration::from_mins(5);

/// A store, and the folder of what a test makes beside it.
pub struct Bench {
    pub dir: TempDir,
    policy: String,
    /// Payloads are built into the test's folder instead of the user's cache.
    own_cache: bool,
    env: Vec<(&'static str, String)>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running command; killed when it is dropped.
pub struct Running {
    child: Child,
    _permit: SemaphorePermit<'static>,
}

impl Bench {
    /// A fresh one whose runs ask the policy at this URL.
    pub fn new(policy: impl Into<String>) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), policy: policy.into(), own_cache: false, env: Vec::new() }
    }

    /// The same with a cache of its own: for harnesses whose payload is made in no time.
    #[must_use]
    pub fn with_own_cache(self) -> Self {
        Self { own_cache: true, ..self }
    }

    /// The same with a variable in every command's environment.
    #[must_use]
    pub fn with_env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// The database's file.
    pub fn database(&self) -> PathBuf {
        self.dir.path().join("gleaner.db")
    }

    /// Writes a file into the folder.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        // What stands in the environment of whoever runs the tests is none of their business.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GLEANER_")) {
            command.env_remove(name);
        }
        if self.own_cache {
            command.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        }
        command.args(words).arg("--database").arg(self.database()).env("XDG_DATA_HOME", self.dir.path());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Starts `gleaner run` with these words, which may have so many containers at once.
    pub async fn start(&self, words: &[&str], containers: u32) -> Running {
        self.spawn(&[&["run"], words, &["--json"]].concat(), containers).await
    }

    /// Starts any command that asks the policy, which may have so many containers at once.
    pub async fn spawn(&self, words: &[&str], containers: u32) -> Running {
        let permit = CONTAINERS.acquire_many(containers).await.unwrap();
        let child = self.command(&[words, &["--policy", &self.policy]].concat()).spawn().unwrap();
        Running { child, _permit: permit }
    }

    /// Runs `gleaner run` to its end.
    pub async fn run(&self, words: &[&str]) -> Ended {
        self.start(words, 1).await.ended().await
    }

    /// Runs any other command to its end.
    pub async fn ask(&self, words: &[&str]) -> Ended {
        Ended::of(&self.command(words).output().await.unwrap())
    }

    /// Runs any other command that has containers, to its end.
    pub async fn other(&self, words: &[&str]) -> Ended {
        let permit = CONTAINERS.acquire_many(2).await.unwrap();
        Running { child: self.command(words).spawn().unwrap(), _permit: permit }.ended().await
    }

    /// Runs any other command, which must succeed; gives its standard output.
    pub async fn look(&self, words: &[&str]) -> String {
        let ended = self.ask(words).await;
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
        ended.stdout
    }

    /// All of a rollout, as `gleaner show` tells it.
    pub async fn show(&self, id: &str) -> Value {
        serde_json::from_str(&self.look(&["show", id, "--json"]).await).unwrap()
    }

    /// All rollouts, as `gleaner list` tells them.
    pub async fn list(&self) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.look(&["list", "--json", "--limit", "0"]).await).unwrap();
        list["rollouts"].as_array().unwrap().clone()
    }

    /// All samples, as `gleaner export samples --check` writes them.
    pub async fn export(&self) -> Vec<Value> {
        let path = self.dir.path().join("samples.jsonl");
        let said = self.look(&["export", "samples", "--check", "--out", path.to_str().unwrap()]).await;
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}; it said {said:?}"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What is kept of a rollout beside its calls.
    pub fn artifact(&self, rollout: &str, name: &str) -> String {
        let path = self.dir.path().join("artifacts").join(rollout).join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Ended {
    fn of(output: &std::process::Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The rollouts of the last line.
    pub fn rollouts(&self) -> Vec<Value> {
        let last = self.stdout.lines().last().unwrap_or_else(|| panic!("it printed nothing: {self:?}"));
        let line: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        line["rollouts"].as_array().unwrap().clone()
    }

    /// The only rollout, without its id; the id.
    pub fn rollout(&self) -> (String, Value) {
        let mut rollouts = self.rollouts();
        assert_eq!(rollouts.len(), 1, "{self:?}");
        let mut rollout = rollouts.remove(0);
        let id = rollout.as_object_mut().unwrap().shift_remove("id").unwrap();
        (id.as_str().unwrap().to_owned(), rollout)
    }
}

impl Running {
    /// Waits for its end.
    pub async fn ended(self) -> Ended {
        Ended::of(&tokio::time::timeout(LONG, self.child.wait_with_output()).await.expect("gleaner run ends").unwrap())
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("gleaner has ended")
    }

    /// Sends it a signal.
    pub async fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }
}

/// The states of containers whose names begin so (`running`, `exited`, ...), as Docker's own client sees them.
pub async fn containers(name: &str) -> Vec<String> {
    let filter = format!("name=^/?{name}");
    let words = ["ps", "--all", "--filter", &filter, "--format", "{{.State}}"];
    let output = Command::new("docker").args(words).output().await.expect("these tests need Docker's client");
    assert!(output.status.success(), "these tests need a Docker engine: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Waits until the containers of this name are in these states.
pub async fn containers_are(name: &str, states: &[&str]) {
    until("the containers' states", async || (containers(name).await == states).then_some(())).await;
}

/// Checks that the samples of side-by-side conversations are each exactly what the policy sampled for it, and that nothing it
/// sampled is missing.
pub fn assert_all_sampled(samples: &[Value], seen: &[Seen]) {
    let mut left: Vec<Seen> = seen.to_vec();
    for sample in samples {
        let ids: Vec<u32> = serde_json::from_value(sample["token_ids"].clone()).unwrap();
        let whole = |call: &Seen| [&call.prompt_ids[..], &call.ids()].concat();
        let (own, others): (Vec<Seen>, Vec<Seen>) = left.into_iter().partition(|call| ids.starts_with(&whole(call)));
        assert_sampled(sample, &own);
        left = others;
    }
    assert!(left.is_empty(), "{} sampled replies are in no sample", left.len());
}
