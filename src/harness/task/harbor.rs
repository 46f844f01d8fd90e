//! Harbor's task folders, as they are: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`, `solution/solve.sh`.
//! What it can say and is not acted on here is refused where ignoring it would change what the task is; else it is kept in the
//! metadata.

mod config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::archive::{below, read_tree};
use super::{Needs, Place, Scoring, Solution, Task, TaskError, TaskFile, TaskImage, User, Verifier, shell};
use config::{Config, Limit, NetworkMode, UserName};

/// Where a sandbox has what the folders hold, and where rewards are written.
const TESTS: &str = "/tests";
const SOLUTION: &str = "/solution";
const REWARDS: [&str; 2] = ["/logs/verifier/reward.json", "/logs/verifier/reward.txt"];
/// Where what is to be kept of a run is put without being named.
const KEPT: &str = "/logs/artifacts";
/// What a verifier may take where the task does not say, in seconds.
const VERIFY_TIMEOUT_S: f64 = 600.0;

/// The task of a folder, or the tasks of the folders in it, by name.
pub(super) fn load(folder: &Path) -> Result<Vec<Task>, TaskError> {
    let name = folder.display().to_string();
    let unreadable = |why: String| TaskError::Unreadable { path: name.clone(), why };
    if folder.join("task.toml").is_file() {
        return Ok(vec![task(folder).map_err(unreadable)?]);
    }
    let entries =
        std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
    let mut folders: Vec<PathBuf> = entries.map_err(|error| unreadable(error.to_string()))?;
    folders.retain(|path| path.join("task.toml").is_file());
    folders.sort();
    if folders.is_empty() {
        let old = folder.join("task.yaml").is_file();
        let why = if old {
            "it is a task of terminal-bench's old form (task.yaml); convert it: harbor task migrate"
        } else {
            "neither it nor a folder in it has a task.toml"
        };
        return Err(unreadable(why.to_owned()));
    }
    let (mut tasks, mut faults) = (Vec::<Task>::new(), Vec::new());
    for path in folders {
        match task(&path) {
            Ok(task) if tasks.iter().any(|earlier| earlier.id == task.id) => {
                faults.push(format!("{}: there is a task with the id {} already", path.display(), task.id));
            }
            Ok(task) => tasks.push(task),
            Err(why) => faults.push(format!("{}: {why}", path.display())),
        }
    }
    if faults.is_empty() { Ok(tasks) } else { Err(TaskError::Several { path: name, faults }) }
}

/// A file's text. Nothing else than a file is opened: a pipe would wait for who writes to it.
fn text(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    std::fs::read_to_string(path)
}

fn task(folder: &Path) -> Result<Task, String> {
    let read = |name: &str| text(&folder.join(name)).map_err(|error| format!("{name}: {error}"));
    let (config, metadata) = Config::read(&read("task.toml")?)?;
    refuse(folder, &config)?;
    let environment = &config.environment;
    let outside = environment.network_mode.or(environment.allow_internet.map(NetworkMode::of)).unwrap_or(NetworkMode::Public);
    let user = config.agent.user.map_or(Ok(User::ROOT), UserName::user).map_err(|why| format!("task.toml: agent.{why}"))?;
    let named = config.task.as_ref().map(|task| task.name.clone());
    let id = named.or_else(|| Some(folder.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned()));
    let seconds =
        |time: f64, field: &str| whole(time).ok_or_else(|| format!("task.toml: {field} is {time}; it must be more than 0"));
    let task = Task {
        id: id.unwrap_or_default(),
        prompt: without_canary(&read("instruction.md")?).to_owned(),
        image: image(folder, environment.docker_image.as_deref())?,
        workdir: environment.workdir.clone(),
        user: Some(user),
        env: config::resolve("environment.env", &environment.env)?,
        files: BTreeMap::new(),
        folders: ["/logs/agent", KEPT].map(str::to_owned).to_vec(),
        verifier: Some(Verifier {
            command: shell(&format!("{TESTS}/test.sh")),
            env: config::resolve("verifier.env", &config.verifier.env)?,
            files: script(folder, "tests", "test.sh", TESTS)?,
            clear: [TESTS, "/logs/verifier"].map(str::to_owned).to_vec(),
            place: Place::After,
            user: config.verifier.user.map(UserName::user).transpose().map_err(|why| format!("task.toml: verifier.{why}"))?,
            network: config.verifier.network_mode.unwrap_or(outside).is_outside(),
            timeout_s: Some(seconds(config.verifier.timeout_sec.unwrap_or(VERIFY_TIMEOUT_S), "verifier.timeout_sec")?),
            scoring: Scoring::Files(REWARDS.map(str::to_owned).to_vec()),
            ..Verifier::default()
        }),
        solution: if folder.join("solution/solve.sh").is_file() {
            let mut env = config::resolve("solution.env", &config.solution.env)?;
            env.entry("DEBIAN_FRONTEND".to_owned()).or_insert_with(|| "noninteractive".to_owned());
            let files = script(folder, "solution", "solve.sh", SOLUTION)?;
            Some(Solution { command: shell(&format!("{SOLUTION}/solve.sh")), env, files, network: outside.is_outside() })
        } else {
            None
        },
        patch: None,
        artifacts: config.artifacts.iter().map(config::Artifact::source).chain([KEPT]).map(str::to_owned).collect(),
        needs: Needs {
            timeout_s: config.agent.timeout_sec.map(|time| seconds(time, "agent.timeout_sec")).transpose()?,
            cpus: environment.cpus,
            memory_bytes: Limit::bytes("environment.memory", environment.memory.as_ref(), environment.memory_mb)?,
            disk_bytes: Limit::bytes("environment.storage", environment.storage.as_ref(), environment.storage_mb)?,
        },
        metadata,
    };
    task.check()?;
    Ok(task)
}

