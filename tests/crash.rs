//! Nothing that a client saw as complete is missing from the store, whatever is killed and when, and whatever the disk does.
//!
//! `GLEANER_TEST_ROUNDS` sets the rounds of the crash test (3; the whole is 20).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::format_push_string,
    clippy::format_collect,
    clippy::print_stdout,
    reason = "tests"
)]

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Start};
use support::policy::{Reply, ScriptedPolicy};
use support::record::Record;
use support::{chat, client, gemini, messages, responses};
use tokio::task::JoinSet;

const STREAMS: usize = 500;
const ENOUGH: usize = 50;

/// What one client saw.
#[derive(Debug)]
struct Saw {
    call: Option<String>,
    /// When the answer's head came.
    begun: Option<Instant>,
    complete: bool,
    text: String,
    /// The tool calls, as name and arguments.
    tools: Vec<(String, Value)>,
}

/// How a client asks: by which wire, streamed or not.
#[derive(Clone, Copy)]
enum Way {
    ChatStream,
    ChatBody,
    ResponsesStream,
    MessagesStream,
    MessagesBody,
    GeminiStream,
}

impl Way {
    fn of(number: usize) -> Self {
        use Way::{ChatBody, ChatStream, GeminiStream, MessagesBody, MessagesStream, ResponsesStream};
        [ChatStream, ResponsesStream, MessagesStream, ChatBody, GeminiStream, MessagesStream, ChatStream, MessagesBody]
            [number % 8]
    }

    /// One of those that answer errors in one form.
    fn openai(number: usize) -> Self {
        [Self::ChatStream, Self::ResponsesStream, Self::ChatStream, Self::ChatBody][number % 4]
    }

    fn request(self, text: &str) -> (&'static str, Value) {
        match self {
            Self::ChatStream => ("/v1/chat/completions", chat::request(text, true)),
            Self::ChatBody => ("/v1/chat/completions", chat::request(text, false)),
            Self::ResponsesStream => ("/v1/responses", responses::request(text, true)),
            Self::MessagesStream => ("/v1/messages", messages::request(text, true)),
            Self::MessagesBody => ("/v1/messages", messages::request(text, false)),
            Self::GeminiStream => ("/v1beta/models/any:streamGenerateContent?alt=sse", gemini::request(text)),
        }
    }
}

/// Sends one call and reads it as far as it comes; a server that dies is no failure of the client.
async fn ask(gleaner: std::net::SocketAddr, key: String, number: usize) -> Saw {
    let mut saw = Saw { call: None, begun: None, complete: false, text: String::new(), tools: Vec::new() };
    let way = Way::of(number);
    let (path, body) = way.request(&format!("question {number}"));
    let headers = [("x-api-key", key.as_str())];
    let Ok(mut answer) = client::send(gleaner, "POST", path, &headers, body.to_string().as_bytes()).await else { return saw };
    if answer.status() != 200 {
        return saw;
    }
    saw.call = Some(answer.call_id());
    saw.begun = Some(Instant::now());
    match way {
        Way::ChatStream | Way::ChatBody => {
            let reply = chat::Reply::read(&mut answer).await;
            saw.complete = reply.complete;
            saw.text = reply.text;
            saw.tools = reply.tools.into_iter().map(|tool| (tool.name, value(&tool.arguments))).collect();
        }
        Way::ResponsesStream => {
            let reply = responses::Reply::read(&mut answer).await;
            saw.complete = reply.complete();
            saw.tools = reply.calls().into_iter().map(|(_, name, arguments)| (name, value(&arguments))).collect();
            saw.text = reply.text;
        }
        // Both may run a tool as soon as they know all of it, whether the rest comes or not.
        Way::MessagesStream | Way::MessagesBody => {
            let reply = messages::Reply::read(&mut answer).await;
            saw.tools = reply.calls().into_iter().map(|(_, name, input)| (name, input)).collect();
            saw.complete = reply.complete || !saw.tools.is_empty();
            saw.text = reply.text();
        }
        Way::GeminiStream => {
            let reply = gemini::Reply::read(&mut answer).await;
            saw.complete = reply.complete() || !reply.calls.is_empty();
            saw.tools = reply.calls.into_iter().map(|(_, name, args)| (name, args)).collect();
            saw.text = reply.text;
        }
    }
    saw
}

fn value(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments))
}

/// The text's number at the policy, by which its sampled ids are found.
fn number_of(text: &str) -> usize {
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no reply of ours: {text:?}"))
}

