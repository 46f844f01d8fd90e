//! `gleaner audit` agrees with what the policy sampled, and finds what was changed since.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Made, Start, binary};
use support::policy::{Reply, ScriptedPolicy};
use tempfile::TempDir;

/// A store with calls of every form, and the policy that sampled them.
struct Recorded {
    policy: ScriptedPolicy,
    dir: Arc<TempDir>,
    database: PathBuf,
}

/// How an audit ended.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// The report of an audit that found nothing wrong.
    fn passed(&self) -> Value {
        assert_eq!((self.code, self.report()["faults"].clone()), (Some(0), json!([])), "{} {}", self.stdout, self.stderr);
        self.report()
    }

    /// The differences that were found.
    fn found(&self) -> String {
        assert_eq!(self.code, Some(1), "nothing was found: {} {}", self.stdout, self.stderr);
        let report = self.report();
        let told = report["differences"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap());
        told.collect::<Vec<_>>().join("\n")
    }
}

async fn reply_to(gleaner: &Gleaner, made: &Made, path: &str, body: Value) -> Value {
    let mut answer = gleaner.call(path, &made.key, &body).await;
    assert_eq!(answer.status(), 200, "{path}");
    if body["stream"] == true {
        answer.bytes().await.unwrap();
        return Value::Null;
    }
    answer.json().await
}

