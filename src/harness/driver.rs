//! Carries out one rollout: does on the engine what [`super::run`] says, and tells it what came of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::artifacts::{Artifacts, tail};
use super::control::{Control, ControlListener};
use super::outcome;
use super::output;
use super::payload::PAYLOAD;
use super::run::{Action, Event, Exit, Run, Verdict};
use super::sockets::{self, SocketFolder};
use super::spec::ResultForm;
use super::template::{Launch, Variables};
use super::{Order, Progress, Report, Stage};
use crate::engine::{ExecResult, ExecSpec, ImageFacts, Mount, SandboxId, SandboxSpec};
use crate::ids::{RolloutId, RolloutKey};
use crate::store::{Finish, NewRollout, Purpose, Reward, Rollout};
use crate::telemetry::now_ms;

/// Where our own helper is in a sandbox.
const INIT: &str = "/opt/gleaner/init";
/// Where the rollout's sockets are in a sandbox.
const SOCKETS: &str = "/run/gleaner";
const HOME: &str = "/home/agent";
/// Where the harness's standard input lies until it starts.
const STDIN: &str = "/tmp/gleaner-stdin";
/// Where the model answers in a sandbox.
const LISTEN: &str = "127.0.0.1:8080";
/// The user that harness and verifier run as, and its group.
const USER: u64 = 1000;
/// The working folder of an image that names none.
const WORKDIR: &str = "/work";
/// Between asking a harness to end at its deadline, and ending it.
const GRACE: Duration = Duration::from_secs(5);
/// How long a sandbox may take to be ready, and our helper's commands to run, on a loaded machine.
const READY: Duration = Duration::from_mins(2);

/// What a rollout has from its order, made once for all its samples.
pub(super) struct Prepared<'a> {
    pub order: &'a Order,
    pub image: String,
    pub facts: ImageFacts,
    pub payload: PathBuf,
    pub helper: PathBuf,
    pub group: Option<(String, u32)>,
    pub timeout: Duration,
}

