use std::collections::{HashMap, HashSet};
use std::sync::mpsc;
use std::time::Instant;

use bytes::Bytes;
use futures::future::{join_all, poll_immediate};

use super::*;
use crate::call::{CallStatus, Capture, RawParts, Sampling, WeightVersion};
use crate::ids::{ProcessId, RolloutId, RolloutKey};
use crate::store::{NewRollout, Purpose, Store, StoreConfig};

/// A writer that waits at a gate before each batch, and keeps what it was given.
struct Gated {
    gate: mpsc::Receiver<Answer>,
    seen: mpsc::Sender<Vec<Write>>,
    dropped: Arc<Mutex<bool>>,
}

/// What the gate lets a batch come to.
enum Answer {
    Kept,
    Fails(StoreError),
    Panics,
}

impl Writer for Gated {
    fn apply(&mut self, batch: &[Write]) -> Vec<Result<(), StoreError>> {
        self.seen.send(batch.to_vec()).unwrap();
        let result = match self.gate.recv() {
            Ok(Answer::Fails(error)) => Err(error),
            Ok(Answer::Panics) => panic!("as the test wants it"),
            Ok(Answer::Kept) | Err(mpsc::RecvError) => Ok(()),
        };
        batch.iter().map(|_| result.clone()).collect()
    }

    fn idle(&mut self) {}
}

impl Drop for Gated {
    fn drop(&mut self) {
        *self.dropped.lock().unwrap() = true;
    }
}

struct Gate {
    recorder: Recorder,
    answer: mpsc::Sender<Answer>,
    seen: mpsc::Receiver<Vec<Write>>,
    dropped: Arc<Mutex<bool>>,
}

fn gated(depth: usize) -> Gate {
    let ((answer, gate), (send, seen)) = (mpsc::channel(), mpsc::channel());
    let dropped = Arc::default();
    let writer = Gated { gate, seen: send, dropped: Arc::clone(&dropped) };
    Gate { recorder: Recorder::start(Box::new(writer), depth), answer, seen, dropped }
}

fn start(rollout_id: RolloutId, bytes: usize) -> Arc<CallStart> {
    Arc::new(CallStart {
        id: CallId::generate(),
        rollout_id,
        process_id: ProcessId::generate(),
        started_at: 1,
        wire: "chat",
        target: "/chat/completions".to_owned(),
        choice: 0,
        policy: "default".into(),
        model: "m".into(),
        stream: false,
        marks: Vec::new(),
        request: Bytes::from(vec![b'x'; bytes]),
    })
}

fn end(start: &Arc<CallStart>) -> Box<CallEnd> {
    Box::new(CallEnd {
        start: Arc::clone(start),
        ended_at: 2,
        first_event_at: None,
        status: CallStatus::Done,
        failure: None,
        raw: RawParts::default(),
        message: None,
        finish: None,
        usage: None,
        capture: Capture::default(),
        sampling_asked: Sampling::default(),
        sampling_used: Sampling::default(),
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: Vec::new(),
    })
}

fn call(bytes: usize) -> Arc<CallStart> {
    start(RolloutId::generate(), bytes)
}

/// The calls that a batch is of, with what is written of them.
fn of(batch: &[Write]) -> Vec<(CallId, &'static str)> {
    let one = |write: &Write| match write {
        Write::CallStart(start) => (start.id, "start"),
        Write::CallEnd(end) => (end.start.id, "end"),
        Write::Delivered(id) => (*id, "delivered"),
        other => panic!("{other:?}"),
    };
    batch.iter().map(one).collect()
}

