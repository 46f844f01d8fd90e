//! Chat completions' chunk and whole body as servers send them, borrowed from their bytes. One form reads both: a whole body's
//! `message` is a `delta` that holds everything.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A chunk, or a whole body.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub choices: First<Choice<'a>>,
    pub usage: Option<CountedUsage>,
    #[serde(borrow)]
    pub prompt_token_ids: Option<&'a RawValue>,
    #[serde(rename = "__verbose")]
    pub verbose: Option<Verbose>,
    /// Tells an error in vLLM's older form (`"object": "error"`), whose message stands beside it.
    #[serde(borrow)]
    pub object: Option<Cow<'a, str>>,
}

/// The first of a list; Gleaner asks for one choice only. Empty for an empty list, null, or none.
pub(super) struct First<T>(pub Option<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = First<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of choices")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(First(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_any(List(std::marker::PhantomData))
    }
}

/// A field's name, copied only if it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a field's name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Fields that have no place of their own.
pub(super) type Unknown<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// One choice.
#[derive(Default)]
pub(super) struct Choice<'a> {
    pub delta: Delta<'a>,
    pub finish_reason: Option<Cow<'a, str>>,
    pub token_ids: Option<&'a RawValue>,
    pub logprobs: Option<&'a RawValue>,
    pub unknown: Unknown<'a>,
}

/// What a choice says.
#[derive(Default)]
pub(super) struct Delta<'a> {
    pub content: Option<&'a RawValue>,
    pub reasoning: Option<&'a RawValue>,
    pub reasoning_content: Option<&'a RawValue>,
    pub refusal: Option<&'a RawValue>,
    pub tool_calls: Option<Vec<ToolDelta<'a>>>,
    pub unknown: Unknown<'a>,
}

/// Keeps a field that nobody knows, unless it says nothing.
fn keep<'de, A: MapAccess<'de>>(unknown: &mut Unknown<'de>, name: Cow<'de, str>, map: &mut A) -> Result<(), A::Error> {
    let value: &RawValue = map.next_value()?;
    if value.get() != "null" {
        unknown.push((name, value));
    }
    Ok(())
}

impl<'de: 'a, 'a> Deserialize<'de> for Choice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Choice<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a choice")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut choice = Choice::default();
                while let Some(Name(name)) = map.next_key()? {
                    match &*name {
                        "delta" | "message" => choice.delta = map.next_value::<Option<Delta>>()?.unwrap_or_default(),
                        "finish_reason" => choice.finish_reason = map.next_value()?,
                        "token_ids" => choice.token_ids = map.next_value()?,
                        "logprobs" => choice.logprobs = map.next_value()?,
                        "index" | "prompt_token_ids" => drop(map.next_value::<IgnoredAny>()?),
                        _ => keep(&mut choice.unknown, name, &mut map)?,
                    }
                }
                Ok(choice)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Delta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Delta<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a delta or a message")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut delta = Delta::default();
                while let Some(Name(name)) = map.next_key()? {
                    match &*name {
                        "content" => delta.content = map.next_value()?,
                        "reasoning" => delta.reasoning = map.next_value()?,
                        "reasoning_content" => delta.reasoning_content = map.next_value()?,
                        "refusal" => delta.refusal = map.next_value()?,
                        "tool_calls" => delta.tool_calls = map.next_value()?,
                        "role" => drop(map.next_value::<IgnoredAny>()?),
                        _ => keep(&mut delta.unknown, name, &mut map)?,
                    }
                }
                Ok(delta)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A piece of a tool call, or a whole one.
#[derive(Deserialize)]
pub(super) struct ToolDelta<'a> {
    pub index: Option<i64>,
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub function: Option<FunctionDelta<'a>>,
}

/// The function's part of it.
#[derive(Deserialize, Default)]
pub(super) struct FunctionDelta<'a> {
    #[serde(borrow)]
    pub name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
}

/// One token's log-probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LogprobEntry {
    pub logprob: Option<f64>,
    /// llama.cpp's: the sampled token's id.
    pub id: Option<u32>,
}

/// Token counts.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CountedUsage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub prompt_tokens_details: Option<PromptDetails>,
    pub completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PromptDetails {
    pub cached_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CompletionDetails {
    pub reasoning_tokens: Option<u64>,
}

/// llama.cpp's account of a reply, asked for by `verbose`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Verbose {
    pub tokens: Vec<u32>,
    pub generation_settings: GenerationSettings,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct GenerationSettings {
    pub grammar: Grammar,
    pub grammar_lazy: bool,
}

/// Whether there is a grammar; its text, which can be long, is passed over.
#[derive(Default)]
pub(super) struct Grammar(pub bool);

impl<'de> Deserialize<'de> for Grammar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(Self(!matches!(raw.get(), "\"\"" | "null")))
    }
}