/// A rollout while it runs.
pub(super) struct Driver<'a> {
    stage: &'a Stage<'a>,
    prepared: &'a Prepared<'a>,
    new: NewRollout,
    launch: Launch,
    workdir: String,
    sockets: SocketFolder,
    sandbox: Option<SandboxId>,
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
    /// If the harness's templates don't fit, or its sockets' folder can't be made.
    pub fn new(stage: &'a Stage<'a>, prepared: &'a Prepared<'a>) -> Outcome<Self> {
        let order = prepared.order;
        let (id, key) = (RolloutId::generate(), RolloutKey::generate());
        let workdir = prepared.facts.workdir.clone().filter(|folder| folder.len() > 1).unwrap_or_else(|| WORKDIR.to_owned());
        let variables = Variables {
            root_url: &format!("http://{LISTEN}"),
            key: key.expose(),
            prompt: &order.task.prompt,
            home: HOME,
            workdir: &workdir,
            payload: PAYLOAD,
            timeout_s: prepared.timeout.as_secs(),
        };
        let launch = Launch::fill(&order.harness, &order.spec, &variables)?;
        let new = NewRollout {
            id,
            key,
            created_at: now_ms(),
            purpose: if prepared.group.is_some() { Purpose::Train } else { Purpose::Record },
            task_id: Some(order.task.id.clone()),
            group_id: prepared.group.as_ref().map(|(id, _)| id.clone()),
            group_size: prepared.group.as_ref().map(|(_, size)| *size),
            harness: Some(order.spec.name.clone()),
            policy: None,
            sampling: crate::call::Sampling::default(),
            metadata: order.task.metadata.clone(),
            ttl_s: None,
            idempotency_key: None,
            conversation: None,
        };
        let mut artifacts = Artifacts::new(&stage.artifacts, id, stage.config.log_limit_bytes);
        artifacts.note("harness_version", order.spec.version.clone());
        artifacts.note("variant", order.variant.clone());
        artifacts.note("wire", order.spec.wire.clone());
        artifacts.note("image", prepared.image.clone());
        artifacts.note("image_id", prepared.facts.id.clone());
        artifacts.note("timeout_s", prepared.timeout.as_secs());
        Ok(Self {
            stage,
            prepared,
            new,
            launch,
            workdir,
            sockets: SocketFolder::make(id)?,
            sandbox: None,
            listener: None,
            control: None,
            exit: None,
            opened: false,
            artifacts,
        })
    }

    /// Runs it to its end. Whatever happens, its sandbox is removed and its record closed.
    ///
    /// # Errors
    /// If its record could not be closed.
    pub async fn run(mut self) -> Outcome<Report> {
        let (mut run, mut action) = Run::new(self.prepared.order.task.verify.is_some());
        loop {
            if let Action::Finish(verdict) = action {
                return self.finish(verdict).await;
            }
            (self.stage.progress)(Progress::Step { rollout: self.new.id, doing: doing(&action) });
            let cancel = self.stage.cancel.clone();
            let doing = self.carry_out(&action);
            // What makes something is short and is waited for: broken off, it could leave behind what nobody knows of.
            let done = if matches!(action, Action::Open | Action::Create) {
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
            Action::Verify => self.verify().await,
            Action::Finish(_) => Ok(Event::Failed("gleaner's own fault: an end that was not taken".to_owned())),
        }
    }

    async fn open(&mut self) -> Outcome<Event> {
        self.stage
            .endpoint
            .open(self.new.clone(), &self.prepared.order.spec.signature, &self.sockets.path().join(sockets::MODEL))
            .await?;
        self.opened = true;
        self.listener = Some(ControlListener::bind(&self.sockets.path().join(sockets::CONTROL))?);
        Ok(Event::Done)
    }

    async fn create(&mut self) -> Outcome<Event> {
        let spec = self.sandbox_spec();
        let sandbox = self.stage.engine.create(&spec).await?;
        self.sandbox = Some(sandbox.clone());
        let task = &self.prepared.order.task;
        if !task.files.is_empty() {
            self.stage.engine.copy_in(&sandbox, &self.workdir, Bytes::from(task.archive(USER)?)).await?;
        }
        Ok(Event::Done)
    }

    fn sandbox_spec(&self) -> SandboxSpec {
        let deadline = self.prepared.timeout.as_millis().to_string();
        let grace = GRACE.as_millis().to_string();
        let (control, model) = (format!("{SOCKETS}/{}", sockets::CONTROL), format!("{SOCKETS}/{}", sockets::MODEL));
        let init = [INIT, "run", "--control", &control, "--listen", LISTEN, "--socket", &model];
        let times = ["--deadline-ms", &deadline, "--grace-ms", &grace];
        let stdin = self.launch.stdin.as_ref().map(|_| ["--stdin", STDIN]);
        let init = init.into_iter().chain(times).chain(stdin.into_iter().flatten()).chain(["--"]);
        let command = init.map(str::to_owned).chain(self.launch.command.iter().cloned()).collect();
        let mut env = self.launch.env.clone();
        env.push(("HOME".to_owned(), HOME.to_owned()));
        let mount = |host: &Path, inside: &str| Mount { host: host.to_owned(), inside: inside.to_owned(), read_only: true };
        SandboxSpec {
            name: format!("gleaner-{}", self.new.id),
            image: self.prepared.image.clone(),
            command,
            env,
            workdir: self.workdir.clone(),
            user: format!("{USER}:{USER}"),
            mounts: vec![
                mount(&self.prepared.payload, PAYLOAD),
                mount(&self.prepared.helper, INIT),
                mount(self.sockets.path(), SOCKETS),
            ],
            tmpfs: vec![
                ("/tmp".to_owned(), "exec,mode=1777".to_owned()),
                (HOME.to_owned(), format!("exec,mode=0755,uid={USER},gid={USER}")),
            ],
            limits: self.stage.limits,
            labels: vec![("gleaner.rollout".to_owned(), self.new.id.to_string())],
        }
    }

    async fn start(&mut self) -> Outcome<Event> {
        let (Some(sandbox), Some(listener)) = (self.sandbox.clone(), self.listener.take()) else {
            anyhow::bail!("there is no sandbox to start");
        };
        self.stage.engine.start(&sandbox).await?;
        let ready = async { Ok(listener.ready().await?) };
        let control = tokio::select! {
            ready = ready => ready,
            why = self.ended_early(&sandbox) => Err(why),
            () = tokio::time::sleep(READY) => Err(anyhow::anyhow!("the sandbox was not ready within {READY:?}")),
        };
        self.control = Some(control?);
        self.own_workdir().await?;
        for file in &self.launch.files {
            self.write(&file.path, &file.mode, &file.content).await?;
        }
        if let Some(stdin) = &self.launch.stdin {
            self.write(STDIN, "600", stdin).await?;
        }
        Ok(Event::Done)
    }

    async fn write(&self, path: &str, mode: &str, content: &str) -> Outcome<()> {
        let user = USER.to_string();
        let command = [INIT, "write", path, mode, &user, &user].map(str::to_owned).to_vec();
        let stdin = Bytes::from(content.to_owned());
        let result = self.execute(&ExecSpec { stdin, ..self.exec(command, READY) }).await?;
        if result.exit_code != 0 {
            anyhow::bail!("writing {path} in the sandbox: {}", said(&result));
        }
        Ok(())
    }

    /// Gives the working folder, with all that the image has there, to the harness's user.
    async fn own_workdir(&self) -> Outcome<()> {
        let user = USER.to_string();
        let command = [INIT, "own", &user, &user, &self.workdir].map(str::to_owned).to_vec();
        // As root, for our helper only: the harness has not begun, so nothing else is there yet.
        let spec = ExecSpec { user: Some("0:0".to_owned()), privileged: true, ..self.exec(command, READY) };
        let result = self.execute(&spec).await?;
        if result.exit_code != 0 {
            anyhow::bail!("giving the working folder {} to the harness: {}", self.workdir, said(&result));
        }
        Ok(())
    }

    /// Waits for a sandbox that ends before its init has spoken, and says how.
    async fn ended_early(&self, sandbox: &SandboxId) -> anyhow::Error {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            match self.stage.engine.ended(sandbox).await {
                Ok(None) => {}
                Ok(Some(end)) => {
                    let logs = self.stage.engine.logs(sandbox).await.map(|(_, stderr)| tail(&stderr)).unwrap_or_default();
                    return anyhow::anyhow!("the sandbox ended with exit code {} before it was ready: {logs}", end.exit_code);
                }
                Err(error) => return error.into(),
            }
        }
    }

    async fn wait(&mut self) -> Outcome<Event> {
        let Some(control) = &mut self.control else { anyhow::bail!("there is no line to the sandbox's init") };
        control.go().await?;
        // The init keeps the deadline; this is for one that can't.
        let backstop = self.prepared.timeout + GRACE + READY;
        match tokio::time::timeout(backstop, control.exited()).await {
            Ok(Ok(exit)) => {
                self.artifacts.note("exit", json!(exit));
                self.exit = Some(exit);
                Ok(Event::Exited(exit))
            }
            Ok(Err(error)) => {
                self.keep_output().await;
                Err(anyhow::Error::from(error).context("the sandbox died while the harness ran"))
            }
            Err(_) => anyhow::bail!("the sandbox's init did not end the harness at its deadline"),
        }
    }

    async fn read(&mut self) -> Outcome<Event> {
        let (stdout, stderr) = self.keep_output().await;
        let spec = &self.prepared.order.spec.outcome;
        let result = match &self.launch.result {
            None if spec.form == ResultForm::Text => outcome::printed(&stdout, &stderr, self.exit).into(),
            None => stdout,
            Some(path) => {
                let limit = self.stage.config.result_limit_bytes;
                let command = vec![INIT.to_owned(), "cat".to_owned(), path.clone(), limit.to_string()];
                let result = self.execute(&ExecSpec { output_limit: limit, ..self.exec(command, READY) }).await?;
                let name = Path::new(path).file_name().map_or("result".into(), |name| name.to_string_lossy());
                if result.exit_code == 0 {
                    self.artifacts.keep(&format!("result-{name}"), &result.stdout);
                } else {
                    self.artifacts.note("result", json!(format!("{path}: {}", unread(&result))));
                }
                result.stdout
            }
        };
        let reading = outcome::read(spec, &result).or_else(|| outcome::read_exit(spec, self.exit?));
        if let Some(reading) = &reading {
            self.artifacts.note("means", json!(reading.meaning));
            self.artifacts.note("detail", Value::Object(reading.detail.clone()));
        }
        Ok(Event::Read(reading.map(|reading| reading.meaning)))
    }

    async fn verify(&mut self) -> Outcome<Event> {
        let Some(verify) = &self.prepared.order.task.verify else { anyhow::bail!("the task has no verifier") };
        let command = ["sh", "-c", verify].map(str::to_owned).to_vec();
        let timeout = Duration::from_secs(self.stage.config.verify_timeout_s);
        // An exec has the sandbox's environment: what the harness got the rollout's key in is emptied.
        let key = self.new.key.expose();
        let secrets = self.launch.env.iter().filter(|(_, value)| value.contains(key));
        let env = secrets.map(|(name, _)| (name.clone(), String::new())).collect();
        let spec = ExecSpec { env, workdir: Some(self.workdir.clone()), ..self.exec(command, timeout) };
        let result = self.execute(&spec).await?;
        self.artifacts.keep("verify.log", &[&result.stdout[..], &result.stderr[..]].concat());
        let evidence = json!({
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "output": tail(if result.stderr.is_empty() { &result.stdout } else { &result.stderr }),
        });
        self.artifacts.note("verify", evidence);
        let passed = result.exit_code == 0 && !result.timed_out;
        Ok(Event::Verified(if passed { 1.0 } else { 0.0 }))
    }

    /// Clears away and closes the record. Not cancelled: it is what cancelling does.
    async fn finish(mut self, verdict: Verdict) -> Outcome<Report> {
        (self.stage.progress)(Progress::Step { rollout: self.new.id, doing: "clearing away" });
        // The sandbox ends by itself once nobody listens.
        self.control = None;
        if let Some(sandbox) = self.sandbox.take() {
            if verdict.error.is_some() {
                self.note_memory(&sandbox).await;
            }
            if let Err(error) = self.stage.engine.remove(&sandbox).await {
                tracing::error!(rollout.id = %self.new.id, %error, "could not remove a sandbox");
            }
        }
        if let Some(error) = &verdict.error {
            self.artifacts.note("error", json!(error));
        }
        let evidence = self.artifacts.evidence();
        let rollout = self.close(&verdict, evidence).await?;
        let drift = self.stage.endpoint.drift(self.new.id).await.unwrap_or_else(|error| {
            tracing::warn!(rollout.id = %self.new.id, %error, "could not count drift");
            0
        });
        let report = Report {
            id: self.new.id,
            harness: self.prepared.order.spec.name.clone(),
            task_id: self.prepared.order.task.id.clone(),
            outcome: verdict.outcome,
            reward: verdict.reward,
            calls: rollout.calls,
            tokens: rollout.tokens,
            drift,
            error: verdict.error,
            artifacts: self.artifacts.folder,
        };
        (self.stage.progress)(Progress::Ended(report.clone()));
        Ok(report)
    }

    /// Whether memory ran out: only an ended sandbox can tell, and it ends a moment after nobody listens.
    async fn note_memory(&mut self, sandbox: &SandboxId) {
        for _ in 0..20 {
            match self.stage.engine.ended(sandbox).await {
                Ok(Some(end)) => {
                    self.artifacts.note("out_of_memory", json!(end.out_of_memory));
                    return;
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(_) => return,
            }
        }
    }

    async fn close(&self, verdict: &Verdict, evidence: Value) -> Outcome<Rollout> {
        if !self.opened {
            anyhow::bail!("beginning a rollout: {}", verdict.error.as_deref().unwrap_or("cancelled"));
        }
        if let Some(value) = verdict.reward {
            let reward = Reward { rollout_id: self.new.id, call_id: None, name: Rollout::REWARD.to_owned(), value };
            self.stage.endpoint.reward(reward).await?;
        }
        let finish = Finish {
            rollout_id: self.new.id,
            at: now_ms(),
            outcome: verdict.outcome,
            // Its group must not wait for a reward that nobody will give.
            no_reward: verdict.reward.is_none(),
            evidence: Some(evidence),
        };
        self.stage.endpoint.close(finish).await
    }

    fn exec(&self, command: Vec<String>, timeout: Duration) -> ExecSpec {
        ExecSpec {
            command,
            env: Vec::new(),
            workdir: None,
            user: None,
            privileged: false,
            stdin: Bytes::new(),
            timeout,
            output_limit: self.stage.config.log_limit_bytes,
        }
    }

    async fn execute(&self, spec: &ExecSpec) -> Outcome<ExecResult> {
        let Some(sandbox) = &self.sandbox else { anyhow::bail!("there is no sandbox") };
        Ok(self.stage.engine.exec(sandbox, spec).await?)
    }

    /// Keeps what the harness printed, and gives it: standard output, standard error.
    async fn keep_output(&mut self) -> (Bytes, Bytes) {
        let Some(sandbox) = &self.sandbox else { return Default::default() };
        match output::read(self.stage.engine, sandbox, self.control.as_mut()).await {
            Ok(output) => {
                self.artifacts.keep("stdout.log", &output.stdout);
                self.artifacts.keep("stderr.log", &output.stderr);
                let last = tail(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
                self.artifacts.note("last_lines", json!(last));
                if !output.whole {
                    self.artifacts.note("output", "its end may be missing");
                }
                (output.stdout, output.stderr)
            }
            Err(error) => {
                self.artifacts.note("output", json!(format!("could not be read: {error}")));
                Default::default()
            }
        }
    }
}

fn doing(action: &Action) -> &'static str {
    match action {
        Action::Open => "opening",
        Action::Create => "making the sandbox",
        Action::Start => "starting the sandbox",
        Action::Await => "the harness runs",
        Action::Read => "reading its result",
        Action::Verify => "verifying",
        Action::Finish(_) => "clearing away",
    }
}

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
