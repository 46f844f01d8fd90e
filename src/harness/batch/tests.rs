//! Batches on real processes and a real store; only what goes wrong with the engine is made up.

mod faulty;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::lineup::{self, Filled};
use super::*;
use faulty::Faulty;

use crate::engine::{EngineConfig, Process};
use crate::harness::run::Cap;
use crate::harness::{HarnessChoice, ModelEndpoint, Progress, RolloutConfig, Served, Tasks, Terms, helper, summary};
use crate::ids::{ProcessId, RolloutId, RolloutKey};
use crate::store::{
    Batch, Finish, NewRollout, Outcome, Purpose, Reward, Rollout, RolloutFilter, RolloutStatus, RunOf, StoreConfig, Writer,
};

/// A harness that does what its prompt says.
const HARNESS: &str = r#"
name = "shell"
version = "1"
description = "does what it is told"
wire = "chat"
[payload]
build = "build.sh"
where = "host"
[run]
command = ["sh", "-c", "{{prompt}}; echo done"]
[outcome]
form = "text"
"#;

/// Keeps rollouts; nobody calls the model here.
struct Records {
    store: Arc<dyn Store>,
    recorder: Recorder,
}

#[async_trait]
impl ModelEndpoint for Records {
    async fn open(&self, rollout: NewRollout, _terms: &Terms, _socket: &Path) -> anyhow::Result<()> {
        Ok(self.recorder.write(Write::NewRollout(Box::new(rollout))).await?)
    }

    async fn capped(&self, _rollout: RolloutId) -> Cap {
        std::future::pending().await
    }

    async fn paused(&self, _rollout: RolloutId, _now: bool) -> bool {
        std::future::pending().await
    }

    fn turns(&self, _rollout: RolloutId) -> u64 {
        0
    }

    async fn window(&self, _policy: Option<&str>) -> Option<u64> {
        None
    }

    async fn seal(&self, _rollout: RolloutId) -> Served {
        Served::default()
    }

    async fn reward(&self, reward: Reward) -> anyhow::Result<()> {
        Ok(self.recorder.write(Write::Reward(reward)).await?)
    }

    async fn close(&self, finish: Finish) -> anyhow::Result<Rollout> {
        let id = finish.rollout_id;
        self.recorder.write(Write::Finish(finish)).await?;
        self.store.rollout(id).await?.ok_or_else(|| anyhow::anyhow!("there is no rollout {id}"))
    }

    async fn drift(&self, _rollout: RolloutId) -> anyhow::Result<u64> {
        Ok(0)
    }
}

/// A store, an engine, and one batch.
struct Bench {
    dir: tempfile::TempDir,
    records: Records,
    engine: Faulty,
    config: RolloutConfig,
    told: Mutex<Vec<Progress>>,
}

impl Bench {
    async fn new(refuses: u32, silent: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("g.db").display().to_string();
        let store = crate::store::open(&path, &StoreConfig::default(), ProcessId::generate()).await.unwrap();
        let recorder = Recorder::start(store.writer().unwrap(), 64);
        let config = EngineConfig::default();
        let inner = Process::new(&config, helper::install(dir.path()).unwrap(), "test", Arc::new(|_| true)).unwrap();
        let engine = Faulty {
            inner,
            refuses: AtomicU32::new(refuses),
            silent: AtomicU32::new(0),
            sandboxes: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        };
        // The first question is asked when the batch begins.
        engine.silent.store(silent, Ordering::SeqCst);
        let folder = dir.path().join("own/shell");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("harness.toml"), HARNESS).unwrap();
        std::fs::write(folder.join("build.sh"), "true\n").unwrap();
        Self { dir, records: Records { store, recorder }, engine, config: RolloutConfig::default(), told: Mutex::default() }
    }

    /// Runs a task with this prompt and verifier so often.
    async fn run(&self, task: &serde_json::Value, samples: u32) -> (anyhow::Result<()>, Standing) {
        let plan = Plan {
            tasks: Tasks::Inline(vec![task.clone()]),
            harnesses: vec![HarnessChoice { harness: "shell".to_owned(), ..HarnessChoice::default() }],
            samples,
            concurrency: Some(2),
            attempts: None,
            image: None,
            timeout_s: None,
            max_calls: None,
            max_tokens: None,
            policy: None,
            purpose: None,
            only: Vec::new(),
        };
        let catalog = Catalog::load(Some(&self.dir.path().join("own"))).unwrap();
        let orders = plan.orders(&catalog).unwrap();
        let kept = Kept::new(plan, None, &orders).unwrap();
        let ledger = Ledger { store: self.records.store.as_ref(), recorder: &self.records.recorder };
        let batch = BatchRun::begin(&ledger, BatchId::generate(), &kept, orders).await.unwrap();
        let artifacts = self.dir.path().join("artifacts");
        let engine = EngineConfig::default();
        let stage = Stage {
            engine: &self.engine,
            endpoint: &self.records,
            cache: self.dir.path().join("cache"),
            artifacts: artifacts.clone(),
            image: engine.base_image.clone(),
            limits: engine.limits(),
            config: self.config.clone(),
            room: Arc::new(Semaphore::new(100)),
            cancel: CancellationToken::new(),
            progress: &|progress| self.told.lock().unwrap().push(progress),
        };
        let ended = batch.run(&stage, &ledger).await;
        (ended, Standing::read(ledger.store, batch.id, &artifacts).await.unwrap())
    }

    async fn all(&self) -> Vec<Rollout> {
        self.records.store.rollouts(&RolloutFilter::default()).await.unwrap()
    }

    fn waits(&self) -> usize {
        self.told.lock().unwrap().iter().filter(|told| matches!(told, Progress::Waiting { .. })).count()
    }
}

