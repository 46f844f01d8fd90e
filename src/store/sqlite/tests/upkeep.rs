//! Damage is found and named, and what is deleted leaves the rest whole.

use super::*;
use crate::call::{Base64Form, RawKind};
use crate::store::{Checked, Finish, Outcome, Prune, Reward, RolloutFilter};

/// A small store with everything in it: two rollouts that share their opening and an image, rewards, deliveries.
struct Small {
    rollouts: Vec<NewRollout>,
    calls: Vec<CallEnd>,
}

async fn small(path: &Path) -> Small {
    let (store, process) = open(path).await;
    let mut writer = store.writer().unwrap();
    let rollouts = vec![new_rollout(Some("g")), NewRollout { idempotency_key: Some("k".into()), ..new_rollout(Some("g")) }];
    let mut image = b"data:image/png;base64,".to_vec();
    Base64Form::of_code(2).unwrap().write(&(0..3000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>(), &mut image);
    let image = String::from_utf8(image).unwrap();
    let system: String = (0..4000_u32).flat_map(|at| [format!("{:x}", at.wrapping_mul(2_654_435_761)), " ".to_owned()]).collect();
    let mut calls = Vec::new();
    for rollout in &rollouts {
        write_all(&mut *writer, [Write::NewRollout(Box::new(rollout.clone()))]);
        let mut turns = String::new();
        for turn in 0..4 {
            let said = &system[turn * 1000..][..700];
            turns.extend([r#",{"role":"user","content":"turn "#, turn.to_string().as_str(), " ", said, r#""}"#]);
            let request = format!(
                r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"image_url":{{"url":"{image}"}}}}{turns}]}}"#
            );
            let start = Arc::new(CallStart { request: request.into(), ..(*start(rollout.id, process)).clone() });
            let prompt_ids = (0..200 + u32::try_from(turn).unwrap() * 50).collect();
            let capture = Capture { prompt_ids, ..end(&start).capture };
            let call = CallEnd { capture, usage: None, ..end(&start) };
            write_all(&mut *writer, [Write::CallStart(start.clone()), Write::CallEnd(Box::new(call.clone()))]);
            write_all(&mut *writer, [Write::Delivered(start.id)]);
            calls.push(call);
        }
        let reward = |call_id, name: &str| Reward { rollout_id: rollout.id, call_id, name: name.into(), value: 0.25 };
        let finish = Finish { rollout_id: rollout.id, at: 9, outcome: Outcome::Passed, no_reward: false, evidence: None };
        write_all(
            &mut *writer,
            [
                Write::Reward(reward(None, "reward")),
                Write::Reward(reward(Some(calls.last().unwrap().start.id), "step")),
                Write::Finish(finish),
            ],
        );
    }
    drop(writer);
    Small { rollouts, calls }
}

/// All that can be read of a store, as far as it can be.
async fn all(store: &Arc<dyn Store>, small: &Small) -> Vec<String> {
    let mut read = Vec::new();
    for rollout in &small.rollouts {
        read.push(format!("{:?}", store.rollout(rollout.id).await));
        read.push(format!("{:?}", store.calls(rollout.id).await));
    }
    read.push(format!("{:?}", store.rollouts(&RolloutFilter::default()).await));
    for call in &small.calls {
        read.push(format!("{:?}", store.call(call.start.id).await));
        for kind in [RawKind::Request, RawKind::Upstream, RawKind::Response, RawKind::Prompt] {
            read.push(format!("{:?}", store.raw(call.start.id, kind).await));
        }
    }
    read
}

async fn checked(path: &Path) -> Option<Checked> {
    let opened = crate::store::open(path.to_str().unwrap(), &config(), ProcessId::generate()).await.ok()?;
    Some(opened.check().await.unwrap())
}

#[tokio::test]
async fn a_whole_store_has_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    small(&path).await;
    // Two blobs: the image and the opening.
    let whole = Checked { rollouts: 2, calls: 8, bodies: 32, blobs: 2, faults: Vec::new() };
    assert_eq!(checked(&path).await, Some(whole));
}

