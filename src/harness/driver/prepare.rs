//! Makes a rollout's sandbox ready, up to the point where the harness can go.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;

use super::{Driver, GRACE, Outcome, READY, name};
use crate::engine::{Mount, Network, Places, Powers, SandboxId, SandboxSpec};
use crate::harness::Baseline;
use crate::harness::artifacts::tail;
use crate::harness::control::Control;
use crate::harness::run::Event;
use crate::harness::sockets;
use crate::harness::task::User;

/// A folder or file of the host, as sandboxes see it.
pub(super) fn mount(host: &Path, inside: &str) -> Mount {
    Mount { host: host.to_owned(), inside: inside.to_owned(), read_only: true }
}

impl Driver<'_> {
    pub(super) async fn create(&mut self) -> Outcome<Event> {
        let spec = self.sandbox_spec();
        let sandbox = self.stage.engine.create(&spec).await?;
        self.sandbox = Some(sandbox.clone());
        let task = &self.prepared.order.task;
        if !task.files.is_empty() {
            self.stage.engine.copy_in(&sandbox, &self.workdir, Bytes::from(task.archive(self.user)?)).await?;
        }
        let solution = task.solution.as_ref().filter(|_| self.prepared.order.harness.baseline == Some(Baseline::Oracle));
        let none = std::collections::BTreeMap::new();
        let files = solution.map_or(&none, |solution| &solution.files);
        self.bring(&sandbox, files, task.folders.iter().map(String::as_str), self.user).await?;
        Ok(Event::Done)
    }

    fn sandbox_spec(&self) -> SandboxSpec {
        let inside = |socket: &str| format!("{}/{socket}", self.sockets_inside);
        let deadline = self.prepared.timeout.as_millis().to_string();
        let grace = GRACE.as_millis().to_string();
        let (control, model) = (inside(sockets::CONTROL), inside(sockets::MODEL));
        let init = [&self.helper, "run", "--control", &control, "--listen", &self.places.bind, "--socket", &model];
        let times = ["--deadline-ms", &deadline, "--grace-ms", &grace];
        let stdin_path = stdin_path(&self.places);
        let stdin = self.launch.stdin.as_ref().map(|_| ["--stdin", &stdin_path]);
        let init = init.into_iter().chain(times).chain(stdin.into_iter().flatten()).chain(["--"]);
        let command = init.map(str::to_owned).chain(self.launch.command.iter().cloned()).collect();
        let task = &self.prepared.order.task;
        let is_own = |name: &str| self.launch.env.iter().any(|(own, _)| own == name);
        let of_task = task.env.iter().filter(|(name, _)| !is_own(name)).map(|(name, value)| (name.clone(), value.clone()));
        let mut env: Vec<(String, String)> = self.launch.env.iter().cloned().chain(of_task).collect();
        env.push(("HOME".to_owned(), self.places.home.clone()));
        let User { uid, gid } = self.user;
        let payload = self.prepared.payload.as_ref().zip(self.payload.as_ref()).map(|(host, inside)| mount(host, inside));
        let ours = [mount(&self.prepared.helper, &self.helper), mount(self.sockets.path(), &self.sockets_inside)];
        let room = self.prepared.limits.memory_bytes / 4;
        SandboxSpec {
            name: name(self.new.id),
            image: self.prepared.facts.pinned(&self.prepared.image).to_owned(),
            command,
            env,
            workdir: self.workdir.clone(),
            own_workdir: true,
            user: format!("{uid}:{gid}"),
            mounts: payload.into_iter().chain(ours).collect(),
            // What lies there is the sandbox's memory: one that fills it must run out of room, not of memory.
            tmpfs: vec![
                (self.places.temp.clone(), format!("exec,mode=1777,size={room}")),
                (self.places.home.clone(), format!("exec,mode=0755,uid={uid},gid={gid},size={room}")),
            ],
            limits: self.prepared.limits,
            network: self.network,
            // A solution that reaches the outside may install what it needs, as its task's image did.
            powers: if self.network == Network::Outside && self.user == User::ROOT { Powers::Usual } else { Powers::None },
            labels: vec![("gleaner.rollout".to_owned(), self.new.id.to_string())],
        }
    }

    pub(super) async fn start(&mut self) -> Outcome<Event> {
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
        let control = self.control.insert(control?);
        for file in &self.launch.files {
            write(control, &file.path, &file.mode, &file.content).await?;
        }
        if let Some(stdin) = &self.launch.stdin {
            write(control, &stdin_path(&self.places), "600", stdin).await?;
        }
        self.note_base().await?;
        Ok(Event::Done)
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
}

/// Where the harness's standard input lies until it starts.
fn stdin_path(places: &Places) -> String {
    format!("{}/gleaner-stdin", places.temp)
}

async fn write(control: &mut Control, path: &str, mode: &str, content: &str) -> Outcome<()> {
    let written = tokio::time::timeout(READY, control.write(path, mode, content.as_bytes()));
    written.await?.with_context(|| format!("writing {path} in the sandbox"))
}
