//! What samples of a rollout cost: time by calls, for one long conversation and for one with many beside it. `cargo bench --bench forest`
//!
//! Each call adds 100 tokens, half of them sampled, so that 1,000 calls are a conversation of 100,000 tokens. Times are this thread's own
//! processor time, the least of several runs. It fails where 1,000 calls take 100 ms or more, or time grows faster than calls.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use gleaner::call::{
    CallRecord, CallStatus, Capture, CaptureLevel, FinishReason, LogprobKind, Raw, Sampling, Usage, WeightVersion,
};
use gleaner::ids::{CallId, RolloutId};
use gleaner::trajectory::{RolloutFacts, Rules, Turn, build, turns};
use uuid::Uuid;

/// What 1,000 calls may take.
const MOST: Duration = Duration::from_millis(100);
/// Growth that is taken for linear where two is the ideal.
const GROWTH: f64 = 3.0;
/// Tokens that a call adds: what it is told, and what it samples.
const NEW: usize = 50;

/// What a rollout is called, and how it is made of so many calls.
type Shape = (&'static str, fn(usize) -> Vec<Turn>);

static SHAPES: [Shape; 2] = [("one conversation", chain), ("with sub-agents", bushy)];

fn main() {
    let mut failed = false;
    println!("{:<18} {:>6} {:>8} {:>9} {:>6} {:>14}", "rollout", "calls", "samples", "ms", "x2", "prompts in MB");
    for (name, shape) in &SHAPES {
        let mut before: Option<Duration> = None;
        for calls in [250, 500, 1000, 2000] {
            let turns = shape(calls);
            let prompts: usize = turns.iter().map(|turn| turn.prompt.len() * 4).sum();
            let (took, samples) = least(&turns);
            let growth = before.map(|before| took.as_secs_f64() / before.as_secs_f64());
            let slow = (calls == 1000 && took >= MOST) || growth.is_some_and(|growth| growth > GROWTH);
            failed |= slow;
            println!(
                "{name:<18} {calls:>6} {samples:>8} {:>9.2} {:>6} {:>14.1}{}",
                took.as_secs_f64() * 1e3,
                growth.map_or_else(String::new, |growth| format!("{growth:.1}")),
                f64::from(u32::try_from(prompts / 1000).unwrap()) / 1e3,
                if slow { "  TOO SLOW" } else { "" }
            );
            before = Some(took);
        }
    }
    std::process::exit(i32::from(failed));
}

fn least(turns: &[Turn]) -> (Duration, usize) {
    let facts = facts();
    let run = || {
        let begun = spent();
        let built = build(&facts, turns, &Rules::default()).unwrap();
        let took = spent().saturating_sub(begun);
        (took, black_box(built).samples.len())
    };
    (0..5).map(|_| run()).min().unwrap_or_default()
}

/// This thread's processor time, as the kernel counts it; elsewhere the time that has passed.
fn spent() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Yielding makes the kernel count what it has not counted yet.
    std::thread::yield_now();
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = counted.as_deref().and_then(|line| line.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// One conversation; as exports load it, only its last request is read as text.
fn chain(calls: usize) -> Vec<Turn> {
    let mut said = Vec::new();
    let mut turns = turns((0..calls).map(|number| next(number, &mut said)).collect());
    if let Some(last) = turns.last_mut() {
        last.messages = (0..2 * calls - 1).map(message).collect();
    }
    turns
}

/// A main conversation, and one of ten calls beside it after each tenth; they share a system prompt. All are read as text.
fn bushy(calls: usize) -> Vec<Turn> {
    let system: Vec<u32> = (0..2_000).collect();
    let mut main = (system.clone(), 0);
    let mut inner = (system.clone(), 0);
    let mut messages = Vec::with_capacity(calls);
    let records = (0..calls).map(|number| {
        // A rollout's main conversation has an end, however many sub-agents it has.
        let aside = number % 10 != 0 || number > 1_000;
        if aside && number % 10 == 1 {
            inner = (system.clone(), 1_000_000 + number);
        }
        let (said, first) = if aside { &mut inner } else { &mut main };
        let record = next(number, said);
        let before = (said.len() - system.len()) / (2 * NEW) - 1;
        messages.push((0..=2 * before).map(|at| message(*first * 10_000 + at)).collect());
        record
    });
    let mut turns = turns(records.collect());
    for (turn, messages) in turns.iter_mut().zip(messages) {
        turn.messages = messages;
    }
    turns
}

/// The call that goes on from what was said.
fn next(number: usize, said: &mut Vec<u32>) -> CallRecord {
    let token = |at: usize| u32::try_from((number * 7919 + at * 31) % 150_000).unwrap();
    said.extend((0..NEW).map(token));
    let prompt_ids = said.clone();
    let completion_ids: Vec<u32> = (NEW..2 * NEW).map(token).collect();
    said.extend(&completion_ids);
    record(number, prompt_ids, completion_ids)
}

fn message(at: usize) -> Raw {
    let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
    Raw::from_value(&serde_json::json!({"role": role, "content": format!("what was said {at}")}))
}

fn record(number: usize, prompt_ids: Vec<u32>, completion_ids: Vec<u32>) -> CallRecord {
    let usage =
        Usage { prompt_tokens: prompt_ids.len() as u64, completion_tokens: completion_ids.len() as u64, ..Usage::default() };
    CallRecord {
        images: Vec::new(),
        id: CallId(Uuid::from_u128(number as u128 + 100)),
        rollout_id: facts().id,
        started_at: i64::try_from(number).unwrap(),
        wire: "chat".to_owned(),
        target: "/chat/completions".to_owned(),
        choice: 0,
        policy: "default".to_owned(),
        model: "m".to_owned(),
        stream: true,
        marks: Vec::new(),
        status: CallStatus::Done,
        delivered: Some(true),
        ended_at: None,
        first_event_at: None,
        failure: None,
        message: Some(message(2 * number + 1)),
        finish: Some(FinishReason::Stop),
        usage: Some(usage),
        capture: Capture {
            level: CaptureLevel::Full,
            logprobs: vec![-0.5; completion_ids.len()],
            logprob_kind: LogprobKind::Raw,
            prompt_ids,
            completion_ids,
            ..Capture::default()
        },
        sampling_asked: Sampling::default(),
        sampling_used: Sampling::default(),
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: Vec::new(),
    }
}

fn facts() -> RolloutFacts {
    RolloutFacts {
        id: RolloutId(Uuid::from_u128(7)),
        index: 0,
        group_id: None,
        task_id: None,
        harness: None,
        purpose: "train".to_owned(),
        reward: None,
        rewards: BTreeMap::new(),
        outcome: None,
        metadata: serde_json::Map::new(),
    }
}
