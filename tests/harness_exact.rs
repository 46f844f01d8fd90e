//! Long runs of real harnesses, unmodified, in containers without network, token in and token out: what the policy sampled, in pieces
//! that no encoding gives, is one sample a conversation, id by id. The server is scripted; its tokenizer and template are Qwen3's own.
//! Needs Docker and, the first time, the package registries.

#![cfg(feature = "exact")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![allow(clippy::print_stdout, reason = "what was seen is part of the answer")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use support::policy::Reply;
use support::policy::exact::real::Real;
use support::policy::exact::{Asked, Kind, TokenServer, Tongue, Weights};
use support::run::Bench;
use support::turns::{MAKE, SUBMIT, task};

const TURNS: usize = 12;

/// A harness, and how its shell is called.
struct Harness {
    name: &'static str,
    wire: &'static str,
    tool: &'static str,
    command: &'static str,
    /// What its tool wants beside the command.
    beside: Value,
    streams: bool,
}

fn codex() -> Harness {
    Harness { name: "codex", wire: "responses", tool: "exec_command", command: "cmd", beside: json!({}), streams: true }
}

fn claude() -> Harness {
    let beside = json!({"description": "Runs it"});
    Harness { name: "claude-code", wire: "messages", tool: "Bash", command: "command", beside, streams: true }
}

fn mini() -> Harness {
    Harness { name: "mini-swe-agent", wire: "chat", tool: "bash", command: "command", beside: json!({}), streams: false }
}

impl Harness {
    /// A turn in which commands are run side by side.
    fn runs(&self, turn: usize, commands: &[&str]) -> Reply {
        let arguments = |command: &&str| {
            let mut arguments = self.beside.clone();
            arguments[self.command] = json!(command);
            arguments.to_string()
        };
        let arguments: Vec<String> = commands.iter().map(arguments).collect();
        let calls: Vec<(&str, &str)> = arguments.iter().map(|arguments| (self.tool, &arguments[..])).collect();
        Reply { text: Some(format!("Certainly, continuing with number {turn} of these turns.")), ..Reply::tools(&calls) }
    }

    /// The script: reasoning in each third turn, two commands at once in each fourth, and texts that templates escape and trim.
    fn script(&self) -> Vec<Reply> {
        let mut script = vec![self.runs(1, &[MAKE]).thinking("Something should be looked at beforehand, presumably.")];
        for turn in 2..TURNS {
            let odd = format!("printf '\\303\\251 \"quoted\" <b> & 🦀\\n'  |  cat;  echo $(({turn} * 1111))");
            let both = [&odd[..], "wc -c made.txt"];
            let reply = self.runs(turn, if turn.is_multiple_of(4) { &both } else { &both[..1] });
            let thought = format!("Thinking about turn {turn}: nothing surprising happened until now.\nContinuing, therefore.");
            script.push(if turn.is_multiple_of(3) { reply.thinking(&thought) } else { reply });
        }
        script.push(match self.name {
            "mini-swe-agent" => self.runs(TURNS, &[SUBMIT]),
            _ => Reply::text("Everything that was wanted is finished: 🎉 made.txt has it in capitals."),
        });
        script
    }
}

/// The folder of the tokenizer.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tokenizers/qwen3")
}

/// A run that has ended.
struct Ran {
    bench: Bench,
    server: TokenServer,
    weights: Arc<Weights>,
    id: String,
    /// What `gleaner run` said of it.
    rollout: Value,
    shown: Value,
}