#[tokio::test]
async fn what_fails_for_no_fault_of_its_own_is_tried_again() {
    let bench = Bench::new(2, 0).await;
    let (ended, standing) = bench.run(&json!({"id": "t", "prompt": "touch made", "verify": "test -e made"}), 1).await;
    ended.unwrap();
    let all = bench.all().await;
    let seen: Vec<_> = all.iter().map(|one| (one.outcome, one.reward(), one.index, one.run.unwrap().attempt)).collect();
    let failed = |attempt| (Some(Outcome::InfraError), None, 0, attempt);
    assert_eq!(seen, [failed(1), failed(2), (Some(Outcome::Passed), Some(1.0), 0, 3)]);
    assert!(all.iter().all(|one| one.group_id == all[0].group_id && one.group_size == Some(1)));
    assert_eq!(standing.batch.status, BatchStatus::Done);
    let summary = &standing.summaries[0];
    assert_eq!((summary.rollouts, summary.infra_retries, standing.reports.len()), (1, 2, 1));
    assert!(all[0].evidence.as_ref().unwrap()["error"].as_str().unwrap().contains("it is made up"));
}

#[tokio::test]
async fn tries_are_bounded() {
    let mut bench = Bench::new(u32::MAX, 0).await;
    bench.config.attempts = 2;
    let (ended, standing) = bench.run(&json!({"id": "t", "prompt": "true"}), 1).await;
    ended.unwrap();
    let outcomes: Vec<_> = bench.all().await.iter().map(|one| one.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::InfraError); 2]);
    assert_eq!((standing.batch.status, standing.is_whole()), (BatchStatus::Stopped, false));
    assert_eq!(standing.reports[0].outcome, Outcome::InfraError);
}

#[tokio::test]
async fn an_engine_that_is_restarted_is_waited_for() {
    let bench = Bench::new(1, 0).await;
    let task = json!({"id": "t", "prompt": "true"});
    let running = bench.run(&task, 1);
    // Silent once the first sandbox was refused.
    let silence = async {
        while bench.engine.refuses.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        bench.engine.silent.store(2, Ordering::SeqCst);
    };
    let ((ended, standing), ()) = tokio::join!(running, silence);
    ended.unwrap();
    assert_eq!((standing.batch.status, bench.waits()), (BatchStatus::Done, 2));
}

#[tokio::test]
async fn an_engine_that_stays_away_stops_the_batch() {
    let mut bench = Bench::new(1, 0).await;
    bench.config.engine_wait_s = 0;
    let task = json!({"id": "t", "prompt": "true"});
    let running = bench.run(&task, 1);
    let silence = async {
        while bench.engine.refuses.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        bench.engine.silent.store(u32::MAX, Ordering::SeqCst);
    };
    let ((ended, standing), ()) = tokio::join!(running, silence);
    assert!(ended.unwrap_err().to_string().contains("restarting"));
    assert_eq!(standing.batch.status, BatchStatus::Stopped);
}

/// A turn is given back when the harness has ended: the next one starts while this one is verified.
#[tokio::test]
async fn verifying_overlaps_with_the_next_start() {
    let bench = Bench::new(0, 0).await;
    let (ended, standing) = bench.run(&json!({"id": "t", "prompt": "sleep 0.2", "verify": "sleep 0.4"}), 8).await;
    ended.unwrap();
    assert_eq!(standing.summaries[0].passed, 8);
    let (mut running, mut verifying, mut both) = (std::collections::BTreeSet::new(), 0_u32, false);
    for told in bench.told.lock().unwrap().iter() {
        let Progress::Step { rollout, doing } = told else { continue };
        match doing.as_ref() {
            "opening" => drop(running.insert(*rollout)),
            "reading its result" => drop(running.remove(rollout)),
            "verifying" => verifying += 1,
            "clearing away" => verifying -= 1,
            _ => {}
        }
        assert!(running.len() <= 2, "no more harnesses than may");
        both |= running.len() == 2 && verifying > 0;
    }
    assert!(both, "two ran while another was verified");
    let most = bench.engine.most.load(Ordering::SeqCst);
    assert!((3..=4).contains(&most), "{most} sandboxes at once");
}

/// A small generator, so that a run can be had again.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// One life of the model below: a store with its writer.
async fn open(folder: &Path) -> (Arc<dyn Store>, Box<dyn Writer>) {
    let path = folder.join("g.db").display().to_string();
    let store = crate::store::open(&path, &StoreConfig::default(), ProcessId::generate()).await.unwrap();
    let writer = store.writer().unwrap();
    (store, writer)
}

