//! How fast samples are written, and what memory it takes. `cargo bench --bench parquet`
//!
//! Token data are the ids, masks and log-probabilities of samples as plain arrays (4, 1 and 8 bytes a token). Samples are of the kind
//! that agents make: 20,000 tokens in twenty turns, a third of them sampled, ids as frequent as words are. The last rows write ten
//! times as much, a rollout at a time: the most memory that is ever held must stay. Times are the thread's own processor time, so that
//! a busy machine tells much the same.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use gleaner::call::{LogprobKind, Raw, Sampling};
use gleaner::export::ColumnsWriter;
use gleaner::ids::{CallId, RolloutId};
use gleaner::trajectory::{SCHEMA, Sample, SampleStatus, Span};
use serde_json::json;

/// What is to be reached, in bytes of token data a second.
const LEAST: f64 = 200e6;
/// By how much ten times the data may raise the memory that is held.
const GROWTH: f64 = 1.25;

const TOKENS: usize = 20_000;
const TURNS: usize = 20;
const TOKEN_BYTES: usize = 4 + 1 + 8;
/// Of the smaller file: several row groups.
const SAMPLES: usize = 400;

/// Counts what is written and lets it go.
#[derive(Default)]
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let samples: Vec<Sample> = (0..16).map(sample).collect();
    println!("{:<8} {:>8} {:>12} {:>10} {:>14} {:>12}", "form", "samples", "token data", "MB/s", "bytes a token", "peak MB");
    let columns = row("Parquet", &samples, SAMPLES, in_columns);
    row("JSON", &samples, SAMPLES, in_lines);
    let more = row("Parquet", &samples, SAMPLES * 10, in_columns);
    let (slow, grown) = (columns.rate.max(more.rate) < LEAST, more.peak / columns.peak > GROWTH);
    if slow {
        println!("UNDER {} MB/s", LEAST / 1e6);
    }
    if grown {
        println!("MEMORY GROWS WITH THE DATA");
    }
    if slow || grown { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What one row came to.
struct Measured {
    /// Bytes of token data a second.
    rate: f64,
    /// The most memory that was held, in bytes.
    peak: f64,
}

fn row(form: &str, samples: &[Sample], count: usize, write: fn(&[Sample], usize) -> (Duration, usize)) -> Measured {
    forget_peak();
    let (took, bytes) = write(samples, count);
    let (tokens, peak) = (count * TOKENS, peak());
    let rate = (tokens * TOKEN_BYTES) as f64 / took.as_secs_f64();
    let data = format!("{} MB", tokens * TOKEN_BYTES / 1_000_000);
    let each = bytes as f64 / tokens as f64;
    println!("{form:<8} {count:>8} {data:>12} {:>10.0} {each:>14.2} {:>12.0}", rate / 1e6, peak / 1e6);
    Measured { rate, peak }
}

/// Only the writer is timed, not the making of what it is given.
fn in_columns(samples: &[Sample], count: usize) -> (Duration, usize) {
    let mut took = Duration::ZERO;
    let mut writer = ColumnsWriter::new(Counted::default()).unwrap();
    for at in 0..count {
        let rollout = vec![samples[at % samples.len()].clone()];
        let begun = spent();
        writer.add(rollout).unwrap();
        took += spent().saturating_sub(begun);
    }
    let begun = spent();
    let written = writer.close().unwrap();
    (took + spent().saturating_sub(begun), written.0)
}

fn in_lines(samples: &[Sample], count: usize) -> (Duration, usize) {
    let begun = spent();
    let mut written = Counted::default();
    for at in 0..count {
        written.write_all(&serde_json::to_vec(&samples[at % samples.len()]).unwrap()).unwrap();
    }
    (spent().saturating_sub(begun), written.0)
}

/// A conversation. The numbers are drawn by a small generator, the same in each run.
fn sample(seed: u64) -> Sample {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let turn = TOKENS / TURNS;
    let sampled = |at: usize| at % turn >= turn * 2 / 3;
    // As words are: the frequent ones have small ids.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 151,000")]
    let token_ids = (0..TOKENS).map(|_| 151_000f64.powf(next()) as u32).collect();
    // A server's float32, as most are certain and some are not.
    #[expect(clippy::cast_possible_truncation, reason = "made of float64s here")]
    let logprobs = (0..TOKENS).map(|at| sampled(at).then(|| -(next().powi(6) as f32 * 8.0)).map(f64::from));
    let spans = (0..TURNS).map(|at| Span {
        call_id: CallId::generate(),
        start: at * turn + turn * 2 / 3,
        end: (at + 1) * turn,
        policy_version: Some("7".to_owned()),
        policy_seq: 7,
        version_source: None,
        finish_reason: None,
        sampling: Sampling { temperature: Some(1.0), ..Sampling::default() },
        logprob_kind: LogprobKind::Raw,
        constrained: false,
        rewards: BTreeMap::new(),
        abandoned: false,
        abandoned_as: None,
        realigned: false,
    });
    let text = "word ".repeat(turn * 4 / 5);
    let message =
        |at: usize| Raw::from_value(&json!({"role": if at.is_multiple_of(2) { "user" } else { "assistant" }, "content": text}));
    Sample {
        schema: SCHEMA.to_owned(),
        id: seed.to_string(),
        rollout_id: RolloutId::generate(),
        rollout_index: 0,
        group_id: Some("group".to_owned()),
        task_id: Some("task".to_owned()),
        harness: Some("codex".to_owned()),
        purpose: "train".to_owned(),
        index: 0,
        kind: gleaner::trajectory::Kind::Main,
        token_ids,
        loss_mask: (0..TOKENS).map(|at| u8::from(sampled(at))).collect(),
        logprobs: logprobs.collect(),
        prompt_length: turn * 2 / 3,
        spans: spans.collect(),
        reward: Some(1.0),
        rewards: BTreeMap::from([("reward".to_owned(), 1.0)]),
        outcome: Some("passed".to_owned()),
        status: SampleStatus::Complete,
        rollout_mask_total: (TOKENS / 3) as u64,
        rollout_samples: 1,
        parent: None,
        policy: "default".to_owned(),
        model: "model".to_owned(),
        tokenizer_hash: None,
        template_hash: None,
        messages: (0..TURNS * 2).map(message).collect(),
        tools: Vec::new(),
        images: Vec::new(),
        metadata: serde_json::Map::new(),
    }
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

/// The most memory that this process has held since it was last forgotten, in bytes; 1 where the system does not tell.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok()).map_or(1.0, |kilobytes| kilobytes * 1024.0)
}

fn forget_peak() {
    // Where it can't be forgotten, the rows that follow show the first one's.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
