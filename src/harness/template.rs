//! Fills the templates of a harness: what a sandbox needs to start it on one task.

use std::collections::BTreeMap;

use minijinja::value::ValueKind;
use minijinja::{Environment, UndefinedBehavior, Value};

use super::catalog::Harness;
use super::spec::{Parameter, Spec, SpecError};

/// What the templates of a run may name beside the harness's parameters.
#[derive(Clone, Debug)]
pub struct Variables<'a> {
    /// Where the model answers inside the sandbox. Templates have it as `root_url`, and with `/v1` behind it as `base_url`.
    pub root_url: &'a str,
    /// The rollout's key.
    pub key: &'a str,
    pub prompt: &'a str,
    pub home: &'a str,
    pub workdir: &'a str,
    /// Where the payload is mounted.
    pub payload: &'a str,
    /// Seconds that the run may take.
    pub timeout_s: u64,
    /// The policy's window, if that is known. A parameter `context_window` of the harness is this, unless a user set it.
    pub context_window: Option<u64>,
    /// The rollout's id, a UUID: for a harness that lets its session's id be given.
    pub rollout: &'a str,
}

/// A harness that is ready to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// What stands on its standard input.
    pub stdin: Option<String>,
    pub files: Vec<LaunchFile>,
    /// The result file, if it is not standard output.
    pub result: Option<String>,
    /// Files and folders to keep.
    pub artifacts: Vec<String>,
}

/// A file to write before the start.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchFile {
    pub path: String,
    pub content: String,
    /// Octal.
    pub mode: String,
}

/// The parameter of harnesses that are told how long prompt and reply may be together.
const WINDOW: &str = "context_window";

/// The longest argument that Linux starts a program with, its end's zero byte not counted.
const ARGUMENT_BYTES: usize = 131_071;

impl Launch {
    /// Fills a harness's templates. `spec` is the harness's as it was chosen to run.
    ///
    /// # Errors
    /// If a template is wrong or names what there is not, or an argument is longer than a system takes.
    pub fn fill(harness: &Harness, spec: &Spec, variables: &Variables<'_>) -> Result<Self, SpecError> {
        let templates = Templates::new(spec, variables);
        let mut command = Vec::with_capacity(spec.run.command.len());
        for part in &spec.run.command {
            let argument = templates.fill("run.command", part)?;
            if argument.len() > ARGUMENT_BYTES {
                let why = format!("an argument of {} bytes is longer than a program can be started with", argument.len());
                return Err(SpecError::Unreadable { file: format!("harness {}: run.command", spec.name), why });
            }
            command.push(argument);
        }
        let mut env = Vec::with_capacity(spec.run.env.len());
        for (name, value) in &spec.run.env {
            env.push((name.clone(), templates.fill(&format!("run.env.{name}"), value)?));
        }
        let mut files = Vec::with_capacity(spec.files.len());
        for file in &spec.files {
            let source =
                file.source.as_ref().and_then(|name| harness.files.get(name)).map(|bytes| String::from_utf8_lossy(bytes));
            let content = file.content.as_deref().or(source.as_deref()).unwrap_or_default();
            files.push(LaunchFile {
                path: templates.fill("files.path", &file.path)?,
                content: templates.fill(&file.path, content)?,
                mode: file.mode.clone(),
            });
        }
        let stdin = spec.run.stdin.as_ref().map(|text| templates.fill("run.stdin", text)).transpose()?;
        let result = spec.outcome.file.as_ref().map(|file| templates.fill("outcome.file", file)).transpose()?;
        let artifacts = spec.artifacts.iter().map(|path| templates.fill("artifacts", path)).collect::<Result<_, _>>()?;
        Ok(Self { command, env, stdin, files, result, artifacts })
    }
}

/// The pinned packages of a harness's payload.
///
/// # Errors
/// If their template is wrong.
pub fn packages(spec: &Spec) -> Result<Vec<String>, SpecError> {
    let values = Value::from_iter([("version", Value::from(&spec.version))]);
    let templates = Templates { environment: environment(), values, name: &spec.name };
    spec.payload.packages.iter().map(|package| templates.fill("payload.packages", package)).collect()
}

