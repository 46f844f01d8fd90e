//! Carries out one rollout: does on the engine what [`super::run`] says, and tells it what came of it.

mod command;
mod disk;
mod git;
mod keep;
mod patch;
mod prepare;
mod probe;
mod room;
mod verify;
mod wait;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::artifacts::{Artifacts, tail};
use super::baseline::Baseline;
use super::control::{Control, ControlListener};
use super::endpoint::Terms;
use super::payload::PAYLOAD;
use super::run::{Action, Event, Exit, Rewards, Run, Verdict};
use super::sockets::{self, SocketFolder};
use super::task::User;
use super::template::{Launch, Variables};
use super::{DRIFT, ERROR, Order, Progress, Report, Stage, patience};
use crate::engine::{EngineError, ExecResult, ExecSpec, ImageFacts, Limits, Network, Places, SandboxId};
use crate::ids::{RolloutId, RolloutKey};
use crate::store::{Finish, NewRollout, Purpose, Reward, Rollout, RunOf};
use crate::telemetry::now_ms;
use git::Base;

/// Where our own helper is in a sandbox.
const INIT: &str = "/opt/gleaner/init";
/// Where the rollout's sockets are in a sandbox.
const SOCKETS: &str = "/run/gleaner";
/// Between asking a harness to end at its deadline, and ending it.
const GRACE: Duration = Duration::from_secs(5);
/// How long a sandbox may take to be ready, and our helper's commands to run, on a loaded machine.
const READY: Duration = Duration::from_mins(2);

/// What a rollout has from its order, made once for all its samples.
pub(super) struct Prepared<'a> {
    pub order: &'a Order,
    pub image: String,
    pub facts: ImageFacts,
    /// None of what is no harness.
    pub payload: Option<PathBuf>,
    pub helper: PathBuf,
    /// The group of its rollouts.
    pub group: String,
    pub timeout: Duration,
    pub limits: Limits,
    /// On which its model calls are served.
    pub terms: Terms,
    /// Why its task can't be run in its image, once a rollout has found out: no other one is tried.
    pub unfit: OnceLock<String>,
}

/// Which of its order's rollouts one is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub index: u32,
    pub run: RunOf,
}

/// The right to run a harness: given back once it has ended, so that the next one starts while this one is verified.
pub(super) type Turn = [OwnedSemaphorePermit; 2];

/// A rollout to be kept, of a group that has so many as the order.
pub(super) fn new_rollout(order: &Order, group: &str, slot: Slot) -> NewRollout {
    // A task's own solution has nothing to train on.
    let usual = if order.harness.baseline.is_some() { Purpose::Eval } else { Purpose::Train };
    NewRollout {
        id: RolloutId::generate(),
        key: RolloutKey::generate(),
        created_at: now_ms(),
        purpose: order.purpose.unwrap_or(usual),
        task_id: Some(order.task.id.clone()),
        group_id: Some(group.to_owned()),
        group_size: Some(order.samples),
        harness: Some(order.spec.name.clone()),
        policy: order.policy.clone(),
        sampling: crate::call::Sampling::default(),
        metadata: order.task.metadata.clone(),
        ttl_s: None,
        idempotency_key: None,
        conversation: None,
        index: Some(slot.index),
        run: Some(slot.run),
    }
}

/// A rollout while it runs.
pub(super) struct Driver<'a> {
    stage: &'a Stage<'a>,
    prepared: &'a Prepared<'a>,
    new: NewRollout,
    launch: Launch,
    places: Places,
    workdir: String,
    user: User,
    /// Where our helper, the payload and the sockets are, as seen from inside.
    helper: String,
    payload: Option<String>,
    sockets_inside: String,
    sockets: SocketFolder,
    network: Network,
    sandbox: Option<SandboxId>,
    /// What was made for the verifier: a sandbox, and the copy of the harness's that it is of.
    second: Option<SandboxId>,
    snapshot: Option<String>,
    /// Where the repository stood before the harness, if its task wants a patch; and the patch.
    base: Option<Base>,
    patch: Option<Bytes>,
    listener: Option<ControlListener>,
    control: Option<Control>,
    exit: Option<Exit>,
    opened: bool,
    artifacts: Artifacts,
}

type Outcome<T> = anyhow::Result<T>;

