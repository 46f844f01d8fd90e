//! What a harness is asked, whatever form it was written in: our own lines ([`lines`]), Harbor's folders ([`harbor`]), rows of
//! SWE-bench and its kin ([`swe`]).

mod archive;
mod harbor;
mod lines;
mod swe;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

pub(super) use archive::{pack, read_tree};

/// One task, whatever form it was written in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    pub id: String,
    pub prompt: String,
    pub image: TaskImage,
    /// The working folder of harness and verifier; the image's, else the engine's usual one, if `None`.
    pub workdir: Option<String>,
    /// Who the harness runs as; an ordinary user if `None`.
    pub user: Option<User>,
    /// Of harness, solution and verifier, beside the image's.
    pub env: BTreeMap<String, String>,
    /// Texts by their path in the working folder, there before the harness starts.
    pub files: BTreeMap<String, String>,
    /// Absolute folders that are there before the harness starts, and are its user's.
    pub folders: Vec<String>,
    pub verifier: Option<Verifier>,
    /// What solves it, for an oracle run.
    pub solution: Option<Solution>,
    /// Whether what the harness changed in the working folder's repository is kept as a patch, and since which commit; since what
    /// stands there at the start if the text is empty.
    pub patch: Option<String>,
    /// Files and folders of the sandbox to keep, absolute or in the working folder.
    pub artifacts: Vec<String>,
    /// What it says of its needs; the config decides what it does not say.
    pub needs: Needs,
    /// Kept with its rollouts and samples.
    pub metadata: Map<String, Value>,
}

/// The image of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TaskImage {
    /// The default image.
    #[default]
    Default,
    /// One that the engine has, or can be told how to have.
    Named(String),
    /// Built of a folder with a `Dockerfile`, and kept under a name made of its content.
    Built(PathBuf),
}

/// A user of a sandbox, by number: `uid` and `gid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// What a task says of its needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Seconds that the harness may take.
    pub timeout_s: Option<u64>,
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
}

/// What turns a sandbox's end state into rewards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verifier {
    /// Program and arguments, run in the working folder.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Files that come in only now: by their path, absolute or in the working folder, with their permissions.
    pub files: BTreeMap<String, TaskFile>,
    /// Files and folders that are removed before those come in: what a harness left there must not count.
    pub clear: Vec<String>,
    pub place: Place,
    /// What is done to the tests of a patched sandbox.
    pub tests: TestPatch,
    /// Who it runs as; the harness's user if `None`.
    pub user: Option<User>,
    /// Whether it reaches the outside. Then it never runs in the harness's own sandbox.
    pub network: bool,
    /// Seconds that it may take; the config's if `None`.
    pub timeout_s: Option<u64>,
    pub scoring: Scoring,
}

impl Verifier {
    /// A shell command.
    #[must_use]
    pub fn shell(command: &str) -> Self {
        Self { command: shell(command), ..Self::default() }
    }
}

/// A shell command as program and arguments.
fn shell(command: &str) -> Vec<String> {
    ["sh", "-c", command].map(str::to_owned).to_vec()
}

/// A file of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskFile {
    pub content: Vec<u8>,
    pub mode: u32,
}

impl TaskFile {
    /// A text; one that begins as a script does can be run.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self { content: text.as_bytes().to_vec(), mode: if text.starts_with("#!") { 0o755 } else { 0o644 } }
    }
}

/// Where a verifier runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In the harness's own sandbox once it has ended, if its user and network are those; else in a copy of it.
    #[default]
    After,
    /// In a fresh sandbox with the files as the harness left them.
    Copy,
    /// In a fresh sandbox of the task's own image, in which the harness's patch has been applied.
    Patched,
}

/// What is done to the tests of a repository, between the harness's patch and the verifier: so that a patch that only edits tests
/// passes none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestPatch {
    /// Files of the repository that are put back as they were before the harness's patch; those that were not there are removed.
    pub restore: Vec<String>,
    /// Applied after that.
    pub patch: Option<String>,
}

/// How a verifier's end becomes rewards.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scoring {
    /// Exit code 0 is 1, any other 0.
    #[default]
    ExitCode,
    /// Files that it writes, absolute or in the working folder: the first that is there counts. JSON objects are rewards by name,
    /// else one number.
    Files(Vec<String>),
    /// What it prints of tests by name: 1 if all of `must_pass` passed and none of `must_hold` failed, else 0.
    Tests { must_pass: Vec<String>, must_hold: Vec<String>, form: TestLog },
}

