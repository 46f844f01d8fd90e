//! What a client asks for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::failure::Failure;
use super::json::{Raw, Rest, Text};
use super::message::{Message, Tool};
use crate::ids::CallId;

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
    /// The call whose conversation and reply the messages go on from, on wires where the server keeps them.
    pub previous: Option<CallId>,
    /// Calls whose replies the messages quote by name only; like `previous`, they must be known to read the request whole.
    pub quotes: Vec<CallId>,
    /// How many replies to its prompt the request asks for; each is a call of its own, and they follow each other.
    pub replies: u32,
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
            quotes: Vec::new(),
            replies: 1,
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

    /// The most replies to one prompt that a request may ask for.
    pub const MOST_REPLIES: u64 = 128;

    /// How many messages and tools all calls of one request may have together.
    const MOST_PARTS: u64 = 1 << 17;

    /// This call `n` times, one for each reply that the client asked for with `param`. A seed counts up, since the same one would give
    /// the same reply again.
    ///
    /// # Errors
    /// If so many are not served.
    pub fn times(self, n: u64, param: &str) -> Result<Vec<Self>, Failure> {
        let most = Self::MOST_REPLIES;
        let replies = u32::try_from(n).ok().filter(|n| (1..=most).contains(&u64::from(*n)));
        let replies = replies.ok_or_else(|| Failure::invalid(param, format!("{param} must be 1 to {most}, not {n}")))?;
        let parts = (self.messages.len() + self.tools.len()) as u64;
        if n > 1 && parts * n > Self::MOST_PARTS {
            let message = format!("{param} is {n}, which is too much for a request of {parts} messages and tools");
            return Err(Failure::invalid(param, message));
        }
        let mut calls: Vec<Self> = (1..replies).map(|_| self.clone()).collect();
        calls.insert(0, self);
        for (call, place) in calls.iter_mut().zip(0..) {
            call.replies = replies;
            if let (Some(seed), 1..) = (&mut call.sampling.seed, place) {
                let asked = *seed;
                *seed = asked.wrapping_add(place);
                call.notes.push(format!("seed {asked} became {seed}, so that the replies to one request differ"));
            }
        }
        Ok(calls)
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
    /// The reasoning as its summary, for clients that show only that.
    pub reasoning_summary: bool,
    /// The reasoning also in the form in which clients that keep none send it back.
    pub sealed_reasoning: bool,
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
    /// Settings that have no field here (`logit_bias`, `bad_words`, `min_tokens` ...), by the server's own names.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub others: Map<String, Value>,
}

/// The names of settings that belong into [`Sampling::others`], as vLLM, `SGLang` and llama.cpp know them.
const OTHERS: [&str; 20] = [
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "min_new_tokens",
    "ignore_eos",
    "stop_token_ids",
    "length_penalty",
    "typical_p",
    "top_n_sigma",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "custom_logit_processor",
];

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
            others: self.others.iter().chain(&pinned.others).map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }

    /// These settings, with those of a call's other fields that are settings of sampling too.
    #[must_use]
    pub fn with_others(&self, rest: &Rest) -> Self {
        let mut whole = self.clone();
        for (name, value) in rest {
            let name = name.decode();
            if let (true, Ok(value)) = (OTHERS.contains(&&*name), value.read::<Value>())
                && !value.is_null()
            {
                whole.others.insert(name.into_owned(), value);
            }
        }
        whole
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
        let rest = vec![
            (Text::new("bad_words"), Raw::from_value(&["x"])),
            (Text::new("user"), Raw::from_value(&"me")),
            (Text::new("logit_bias"), Raw::from_value(&())),
        ];
        let others = asked.with_others(&rest).others;
        assert_eq!(serde_json::to_value(others).unwrap(), serde_json::json!({"bad_words": ["x"]}));
    }

    #[test]
    fn each_reply_is_a_call_with_a_seed_of_its_own() {
        let seeded = Call { sampling: Sampling { seed: Some(7), ..Sampling::default() }, ..Call::new("chat") };
        let calls = seeded.times(3, "n").unwrap();
        let seen: Vec<_> = calls.iter().map(|call| (call.replies, call.sampling.seed, call.notes.len())).collect();
        assert_eq!(seen, [(3, Some(7), 0), (3, Some(8), 1), (3, Some(9), 1)]);
        assert_eq!(Call::new("chat").times(2, "n").unwrap()[1], Call { replies: 2, ..Call::new("chat") });
        assert_eq!(Call::new("chat").times(1, "n").unwrap(), [Call::new("chat")]);
    }

    #[test]
    fn countless_replies_are_refused() {
        for n in [0, 129, u64::MAX] {
            let message = format!("n must be 1 to 128, not {n}");
            assert_eq!(Call::new("chat").times(n, "n").unwrap_err(), Failure::invalid("n", message));
        }
        let message = Message::text(crate::call::Role::User, "x".into());
        let long = Call { messages: vec![message; 2000], ..Call::new("chat") };
        assert!(long.clone().times(1, "n").is_ok() && long.times(128, "n").is_err());
    }
}
