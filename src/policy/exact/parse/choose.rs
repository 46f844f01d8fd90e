//! Which parsers there are, and which a model's template speaks of.

use super::read::{Form, Thinking};
use super::whole::{self, Spec};

/// What a config says for no parser.
const NONE: &str = "none";

/// How tool calls are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tools {
    name: &'static str,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Not,
    Ours(Form),
    Whole(&'static Spec),
}

/// The forms that we read ourselves, by the names that `tool-parser` has for them, and by vLLM's where those are more common.
const OURS: [(&str, Form); 8] = [
    ("qwen", Form::Hermes),
    ("hermes", Form::Hermes),
    ("qwen_xml", Form::Coder),
    ("qwen_coder", Form::Coder),
    ("nemotron", Form::Coder),
    ("mistral", Form::Mistral),
    ("llama", Form::Llama),
    ("json", Form::Json),
];

/// What templates write of calls, the more particular first, and what it means. Of several words all must be there.
const TOOL_SIGNS: [(&[&str], &str); 23] = [
    (&["]<]minimax[>["], "minimax_m3"),
    (&["<minimax:tool_call>"], "minimax_m2"),
    (&["<｜DSML｜ "], "deepseek_v41"),
    (&["<｜DSML｜", "function_calls"], "deepseek32"),
    (&["｜DSML｜", "function_calls"], "deepseek32"),
    (&["｜DSML｜"], "deepseek_v4"),
    (&["<｜tool▁calls▁begin｜>", "```json"], "deepseek"),
    (&["<｜tool▁calls▁begin｜>"], "deepseek31"),
    (&["<｜tool_calls_begin｜>"], "step3"),
    (&["<|tool_calls_section_begin|>"], "kimik2"),
    (&["<|open|>", "<|sep|>"], "kimi_k3"),
    (&["<|START_ACTION|>"], "cohere"),
    (&["<|content_invoke_tool_json|>"], "inkling"),
    (&["<|tool_calls|>"], "sarashina"),
    (&["<|tool_call>"], "gemma4"),
    (&["<arg_key>", "<tool_calls"], "hy_v4"),
    (&["<arg_key>"], "glm47_moe"),
    (&["[TOOL_CALLS]"], "mistral"),
    (&["<function="], "qwen_xml"),
    (&["<tool_call>"], "qwen"),
    (&["<|python_tag|>"], "llama"),
    (&["<|python_start|>"], "pythonic"),
    (&["[func_name1("], "pythonic"),
];

impl Tools {
    pub(super) const NONE: Self = Self { name: NONE, how: How::Not };

    pub(super) fn named(name: &str) -> Option<Self> {
        let ours = OURS.iter().find(|(known, _)| *known == name);
        let whole = || whole::SPECS.iter().find(|spec| spec.name == name);
        match ours {
            Some((name, form)) => Some(Self { name, how: How::Ours(*form) }),
            None if name == NONE || name == "passthrough" => Some(Self::NONE),
            None => whole().map(|spec| Self { name: spec.name, how: How::Whole(spec) }),
        }
    }

    /// All names, for who took a wrong one.
    pub(super) fn known() -> String {
        let names = OURS.iter().map(|(name, _)| *name).chain(whole::SPECS.iter().map(|spec| spec.name)).chain([NONE]);
        names.collect::<Vec<_>>().join(", ")
    }

    /// What a template's signs mean; one that speaks of no tools has none. Without a template the model's name must do.
    pub(super) fn spoken_of(template: &str, model: &str) -> Self {
        let name = if template.is_empty() {
            whole::tools_of_model(model)
        } else if template.contains("tool") {
            let sign = TOOL_SIGNS.iter().find(|(signs, _)| signs.iter().all(|sign| template.contains(sign)));
            sign.map(|(_, name)| (*name).to_owned())
        } else {
            None
        };
        name.and_then(|name| Self::named(&name)).unwrap_or(Self::NONE)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn form(&self) -> Option<Form> {
        match self.how {
            How::Not => None,
            How::Ours(form) => Some(form),
            How::Whole(spec) => Some(Form::Kept { markers: spec.markers, bare: spec.bare }),
        }
    }

    /// What the crate must know, where it does the reading.
    pub(super) fn whole(&self) -> Option<&'static Spec> {
        match self.how {
            How::Whole(spec) => Some(spec),
            How::Not | How::Ours(_) => None,
        }
    }
}

