//! Runs batches while a server runs: several at once on one engine, which share the harnesses that may run at once.
//!
//! Each batch waits for its turns one behind the other in one queue ([`Stage::room`]), and none asks for more turns than there are,
//! so that a batch that came later gets its share as soon as harnesses of earlier ones end.

mod live;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Builder;

use super::digest::Digest;
use super::spec::SpecError;
use super::{
    BatchRun, Catalog, Kept, Ledger, ModelEndpoint, Order, Plan, PlanError, ResumeError, RolloutConfig, Stage, Standing,
};
use super::{TaskError, Tasks};
use crate::engine::{Engine, Limits};
use crate::ids::BatchId;
use crate::record::Recorder;
use crate::store::{Batch, BatchStatus, Store, StoreError, Write};

pub use live::{Doing, Live};

/// The engine of a server's batches, which need not be there before the first of them.
#[async_trait]
pub trait Ground: Send + Sync {
    /// The engine, connected when it is first asked for.
    async fn engine(&self) -> anyhow::Result<Arc<dyn Engine>>;

    /// Gives orders the policies that only the config knows of.
    fn assign(&self, orders: &mut [Order]);

    /// Sees to it that the engine has the images that can be had for these orders.
    async fn furnish(&self, orders: &[Order]) -> anyhow::Result<()>;
}

/// What a server's batches are run with.
pub struct Means {
    pub ground: Box<dyn Ground>,
    pub endpoint: Arc<dyn ModelEndpoint>,
    pub store: Arc<dyn Store>,
    pub recorder: Recorder,
    /// A folder of harnesses beside the built-in ones.
    pub harnesses: Option<PathBuf>,
    /// The folder of payloads and of our helper.
    pub cache: PathBuf,
    /// The image of tasks that name none.
    pub image: String,
    pub limits: Limits,
    pub config: RolloutConfig,
    /// Batches that run; awaited at the end.
    pub tasks: TaskTracker,
    /// Cancelled when the server ends: batches are stopped, and can be gone on with.
    pub draining: CancellationToken,
}