/// Every complete answer is in the store with the text that the client saw and the ids that were sampled.
fn assert_stored(saw: &[Saw], calls: &HashMap<String, Record>, policy: &ScriptedPolicy, sampled_before: usize) {
    let seen = policy.seen();
    for saw in saw.iter().filter(|saw| saw.complete) {
        let id = saw.call.as_ref().unwrap();
        let record = calls.get(id).unwrap_or_else(|| panic!("call {id} was answered and is not in the store"));
        assert_eq!(record.status(), "done", "call {id} was answered: {record:?}");
        assert_eq!(record.text(), Some(saw.text.as_str()));
        let sampled = &seen[number_of(&saw.text)];
        assert!(number_of(&saw.text) >= sampled_before);
        assert_eq!(record.level(), "full");
        assert_eq!(record.prompt_ids(), sampled.prompt_ids);
        assert_eq!(record.completion_ids(), sampled.ids());
        assert_eq!(record.logprobs(), sampled.logprobs());
        let calls = record.0.pointer("/message/tool_calls").and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let stored: Vec<(String, Value)> =
            calls.iter().map(|call| (text(&call["function"]["name"]), value(&text(&call["function"]["arguments"])))).collect();
        assert_eq!(stored, saw.tools);
    }
}

async fn all_calls(gleaner: &Gleaner, rollouts: &[String]) -> HashMap<String, Record> {
    let mut all = HashMap::new();
    for rollout in rollouts {
        all.extend(gleaner.calls(rollout).await.into_iter().map(|record| (record.id().to_owned(), record)));
    }
    all
}

/// A draw that differs from run to run: where the kill falls shall not be the same each time.
fn draw(below: usize) -> usize {
    use std::hash::{BuildHasher, Hasher};
    let hash = std::collections::hash_map::RandomState::new().build_hasher().finish();
    usize::try_from(hash % below as u64).unwrap()
}

