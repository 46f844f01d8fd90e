//! Batches: who runs them, what they are run for, and what a process that dies leaves of them.

use super::faults::copy;
use super::*;
use crate::ids::BatchId;
use crate::store::{Batch, BatchStatus, Finish, NewBatch, Outcome, Prune, RolloutFilter, RolloutStatus, RunOf};

fn new_batch() -> NewBatch {
    NewBatch { id: BatchId::generate(), created_at: 500, plan: serde_json::json!({"z": 1, "a": ["é"]}), rollouts: 4 }
}

fn run(batch: BatchId, index: u32, attempt: u32) -> NewRollout {
    NewRollout { index: Some(index), run: Some(RunOf { batch, attempt }), ..new_rollout(Some("g")) }
}

fn ends(rollout: &NewRollout, outcome: Outcome) -> Write {
    Write::Finish(Finish { rollout_id: rollout.id, at: 9, outcome, no_reward: true, evidence: None })
}

fn made(rollout: &NewRollout) -> Write {
    Write::NewRollout(Box::new(rollout.clone()))
}

/// The files as a crash leaves them: the same bytes, and nobody's lock.
async fn crashed(dir: &tempfile::TempDir, name: &str) -> (Arc<dyn Store>, std::path::PathBuf) {
    copy(&dir.path().join("live"), &dir.path().join(name));
    let path = dir.path().join(name).join("g.db");
    (open(&path).await.0, path)
}

#[tokio::test]
async fn a_batch_and_what_its_rollouts_are_run_for_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let (first, second) = (new_batch(), new_batch());
    let (one, two, other) = (run(first.id, 3, 1), run(first.id, 3, 2), run(second.id, 0, 1));
    let plain = new_rollout(Some("g"));
    let batches = [&first, &second].map(|new| Write::NewBatch(Box::new(new.clone())));
    write_all(&mut *writer, batches.into_iter().chain([&one, &two, &other, &plain].map(made)));
    let expected = |new: &NewBatch, status| {
        let NewBatch { id, created_at, plan, rollouts } = new.clone();
        Batch { id, created_at, plan, rollouts, status }
    };
    let running = [&first, &second].map(|new| expected(new, BatchStatus::Running));
    let briefs = running.each_ref().map(Batch::brief);
    assert_eq!(store.batches(None, 0).await.unwrap(), briefs);
    assert_eq!(store.batches(Some(first.id), 5).await.unwrap(), briefs[1..]);
    assert_eq!(store.batches(None, 1).await.unwrap(), briefs[..1]);
    assert_eq!(store.batch(second.id).await.unwrap().as_ref(), running.last());
    assert_eq!(store.batch(BatchId::generate()).await.unwrap(), None);
    let of = |batch| RolloutFilter { batch: Some(batch), ..RolloutFilter::default() };
    let read = store.rollouts(&of(first.id)).await.unwrap();
    let seen: Vec<_> = read.iter().map(|rollout| (rollout.id, rollout.index, rollout.run)).collect();
    assert_eq!(seen, [&one, &two].map(|new| (new.id, 3, new.run)), "an index that is given stays what it is");
    let plain = store.rollout(plain.id).await.unwrap().unwrap();
    assert_eq!((plain.index, plain.run), (3, None), "without one it is the next of its group");
    // Two tries of one place are one that has ended.
    assert_eq!(store.ended(first.id).await.unwrap(), 0);
    write_all(&mut *writer, [ends(&one, Outcome::InfraError), ends(&two, Outcome::Passed)]);
    assert_eq!((store.ended(first.id).await.unwrap(), store.ended(second.id).await.unwrap()), (1, 0));
    // A repeat changes nothing, and a batch that is not there has no rollouts.
    write_all(&mut *writer, [Write::NewBatch(Box::new(NewBatch { rollouts: 9, ..first.clone() }))]);
    let stray = run(BatchId::generate(), 0, 1);
    assert!(is_other(&writer.apply(&[made(&stray)])[0], "there is no batch"));
    assert!(store.rollout(stray.id).await.unwrap().is_none());
    write_all(&mut *writer, [Write::BatchStatus(first.id, BatchStatus::Done)]);
    assert_eq!(store.batch(first.id).await.unwrap(), Some(expected(&first, BatchStatus::Done)));
    assert_eq!(store.check().await.unwrap().faults, []);
}