/// Why something was not done with a batch.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// What was ordered is wrong; for whoever ordered it to mend.
    #[error("{0:#}")]
    Wrong(anyhow::Error),
    #[error("the Idempotency-Key was used for batch {0} with another body")]
    KeyReused(BatchId),
    #[error("there is no batch {0}")]
    Unknown(BatchId),
    /// The batch's state does not allow it.
    #[error("{0}")]
    Conflict(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// Runs a server's batches.
pub struct Dispatcher {
    means: Means,
    /// A permit for each harness that may run at once.
    room: Arc<Semaphore>,
    running: Mutex<HashMap<BatchId, Arc<Live>>>,
    /// Why batches of this process stopped.
    faults: Mutex<HashMap<BatchId, String>>,
    /// Held while a batch is begun or taken over: two who ask at once must not both run it.
    ordering: tokio::sync::Mutex<()>,
}

impl Dispatcher {
    /// Runs none yet.
    #[must_use]
    pub fn new(means: Means) -> Self {
        let room = Arc::new(Semaphore::new(means.config.concurrency.max(1)));
        Self { means, room, running: Mutex::default(), faults: Mutex::default(), ordering: tokio::sync::Mutex::default() }
    }

    /// Begins a batch; with a `key` that was given before, gives the batch that was begun then. Says whether it is a new one.
    ///
    /// # Errors
    /// If the plan is wrong, the key was given with another one, or the batch can't be kept.
    pub async fn order(self: &Arc<Self>, plan: Plan, key: Option<&str>) -> Result<(Batch, bool), DispatchError> {
        let (kept, orders) = self.read(plan).await?;
        let _ordering = self.ordering.lock().await;
        if self.means.draining.is_cancelled() {
            return Err(DispatchError::Conflict("the server is ending; order the batch again when it is back".to_owned()));
        }
        let id = key.map_or_else(BatchId::generate, named);
        if let Some(batch) = self.means.store.batch(id).await? {
            let same = Kept::of(&batch).is_ok_and(|before| before.plan == kept.plan);
            return if same { Ok((batch, false)) } else { Err(DispatchError::KeyReused(id)) };
        }
        let run = BatchRun::begin(&self.ledger(), id, &kept, orders).await.map_err(of_keeping)?;
        self.go(run);
        Ok((self.kept(id).await?, true))
    }

    /// Goes on with a batch that stopped. `force` goes on although its tasks or harnesses are not what they were.
    ///
    /// # Errors
    /// If it runs, has ended, or can't be gone on with.
    pub async fn resume(self: &Arc<Self>, id: BatchId, force: bool) -> Result<Batch, DispatchError> {
        let _ordering = self.ordering.lock().await;
        let conflict = |what: &str| Err(DispatchError::Conflict(format!("batch {id} {what}")));
        match self.kept(id).await?.status {
            BatchStatus::Stopped => {}
            BatchStatus::Running => return conflict("is running"),
            BatchStatus::Cancelled => return conflict("was cancelled; order another one"),
            BatchStatus::Done => return conflict("is done: all its rollouts have ended"),
        }
        let kept = Kept::read(self.means.store.as_ref(), id).await.map_err(of_resuming)?;
        let catalog = self.catalog(kept.harnesses.as_deref()).await?;
        let run = BatchRun::resume(&self.ledger(), id, &catalog, force).await.map_err(of_keeping)?;
        self.go(run);
        self.kept(id).await
    }

    /// Goes on with the batches that a server ran before it ended or died.
    pub async fn resume_stopped(self: &Arc<Self>) {
        let mut after = None;
        loop {
            let page = match self.means.store.batches(after, PAGE).await {
                Ok(page) => page,
                Err(error) => return tracing::error!(%error, "could not look for batches to go on with"),
            };
            let Some(last) = page.last() else { return };
            after = Some(last.id);
            for batch in page.iter().filter(|batch| batch.status == BatchStatus::Stopped) {
                // One that can't be read is told of by whoever asks for it.
                let kept = Kept::read(self.means.store.as_ref(), batch.id).await;
                if !kept.is_ok_and(|kept| kept.served) {
                    continue;
                }
                match self.resume(batch.id, false).await {
                    Ok(_) => tracing::info!(batch.id = %batch.id, "going on with a batch"),
                    Err(error) => {
                        tracing::error!(batch.id = %batch.id, %error, "could not go on with a batch");
                        lock(&self.faults).insert(batch.id, error.to_string());
                    }
                }
            }
        }
    }

    /// Cancels a batch for good, and waits until its rollouts have ended and their sandboxes are removed.
    ///
    /// # Errors
    /// If it is done, or another process runs it.
    pub async fn cancel(&self, id: BatchId) -> Result<Batch, DispatchError> {
        let batch = self.kept(id).await?;
        let live = self.live(id);
        match (batch.status, &live) {
            (BatchStatus::Cancelled, None) => return Ok(batch),
            (BatchStatus::Done, None) => {
                return Err(DispatchError::Conflict(format!("batch {id} is done: all its rollouts have ended")));
            }
            (BatchStatus::Running, None) => {
                return Err(DispatchError::Conflict(format!("batch {id} is run by another gleaner process; end it there")));
            }
            _ => {}
        }
        // First, so that it is not gone on with, whenever this process dies.
        self.means.recorder.write(Write::BatchStatus(id, BatchStatus::Cancelled)).await?;
        if let Some(live) = live {
            live.cancel.cancel();
            live.ended.cancelled().await;
        }
        self.kept(id).await
    }

    /// A batch as it stands, and what this process does for it.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub async fn standing(&self, id: BatchId) -> Result<Standing, DispatchError> {
        Standing::read(self.means.store.as_ref(), id, self.means.store.artifacts().root()).await.map_err(of_resuming)
    }

    /// What this process does for a batch that it runs.
    #[must_use]
    pub fn live(&self, id: BatchId) -> Option<Arc<Live>> {
        lock(&self.running).get(&id).cloned()
    }

    /// Why a batch stopped that this process ran.
    #[must_use]
    pub fn fault(&self, id: BatchId) -> Option<String> {
        lock(&self.faults).get(&id).cloned()
    }

    async fn kept(&self, id: BatchId) -> Result<Batch, DispatchError> {
        self.means.store.batch(id).await?.ok_or(DispatchError::Unknown(id))
    }

    fn ledger(&self) -> Ledger<'_> {
        Ledger { store: self.means.store.as_ref(), recorder: &self.means.recorder }
    }

    /// What a plan comes to, by the files that it names.
    async fn read(&self, plan: Plan) -> Result<(Kept, Vec<Order>), DispatchError> {
        if let Tasks::Path(path) = &plan.tasks
            && !Path::new(path).is_absolute()
        {
            let why =
                format!("tasks: {path:?} is not absolute; name a path of the server's machine, or give the tasks themselves");
            return Err(DispatchError::Wrong(anyhow::anyhow!(why)));
        }
        let catalog = self.catalog(self.means.harnesses.as_deref()).await?;
        let folder = self.means.harnesses.clone();
        blocking(move || {
            let orders = plan.orders(&catalog).map_err(of_plan)?;
            let mut kept = Kept::new(plan, folder.as_deref(), &orders).map_err(|error| DispatchError::Failed(error.into()))?;
            kept.served = true;
            Ok((kept, orders))
        })
        .await
    }

    async fn catalog(&self, folder: Option<&Path>) -> Result<Catalog, DispatchError> {
        let folder = folder.map(Path::to_owned);
        blocking(move || Catalog::load(folder.as_deref()).map_err(|error| DispatchError::Failed(error.into()))).await
    }

    /// Runs a batch to its end, beside whoever asked for it.
    fn go(self: &Arc<Self>, mut run: BatchRun) {
        let id = run.id;
        let live = Arc::new(Live::new(self.means.draining.child_token()));
        lock(&self.running).insert(id, Arc::clone(&live));
        lock(&self.faults).remove(&id);
        // More would be no faster, and would take the turns of others.
        let most = self.means.config.concurrency.max(1);
        run.plan.concurrency = Some(run.plan.concurrency.unwrap_or(most).min(most));
        self.means.ground.assign(&mut run.orders);
        let dispatcher = Arc::clone(self);
        self.means.tasks.spawn(async move {
            if let Err(error) = dispatcher.run(&run, &live).await {
                tracing::error!(batch.id = %id, error = format!("{error:#}"), "a batch stopped");
                lock(&dispatcher.faults).insert(id, format!("{error:#}"));
            }
            lock(&dispatcher.running).remove(&id);
            live.ended.cancel();
        });
    }

    async fn run(&self, run: &BatchRun, live: &Live) -> anyhow::Result<()> {
        let means = &self.means;
        let engine = match self.engine_for(run).await {
            Ok(engine) => engine,
            Err(error) => {
                // Otherwise it would count as running for as long as this process lives.
                means.recorder.write(Write::BatchStatus(run.id, BatchStatus::Stopped)).await?;
                return Err(error);
            }
        };
        let progress = |progress| live.tell(progress);
        let stage = Stage {
            engine: engine.as_ref(),
            endpoint: means.endpoint.as_ref(),
            cache: means.cache.clone(),
            artifacts: means.store.artifacts().root().to_owned(),
            image: means.image.clone(),
            limits: means.limits,
            config: means.config.clone(),
            room: Arc::clone(&self.room),
            cancel: live.cancel.clone(),
            progress: &progress,
        };
        run.run(&stage, &self.ledger()).await
    }

    async fn engine_for(&self, run: &BatchRun) -> anyhow::Result<Arc<dyn Engine>> {
        let engine = self.means.ground.engine().await?;
        self.means.ground.furnish(&run.orders).await?;
        Ok(engine)
    }
}