impl<'a> Driver<'a> {
    /// A rollout that has not begun.
    ///
    /// # Errors
    /// If the harness's templates don't fit, or its places can't be made.
    pub async fn new(stage: &'a Stage<'a>, prepared: &'a Prepared<'a>, slot: Slot) -> Outcome<Self> {
        let order = prepared.order;
        let task = &order.task;
        let new = new_rollout(order, &prepared.group, slot);
        let places = stage.engine.places(&name(new.id)).await?;
        let sockets = SocketFolder::make(new.id)?;
        let workdir = task.workdir.clone().or_else(|| prepared.facts.workdir.clone().filter(|folder| folder.len() > 1));
        let workdir = workdir.map_or_else(|| places.workdir.clone(), |folder| folder.trim_end_matches('/').to_owned());
        let user = task.user.unwrap_or(User { uid: places.user.0, gid: places.user.1 });
        let payload = prepared.payload.as_ref().map(|payload| stage.engine.inside(payload, PAYLOAD));
        let helper = stage.engine.inside(&prepared.helper, INIT);
        let context_window = stage.endpoint.window(order.policy.as_deref()).await;
        let variables = Variables {
            root_url: &format!("http://{}", places.listen),
            key: new.key.expose(),
            prompt: &task.prompt,
            home: &places.home,
            workdir: &workdir,
            payload: payload.as_deref().unwrap_or_default(),
            timeout_s: prepared.timeout.as_secs(),
            context_window,
            rollout: &new.id.to_string(),
        };
        let launch = match order.harness.baseline {
            Some(baseline) => baseline.launch(task, &helper)?,
            None => Launch::fill(&order.harness, &order.spec, &variables)?,
        };
        let solution = task.solution.as_ref().filter(|_| order.harness.baseline == Some(Baseline::Oracle));
        let network = if solution.is_some_and(|solution| solution.network) { Network::Outside } else { Network::None };
        let mut artifacts = Artifacts::new(&stage.artifacts, new.id, stage.config.log_limit_bytes);
        artifacts.note("harness_version", order.spec.version.clone());
        artifacts.note("variant", order.choice.variant());
        artifacts.note("wire", order.spec.wire.clone());
        artifacts.note("image", prepared.image.clone());
        artifacts.note("image_id", prepared.facts.id.clone());
        artifacts.note("timeout_s", prepared.timeout.as_secs());
        artifacts.note("max_calls", prepared.terms.max_calls);
        artifacts.note("max_tokens", prepared.terms.max_tokens);
        artifacts.note("policy_window", context_window);
        Ok(Self {
            stage,
            prepared,
            new,
            launch,
            places,
            workdir,
            user,
            helper,
            payload,
            sockets_inside: stage.engine.inside(sockets.path(), SOCKETS),
            sockets,
            network,
            sandbox: None,
            second: None,
            snapshot: None,
            base: None,
            patch: None,
            listener: None,
            control: None,
            exit: None,
            opened: false,
            artifacts,
        })
    }

    /// Its id.
    pub fn id(&self) -> RolloutId {
        self.new.id
    }

    /// Runs it to its end. Whatever happens, its sandbox is removed and its record closed.
    ///
    /// # Errors
    /// If its record could not be closed.
    pub async fn run(mut self, turn: Turn) -> Outcome<Report> {
        let mut turn = Some(turn);
        let (mut run, mut action) = Run::new(self.prepared.order.task.verifier.is_some());
        loop {
            if !matches!(action, Action::Open | Action::Create | Action::Start | Action::Await) {
                drop(turn.take());
            }
            if let Action::Finish(verdict) = action {
                return self.finish(verdict).await;
            }
            (self.stage.progress)(Progress::Step { rollout: self.new.id, doing: doing(&action).into() });
            let cancel = self.stage.cancel.clone();
            let doing = self.carry_out(&action);
            // What makes something is short and is waited for: broken off, it could leave behind what nobody knows of.
            // Verifying makes a sandbox as well, and minds by itself when it can be broken off.
            let done = if matches!(action, Action::Open | Action::Create | Action::Verify) {
                Some(doing.await)
            } else {
                cancel.run_until_cancelled(doing).await
            };
            let event = match done {
                _ if cancel.is_cancelled() => Event::Cancelled,
                Some(done) => done.unwrap_or_else(|error| Event::Failed(format!("{error:#}"))),
                None => Event::Cancelled,
            };
            action = run.step(event);
        }
    }

    async fn carry_out(&mut self, action: &Action) -> Outcome<Event> {
        match action {
            Action::Open => self.open().await,
            Action::Create => self.create().await,
            Action::Start => self.start().await,
            Action::Await => self.wait().await,
            Action::Read => self.read().await,
            Action::Keep => self.keep().await,
            Action::Verify => self.verify().await,
            Action::Finish(_) => Ok(Event::Failed("gleaner's own fault: an end that was not taken".to_owned())),
        }
    }