/// A runner that does nothing but what is written down, which dies at any moment and of which two try to go on.
async fn model(seed: u64) {
    const GROUPS: usize = 3;
    const SAMPLES: u32 = 3;
    let mut draw = Draw(seed);
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut writer) = open(&dir.path().join("0")).await;
    let id = BatchId::generate();
    let new = NewBatch { id, created_at: 1, plan: json!({}), rollouts: 9 };
    assert_eq!(writer.apply(&[Write::NewBatch(Box::new(new))]), [Ok(())]);
    let group = |order: usize| format!("g{order}");
    let (mut open_now, mut begun, mut crashes): (Vec<RolloutId>, usize, usize) = (Vec::new(), 0, 0);
    loop {
        let rollouts = store.rollouts(&RolloutFilter { batch: Some(id), ..RolloutFilter::default() }).await.unwrap();
        let filled = Filled::by(&rollouts);
        let busy = |group: &str, index: u32| {
            rollouts
                .iter()
                .any(|one| one.status == RolloutStatus::Open && one.group_id.as_deref() == Some(group) && one.index == index)
        };
        let missing: Vec<_> = lineup::all(GROUPS, 1, SAMPLES)
            .filter_map(|(order, index)| Some((group(order), index, filled.next(&group(order), index)?)))
            .filter(|(group, index, _)| !busy(group, *index))
            .collect();
        if missing.is_empty() && open_now.is_empty() {
            break;
        }
        match draw.below(8) {
            0..=3 if !missing.is_empty() => {
                let (group, index, attempt) = missing[0].clone();
                let rollout = NewRollout {
                    id: RolloutId::generate(),
                    key: RolloutKey::generate(),
                    created_at: 2,
                    purpose: Purpose::Train,
                    task_id: Some("t".to_owned()),
                    group_id: Some(group),
                    group_size: Some(SAMPLES),
                    harness: None,
                    policy: None,
                    sampling: crate::call::Sampling::default(),
                    metadata: serde_json::Map::new(),
                    ttl_s: None,
                    idempotency_key: None,
                    conversation: None,
                    index: Some(index),
                    run: Some(RunOf { batch: id, attempt }),
                };
                open_now.push(rollout.id);
                begun += 1;
                assert_eq!(writer.apply(&[Write::NewRollout(Box::new(rollout))]), [Ok(())]);
            }
            4..=6 if !open_now.is_empty() => {
                let rollout_id = open_now.swap_remove(draw.below(open_now.len()));
                let outcomes = [Outcome::Passed, Outcome::Failed, Outcome::HarnessError, Outcome::InfraError, Outcome::Cancelled];
                let outcome = outcomes[draw.below(outcomes.len())];
                let finish = Finish { rollout_id, at: 3, outcome, no_reward: true, evidence: None };
                assert_eq!(writer.apply(&[Write::Finish(finish)]), [Ok(())]);
            }
            7 => {
                crashes += 1;
                let (old, next) = (dir.path().join((crashes - 1).to_string()), dir.path().join(crashes.to_string()));
                // The files as a crash leaves them; the process itself goes on with the old ones, which nobody sees.
                copy(&old, &next);
                drop((store, writer));
                let (first, second) = (open(&next).await, open(&next).await);
                let mut both = [first, second];
                let take = [Write::BatchStatus(id, BatchStatus::Running)];
                let turn = draw.below(2);
                both.swap(0, turn);
                assert_eq!(both[0].1.apply(&take), [Ok(())]);
                assert!(both[1].1.apply(&take)[0].is_err(), "two have it");
                let [winner, _loser] = both;
                (store, writer) = winner;
                open_now.clear();
            }
            _ => {}
        }
    }
    let rollouts = store.rollouts(&RolloutFilter { batch: Some(id), ..RolloutFilter::default() }).await.unwrap();
    assert_eq!(rollouts.len(), begun, "seed {seed}: none is lost");
    let mut counting: BTreeMap<(String, u32), usize> = BTreeMap::new();
    let mut attempts: BTreeMap<(String, u32, u32), usize> = BTreeMap::new();
    for one in &rollouts {
        let (group, run) = (one.group_id.clone().unwrap(), one.run.unwrap());
        *counting.entry((group.clone(), one.index)).or_default() += usize::from(summary::counts(one.outcome.unwrap()));
        *attempts.entry((group, one.index, run.attempt)).or_default() += 1;
    }
    assert!(counting.len() == 9 && counting.values().all(|count| *count == 1), "seed {seed}: {counting:?}");
    assert!(attempts.values().all(|count| *count == 1), "seed {seed}: {attempts:?}");
    let Batch { status, .. } = store.batch(id).await.unwrap().unwrap();
    assert_eq!(status, BatchStatus::Running);
}

#[tokio::test]
async fn whatever_dies_each_place_is_filled_once() {
    for seed in 1..=8 {
        model(seed).await;
    }
}
