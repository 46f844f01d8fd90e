//! Fills the places of a batch, so many at once as may be.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore};

use super::kept::group;
use super::lineup::{self, Filled, Place};
use super::{BatchRun, Ledger};
use crate::harness::driver::{Driver, Prepared, Slot, Turn, new_rollout};
use crate::harness::{Progress, Report, Stage, helper, isolation, patience, prepare, sockets, summary};
use crate::ids::RolloutId;
use crate::store::{Finish, Outcome, RolloutFilter, RunOf, Write};
use crate::telemetry::now_ms;

/// Before a rollout that failed for no fault of harness or model is tried again; each time twice as long, up to the last.
const FIRST_PAUSE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// Runs the places that are not filled; says whether all are filled now.
pub(super) async fn run(batch: &BatchRun, stage: &Stage<'_>, ledger: &Ledger<'_>) -> anyhow::Result<bool> {
    stage.engine.ready().await?;
    clear_away(stage).await?;
    let crew = Crew::new(batch, stage, ledger)?;
    isolation::ensure(stage, &crew.helper, batch.orders.iter().map(|order| order.image_or(&stage.image))).await?;
    if crew.orders.len() == 1 {
        crew.prepared(0).await.map_err(|why| anyhow::anyhow!("{why}"))?;
    }
    let filter = RolloutFilter { batch: Some(batch.id), ..RolloutFilter::default() };
    let rollouts = ledger.store.rollouts(&filter).await?;
    let filled = Filled::by(&rollouts);
    let missing: Vec<Place> = lineup::all(batch.orders.len(), batch.plan.harnesses.len(), batch.plan.samples)
        .filter_map(|(order, index)| {
            let attempt = filled.next(&crew.orders[order].group, index)?;
            Some(Place { order, index, attempt })
        })
        .collect();
    let mut unfilled = missing.len();
    // Twice as many as have a turn: the others are prepared, verified and cleared away meanwhile.
    let mut running = futures::stream::iter(missing.into_iter().map(|place| crew.fill(place))).buffer_unordered(crew.at_once * 2);
    let mut failed = None;
    // After an error the others are ended too, but in good order: their sandboxes are removed.
    while let Some(ended) = running.next().await {
        match ended {
            Ok(outcome) => unfilled -= usize::from(outcome.is_some_and(summary::counts)),
            Err(error) => {
                stage.cancel.cancel();
                failed.get_or_insert(error);
            }
        }
    }
    // A process that died while it asked for a sandbox may have got it only now.
    if failed.is_none() && !stage.cancel.is_cancelled() {
        clear_away(stage).await?;
    }
    failed.map_or(Ok(unfilled == 0), Err)
}

/// Removes what processes that died have left.
async fn clear_away(stage: &Stage<'_>) -> anyhow::Result<()> {
    let sandboxes = stage.engine.sweep().await?;
    if sandboxes > 0 {
        tracing::info!(sandboxes, "removed what a process that died had left");
    }
    let folders = sockets::sweep().await;
    if folders > 0 {
        tracing::info!(folders, "removed folders of sockets that a process that died had left");
    }
    Ok(())
}

/// Those who run a batch's rollouts.
struct Crew<'a> {
    batch: &'a BatchRun,
    stage: &'a Stage<'a>,
    ledger: &'a Ledger<'a>,
    helper: PathBuf,
    orders: Vec<Prepare<'a>>,
    at_once: usize,
    /// A permit for each harness that may run at once.
    turns: Arc<Semaphore>,
    /// Something failed since the engine last answered.
    trouble: AtomicBool,
    /// Of those who wait for the engine one asks.
    asking: Mutex<()>,
}

/// An order, prepared when its first rollout needs it.
struct Prepare<'a> {
    group: String,
    /// What it needs, or why that can't be had.
    ready: OnceCell<Result<Prepared<'a>, String>>,
}

