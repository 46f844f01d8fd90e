//! Tasks as lines of JSON: our own, and rows of SWE-bench's kind.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Needs, Place, Scoring, Solution, Task, TaskError, TaskFile, TaskImage, TestLog, User, Verifier, shell, swe};
use crate::engine::parse_memory;
use crate::harness::spec::nearest;

pub(super) fn parse(path: &str, text: &str) -> Result<Vec<Task>, TaskError> {
    let faulty = |place: String, why: String| TaskError::Faulty { path: path.to_owned(), place, why };
    let list: Vec<&RawValue>;
    let items: Vec<(String, &str)> = if text.trim_start().starts_with('[') {
        list = serde_json::from_str(text)
            .map_err(|error| TaskError::Unreadable { path: path.to_owned(), why: format!("it is no JSON list: {error}") })?;
        list.iter().enumerate().map(|(at, item)| (format!("item {}", at + 1), item.get())).collect()
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(at, line)| (format!("line {}", at + 1), line)).collect()
    };
    let mut tasks: Vec<Task> = Vec::with_capacity(items.len());
    let mut ids = std::collections::HashSet::new();
    for (place, item) in items {
        let read = read(item).and_then(|task| task.check().map(|()| task));
        let task = read.map_err(|why| faulty(place.clone(), why))?;
        if !ids.insert(task.id.clone()) {
            return Err(faulty(place, format!("there is a task with the id {} already", task.id)));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

fn read(text: &str) -> Result<Task, String> {
    if let Ok(row) = serde_json::from_str::<Map<String, Value>>(text)
        && swe::is_row(&row)
    {
        return swe::task(row);
    }
    serde_json::from_str::<Line>(text).map_err(|error| explain(&error)).and_then(Line::into_task)
}

/// A task as a line of ours has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    prompt: String,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    workdir: Option<String>,
    #[serde(default)]
    user: Option<UserName>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    verify: Option<Check>,
    #[serde(default)]
    solution: Option<Solved>,
    #[serde(default)]
    patch: Option<Patch>,
    #[serde(default)]
    artifacts: Vec<String>,
    #[serde(default)]
    timeout_s: Option<u64>,
    #[serde(default)]
    cpus: Option<f64>,
    #[serde(default)]
    memory: Option<Memory>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

impl Line {
    fn into_task(self) -> Result<Task, String> {
        let patch = match self.patch {
            Some(Patch::Since(commit)) => Some(commit),
            Some(Patch::Kept(true)) => Some(String::new()),
            Some(Patch::Kept(false)) | None => None,
        };
        let verifier = self.verify.map(|check| check.0.into_verifier(patch.is_some())).transpose()?;
        Ok(Task {
            id: self.id,
            prompt: self.prompt,
            image: self.image.map_or(TaskImage::Default, TaskImage::Named),
            workdir: self.workdir,
            user: self.user.map(UserName::user).transpose()?,
            env: self.env,
            files: self.files,
            folders: Vec::new(),
            verifier,
            solution: self.solution.map(|solved| solved.0.into_solution()),
            patch,
            artifacts: self.artifacts,
            needs: Needs {
                timeout_s: self.timeout_s,
                cpus: self.cpus,
                memory_bytes: self.memory.map(Memory::bytes).transpose()?,
                disk_bytes: None,
            },
            metadata: self.metadata,
        })
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "user: it must be a number, or a text as in \"root\" or \"1000:1000\"")]
enum UserName {
    Number(u32),
    Text(String),
}

impl UserName {
    fn user(self) -> Result<User, String> {
        match self {
            Self::Number(uid) => Ok(User { uid, gid: uid }),
            Self::Text(text) => User::parse(&text),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "patch: it must be true, false or a commit")]
enum Patch {
    Kept(bool),
    Since(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "memory: it must be a number of bytes, or a text as in \"2g\"")]
enum Memory {
    Bytes(u64),
    Text(String),
}

impl Memory {
    fn bytes(self) -> Result<u64, String> {
        let bytes = match &self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Text(text) => parse_memory(text),
        };
        bytes
            .filter(|bytes| *bytes >= 6 << 20)
            .ok_or_else(|| "memory must be at least 6 MiB: bytes, or text as in \"2g\"".to_owned())
    }
}

/// A shell command, or program and arguments.
#[derive(Deserialize)]
#[serde(untagged, expecting = "command: it must be a shell command, or a list of words")]
enum Command {
    Shell(String),
    Words(Vec<String>),
}

impl Command {
    fn words(self) -> Vec<String> {
        match self {
            Self::Shell(command) => shell(&command),
            Self::Words(words) => words,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "rewards: it must be a path, or a list of paths")]
enum Names {
    One(String),
    Several(Vec<String>),
}

/// What `verify` says when it is an object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Checks {
    command: Command,
    /// In a fresh sandbox; of the image with the patch, if the task has one. That is also the default then.
    #[serde(default)]
    fresh: Option<bool>,
    #[serde(default)]
    network: bool,
    #[serde(default)]
    user: Option<UserName>,
    #[serde(default)]
    timeout_s: Option<u64>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The file that it writes its rewards to, or several, of which the first counts.
    #[serde(default)]
    rewards: Option<Names>,
    /// Names of tests that it prints, all of which must have passed.
    #[serde(default)]
    tests: Option<Vec<String>>,
    #[serde(default)]
    log: Log,
    /// Files of the repository that are put back before it, beside those of `tests`.
    #[serde(default)]
    restore: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Log {
    #[default]
    Pytest,
    Unittest,
}

impl Checks {
    fn into_verifier(self, patched: bool) -> Result<Verifier, String> {
        let command = self.command.words();
        if command.is_empty() {
            return Err("verify: command is empty".to_owned());
        }
        let form = match self.log {
            Log::Pytest => TestLog::Pytest,
            Log::Unittest => TestLog::Unittest,
        };
        let place = match (patched, self.fresh) {
            (true, None | Some(true)) => Place::Patched,
            (false, Some(true)) => Place::Copy,
            _ => Place::After,
        };
        let mut restore = self.restore;
        if !restore.is_empty() && place != Place::Patched {
            return Err("verify: restore needs a patch, and fresh not set to false".to_owned());
        }
        let scoring = match (self.rewards, self.tests) {
            (Some(_), Some(_)) => return Err("verify: give rewards or tests, not both".to_owned()),
            (Some(Names::One(path)), None) => Scoring::Files(vec![path]),
            (Some(Names::Several(paths)), None) => Scoring::Files(paths),
            (None, Some(must_pass)) => {
                if place == Place::Patched {
                    restore.extend(swe::files_of(&must_pass));
                }
                Scoring::Tests { must_pass, must_hold: Vec::new(), form }
            }
            (None, None) => Scoring::ExitCode,
        };
        Ok(Verifier {
            command,
            env: self.env,
            files: self.files.into_iter().map(|(path, text)| (path, TaskFile::text(&text))).collect(),
            clear: Vec::new(),
            place,
            tests: super::TestPatch { restore, patch: None },
            user: self.user.map(UserName::user).transpose()?,
            network: self.network,
            timeout_s: self.timeout_s,
            scoring,
        })
    }

    fn of(command: Command) -> Self {
        Self {
            command,
            fresh: None,
            network: false,
            user: None,
            timeout_s: None,
            files: BTreeMap::new(),
            env: BTreeMap::new(),
            rewards: None,
            tests: None,
            log: Log::Pytest,
            restore: Vec::new(),
        }
    }
}

/// A shell command or an object. Told apart by hand: so a fault in the object names its field.
struct Check(Checks);

impl<'de> Deserialize<'de> for Check {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object_or_command("verify", deserializer, Checks::of).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Solving {
    command: Command,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    network: bool,
}

impl Solving {
    fn into_solution(self) -> Solution {
        let files = self.files.into_iter().map(|(path, text)| (path, TaskFile::text(&text))).collect();
        Solution { command: self.command.words(), env: self.env, files, network: self.network }
    }
}

struct Solved(Solving);

impl<'de> Deserialize<'de> for Solved {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let of = |command| Solving { command, env: BTreeMap::new(), files: BTreeMap::new(), network: false };
        object_or_command("solution", deserializer, of).map(Self)
    }
}

fn object_or_command<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned>(
    field: &str,
    deserializer: D,
    of: impl FnOnce(Command) -> T,
) -> Result<T, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(command) => Ok(of(Command::Shell(command))),
        value @ Value::Object(_) => serde_json::from_value(value).map_err(|error| D::Error::custom(format!("{field}: {error}"))),
        _ => Err(D::Error::custom(format!("{field}: it must be a shell command, or an object with a command"))),
    }
}

/// A fault of a line, with the known field that an unknown one probably meant.
fn explain(error: &serde_json::Error) -> String {
    let message = error.to_string();
    // There is one line only: the reader's own line number would mislead.
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next().filter(|_| message.contains("unknown field")).and_then(|name| nearest(name, quoted)) {
        Some(near) => format!("{message} (did you mean {near}?)"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
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
        let list = format!("[{}]", text.trim().replace("\n\n", ",\n"));
        assert_eq!(Task::parse("t", &list).unwrap(), tasks);
    }

    #[test]
    fn a_line_may_say_all_that_there_is() {
        let line = serde_json::json!({
            "id": "a", "prompt": "p", "image": "i", "workdir": "/app", "user": 7, "env": {"A": "b"}, "patch": true,
            "artifacts": ["out.txt"], "cpus": 0.5, "memory": "1g", "metadata": {"k": 1},
            "verify": {
                "command": ["pytest"], "network": true, "user": "root", "timeout_s": 9, "files": {"/tests/x.py": "#!x"},
                "env": {"C": "d"}, "tests": ["tests/t.py::a"], "restore": ["setup.cfg"],
            },
            "solution": {"command": "make", "network": true},
        });
        let task = Task::parse("t", &line.to_string()).unwrap().remove(0);
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let verifier = Verifier {
            command: vec!["pytest".to_owned()],
            env: map("C", "d"),
            files: BTreeMap::from([("/tests/x.py".to_owned(), TaskFile { content: b"#!x".to_vec(), mode: 0o755 })]),
            place: Place::Patched,
            tests: super::super::TestPatch { restore: ["setup.cfg", "tests/t.py"].map(str::to_owned).to_vec(), patch: None },
            user: Some(User::ROOT),
            network: true,
            timeout_s: Some(9),
            scoring: Scoring::Tests { must_pass: vec!["tests/t.py::a".to_owned()], must_hold: Vec::new(), form: TestLog::Pytest },
            ..Verifier::default()
        };
        let expected = Task {
            id: "a".to_owned(),
            image: TaskImage::Named("i".to_owned()),
            workdir: Some("/app".to_owned()),
            user: Some(User { uid: 7, gid: 7 }),
            env: map("A", "b"),
            verifier: Some(verifier),
            solution: Some(Solution { command: shell("make"), network: true, ..Solution::default() }),
            patch: Some(String::new()),
            artifacts: vec!["out.txt".to_owned()],
            needs: Needs { cpus: Some(0.5), memory_bytes: Some(1 << 30), ..Needs::default() },
            metadata: Map::from_iter([("k".to_owned(), 1.into())]),
            ..Task::of_prompt("p")
        };
        assert_eq!(task, expected);
    }

    #[test]
    fn where_a_verifier_runs_follows_from_the_patch() {
        let place = |more: &str| {
            let line = format!("{{\"id\":\"a\",\"prompt\":\"p\"{more}}}");
            Task::parse("t", &line).unwrap().remove(0).verifier.unwrap().place
        };
        assert_eq!(place(r#","verify":"x""#), Place::After);
        assert_eq!(place(r#","verify":{"command":"x","fresh":true}"#), Place::Copy);
        assert_eq!(place(r#","patch":true,"verify":"x""#), Place::Patched);
        assert_eq!(place(r#","patch":true,"verify":{"command":"x","fresh":false}"#), Place::After);
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
        let with = |more: &str| error(&format!("{{\"id\":\"b\",\"prompt\":\"q\",{more}}}"));
        let nested = with(r#""verify":{"comand":"x"}"#);
        assert!(nested.starts_with("t, line 2: verify: unknown field `comand`"), "{nested}");
        assert!(nested.ends_with("(did you mean command?)"), "{nested}");
        assert_eq!(with(r#""verify":3"#), "t, line 2: verify: it must be a shell command, or an object with a command");
        assert_eq!(
            with(r#""user":"agent""#),
            "t, line 2: user \"agent\": give its number, or uid:gid; names other than root are known inside the image only"
        );
        assert_eq!(with(r#""memory":"2""#), "t, line 2: memory must be at least 6 MiB: bytes, or text as in \"2g\"");
        assert_eq!(with(r#""workdir":"app""#), "t, line 2: workdir: \"app\" is no absolute path of a folder below /");
        let tmp = with(r#""verify":{"command":"x","files":{"/tmp/x":""}}"#);
        assert!(tmp.starts_with("t, line 2: files: \"/tmp/x\" can't be put there"), "{tmp}");
        let list = Task::parse("t", r#"[{"id":"a","prompt":"p"},{"id":"b"}]"#).unwrap_err().to_string();
        assert_eq!(list, "t, item 2: missing field `prompt`");
    }
}
