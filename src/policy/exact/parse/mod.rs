//! From sampled text to a reply's events: reasoning, text, tool calls.
//!
//! The main families of models are read by our own code ([`read`]), the others by the parsers of `tool-parser` and `reasoning-parser`, on
//! whole text ([`whole`]): those lose text, write arguments anew, and give something else when the text is cut elsewhere.
//!
//! What comes out is what vLLM's chat endpoint gives, white space included, but for this:
//! - A call that is cut off, or is no JSON, stays text to the letter, and the others in the reply are calls; vLLM makes text of all when it
//!   answers whole, and half a call when it streams.
//! - Text after a call is told; vLLM drops it.
//! - Reasoning is what stands between its markers. vLLM takes all of a Qwen3 reply without `</think>` for reasoning, also one that never
//!   began any.
//! - Arguments that are JSON come out to the letter.

mod choose;
mod read;
#[cfg(test)]
mod tests;
mod whole;

use std::sync::Arc;

use crate::call::{Call, Event, Text, ToolChoice};
use crate::policy::PolicyConfig;
use crate::policy::config::ConfigError;
use crate::policy::names::Names;
use choose::{Reasoning, Tools};
use read::{Reader, Why};

/// Which parsers a model's replies are read by.
#[derive(Clone, Debug)]
pub(super) struct Parsers {
    tools: Tools,
    reasoning: Reasoning,
}

impl Parsers {
    /// Those that the config names, else those that the template speaks of; without a template, those of models with such a name.
    ///
    /// # Errors
    /// If the config names one that there is not.
    pub(super) fn choose(name: &str, config: &PolicyConfig, template: &str, model: &str) -> Result<Self, ConfigError> {
        let unknown =
            |option, value: &str, known| ConfigError::Parser { name: name.to_owned(), option, value: value.to_owned(), known };
        let tools = match &config.tool_parser {
            Some(value) => Tools::named(value).ok_or_else(|| unknown("tool_parser", value, Tools::known()))?,
            None => Tools::spoken_of(template, model),
        };
        let reasoning = match &config.reasoning_parser {
            Some(value) => Reasoning::named(value).ok_or_else(|| unknown("reasoning_parser", value, Reasoning::known()))?,
            None => Reasoning::spoken_of(template, model),
        };
        Ok(Self { tools, reasoning })
    }

    /// What was chosen, for the log and the API.
    pub(super) fn describe(&self) -> String {
        format!("tool calls by {}, reasoning by {}", self.tools.name(), self.reasoning.name())
    }

    /// A parser for the reply to `call`; `ending` is the text with which its prompt ends, which may have begun the reasoning.
    ///
    /// Nothing is a call where there are no tools or `tool_choice` is `none`, as with servers.
    pub(super) fn begin(&self, call: &Arc<Call>, names: Names, ending: &str) -> Parser {
        let tools = if call.tools.is_empty() || call.tool_choice == Some(ToolChoice::None) { Tools::NONE } else { self.tools };
        let opened = self.reasoning.opened(ending);
        let reader = Reader::new(call, names, self.reasoning.thinking(), tools.form(), opened);
        Parser { reader, tools, reasoning: self.reasoning, opened, held: None, call: call.clone() }
    }
}

/// Reads one reply.
pub(super) struct Parser {
    reader: Reader,
    tools: Tools,
    reasoning: Reasoning,
    opened: bool,
    /// The reply so far, where its reasoning is read when it has ended. `None`: nothing is kept.
    held: Option<String>,
    call: Arc<Call>,
}

impl Parser {
    /// Takes the next text, and gives the events that it completes. Never fails: what can't be read stays text.
    #[expect(clippy::unused_async, reason = "a reader may have to wait here too")]
    pub(super) async fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        if self.reasoning.whole().is_some() {
            self.held.get_or_insert_with(String::new).push_str(text);
        } else {
            self.reader.push(text, out);
        }
    }

    /// Takes the end. What was held back as the beginning of a call that never was comes out as text.
    pub(super) async fn finish(&mut self, out: &mut Vec<Event>) {
        if let (Some(held), Some(parser)) = (self.held.take(), self.reasoning.whole()) {
            let (reasoning, answer) = whole::reasoning(parser, self.opened, held);
            if !reasoning.is_empty() {
                out.push(Event::Reasoning(Text::new(&reasoning)));
            }
            self.reader.push(&answer, out);
        }
        let Some(kept) = self.reader.finish(out) else { return };
        let Some(spec) = self.tools.whole() else { return };
        match whole::calls(spec, &self.call, self.reader.names(), &kept).await {
            Some(read) => {
                for text in [read.before, read.after].into_iter().filter(|text| !text.trim().is_empty()) {
                    out.push(Event::Text(Text::new(&text)));
                }
                for called in read.calls {
                    self.reader.tell(&called.name, &called.arguments, out);
                }
            }
            None => {
                self.reader.unread(Why::Form);
                out.push(Event::Text(Text::new(&kept)));
            }
        }
    }

    /// Whether the reply has called a tool.
    pub(super) fn called(&self) -> bool {
        self.reader.called()
    }

    /// What could not be read, for people.
    pub(super) fn notes(&mut self) -> Vec<String> {
        self.reader.notes()
    }
}
