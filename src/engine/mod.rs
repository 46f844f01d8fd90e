//! Where rollouts run: Docker, or plain processes without isolation.

pub mod base_image;
mod config;
mod docker;
mod finding;
mod output;
pub mod owner;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use config::{EngineConfig, EngineKind, parse_memory};
pub use docker::Docker;
pub use finding::{Finding, Health};
pub use process::Process;

/// Says whether the Gleaner process of that id lives.
pub type IsAlive = std::sync::Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// A place that runs sandboxes: containers with no network, or what stands for them.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What it is and where, for people.
    fn describe(&self) -> String;

    /// Whether sandboxes are containers: with files of an image, mounts where they are wanted, users of their own and no way out. Where they
    /// are not, what needs that is refused before it begins.
    fn isolates(&self) -> bool;

    /// Whether the engine answers, or what to do so that it does.
    ///
    /// # Errors
    /// Says why it doesn't.
    async fn ready(&self) -> Result<(), EngineError>;

    /// What it is and what it can, for people who look why something does not work.
    async fn look(&self) -> Vec<Finding>;

    /// What the isolation of its sandboxes depends on: where that is another, they are tested anew before the first run. `None` where
    /// there is none, or none is to be tested.
    async fn isolation(&self) -> Result<Option<String>, EngineError>;

    /// What is to be known of an image, or `None` if the engine does not have it.
    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError>;

    /// The same of an image that is made or pulled if the engine does not have it, with progress on standard error.
    ///
    /// # Errors
    /// If it can't be had.
    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError>;

    /// Builds an image of this name from a folder with a `Dockerfile`, packed as a tar archive. `tell` gets what the build prints.
    ///
    /// # Errors
    /// If the build fails (its last lines are in the error), or this engine has no images.
    async fn build(&self, name: &str, context: Bytes, tell: Tell<'_>) -> Result<(), EngineError>;

    /// Keeps the files of a sandbox, as they are now, as an image of its own; gives its name. What lies in memory file systems and
    /// mounts is not in it, nor is what the sandbox's environment adds to its image's. [`Engine::sweep`] removes those that dead
    /// processes left.
    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError>;

    /// Removes an image that [`Engine::snapshot`] made.
    async fn remove_image(&self, name: &str) -> Result<(), EngineError>;

    /// Where a sandbox of this name will have what every sandbox has. Made once, before it is created.
    ///
    /// # Errors
    /// If there is no room for it.
    async fn places(&self, name: &str) -> Result<Places, EngineError>;

    /// How a file or folder of the host is named in a sandbox that has it mounted at `usual`.
    fn inside(&self, host: &Path, usual: &str) -> String;

    /// Creates a sandbox, not started. If it fails, there is none.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError>;

    /// Starts it: its init runs from now on.
    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError>;

    /// Runs a command in a started sandbox, its output bounded by `limit` bytes each.
    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError>;

    /// Unpacks a tar archive into a folder of the sandbox; works before it is started.
    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError>;

    /// A file or folder of the sandbox as a tar archive. Not for what lies in memory file systems: `exec` reads that.
    ///
    /// # Errors
    /// If there is none, or it is too large to be held in memory.
    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError>;

    /// The same into a file of the host, made anew, of at most `limit` bytes; gives how many it has.
    ///
    /// # Errors
    /// If there is more. The file then holds the beginning.
    async fn copy_out_to(&self, sandbox: &SandboxId, path: &str, file: &Path, limit: u64) -> Result<u64, EngineError>;

    /// The end of what its init and harness have printed, bounded: standard output, then standard error.
    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError>;

    /// Bytes on the disk that a sandbox has used, where the engine does not bound them by itself; `None` where it does. It looks at
    /// all its files: not to be asked without pause.
    async fn disk_used(&self, sandbox: &SandboxId) -> Result<Option<u64>, EngineError>;

    /// How a sandbox that ended did so; `None` while it runs.
    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError>;

    /// Waits a moment for a sandbox that ends by itself, so that removing it need not kill it, which costs an engine a program's start.
    async fn settle(&self, _sandbox: &SandboxId) {}

    /// Ends it, whatever it does, and removes it.
    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError>;

    /// Removes the sandboxes that dead processes of ours left behind; gives their number.
    async fn sweep(&self) -> Result<usize, EngineError>;
}

/// Gets each line that is printed. (A name of its own: `async_trait` would take the line's lifetime for the call's.)
pub type Tell<'a> = &'a (dyn Fn(&str) + Send + Sync);

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

impl ImageFacts {
    /// This very image, whatever its name stands for by now.
    #[must_use]
    pub fn pinned<'a>(&'a self, name: &'a str) -> &'a str {
        if self.id.starts_with("sha256:") { &self.id } else { name }
    }
}

/// Where a sandbox has what every sandbox has, as seen from inside.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    pub home: String,
    /// A folder for files of a moment.
    pub temp: String,
    /// The working folder where the image names none.
    pub workdir: String,
    /// Where the model answers: an address with a port.
    pub listen: String,
    /// What its init is told to listen on: the same, or a socket that it inherits.
    pub bind: String,
    /// The user of a harness whose task names none, and its group.
    pub user: (u32, u32),
}

/// A sandbox to be made. It has no way to new privileges, and runs as `user`.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// A name for people, unique.
    pub name: String,
    pub image: String,
    /// Our own helper, which is mounted there, and its arguments.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Made if it is missing.
    pub workdir: String,
    /// `workdir` is the user's, with all that the image has in it.
    pub own_workdir: bool,
    /// `uid:gid`.
    pub user: String,
    /// Folders of the host, mounted.
    pub mounts: Vec<Mount>,
    /// Memory file systems: path, and mount options.
    pub tmpfs: Vec<(String, String)>,
    pub limits: Limits,
    pub network: Network,
    pub powers: Powers,
    /// Beside the label `gleaner`, which every sandbox has.
    pub labels: Vec<(String, String)>,
}

/// What a sandbox reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Nothing but its own loopback: every harness's.
    #[default]
    None,
    /// What the engine's default network reaches: of a verifier whose task asks for it.
    Outside,
}

/// What root may do in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Powers {
    /// No capability at all: every harness's.
    #[default]
    None,
    /// Those that the engine gives to any container: of a verifier, which may have to install packages.
    Usual,
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
    /// Swap included.
    pub memory_bytes: u64,
    pub pids: u32,
    /// Of its own files, where the engine can bound them; `None` for no bound.
    pub disk_bytes: Option<u64>,
}

/// A command to run in a sandbox.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub workdir: Option<String>,
    /// `uid:gid`; the sandbox's own user if `None`.
    pub user: Option<String>,
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
    /// Seen with Podman 4.3.1, of our tests of an engine 11 of 19: memory file systems can't be a user's; states and answers are told in
    /// other words; what a command is given on its standard input breaks it; a copy of a sandbox keeps the harness's key.
    #[error(
        "what answers at {at} is Podman {version}, on which sandboxes don't hold: a copy of one would keep the harness's key, and its memory \
         file systems can't be a user's; use Docker (apt-get install docker.io), or --engine process"
    )]
    Podman { at: String, version: String },
    #[error(
        "the engine has no image {0}; get it by `docker pull {0}`, or import a root file system: `docker import ROOT.tar {0}`"
    )]
    NoImage(String),
    #[error(
        "the engine has no image {image} and could not pull it ({why}); where its registry can't be reached, import a root file system: \
         `docker import ROOT.tar {image}`"
    )]
    NotPulled { image: String, why: String },
    #[error("{doing}: {why}")]
    Failed { doing: String, why: String },
}