    async fn open(&mut self) -> Outcome<Event> {
        self.stage.endpoint.open(self.new.clone(), &self.prepared.terms, &self.sockets.path().join(sockets::MODEL)).await?;
        self.opened = true;
        if self.prepared.order.harness.baseline.is_some() {
            // A task's own code has no business with the model.
            self.stage.endpoint.seal(self.new.id).await;
        }
        self.listener = Some(ControlListener::bind(&self.sockets.path().join(sockets::CONTROL))?);
        Ok(Event::Done)
    }

    /// Clears away and closes the record. Not cancelled: it is what cancelling does.
    async fn finish(mut self, verdict: Verdict) -> Outcome<Report> {
        (self.stage.progress)(Progress::Step { rollout: self.new.id, doing: "clearing away".into() });
        // The sandbox ends by itself once nobody listens.
        let ends = self.control.take().is_some();
        self.clear_rooms().await;
        if let Some(sandbox) = self.sandbox.take() {
            if ends {
                self.stage.engine.settle(&sandbox).await;
            }
            if let Err(error) = self.remove(&sandbox).await {
                tracing::error!(rollout.id = %self.new.id, %error, "could not remove a sandbox");
            }
        }
        if let Some(error) = &verdict.error {
            self.artifacts.note(ERROR, json!(error));
        }
        match self.stage.endpoint.drift(self.new.id).await {
            Ok(drift) => self.artifacts.note(DRIFT, drift),
            Err(error) => tracing::warn!(rollout.id = %self.new.id, %error, "could not count drift"),
        }
        let evidence = self.artifacts.evidence();
        let rollout = self.close(&verdict, evidence).await?;
        let report = Report::of(&rollout, &self.stage.artifacts);
        (self.stage.progress)(Progress::Ended(report.clone()));
        Ok(report)
    }

    /// Removes the sandbox; an engine that was restarted meanwhile is waited for.
    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        match self.stage.engine.remove(sandbox).await {
            Err(_) if patience::answers(self.stage).await.is_ok() => self.stage.engine.remove(sandbox).await,
            removed => removed,
        }
    }

    async fn close(&self, verdict: &Verdict, evidence: Value) -> Outcome<Rollout> {
        for (name, value) in verdict.rewards.iter().flat_map(all) {
            let reward = Reward { rollout_id: self.new.id, call_id: None, name: name.to_owned(), value };
            self.stage.endpoint.reward(reward).await?;
        }
        let finish = Finish {
            rollout_id: self.new.id,
            at: now_ms(),
            outcome: verdict.outcome,
            // Its group must not wait for a reward that nobody will give.
            no_reward: verdict.rewards.is_none(),
            evidence: Some(evidence),
        };
        let closed = self.stage.endpoint.close(finish).await;
        // One that was never kept can't be closed: why it could not be kept says more.
        closed.map_err(|error| match &verdict.error {
            Some(why) if !self.opened => anyhow::anyhow!("beginning a rollout: {why}"),
            _ => error,
        })
    }

    fn exec(&self, command: Vec<String>, timeout: Duration) -> ExecSpec {
        ExecSpec {
            command,
            env: Vec::new(),
            workdir: None,
            user: None,
            stdin: Bytes::new(),
            timeout,
            output_limit: self.stage.config.log_limit_bytes,
        }
    }

    async fn execute(&self, spec: &ExecSpec) -> Outcome<ExecResult> {
        let Some(sandbox) = &self.sandbox else { anyhow::bail!("there is no sandbox") };
        Ok(self.stage.engine.exec(sandbox, spec).await?)
    }
}

/// The sandbox's name for people.
fn name(rollout: RolloutId) -> String {
    format!("gleaner-{rollout}")
}

/// All rewards by name, the one that counts last.
fn all(rewards: &Rewards) -> impl Iterator<Item = (&str, f64)> {
    let named = rewards.named.iter().map(|(name, value)| (name.as_str(), *value));
    named.filter(|(name, _)| *name != Rollout::REWARD).chain([(Rollout::REWARD, rewards.reward)])
}

fn doing(action: &Action) -> &'static str {
    match action {
        Action::Open => "opening",
        Action::Create => "making the sandbox",
        Action::Start => "starting the sandbox",
        Action::Await => "the harness runs",
        Action::Read => "reading its result",
        Action::Keep => "keeping what it made",
        Action::Verify => "verifying",
        Action::Finish(_) => "clearing away",
    }
}

/// Why our helper could not read a file.
fn unread(result: &ExecResult) -> String {
    match result.exit_code {
        3 => "is missing".to_owned(),
        4 => "is not a regular file".to_owned(),
        code => format!("could not be read (exit code {code}): {}", tail(&result.stderr)),
    }
}

/// What a command said. An engine that can't start one says so on its standard output.
fn said(result: &ExecResult) -> String {
    let said = [tail(&result.stderr), tail(&result.stdout)].join(" ");
    format!("exit code {}: {}", result.exit_code, said.trim())
}