impl<'a> Crew<'a> {
    fn new(batch: &'a BatchRun, stage: &'a Stage<'a>, ledger: &'a Ledger<'a>) -> anyhow::Result<Self> {
        let at_once = batch.plan.concurrency.unwrap_or(stage.config.concurrency).max(1);
        let prepare = |order: &'a crate::harness::Order| Prepare {
            group: group(batch.id, &order.choice, &order.task.id),
            ready: OnceCell::new(),
        };
        Ok(Self {
            batch,
            stage,
            ledger,
            helper: helper::install(&stage.cache)?,
            orders: batch.orders.iter().map(prepare).collect(),
            at_once,
            turns: Arc::new(Semaphore::new(at_once)),
            trouble: AtomicBool::new(false),
            asking: Mutex::new(()),
        })
    }

    /// What an order's rollouts need, or why there can be none.
    async fn prepared(&self, order: usize) -> Result<&Prepared<'a>, &str> {
        let Prepare { group, ready } = &self.orders[order];
        let prepare = || async {
            let prepared = prepare(self.stage, &self.batch.orders[order], group, self.helper.clone()).await;
            prepared.map_err(|error| format!("{error:#}"))
        };
        let prepared = ready.get_or_init(prepare).await.as_ref().map_err(String::as_str)?;
        prepared.unfit.get().map_or(Ok(prepared), |why| Err(why))
    }

    /// Fills a place, trying again what fails for no fault of harness or model. Gives the last try's outcome; `None` if there was
    /// none, since the batch was told to end.
    async fn fill(&self, mut place: Place) -> anyhow::Result<Option<Outcome>> {
        let tries = self.batch.plan.attempts.unwrap_or(self.stage.config.attempts).max(1);
        let mut pause = FIRST_PAUSE;
        for left in (0..tries).rev() {
            let Some(report) = self.attempt(place).await? else { return Ok(None) };
            // What can't be prepared now can't be in a moment: a batch that is resumed tries again.
            if report.outcome != Outcome::InfraError || left == 0 || self.prepared(place.order).await.is_err() {
                return Ok(Some(report.outcome));
            }
            self.trouble.store(true, Ordering::Relaxed);
            (self.stage.progress)(Progress::Retry { rollout: report.id, attempt: place.attempt + 1 });
            if self.stage.cancel.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(Some(report.outcome));
            }
            (place.attempt, pause) = (place.attempt + 1, (pause * 2).min(LAST_PAUSE));
        }
        Ok(None)
    }

    /// One try; `None` if the batch is told to end before it has begun.
    async fn attempt(&self, place: Place) -> anyhow::Result<Option<Report>> {
        let stage = self.stage;
        if stage.cancel.is_cancelled() {
            return Ok(None);
        }
        let prepared = match self.prepared(place.order).await {
            Ok(prepared) => prepared,
            Err(_) if stage.cancel.is_cancelled() => return Ok(None),
            Err(why) => return self.refuse(place, why).await.map(Some),
        };
        let Some(turn) = stage.cancel.run_until_cancelled(self.turn()).await else { return Ok(None) };
        let turn = turn?;
        if stage.cancel.is_cancelled() {
            return Ok(None);
        }
        match Driver::new(stage, prepared, self.slot(place)).await {
            Ok(driver) => {
                let batch = &self.batch.orders[place.order];
                let (rollout, harness, task_id) = (driver.id(), batch.choice.label(), batch.task.id.clone());
                let Place { index, attempt, .. } = place;
                (stage.progress)(Progress::Began { rollout, harness, task_id, index, attempt });
                driver.run(turn).await.map(Some)
            }
            Err(error) => self.refuse(place, &format!("{error:#}")).await.map(Some),
        }
    }

    fn slot(&self, place: Place) -> Slot {
        Slot { index: place.index, run: RunOf { batch: self.batch.id, attempt: place.attempt } }
    }

    /// Waits for a turn, and for an engine that answers.
    async fn turn(&self) -> anyhow::Result<Turn> {
        let turn: [OwnedSemaphorePermit; 2] =
            [Arc::clone(&self.turns).acquire_owned().await?, Arc::clone(&self.stage.room).acquire_owned().await?];
        if self.trouble.load(Ordering::Relaxed) {
            let _asking = self.asking.lock().await;
            if self.trouble.load(Ordering::Relaxed) {
                patience::answers(self.stage).await?;
                self.trouble.store(false, Ordering::Relaxed);
            }
        }
        Ok(turn)
    }

    /// Keeps a rollout that could not even begin, so that it is seen why.
    async fn refuse(&self, place: Place, why: &str) -> anyhow::Result<Report> {
        let (order, group) = (&self.batch.orders[place.order], &self.orders[place.order].group);
        let new = new_rollout(order, group, self.slot(place));
        let (rollout_id, at) = (new.id, now_ms());
        self.ledger.recorder.write(Write::NewRollout(Box::new(new))).await?;
        let evidence = Some(serde_json::json!({ "error": why }));
        let finish = Finish { rollout_id, at, outcome: Outcome::InfraError, no_reward: true, evidence };
        self.ledger.recorder.write(Write::Finish(finish)).await?;
        let report = self.report(rollout_id).await?;
        (self.stage.progress)(Progress::Ended(report.clone()));
        Ok(report)
    }

    async fn report(&self, id: RolloutId) -> anyhow::Result<Report> {
        let rollout =
            self.ledger.store.rollout(id).await?.with_context(|| format!("rollout {id} was written and is not there"))?;
        Ok(Report::of(&rollout, &self.stage.artifacts))
    }
}
