//! The config file: each module owns its section, this file only composes and explains what can't be read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::EngineConfig;
use crate::harness::RolloutConfig;
use crate::http::{AuthConfig, ServerConfig};
use crate::policy::PolicyConfig;
use crate::proxy::{Policies, Route};
use crate::record::RecordConfig;
use crate::store::StoreConfig;

/// The whole config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub server: ServerConfig,
    pub auth: AuthConfig,
    pub store: StoreConfig,
    pub record: RecordConfig,
    pub policies: BTreeMap<String, PolicyConfig>,
    pub routes: Vec<Route>,
    pub engine: EngineConfig,
    pub rollout: RolloutConfig,
}

/// Why a config can't be used. Shown to people, who are to mend it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the config file {path} can't be read: {why}")]
    Unreadable { path: PathBuf, why: std::io::Error },
    #[error("the config file {path} is not right: {why}")]
    Wrong { path: PathBuf, why: String },
}

impl Config {
    /// Reads a config file.
    ///
    /// # Errors
    /// If it can't be read, is not TOML, or has a key or value that is not known; then with its place and the nearest known key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?;
        Self::parse(&text).map_err(|why| ConfigError::Wrong { path: path.to_owned(), why })
    }

    /// Reads a config from its text.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{place}{}", with_nearest(error.message()))
        })?;
        config.check()?;
        Ok(config)
    }

    /// Points the policy named `default` at `url`; what else the config says of it stays.
    pub fn set_policy_url(&mut self, url: String) {
        self.policies.entry(Policies::DEFAULT.to_owned()).or_default().url = url;
    }

    /// Whether the policy of this name is trained; one that the config does not name is, as it is by default.
    #[must_use]
    pub fn trained(&self, policy: &str) -> bool {
        self.policies.get(policy).is_none_or(|policy| policy.train)
    }

    fn check(&self) -> Result<(), String> {
        self.server.check()?;
        for route in &self.routes {
            if !self.policies.contains_key(&route.policy) {
                let known = self.policies.keys().map(String::as_str);
                return Err(format!(
                    "[[routes]] sends {:?} to policy {:?}, which is not there{}",
                    route.model,
                    route.policy,
                    nearest(&route.policy, known)
                ));
            }
        }
        Ok(())
    }
}

/// Adds the nearest known name to serde's message about an unknown one.
fn with_nearest(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((unknown, known)) if message.starts_with("unknown") => {
            let what = if message.starts_with("unknown variant") { "value" } else { "key" };
            format!("unknown {what} `{unknown}`{}", nearest(unknown, known.iter().copied()))
        }
        _ => message.trim_end().to_owned(),
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known.map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    nearest.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../config.toml");

    /// The repository's file with every option put in force.
    fn uncommented() -> String {
        let option = |line: &&str| {
            let text = line.strip_prefix("# ").unwrap_or_default();
            let name = text.split([' ', '.', ']']).next().unwrap_or_default();
            text.starts_with("[policies.default") || (text[name.len()..].starts_with(" = ") && !name.is_empty())
        };
        let lines = FILE.lines().map(|line| if option(&line) { &line[2..] } else { line });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_policy_is_trained_unless_the_config_says_otherwise() {
        let config = Config::parse("[policies.judge]\ntrain = false\n[policies.default]\n").unwrap();
        assert_eq!(["judge", "default", "gone"].map(|policy| config.trained(policy)), [false, true, true]);
    }

    #[test]
    fn the_file_as_it_is_changes_nothing() {
        assert_eq!(Config::parse(FILE), Ok(Config::default()));
    }

    #[test]
    fn a_name_that_is_not_known_gets_the_nearest() {
        let error = Config::parse("[server]\nlisten = '127.0.0.1:1'\nbody_limit = 3\n").unwrap_err();
        assert_eq!(error, "line 3: unknown key `body_limit`; did you mean `body_limit_mib`?");
        let error = Config::parse("[policies.default]\nkind = 'vlm'\n").unwrap_err();
        assert_eq!(error, "line 2: unknown value `vlm`; did you mean `vllm`?");
    }

    #[test]
    fn a_number_that_can_not_be_served_is_refused() {
        for (option, wrong) in [("ping_s", "0"), ("body_limit_mib", "0"), ("body_limit_mib", "99999999999999")] {
            let error = Config::parse(&format!("[server]\n{option} = {wrong}\n")).unwrap_err();
            assert!(error.starts_with(&format!("[server] {option} must be")), "{error}");
        }
        assert!(Config::parse("[server]\nping_s = 1\nbody_limit_mib = 1\n").is_ok());
    }

    #[test]
    fn a_route_to_nowhere_is_refused() {
        let error = Config::parse("[policies.judge]\n[[routes]]\nmodel = '*'\npolicy = 'jugde'\n").unwrap_err();
        assert!(error.ends_with("did you mean `judge`?"), "{error}");
    }

    #[test]
    fn every_option_stands_in_the_file_with_its_default() {
        let text = uncommented();
        let mut expected = Config::default();
        expected.policies.insert(Policies::DEFAULT.to_owned(), PolicyConfig::default());
        assert_eq!(Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), expected);
        named("", &toml::Table::try_from(&expected).unwrap(), &toml::from_str(&text).unwrap());
    }

    /// Every option that has a default is named. That the names of the others are known is not seen here.
    fn named(at: &str, expected: &toml::Table, written: &toml::Table) {
        for (name, value) in expected {
            match (value, written.get(name)) {
                (toml::Value::Array(list), None) if list.is_empty() => {}
                (_, None) => panic!("config.toml does not name {at}{name}"),
                (toml::Value::Table(expected), Some(toml::Value::Table(written))) => {
                    named(&format!("{at}{name}."), expected, written);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn examples_are_options_that_are_known() {
        let lines = FILE.lines().map(|line| match line.strip_prefix("#   example: ") {
            Some(example) => example,
            None if line.starts_with("# [policies.default") => &line[2..],
            None => line,
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        assert_ne!(Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), Config::default());
    }
}