/// How a test runner prints what passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TestLog {
    /// As `pytest -rA`.
    #[default]
    Pytest,
    /// As `python -m unittest --verbose` and Django's runner.
    Unittest,
}

/// What solves a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// Program and arguments, run in the working folder.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// By their path, absolute or in the working folder.
    pub files: BTreeMap<String, TaskFile>,
    /// Whether it reaches the outside.
    pub network: bool,
}

/// What is wrong with tasks; all of it for the user to mend.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("reading tasks from {path}: {why}")]
    Unreadable { path: String, why: String },
    /// `place` is a line or an item of a list.
    #[error("{path}, {place}: {why}")]
    Faulty { path: String, place: String, why: String },
    #[error("{} tasks of {path} can't be run:\n{}", .faults.len(), .faults.join("\n"))]
    Several { path: String, faults: Vec<String> },
}

impl Task {
    /// A task that is a prompt and nothing else.
    #[must_use]
    pub fn of_prompt(prompt: &str) -> Self {
        Self { id: "prompt".to_owned(), prompt: prompt.to_owned(), ..Self::default() }
    }

    /// The tasks of a file, of a task folder, or of a folder of them.
    ///
    /// # Errors
    /// If they can't be read, there is none, or one is wrong; file, line and field are named.
    pub fn load(path: &Path) -> Result<Vec<Self>, TaskError> {
        let unreadable = |why: &str| TaskError::Unreadable { path: path.display().to_string(), why: why.to_owned() };
        if path.is_dir() {
            return harbor::load(path);
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error.to_string()))?;
        let tasks = Self::parse(&path.display().to_string(), &text)?;
        if tasks.is_empty() {
            return Err(unreadable("it has no tasks"));
        }
        Ok(tasks)
    }

    /// The tasks of JSON Lines, or of a JSON list; `path` is their name for messages. Empty lines are passed over. Each is a task
    /// of ours or a row of SWE-bench's kind, told apart by their fields.
    ///
    /// # Errors
    /// If one is no task, or has the id of an earlier one.
    pub fn parse(path: &str, text: &str) -> Result<Vec<Self>, TaskError> {
        lines::parse(path, text)
    }

    /// Looks for what no form of a task may say.
    fn check(&self) -> Result<(), String> {
        if self.id.is_empty() {
            return Err("id is empty".to_owned());
        }
        if self.needs.timeout_s == Some(0) || self.verifier.as_ref().is_some_and(|verifier| verifier.timeout_s == Some(0)) {
            return Err("timeout_s is 0; it must be at least 1".to_owned());
        }
        if self.needs.cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus > 0.0)) {
            return Err("cpus must be more than 0".to_owned());
        }
        if let Some(workdir) = self.workdir.as_ref().filter(|workdir| !workdir.starts_with('/') || workdir.len() < 2) {
            return Err(format!("workdir: {workdir:?} is no absolute path of a folder below /"));
        }
        for path in self.files.keys() {
            if !is_inside(path) {
                return Err(format!("files: {path:?} is not a path in the working folder"));
            }
        }
        let brought = self.verifier.iter().flat_map(|verifier| verifier.files.keys());
        for path in brought.chain(self.solution.iter().flat_map(|solution| solution.files.keys())) {
            if !is_inside(path.strip_prefix('/').unwrap_or(path)) || in_memory(path) {
                return Err(format!(
                    "files: {path:?} can't be put there; name a path in the working folder, or one like /tests/x"
                ));
            }
        }
        Ok(())
    }
}

/// A path without a step upwards, of a file.
fn is_inside(path: &str) -> bool {
    let steps = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    !path.is_empty() && !path.ends_with('/') && Path::new(path).components().all(steps)
}

/// Places that a sandbox has in memory or from the host: no file is copied there.
fn in_memory(path: &str) -> bool {
    ["/tmp/", "/proc/", "/sys/", "/dev/", "/run/gleaner/", "/opt/gleaner/", "/opt/harness/"]
        .iter()
        .any(|place| path.starts_with(place))
}

impl User {
    /// Root.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };

    /// A user as tasks name one: `root`, a number, or `uid:gid`.
    ///
    /// # Errors
    /// If it is another name: only the image knows whose that is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        match (text, uid.parse(), gid.parse()) {
            ("root", ..) => Ok(Self::ROOT),
            (_, Ok(uid), Ok(gid)) => Ok(Self { uid, gid }),
            _ => {
                Err(format!("user {text:?}: give its number, or uid:gid; names other than root are known inside the image only"))
            }
        }
    }
}
