//! A reply as it comes: the stream of events between a policy and a wire.

use serde::{Deserialize, Serialize};

use super::json::{Raw, Text};
use super::message::ToolKind;
use super::tokens::Tokens;

/// One step of a reply. A stream of events ends once: with [`Event::Finish`] somewhere in it and no failure after, or as a
/// [`super::Failure`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The ids of the prompt, once, from the server that read it.
    Prompt(Vec<u32>),
    /// The prompt's text, once and before the reply's, for a client that wants to see it there.
    PromptText(Text),
    /// Sampled tokens, in the order of sampling.
    Tokens(Tokens),
    /// A piece of the answer's text.
    Text(Text),
    /// A piece of the reasoning before it.
    Reasoning(Text),
    /// A piece of a refusal.
    Refusal(Text),
    /// A tool call begins. Indexes count from 0 without gaps.
    ToolStart { index: u32, tool: ToolStart },
    /// A piece of a tool call's arguments; pieces of different calls may be mixed.
    ToolArguments { index: u32, fragment: Text },
    /// A field beside the reply's own that a chat client may know.
    Extra(Extra),
    /// Why the reply ended; comes once, before the stream's end, not always as its last event.
    Finish(FinishReason),
    /// The stop string that ended the reply, where the server tells.
    StopString(Text),
    /// Token counts; the last one given stands.
    Usage(Usage),
    /// The server's own name for the weights that sampled the reply.
    Version(String),
}

/// The start of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolStart {
    pub id: Text,
    pub kind: ToolKind,
    pub namespace: Option<Text>,
    pub name: Text,
}

/// A field of a server's chunk that nobody here acts on.
#[derive(Clone, Debug, PartialEq)]
pub enum Extra {
    /// Inside the delta (or the message).
    Delta { name: Text, value: Raw },
    /// Beside the delta, in the choice.
    Choice { name: Text, value: Raw },
}

impl Extra {
    /// What a choice says of its tokens' log-probabilities, if this is that.
    #[must_use]
    pub fn logprobs(&self) -> Option<&Raw> {
        match self {
            Self::Choice { name, value } if name.inner() == b"logprobs" => Some(value),
            Self::Choice { .. } | Self::Delta { .. } => None,
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string was hit.
    Stop,
    /// The limit of tokens was reached.
    Length,
    ToolCalls,
    ContentFilter,
}

impl FinishReason {
    /// Chat completions' name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }

    /// Reads chat completions' name; a name that is new to us is an ordinary stop.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        match name {
            "length" => Self::Length,
            "tool_calls" | "function_call" => Self::ToolCalls,
            "content_filter" => Self::ContentFilter,
            _ => Self::Stop,
        }
    }
}

/// Token counts as the server gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
    pub reasoning_tokens: u64,
}

impl Usage {
    /// The usage of replies to one prompt that was given once: what it has of prompt is counted once. `None` if none was counted.
    #[must_use]
    pub fn of_all(replies: &[super::Reply]) -> Option<Self> {
        let usages = replies.iter().filter_map(|reply| reply.usage);
        usages.reduce(|sum, usage| Self {
            completion_tokens: sum.completion_tokens.saturating_add(usage.completion_tokens),
            reasoning_tokens: sum.reasoning_tokens.saturating_add(usage.reasoning_tokens),
            ..sum
        })
    }

    /// The usage of the replies to several prompts, `each` to one prompt after the other.
    #[must_use]
    pub fn of_prompts(replies: &[super::Reply], each: u32) -> Option<Self> {
        let prompts = replies.chunks(each.max(1) as usize).filter_map(Self::of_all);
        prompts.reduce(|sum, usage| Self {
            prompt_tokens: sum.prompt_tokens.saturating_add(usage.prompt_tokens),
            completion_tokens: sum.completion_tokens.saturating_add(usage.completion_tokens),
            cached_tokens: sum.cached_tokens.saturating_add(usage.cached_tokens),
            reasoning_tokens: sum.reasoning_tokens.saturating_add(usage.reasoning_tokens),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_counted_once_however_many_replies_it_has() {
        let reply = |prompt_tokens, completion_tokens| super::super::Reply {
            usage: Some(Usage { prompt_tokens, completion_tokens, cached_tokens: 1, reasoning_tokens: 2 }),
            ..super::super::Reply::default()
        };
        let replies = [reply(10, 1), reply(10, 2), reply(20, 3), reply(20, 4)];
        let expected = Usage { prompt_tokens: 30, completion_tokens: 10, cached_tokens: 2, reasoning_tokens: 8 };
        assert_eq!(Usage::of_prompts(&replies, 2), Some(expected));
        assert_eq!(Usage::of_prompts(&[super::super::Reply::default()], 1), None);
    }

    #[test]
    fn every_finish_reason_is_read_by_its_name_and_a_new_one_is_a_stop() {
        for reason in [FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls, FinishReason::ContentFilter] {
            assert_eq!(FinishReason::parse(reason.name()), reason);
        }
        assert_eq!(FinishReason::parse("function_call"), FinishReason::ToolCalls);
        assert_eq!(FinishReason::parse("eos"), FinishReason::Stop);
    }
}