/// What a task may ask for and is not here.
fn refuse(folder: &Path, config: &Config) -> Result<(), String> {
    let environment = &config.environment;
    let compose =
        ["docker-compose.yaml", "docker-compose.yml"].into_iter().find(|name| folder.join("environment").join(name).exists());
    let reason = if let Some(name) = compose {
        format!("environment/{name}: tasks of several containers are not run here")
    } else if config.steps.as_ref().is_some_and(|steps| !steps.is_empty()) {
        "task.toml: steps: tasks of several steps are not run here; make a task of each".to_owned()
    } else if config.verifier.environment.is_some() || config.verifier.environment_mode.as_deref() == Some("separate") {
        "task.toml: verifier.environment: a verifier with an environment of its own is not run here".to_owned()
    } else if !config.verifier.collect.is_empty() {
        "task.toml: verifier.collect is not done here; write the files in the task itself".to_owned()
    } else if environment.gpus.is_some_and(|gpus| gpus > 0) || environment.tpu.is_some() {
        "task.toml: environment.gpus: sandboxes have no accelerators".to_owned()
    } else if environment.os.as_deref().is_some_and(|os| !os.eq_ignore_ascii_case("linux")) {
        "task.toml: environment.os: sandboxes are Linux".to_owned()
    } else if !environment.mcp_servers.is_empty() {
        "task.toml: environment.mcp_servers: harnesses have no MCP servers here".to_owned()
    } else if environment.healthcheck.is_some() {
        "task.toml: environment.healthcheck: nothing is started in a sandbox before the harness".to_owned()
    } else if folder.join("trajectory.json").exists() {
        "trajectory.json: a harness begins without a history here".to_owned()
    } else {
        return Ok(());
    };
    Err(reason)
}

fn image(folder: &Path, named: Option<&str>) -> Result<TaskImage, String> {
    let environment = folder.join("environment");
    match named {
        Some(name) => Ok(TaskImage::Named(name.to_owned())),
        None if environment.join("Dockerfile").is_file() => Ok(TaskImage::Built(environment)),
        None => Err("environment/Dockerfile is missing, and task.toml names no environment.docker_image".to_owned()),
    }
}

/// A folder's files as a sandbox gets them; its script can be run.
fn script(folder: &Path, name: &str, script: &str, inside: &str) -> Result<BTreeMap<String, TaskFile>, String> {
    let path = folder.join(name);
    let mut files = if path.is_dir() { read_tree(&path).map_err(|error| error.to_string())? } else { BTreeMap::new() };
    let file = files.get_mut(script).ok_or_else(|| format!("{name}/{script} is missing"))?;
    file.mode |= 0o111;
    Ok(below(inside, files))
}

/// A whole number of seconds, at least 1.
fn whole(seconds: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was looked at")]
    (seconds.is_finite() && seconds > 0.0).then(|| seconds.ceil().min(1e9) as u64)
}

/// The instruction without the lines at its beginning that mark a benchmark's data; a model is not told those.
fn without_canary(text: &str) -> &str {
    let is_mark = |line: &str| {
        let line = line.trim().to_ascii_lowercase();
        line.contains("canary") && (line.starts_with('#') || (line.starts_with("<!--") && line.ends_with("-->")))
    };
    let mut rest = text;
    while let Some(line) = rest.split_inclusive('\n').next().filter(|line| is_mark(line)) {
        rest = &rest[line.len()..];
    }
    while let Some(line) = rest.split_inclusive('\n').next().filter(|line| line.trim().is_empty()) {
        rest = &rest[line.len()..];
    }
    rest
}

#[cfg(test)]
mod tests;
