//! What a long rollout takes on the disk, and what writing and reading it cost. `cargo bench --bench storage`
//!
//! The rollout is [`conversation`]: 100 turns of a real harness's request that grows to 200 KB, with vLLM's streams, on two wires. Beside
//! what it takes stand what all its bodies have (naive), and what they took when each call was packed by itself (before). Times of
//! writing are the thread's own; those of reading one call are from a store that has just been opened.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss, reason = "a benchmark")]

#[path = "storage/conversation.rs"]
mod conversation;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner::call::{CallEnd, CallStart, CallStatus, Capture, RawKind, RawParts, Sampling, WeightVersion};
use gleaner::ids::{CallId, ProcessId, RolloutId, RolloutKey};
use gleaner::store::{self, NewRollout, Purpose, Store, StoreConfig, Write};

use conversation::{Turn, Wire};

const TURNS: usize = 100;
/// The last request's size.
const REQUEST: usize = 200_000;
/// Of its new bytes on the disk, at most.
const MOST: f64 = 3.0;
/// To read one call back, at most.
const SLOWEST: Duration = Duration::from_millis(10);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut failed = false;
    println!(
        "{:<9} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "wire", "new KB", "naive", "before", "now", "x new", "x text", "write us", "before us", "read p50", "read max", "all ms"
    );
    for wire in Wire::ALL {
        failed |= !row(wire).await;
    }
    std::process::exit(i32::from(failed));
}

