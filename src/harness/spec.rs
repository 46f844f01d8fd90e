//! What a harness is: the data of its `harness.toml`, checked once.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::check::CheckSpec;
use super::outcome::Printed;

/// A harness as its `harness.toml` tells it. Every text marked as a template may use `base_url`, `root_url`, `key`, `model`,
/// `wire`, `prompt`, `home`, `workdir`, `payload`, `timeout_s`, `rollout`, `version` and the harness's own parameters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub name: String,
    /// The harness's own version, the pin of its payload.
    pub version: String,
    /// One line for people.
    pub description: String,
    /// The wire that it speaks where nobody chooses another (`chat`, `responses`, `messages`, `gemini`).
    pub wire: String,
    /// What is different on a wire, by the wire's name; those named here it speaks beside `wire`.
    #[serde(default)]
    pub wires: BTreeMap<String, Variant>,
    pub payload: PayloadSpec,
    /// Values for templates that a variant or a run may set otherwise.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    pub run: RunSpec,
    /// Files to write before it starts.
    #[serde(default)]
    pub files: Vec<FileSpec>,
    #[serde(default)]
    pub outcome: OutcomeSpec,
    /// What all of its own requests look like: header names and patterns (`*`) of their values.
    #[serde(default)]
    pub signature: BTreeMap<String, String>,
    /// How it is checked.
    #[serde(default)]
    pub check: CheckSpec,
    /// Files and folders of a run that are kept beside its output, such as its own session; templates of absolute paths.
    #[serde(default)]
    pub artifacts: Vec<String>,
    /// Other ways to run it, by name (`HARNESS:VARIANT`).
    #[serde(default)]
    pub variants: BTreeMap<String, Variant>,
    /// The parameters that a user set ([`Spec::with`]).
    #[serde(skip)]
    pub chosen: BTreeSet<String>,
}

/// How the folder is made that is mounted into the sandbox.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadSpec {
    /// A shell script of the harness's folder. It fills the folder `$OUT`; `$PACKAGES` are the pinned packages.
    pub build: String,
    /// Scripts from beside the harnesses' folders that the build finds beside its own.
    #[serde(default)]
    pub uses: Vec<String>,
    #[serde(rename = "where")]
    pub place: BuildPlace,
    /// The container's image, else the default image; for `where = "container"`.
    #[serde(default)]
    pub image: Option<String>,
    /// Packages with their pins, as the package manager wants them; templates, of which only `version` is known.
    #[serde(default)]
    pub packages: Vec<String>,
}

/// Where a payload is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildPlace {
    /// On this machine, in an empty folder.
    Host,
    /// As root in a container of Debian, with the payload where the harness will find it.
    Container,
}

/// A value of a template.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    Integer(i64),
    Bool(bool),
    Text(String),
}

impl Parameter {
    /// Reads another value of this one's kind.
    ///
    /// # Errors
    /// What its values are, if `text` is none.
    pub fn read(&self, text: &str) -> Result<Self, &'static str> {
        match self {
            Self::Integer(_) => text.parse().map(Self::Integer).map_err(|_| "a whole number"),
            Self::Bool(_) => text.parse().map(Self::Bool).map_err(|_| "true or false"),
            Self::Text(_) => Ok(Self::Text(text.to_owned())),
        }
    }
}

/// How the harness is started.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Program and arguments; templates.
    pub command: Vec<String>,
    /// Its environment beside the image's; templates.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What it reads on its standard input, a template; nothing if missing.
    #[serde(default)]
    pub stdin: Option<String>,
    /// The model's name as the harness is told it; any name goes to the rollout's policy.
    #[serde(default = "neutral_model")]
    pub model: String,
    /// Seconds that a run may take where neither task nor user says so.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Model calls that a run may make where neither task nor user says so; more than it makes while it gets on.
    #[serde(default)]
    pub max_calls: Option<u64>,
    /// Tokens that it may have sampled, likewise.
    #[serde(default)]
    pub max_tokens: Option<u64>,
}

fn neutral_model() -> String {
    "gleaner-policy".to_owned()
}

/// A file to write before the harness starts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Where, absolute; a template.
    pub path: String,
    /// What, a template; or `source`.
    #[serde(default)]
    pub content: Option<String>,
    /// A file of the harness's folder that is the template.
    #[serde(default)]
    pub source: Option<String>,
    /// Permissions, octal.
    #[serde(default = "private")]
    pub mode: String,
}

fn private() -> String {
    "600".to_owned()
}

