//! Conversations: what is told by other calls comes back, whoever wrote them and in what order.

use proptest::prelude::*;

use super::*;
use crate::call::RawKind;

const KINDS: [RawKind; 4] = [RawKind::Request, RawKind::Upstream, RawKind::Response, RawKind::Prompt];

/// Text that does not repeat.
fn text(words: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 40
    };
    (0..words).flat_map(|_| [format!("{:x}", next()), " ".to_owned()]).collect()
}

/// A call of a conversation: its request, what went up, the reply with the prompt's ids in it, and the ids.
fn turn(rollout: RolloutId, process: ProcessId, messages: &[String], tokens: &[u32], seed: u64) -> CallEnd {
    let request = format!(r#"{{"messages":[{}],"stream":true,"n":{seed}}}"#, messages.join(","));
    let upstream = request.replacen('{', r#"{"return_token_ids":true,"#, 1);
    let response = format!(r#"{{"id":"{seed:x}","prompt_token_ids":{tokens:?},"text":"{}"}}"#, text(40, seed));
    let start = Arc::new(CallStart { request: request.into(), ..(*start(rollout, process)).clone() });
    let completion_ids: Vec<u32> = (0..50).map(|at| u32::try_from(seed % 1000).unwrap() * 100 + at).collect();
    let logprobs = completion_ids.iter().map(|id| -f64::from(*id) / 1e6).collect();
    CallEnd {
        raw: RawParts { upstream: upstream.into(), response: response.into(), prompt: format!("{tokens:?}").into() },
        capture: Capture { prompt_ids: tokens.to_vec(), completion_ids, logprobs, ..end(&start).capture },
        usage: None,
        ..end(&start)
    }
}

/// A conversation of so many turns, each request the last one and a turn more.
fn conversation(rollout: RolloutId, process: ProcessId, turns: usize, seed: u64) -> Vec<CallEnd> {
    let mut messages = vec![format!(r#"{{"role":"system","content":"{}"}}"#, text(4000, 7))];
    let mut tokens: Vec<u32> = (0..3000).collect();
    (0..turns as u64)
        .map(|number| {
            messages.push(format!(r#"{{"role":"user","content":"{}"}}"#, text(100, seed + number)));
            tokens.extend((0..100).map(|at| at * 31));
            let call = turn(rollout, process, &messages, &tokens, seed + number);
            tokens.extend_from_slice(&call.capture.completion_ids);
            call
        })
        .collect()
}

async fn assert_there(store: &Arc<dyn Store>, calls: &[CallEnd]) {
    for call in calls {
        let bodies = [&call.start.request, &call.raw.upstream, &call.raw.response, &call.raw.prompt];
        for (kind, body) in KINDS.into_iter().zip(bodies) {
            let read = store.raw(call.start.id, kind).await.unwrap();
            assert!(read.as_ref() == Some(body), "the {kind:?} of call {} is another", call.start.id);
        }
        let record = store.call(call.start.id).await.unwrap().unwrap();
        assert_eq!((&record.capture, &record.message), (&call.capture, &call.message), "call {}", call.start.id);
    }
}

fn both(call: &CallEnd) -> [Write; 2] {
    [Write::CallStart(call.start.clone()), Write::CallEnd(Box::new(call.clone()))]
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[tokio::test]
async fn a_long_conversation_takes_what_is_new_in_it() {
    const TURNS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let (rollout, other) = (new_rollout(Some("g")), new_rollout(Some("g")));
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into()), Write::NewRollout(other.clone().into())]);
    let empty = {
        writer.idle();
        size(&path)
    };
    let calls = conversation(rollout.id, process, TURNS, 100);
    for call in &calls {
        write_all(&mut *writer, both(call));
    }
    assert_there(&open(&path).await.0, &calls).await;
    let records = open(&path).await.0.calls(rollout.id).await.unwrap();
    assert!(records.iter().map(|record| &record.capture).eq(calls.iter().map(|call| &call.capture)), "read all at once");
    // Another rollout that begins alike keeps its opening with the first.
    let alike = conversation(other.id, process, 1, 9000);
    write_all(&mut *writer, both(&alike[0]));
    assert_there(&open(&path).await.0, &alike).await;
    drop(writer);
    let bodies =
        |call: &CallEnd| call.start.request.len() + call.raw.upstream.len() + call.raw.response.len() + call.raw.prompt.len();
    let (naive, took) = (calls.iter().map(bodies).sum::<usize>() as u64, size(&path) - empty);
    assert!(took * 25 < naive, "{took} bytes of {naive}");
    let db = rusqlite::Connection::open(&path).unwrap();
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((count("SELECT count(*) FROM blobs"), count("SELECT count(DISTINCT call) > 1 FROM call_blobs")), (1, 1));
    // Key frames bound what is read to read one call.
    assert!(count("SELECT count(*) FROM calls WHERE length(request) > 8000") >= i64::try_from(TURNS).unwrap() / 17 - 1);
    assert!(count("SELECT count(*) FROM replies WHERE prompt_base IS NULL") < 3);
}

#[tokio::test]
async fn two_processes_write_one_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let ((one, process), (two, _)) = (open(&path).await, open(&path).await);
    let mut writers = [one.writer().unwrap(), two.writer().unwrap()];
    let rollout = new_rollout(None);
    write_all(&mut *writers[0], [Write::NewRollout(rollout.clone().into())]);
    let calls = conversation(rollout.id, process, 40, 1);
    for (at, call) in calls.iter().enumerate() {
        let [start, end] = both(call);
        // Some calls are begun by one and ended by the other, as a start that was lost is.
        write_all(&mut *writers[at % 2], [start]);
        write_all(&mut *writers[(at + at / 7) % 2], [end]);
    }
    assert_there(&open(&path).await.0, &calls).await;
    assert_eq!(open(&path).await.0.check().await.unwrap().faults, []);
}

#[tokio::test]
async fn what_a_failed_write_would_have_told_is_told_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let calls = conversation(rollout.id, process, 4, 1);
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into())]);
    write_all(&mut *writer, both(&calls[0]));
    // The same call again, with other bodies: it fails, and the ones after it in the batch go on from it.
    let other = turn(rollout.id, process, &[text(2000, 3)], &[1; 900], 3);
    let start = Arc::new(CallStart { id: calls[0].start.id, ..(*other.start).clone() });
    let again = CallEnd { start: start.clone(), ..other.clone() };
    let next = turn(rollout.id, process, &[text(2000, 3), text(10, 4)], &[1; 950], 4);
    let batch = [Write::CallStart(start), Write::CallEnd(Box::new(again))].into_iter().chain(both(&next)).collect::<Vec<_>>();
    let results = writer.apply(&batch);
    assert!(results[0].is_err() && results[1].is_err() && results[2..] == [Ok(()), Ok(())], "{results:?}");
    for call in &calls[1..] {
        write_all(&mut *writer, both(call));
    }
    assert_there(&open(&path).await.0, &[&calls[..], &[next]].concat()).await;
}

