//! Puts the runner together: an engine, a server of its own, and the folders beside the store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::Engine;
use crate::harness::summary::Summary;
use crate::harness::{BatchRun, Catalog, Kept, Ledger, ModelEndpoint, Order, Plan, Report, Stage, Standing, fits};
use crate::http::{self, Http, SocketEndpoint};
use crate::ids::BatchId;
use crate::policy::SCHEME;

use super::assemble::{self, EngineArgs, PolicyArgs, StoreArgs};
use super::batch::Asked;
use super::progress::Watcher;
use super::terminal::{Paint, harmless, print};
use super::{Signals, Stop, batch, engine, harness, none_lost, readiness, remote, run, scripted, show, summary};

/// `gleaner run`.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, engine: &EngineArgs, args: run::Args) -> Result<ExitCode, Stop> {
    let asked = Asked::New(Box::new(args.plan()));
    let done = Box::pin(execute(store, policy, engine, &asked, &args.how)).await?;
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
pub(super) async fn batch(
    store: &StoreArgs,
    policy: &PolicyArgs,
    engine: &EngineArgs,
    args: batch::Args,
) -> Result<ExitCode, Stop> {
    let done = Box::pin(execute(store, policy, engine, &args.asked(), &args.how)).await?;
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
async fn execute(
    store: &StoreArgs,
    policy: &PolicyArgs,
    engine: &EngineArgs,
    asked: &Asked<'_>,
    how: &run::How,
) -> Result<Done, Stop> {
    if let Some(server) = &how.server {
        return remote::execute(server, asked, how).await.map_err(stop);
    }
    let mut config = store.config()?;
    engine.apply(&mut config);
    // Looked at before anything is started, so that a wrong name costs nothing.
    let new = match asked {
        Asked::New(plan) => Some(Ordered::new(plan, how.harnesses.as_deref()).map_err(stop)?),
        Asked::Resume { .. } => None,
    };
    policy.name(&mut config);
    let harnesses = how.harnesses.as_deref();
    if config.policies.is_empty() && calls_no_model(store, asked, new.as_ref(), harnesses).await? {
        // The proxy is made of some policy, though nothing will ask it.
        config.set_policy_url(SCHEME.to_owned());
    }
    policy.apply(&mut config)?;
    scripted::add(&mut config, how.harnesses.as_deref()).map_err(stop)?;
    let cache = harness::cache_folder()?;
    let engine = engine::connect(&config.engine, &cache).await?;
    let http = assemble::http(&config).await?;
    let app = Arc::clone(&http.app);
    let surroundings =
        Surroundings { engine: engine.as_ref(), config: &config, cache, artifacts: app.store.artifacts().root().to_owned() };
    let done = Box::pin(served(http, &surroundings, asked, new, how.harnesses.as_deref())).await;
    none_lost(http::end(&app).await)?;
    done.map_err(stop)
}

/// Whether all that is to be run is what tries tasks themselves.
async fn calls_no_model(
    store: &StoreArgs,
    asked: &Asked<'_>,
    new: Option<&Ordered>,
    harnesses: Option<&Path>,
) -> Result<bool, Stop> {
    let of = |orders: &[Order]| readiness::calling(orders).next().is_none();
    let kept = match (new, asked) {
        (Some(new), _) => return Ok(of(&new.orders)),
        (None, Asked::Resume { batch, .. }) => {
            let store = store.open().await?;
            let id = show::batch_of(store.as_ref(), batch).await.map_err(stop)?;
            Kept::read(store.as_ref(), id).await.map_err(|error| stop(error.into()))?
        }
        (None, Asked::New(_)) => return Ok(false),
    };
    let catalog = Catalog::load(harnesses.or(kept.harnesses.as_deref()))?;
    Ok(of(&kept.plan.orders(&catalog).map_err(stop)?))
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
    engine: &'a dyn Engine,
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
    let mut batch = match (new, asked) {
        (Some(Ordered { kept, orders }), _) => BatchRun::begin(&ledger, BatchId::generate(), &kept, orders).await?,
        (None, Asked::Resume { batch, force }) => {
            let id = show::batch_of(ledger.store, batch).await?;
            let kept = Kept::read(ledger.store, id).await?;
            let catalog = Catalog::load(harnesses.or(kept.harnesses.as_deref()))?;
            BatchRun::resume(&ledger, id, &catalog, *force).await?
        }
        (None, Asked::New(_)) => anyhow::bail!("gleaner's own fault: a plan that was not looked at"),
    };
    scripted::assign(surroundings.config, &mut batch.orders);
    let standing = Standing::read(ledger.store, batch.id, &surroundings.artifacts).await?;
    watcher.begin_batch(batch.id, standing.batch.rollouts, standing.filled());
    let cancel = CancellationToken::new();
    let say = |line: &str| watcher.say(line);
    let looking = readiness::look(surroundings.config, &app.policies, &batch.orders, &say);
    let running = go(&batch, &ledger, endpoint.as_ref(), surroundings, &watcher, cancel.clone());
    let running = Box::pin(readiness::beside(looking, running));
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
    images(surroundings.engine, &engine.base_image, &surroundings.cache, &batch.orders).await?;
    let concurrency = batch.plan.concurrency.unwrap_or(rollout.concurrency).max(1);
    let stage = Stage {
        engine: surroundings.engine,
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
pub(super) async fn images(engine: &dyn Engine, base: &str, cache: &Path, orders: &[Order]) -> anyhow::Result<()> {
    let only = orders.len() == 1;
    if let [order] = orders {
        fits(engine, order, base)?;
    }
    // One that the engine can't run needs no image: it says so itself.
    let orders: Vec<&Order> = orders.iter().filter(|order| fits(engine, order, base).is_ok()).collect();
    for image in orders.iter().map(|order| order.image_or(base)).collect::<BTreeSet<_>>() {
        match engine.ensure(image).await {
            Err(error) if only => return Err(error.into()),
            Err(error) => tracing::error!(image, %error, "an image can't be had; its tasks can't be run"),
            Ok(_) => {}
        }
    }
    let mut seen = BTreeSet::new();
    for order in orders.iter().filter(|order| seen.insert(&order.spec.name)) {
        let ensured = harness::ensure_builder_image(&order.harness, engine, base, cache).await;
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
    watcher.say("cancelling; ending the harnesses and clearing away what they left (once more to leave at once)");
    cancel.cancel();
    tokio::select! {
        ended = &mut running => Some(ended),
        () = signals.next() => None,
    }
}

/// `gleaner harness`.
pub(super) async fn harness(store: &StoreArgs, args: harness::Args) -> Result<ExitCode, Stop> {
    let config = store.config()?;
    // Payloads are built in containers, whatever runs harnesses.
    let docker = match args.engine() {
        harness::Need::No => None,
        harness::Need::Perhaps => engine::docker(&config.engine).await.ok(),
        harness::Need::Yes => Some(engine::docker(&config.engine).await?),
    };
    let cancel = CancellationToken::new();
    let running = harness::run(&args, docker.as_deref(), &config, &cancel);
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