/// How it is told what became of a run. Without rules the exit code decides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeSpec {
    /// The result file, a template; standard output if missing.
    #[serde(default)]
    pub file: Option<String>,
    #[serde(default)]
    pub form: ResultForm,
    /// The first rule that fits a value decides; of lines, the last line that any rule fits.
    #[serde(default)]
    pub rules: Vec<OutcomeRule>,
    /// What its exit codes mean where its result says nothing.
    #[serde(default)]
    pub exit: BTreeMap<String, Meaning>,
    /// What else is kept as evidence; named as in rules.
    #[serde(default)]
    pub detail: Vec<String>,
}

/// What a result is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultForm {
    /// One JSON value.
    #[default]
    Json,
    /// A JSON value a line; other lines are passed over.
    Lines,
    /// None at all: rules are about what it printed.
    Text,
}

/// One rule: if every pointer's value fits its pattern, the run ended so.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRule {
    /// Patterns (`*` is any text, `?` any character) by JSON pointers into the result, or by `stdout`, `stderr` (the last 64 KiB
    /// of what it printed) and `exit`, its exit code.
    pub when: BTreeMap<String, String>,
    pub means: Meaning,
}

/// What a harness says of its own run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// It ended as it should.
    Completed,
    /// The model did not get there: no valid tool call, out of steps.
    GaveUp,
    /// Cut by a length: of a reply, or of the model's window.
    Truncated,
    /// It broke.
    Error,
}

/// Another way to run a harness: what it sets replaces what the harness says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The wires on which there is this variant, its own choice first; all of the harness's if empty.
    #[serde(default)]
    pub wires: Vec<String>,
    #[serde(default)]
    pub command: Option<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    #[serde(default)]
    pub files: Vec<FileSpec>,
    #[serde(default)]
    pub check: CheckSpec,
    #[serde(default)]
    pub signature: BTreeMap<String, String>,
}

/// What is wrong with a harness or with how it was named; all of it for the user to mend.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{file}: {why}")]
    Unreadable { file: String, why: String },
    #[error("there is no folder {0}; it was named to have harnesses (--harnesses, GLEANER_HARNESSES)")]
    NoFolder(String),
    #[error("there is no harness {name}{}; there are: {known}", did_you_mean(.near.as_deref()))]
    Unknown { name: String, near: Option<String>, known: String },
    #[error("{harness} does not speak the wire {name}{}; it speaks: {known}", did_you_mean(.near.as_deref()))]
    NoWire { harness: String, name: String, near: Option<String>, known: String },
    #[error("harness {harness} has no variant {name}{}", did_you_mean(.near.as_deref()))]
    NoVariant { harness: String, name: String, near: Option<String> },
    #[error("parameter {name} of harness {harness} is {kind}, not {value:?}")]
    NoValue { harness: String, name: String, kind: &'static str, value: String },
    #[error("harness {harness} has no parameter {name}{}", did_you_mean(.near.as_deref()))]
    NoParameter { harness: String, name: String, near: Option<String> },
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default()
}

/// The known name that is nearest to `name`, if one is near enough to have been meant.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    known.into_iter().min_by_key(distance).filter(|known| distance(known) <= name.len().max(3) / 3 + 1).map(str::to_owned)
}

