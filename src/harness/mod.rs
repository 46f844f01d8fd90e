//! Runs unmodified harnesses in sandboxes: a harness is data ([`spec`]), one rollout a pure state machine ([`run`]) that a
//! driver carries out on an [`Engine`], and its model calls go to a [`ModelEndpoint`] handed in from above.

mod artifacts;
mod baseline;
mod batch;
mod catalog;
mod check;
mod choice;
mod config;
mod control;
mod digest;
mod dispatch;
mod driver;
mod endpoint;
mod fit;
pub mod helper;
mod image;
pub mod isolation;
mod lock;
mod outcome;
mod output;
mod patience;
mod payload;
mod plan;
mod rewards;
pub mod run;
mod sockets;
pub mod spec;
pub mod summary;
pub mod task;
mod template;
mod testlog;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Limits};
use crate::ids::RolloutId;
use crate::store::{Outcome, Purpose, Rollout};
use driver::Prepared;
use spec::Spec;

pub use baseline::Baseline;
pub use batch::{BatchRun, Kept, Ledger, ResumeError, Standing};
pub use catalog::{Catalog, Harness};
pub use check::CheckSpec;
pub use choice::Choice;
pub use config::RolloutConfig;
pub use dispatch::{DispatchError, Dispatcher, Doing, Ground, Live, Means};
pub use endpoint::{ModelEndpoint, Served, Terms};
pub use fit::fits;
pub use outcome::matches_pattern;
pub use payload::{Builder, PAYLOAD, PayloadError};
pub use plan::{HarnessChoice, Plan, PlanError, Tasks};
pub use sockets::try_out as try_sockets;
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
    /// A permit for each harness that may run at once, over all batches that share it.
    pub room: Arc<Semaphore>,
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
    /// How that was chosen.
    pub choice: HarnessChoice,
    pub task: Task,
    /// Rollouts, which are a group.
    pub samples: u32,
    /// Before the task's.
    pub image: Option<String>,
    /// Before the task's.
    pub timeout: Option<Duration>,
    /// Calls that each rollout may make, before the harness's own bound.
    pub max_calls: Option<u64>,
    /// Tokens that each rollout may sample, before the harness's own bound.
    pub max_tokens: Option<u64>,
    /// The policy that answers; the one that calls go to by themselves if `None`.
    pub policy: Option<String>,
    /// Training if `None`.
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
    /// A rollout begins.
    Began {
        rollout: RolloutId,
        /// The harness as it was chosen ([`HarnessChoice::label`]).
        harness: String,
        task_id: String,
        /// Its place in its group.
        index: u32,
        /// Which try of that place it is, from 1.
        attempt: u32,
    },
    /// A rollout goes on to this.
    Step { rollout: RolloutId, doing: Cow<'static, str> },
    /// A rollout has ended.
    Ended(Report),
    /// That rollout ended for no fault of harness or model; another one takes its place.
    Retry { rollout: RolloutId, attempt: u32 },
    /// The engine does not answer, and is waited for.
    Waiting { why: String },
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

impl Report {
    /// What is kept of a rollout that has ended; `artifacts` is the folder of all rollouts' artifacts.
    #[must_use]
    pub fn of(rollout: &Rollout, artifacts: &Path) -> Self {
        let evidence = |name: &str| rollout.evidence.as_ref().and_then(|evidence| evidence.get(name));
        let ms = rollout.ended_at.unwrap_or(rollout.created_at).saturating_sub(rollout.created_at);
        Self {
            id: rollout.id,
            harness: rollout.harness.clone().unwrap_or_default(),
            task_id: rollout.task_id.clone().unwrap_or_default(),
            group: rollout.group_id.clone(),
            index: rollout.index,
            outcome: rollout.outcome.unwrap_or(Outcome::Cancelled),
            reward: rollout.reward(),
            calls: rollout.calls,
            tokens: rollout.tokens,
            drift: evidence(DRIFT).and_then(serde_json::Value::as_u64).unwrap_or_default(),
            ms: u64::try_from(ms).unwrap_or_default(),
            error: evidence(ERROR).and_then(|error| error.as_str().map(str::to_owned)),
            artifacts: artifacts.join(rollout.id.to_string()),
        }
    }
}

/// What evidence names the error that a rollout ended with.
const ERROR: &str = "error";
/// What evidence names the count of its drift.
const DRIFT: &str = "drift";

async fn prepare<'a>(stage: &Stage<'_>, order: &'a Order, group: &str, helper: PathBuf) -> anyhow::Result<Prepared<'a>> {
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
    let (limits, terms) = (limits(stage.limits, &order.task.needs), terms(&stage.config, order));
    Ok(Prepared { order, image, facts, payload, helper, group: group.to_owned(), timeout, limits, terms, unfit: OnceLock::new() })
}

/// On which terms an order's model calls are served: as its user says, else its harness, else the config.
fn terms(config: &RolloutConfig, order: &Order) -> Terms {
    let run = &order.spec.run;
    Terms {
        signature: order.spec.signature.clone(),
        max_calls: order.max_calls.or(run.max_calls).or(Some(config.max_calls)),
        max_tokens: order.max_tokens.or(run.max_tokens).or(Some(config.max_tokens)),
    }
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
