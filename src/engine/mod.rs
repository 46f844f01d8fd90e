//! Where containers run. Docker now; the trait is the seam for Kubernetes and plain processes.

pub mod base_image;
mod config;
mod docker;
pub mod owner;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use config::EngineConfig;
pub use docker::{Docker, IsAlive};

/// A place that runs sandboxes: containers with no network.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What it is and where, for people.
    fn describe(&self) -> String;

    /// Whether the engine answers, or what to do so that it does.
    ///
    /// # Errors
    /// Says why it doesn't.
    async fn ready(&self) -> Result<(), EngineError>;

    /// What is to be known of an image, or `None` if the engine does not have it.
    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError>;

    /// Creates a sandbox, not started.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError>;

    /// Starts it: its init runs from now on.
    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError>;

    /// Runs a command in a started sandbox, its output bounded by `limit` bytes each.
    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError>;

    /// Unpacks a tar archive into a folder of the sandbox; works before it is started.
    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError>;

    /// A file or folder of the sandbox as a tar archive. Not for what lies in memory file systems: `exec` reads that.
    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError>;

    /// What its init and harness have printed: standard output, then standard error.
    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError>;

    /// How a sandbox that ended did so; `None` while it runs.
    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError>;

    /// Ends it, whatever it does, and removes it.
    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError>;

    /// Removes the sandboxes that dead processes of ours left behind; gives their number.
    async fn sweep(&self) -> Result<usize, EngineError>;
}

/// The engine's own name for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxId(pub String);

/// What is to be known of an image.
#[derive(Clone, Debug, Default)]
pub struct ImageFacts {
    pub id: String,
    pub workdir: Option<String>,
    pub env: Vec<(String, String)>,
}

/// A sandbox to be made. It has no network, no capabilities, no way to new privileges, and runs as `user`.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// A name for people, unique.
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub workdir: String,
    /// `uid:gid`.
    pub user: String,
    /// Folders of the host, mounted.
    pub mounts: Vec<Mount>,
    /// Memory file systems: path, and mount options.
    pub tmpfs: Vec<(String, String)>,
    pub limits: Limits,
    /// Beside the label `gleaner`, which every sandbox has.
    pub labels: Vec<(String, String)>,
}

/// A folder or file of the host that a sandbox sees.
#[derive(Clone, Debug)]
pub struct Mount {
    pub host: PathBuf,
    pub inside: String,
    pub read_only: bool,
}

/// What a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub pids: u32,
}

/// A command to run in a sandbox.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub workdir: Option<String>,
    /// `uid:gid`; the sandbox's own user if `None`.
    pub user: Option<String>,
    /// With all of root's capabilities: for our own helper only, never for a task's command.
    pub privileged: bool,
    pub stdin: Bytes,
    pub timeout: Duration,
    /// Output past so many bytes is dropped, and said so.
    pub output_limit: usize,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecResult {
    pub exit_code: i64,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub timed_out: bool,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxEnd {
    pub exit_code: i64,
    pub out_of_memory: bool,
}

/// What can go wrong with an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no container engine answers at {at} ({why}); start Docker, or install it: apt-get install docker.io")]
    Unreachable { at: String, why: String },
    #[error("the engine has no image {0}; import or pull it first")]
    NoImage(String),
    #[error("{doing}: {why}")]
    Failed { doing: String, why: String },
}