/// No byte can change without being found, or without anything that can be read being another.
#[tokio::test]
async fn a_flipped_byte_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let small = small(&path).await;
    let good = std::fs::read(&path).unwrap();
    let before = all(&open(&path).await.0, &small).await;
    let (mut state, mut found, mut harmless) = (1_u64, 0, 0);
    // Some bytes of each page, of those that mean something where there are any.
    let page = 4096;
    let each = std::env::var("GLEANER_TEST_FLIPS").map_or(4, |flips| flips.parse().unwrap());
    for begin in (0..good.len()).step_by(page) {
        for _ in 0..each {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = usize::try_from(state >> 33).unwrap() % page;
            let at = (0..page).map(|more| begin + (drawn + more) % page).find(|at| good[*at] != 0).unwrap_or(begin + drawn);
            let mut bad = good.clone();
            bad[at] ^= 1 << (state & 7);
            let flipped = dir.path().join("flipped.db");
            for rest in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(dir.path().join(format!("flipped.db{rest}")));
            }
            std::fs::write(&flipped, &bad).unwrap();
            match checked(&flipped).await {
                None => found += 1,
                Some(checked) if !checked.faults.is_empty() => found += 1,
                Some(_) => {
                    let after = all(&open(&flipped).await.0, &small).await;
                    assert!(
                        before == after,
                        "byte {at} was flipped unseen: {:?}",
                        before.iter().zip(&after).find(|(a, b)| a != b)
                    );
                    harmless += 1;
                }
            }
        }
    }
    // Without effect: what is left in free room, comments of the schema.
    assert!(found > harmless, "{found} found, {harmless} without effect");
}

#[tokio::test]
async fn damage_is_named_and_the_rest_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let small = small(&path).await;
    let db = rusqlite::Connection::open(&path).unwrap();
    let (hurt, told) = (&small.calls[1], &small.calls[2]);
    // The last byte of the request is in what is new in it, which the next call's request has too.
    let id = hurt.start.id.0.as_bytes().to_vec();
    db.execute(
        "UPDATE calls SET request = substr(request, 1, length(request) - 200) || x'00' || substr(request, -199) WHERE id = ?",
        [&id],
    )
    .unwrap();
    db.execute("UPDATE replies SET notes = '[]' WHERE call = (SELECT seq FROM calls WHERE id = ?)", [&id]).unwrap();
    let (store, _) = open(&path).await;
    let faults = store.check().await.unwrap().faults;
    let named: Vec<_> = faults.iter().map(|fault| (fault.call.unwrap(), fault.part.as_str())).collect();
    for part in ["record", "request", "upstream"] {
        assert!(named.contains(&(hurt.start.id, part)), "{part}: {named:?}");
    }
    let cause = faults.iter().find(|fault| fault.call == Some(told.start.id) && fault.part == "request").unwrap();
    assert!(cause.what.contains(&format!("told by the request of call {}", hurt.start.id)), "{}", cause.what);
    assert!(named.iter().all(|(call, _)| small.calls[1..4].iter().any(|other| other.start.id == *call)), "{named:?}");
    // The other rollout, and what is before the damage.
    for call in small.calls[..1].iter().chain(&small.calls[4..]) {
        assert_eq!(store.raw(call.start.id, RawKind::Request).await.unwrap(), Some(call.start.request.clone()));
        assert_eq!(store.call(call.start.id).await.unwrap().unwrap().capture, call.capture);
    }
    assert!(store.raw(hurt.start.id, RawKind::Response).await.unwrap().is_some());
}

