//! What the next turn of a long conversation costs with `tokens = "exact"`: finding the earlier reply, rendering and encoding what is new,
//! and remembering the turn. `scripts/setup tokenizers && cargo bench --bench prompt`
//!
//! An agent's conversation: 17 tools with 40 KB of schemas, and turns of a reasoned tool call and 2 KB of output. The template and the
//! tokenizer are Qwen3's own. Times are the least of many runs.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gleaner::call::{Call, Capture, CaptureLevel, Message};
use gleaner::ids::CallId;
use gleaner::policy::{Exchange, PolicyConfig, Prompted, Prompts, TokenMode, Transcript};
use gleaner::wire::{self, Target};
use serde_json::{Value, json};

/// What a turn may cost.
const MOST: Duration = Duration::from_millis(5);

/// Sizes of conversations, in tokens.
const SIZES: [usize; 3] = [25_000, 50_000, 100_000];

fn main() {
    let folder = std::env::var_os("GLEANER_TOKENIZER").map_or_else(|| PathBuf::from("target/tokenizers/qwen3"), PathBuf::from);
    let config = PolicyConfig { tokens: TokenMode::Exact, tokenizer: Some(folder), ..PolicyConfig::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let prompts = runtime.block_on(Prompts::open(config)).unwrap();
    println!(
        "{:>8} {:>9} {:>9} {:>10} {:>10} {:>10} {:>12}",
        "tokens", "messages", "body KB", "find ms", "make ms", "note ms", "afresh ms"
    );
    let mut slow = false;
    for size in SIZES {
        let row = runtime.block_on(Talk::of(&prompts, size).measured());
        let whole = row.make + row.note;
        let verdict = if whole > MOST { "  OVER 5 ms" } else { "" };
        slow |= whole > MOST;
        println!(
            "{:>8} {:>9} {:>9} {:>10.2} {:>10.2} {:>10.2} {:>12.1}{verdict}",
            row.tokens,
            row.messages,
            row.body / 1000,
            ms(row.find),
            ms(row.make),
            ms(row.note),
            ms(row.afresh)
        );
    }
    std::process::exit(i32::from(slow));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

struct Row {
    tokens: usize,
    messages: usize,
    body: usize,
    find: Duration,
    make: Duration,
    note: Duration,
    afresh: Duration,
}

/// A conversation of which all but the last turn was had.
struct Talk<'a> {
    prompts: &'a Prompts,
    size: usize,
    transcript: Transcript,
    messages: Vec<Value>,
    hashes: (String, String),
}

impl<'a> Talk<'a> {
    fn of(prompts: &'a Prompts, size: usize) -> Self {
        let messages =
            vec![json!({"role": "system", "content": text(8_000, 1)}), json!({"role": "user", "content": text(500, 2)})];
        Self { prompts, size, transcript: Transcript::default(), messages, hashes: <_>::default() }
    }

    async fn measured(mut self) -> Row {
        let mut tokens = 0;
        for turn in 0.. {
            let call = self.call();
            let prompted = self.prompts.make(&call, &self.transcript).await.unwrap();
            tokens = prompted.ids.len();
            if tokens >= self.size {
                break;
            }
            self.hashes = (prompted.rendered.tokenizer_hash.clone(), prompted.rendered.template_hash.clone());
            let reply = self.reply(turn);
            note(&self.transcript, &call, &reply, prompted);
            self.messages.push(json!({"role": "tool", "tool_call_id": format!("call_{turn}"), "content": text(2_000, turn)}));
        }
        let body = self.body();
        let find = least(|| async {
            // Each request brings bytes of its own.
            let call = self.call();
            let begun = Instant::now();
            black_box(self.transcript.find(&call, &self.hashes.0, &self.hashes.1).earlier.unwrap());
            begun.elapsed()
        });
        let make = least(|| async {
            let call = self.call();
            let begun = Instant::now();
            assert!(black_box(self.prompts.make(&call, &self.transcript).await.unwrap()).rendered.after.is_some());
            begun.elapsed()
        });
        let afresh = least(|| async {
            let (call, empty) = (self.call(), Transcript::default());
            let begun = Instant::now();
            black_box(self.prompts.make(&call, &empty).await.unwrap());
            begun.elapsed()
        });
        let note = least(|| async {
            let call = self.call();
            let prompted = self.prompts.make(&call, &self.transcript).await.unwrap();
            let reply = call.messages[call.messages.len() - 2].clone();
            let begun = Instant::now();
            note(&self.transcript, &call, &reply, prompted);
            begun.elapsed()
        });
        Row {
            tokens,
            messages: self.messages.len(),
            body: body.len(),
            find: find.await,
            make: make.await,
            note: note.await,
            afresh: afresh.await,
        }
    }

    /// What the policy answers, which the harness then sends back without its reasoning.
    fn reply(&mut self, turn: usize) -> Message {
        let arguments = json!({"command": format!("sed -n {turn},99p src/lib.rs"), "timeout": turn}).to_string();
        let function = json!({"name": "tool_3", "arguments": arguments});
        let mut reply = json!({"role": "assistant", "content": "I look at the next file.", "reasoning_content": text(300, turn),
            "tool_calls": [{"id": format!("call_{turn}"), "type": "function", "function": function}]});
        let said = parse(&json!({"model": "m", "messages": [reply.clone()]}).to_string().into()).messages.remove(0);
        reply.as_object_mut().unwrap().shift_remove("reasoning_content");
        self.messages.push(reply);
        said
    }

    fn body(&self) -> Bytes {
        json!({"model": "m", "messages": self.messages, "tools": tools()}).to_string().into()
    }

    fn call(&self) -> Call {
        parse(&self.body())
    }
}

fn note(transcript: &Transcript, call: &Call, reply: &Message, prompted: Prompted) {
    let Prompted { ids: prompt_ids, rendered, .. } = prompted;
    let completion_ids = (0..100).chain([151_645]).collect();
    let capture =
        Capture { level: CaptureLevel::Full, prompt_ids, completion_ids, rendered: Some(rendered), ..Capture::default() };
    transcript.note(Exchange { call_id: CallId::generate(), call, reply, capture: &capture });
}

async fn least<F: Future<Output = Duration>>(run: impl Fn() -> F) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..20 {
        least = least.min(run().await);
    }
    least
}

fn parse(body: &Bytes) -> Call {
    wire::named("chat").unwrap().parse(Target::read("/chat/completions"), body).unwrap().remove(0)
}

fn tools() -> Value {
    let properties = |tool: usize| {
        let property = |at: usize| (format!("field_{at}"), json!({"type": "string", "description": text(200, tool + at)}));
        (0..8).map(property).collect::<serde_json::Map<_, _>>()
    };
    let tool = |at: usize| {
        let parameters = json!({"type": "object", "properties": properties(at), "required": ["field_0"]});
        json!({"type": "function", "function": {"name": format!("tool_{at}"), "description": text(500, at), "parameters": parameters}})
    };
    (0..17).map(tool).collect()
}

/// Text like that of code and logs, of about this many bytes.
fn text(bytes: usize, seed: usize) -> String {
    const WORDS: [&str; 12] =
        ["fn", "the", "error:", "src/lib.rs:42", "\n    let", "value", "=", "0x7fff", "// because", "é", "\"quoted\"", "cargo"];
    let mut out = String::with_capacity(bytes + 16);
    let mut at = seed;
    while out.len() < bytes {
        at = at.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        out.push_str(WORDS[(at >> 16) % WORDS.len()]);
        out.push(' ');
    }
    out
}
