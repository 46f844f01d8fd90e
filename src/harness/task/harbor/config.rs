//! Harbor's `task.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::engine::parse_memory;
use crate::harness::spec::nearest;
use crate::harness::task::User;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub task: Option<Package>,
    pub verifier: VerifierConfig,
    pub agent: AgentConfig,
    pub environment: EnvironmentConfig,
    pub solution: SolutionConfig,
    pub steps: Option<Vec<toml::Value>>,
    pub artifacts: Vec<Artifact>,
}

#[derive(Deserialize)]
pub(super) struct Package {
    pub name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct VerifierConfig {
    pub timeout_sec: Option<f64>,
    pub env: BTreeMap<String, String>,
    pub user: Option<UserName>,
    pub network_mode: Option<NetworkMode>,
    pub environment_mode: Option<String>,
    pub environment: Option<toml::Value>,
    pub collect: Vec<toml::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AgentConfig {
    pub timeout_sec: Option<f64>,
    pub user: Option<UserName>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct EnvironmentConfig {
    pub docker_image: Option<String>,
    pub os: Option<String>,
    pub cpus: Option<f64>,
    pub memory: Option<Limit>,
    pub memory_mb: Option<u64>,
    pub storage: Option<Limit>,
    pub storage_mb: Option<u64>,
    pub gpus: Option<u64>,
    pub tpu: Option<toml::Value>,
    pub mcp_servers: Vec<toml::Value>,
    pub env: BTreeMap<String, String>,
    pub healthcheck: Option<toml::Value>,
    pub workdir: Option<String>,
    pub network_mode: Option<NetworkMode>,
    pub allow_internet: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SolutionConfig {
    pub env: BTreeMap<String, String>,
}

/// Which way out a part of a task has. A list of hosts is not kept to: who runs tests may reach all.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NetworkMode {
    NoNetwork,
    Public,
    Allowlist,
}

impl NetworkMode {
    pub(super) fn of(allow_internet: bool) -> Self {
        if allow_internet { Self::Public } else { Self::NoNetwork }
    }

    pub(super) fn is_outside(self) -> bool {
        !matches!(self, Self::NoNetwork)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a user: its number, or a text as in \"root\"")]
pub(super) enum UserName {
    Number(u32),
    Text(String),
}

impl UserName {
    pub(super) fn user(self) -> Result<User, String> {
        match self {
            Self::Number(uid) => Ok(User { uid, gid: uid }),
            Self::Text(text) => User::parse(&text),
        }
    }
}

/// An amount of bytes as older tasks have it (`"2G"`), or a number of MB.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an amount as in \"2G\"")]
pub(super) enum Limit {
    Text(String),
    Megabytes(u64),
}

impl Limit {
    pub(super) fn bytes(field: &str, old: Option<&Self>, megabytes: Option<u64>) -> Result<Option<u64>, String> {
        let old = match old {
            Some(Self::Text(text)) => {
                Some(parse_memory(text).ok_or_else(|| format!("task.toml: {field}: {text:?} is no amount as in \"2G\""))?)
            }
            Some(Self::Megabytes(number)) => number.checked_mul(1 << 20),
            None => None,
        };
        Ok(megabytes.and_then(|number| number.checked_mul(1 << 20)).or(old).filter(|bytes| *bytes > 0))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an artifact: a path, or a table with a source")]
pub(super) enum Artifact {
    Path(String),
    Entry { source: String },
}

impl Artifact {
    pub(super) fn source(&self) -> &str {
        match self {
            Self::Path(source) | Self::Entry { source } => source,
        }
    }
}

/// The fields that are acted on or looked at, by section; all others are kept.
const KNOWN: [(&str, &[&str]); 5] = [
    ("task", &["name"]),
    ("verifier", &["timeout_sec", "env", "user", "network_mode", "environment_mode", "environment", "collect"]),
    ("agent", &["timeout_sec", "user"]),
    (
        "environment",
        &[
            "docker_image",
            "os",
            "cpus",
            "memory",
            "memory_mb",
            "storage",
            "storage_mb",
            "gpus",
            "tpu",
            "mcp_servers",
            "env",
            "healthcheck",
            "workdir",
            "network_mode",
            "allow_internet",
        ],
    ),
    ("solution", &["env"]),
];
/// Known to Harbor and without a meaning here; no slip of the pen.
const OTHERS: [&str; 11] = [
    "version",
    "description",
    "authors",
    "keywords",
    "allowed_hosts",
    "build_timeout_sec",
    "gpu_types",
    "skills_dir",
    "schema_version",
    "source",
    "multi_step_reward_strategy",
];

impl Config {
    /// Reads a `task.toml`, and gives its metadata: the section of that name, and in `harbor` what is not known here.
    pub(super) fn read(text: &str) -> Result<(Self, Map<String, Value>), String> {
        let config: Self = toml::from_str(text).map_err(|error| explain(text, &error))?;
        let mut table: toml::Table = toml::from_str(text).map_err(|error| explain(text, &error))?;
        let mut metadata = match table.remove("metadata").map(json) {
            Some(Value::Object(metadata)) => metadata,
            Some(_) => return Err("task.toml: metadata is no table".to_owned()),
            None => Map::new(),
        };
        for name in ["steps", "artifacts"] {
            table.remove(name);
        }
        let mut rest = Map::new();
        for (section, value) in table {
            match (KNOWN.iter().find(|(name, _)| *name == section), value) {
                (Some((_, known)), toml::Value::Table(fields)) => {
                    let unknown = fields.into_iter().filter(|(field, _)| !known.contains(&&**field));
                    let unknown: Map<String, Value> = unknown.map(|(field, value)| (field, json(value))).collect();
                    unknown.keys().for_each(|field| warn(&format!("{section}.{field}"), field, known));
                    if !unknown.is_empty() {
                        rest.insert(section, Value::Object(unknown));
                    }
                }
                (_, value) => {
                    warn(&section, &section, &KNOWN.map(|(name, _)| name));
                    rest.insert(section, json(value));
                }
            }
        }
        if !rest.is_empty() {
            metadata.insert("harbor".to_owned(), Value::Object(rest));
        }
        Ok((config, metadata))
    }
}

fn warn(path: &str, field: &str, known: &[&str]) {
    if !OTHERS.contains(&field)
        && let Some(near) = nearest(field, known.iter().copied())
    {
        tracing::warn!("task.toml: {path} is not known and only kept (did you mean {near}?)");
    }
}

/// A fault with its line, and what stands there.
fn explain(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else { return format!("task.toml: {}", error.message()) };
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count();
    let shown = text.lines().nth(line).unwrap_or_default().trim();
    format!("task.toml, line {} ({shown}): {}", line + 1, error.message())
}

fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(json).collect(),
        toml::Value::Table(fields) => Value::Object(fields.into_iter().map(|(name, value)| (name, json(value))).collect()),
    }
}

/// Values of an environment. `${NAME}` and `${NAME:-default}` stand for the host's `GLEANER_TASK_NAME`: under their own names a task
/// could take whatever keys there are.
pub(super) fn resolve(section: &str, values: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let host = |name: &str| std::env::var(format!("GLEANER_TASK_{name}")).ok();
    values
        .iter()
        .map(|(name, value)| Ok((name.clone(), fill(value, host).map_err(|why| format!("task.toml: {section}.{name}: {why}"))?)))
        .collect()
}

fn fill(value: &str, host: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let Some(inner) = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else { return Ok(value.to_owned()) };
    let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
    host(name)
        .or_else(|| default.map(str::to_owned))
        .ok_or_else(|| format!("set GLEANER_TASK_{name}: the task wants to be given {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_host_are_given_by_name_only() {
        let host = |name: &str| (name == "KEY").then(|| "k".to_owned());
        assert_eq!(fill("plain $X", host), Ok("plain $X".to_owned()));
        assert_eq!(fill("${KEY}", host), Ok("k".to_owned()));
        assert_eq!(fill("${OTHER:-d}", host), Ok("d".to_owned()));
        assert_eq!(fill("${OTHER}", host), Err("set GLEANER_TASK_OTHER: the task wants to be given OTHER".to_owned()));
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let text = "version = \"1.0\"\n[metadata]\ndifficulty = \"easy\"\n[agent]\ntimeout_sec = 5\nnew = [1]\n[extra]\na = 2020-01-01\n";
        let (config, metadata) = Config::read(text).unwrap();
        assert_eq!(config.agent.timeout_sec, Some(5.0));
        let expected = serde_json::json!({
            "difficulty": "easy", "harbor": {"version": "1.0", "agent": {"new": [1]}, "extra": {"a": "2020-01-01"}},
        });
        assert_eq!(Value::Object(metadata), expected);
    }

    #[test]
    fn a_fault_has_its_line() {
        let error = Config::read("[verifier]\ntimeout_sec = \"long\"\n").err().unwrap();
        assert_eq!(error, "task.toml, line 2 (timeout_sec = \"long\"): invalid type: string \"long\", expected f64");
    }
}
