//! The binary under test, in a folder of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::client::{Answer, get, post, send};
use super::record::Record;
use super::{until, within};

/// A running `gleaner serve`; killed when it is dropped.
pub struct Gleaner {
    pub addr: SocketAddr,
    pub dir: Arc<TempDir>,
    pub database: PathBuf,
    child: Child,
}

/// How to start one.
pub struct Start {
    /// The policy's base URL.
    pub policy: String,
    /// The config file's text.
    pub config: String,
    /// The folder to use again; a fresh one otherwise.
    pub dir: Option<Arc<TempDir>>,
    /// The database, if it is not to be in that folder.
    pub database: Option<PathBuf>,
    pub listen: String,
    pub env: Vec<(String, String)>,
}

impl Start {
    /// The usual start against this policy.
    pub fn new(policy: impl Into<String>) -> Self {
        Self {
            policy: policy.into(),
            config: String::new(),
            dir: None,
            database: None,
            listen: "127.0.0.1:0".to_owned(),
            env: Vec::new(),
        }
    }

    /// The same with this config file.
    #[must_use]
    pub fn config(self, config: impl Into<String>) -> Self {
        Self { config: config.into(), ..self }
    }

    /// Starts the binary and waits until it says that it is ready.
    pub async fn run(self) -> Gleaner {
        let dir = self.dir.unwrap_or_else(|| Arc::new(tempfile::tempdir().unwrap()));
        let database = self.database.unwrap_or_else(|| dir.path().join("gleaner.db"));
        let log_path = dir.path().join("stderr.log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&log_path).unwrap();
        let mut command = Command::new(binary());
        command.args(["serve", "--listen", &self.listen, "--policy", &self.policy, "--database"]).arg(&database);
        if !self.config.is_empty() {
            let path = dir.path().join("config.toml");
            std::fs::write(&path, &self.config).unwrap();
            command.arg("--config").arg(path);
        }
        // What stands in the environment of whoever runs the tests is none of their business.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GLEANER_")) {
            command.env_remove(name);
        }
        command.envs(self.env).env("HOME", dir.path()).env("XDG_DATA_HOME", dir.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("gleaner's start", lines.next_line()).await.unwrap();
        let addr = line
            .as_deref()
            .and_then(|line| line.strip_prefix("listening on http://"))
            .unwrap_or_else(|| panic!("gleaner said {line:?} instead of where it listens; its log: {}", read(&log_path)));
        Gleaner { addr: addr.trim().parse().unwrap(), dir, database, child }
    }
}

/// The binary under test.
pub fn binary() -> PathBuf {
    // Set by cargo for integration tests and benches; an example that needs the binary says where it is.
    option_env!("CARGO_BIN_EXE_gleaner")
        .map_or_else(|| std::env::var_os("GLEANER_BIN").expect("GLEANER_BIN").into(), PathBuf::from)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A rollout made by the API.
#[derive(Clone, Debug)]
pub struct Made {
    pub id: String,
    pub key: String,
    pub base_url: String,
}

impl Gleaner {
    /// Starts one against this policy.
    pub async fn start(policy: impl Into<String>) -> Self {
        Start::new(policy).run().await
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        read(&self.dir.path().join("stderr.log"))
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("gleaner has ended")
    }

    /// Sends SIGTERM.
    pub async fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for the process's end.
    pub async fn ended(&mut self) -> ExitStatus {
        within("gleaner's end", self.child.wait()).await.unwrap()
    }

    /// Makes a rollout.
    pub async fn rollout(&self, body: Value) -> Made {
        let mut answer = post(self.addr, "/api/v1/rollouts", &[], &body).await;
        let made = answer.json().await;
        assert_eq!(answer.status(), 201, "{made}");
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("no {name} in {made}")).to_owned();
        Made { id: text("id"), key: text("key"), base_url: text("base_url") }
    }

    /// Posts to a model endpoint with a rollout's key.
    pub async fn call(&self, path: &str, key: &str, body: &Value) -> Answer {
        post(self.addr, path, &[("authorization", &format!("Bearer {key}"))], body).await
    }

    /// Reads from the API.
    pub async fn api(&self, path: &str) -> Value {
        let mut answer = get(self.addr, &format!("/api/v1{path}"), &[]).await;
        let body = answer.json().await;
        assert_eq!(answer.status(), 200, "{path}: {body}");
        body
    }

    /// Posts to the API; gives the status and the answer.
    pub async fn api_post(&self, path: &str, body: Value) -> (u16, Value) {
        let mut answer = post(self.addr, &format!("/api/v1{path}"), &[], &body).await;
        (answer.status(), answer.json().await)
    }

    /// All calls of a rollout, in their order, page by page.
    pub async fn calls(&self, rollout: &str) -> Vec<Record> {
        let (mut calls, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.api(&format!("/rollouts/{rollout}/calls?limit=1000{after}")).await;
            calls.extend(page["calls"].as_array().unwrap().iter().cloned().map(Record));
            match page["next"].as_str() {
                Some(cursor) => after = format!("&after={cursor}"),
                None => return calls,
            }
        }
    }

    /// A call's record, once the call has ended.
    pub async fn record(&self, call: &str) -> Record {
        until("a call's end in the store", async || {
            let record = Record(self.api(&format!("/calls/{call}")).await);
            (record.status() != "running").then_some(record)
        })
        .await
    }

    /// The one call of a rollout, once it has ended.
    pub async fn only_call(&self, rollout: &str) -> Record {
        let calls =
            until("a call in the store", async || Some(self.calls(rollout).await).filter(|calls| !calls.is_empty())).await;
        assert_eq!(calls.len(), 1, "more calls than one: {calls:#?}");
        self.record(calls[0].id()).await
    }

    /// A call's raw bytes: `request`, `upstream`, `response` or `prompt`.
    pub async fn raw(&self, call: &str, kind: &str) -> Vec<u8> {
        let mut answer = get(self.addr, &format!("/api/v1/calls/{call}/{kind}"), &[]).await;
        let bytes = answer.bytes().await.unwrap();
        assert_eq!(answer.status(), 200, "{kind}: {}", String::from_utf8_lossy(&bytes));
        bytes
    }

    /// A rollout's samples and what was left out.
    pub async fn samples(&self, rollout: &str) -> (Vec<Value>, Vec<Value>) {
        let body = self.api(&format!("/rollouts/{rollout}/samples")).await;
        (body["samples"].as_array().unwrap().clone(), body["left_out"].as_array().unwrap().clone())
    }

    /// Sends anything at all.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        within(path, send(self.addr, method, path, headers, body)).await.unwrap()
    }

