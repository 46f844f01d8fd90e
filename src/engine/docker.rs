//! Docker. Podman, which speaks the same API, is told apart and refused: it was seen not to do what sandboxes are built on.

mod build;
mod disk;
mod exec;
mod image;
mod look;
mod patience;
mod read;
mod sandbox;
mod snapshot;
mod sweep;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::query_parameters::{RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder, UploadToContainerOptionsBuilder};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{
    Engine, EngineConfig, EngineError, ExecResult, ExecSpec, Finding, ImageFacts, IsAlive, Places, SandboxEnd, SandboxId,
    SandboxSpec, Tell, base_image,
};
use patience::{LONG, MOMENT, SHORT, patiently, within};

/// Where the model answers in a container: each has a loopback of its own.
const LISTEN: &str = "127.0.0.1:8080";

/// A Docker engine.
pub struct Docker {
    api: bollard::Docker,
    at: String,
    process_id: String,
    is_alive: IsAlive,
    /// The engine does starts one by one; more at once only make each slower, until they time out.
    starts: Semaphore,
    owned: snapshot::Owned,
    disk: disk::Disk,
    self_test: bool,
}

impl Docker {
    /// Connects, and agrees on an API version. Sandboxes are labelled with `process_id`; those of processes that
    /// `is_alive` denies are what [`Engine::sweep`] removes.
    ///
    /// # Errors
    /// [`EngineError::Unreachable`] if no engine answers; [`EngineError::Podman`] if Podman does.
    pub async fn connect(config: &EngineConfig, process_id: &str, is_alive: IsAlive) -> Result<Self, EngineError> {
        let given = config.docker_host.clone().or_else(|| std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()));
        let at = given.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
        let unreachable = |error: Error| EngineError::Unreachable { at: at.clone(), why: error.to_string() };
        let api = bollard::Docker::connect_with_host(&at).map_err(unreachable)?;
        let api = api.negotiate_version().await.map_err(unreachable)?;
        let version = api.version().await.map_err(unreachable)?;
        if let Some(podman) = version.components.iter().flatten().find(|part| part.name.starts_with("Podman")) {
            return Err(EngineError::Podman { at, version: podman.version.clone() });
        }
        Ok(Self {
            api,
            at,
            process_id: process_id.to_owned(),
            is_alive,
            starts: Semaphore::new(config.parallel_starts.max(1)),
            owned: snapshot::Owned::default(),
            disk: disk::Disk::default(),
            self_test: config.self_test,
        })
    }
}

#[async_trait]
impl Engine for Docker {
    fn describe(&self) -> String {
        format!("Docker at {} (API {})", self.at, self.api.client_version())
    }

    fn isolates(&self) -> bool {
        true
    }

