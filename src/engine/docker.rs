//! Docker, or what speaks its API (Podman).

mod enter;
mod exec;
mod image;
mod sandbox;
mod sweep;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::query_parameters::{
    DownloadFromContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::{
    Engine, EngineConfig, EngineError, ExecResult, ExecSpec, ImageFacts, IsAlive, Places, SandboxEnd, SandboxId, SandboxSpec,
    base_image,
};

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
    /// It was seen that this engine can't run privileged commands; see `enter`.
    cannot_privilege: AtomicBool,
}

impl Docker {
    /// What `copy_out` brings at most, in bytes.
    const COPY_LIMIT: usize = 1 << 30;

    /// Connects, and agrees on an API version. Sandboxes are labelled with `process_id`; those of processes that
    /// `is_alive` denies are what [`Engine::sweep`] removes.
    ///
    /// # Errors
    /// [`EngineError::Unreachable`] if no engine answers.
    pub async fn connect(config: &EngineConfig, process_id: &str, is_alive: IsAlive) -> Result<Self, EngineError> {
        let given = config.docker_host.clone().or_else(|| std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()));
        let at = given.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
        let unreachable = |error: Error| EngineError::Unreachable { at: at.clone(), why: error.to_string() };
        let api = bollard::Docker::connect_with_host(&at).map_err(unreachable)?;
        let api = api.negotiate_version().await.map_err(unreachable)?;
        let starts = Semaphore::new(config.parallel_starts.max(1));
        Ok(Self { api, at, process_id: process_id.to_owned(), is_alive, starts, cannot_privilege: AtomicBool::new(false) })
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

    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError> {
        image::facts(&self.api, name).await
    }

    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError> {
        base_image::ensure(self, name).await
    }

    async fn build(&self, name: &str, context: Bytes, tell: &(dyn Fn(&str) + Send + Sync)) -> Result<(), EngineError> {
        let _ = (context, tell);
        Err(EngineError::Failed { doing: format!("build image {name}"), why: "not yet".to_owned() })
    }

    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError> {
        Err(EngineError::Failed { doing: format!("keep sandbox {} as an image", sandbox.0), why: "not yet".to_owned() })
    }

    async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        Err(EngineError::Failed { doing: format!("remove image {name}"), why: "not yet".to_owned() })
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
        sandbox::create(&self.api, spec, &self.process_id).await
    }

    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        let failed = failed(format!("start sandbox {}", sandbox.0));
        // The semaphore is never closed; if it were, an unbounded start would be no harm.
        let _permit = self.starts.acquire().await.ok();
        self.api.start_container(&sandbox.0, None).await.map_err(failed)
    }

    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError> {
        if !command.privileged {
            return exec::exec(&self.api, sandbox, command).await;
        }
        if !self.cannot_privilege.load(Relaxed) {
            let result = exec::exec(&self.api, sandbox, command).await?;
            // The runtime's own words; nothing of the command ran.
            if !(result.exit_code == 126 && String::from_utf8_lossy(&result.stdout).contains("unable to apply caps")) {
                return Ok(result);
            }
            self.cannot_privilege.store(true, Relaxed);
        }
        let _permit = self.starts.acquire().await.ok();
        enter::run(&self.api, sandbox, command).await
    }

    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError> {
        let options = UploadToContainerOptionsBuilder::new().path(folder).build();
        let failed = failed(format!("copy files into {folder} of sandbox {}", sandbox.0));
        self.api.upload_to_container(&sandbox.0, Some(options), bollard::body_full(tar)).await.map_err(failed)
    }

    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
        let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
        let doing = format!("copy {path} out of sandbox {}", sandbox.0);
        let mut chunks = self.api.download_from_container(&sandbox.0, Some(options));
        let mut tar = BytesMut::new();
        while let Some(chunk) = chunks.try_next().await.map_err(failed(doing.clone()))? {
            if tar.len() + chunk.len() > Self::COPY_LIMIT {
                return Err(EngineError::Failed { doing, why: format!("it has more than {} bytes", Self::COPY_LIMIT) });
            }
            tar.extend_from_slice(&chunk);
        }
        Ok(tar.freeze())
    }

    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let mut lines = self.api.logs(&sandbox.0, Some(options));
        let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
        while let Some(line) = lines.next().await {
            exec::sort(line.map_err(failed(format!("read the logs of sandbox {}", sandbox.0)))?, |is_error, bytes| {
                (if is_error { &mut stderr } else { &mut stdout }).extend_from_slice(bytes);
            });
        }
        Ok((stdout.freeze(), stderr.freeze()))
    }

    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
        sandbox::ended(&self.api, sandbox).await
    }

    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        // With the volumes that its image declares. The exit state is not needed any more: `ended` was asked before.
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match self.api.remove_container(&sandbox.0, Some(options)).await {
            // Gone, or somebody is at it.
            Err(Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            other => other.map_err(failed(format!("remove sandbox {}", sandbox.0))),
        }
    }

    async fn sweep(&self) -> Result<usize, EngineError> {
        let mut removed = 0;
        for sandbox in sweep::leftovers(&self.api, &self.process_id, &*self.is_alive).await? {
            self.remove(&sandbox).await?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// What was being done when the engine refused.
fn failed(doing: String) -> impl FnOnce(Error) -> EngineError {
    move |error| {
        let why = match error {
            Error::DockerResponseServerError { message, .. } => message,
            other => other.to_string(),
        };
        EngineError::Failed { doing, why }
    }
}