#[tokio::test]
async fn a_batch_that_was_rolled_back_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let calls = conversation(rollout.id, process, 6, 1);
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into())]);
    write_all(&mut *writer, both(&calls[0]));
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(writer.apply(&both(&calls[1])).iter().all(Result::is_err));
    other.execute_batch("ROLLBACK").unwrap();
    for call in &calls[2..] {
        write_all(&mut *writer, both(call));
    }
    let kept = [&calls[..1], &calls[2..]].concat();
    assert_there(&open(&path).await.0, &kept).await;
}

/// As Gleaner wrote it before there were chains: a store of migration 5 with a call in it, opened now.
#[tokio::test]
async fn calls_of_before_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into())]);
    let call = start(rollout.id, process);
    let ended = end(&call);
    write_all(&mut *writer, [Write::CallEnd(ended.clone().into()), Write::Delivered(call.id)]);
    drop((writer, store));
    let db = rusqlite::Connection::open(&path).unwrap();
    // Bodies without a checksum, rows without sums, whole ids, and the mark up to where that is so.
    let plain = |body: &[u8]| [&[0], body].concat();
    db.execute("UPDATE calls SET sum = NULL, request = ?", [plain(&call.request)]).unwrap();
    db.execute(
        "UPDATE replies SET sum = NULL, prompt_sum = NULL, upstream = ?, response = ?, prompt = ?",
        [plain(&ended.raw.upstream), plain(&ended.raw.response), plain(&ended.raw.prompt)],
    )
    .unwrap();
    db.execute_batch(
        "UPDATE rollouts SET sum = NULL; UPDATE delivered SET sum = NULL; UPDATE unsealed SET calls = 1, rollouts = 1, processes = 1;",
    )
    .unwrap();
    let (store, _) = open(&path).await;
    assert_there(&store, std::slice::from_ref(&ended)).await;
    assert_eq!(store.check().await.unwrap().faults, []);
    // A row that is newer than the mark has lost its sum.
    db.execute_batch("UPDATE unsealed SET calls = 0").unwrap();
    let lost = open(&path).await.0.call(call.id).await;
    assert!(matches!(&lost, Err(StoreError::Other(text)) if text.contains(&call.id.to_string())), "{lost:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Conversations that take turns, go on from any earlier call, fail, run at once and are written in batches.
    #[test]
    fn any_order_of_calls_comes_back(steps in prop::collection::vec((0..3_usize, any::<prop::sample::Index>(), 0..6_u8), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("g.db");
            let (store, process) = open(&path).await;
            let mut writer = store.writer().unwrap();
            let rollouts: Vec<_> = (0..2).map(|_| new_rollout(None)).collect();
            write_all(&mut *writer, rollouts.iter().map(|rollout| Write::NewRollout(Box::new(rollout.clone()))));
            let mut known: Vec<(usize, Vec<String>, Vec<u32>)> = vec![(0, Vec::new(), Vec::new()), (1, Vec::new(), Vec::new())];
            let (mut calls, mut batch) = (Vec::new(), Vec::new());
            for (number, (size, from, how)) in steps.into_iter().enumerate() {
                let seed = number as u64 + 1;
                let (rollout, mut messages, mut tokens) = from.get(&known).clone();
                messages.push(format!("\"{}\"", text([3, 80, 3000][size], seed)));
                tokens.extend((0..[1, 40, 900][size]).map(|at| at * 17));
                if how == 5 {
                    messages.remove(0);
                    tokens.drain(..tokens.len() / 2);
                }
                let call = turn(rollouts[rollout].id, process, &messages, &tokens, seed);
                tokens.extend_from_slice(&call.capture.completion_ids);
                known.push((rollout, messages, tokens));
                batch.extend(both(&call).into_iter().skip(usize::from(how == 4)));
                calls.push(call);
                if how > 1 {
                    write_all(&mut *writer, std::mem::take(&mut batch));
                }
            }
            write_all(&mut *writer, batch);
            let (fresh, _) = open(&path).await;
            assert_there(&fresh, &calls).await;
            for rollout in &rollouts {
                let own = |call: &&CallEnd| call.start.rollout_id == rollout.id;
                let read = fresh.calls(rollout.id).await.unwrap();
                assert_eq!(read.len(), calls.iter().filter(own).count());
                for record in read {
                    let call = calls.iter().find(|call| call.start.id == record.id).unwrap();
                    assert_eq!(record.capture, call.capture);
                }
            }
            assert_eq!(fresh.check().await.unwrap().faults, []);
        });
    }
}