/// One round; `false` if the kill fell where too few were complete or in flight.
async fn round(policy: &ScriptedPolicy, dir: &Arc<tempfile::TempDir>) -> bool {
    let mut gleaner = Start { dir: Some(Arc::clone(dir)), ..Start::new(policy.url()) }.run().await;
    let mut rollouts = Vec::new();
    for number in 0..10 {
        rollouts.push(gleaner.rollout(json!({"task_id": format!("task-{number}")})).await);
    }
    let sampled_before = policy.count();
    let complete = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..STREAMS {
        let (addr, key, complete) = (gleaner.addr, rollouts[number % rollouts.len()].key.clone(), Arc::clone(&complete));
        clients.spawn(async move {
            // Spread out, so that at any moment some end, some begin and some are under way.
            tokio::time::sleep(Duration::from_millis((number as u64 * 7919) % 1500)).await;
            let saw = ask(addr, key, number).await;
            complete.fetch_add(usize::from(saw.complete), Ordering::Relaxed);
            saw
        });
    }
    let moment = ENOUGH + draw(STREAMS - 2 * ENOUGH);
    support::until("the moment of the kill", async || (complete.load(Ordering::Relaxed) >= moment).then_some(())).await;
    tokio::time::sleep(Duration::from_micros(draw(20_000) as u64)).await;
    let killed = Instant::now();
    gleaner.kill().await;
    let saw = clients.join_all().await;
    let completed = saw.iter().filter(|saw| saw.complete).count();
    let in_flight: Vec<&Saw> = saw.iter().filter(|saw| !saw.complete && saw.call.is_some()).collect();
    let again = Start { dir: Some(Arc::clone(dir)), ..Start::new(policy.url()) }.run().await;
    let ids: Vec<String> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
    let calls = all_calls(&again, &ids).await;
    assert_stored(&saw, &calls, policy, sampled_before);
    let mut interrupted = 0;
    for record in calls.values() {
        assert_ne!(record.status(), "running", "its process has died");
        interrupted += usize::from(record.status() == "interrupted");
    }
    for saw in &in_flight {
        // A call's start is not waited for, but it does not wait long either.
        if saw.begun.is_some_and(|begun| killed.saturating_duration_since(begun) > Duration::from_millis(500)) {
            let id = saw.call.as_ref().unwrap();
            let record = calls.get(id).unwrap_or_else(|| panic!("call {id} had begun and is not known to the store"));
            assert!(matches!(record.status(), "interrupted" | "done"), "{record:?}");
        }
    }
    assert!(interrupted > 0 || in_flight.is_empty(), "none of {} calls in flight is listed as interrupted", in_flight.len());
    println!("killed with {completed} complete, {} in flight, {interrupted} listed as interrupted", in_flight.len());
    completed >= ENOUGH && in_flight.len() >= ENOUGH
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_lost_by_a_kill() {
    let rounds: usize = std::env::var("GLEANER_TEST_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let policy = ScriptedPolicy::start(91, []).await;
    let text = format!("reply {{n}} {}", "with some words that come one after another ".repeat(4));
    let tools = Reply::tools(&[("note", r#"{"text": "a b", "n": 1}"#)]).tool_calls;
    policy.otherwise(Reply { pace_ms: 25, tool_calls: tools, ..Reply::text(text) });
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (mut counted, mut tried) = (0, 0);
    while counted < rounds {
        counted += usize::from(round(&policy, &dir).await);
        tried += 1;
        assert!(tried < rounds * 3 + 3, "the kill fell outside the bounds too often");
    }
}

/// A small disk of its own, gone when it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where this user may not mount.
    fn mount(megabytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &size, "gleaner-test"]).arg(dir.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Text that no compression makes small.
fn noise(bytes: usize) -> String {
    (0..bytes / 16).map(|_| format!("{:016x}", draw(usize::MAX))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_completes_that_a_full_disk_did_not_take() {
    let Some(disk) = SmallDisk::mount(16) else {
        assert!(
            std::env::var_os("GLEANER_TEST_NO_MOUNT").is_some(),
            "needs root to mount a tmpfs; GLEANER_TEST_NO_MOUNT=1 skips"
        );
        return;
    };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let policy = ScriptedPolicy::start(92, []).await;
    policy.otherwise(Reply::text("reply {n} and a few words more"));
    let database = Some(disk.path().join("gleaner.db"));
    let mut gleaner = Start { database: database.clone(), ..Start::new(policy.url()) }.run().await;
    let made = gleaner.plain_rollout().await;
    let (mut saw, mut failed) = (Vec::new(), 0);
    while failed < 20 {
        assert!(saw.len() < 4_000, "the disk never became full");
        let mut clients = JoinSet::new();
        for number in 0..8 {
            let (addr, key) = (gleaner.addr, made.key.clone());
            clients.spawn(async move { ask_much(addr, key, number).await });
        }
        let batch = clients.join_all().await;
        failed += batch.iter().filter(|saw| !saw.complete).count();
        saw.extend(batch);
    }
    assert!(saw.iter().any(|saw| saw.complete), "nothing was ever answered");
    std::fs::remove_file(&ballast).unwrap();
    let ids = [made.id.clone()];
    support::until("calls to go on after there was room", async || {
        let next = ask_much(gleaner.addr, made.key.clone(), 0).await;
        let complete = next.complete;
        saw.push(next);
        complete.then_some(())
    })
    .await;
    assert_stored(&saw, &all_calls(&gleaner, &ids).await, &policy, 0);
    gleaner.kill().await;
    let again = Start { database, ..Start::new(policy.url()) }.run().await;
    assert_stored(&saw, &all_calls(&again, &ids).await, &policy, 0);
    println!("{} of {} answers were complete", saw.iter().filter(|saw| saw.complete).count(), saw.len());
}

/// A call with a long request.
async fn ask_much(gleaner: std::net::SocketAddr, key: String, number: usize) -> Saw {
    let (path, body) = Way::openai(number).request(&noise(40_000));
    let mut saw = Saw { call: None, begun: None, complete: false, text: String::new(), tools: Vec::new() };
    let headers = [("x-api-key", key.as_str())];
    let mut answer =
        client::send(gleaner, "POST", path, &headers, body.to_string().as_bytes()).await.expect("the server has gone");
    if answer.status() != 200 {
        assert_eq!(answer.status(), 503, "a full disk is a reason to try again");
        assert!(answer.json().await["error"]["message"].is_string());
        return saw;
    }
    saw.call = Some(answer.call_id());
    if path == "/v1/responses" {
        let reply = responses::Reply::read(&mut answer).await;
        assert!(reply.complete() || reply.error.is_some(), "neither an end nor an error");
        (saw.complete, saw.text) = (reply.complete(), reply.text);
    } else {
        let reply = chat::Reply::read(&mut answer).await;
        assert!(reply.complete || reply.error.is_some(), "neither an end nor an error");
        (saw.complete, saw.text) = (reply.complete, reply.text);
    }
    saw
}
