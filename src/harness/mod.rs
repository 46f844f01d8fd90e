//! Runs unmodified harnesses in sandboxes: a harness is data ([`spec`]), one rollout a pure state machine ([`run`]) that a
//! driver carries out on an [`Engine`], and its model calls go to a [`ModelEndpoint`] handed in from above.

mod artifacts;
mod baseline;
mod catalog;
mod choice;
mod config;
mod control;
mod driver;
mod endpoint;
mod fit;
pub mod helper;
mod image;
mod lock;
mod outcome;
mod output;
mod payload;
mod plan;
mod rewards;
pub mod run;
mod sockets;
pub mod spec;
pub mod task;
mod template;
mod testlog;

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Limits};
use crate::ids::{BatchId, RolloutId};
use crate::store::{Outcome, Purpose, RunOf};
use driver::{Driver, Prepared, Slot};
use spec::Spec;

pub use baseline::Baseline;
pub use catalog::{Catalog, Harness};
pub use choice::Choice;
pub use config::RolloutConfig;
pub use endpoint::{ModelEndpoint, Terms};
pub use fit::fits;
pub use outcome::matches_pattern;
pub use payload::{Builder, PAYLOAD, PayloadError};
pub use plan::{HarnessChoice, Plan, Tasks};
pub use task::{Task, TaskError, TaskImage};

/// Where rollouts run and what they have there.
pub struct Stage<'a> {
    pub engine: &'a dyn Engine,
    pub endpoint: &'a dyn ModelEndpoint,
    /// The folder of payloads and of our helper; it can be made anew.
    pub cache: PathBuf,
    /// Each rollout's output, result and evidence, in a folder of its id.
    pub artifacts: PathBuf,
    /// The image of tasks that name none, and in which payloads are built.
    pub image: String,
    /// What each sandbox may use, where its task does not say.
    pub limits: Limits,
    pub config: RolloutConfig,
    /// Ends every rollout as cancelled.
    pub cancel: CancellationToken,
    /// Told what goes on.
    pub progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// Runs of one harness on one task.
#[derive(Clone, Debug)]
pub struct Order {
    pub harness: Harness,
    /// The harness's, with its variant, wire and parameters chosen ([`Spec::with`]).
    pub spec: Spec,
    pub variant: Option<String>,
    pub task: Task,
    /// Rollouts; more than one are a group.
    pub samples: u32,
    /// Before the task's.
    pub image: Option<String>,
    /// Before the task's.
    pub timeout: Option<Duration>,
    /// The policy that answers; the one that calls go to by themselves if `None`.
    pub policy: Option<String>,
    /// Training for groups, else recording, if `None`.
    pub purpose: Option<Purpose>,
}

impl Order {
    /// The image that its sandboxes are of; `default` if neither user nor task names one.
    #[must_use]
    pub fn image_or<'a>(&'a self, default: &'a str) -> &'a str {
        match (&self.image, &self.task.image) {
            (Some(image), _) | (None, TaskImage::Named(image)) => image,
            (None, TaskImage::Default | TaskImage::Built(_)) => default,
        }
    }
}

/// What goes on, for whoever watches.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A payload is being built: what its build printed.
    Building { harness: String, line: String },
    /// A rollout goes on to this.
    Step { rollout: RolloutId, doing: &'static str },
    /// A rollout has ended.
    Ended(Report),
}

/// How a rollout ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub id: RolloutId,
    pub harness: String,
    pub task_id: String,
    pub group: Option<String>,
    /// Its place in its group.
    pub index: u32,
    pub outcome: Outcome,
    pub reward: Option<f64>,
    pub calls: u64,
    /// Tokens sampled.
    pub tokens: u64,
    /// Places where a prompt parts from an earlier reply that reads the same.
    pub drift: u64,
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// The folder of its output, result and evidence.
    pub artifacts: PathBuf,
}

/// Runs every sample of every order, so many at once as the config says. Builds payloads that are missing first.
///
/// # Errors
/// If the engine does not answer, an image is missing, a payload can't be built, or a record can't be kept. A rollout that goes
/// wrong is no error: its report says so. Of those that had not begun when they were cancelled there is no report.
pub async fn run_all(stage: &Stage<'_>, orders: &[Order]) -> anyhow::Result<Vec<Report>> {
    stage.engine.ready().await?;
    let swept = stage.engine.sweep().await?;
    if swept > 0 {
        tracing::info!(sandboxes = swept, "removed what a process that died had left");
    }
    let folders = sockets::sweep().await;
    if folders > 0 {
        tracing::info!(folders, "removed folders of sockets that a process that died had left");
    }
    let helper = helper::install(&stage.cache)?;
    let mut prepared = Vec::with_capacity(orders.len());
    for order in orders {
        prepared.push(prepare(stage, order, helper.clone()).await?);
    }
    let rollouts = prepared.iter().flat_map(|prepared| (0..prepared.order.samples).map(move |index| (prepared, index)));
    let batch = BatchId::generate();
    let running = rollouts.map(|(prepared, index)| async move {
        if stage.cancel.is_cancelled() {
            return Ok(None);
        }
        Driver::new(stage, prepared, Slot { index, run: RunOf { batch, attempt: 1 } }).await?.run().await.map(Some)
    });
    let mut running = futures::stream::iter(running).buffered(stage.config.concurrency.max(1));
    let mut reports = Vec::new();
    let mut failed = None;
    // After an error the others are ended too, but in good order: their sandboxes are removed.
    while let Some(ended) = running.next().await {
        match ended {
            Ok(report) => reports.extend(report),
            Err(error) => {
                stage.cancel.cancel();
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(reports), Err)
}

async fn prepare<'a>(stage: &Stage<'_>, order: &'a Order, helper: PathBuf) -> anyhow::Result<Prepared<'a>> {
    fits(stage.engine, order, &stage.image)?;
    let (image, facts) = image::ready(stage, order).await?;
    let name = order.spec.name.clone();
    let tell = |line: &str| (stage.progress)(Progress::Building { harness: name.clone(), line: line.to_owned() });
    let builder = Builder { cache: &stage.cache, image: &stage.image, progress: &tell, cancel: &stage.cancel };
    let payload = match order.harness.baseline {
        Some(_) => None,
        None => Some(builder.ready(&order.harness).await?),
    };
    let by_task = order.task.needs.timeout_s.or(order.spec.run.timeout_s).map(Duration::from_secs);
    let timeout = order.timeout.or(by_task).unwrap_or(Duration::from_secs(stage.config.timeout_s));
    let group = (order.samples > 1).then(|| (RolloutId::generate().to_string(), order.samples));
    Ok(Prepared { order, image, facts, payload, helper, group, timeout, limits: limits(stage.limits, &order.task.needs) })
}

/// What a sandbox may use: as its task says, else as the config does.
fn limits(config: Limits, needs: &task::Needs) -> Limits {
    Limits {
        cpus: needs.cpus.unwrap_or(config.cpus),
        memory_bytes: needs.memory_bytes.unwrap_or(config.memory_bytes),
        pids: config.pids,
        disk_bytes: needs.disk_bytes.or(config.disk_bytes),
    }
}