/// Batches that are looked at together.
const PAGE: u32 = 20;

/// The id of the batch that was ordered with this key: always the same.
fn named(key: &str) -> BatchId {
    let half = |salt: &str| Digest::default().part(salt.as_bytes()).part(key.as_bytes()).get().to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half("batch"));
    bytes[8..].copy_from_slice(&half("key"));
    BatchId(Builder::from_custom_bytes(bytes).into_uuid())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads files on a thread that may wait for them.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, DispatchError> + Send + 'static,
) -> Result<T, DispatchError> {
    tokio::task::spawn_blocking(read).await.map_err(|error| DispatchError::Failed(error.into()))?
}

/// What is wrong with a plan, with the field's name.
fn of_plan(error: anyhow::Error) -> DispatchError {
    if error.is::<TaskError>() {
        DispatchError::Wrong(error.context("tasks"))
    } else if error.is::<SpecError>() {
        DispatchError::Wrong(error.context("harnesses"))
    } else if error.is::<PlanError>() {
        DispatchError::Wrong(error)
    } else {
        DispatchError::Failed(error)
    }
}

fn of_keeping(error: anyhow::Error) -> DispatchError {
    match error.downcast::<ResumeError>() {
        Ok(error) => of_resuming(error),
        Err(error) => error.downcast::<StoreError>().map_or_else(of_plan, DispatchError::Store),
    }
}

fn of_resuming(error: ResumeError) -> DispatchError {
    match error {
        ResumeError::Unknown(id, _) => DispatchError::Unknown(id),
        ResumeError::Changed { id, what } => DispatchError::Conflict(format!(
            "batch {id} was ordered with other things than are there now: {what}; give `force` to go on with what is there now"
        )),
        ResumeError::Store(error) => DispatchError::Store(error),
        error @ ResumeError::Unreadable(..) => DispatchError::Conflict(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_batch() {
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
        assert_eq!(named("a").0.get_version_num(), 8);
    }
}
