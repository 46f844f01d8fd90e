//! Readers of replies, one for each wire, written from what the official SDKs do and sharing nothing with the encoders. They panic
//! at whatever a strict client would stumble over.

mod chat;
mod completions;
mod gemini;
mod messages;
mod responses;

use crate::call::{FinishReason, Reply, Text, ToolCall, ToolKind};
use crate::json::{self, Json, Units};

/// One for each wire that is served.
static ALL: &[&dyn Reader] =
    &[&chat::Chat, &completions::Completions, &gemini::Gemini, &messages::Messages, &responses::Responses];

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

#[derive(Clone, Debug, PartialEq)]
pub struct SeenTool {
    pub custom: bool,
    pub namespace: Units,
    pub id: Units,
    pub name: Units,
    /// A string, or an object on wires that have one.
    pub arguments: Json,
}

/// Where a request is posted, and its body.
pub type Request = (&'static str, &'static str);

/// Reads one wire's replies.
pub trait Reader: Sync {
    fn wire(&self) -> &'static str;

    /// Streamed requests that ask to be told all that the wire can tell.
    fn requests(&self) -> &'static [Request];

    fn has_tools(&self) -> bool {
        true
    }

    fn has_custom_tools(&self) -> bool {
        false
    }

    fn has_namespaces(&self) -> bool {
        false
    }

    fn has_reasoning(&self) -> bool {
        true
    }

    /// Tells a refusal from text.
    fn has_refusals(&self) -> bool {
        true
    }

    /// Shows the prompt's text before the reply's.
    fn echoes(&self) -> bool {
        false
    }

    /// Tells a usage where the policy gave none.
    fn guesses_usage(&self) -> bool {
        false
    }

    /// One reply as a client of this wire can know it.
    fn expected(&self, reply: &Reply) -> Seen;

    /// A stream of `choices` replies: what left at once, and what was held back until the record was committed.
    fn stream(&self, request: Request, choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen>;

    fn whole(&self, body: &[u8]) -> Vec<Seen>;
}

/// The reader of this wire's replies.
pub fn of(wire: &str) -> &'static dyn Reader {
    let reader = ALL.iter().find(|reader| reader.wire() == wire);
    *reader.unwrap_or_else(|| panic!("the wire {wire} has no reader in fuzz/src/readers: write one"))
}

/// The replies as a client can know them: several have one usage, told with the first here.
pub fn expected(reader: &dyn Reader, replies: &[Reply]) -> Vec<Seen> {
    let mut seen: Vec<Seen> = replies.iter().map(|reply| reader.expected(reply)).collect();
    let sum = |sum: [u64; 4], more: [u64; 4]| [sum[0], sum[1] + more[1], sum[2], sum[3] + more[3]];
    let usage = seen.iter_mut().filter_map(|seen| seen.usage.take()).reduce(sum);
    seen[0].usage = usage;
    seen
}

fn plain(text: &Text) -> Units {
    json::ours(text.literal()).text()
}

/// The reply, whatever the wire; `finish` is chat's name.
fn seen(reply: &Reply) -> Seen {
    let tool = |call: &ToolCall| SeenTool {
        custom: call.kind == ToolKind::Custom,
        namespace: call.namespace.as_ref().map(plain).unwrap_or_default(),
        id: plain(&call.id),
        name: plain(&call.name),
        arguments: Json::String(plain(&call.arguments)),
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

/// The JSON object that a text is, as a client without half characters reads it.
fn object(text: &Units) -> Option<Json> {
    json::read(text.lossy().as_bytes()).ok().filter(|value| matches!(value, Json::Object(_)))
}

/// The events of a stream, name and data.
fn events(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("an event's name is UTF-8");
    assert!(std::str::from_utf8(stream).is_ok(), "what is written is UTF-8");
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
