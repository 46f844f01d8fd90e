//! Puts the runner together: an engine, a server of its own, and the folders beside the store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::{Docker, Engine, base_image, owner};
use crate::harness::summary::Summary;
use crate::harness::{
    BatchRun, Catalog, Dispatcher, Ground, Kept, Ledger, Means, ModelEndpoint, Order, Plan, Report, Stage, Standing,
};
use crate::http::{self, Batches, Http, SocketEndpoint};
use crate::ids::BatchId;

use super::assemble::{self, PolicyArgs, StoreArgs};
use super::batch::Asked;
use super::progress::Watcher;
use super::terminal::{Paint, harmless, print};
use super::{Signals, Stop, batch, harness, remote, run, show, summary};

/// `gleaner run`.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, args: run::Args) -> Result<ExitCode, Stop> {
    let asked = Asked::New(Box::new(args.plan()));
    let done = execute(store, policy, &asked, &args.how).await?;
    for report in &done.reports {
        if let Some(error) = &report.error {
            let id = report.id;
            tracing::error!(rollout.id = %id, "{}; what it printed is in {}", harmless(error), report.artifacts.display());
        }
    }
    let reports = &done.reports;
    let line = || format!("{}\n", json!({ "rollouts": run::rows(reports) }));
    print(&if args.how.json { line() } else { run::rendered(reports, Paint::of_stdout()) })?;
    Ok(done.code())
}

/// `gleaner batch`.
pub(super) async fn batch(store: &StoreArgs, policy: &PolicyArgs, args: batch::Args) -> Result<ExitCode, Stop> {
    let done = execute(store, policy, &args.asked(), &args.how).await?;
    let Done { reports, summaries, .. } = &done;
    let line = || format!("{}\n", json!({ "rollouts": run::rows(reports), "summary": summaries, "batch": done.id }));
    print(&if args.how.json { line() } else { summary::rendered(summaries, Paint::of_stdout()) })?;
    Ok(done.code())
}

/// What became of a batch.
pub(super) struct Done {
    pub id: BatchId,
    /// Of each sample the rollout that counts.
    pub reports: Vec<Report>,
    pub summaries: Vec<Summary>,
    /// Every sample has one.
    pub whole: bool,
    pub cancelled: bool,
}