struct Templates<'a> {
    environment: Environment<'static>,
    values: Value,
    name: &'a str,
}

impl<'a> Templates<'a> {
    fn new(spec: &'a Spec, variables: &Variables<'_>) -> Self {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, value) in &spec.parameters {
            let value = match value {
                Parameter::Integer(number) => Value::from(*number),
                Parameter::Bool(flag) => Value::from(*flag),
                Parameter::Text(text) => Value::from(text),
            };
            values.insert(name, value);
        }
        if let (Some(value), Some(window)) = (values.get_mut(WINDOW), variables.context_window)
            && !spec.chosen.contains(WINDOW)
        {
            *value = Value::from(window);
        }
        values.extend([
            ("root_url", Value::from(variables.root_url)),
            ("base_url", Value::from(format!("{}/v1", variables.root_url))),
            ("wire", Value::from(&spec.wire)),
            ("key", Value::from(variables.key)),
            ("model", Value::from(&spec.run.model)),
            ("prompt", Value::from(variables.prompt)),
            ("home", Value::from(variables.home)),
            ("workdir", Value::from(variables.workdir)),
            ("payload", Value::from(variables.payload)),
            ("timeout_s", Value::from(variables.timeout_s)),
            ("rollout", Value::from(variables.rollout)),
            ("version", Value::from(&spec.version)),
        ]);
        Self { environment: environment(), values: Value::from_iter(values), name: &spec.name }
    }

    fn fill(&self, field: &str, template: &str) -> Result<String, SpecError> {
        self.environment
            .render_str(template, &self.values)
            .map_err(|error| SpecError::Unreadable { file: format!("harness {}: {field}", self.name), why: error.to_string() })
    }
}