impl Recorded {
    async fn new(config: &str) -> Self {
        let policy = ScriptedPolicy::start(77, []).await;
        policy.otherwise(Reply::text("reply {n} and a few words").thinking("I think of it."));
        let mut gleaner = Start::new(policy.url()).config(config).run().await;
        let (user, tool) = (json!({"role": "user", "content": "begin"}), json!({"name": "sh", "parameters": {"type": "object"}}));
        // A conversation, streamed and whole, that goes on and then parts.
        let chat = gleaner.rollout(json!({"harness": "codex"})).await;
        let tools = json!([{"type": "function", "function": tool}]);
        policy.then(Reply::tools(&[("sh", r#"{"command": "ls"}"#)]));
        let first =
            reply_to(&gleaner, &chat, "/v1/chat/completions", json!({"model": "m", "messages": [user], "tools": tools})).await;
        let said = &first["choices"][0]["message"];
        let result = json!({"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a.txt"});
        let on = json!({"model": "m", "messages": [user, said, result], "tools": tools, "stream": true});
        reply_to(&gleaner, &chat, "/v1/chat/completions", on).await;
        let other = json!({"model": "m", "messages": [{"role": "user", "content": "something else"}]});
        reply_to(&gleaner, &chat, "/v1/chat/completions", other).await;
        // One whose second request names the first.
        let responses = gleaner.rollout(json!({"harness": "codex"})).await;
        let first = reply_to(&gleaner, &responses, "/v1/responses", json!({"model": "m", "input": "begin here"})).await;
        let next = json!({"model": "m", "input": "go on", "previous_response_id": first["id"]});
        reply_to(&gleaner, &responses, "/v1/responses", next).await;
        let plain = gleaner.rollout(json!({"harness": "react"})).await;
        reply_to(&gleaner, &plain, "/v1/completions", json!({"model": "m", "prompt": "once upon", "max_tokens": 8})).await;
        let echoed = json!({"model": "m", "prompt": "twice upon", "echo": true, "logprobs": 0, "stream": true});
        reply_to(&gleaner, &plain, "/v1/completions", echoed).await;
        let messages = json!({"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "stream": true});
        reply_to(&gleaner, &plain, "/v1/messages", messages).await;
        for made in [&chat, &responses, &plain] {
            for call in gleaner.calls(&made.id).await {
                let record = gleaner.record(call.id()).await;
                assert_eq!((record.status(), record.level()), ("done", "full"), "{record:?}");
            }
            gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({"no_reward": true})).await;
        }
        gleaner.terminate().await;
        gleaner.ended().await;
        Self { policy, dir: gleaner.dir.clone(), database: gleaner.database.clone() }
    }

    async fn gleaner(&self, words: &[&str]) -> Ended {
        let mut command = tokio::process::Command::new(binary());
        command.args(words).arg("--database").arg(&self.database);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GLEANER_")) {
            command.env_remove(name);
        }
        let done = support::within("gleaner", command.env("HOME", self.dir.path()).output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { code: done.status.code(), stdout: text(done.stdout), stderr: text(done.stderr) }
    }

    async fn audit(&self, words: &[&str]) -> Ended {
        let url = self.policy.url();
        self.gleaner(&[&["audit", "--json", "--policy", &url], words].concat()).await
    }

    async fn export(&self, name: &str) -> PathBuf {
        let out = self.dir.path().join(name);
        let done = self.gleaner(&["export", "samples", "--check", "--out", out.to_str().unwrap()]).await;
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        out
    }

    /// Changes the store behind Gleaner's back, and takes away the checksums that would tell it without an audit.
    fn change(&self, change: impl FnOnce(&rusqlite::Connection)) {
        let store = rusqlite::Connection::open(&self.database).unwrap();
        change(&store);
        store.execute_batch("UPDATE replies SET sum = NULL, prompt_sum = NULL; UPDATE unsealed SET calls = 1000000").unwrap();
    }

    /// Changes the bytes of a column of the last call that ended.
    fn change_column(&self, column: &str, change: impl FnOnce(&mut Vec<u8>)) {
        self.change(|store| {
            let query = format!("SELECT call, {column} FROM replies ORDER BY call DESC LIMIT 1");
            let (call, mut bytes): (i64, Vec<u8>) = store.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            change(&mut bytes);
            let update = format!("UPDATE replies SET {column} = ?1 WHERE call = ?2");
            assert_eq!(store.execute(&update, rusqlite::params![bytes, call]).unwrap(), 1);
        });
    }
}

#[tokio::test]
async fn what_was_sampled_is_what_is_scored() {
    let recorded = Recorded::new("").await;
    let report = recorded.audit(&["--threshold", "0.000001"]).await.passed();
    assert_eq!((&report["samples"], &report["calls"], &report["different"]), (&json!(6), &json!(8), &json!(0)));
    let groups = report["groups"].as_array().unwrap();
    let trained: usize = recorded.policy.seen().iter().map(|seen| seen.tokens.len()).sum();
    let of = |group: &Value| (group["harness"].as_str().unwrap().to_owned(), group["samples"].as_u64().unwrap());
    assert_eq!(groups.iter().map(of).collect::<Vec<_>>(), [("codex".to_owned(), 3), ("react".to_owned(), 3)]);
    for group in groups {
        assert_eq!(group["trained"], group["gap"]["tokens"], "not every trained token was compared: {group}");
        assert_eq!((&group["policy"], &group["drift"], &group["gap"]["max"]), (&json!("default"), &json!(0), &json!(0.0)));
    }
    assert_eq!(report["compared"].as_u64(), Some(trained as u64));
    assert_eq!((&report["excluded"], &report["skipped"]), (&json!({}), &json!({})));

    for name in ["s.jsonl", "s.parquet"] {
        let out = recorded.export(name).await;
        let of_file = recorded.audit(&["--samples", out.to_str().unwrap()]).await.passed();
        assert_eq!(of_file, report, "{name}");
    }
    let some = recorded.audit(&["--harness", "react", "--limit", "2"]).await.passed();
    assert_eq!((&some["samples"], some["groups"].as_array().unwrap().len()), (&json!(2), 1));
    let people = recorded.gleaner(&["audit", "--policy", &recorded.policy.url()]).await;
    assert_eq!(people.code, Some(0));
    assert!(people.stdout.starts_with("6 samples, 8 calls read anew from their raw bytes, 0 differences\n"), "{}", people.stdout);
}

#[tokio::test]
async fn a_changed_store_is_found() {
    let recorded = Recorded::new("").await;
    let whole = std::fs::read(&recorded.database).unwrap();
    let again = || {
        for name in ["gleaner.db-wal", "gleaner.db-shm"] {
            let _ = std::fs::remove_file(recorded.dir.path().join(name));
        }
        std::fs::write(&recorded.database, &whole).unwrap();
    };
    recorded.audit(&["--no-score"]).await.passed();

    recorded.change_column("logprobs", |bytes| {
        // The first byte says how wide the numbers are.
        let number: [u8; 8] = bytes[1..9].try_into().expect("a test of doubles");
        assert_eq!(bytes[0], 1, "the scripted policy's log-probabilities are doubles");
        bytes[1..9].copy_from_slice(&(f64::from_le_bytes(number) - 0.01).to_le_bytes());
    });
    let scored = recorded.audit(&["--threshold", "0.0099"]).await;
    assert!(scored.found().contains("log-probability of token"), "{}", scored.found());
    let report = scored.report();
    assert!((report["max"].as_f64().unwrap() - 0.01).abs() < 1e-9, "{report}");
    let faults: Vec<&str> = report["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("1 difference from") && faults[1].contains("widest gap"), "{faults:?}");
    again();

    recorded.change_column("completion_ids", |bytes| bytes[0] ^= 1);
    let found = recorded.audit(&["--no-score"]).await.found();
    assert!(found.contains("id of token"), "{found}");
    again();

    // With its checksums a changed row is not even read.
    let changed = "UPDATE replies SET constrained = 1 WHERE call = (SELECT max(call) FROM replies)";
    assert_eq!(rusqlite::Connection::open(&recorded.database).unwrap().execute(changed, []).unwrap(), 1);
    let found = recorded.audit(&["--no-score"]).await.found();
    assert!(found.contains("its end is not as it was written"), "{found}");
    again();

    // What decides the mask of a call's tokens.
    recorded.change(|store| {
        let changed = "UPDATE replies SET constrained = 1 WHERE call = (SELECT max(call) FROM replies)";
        assert_eq!(store.execute(changed, []).unwrap(), 1);
    });
    let ended = recorded.audit(&["--no-score"]).await;
    assert!(ended.found().contains("the raw bytes give it, and it is not there"), "{}", ended.found());
    again();

    // What is left of the raw bytes does not say what was sampled.
    recorded.change_column("response", |bytes| bytes.truncate(bytes.len() / 2));
    let found = recorded.audit(&["--no-score"]).await.found();
    assert!(found.contains("its raw bytes can't be read"), "{found}");
    again();
    recorded.audit(&["--no-score"]).await.passed();
}

/// Writes the rows of a file anew, the first of them changed.
fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read_to_string(from).unwrap();
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    change(&mut rows[0]);
    std::fs::write(to, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

#[tokio::test]
async fn a_changed_file_is_found() {
    let recorded = Recorded::new("").await;
    let (out, changed) = (recorded.export("s.jsonl").await, recorded.dir.path().join("changed.jsonl"));
    let found = async |change: &dyn Fn(&mut Value, usize)| {
        rewrite(&out, &changed, |row| {
            let token = usize::try_from(row["prompt_length"].as_u64().unwrap()).unwrap();
            change(row, token);
        });
        recorded.audit(&["--no-score", "--samples", changed.to_str().unwrap()]).await.found()
    };
    let at = |what: &str, said: &str| assert!(said.contains(what), "{said}");
    at("id of token", &found(&|row, token| row["token_ids"][token] = json!(row["token_ids"][token].as_u64().unwrap() + 1)).await);
    at("id of token 0", &found(&|row, _| row["token_ids"][0] = json!(row["token_ids"][0].as_u64().unwrap() + 1)).await);
    at("mask of token", &found(&|row, token| row["loss_mask"][token] = json!(0)).await);
    at("mask of token 0", &found(&|row, _| row["loss_mask"][0] = json!(1)).await);
    at(
        "log-probability of token",
        &found(&|row, token| row["logprobs"][token] = json!(row["logprobs"][token].as_f64().unwrap() - 0.01)).await,
    );
    at("no such sample", &found(&|row, _| row["id"] = json!("another")).await);
    std::fs::write(&changed, "{}\n").unwrap();
    let unread = recorded.audit(&["--samples", changed.to_str().unwrap()]).await.found();
    at("row 1 of the file is no sample", &unread);
}

#[tokio::test]
async fn what_can_not_be_compared_is_counted_and_does_not_pass() {
    let old = "[policies.default]\nversion = \"step-1\"\n";
    let recorded = Recorded::new(old).await;
    let config = recorded.dir.path().join("audit.toml");
    let audit = async |text: &str| {
        std::fs::write(&config, text).unwrap();
        recorded.audit(&["--config", config.to_str().unwrap()]).await
    };
    let same = audit(old).await.passed();
    assert_eq!(same["groups"][0]["versions"]["step-1"], same["groups"][0]["gap"]["tokens"]);

    let other = audit("[policies.default]\nversion = \"step-2\"\n").await;
    let report = other.report();
    assert_eq!((other.code, &report["compared"]), (Some(1), &json!(0)));
    assert_eq!(report["excluded"]["sampled by weights that are not served now"], same["compared"]);
    assert_eq!(report["faults"], json!(["no token could be compared with the policy's score"]));

    let processed = audit("[policies.default]\nversion = \"step-1\"\nkind = \"llamacpp\"\n").await;
    let report = processed.report();
    assert_eq!((processed.code, &report["compared"]), (Some(1), &json!(0)));
    let (reason, samples) = report["skipped"].as_object().unwrap().iter().next().unwrap();
    assert!(reason.contains("can't score") && samples == &report["samples"], "{report}");

    let nothing = recorded.audit(&["--task", "none"]).await;
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.report()["faults"][0].as_str().unwrap().contains("no sample was looked at"));
    recorded.change(|store| assert!(store.execute("UPDATE replies SET logprob_kind = 1", []).unwrap() > 0));
    let report = audit(old).await.report();
    assert_eq!(report["excluded"]["the log-probabilities are not the model's own"], same["compared"], "{report}");
}
