//! What a client asks for.

use serde::{Deserialize, Serialize};

use super::json::{Raw, Rest, Text};
use super::message::{Message, Tool};

/// One request to the model, whatever wire it came by.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The wire that it came by ([`crate::wire::Wire::name`]).
    pub wire: &'static str,
    /// The model's name as the client gave it.
    pub model: String,
    /// The client wants its reply as a stream of events.
    pub stream: bool,
    pub messages: Vec<Message>,
    /// A prompt that is no conversation, on wires that take one; then there are no messages.
    pub prompt: Option<Prompt>,
    /// The reply that the messages go on from, on wires where the server keeps them: its id as the wire gave it.
    pub previous: Option<Text>,
    pub tools: Vec<Tool>,
    pub tool_choice: Option<ToolChoice>,
    pub parallel_tool_calls: Option<bool>,
    /// Sampling as the client asked for it.
    pub sampling: Sampling,
    /// The most tokens that the reply may have, reasoning included.
    pub max_tokens: Option<u64>,
    pub reasoning_effort: Option<Text>,
    /// Chat completions' `response_format`.
    pub response_format: Option<Raw>,
    pub wants: Wants,
    /// Fields that nobody here acts on, passed on to policies that speak chat completions.
    pub rest: Rest,
    /// Fields that the reply repeats, on wires whose replies do, as the client gave them.
    pub echo: Rest,
    /// What the wire left out or changed when it read the request, for people.
    pub notes: Vec<String>,
}

impl Call {
    /// A call of this wire that asks for nothing yet.
    #[must_use]
    pub fn new(wire: &'static str) -> Self {
        Self {
            wire,
            model: String::new(),
            stream: false,
            messages: Vec::new(),
            prompt: None,
            previous: None,
            tools: Vec::new(),
            tool_choice: None,
            parallel_tool_calls: None,
            sampling: Sampling::default(),
            max_tokens: None,
            reasoning_effort: None,
            response_format: None,
            wants: Wants::default(),
            rest: Vec::new(),
            echo: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// What a model goes on from where nobody speaks in turns.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(Text),
    /// Token ids.
    Ids(Vec<u32>),
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    Auto,
    None,
    Required,
    /// The tool with this name.
    Named {
        namespace: Option<Text>,
        name: Text,
    },
}

/// What a client wants to see beside the reply itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// A last chunk with usage, on a wire where that is asked for.
    pub usage: bool,
    pub logprobs: bool,
    /// Alternatives for each token, if it asked for a number of them.
    pub top_logprobs: Option<u32>,
    /// vLLM's `return_token_ids`.
    pub token_ids: bool,
    /// The prompt before the reply, as completions can.
    pub prompt: bool,
    /// Tool calls in chat completions' older form, `function_call`.
    pub function_call: bool,
    /// A stream as one JSON array, as Gemini gives it where server-sent events are not asked for.
    pub array: bool,
    /// The reasoning as parts of the reply, on a wire where that is asked for.
    pub thoughts: bool,
}

/// How tokens are drawn. `None` is the server's own default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// A stop string or a list of them, as the client gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Raw>,
}

impl Sampling {
    /// These settings, with those of `pinned` in their place wherever it has one.
    #[must_use]
    pub fn pinned_by(&self, pinned: &Self) -> Self {
        Self {
            temperature: pinned.temperature.or(self.temperature),
            top_p: pinned.top_p.or(self.top_p),
            top_k: pinned.top_k.or(self.top_k),
            min_p: pinned.min_p.or(self.min_p),
            presence_penalty: pinned.presence_penalty.or(self.presence_penalty),
            frequency_penalty: pinned.frequency_penalty.or(self.frequency_penalty),
            repetition_penalty: pinned.repetition_penalty.or(self.repetition_penalty),
            seed: pinned.seed.or(self.seed),
            stop: pinned.stop.clone().or_else(|| self.stop.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_sampling_stands_and_leaves_the_rest_as_asked() {
        let asked = Sampling { temperature: Some(0.2), seed: Some(7), ..Sampling::default() };
        let pinned = Sampling { temperature: Some(1.0), top_p: Some(1.0), ..Sampling::default() };
        let used = Sampling { temperature: Some(1.0), top_p: Some(1.0), seed: Some(7), ..Sampling::default() };
        assert_eq!(asked.pinned_by(&pinned), used);
        assert_eq!(asked.pinned_by(&Sampling::default()), asked);
    }
}