    async fn ready(&self) -> Result<(), EngineError> {
        let unreachable = |why: String| EngineError::Unreachable { at: self.at.clone(), why };
        match tokio::time::timeout(Duration::from_secs(10), self.api.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unreachable(error.to_string())),
            Err(_) => Err(unreachable("no answer within 10 s".to_owned())),
        }
    }

    async fn look(&self) -> Vec<Finding> {
        look::look(self).await
    }

    async fn isolation(&self) -> Result<Option<String>, EngineError> {
        if !self.self_test {
            return Ok(None);
        }
        let info = patiently(|| self.api.info()).await.map_err(failed("ask the engine of itself".to_owned()))?;
        let security = info.security_options.unwrap_or_default().join(" ");
        let parts = [info.id, info.server_version, info.kernel_version, info.default_runtime, Some(security)];
        Ok(Some(parts.map(Option::unwrap_or_default).join("\n")))
    }

    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError> {
        image::facts(&self.api, name).await
    }

    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError> {
        base_image::ensure(self, name).await
    }

    async fn build(&self, name: &str, context: Bytes, tell: Tell<'_>) -> Result<(), EngineError> {
        build::build(&self.api, name, context, tell).await
    }

    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError> {
        snapshot::of_sandbox(self, sandbox).await
    }

    async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveImageOptionsBuilder::new().build();
        match patiently(|| self.api.remove_image(name, Some(options.clone()), None)).await {
            Ok(_) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
            Err(error) => Err(failed(format!("remove image {name}"))(error)),
        }
    }

    async fn places(&self, _name: &str) -> Result<Places, EngineError> {
        Ok(Places {
            home: "/home/agent".to_owned(),
            temp: "/tmp".to_owned(),
            workdir: "/work".to_owned(),
            listen: LISTEN.to_owned(),
            bind: LISTEN.to_owned(),
            user: (1000, 1000),
        })
    }

    fn inside(&self, _host: &Path, usual: &str) -> String {
        usual.to_owned()
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        let image = self.owned.image(self, spec).await?;
        match sandbox::create(self, &image, spec).await {
            Err(EngineError::NoImage(_)) if image != spec.image => {
                self.owned.forget(&image);
                sandbox::create(self, &self.owned.image(self, spec).await?, spec).await
            }
            other => other,
        }
    }

    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        // The semaphore is never closed; if it were, an unbounded start would be no harm.
        let _permit = self.starts.acquire().await.ok();
        within(SHORT, || format!("start sandbox {}", sandbox.0), self.api.start_container(&sandbox.0, None)).await
    }

    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError> {
        exec::exec(&self.api, sandbox, command).await
    }

    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError> {
        let options = UploadToContainerOptionsBuilder::new().path(folder).build();
        let doing = || format!("copy files into {folder} of sandbox {}", sandbox.0);
        let api = self.api.clone().with_timeout(LONG);
        within(LONG, doing, api.upload_to_container(&sandbox.0, Some(options), bollard::body_full(tar))).await
    }

    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
        read::copy_out(&self.api, sandbox, path).await
    }

    async fn copy_out_to(&self, sandbox: &SandboxId, path: &str, file: &Path, limit: u64) -> Result<u64, EngineError> {
        read::copy_out_to(&self.api, sandbox, path, file, limit).await
    }

    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
        read::logs(&self.api, sandbox).await
    }

    async fn disk_used(&self, sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        self.disk.used(&self.api, sandbox).await
    }

    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
        sandbox::ended(&self.api, sandbox).await
    }

    async fn settle(&self, sandbox: &SandboxId) {
        let mut ended = self.api.wait_container(&sandbox.0, None);
        // Whatever comes of it: removing it kills what still runs.
        let _ = timeout(MOMENT, ended.next()).await;
    }

    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        // With the volumes that its image declares. The exit state is not needed any more: `ended` was asked before.
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match patiently(|| self.api.remove_container(&sandbox.0, Some(options.clone()))).await {
            // Gone, or somebody is at it.
            Err(Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            other => other.map_err(failed(format!("remove sandbox {}", sandbox.0))),
        }
    }

    async fn sweep(&self) -> Result<usize, EngineError> {
        let mut removed = 0;
        for sandbox in sweep::sandboxes(&self.api, &self.process_id, &*self.is_alive).await? {
            self.remove(&sandbox).await?;
            removed += 1;
        }
        for image in sweep::images(&self.api, &self.process_id, &*self.is_alive).await? {
            // One that a container is of is somebody's yet.
            if let Err(error) = self.remove_image(&image).await {
                tracing::debug!(%error, "left an image alone");
            }
        }
        Ok(removed)
    }
}

/// What was being done when the engine refused.
fn failed(doing: String) -> impl FnOnce(Error) -> EngineError {
    move |error| EngineError::Failed { doing, why: reason(error) }
}

fn stuck(doing: String, time: Duration) -> EngineError {
    EngineError::Failed { doing, why: format!("the engine did not answer within {} s", time.as_secs()) }
}

/// Why the engine refused, in its own words.
fn reason(error: Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message,
        Error::DockerStreamError { error } => error,
        Error::RequestTimeoutError => "the engine did not answer in time".to_owned(),
        other => other.to_string(),
    }
}
