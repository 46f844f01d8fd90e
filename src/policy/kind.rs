//! What differs from one kind of server to the next in a request and in the bytes of a reply.

use super::body::ReasoningField;
use super::config::{PolicyKind, TokenMode};
use super::decode::IdSource;
use crate::call::{Call, LogprobKind, Sampling};

/// One kind of server, and whether its token ids are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    kind: PolicyKind,
    tokens: bool,
    /// The server was seen to keep ids back in streams beside tools.
    swallows: bool,
}

impl Dialect {
    pub(super) fn new(kind: PolicyKind, tokens: TokenMode, swallows: bool) -> Self {
        Self { kind, tokens: tokens == TokenMode::Server && kind != PolicyKind::Openai, swallows }
    }

    /// Whether the server's parsers of tool calls may keep ids back in a stream.
    pub(super) fn may_swallow(self) -> bool {
        self.tokens && self.kind == PolicyKind::Vllm
    }

    /// What the server's log-probabilities are of. `declared` is what the config says; `grammar` that one was held over the tokens.
    ///
    /// vLLM gives the model's own distribution, but that after the mask where it held a grammar; llama.cpp the model's own.
    /// `SGLang` takes them after penalties and temperature and before truncation (unless it was started to give the model's own): at
    /// temperature 1 without penalties that is the model's distribution, without truncation the one that was drawn from.
    pub(super) fn logprob_kind(self, declared: Option<LogprobKind>, sampling: &Sampling, grammar: bool) -> LogprobKind {
        if let Some(declared) = declared {
            return declared;
        }
        let is = |setting: Option<f64>, value: f64| setting.is_some_and(|setting| (setting - value).abs() < f64::EPSILON);
        let or_none = |setting: Option<f64>, value: f64| setting.is_none() || is(setting, value);
        match self.kind {
            PolicyKind::Vllm if grammar => LogprobKind::Processed,
            PolicyKind::Sglang => {
                let free = or_none(sampling.presence_penalty, 0.0)
                    && or_none(sampling.frequency_penalty, 0.0)
                    && or_none(sampling.repetition_penalty, 1.0);
                // What is not set is the model's own default, which may be anything.
                let whole = is(sampling.top_p, 1.0) && sampling.top_k.is_some_and(|k| k <= 0) && or_none(sampling.min_p, 0.0);
                match (is(sampling.temperature, 1.0) && free && !grammar, whole) {
                    (true, _) => LogprobKind::Raw,
                    (false, true) => LogprobKind::Processed,
                    (false, false) => LogprobKind::Unknown,
                }
            }
            PolicyKind::Vllm | PolicyKind::Llamacpp | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => {
                LogprobKind::Raw
            }
        }
    }

    /// Why a reply's tokens are not known, where nobody asked for them.
    pub(super) fn blind(self) -> Option<&'static str> {
        match (self.tokens, self.kind) {
            (true, _) => None,
            (false, PolicyKind::Openai) => Some("this kind of server gives no token ids"),
            (false, _) => Some("tokens = \"off\""),
        }
    }

    /// Whether the prompt's ids are a question of their own.
    pub(super) fn asks_prompt(self) -> bool {
        self.tokens && self.kind == PolicyKind::Llamacpp
    }

    /// Whether a `max_tokens` that is too large is refused, and may be asked for again with less.
    pub(super) fn refuses_long(self) -> bool {
        self.kind != PolicyKind::Llamacpp
    }

    /// Where the ids stand in a reply to `call`.
    pub(super) fn source(self, call: &Call) -> IdSource {
        match self.kind {
            PolicyKind::Vllm if self.tokens || call.wants.token_ids => IdSource::TokenIds,
            PolicyKind::Sglang if self.tokens || call.wants.token_ids => IdSource::Sglang,
            PolicyKind::Llamacpp => IdSource::Entries,
            _ => IdSource::None,
        }
    }

    /// Whether the server is asked for a stream: if the client wants one, unless that would cost tokens. In its streams
    /// llama.cpp tells neither the id that ends a reply nor those of incomplete characters, and beside tools it refuses
    /// log-probabilities; in a whole body all ids are there.
    pub(super) fn stream(self, call: &Call) -> bool {
        let costs = match self.kind {
            PolicyKind::Llamacpp => self.tokens || call.wants.logprobs && !call.tools.is_empty(),
            _ => self.swallows && self.tokens && !call.tools.is_empty(),
        };
        call.stream && !costs
    }

    /// vLLM reads `reasoning`, llama.cpp `reasoning_content`; of other servers the client knows best.
    pub(super) fn reasoning(self) -> ReasoningField {
        match self.kind {
            PolicyKind::Vllm => ReasoningField { name: "reasoning", always: true },
            PolicyKind::Llamacpp => ReasoningField { name: "reasoning_content", always: true },
            PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => {
                ReasoningField { name: "reasoning_content", always: false }
            }
        }
    }

    /// The server's name for the repetition penalty.
    pub(super) fn repetition(self) -> &'static str {
        if self.kind == PolicyKind::Llamacpp { "repeat_penalty" } else { "repetition_penalty" }
    }

    /// How many log-probabilities of each token are asked for where there is no conversation: there the number alone says that
    /// they are wanted.
    fn plain_logprobs(self, call: &Call) -> Option<u32> {
        let asked = call.wants.top_logprobs.filter(|_| call.wants.logprobs);
        match self.kind {
            PolicyKind::Vllm | PolicyKind::Sglang => (self.tokens || call.wants.logprobs).then(|| asked.unwrap_or(0)),
            PolicyKind::Llamacpp => (self.tokens || call.wants.logprobs).then(|| asked.unwrap_or(1).max(1)),
            PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => call.wants.logprobs.then(|| asked.unwrap_or(0)),
        }
    }

    /// The fields that get the reply's tokens, for us and for a client that asked itself; `recorded` is how many alternatives of each
    /// token are wanted for the record, in conversations.
    pub(super) fn added(self, call: &Call, recorded: u32) -> Vec<(&'static str, String)> {
        let mut added = Vec::new();
        let yes = || "true".to_owned();
        if self.kind == PolicyKind::Vllm && (self.tokens || call.wants.token_ids) {
            added.push(("return_token_ids", yes()));
        }
        if self.kind == PolicyKind::Sglang && (self.tokens || call.wants.token_ids) {
            // In streams of conversations it refuses the one, and gives the other at their end.
            if self.stream(call) && call.prompt.is_none() {
                added.push(("return_input_ids_in_sglext", yes()));
                added.push(("return_output_ids_in_sglext", yes()));
            } else {
                added.push(("return_token_ids", yes()));
            }
        }
        if call.prompt.is_some() {
            added.extend(self.plain_logprobs(call).map(|count| ("logprobs", count.to_string())));
            if call.wants.prompt && call.wants.logprobs {
                added.push(("echo", yes()));
            }
        } else if self.tokens || call.wants.logprobs {
            added.push(("logprobs", yes()));
            let asked = call.wants.top_logprobs;
            let top = match self.kind {
                PolicyKind::Vllm | PolicyKind::Sglang => Some(asked.unwrap_or(0).max(recorded)),
                // With 0 it gives none at all, and without a number 20 of each token's.
                PolicyKind::Llamacpp => Some(asked.unwrap_or(1).max(recorded).max(1)),
                PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => asked,
            };
            added.extend(top.map(|top| ("top_logprobs", top.to_string())));
        }
        if self.asks_prompt() {
            added.push(("verbose", yes()));
            added.push(("return_tokens", yes()));
        }
        added
    }
}