/// How reasoning is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reasoning {
    name: &'static str,
    /// `None`, and not [`NONE`]: the crate reads it.
    thinking: Option<Thinking>,
    /// Replies begin inside of it, whatever the prompt's end looks like.
    opened: bool,
}

const fn between(name: &'static str, start: &'static str, end: &'static str, opened: bool) -> Reasoning {
    Reasoning { name, thinking: Some(Thinking { start, end }), opened }
}

const fn by_crate(name: &'static str) -> Reasoning {
    Reasoning { name, thinking: None, opened: false }
}

/// By the names that `reasoning-parser` has for them; Mistral's is not among its own.
const REASONING: [Reasoning; 22] = [
    between("qwen3", "<think>", "</think>", false),
    between("qwen3_thinking", "<think>", "</think>", true),
    between("deepseek_r1", "<think>", "</think>", true),
    between("deepseek_v31", "<think>", "</think>", false),
    between("deepseek_v4", "<think>", "</think>", false),
    between("deepseek_v41", "<think>", "</think>", false),
    between("glm45", "<think>", "</think>", false),
    between("nano_v3", "<think>", "</think>", false),
    between("step3", "<think>", "</think>", true),
    between("minimax", "<think>", "</think>", true),
    between("minimax_m3", "<mm:think>", "</mm:think>", false),
    between("kimi", "◁think▷", "◁/think▷", false),
    between("kimi_k25", "<think>", "</think>", false),
    between("kimi_thinking", "<think>", "</think>", true),
    between("cohere_cmd", "<|START_THINKING|>", "<|END_THINKING|>", false),
    between("gemma4", "<|channel>thought\n", "<channel|>", false),
    between("mistral", "[THINK]", "[/THINK]", false),
    between("base", "<think>", "</think>", false),
    by_crate("kimi_k3"),
    by_crate("inkling"),
    by_crate("hy_v4"),
    by_crate(NONE),
];

/// What templates write of reasoning, as [`TOOL_SIGNS`].
const REASONING_SIGNS: [(&[&str], &str); 10] = [
    (&["<mm:think>"], "minimax_m3"),
    (&["◁think▷"], "kimi"),
    (&["<|START_THINKING|>"], "cohere_cmd"),
    (&["<|channel>thought"], "gemma4"),
    (&["[THINK]"], "mistral"),
    (&["<|open|>", "<|sep|>"], "kimi_k3"),
    (&["<|content_thinking|>"], "inkling"),
    (&["<think:"], "hy_v4"),
    (&["<think>"], "qwen3"),
    (&["</think>"], "qwen3"),
];

/// With these a turn begins: what stands before them in a prompt's ending was said by others.
const TURNS: [&str; 4] = ["<|", "<｜", "[/INST]", "<start_of_turn>"];

impl Reasoning {
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = if name == "passthrough" { NONE } else { name };
        REASONING.iter().find(|reasoning| reasoning.name == name).copied()
    }

    pub(super) fn known() -> String {
        REASONING.map(|reasoning| reasoning.name).join(", ")
    }

    pub(super) fn spoken_of(template: &str, model: &str) -> Self {
        let name = if template.is_empty() {
            whole::reasoning_of_model(model)
        } else {
            let sign = REASONING_SIGNS.iter().find(|(signs, _)| signs.iter().all(|sign| template.contains(sign)));
            sign.map(|(_, name)| (*name).to_owned())
        };
        name.and_then(|name| Self::named(&name)).unwrap_or(by_crate(NONE))
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn thinking(&self) -> Option<Thinking> {
        self.thinking
    }

    /// The crate's parser, where it does the reading.
    pub(super) fn whole(&self) -> Option<&'static str> {
        (self.thinking.is_none() && self.name != NONE).then_some(self.name)
    }

    /// Whether the reply goes on in reasoning that a prompt with this ending has begun.
    pub(super) fn opened(&self, ending: &str) -> bool {
        // The crate's forms have these too, beside their own; an ending without either leaves them closed.
        let Thinking { start, end } = self.thinking.unwrap_or(Thinking { start: "<think>", end: "</think>" });
        // A marker that ends with a line break may have lost it to the template's trimming.
        let begun = ending.rfind(start.trim_end()).filter(|at| {
            let after = &ending[at + start.trim_end().len()..];
            !TURNS.iter().any(|turn| after.contains(turn))
        });
        let ended = ending.rfind(end);
        if begun.is_some() || ended.is_some() { begun > ended } else { self.opened }
    }
}
