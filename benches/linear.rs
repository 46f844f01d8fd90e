//! What must be linear: four times as much takes about four times as long. `cargo bench --bench linear`
//!
//! Each row is a reply, written by a wire as a stream and as a whole body; a last one is the decoder of server-sent events. Times are
//! the thread's own processor time over many runs, so that a busy machine tells much the same.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gleaner::call::{Call, Event, Extra, FinishReason, Fold, Raw, Text, ToolKind, ToolStart};
use gleaner::ids::CallId;
use gleaner::wire::{self, ReplyHead, Wire, sse};

/// Growth that is taken for linear where four is the ideal.
const MOST: f64 = 8.0;

/// What replies are called, a size, and the events of one of that size.
type Case = (&'static str, usize, fn(usize) -> Vec<Event>);

/// Replies of a size: what they are called, the size, and their events.
static REPLIES: [Case; 5] = [
    ("events of text", 10_000, |size| (0..size).map(|at| Event::Text(word(at))).collect()),
    ("events of reasoning", 10_000, |size| (0..size).map(|at| Event::Reasoning(word(at))).collect()),
    ("events with a field beside each", 10_000, |size| {
        let beside = || Event::Extra(Extra::Choice { name: Text::new("stop_reason"), value: Raw::from_value(&()) });
        (0..size).flat_map(|at| [Event::Text(word(at)), beside()]).collect()
    }),
    ("pieces of one call's arguments", 10_000, |size| {
        let piece = |at: usize| if at == 0 { "{\"a\":\"" } else { "word " };
        let pieces = (0..size).map(|at| Event::ToolArguments { index: 0, fragment: Text::new(piece(at)) });
        let end = Event::ToolArguments { index: 0, fragment: Text::new("\"}") };
        std::iter::once(start(0)).chain(pieces).chain([end]).collect()
    }),
    ("parallel tool calls", 100, |size| {
        let calls = u32::try_from(size).unwrap();
        let piece = |piece| (0..calls).map(move |index| Event::ToolArguments { index, fragment: Text::new(piece) });
        (0..calls).map(start).chain(["{\"a\"", ":\"b", "\"}"].into_iter().flat_map(piece)).collect()
    }),
];

fn main() {
    let mut failed = false;
    println!("{:<12} {:<31} {:>7} {:>10} {:>10}", "wire", "reply", "size", "ms", "x4");
    for wire in wire::ALL {
        for (name, size, events) in &REPLIES {
            // What a wire doesn't tell (completions have no tools) is cheap.
            let time = |size: usize, runs: u32| (0..runs).map(|_| write(*wire, &events(size))).sum::<Duration>() / runs;
            let (once, four) = (time(*size, 40), time(*size * 4, 10));
            let growth = four.as_secs_f64() / once.as_secs_f64();
            failed |= growth > MOST;
            let verdict = if growth > MOST { "  NOT LINEAR" } else { "" };
            println!("{:<12} {name:<31} {size:>7} {:>10.3} {growth:>10.2}{verdict}", wire.name(), once.as_secs_f64() * 1e3);
        }
    }
    let line = Bytes::from(["data: ", &"x".repeat(9 << 20), "\n\n"].concat());
    let took = least(|| {
        let begun = spent();
        let (mut decoder, mut events) = (sse::Decoder::default(), Vec::new());
        for at in (0..line.len()).step_by(4096) {
            decoder.push(&line.slice(at..line.len().min(at + 4096)), &mut events).unwrap();
        }
        assert_eq!(black_box(events).len(), 1);
        spent().saturating_sub(begun)
    });
    let slow = took > Duration::from_millis(100);
    failed |= slow;
    println!(
        "an event line of 9 MB in pieces of 4 KB: {:.1} ms{}",
        took.as_secs_f64() * 1e3,
        if slow { "  OVER 100 ms" } else { "" }
    );
    std::process::exit(i32::from(failed));
}

fn least(run: impl Fn() -> Duration) -> Duration {
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

fn word(at: usize) -> Text {
    Text::new(&format!(" word{at}"))
}

fn start(index: u32) -> Event {
    let id = Text::new(&format!("call_{index}"));
    Event::ToolStart { index, tool: ToolStart { id, kind: ToolKind::Function, namespace: None, name: "f".into() } }
}

/// The time that a wire takes for a reply.
fn write(wire: &dyn Wire, events: &[Event]) -> Duration {
    let call = Call::new(wire.name());
    let head = || ReplyHead { call_id: CallId(uuid::Uuid::from_u128(7)), choice: 0, created: 1, model: "m".to_owned() };
    let mut fold = Fold::default();
    for event in events {
        fold.push(event);
    }
    fold.push(&Event::Finish(FinishReason::Stop));
    let reply = fold.reply();
    let begun = spent();
    let mut out = Vec::new();
    let mut encoder = wire.encoder(&call, head());
    encoder.begin(&mut out);
    for event in events {
        encoder.event(event, &mut out);
    }
    encoder.finish(&reply, &mut out);
    encoder.close(reply.usage.as_ref(), &mut out);
    wire.encoder(&call, head()).whole(&[reply], &mut out);
    black_box(out);
    spent().saturating_sub(begun)
}
