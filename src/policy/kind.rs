//! What differs from one kind of server to the next in a request and in the bytes of a reply.

use super::body::ReasoningField;
use super::config::{PolicyKind, TokenMode};
use super::decode::IdSource;
use crate::call::Call;

/// One kind of server, and whether its token ids are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    kind: PolicyKind,
    tokens: bool,
}

impl Dialect {
    pub(super) fn new(kind: PolicyKind, tokens: TokenMode) -> Self {
        Self { kind, tokens: tokens == TokenMode::Server && kind != PolicyKind::Openai }
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
            PolicyKind::Llamacpp => IdSource::Entries,
            _ => IdSource::None,
        }
    }

    /// Whether the server is asked for a stream: if the client wants one, unless that would cost tokens. In its streams
    /// llama.cpp tells neither the id that ends a reply nor those of incomplete characters, and beside tools it refuses
    /// log-probabilities; in a whole body all ids are there.
    pub(super) fn stream(self, call: &Call) -> bool {
        let costs = self.kind == PolicyKind::Llamacpp && (self.tokens || call.wants.logprobs && !call.tools.is_empty());
        call.stream && !costs
    }

    /// vLLM reads `reasoning`, llama.cpp `reasoning_content`; of other servers the client knows best.
    pub(super) fn reasoning(self) -> ReasoningField {
        match self.kind {
            PolicyKind::Vllm => ReasoningField { name: "reasoning", always: true },
            PolicyKind::Llamacpp => ReasoningField { name: "reasoning_content", always: true },
            PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto => {
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
            PolicyKind::Vllm => (self.tokens || call.wants.logprobs).then(|| asked.unwrap_or(0)),
            PolicyKind::Llamacpp => (self.tokens || call.wants.logprobs).then(|| asked.unwrap_or(1).max(1)),
            PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto => call.wants.logprobs.then(|| asked.unwrap_or(0)),
        }
    }

    /// The fields that get the reply's tokens, for us and for a client that asked itself.
    pub(super) fn added(self, call: &Call) -> Vec<(&'static str, String)> {
        let mut added = Vec::new();
        let yes = || "true".to_owned();
        if self.kind == PolicyKind::Vllm && (self.tokens || call.wants.token_ids) {
            added.push(("return_token_ids", yes()));
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
                PolicyKind::Vllm => Some(asked.unwrap_or(0)),
                // With 0 it gives none at all, and without a number 20 of each token's.
                PolicyKind::Llamacpp => Some(asked.unwrap_or(1).max(1)),
                PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto => asked,
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