impl Spec {
    /// Reads a `harness.toml`; `file` is its name for messages.
    ///
    /// # Errors
    /// If it is no TOML, has an unknown key (the nearest known one is named), or contradicts itself.
    pub fn parse(file: &str, text: &str) -> Result<Self, SpecError> {
        let unreadable = |why: String| SpecError::Unreadable { file: file.to_owned(), why };
        let spec: Self = toml::from_str(text).map_err(|error| unreadable(with_nearest(&error)))?;
        if spec.run.command.is_empty() {
            return Err(unreadable("run.command is empty; it needs a program".to_owned()));
        }
        if spec.name.is_empty() || !spec.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(unreadable(format!("name {:?} may hold letters, digits, '-', '_' and '.' only", spec.name)));
        }
        if spec.outcome.form == ResultForm::Text && spec.outcome.file.is_some() {
            return Err(unreadable("outcome: form text is about what is printed, not about a file".to_owned()));
        }
        let named = spec.outcome.rules.iter().flat_map(|rule| rule.when.keys()).chain(&spec.outcome.detail);
        if let Some(name) = named.into_iter().find(|name| !name.starts_with('/') && !Printed::NAMES.contains(&name.as_str())) {
            let known = Printed::NAMES.join(", ");
            return Err(unreadable(format!("outcome: {name:?} is neither a JSON pointer (/name/...) nor one of {known}")));
        }
        if let Some(code) = spec.outcome.exit.keys().find(|code| code.parse::<u8>().is_err()) {
            return Err(unreadable(format!("outcome.exit: {code} is no exit code")));
        }
        if let Some(name) = spec.wires.iter().find(|(_, change)| !change.wires.is_empty()).map(|(name, _)| name) {
            return Err(unreadable(format!("wires.{name} is about one wire; wires is a variant's to name")));
        }
        let spoken = |name: &String| spec.wires().any(|wire| wire == name);
        if let Some(name) = spec.variants.values().flat_map(|variant| &variant.wires).find(|name| !spoken(name)) {
            return Err(unreadable(format!("a variant is for the wire {name}, which the harness does not speak")));
        }
        if let Some(wrong) = spec.changes().map(|change| &change.check).chain([&spec.check]).find_map(CheckSpec::wrong) {
            return Err(unreadable(wrong.to_owned()));
        }
        for file in spec.files.iter().chain(spec.changes().flat_map(|change| &change.files)) {
            if file.content.is_some() == file.source.is_some() {
                return Err(unreadable(format!("file {} needs either content or source", file.path)));
            }
            if u32::from_str_radix(&file.mode, 8).is_err() {
                return Err(unreadable(format!("file {}: mode {:?} is not octal", file.path, file.mode)));
            }
        }
        Ok(spec)
    }

    /// The names of the wires that it speaks, the one that is taken where nobody chooses first.
    pub fn wires(&self) -> impl Iterator<Item = &str> {
        let others = self.wires.keys().map(String::as_str).filter(|name| *name != self.wire);
        std::iter::once(self.wire.as_str()).chain(others)
    }

    /// Every way to run it beside its plain one: what is different on a wire, and the variants.
    pub fn changes(&self) -> impl Iterator<Item = &Variant> {
        self.wires.values().chain(self.variants.values())
    }
}

/// An error's message with, for an unknown key, the known one that was probably meant.
fn with_nearest(error: &toml::de::Error) -> String {
    let message = error.to_string().trim().to_owned();
    let mut quoted = error.message().split('`').skip(1).step_by(2);
    if !error.message().starts_with("unknown field") {
        return message;
    }
    let name = quoted.next().unwrap_or_default().to_owned();
    match nearest(&name, quoted) {
        Some(near) => format!("{message} (did you mean {near}?)"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        version = "1"
        description = "a small one"
        wire = "chat"
        [payload]
        build = "build.sh"
        where = "host"
        [parameters]
        steps = 3
        [run]
        command = ["run", "{{steps}}"]
        [variants.text.parameters]
        steps = 9
    "#;

    #[test]
    fn an_unknown_key_tells_the_nearest() {
        let text = SMALL.replace("description", "descripton");
        let error = Spec::parse("small/harness.toml", &text).unwrap_err().to_string();
        assert!(error.starts_with("small/harness.toml: ") && error.ends_with("(did you mean description?)"), "{error}");
    }

    #[test]
    fn wires_are_named_once_and_variants_keep_to_them() {
        let spec = Spec::parse("small", &format!("{SMALL}\n[wires.chat]\n[wires.messages]\n")).unwrap();
        assert_eq!(spec.wires().collect::<Vec<_>>(), ["chat", "messages"]);
        let wrong = |text: &str| Spec::parse("small", &format!("{SMALL}\n{text}")).unwrap_err().to_string();
        assert_eq!(
            wrong("[variants.x]\nwires = [\"gemini\"]\n"),
            "small: a variant is for the wire gemini, which the harness does not speak"
        );
        assert_eq!(
            wrong("[wires.gemini]\nwires = [\"chat\"]\n"),
            "small: wires.gemini is about one wire; wires is a variant's to name"
        );
    }

    #[test]
    fn rules_name_what_there_is() {
        let text = format!("{SMALL}\n[outcome]\nrules = [{{ when = {{ stdin = \"x\" }}, means = \"error\" }}]\n");
        let error = Spec::parse("small", &text).unwrap_err().to_string();
        assert_eq!(error, "small: outcome: \"stdin\" is neither a JSON pointer (/name/...) nor one of stdout, stderr, exit");
    }

    #[test]
    fn a_file_has_one_origin() {
        let text = format!("{SMALL}\n[[files]]\npath = \"/x\"\n");
        let error = Spec::parse("small", &text).unwrap_err().to_string();
        assert_eq!(error, "small: file /x needs either content or source");
    }
}