#[tokio::test]
async fn what_is_deleted_leaves_the_rest_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let small = small(&path).await;
    let (store, process) = open(&path).await;
    // Somebody else writes meanwhile, and remembers the first rollout's opening and numbers.
    let mut writer = store.writer().unwrap();
    let own = new_rollout(None);
    let request = small.calls[0].start.request.clone();
    let again = |rollout| Arc::new(CallStart { request: request.clone(), ..(*start(rollout, process)).clone() });
    let (first, second) = (again(own.id), again(own.id));
    write_all(&mut *writer, [Write::NewRollout(own.clone().into()), Write::CallStart(first.clone())]);
    let ids: Vec<_> = small.rollouts.iter().map(|rollout| rollout.id).collect();
    for id in &ids {
        let folder = store.artifacts().folder(*id);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("stdout.log"), "12345").unwrap();
    }
    let dry = store.prune(&ids, Prune { dry_run: true, ..Prune::default() }).unwrap();
    assert_eq!((dry.rollouts, dry.calls, dry.artifact_bytes, dry.file_before), (2, 8, 10, dry.file_after));
    assert_eq!(store.calls(ids[0]).await.unwrap().len(), 4, "only said");
    let one = store.prune(&ids[..1], Prune::default()).unwrap();
    assert_eq!((one.rollouts, one.calls, one.blobs, one.passed_over), (1, 4, 0, 0), "the other has the same blobs");
    let left: Vec<u64> = ids.iter().map(|id| store.artifacts().bytes(*id).unwrap()).collect();
    assert_eq!((one.artifact_bytes, left), (5, vec![0, 5]), "its files go with it");
    assert!(store.rollout(ids[0]).await.unwrap().is_none());
    for call in &small.calls[4..] {
        assert_eq!(store.raw(call.start.id, RawKind::Request).await.unwrap(), Some(call.start.request.clone()));
    }
    // Open, with a call in flight: not even when it is named. One that is not there is passed over.
    let named = store.prune(&[own.id, ids[0]], Prune { open: true, ..Prune::default() }).unwrap();
    assert_eq!((named.rollouts, named.passed_over), (0, 2));
    let rest = store.prune(&ids[1..], Prune::default()).unwrap();
    assert_eq!((rest.rollouts, rest.calls), (1, 4));
    // The writer goes on, and nothing of its is told by what is gone.
    let ends = [end(&first), end(&second)];
    write_all(&mut *writer, [Write::CallStart(second.clone())]);
    write_all(&mut *writer, ends.iter().map(|end| Write::CallEnd(Box::new(end.clone()))));
    let gone = writer.apply(&[Write::CallStart(again(ids[0]))]);
    assert!(is_other(&gone[0], "there is no rollout"), "{gone:?}");
    let (fresh, _) = open(&path).await;
    for end in &ends {
        assert_eq!(fresh.raw(end.start.id, RawKind::Request).await.unwrap(), Some(request.clone()));
        assert_eq!(fresh.raw(end.start.id, RawKind::Upstream).await.unwrap(), Some(end.raw.upstream.clone()));
    }
    assert_eq!(fresh.check().await.unwrap().faults, []);
    // Now it is not in flight any more, and goes when it is named.
    assert_eq!(store.prune(&[own.id], Prune::default()).unwrap().passed_over, 1);
    let all = store.prune(&[own.id], Prune { open: true, ..Prune::default() }).unwrap();
    assert_eq!((all.rollouts, all.calls, all.blobs), (1, 2, 2));
    assert!(all.file_after + 20_000 < all.file_before, "the opening's room is given back: {all:?}");
    let vacuumed = store.prune(&[], Prune { vacuum: true, ..Prune::default() }).unwrap();
    assert!(vacuumed.file_after <= vacuumed.file_before, "{vacuumed:?}");
    let db = rusqlite::Connection::open(&path).unwrap();
    for table in ["rollouts", "calls", "replies", "delivered", "rewards", "blobs", "call_blobs"] {
        assert_eq!(db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)), Ok(0), "{table}");
    }
}

#[tokio::test]
async fn calls_after_a_deletion_are_interrupted_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let small = small(&path).await;
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let ids: Vec<_> = small.rollouts.iter().map(|rollout| rollout.id).collect();
    store.prune(&ids, Prune::default()).unwrap();
    // Its number was another's, from before the writer began.
    let rollout = new_rollout(None);
    let call = start(rollout.id, process);
    write_all(&mut *writer, [Write::NewRollout(rollout.into()), Write::CallStart(call.clone())]);
    drop(writer);
    assert_eq!(store.call(call.id).await.unwrap().unwrap().status, CallStatus::Interrupted);
    let db = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(db.query_row("SELECT count(*) FROM replies", [], |row| row.get::<_, i64>(0)), Ok(1), "ended for good");
}