#[tokio::test]
async fn a_full_queue_pushes_back() {
    let gate = gated(2);
    let recorder = &gate.recorder;
    let first = call(0);
    let mut held = Box::pin(recorder.call_ended(end(&first)));
    assert!(poll_immediate(&mut held).await.is_none());
    assert_eq!(of(&gate.seen.recv().unwrap()), [(first.id, "end")]);
    // One place is the held write's until it is answered.
    let (second, third) = (call(0), call(0));
    assert!(poll_immediate(recorder.call_started(second.clone())).await.is_some());
    let mut waits = Box::pin(recorder.call_started(third.clone()));
    assert!(poll_immediate(&mut waits).await.is_none());
    // What can't wait doesn't.
    recorder.call_abandoned(end(&third));
    recorder.delivered(first.id);
    assert_eq!(recorder.waiting(), 3);
    gate.answer.send(Answer::Kept).unwrap();
    held.await.unwrap();
    waits.await;
    drop(gate.answer);
    assert_eq!(recorder.drain().await, 0);
    let rest: Vec<_> = gate.seen.try_iter().flat_map(|batch| of(&batch)).collect();
    let expected = [(second.id, "start"), (third.id, "end"), (first.id, "delivered"), (third.id, "start")];
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn bytes_take_places_too() {
    let gate = gated(1024);
    let held = call(0);
    let mut first = Box::pin(gate.recorder.call_ended(end(&held)));
    assert!(poll_immediate(&mut first).await.is_none());
    gate.seen.recv().unwrap();
    // 24 MiB each: two have room, the third has not, nor has what comes behind it.
    let large = [(); 3].map(|()| call(24 << 20));
    assert!(poll_immediate(gate.recorder.call_started(large[0].clone())).await.is_some());
    assert!(poll_immediate(gate.recorder.call_started(large[1].clone())).await.is_some());
    let mut third = Box::pin(gate.recorder.call_started(large[2].clone()));
    assert!(poll_immediate(&mut third).await.is_none());
    drop(gate.answer);
    third.await;
    first.await.unwrap();
    assert_eq!(gate.recorder.drain().await, 0);
    // Nor are they one transaction.
    assert_eq!(gate.seen.try_iter().map(|batch| batch.len()).collect::<Vec<_>>(), [1, 1, 1]);
}

#[tokio::test]
async fn one_larger_than_the_whole_queue_has_room_alone() {
    let gate = gated(4);
    drop(gate.answer);
    gate.recorder.call_ended(end(&call(100 << 20))).await.unwrap();
    assert_eq!(gate.recorder.drain().await, 0);
}

#[tokio::test]
async fn many_ends_share_a_commit() {
    let gate = gated(4096);
    let calls: Vec<_> = (0..1000).map(|_| call(10)).collect();
    let first = call(0);
    let mut held = Box::pin(gate.recorder.call_ended(end(&first)));
    assert!(poll_immediate(&mut held).await.is_none());
    gate.seen.recv().unwrap();
    let mut ends = Box::pin(join_all(calls.iter().map(|call| gate.recorder.call_ended(end(call)))));
    // One poll doesn't reach all: tokio lets a task have so many places at a time.
    while gate.recorder.waiting() < calls.len() {
        assert!(poll_immediate(&mut ends).await.is_none());
        tokio::task::yield_now().await;
    }
    drop(gate.answer);
    assert!(ends.await.into_iter().all(|result| result.is_ok()));
    held.await.unwrap();
    let batches: Vec<_> = gate.seen.try_iter().map(|batch| of(&batch)).collect();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [512, 488]);
    let written: HashSet<_> = batches.concat().into_iter().collect();
    assert!(written == calls.iter().map(|call| (call.id, "end")).collect(), "each is written once");
}

#[tokio::test]
async fn a_start_goes_with_its_end_and_not_behind() {
    let gate = gated(64);
    let quick = call(10);
    gate.recorder.call_started(quick.clone()).await;
    let mut ended = Box::pin(gate.recorder.call_ended(end(&quick)));
    assert!(poll_immediate(&mut ended).await.is_none());
    let batch = gate.seen.recv().unwrap();
    // On a stalled machine the start may have gone ahead; it never comes behind.
    assert!(matches!(of(&batch)[..], [(id, "start")] | [(id, "start"), (_, "end")] if id == quick.id), "{batch:?}");
    drop(gate.answer);
    ended.await.unwrap();
}

#[tokio::test]
async fn who_waits_is_told_and_who_does_not_is_tried_again() {
    let gate = gated(64);
    let full = StoreError::Full("here".into());
    let (waited, hung_up) = (call(1), call(1));
    gate.recorder.call_started(waited.clone()).await;
    gate.recorder.call_abandoned(end(&hung_up));
    gate.recorder.delivered(hung_up.id);
    let mut ended = Box::pin(gate.recorder.call_ended(end(&waited)));
    assert!(poll_immediate(&mut ended).await.is_none());
    for _ in 0..2 {
        gate.answer.send(Answer::Fails(full.clone())).unwrap();
    }
    assert_eq!(ended.await, Err(full));
    // There is room again.
    drop(gate.answer);
    assert_eq!(gate.recorder.drain().await, 0);
    let mut tries: HashMap<_, usize> = HashMap::new();
    let mut last = Vec::new();
    for batch in gate.seen.try_iter() {
        last = of(&batch);
        for write in of(&batch) {
            *tries.entry(write).or_default() += 1;
        }
    }
    assert_eq!(last, [(hung_up.id, "end"), (hung_up.id, "delivered")]);
    assert_eq!((tries[&(waited.id, "start")], tries[&(waited.id, "end")]), (1, 1));
}