async fn row(wire: Wire) -> bool {
    let turns = conversation::turns(wire, TURNS, REQUEST, 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (rollout, ids, wrote) = write(&path, &turns, 1).await;
    let now = std::fs::metadata(&path).unwrap().len() as f64;
    let naive: usize = turns.iter().map(|turn| turn.request.len() + turn.upstream.len() + turn.response.len()).sum();
    let (before, before_took) = before(&turns);
    // What each turn brings: of its request what is longer than the last one's, and its reply without the prompt that it repeats.
    let text = turns.last().unwrap().request.len();
    let new = (text + turns.iter().map(|turn| turn.response.len() - turn.repeated).sum::<usize>()) as f64;
    let mut took = Vec::new();
    for (turn, id) in turns.iter().zip(&ids) {
        let store = open(&path).await;
        for (kind, bytes) in
            [(RawKind::Request, &turn.request), (RawKind::Upstream, &turn.upstream), (RawKind::Response, &turn.response)]
        {
            let begun = Instant::now();
            assert!(store.raw(*id, kind).await.unwrap().as_ref() == Some(bytes), "{kind:?} of {id} is another");
            took.push(begun.elapsed());
        }
        let begun = Instant::now();
        assert_eq!(store.call(*id).await.unwrap().unwrap().capture.prompt_ids, turn.prompt_ids);
        took.push(begun.elapsed());
    }
    let begun = Instant::now();
    assert_eq!(open(&path).await.calls(rollout).await.unwrap().len(), TURNS);
    let all = begun.elapsed();
    took.sort_unstable();
    let (p50, max) = (took[took.len() / 2], *took.last().unwrap());
    let good = now / new < MOST && max < SLOWEST;
    println!(
        "{:<9} {:>8.0} {:>8.1} {:>8.1} {:>8.2} {:>7.2} {:>7.2} {:>9.0} {:>9.0} {:>9.2} {:>9.2} {:>8.1}{}",
        wire.name(),
        new / 1e3,
        naive as f64 / new,
        before as f64 / new,
        now / new,
        now / new,
        now / text as f64,
        wrote.as_secs_f64() * 1e6,
        before_took.as_secs_f64() * 1e6,
        p50.as_secs_f64() * 1e3,
        max.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        if good { "" } else { "  NOT REACHED" },
    );
    group(wire, now).await;
    good
}

/// What a second rollout of the same task adds: its opening is there.
async fn group(wire: Wire, one: f64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (turns, other) = (conversation::turns(wire, TURNS, REQUEST, 1), conversation::turns(wire, TURNS, REQUEST, 2));
    write(&path, &[turns, other].concat(), 2).await;
    let both = std::fs::metadata(&path).unwrap().len() as f64;
    println!("{:<9} the first rollout {:.0} KB, the next of its group {:.0} KB", "", one / 1e3, (both - one) / 1e3);
}

async fn open(path: &Path) -> Arc<dyn Store> {
    store::open(path.to_str().unwrap(), &StoreConfig::default(), ProcessId::generate()).await.unwrap()
}

/// Writes turns as calls of `rollouts` rollouts; gives the first rollout, the calls, and the thread's time for each.
async fn write(path: &Path, turns: &[Turn], rollouts: usize) -> (RolloutId, Vec<CallId>, Duration) {
    let process = ProcessId::generate();
    let store = store::open(path.to_str().unwrap(), &StoreConfig::default(), process).await.unwrap();
    let mut writer = store.writer().unwrap();
    let (mut first, mut ids, mut took) = (None, Vec::new(), Duration::ZERO);
    for turns in turns.chunks(turns.len() / rollouts) {
        let rollout = RolloutId::generate();
        first.get_or_insert(rollout);
        assert!(writer.apply(&[Write::NewRollout(Box::new(new_rollout(rollout)))])[0].is_ok());
        for turn in turns {
            let (start, end) = call(rollout, process, turn);
            ids.push(start.id);
            let begun = spent();
            let results = [writer.apply(&[Write::CallStart(start)]), writer.apply(&[Write::CallEnd(Box::new(end))])].concat();
            took += spent().saturating_sub(begun);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            writer.idle();
        }
    }
    (first.unwrap(), ids, took / u32::try_from(turns.len()).unwrap())
}

/// What each call's bodies and ids took when it was packed by itself, and the time for one.
fn before(turns: &[Turn]) -> (usize, Duration) {
    let mut context = zstd_safe::CCtx::create();
    let mut size = |body: &[u8]| {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
        context.compress(&mut out, body, -15).unwrap()
    };
    let begun = spent();
    let mut bytes = 0;
    for turn in turns {
        bytes += size(&turn.request) + size(&turn.response);
        // What went up was a splice of the request, or packed with it as dictionary: next to nothing here.
        bytes += turn
            .prompt_ids
            .iter()
            .map(|id| {
                if *id < 128 {
                    1
                } else if *id < 16384 {
                    2
                } else {
                    3
                }
            })
            .sum::<usize>();
        bytes += turn.completion_ids.len() * 7;
    }
    (bytes, spent().saturating_sub(begun) / u32::try_from(turns.len()).unwrap())
}

fn new_rollout(id: RolloutId) -> NewRollout {
    NewRollout {
        id,
        key: RolloutKey::generate(),
        created_at: 1,
        purpose: Purpose::Train,
        task_id: Some("task".into()),
        group_id: Some("group".into()),
        group_size: Some(2),
        harness: None,
        policy: None,
        sampling: Sampling::default(),
        metadata: serde_json::Map::new(),
        ttl_s: None,
        idempotency_key: None,
        conversation: None,
        index: None,
        run: None,
    }
}

fn call(rollout: RolloutId, process: ProcessId, turn: &Turn) -> (Arc<CallStart>, CallEnd) {
    let start = Arc::new(CallStart {
        id: CallId::generate(),
        rollout_id: rollout,
        process_id: process,
        started_at: 1,
        wire: turn.wire,
        target: "/x".to_owned(),
        choice: 0,
        policy: "default".into(),
        model: "m".into(),
        marks: Vec::new(),
        stream: true,
        request: turn.request.clone(),
    });
    let end = CallEnd {
        start: Arc::clone(&start),
        ended_at: 2,
        first_event_at: Some(1),
        status: CallStatus::Done,
        failure: None,
        raw: RawParts { upstream: turn.upstream.clone(), response: turn.response.clone(), prompt: bytes::Bytes::new() },
        message: None,
        finish: None,
        usage: None,
        capture: Capture {
            prompt_ids: turn.prompt_ids.clone(),
            completion_ids: turn.completion_ids.clone(),
            logprobs: turn.logprobs.clone(),
            ..Capture::default()
        },
        sampling_asked: Sampling::default(),
        sampling_used: Sampling::default(),
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: Vec::new(),
    };
    (start, end)
}

/// This thread's processor time, as the kernel counts it; elsewhere the time that has passed.
fn spent() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    // Yielding makes the kernel count what it has not counted yet.
    std::thread::yield_now();
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = counted.as_deref().and_then(|line| line.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}