    /// The samples of a fresh, default rollout: for calls that need only one.
    pub async fn plain_rollout(&self) -> Made {
        self.rollout(json!({})).await
    }
}

/// Checks one sample against what the policy sampled: every span's ids and log-probabilities, and nothing trained beside them.
pub fn assert_sampled(sample: &Value, seen: &[super::policy::Seen]) {
    let ids: Vec<u32> = serde_json::from_value(sample["token_ids"].clone()).unwrap();
    let mask: Vec<u8> = serde_json::from_value(sample["loss_mask"].clone()).unwrap();
    let logprobs: Vec<Option<f64>> = serde_json::from_value(sample["logprobs"].clone()).unwrap();
    let last = seen.last().expect("nothing was sampled");
    let whole: Vec<u32> = last.prompt_ids.iter().copied().chain(last.ids()).collect();
    assert_eq!(ids, whole, "the sequence is not the last prompt and its reply");
    let (mut want_mask, mut want_logprobs) = (vec![0; whole.len()], vec![None; whole.len()]);
    for call in seen {
        let start = call.prompt_ids.len();
        assert_eq!(whole[..start], call.prompt_ids, "the script's prompts do not extend each other");
        for (at, logprob) in call.logprobs().into_iter().enumerate() {
            want_mask[start + at] = 1;
            want_logprobs[start + at] = Some(logprob);
        }
    }
    assert_eq!(mask, want_mask);
    assert_eq!(logprobs, want_logprobs);
    let spans: Vec<(u64, u64)> = sample["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| (span["start"].as_u64().unwrap(), span["end"].as_u64().unwrap()))
        .collect();
    let want: Vec<(u64, u64)> =
        seen.iter().map(|call| (call.prompt_ids.len() as u64, (call.prompt_ids.len() + call.tokens.len()) as u64)).collect();
    assert_eq!(spans, want);
}