#[tokio::test]
async fn what_is_tried_again_stands_in_nobodys_way() {
    let gate = gated(64);
    for _ in 0..600 {
        gate.recorder.call_abandoned(end(&call(0)));
    }
    let waited = call(0);
    let mut ended = Box::pin(gate.recorder.call_ended(end(&waited)));
    assert!(poll_immediate(&mut ended).await.is_none());
    let full = StoreError::Full("here".into());
    let mut tried = Vec::new();
    for _ in 0..5 {
        gate.answer.send(Answer::Fails(full.clone())).unwrap();
        tried.extend(of(&gate.seen.recv().unwrap()));
    }
    assert!(tried.contains(&(waited.id, "end")));
    assert_eq!(ended.await, Err(full));
    drop(gate.answer);
    assert_eq!(gate.recorder.drain().await, 0);
    let written: HashSet<_> = gate.seen.try_iter().flat_map(|batch| of(&batch)).collect();
    assert_eq!(written.len(), 600);
}

#[tokio::test]
async fn after_the_end_nothing_is_taken() {
    let gate = gated(64);
    drop(gate.answer);
    let clone = gate.recorder.clone();
    assert_eq!(gate.recorder.drain().await, 0);
    assert!(*gate.dropped.lock().unwrap(), "the writer is dropped before the drain ends");
    let refused = clone.call_ended(end(&call(0))).await;
    assert!(matches!(&refused, Err(StoreError::Other(text)) if text.contains("shutting down")), "{refused:?}");
    clone.call_abandoned(end(&call(0)));
    assert_eq!(clone.drain().await, 2);
}

#[tokio::test]
async fn a_writer_that_panics_leaves_nobody_waiting() {
    let gate = gated(64);
    gate.answer.send(Answer::Panics).unwrap();
    let (first, second) = (call(0), call(0));
    let (first, second) = futures::join!(gate.recorder.call_ended(end(&first)), gate.recorder.call_ended(end(&second)));
    assert!(first.is_err() && second.is_err());
    assert!(gate.recorder.call_ended(end(&call(0))).await.is_err());
    assert!(gate.recorder.drain().await > 0);
}

async fn real(dir: &std::path::Path) -> (Arc<dyn Store>, Recorder, RolloutId) {
    let path = dir.join("g.db");
    let store = crate::store::open(path.to_str().unwrap(), &StoreConfig::default(), ProcessId::generate()).await.unwrap();
    let recorder = Recorder::start(store.writer().unwrap(), 64);
    let rollout = NewRollout {
        id: RolloutId::generate(),
        key: RolloutKey::generate(),
        created_at: 1,
        purpose: Purpose::Record,
        task_id: None,
        group_id: None,
        group_size: None,
        harness: None,
        policy: None,
        sampling: Sampling::default(),
        metadata: serde_json::Map::new(),
        ttl_s: None,
        idempotency_key: None,
        conversation: None,
        index: None,
        run: None,
    };
    let id = rollout.id;
    recorder.write(Write::NewRollout(rollout.into())).await.unwrap();
    (store, recorder, id)
}

#[tokio::test]
async fn a_start_and_a_delivery_are_in_the_store_within_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let (store, recorder, rollout) = real(dir.path()).await;
    let call = start(rollout, 100);
    recorder.call_started(call.clone()).await;
    let began = Instant::now();
    while store.call(call.id).await.unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    recorder.call_ended(end(&call)).await.unwrap();
    recorder.delivered(call.id);
    let began = Instant::now();
    while store.call(call.id).await.unwrap().unwrap().delivered.is_none() {
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_drain_leaves_everything_in_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let (store, recorder, rollout) = real(dir.path()).await;
    let calls: Vec<_> = (0..50).map(|_| start(rollout, 100)).collect();
    for call in &calls {
        recorder.call_started(call.clone()).await;
        recorder.call_abandoned(end(call));
        recorder.delivered(call.id);
    }
    assert_eq!(recorder.drain().await, 0);
    let read = store.calls(rollout).await.unwrap();
    let read: Vec<_> = read.iter().map(|call| (call.id, call.status, call.delivered)).collect();
    assert_eq!(read, calls.iter().map(|call| (call.id, CallStatus::Done, Some(true))).collect::<Vec<_>>());
    assert_eq!(std::fs::metadata(dir.path().join("g.db-wal")).unwrap().len(), 0);
}