/// Strict: a name that there is not is an error, never an empty text. Nothing is escaped but by `tojson`, whose strings TOML
/// reads as well. Truth is written as JSON, TOML, YAML and command lines have it, not as Python does.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_keep_trailing_newline(true);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Bool => Ok(out.write_str(if value.is_true() { "true" } else { "false" })?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Catalog;
    use super::super::choice::Choice;
    use super::*;

    fn fill(name: &str, variant: Option<&str>, prompt: &str) -> Result<Launch, SpecError> {
        fill_with(name, &Choice { variant, ..Choice::default() }, prompt, None)
    }

    fn fill_with(name: &str, choice: &Choice<'_>, prompt: &str, window: Option<u64>) -> Result<Launch, SpecError> {
        let catalog = Catalog::load(None).unwrap();
        let harness = catalog.get(name).unwrap();
        let spec = harness.spec.clone().with(choice).unwrap();
        let variables = Variables {
            root_url: "http://127.0.0.1:8080",
            key: "glr_1",
            prompt,
            home: "/home/agent",
            workdir: "/work",
            payload: "/opt/harness",
            timeout_s: 60,
            context_window: window,
            rollout: "01a23432-c081-7d62-8629-2c2b957be06f",
        };
        Launch::fill(harness, &spec, &variables)
    }

    #[test]
    fn a_harness_is_told_the_policy_s_window_unless_its_user_says_another() {
        let told = |set: &[(String, String)], window| {
            let launch = fill_with("claude-code", &Choice { set, ..Choice::default() }, "p", window).unwrap();
            let value = |name: &str| launch.env.iter().find(|(own, _)| own == name).unwrap().1.clone();
            value("CLAUDE_CODE_MAX_CONTEXT_TOKENS")
        };
        assert_eq!(told(&[], None), "131072");
        assert_eq!(told(&[], Some(40_960)), "40960");
        assert_eq!(told(&[("context_window".to_owned(), "9000".to_owned())], Some(40_960)), "9000");
        // One that has no such parameter gets none.
        fill_with("mini-swe-agent", &Choice::default(), "p", Some(40_960)).unwrap();
    }

    #[test]
    fn codex_gets_its_prompt_as_it_is_and_a_config_that_is_toml() {
        let prompt = "--say \"{{key}}\" & 'ü'\n";
        let launch = fill("codex", None, prompt).unwrap();
        assert_eq!(launch.command.last().unwrap(), prompt);
        let config: toml::Table = launch.files[0].content.parse().unwrap();
        assert_eq!(config["model_providers"]["gleaner"]["base_url"].as_str(), Some("http://127.0.0.1:8080/v1"));
        assert_eq!(launch.files[0].path, "/home/agent/.codex/config.toml");
        assert!(launch.env.contains(&("GLEANER_KEY".to_owned(), "glr_1".to_owned())));
    }

    #[test]
    fn the_text_variant_changes_what_it_names_only() {
        let plain = fill("mini-swe-agent", None, "p").unwrap();
        let text = fill("mini-swe-agent", Some("text"), "p").unwrap();
        let changed: Vec<_> = plain.command.iter().zip(&text.command).filter(|(a, b)| a != b).collect();
        assert_eq!(
            changed,
            [
                (&"litellm".to_owned(), &"litellm_textbased".to_owned()),
                (&"mini.yaml".to_owned(), &"mini_textbased.yaml".to_owned())
            ]
        );
        assert_eq!(plain.env, text.env);
        assert_eq!(plain.result.as_deref(), Some("/home/agent/trajectory.json"));
    }

    #[test]
    fn every_harness_fits_every_wire_that_it_speaks() {
        let (catalog, prompt) = (Catalog::load(None).unwrap(), "a \"b\"\n  {{key}}");
        let other = [("subagents", "true"), ("compaction", "false"), ("context_window", "9000")];
        for harness in catalog.all() {
            let known = |name: &str| harness.spec.parameters.contains_key(name);
            let other =
                other.iter().filter(|(name, _)| known(name)).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let other: Vec<_> = other.collect();
            for (wire, set) in harness.spec.wires().flat_map(|wire| [(wire, &[][..]), (wire, &other)]) {
                let spec = harness.spec.clone().with(&Choice { wire: Some(wire), set, ..Choice::default() }).unwrap();
                let variables = Variables {
                    root_url: "http://127.0.0.1:8080",
                    key: "glr_1",
                    prompt,
                    home: "/home/agent",
                    workdir: "/work",
                    payload: "/opt/harness",
                    timeout_s: 60,
                    context_window: None,
                    rollout: "01a23432-c081-7d62-8629-2c2b957be06f",
                };
                let launch = Launch::fill(harness, &spec, &variables).unwrap();
                let mut said = launch.command.iter().chain(&launch.stdin);
                assert!(said.any(|text| text.ends_with(prompt)), "{} on {wire}", spec.name);
                for LaunchFile { path, content, .. } in &launch.files {
                    let fault = match path.rsplit('.').next().unwrap() {
                        "json" => serde_json::from_str::<serde_json::Value>(content).err().map(|error| error.to_string()),
                        "toml" => content.parse::<toml::Table>().err().map(|error| error.to_string()),
                        _ => None,
                    };
                    assert_eq!(fault, None, "{} on {wire} with {set:?}: {content}", spec.name);
                }
                let told = launch.files.iter().map(|file| &file.content).chain(launch.env.iter().map(|(_, value)| value));
                let urls: String = told.chain(&launch.command).map(String::as_str).collect();
                assert!(urls.contains("http://127.0.0.1:8080") && urls.contains("glr_1"), "{} on {wire}: {urls}", spec.name);
            }
        }
    }

    #[test]
    fn an_argument_that_no_system_takes_is_refused() {
        let error = fill("codex", None, &"x".repeat(ARGUMENT_BYTES + 1)).unwrap_err().to_string();
        assert!(error.contains("131072 bytes is longer"), "{error}");
    }

    #[test]
    fn truth_is_not_python_s() {
        let values = Value::from_iter([("yes", Value::from(true)), ("no", Value::from(false))]);
        let templates = Templates { environment: environment(), values, name: "x" };
        assert_eq!(templates.fill("x", "{{yes}} {{ no }} {{ yes|tojson }}").unwrap(), "true false true");
    }

    #[test]
    fn packages_carry_the_pin() {
        let catalog = Catalog::load(None).unwrap();
        assert_eq!(packages(&catalog.get("codex").unwrap().spec).unwrap(), ["@openai/codex@0.171.0"]);
    }
}