impl Ran {
    async fn of(harness: &Harness, seed: u64, script: Vec<Reply>) -> Self {
        let weights = Weights::speaking(Tongue::Real(Box::new(Real::read(&folder()))), seed, script);
        let server = TokenServer::start(Kind::Vllm, &weights).await;
        let bench = Bench::new(server.url());
        let lines = format!("[policies.default]\ntokens = \"exact\"\ntokenizer = {:?}\n", folder().to_str().unwrap());
        let (config, task) = (bench.file("config.toml", &lines), task(&bench));
        let ended = bench.run(&[harness.name, "--wire", harness.wire, "--task", &task, "--config", &config]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let (id, rollout) = ended.rollout();
        let shown = bench.show(&id).await;
        Self { bench, server, weights, id, rollout, shown }
    }

    /// What the run came to, and that each call has all its tokens.
    fn check(&self, harness: &Harness, asked: &[Asked]) {
        let tokens: usize = asked.iter().map(|asked| asked.sampled.len()).sum();
        let expected = json!({"harness": harness.name, "task_id": "upper", "outcome": "passed", "reward": 1.0, "calls": asked.len(),
            "tokens": tokens, "drift": 0});
        assert_eq!(self.rollout, expected, "{:#}", self.shown["branches"]);
        let calls = self.shown["calls"].as_array().unwrap();
        assert_eq!(calls.len(), asked.len());
        for (call, asked) in calls.iter().zip(asked) {
            let facts = (&call["wire"], &call["status"], &call["capture"]["level"]);
            assert_eq!(facts, (&json!(harness.wire), &json!("done"), &json!("full")), "{call:#}");
            let ids = (&call["capture"]["prompt_ids"], &call["capture"]["completion_ids"]);
            assert_eq!(ids, (&json!(asked.prompt), &json!(asked.ids())));
            assert_eq!(asked.body["stream"] == true, harness.streams, "{}", asked.body["stream"]);
        }
        assert_eq!(self.shown["left_out"], json!([]));
    }

    /// How many replies encoding would give other ids than were sampled.
    fn odd(&self, asked: &[Asked]) -> usize {
        let tongue = &self.weights.tongue;
        asked.iter().filter(|asked| tongue.encode(&tongue.decode_all(&asked.ids())) != asked.ids()).count()
    }
}

/// A sample is exactly the last prompt and its reply, and trains what these calls sampled.
fn assert_is(sample: &Value, asked: &[Asked]) {
    let last = asked.last().unwrap();
    let whole: Vec<u32> = last.prompt.iter().copied().chain(last.ids()).collect();
    let (mut mask, mut logprobs) = (vec![0; whole.len()], vec![Value::Null; whole.len()]);
    for asked in asked {
        for (at, token) in (asked.prompt.len()..).zip(&asked.sampled) {
            (mask[at], logprobs[at]) = (1, json!(token.logprob));
            assert_eq!(whole[at], token.id, "the sample parts from what was sampled at {at}");
        }
    }
    assert!(sample["token_ids"] == json!(whole), "the sequence is not the last prompt and its reply");
    assert!(sample["loss_mask"] == json!(mask), "the mask is not what was sampled");
    assert!(sample["logprobs"] == json!(logprobs), "the log-probabilities are not those that were told");
}

async fn twelve_turns(harness: Harness, seed: u64) {
    let ran = Ran::of(&harness, seed, harness.script()).await;
    let asked = ran.server.asked();
    assert_eq!(asked.len(), TURNS, "{:#}", ran.rollout);
    ran.check(&harness, &asked);
    for (turn, pair) in asked.windows(2).enumerate() {
        let whole: Vec<u32> = pair[0].prompt.iter().copied().chain(pair[0].ids()).collect();
        assert!(pair[1].prompt.starts_with(&whole), "prompt {} does not go on from what was sampled", turn + 2);
    }
    let odd = ran.odd(&asked);
    assert!(odd >= TURNS / 2, "of {odd} replies only encoding gives other ids, which proves little");
    // The tools ran, both of those that were called together, and the policy was told what they printed.
    let read = ran.weights.tongue.decode_all(&asked[TURNS - 1].prompt);
    let printed = (2..TURNS).map(|turn| (turn * 1111).to_string()).chain(["SEED".to_owned()]);
    for printed in printed {
        assert!(read.contains(&printed), "{printed:?} is not in the last prompt: {read}");
    }
    assert_eq!(read.matches("5 made.txt").count(), 2, "of turns 4 and 8: {read}");
    assert_eq!((&ran.shown["branches"], ran.shown["samples"].as_array().map(Vec::len)), (&json!([]), Some(1)));
    let exported = ran.bench.export().await;
    assert_eq!(exported.len(), 1);
    assert_is(&exported[0], &asked);
    let tokens = exported[0]["token_ids"].as_array().unwrap().len();
    println!("{:15} {TURNS} turns: 1 sample of {tokens} tokens, drift 0, {odd} replies that encode otherwise", harness.name);
}

#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn twelve_turns_of_codex_are_one_sample() {
    twelve_turns(codex(), 501).await;
}

#[tokio::test]
#[ignore = "needs Docker and, once, npm's registry"]
async fn twelve_turns_of_claude_code_are_one_sample() {
    twelve_turns(claude(), 502).await;
}

#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn twelve_turns_of_mini_swe_agent_are_one_sample() {
    twelve_turns(mini(), 503).await;
}

/// mini-swe-agent takes a turn that calls no tool that it knows out of its history, and says so in its place.
#[tokio::test]
#[ignore = "needs Docker and, once, Debian's and Python's registries"]
async fn a_turn_that_a_harness_takes_back_is_named() {
    let harness = mini();
    let wrong =
        Reply { tool_calls: Reply::tools(&[("browser", r#"{"page": "about:blank"}"#)]).tool_calls, ..harness.runs(2, &[]) };
    let script = vec![harness.runs(1, &[MAKE]), wrong, harness.runs(3, &["cat made.txt"]), harness.runs(4, &[SUBMIT])];
    let ran = Ran::of(&harness, 504, script).await;
    let asked = ran.server.asked();
    assert_eq!(asked.len(), 4, "{:#}", ran.rollout);
    ran.check(&harness, &asked);
    let calls = ran.shown["calls"].as_array().unwrap();
    let second = calls[1]["id"].as_str().unwrap();
    let shown = ran.bench.look(&["show", &ran.id]).await;
    assert!(shown.contains(&format!("the reply of call {second} is not in it")), "{shown}");
    // What stands before it is still what was sampled.
    let begun: Vec<u32> = asked[0].prompt.iter().copied().chain(asked[0].ids()).collect();
    assert!(asked[2].prompt.starts_with(&begun), "the first turn was rendered anew");
    let exported = ran.bench.export().await;
    assert_eq!(exported.len(), 2);
    let trained = |sample: &Value| sample["loss_mask"].as_array().unwrap().iter().filter(|bit| **bit == json!(1)).count();
    let sampled: usize = asked.iter().map(|asked| asked.sampled.len()).sum();
    assert_eq!(exported.iter().map(trained).sum::<usize>(), sampled, "each token is trained once");
}
