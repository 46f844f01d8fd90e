//! From sampled text to a reply's events: reasoning, text, tool calls.

use std::sync::Arc;

use crate::call::{Call, Event};
use crate::policy::PolicyConfig;
use crate::policy::config::ConfigError;
use crate::policy::names::Names;

/// Which parsers a model's replies are read by.
#[derive(Clone, Debug)]
pub(super) struct Parsers {}

impl Parsers {
    /// Those that the config names, else those that the template speaks of.
    pub(super) fn choose(_name: &str, _config: &PolicyConfig, _template: &str, _model: &str) -> Result<Self, ConfigError> {
        Ok(Self {})
    }

    /// What was chosen, for the log and the API.
    pub(super) fn describe(&self) -> String {
        String::new()
    }

    /// A parser for the reply to `call`; `ending` is the text with which its prompt ends, which may have begun the reasoning.
    pub(super) fn begin(&self, _call: &Arc<Call>, _names: Names, _ending: &str) -> Parser {
        Parser {}
    }
}

/// Reads one reply.
pub(super) struct Parser {}

impl Parser {
    /// Takes the next text, and gives the events that it completes. Never fails: what can't be read stays text.
    pub(super) async fn push(&mut self, _text: &str, _out: &mut Vec<Event>) {}

    /// Takes the end. What was held back as the beginning of a call that never was comes out as text.
    pub(super) async fn finish(&mut self, _out: &mut Vec<Event>) {}

    /// Whether the reply has called a tool.
    pub(super) fn called(&self) -> bool {
        false
    }

    /// What could not be read, for people.
    pub(super) fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
