//! What a harness is asked: a prompt, or tasks of a JSON Lines file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::harness::spec::nearest;

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
    /// Texts by their path in the working folder, there before the harness starts.
    pub files: BTreeMap<String, String>,
    pub verifier: Option<Verifier>,
    /// What solves it, for an oracle run.
    pub solution: Option<Solution>,
    /// Whether what the harness changed in the working folder's repository is kept as a patch, and since which commit; since the one
    /// that stands there at the start if the text is empty.
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
    /// Files that come in only now: by their absolute path, with their permissions.
    pub files: BTreeMap<String, TaskFile>,
    pub place: Place,
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
        Self { command: ["sh", "-c", command].map(str::to_owned).to_vec(), ..Self::default() }
    }
}

/// A file of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskFile {
    pub content: Vec<u8>,
    pub mode: u32,
}

/// Where a verifier runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In the harness's own sandbox once it has ended, if its user and network are those; else in a fresh one with its files.
    #[default]
    After,
    /// In a fresh sandbox of the task's own image, in which the harness's patch has been applied.
    Patched,
}

/// How a verifier's end becomes rewards.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scoring {
    /// Exit code 0 is 1, any other 0.
    #[default]
    ExitCode,
    /// Files that it writes: the first that is there counts. JSON objects are rewards by name, text is one number.
    Files(Vec<String>),
    /// The names of tests that must pass, in what it prints.
    Tests { must_pass: Vec<String>, form: TestLog },
}

/// How a test runner prints what passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TestLog {
    #[default]
    Pytest,
    Unittest,
}

/// What solves a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// Program and arguments, run in the working folder.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// By their absolute path.
    pub files: BTreeMap<String, TaskFile>,
    /// Whether it reaches the outside.
    pub network: bool,
}

/// A task as a line of JSON Lines has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    prompt: String,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    verify: Option<String>,
    #[serde(default)]
    timeout_s: Option<u64>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

impl Line {
    fn into_task(self) -> Task {
        Task {
            id: self.id,
            prompt: self.prompt,
            image: self.image.map_or(TaskImage::Default, TaskImage::Named),
            files: self.files,
            verifier: self.verify.map(|verify| Verifier::shell(&verify)),
            needs: Needs { timeout_s: self.timeout_s, ..Needs::default() },
            metadata: self.metadata,
            ..Task::default()
        }
    }
}

/// What is wrong with tasks; all of it for the user to mend.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("reading tasks from {path}: {why}")]
    Unreadable { path: String, why: String },
    #[error("{path}, line {line}: {why}")]
    Line { path: String, line: usize, why: String },
}

impl Task {
    /// A task that is a prompt and nothing else.
    #[must_use]
    pub fn of_prompt(prompt: &str) -> Self {
        Self { id: "prompt".to_owned(), prompt: prompt.to_owned(), ..Self::default() }
    }

    /// The tasks of a file.
    ///
    /// # Errors
    /// If it can't be read, has no task, or a line is none; the line and the field are named.
    pub fn load(path: &Path) -> Result<Vec<Self>, TaskError> {
        let unreadable = |why: &str| TaskError::Unreadable { path: path.display().to_string(), why: why.to_owned() };
        if path.is_dir() {
            return Err(unreadable("task folders come in a later version; give a JSON Lines file"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error.to_string()))?;
        let tasks = Self::parse(&path.display().to_string(), &text)?;
        if tasks.is_empty() {
            return Err(unreadable("it has no tasks"));
        }
        Ok(tasks)
    }

    /// The tasks of JSON Lines; `path` is their name for messages. Empty lines are passed over.
    ///
    /// # Errors
    /// If a line is no task, or has the id of an earlier one.
    pub fn parse(path: &str, text: &str) -> Result<Vec<Self>, TaskError> {
        let mut tasks: Vec<Self> = Vec::new();
        for (line, content) in text.lines().enumerate().filter(|(_, content)| !content.trim().is_empty()) {
            let wrong = |why: String| TaskError::Line { path: path.to_owned(), line: line + 1, why };
            let line: Line = serde_json::from_str(content).map_err(|error| wrong(explain(&error)))?;
            let task = line.into_task();
            task.check().map_err(wrong)?;
            if tasks.iter().any(|earlier| earlier.id == task.id) {
                return Err(wrong(format!("there is a task with the id {} already", task.id)));
            }
            tasks.push(task);
        }
        Ok(tasks)
    }

    fn check(&self) -> Result<(), String> {
        if self.id.is_empty() {
            return Err("id is empty".to_owned());
        }
        if self.needs.timeout_s == Some(0) {
            return Err("timeout_s is 0; it must be at least 1".to_owned());
        }
        for path in self.files.keys() {
            let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            if path.is_empty() || path.ends_with('/') || !inside {
                return Err(format!("files: {path:?} is not a path in the working folder"));
            }
        }
        Ok(())
    }

    /// The task's files as a tar archive for the working folder, owned by `user`.
    ///
    /// # Errors
    /// If a path is too long for an archive.
    pub fn archive(&self, user: User) -> std::io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut folders = std::collections::BTreeSet::new();
        for (path, content) in &self.files {
            for folder in Path::new(path).ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
                folders.insert(folder.to_owned());
            }
            let mut header = header(user, content.len() as u64, 0o644);
            // A script is a script by its first two bytes.
            if content.starts_with("#!") {
                header.set_mode(0o755);
            }
            archive.append_data(&mut header, path, content.as_bytes())?;
        }
        for folder in folders {
            let mut header = header(user, 0, 0o755);
            header.set_entry_type(tar::EntryType::Directory);
            archive.append_data(&mut header, folder, std::io::empty())?;
        }
        archive.into_inner()
    }
}