impl Done {
    fn code(&self) -> ExitCode {
        let well = self.reports.iter().all(|report| run::ended_by_itself(report.outcome));
        let all = !self.cancelled && self.whole && well;
        if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Does what was asked, to its end or to Ctrl-C.
async fn execute(store: &StoreArgs, policy: &PolicyArgs, asked: &Asked<'_>, how: &run::How) -> Result<Done, Stop> {
    if let Some(server) = &how.server {
        return remote::execute(server, asked, how).await.map_err(stop);
    }
    let mut config = store.config()?;
    // Looked at before anything is started, so that a wrong name costs nothing.
    let new = match asked {
        Asked::New(plan) => Some(Ordered::new(plan, how.harnesses.as_deref()).map_err(stop)?),
        Asked::Resume { .. } => None,
    };
    policy.apply(&mut config)?;
    let docker = docker(&config).await?;
    let http = assemble::http(&config).await?;
    let app = Arc::clone(&http.app);
    let surroundings = Surroundings {
        docker: &docker,
        config: &config,
        cache: harness::cache_folder()?,
        artifacts: app.store.artifacts().root().to_owned(),
    };
    let done = served(http, &surroundings, asked, new, how.harnesses.as_deref()).await;
    let lost = http::end(&app).await;
    if lost > 0 {
        return Err(Stop::Failed(anyhow::anyhow!("{lost} records could not be stored before the end")));
    }
    done.map_err(stop)
}

fn stop(error: anyhow::Error) -> Stop {
    if run::is_usage(&error) { Stop::Usage(error) } else { Stop::Failed(error) }
}

/// A new batch, not kept yet.
struct Ordered {
    kept: Kept,
    orders: Vec<Order>,
}

impl Ordered {
    fn new(plan: &Plan, harnesses: Option<&Path>) -> anyhow::Result<Self> {
        let orders = plan.orders(&Catalog::load(harnesses)?)?;
        Ok(Self { kept: Kept::new(plan.clone(), harnesses, &orders)?, orders })
    }
}

/// Where a batch runs.
struct Surroundings<'a> {
    docker: &'a Docker,
    config: &'a Config,
    /// Where payloads and our helper are kept; see [`harness::cache_folder`].
    cache: PathBuf,
    artifacts: PathBuf,
}

async fn served(
    http: Http,
    surroundings: &Surroundings<'_>,
    asked: &Asked<'_>,
    new: Option<Ordered>,
    harnesses: Option<&Path>,
) -> anyhow::Result<Done> {
    let app = Arc::clone(&http.app);
    let ledger = Ledger { store: app.store.as_ref(), recorder: &app.recorder };
    let endpoint: Arc<dyn ModelEndpoint> = Arc::new(SocketEndpoint::new(http));
    let by = Arc::clone(&endpoint);
    let watcher = Watcher::new(Arc::new(move |rollout| by.turns(rollout)));
    let batch = match (new, asked) {
        (Some(Ordered { kept, orders }), _) => BatchRun::begin(&ledger, BatchId::generate(), &kept, orders).await?,
        (None, Asked::Resume { batch, force }) => {
            let id = show::batch_of(ledger.store, batch).await?;
            let kept = Kept::read(ledger.store, id).await?;
            let catalog = Catalog::load(harnesses.or(kept.harnesses.as_deref()))?;
            BatchRun::resume(&ledger, id, &catalog, *force).await?
        }
        (None, Asked::New(_)) => anyhow::bail!("gleaner's own fault: a plan that was not looked at"),
    };
    let standing = Standing::read(ledger.store, batch.id, &surroundings.artifacts).await?;
    watcher.begin(standing.batch.rollouts, standing.filled());
    let cancel = CancellationToken::new();
    let running = go(&batch, &ledger, endpoint.as_ref(), surroundings, &watcher, cancel.clone());
    let ended = until_signals(running, &watcher, &cancel).await;
    watcher.done();
    let standing = Standing::read(ledger.store, batch.id, &surroundings.artifacts).await?;
    if !standing.is_whole() && (batch.orders.len() > 1 || batch.plan.samples > 1) {
        let id = batch.id;
        watcher.say(&format!(
            "batch {id} is not whole; go on with: gleaner batch --resume {id} (and the same --policy, --config, --database)"
        ));
    }
    ended.unwrap_or(Ok(()))?;
    let whole = standing.is_whole();
    let Standing { reports, summaries, .. } = standing;
    Ok(Done { id: batch.id, reports, summaries, whole, cancelled: cancel.is_cancelled() })
}

async fn go(
    batch: &BatchRun,
    ledger: &Ledger<'_>,
    endpoint: &dyn ModelEndpoint,
    surroundings: &Surroundings<'_>,
    watcher: &Watcher,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    let Config { engine, rollout, .. } = surroundings.config;
    images(surroundings.docker, &engine.base_image, &surroundings.cache, &batch.orders).await?;
    let concurrency = batch.plan.concurrency.unwrap_or(rollout.concurrency).max(1);
    let stage = Stage {
        engine: surroundings.docker,
        endpoint,
        cache: surroundings.cache.clone(),
        artifacts: surroundings.artifacts.clone(),
        image: engine.base_image.clone(),
        limits: engine.limits(),
        config: rollout.clone(),
        room: Arc::new(Semaphore::new(concurrency)),
        cancel,
        progress: &|progress| watcher.tell(progress),
    };
    batch.run(&stage, ledger).await
}

/// Sees to the images that are needed. One that can't be had fails its own rollouts, unless there are no others.
async fn images(docker: &Docker, base: &str, cache: &Path, orders: &[Order]) -> anyhow::Result<()> {
    let only = orders.len() == 1;
    for image in orders.iter().map(|order| order.image_or(base)).collect::<BTreeSet<_>>() {
        match base_image::ensure(docker, image).await {
            Err(error) if only => return Err(error.into()),
            Err(error) => tracing::error!(image, %error, "an image can't be had; its tasks can't be run"),
            Ok(_) => {}
        }
    }
    let mut seen = BTreeSet::new();
    for order in orders.iter().filter(|order| seen.insert(&order.spec.name)) {
        let ensured = harness::ensure_builder_image(&order.harness, docker, base, cache).await;
        match ensured {
            Err(error) if only => return Err(error),
            Err(error) => tracing::error!(harness = order.spec.name, "{error:#}; it can't be run"),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Waits for the rollouts. At the first signal they are told to end, and waited for still; at the second they are left (`None`):
/// what they leave is cleared away by the next run.
async fn until_signals<T>(running: impl Future<Output = T>, watcher: &Watcher, cancel: &CancellationToken) -> Option<T> {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::warn!(%error, "signals can't be waited for");
            return Some(running.await);
        }
    };
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return Some(ended),
        () = signals.next() => {}
    }
    watcher.say("cancelling; removing the containers (once more to leave at once)");
    cancel.cancel();
    tokio::select! {
        ended = &mut running => Some(ended),
        () = signals.next() => None,
    }
}

/// Has a server run batches as well. Those that one ran before are gone on with, if the config says so.
pub(super) async fn dispatching(config: &Config, http: Http, harnesses: Option<PathBuf>) -> Http {
    let app = Arc::clone(&http.app);
    let cache = match harness::cache_folder() {
        Ok(cache) => cache,
        Err(error) => {
            tracing::warn!("no batches can be run: {error:#}");
            return http;
        }
    };
    let ground = ServerGround { config: config.clone(), cache: cache.clone(), docker: OnceCell::new() };
    let dispatcher = Arc::new(Dispatcher::new(Means {
        ground: Box::new(ground),
        endpoint: Arc::new(SocketEndpoint::new(http.clone())),
        store: Arc::clone(&app.store),
        recorder: app.recorder.clone(),
        harnesses,
        cache,
        image: config.engine.base_image.clone(),
        limits: config.engine.limits(),
        config: config.rollout.clone(),
        tasks: app.tasks.clone(),
        draining: app.draining.clone(),
    }));
    if config.rollout.resume {
        dispatcher.resume_stopped().await;
    }
    Http { batches: Batches(Some(dispatcher)), ..http }
}

/// The engine of a server's batches.
struct ServerGround {
    config: Config,
    cache: PathBuf,
    docker: OnceCell<Arc<Docker>>,
}

impl ServerGround {
    async fn docker(&self) -> anyhow::Result<&Arc<Docker>> {
        let connect = || async { connect(&self.config).await.map(Arc::new) };
        self.docker.get_or_try_init(connect).await
    }
}

#[async_trait]
impl Ground for ServerGround {
    async fn engine(&self) -> anyhow::Result<Arc<dyn Engine>> {
        let docker: Arc<Docker> = Arc::clone(self.docker().await?);
        Ok(docker)
    }

    async fn furnish(&self, orders: &[Order]) -> anyhow::Result<()> {
        images(self.docker().await?, &self.config.engine.base_image, &self.cache, orders).await
    }
}

/// `gleaner harness`.
pub(super) async fn harness(store: &StoreArgs, args: harness::Args) -> Result<ExitCode, Stop> {
    let config = store.config()?;
    let docker = if args.needs_engine() { docker(&config).await.ok() } else { None };
    let cancel = CancellationToken::new();
    let running = harness::run(&args, docker.as_ref(), &config.engine.base_image, &cancel);
    tokio::pin!(running);
    let asked = super::asked_to_end()?;
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = asked => {
            cancel.cancel();
            running.await
        }
    };
    ended.map_err(stop)
}

async fn docker(config: &Config) -> Result<Docker, Stop> {
    Ok(connect(config).await?)
}

async fn connect(config: &Config) -> anyhow::Result<Docker> {
    let name = owner::current().context("naming this process for its sandboxes")?;
    Ok(Docker::connect(&config.engine, &name, Arc::new(owner::may_live)).await?)
}
