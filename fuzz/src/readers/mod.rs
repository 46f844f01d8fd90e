//! Readers of replies, one for each wire, written from what the official SDKs do and sharing nothing with the encoders. They panic
//! at whatever a strict client would stumble over.

mod chat;
mod responses;

use crate::call::{FinishReason, Reply, ToolKind};
use crate::json::{self, Json, Units};

/// One for each wire that is served.
static ALL: &[&dyn Reader] = &[&chat::Chat, &responses::Responses];

/// What a client can tell of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub text: Units,
    pub reasoning: Units,
    pub refusal: Units,
    pub tools: Vec<SeenTool>,
    pub finish: String,
    /// Of the prompt, the completion, from the cache, of reasoning; where the wire tells.
    pub usage: Option<[u64; 4]>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenTool {
    pub custom: bool,
    pub namespace: Units,
    pub id: Units,
    pub name: Units,
    pub arguments: Units,
}

/// Reads one wire's replies.
pub trait Reader: Sync {
    fn wire(&self) -> &'static str;

    /// A streamed request that asks to be told all that the wire can tell.
    fn request(&self) -> &'static str;

    fn has_tools(&self) -> bool {
        true
    }

    fn has_custom_tools(&self) -> bool {
        false
    }

    fn has_namespaces(&self) -> bool {
        false
    }

    fn has_refusals(&self) -> bool {
        true
    }

    /// The reply as a client of this wire can know it.
    fn expected(&self, reply: &Reply) -> Seen;

    /// A stream: what left at once, and what was held back until the record was committed.
    fn stream(&self, live: &[u8], held: &[u8]) -> Seen;

    fn whole(&self, body: &[u8]) -> Seen;
}

/// The reader of this wire's replies.
pub fn of(wire: &str) -> &'static dyn Reader {
    let reader = ALL.iter().find(|reader| reader.wire() == wire);
    *reader.unwrap_or_else(|| panic!("the wire {wire} has no reader in fuzz/src/readers: write one"))
}

/// The reply, whatever the wire; `finish` is chat's name.
fn seen(reply: &Reply) -> Seen {
    let plain = |text: &crate::call::Text| json::ours(text.literal()).text();
    let tool = |call: &crate::call::ToolCall| SeenTool {
        custom: call.kind == ToolKind::Custom,
        namespace: call.namespace.as_ref().map(plain).unwrap_or_default(),
        id: plain(&call.id),
        name: plain(&call.name),
        arguments: plain(&call.arguments),
    };
    let finish = match reply.finish {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::ContentFilter) => "content_filter",
        _ if reply.finish == Some(FinishReason::ToolCalls) || !reply.tool_calls.is_empty() => "tool_calls",
        _ => "stop",
    };
    Seen {
        text: reply.text.as_ref().map(plain).unwrap_or_default(),
        reasoning: reply.reasoning.as_ref().map(plain).unwrap_or_default(),
        refusal: reply.refusal.as_ref().map(plain).unwrap_or_default(),
        tools: reply.tool_calls.iter().map(tool).collect(),
        finish: finish.to_owned(),
        usage: reply.usage.map(|u| [u.prompt_tokens, u.completion_tokens, u.cached_tokens, u.reasoning_tokens]),
    }
}

/// The events of a stream, name and data.
fn events(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("an event's name is UTF-8");
    crate::sse::by_the_standard(stream).into_iter().map(|(name, data)| (text(name), data)).collect()
}

/// Takes the whole list, or nothing where there is none.
fn list(value: &Json) -> &[Json] {
    assert!(matches!(value, Json::List(_) | Json::Null), "not a list: {value:?}");
    value.items()
}

fn place(value: &Json) -> usize {
    usize::try_from(value.number().expect("an index")).expect("an index")
}
