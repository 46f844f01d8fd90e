//! Rarer forms, read by `tool-parser` and `reasoning-parser` when the reply has ended: on whole text they don't depend on how it came.
//!
//! They are given no more than [`read`](super::read) keeps and nesting that no stack runs out of. What they give is checked: every call
//! that was begun must have been read, or all stays text. Where they write arguments anew, the letter is taken from the text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use futures::FutureExt;
use serde_json::Value;
use serde_json::value::RawValue;

use super::read::json;
use crate::call::Call;
use crate::policy::names::Names;

static TOOLS: LazyLock<tool_parser::ParserFactory> = LazyLock::new(tool_parser::ParserFactory::new);
static REASONING: LazyLock<reasoning_parser::ParserFactory> = LazyLock::new(reasoning_parser::ParserFactory::new);

/// The deepest nesting of brackets that goes to a parser; some of them recurse.
const DEEPEST: usize = 100;

/// What must be known of a form that the crate reads.
#[derive(Debug)]
pub(super) struct Spec {
    /// The crate's name for it.
    pub name: &'static str,
    /// What calls begin with.
    pub markers: &'static [&'static str],
    /// An answer that begins with this byte may be calls.
    pub bare: Option<u8>,
    /// Stands once in each call.
    each: &'static str,
    /// Ends the last call; what follows is text.
    end: &'static str,
    /// Text stands between markers too, which only the crate takes away.
    wraps: bool,
}

const fn spec(name: &'static str, markers: &'static [&'static str], each: &'static str, end: &'static str) -> Spec {
    Spec { name, markers, bare: None, each, end, wraps: false }
}

pub(super) const SPECS: [Spec; 18] = [
    Spec {
        wraps: true,
        ..spec("cohere", &["<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"], "\"tool_name\"", "<|END_ACTION|>")
    },
    spec("deepseek", &["<｜tool▁calls▁begin｜>"], "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
    spec("deepseek31", &["<｜tool▁calls▁begin｜>"], "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
    spec("deepseek32", &["<｜DSML｜"], "<｜DSML｜invoke ", "</｜DSML｜function_calls>"),
    spec("deepseek_v4", &["<｜DSML｜"], "<｜DSML｜invoke ", "</｜DSML｜tool_calls>"),
    spec("deepseek_v41", &["<｜DSML｜"], "<｜DSML｜ invoke ", "</｜DSML｜ calls>"),
    spec("gemma4", &["<|tool_call>"], "<|tool_call>", "<tool_call|>"),
    spec("glm45_moe", &["<tool_call>"], "<tool_call>", "</tool_call>"),
    spec("glm47_moe", &["<tool_call>"], "<tool_call>", "</tool_call>"),
    spec("hy_v4", &["<tool_calls"], "<tool_call>", "</tool_calls>"),
    Spec {
        wraps: true,
        ..spec("inkling", &["<|message_model|>", "<|content_"], "<|content_invoke_tool_json|>", "<|content_model_end_sampling|>")
    },
    Spec { wraps: true, ..spec("kimi_k3", &["<|open|>", "<|close|>"], "<|open|>call", "") },
    spec("kimik2", &["<|tool_calls_section_begin|>"], "<|tool_call_begin|>", "<|tool_calls_section_end|>"),
    spec("minimax_m2", &["<minimax:tool_call>"], "<invoke name=", "</minimax:tool_call>"),
    spec("minimax_m3", &["]<]minimax[>["], "]<]minimax[>[<invoke", "]<]minimax[>[</tool_call>"),
    spec("step3", &["<｜tool_calls_begin｜>"], "<｜tool_call_begin｜>", "<｜tool_calls_end｜>"),
    Spec { bare: Some(b'['), ..spec("sarashina", &["<|tool_calls|>"], "", "") },
    Spec { bare: Some(b'['), ..spec("pythonic", &["<|python_start|>"], "", "") },
];

/// The crate's word for a model of this name, if it has one.
pub(super) fn tools_of_model(model: &str) -> Option<String> {
    TOOLS.registry().resolve_model_to_parser(model)
}

pub(super) fn reasoning_of_model(model: &str) -> Option<String> {
    let parser = REASONING.registry().create_for_model(model)?;
    Some(parser.model_type().to_owned())
}

/// What was read of kept text.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    pub calls: Vec<Called>,
    /// Text around the calls, in its order.
    pub before: String,
    pub after: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct Called {
    pub name: String,
    pub arguments: String,
}

/// Reads the calls in text that begins with one. `None`: it has some that can't be read.
pub(super) async fn calls(spec: &Spec, call: &Call, names: &Names, text: &str) -> Option<Read> {
    if depth(text) > DEEPEST {
        return None;
    }
    let end = text.rfind(spec.end).filter(|_| !spec.end.is_empty()).map_or(text.len(), |at| at + spec.end.len());
    let (inside, after) = text.split_at(end);
    let parser = TOOLS.registry().create_parser(spec.name)?;
    let tools: Vec<_> = serde_json::from_value(offered(call, names)).ok()?;
    // Whatever it makes of its input, it is not to take the call down.
    let parsed = AssertUnwindSafe(parser.parse_complete_with_tools(inside, &tools)).catch_unwind().await;
    let (before, calls) = parsed.ok()?.ok()?;
    let begun = if spec.each.is_empty() { 1 } else { inside.matches(spec.each).count() };
    let least = if spec.wraps { 0 } else { 1 };
    if calls.len() < begun.max(least) {
        return None;
    }
    let letters = json::objects(inside);
    let mut letters = letters.iter().flat_map(|json| written(json)).collect::<Vec<_>>().into_iter();
    let called = calls.into_iter().map(|call| {
        let value: Option<Value> = serde_json::from_str(&call.function.arguments).ok();
        let letter = letters.clone().position(|letter| serde_json::from_str::<Value>(letter).ok() == value);
        let arguments = letter.and_then(|at| letters.nth(at)).map_or(call.function.arguments, str::to_owned);
        Called { name: call.function.name, arguments }
    });
    Some(Read { calls: called.collect(), before, after: after.to_owned() })
}

/// Parts a reply's reasoning from its answer.
pub(super) fn reasoning(parser: &str, opened: bool, text: String) -> (String, String) {
    let read = || {
        let mut parser = REASONING.registry().create_parser(parser)?;
        if opened {
            parser.mark_reasoning_started();
            parser.mark_think_start_stripped();
        }
        let read = parser.detect_and_parse_reasoning(&text).ok()?;
        Some((read.reasoning_text, read.normal_text))
    };
    catch_unwind(AssertUnwindSafe(read)).ok().flatten().unwrap_or_else(|| (String::new(), text.clone()))
}

/// The tools as the crate takes them: chat completions'.
fn offered(call: &Call, names: &Names) -> Value {
    let tools = call.tools.iter().filter_map(|tool| {
        let mut out = Vec::new();
        tool.write_chat(&mut out, &names.of_tool(tool));
        serde_json::from_slice(&out).ok()
    });
    Value::Array(tools.collect())
}

/// What may be the arguments of a call in a JSON object: itself, or what it calls so.
fn written(json: &str) -> Vec<&str> {
    let fields: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(json).unwrap_or_default();
    let named = ["arguments", "parameters"].into_iter().filter_map(|name| fields.get(name).map(|raw| raw.get()));
    named.chain([json]).collect()
}

fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