#[tokio::test]
async fn what_a_process_runs_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, process) = open(&dir.path().join("live/g.db")).await;
    let mut writer = store.writer().unwrap();
    let batch = new_batch();
    let (open_one, ended, by_api) = (run(batch.id, 0, 1), run(batch.id, 1, 1), new_rollout(Some("g")));
    let call = start(open_one.id, process);
    let begun = [Write::NewBatch(Box::new(batch.clone())), made(&open_one), made(&ended), made(&by_api), Write::CallStart(call)];
    write_all(&mut *writer, begun.into_iter().chain([ends(&ended, Outcome::Passed)]));
    let (dead, path) = crashed(&dir, "dead").await;
    let status = async |store: &Arc<dyn Store>| store.batch(batch.id).await.unwrap().unwrap().status;
    assert_eq!([status(&store).await, status(&dead).await], [BatchStatus::Running, BatchStatus::Stopped]);
    let mut next = dead.writer().unwrap();
    let read = async |store: &Arc<dyn Store>, new: &NewRollout| store.rollout(new.id).await.unwrap().unwrap();
    let swept = read(&dead, &open_one).await;
    let evidence = serde_json::json!({"error": "the gleaner process that ran it died"});
    assert_eq!((swept.outcome, swept.evidence, swept.no_reward), (Some(Outcome::InfraError), Some(evidence), true));
    assert_eq!(read(&dead, &ended).await.outcome, Some(Outcome::Passed));
    assert_eq!(read(&dead, &by_api).await.status, RolloutStatus::Open, "no process runs it: its harness may still live");
    // Beside the living one nothing ends.
    let (second, _) = open(&dir.path().join("live/g.db")).await;
    let _beside = second.writer().unwrap();
    assert_eq!(read(&second, &open_one).await.status, RolloutStatus::Open);
    // Ended in order, but not the rollout.
    drop(writer);
    assert_eq!(read(&second, &open_one).await.outcome, Some(Outcome::InfraError));
    assert_eq!(status(&second).await, BatchStatus::Stopped);
    write_all(&mut *next, [Write::BatchStatus(batch.id, BatchStatus::Running)]);
    assert_eq!(status(&dead).await, BatchStatus::Running);
    assert_eq!(dead.check().await.unwrap().faults, [], "{}", path.display());
}

#[tokio::test]
async fn of_several_that_take_a_batch_over_one_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("live/g.db")).await;
    let mut writer = store.writer().unwrap();
    let batch = new_batch();
    write_all(&mut *writer, [Write::NewBatch(Box::new(batch.clone()))]);
    let take = [Write::BatchStatus(batch.id, BatchStatus::Running)];
    let refused = |result: &[Result<(), StoreError>]| is_other(&result[0], "is being run by a gleaner process already");
    assert!(refused(&writer.apply(&take)), "not even by its own process twice");
    let (_, path) = crashed(&dir, "dead").await;
    let stores = [open(&path).await.0, open(&path).await.0, open(&path).await.0];
    let mut writers: Vec<_> = stores.iter().map(|store| store.writer().unwrap()).collect();
    let mut taken = 0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| writer.apply(&take))).collect();
        for result in threads.into_iter().map(|thread| thread.join().unwrap()) {
            taken += usize::from(result[0].is_ok());
            assert!(result[0].is_ok() || refused(&result), "{result:?}");
        }
    });
    assert_eq!(taken, 1);
    assert!(is_other(
        &writers[0].apply(&[Write::BatchStatus(BatchId::generate(), BatchStatus::Running)])[0],
        "there is no batch"
    ));
    // Who dies while another process writes is seen by that one when it takes over.
    let left = run(batch.id, 0, 1);
    write_all(&mut *writer, [made(&left)]);
    drop(writers);
    let (survivor, path) = crashed(&dir, "again").await;
    let mut survivor_writes = survivor.writer().unwrap();
    let (victim, _) = open(&path).await;
    let mut victim_writes = victim.writer().unwrap();
    let own = run(batch.id, 1, 1);
    write_all(&mut *victim_writes, [Write::BatchStatus(batch.id, BatchStatus::Running), made(&own)]);
    assert!(refused(&survivor_writes.apply(&take)));
    // Its lock goes, as with a death; nothing else of its does.
    std::fs::remove_dir_all(super::super::process::folder(&path)).unwrap();
    write_all(&mut *survivor_writes, take);
    assert_eq!(survivor.rollout(own.id).await.unwrap().unwrap().outcome, Some(Outcome::InfraError));
    std::mem::forget(victim_writes);
}

#[tokio::test]
async fn a_cancelled_batch_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let batch = new_batch();
    write_all(&mut *writer, [Write::NewBatch(Box::new(batch.clone())), Write::BatchStatus(batch.id, BatchStatus::Cancelled)]);
    assert!(is_other(&writer.apply(&[Write::BatchStatus(batch.id, BatchStatus::Running)])[0], "was cancelled"));
}

#[tokio::test]
async fn a_batch_goes_with_its_last_rollout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, _) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let batch = new_batch();
    let (one, two) = (run(batch.id, 0, 1), run(batch.id, 1, 1));
    let ended = [&one, &two].map(|new| ends(new, Outcome::Failed));
    write_all(&mut *writer, [Write::NewBatch(Box::new(batch.clone())), made(&one), made(&two)].into_iter().chain(ended));
    let prune = |id| store.prune(&[id], Prune::default()).unwrap().rollouts;
    assert_eq!(prune(one.id), 1);
    assert!(store.batch(batch.id).await.unwrap().is_some(), "it has another rollout");
    let more = run(batch.id, 2, 1);
    write_all(&mut *writer, [made(&more)]);
    let open = Prune { open: true, ..Prune::default() };
    assert_eq!(store.prune(&[more.id], open).unwrap().passed_over, 1, "a process that lives runs it");
    write_all(&mut *writer, [ends(&more, Outcome::Failed)]);
    assert_eq!((prune(two.id), prune(more.id)), (1, 1));
    assert!(store.batch(batch.id).await.unwrap().is_some(), "it runs: more may come");
    write_all(&mut *writer, [made(&one), ends(&one, Outcome::Failed), Write::BatchStatus(batch.id, BatchStatus::Done)]);
    assert_eq!(prune(one.id), 1);
    assert_eq!(store.batch(batch.id).await.unwrap(), None);
    assert_eq!(store.check().await.unwrap().faults, []);
}