fn header(user: User, size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_uid(user.uid.into());
    header.set_gid(user.gid.into());
    header.set_size(size);
    header.set_mode(mode);
    header
}

/// A fault of a line, with the known field that an unknown one probably meant.
fn explain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    // There is one line only: the reader's own line number would mislead.
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next().filter(|_| message.starts_with("unknown field")).and_then(|name| nearest(name, quoted)) {
        Some(near) => format!("{message} (did you mean {near}?)"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn lines_become_tasks() {
        let text = "{\"id\":\"a\",\"prompt\":\"p\"}\n\n{\"id\":\"b\",\"prompt\":\"q\",\"files\":{\"x/y\":\"z\"},\"verify\":\"true\",\"timeout_s\":5}\n";
        let tasks = Task::parse("t", text).unwrap();
        let first = Task { id: "a".to_owned(), ..Task::of_prompt("p") };
        let files = BTreeMap::from([("x/y".to_owned(), "z".to_owned())]);
        let verifier = Verifier::shell("true");
        let needs = Needs { timeout_s: Some(5), ..Needs::default() };
        let second = Task { id: "b".to_owned(), files, verifier: Some(verifier), needs, ..Task::of_prompt("q") };
        assert_eq!(tasks, [first, second]);
    }

    #[test]
    fn faults_name_line_and_field() {
        let error =
            |line: &str| Task::parse("t", &format!("{{\"id\":\"a\",\"prompt\":\"p\"}}\n{line}\n")).unwrap_err().to_string();
        assert!(error(r#"{"id":"b","promt":"q"}"#).starts_with("t, line 2: unknown field `promt`"));
        assert!(error(r#"{"id":"b","promt":"q"}"#).ends_with("(did you mean prompt?)"));
        assert_eq!(error(r#"{"id":"b"}"#), "t, line 2: missing field `prompt`");
        assert_eq!(error(r#"{"id":"a","prompt":"q"}"#), "t, line 2: there is a task with the id a already");
        for path in ["../x", "/etc/x", "", "x/"] {
            let line = format!("{{\"id\":\"b\",\"prompt\":\"q\",\"files\":{{\"{path}\":\"\"}}}}");
            assert_eq!(error(&line), format!("t, line 2: files: {path:?} is not a path in the working folder"));
        }
    }

    #[test]
    fn the_archive_holds_files_and_their_folders() {
        let files = [("run.sh", "#!/bin/sh\n"), ("a/b/c.txt", "text")].map(|(path, text)| (path.to_owned(), text.to_owned()));
        let task = Task { files: files.into(), ..Task::of_prompt("p") };
        let bytes = task.archive(User { uid: 1000, gid: 1000 }).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            seen.push((entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.uid().unwrap(), text));
        }
        let expected = [("a/b/c.txt", 0o644, "text"), ("run.sh", 0o755, "#!/bin/sh\n"), ("a", 0o755, ""), ("a/b", 0o755, "")];
        assert_eq!(seen, expected.map(|(path, mode, text)| (path.to_owned(), mode, 1000, text.to_owned())));
    }
}
