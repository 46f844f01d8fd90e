//! What a test tells the scripted server to do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::Semaphore;

/// One scripted reply: what the "model" says, and what goes wrong on the way.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reply {
    pub reasoning: Option<String>,
    /// `reasoning` (vLLM) if nothing is said.
    pub reasoning_field: Option<String>,
    /// `{n}` becomes the request's number.
    pub text: Option<String>,
    /// What is said instead of an answer, by servers that tell a refusal from a text.
    pub refusal: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// Mixes the fragments of the tool calls' arguments.
    pub interleave: bool,
    pub finish: Option<String>,
    /// Milliseconds between events.
    pub pace_ms: u64,
    /// Milliseconds of silence, once: before the third event, or before a whole body.
    pub pause_ms: u64,
    /// As vLLM's tool parsers do: events of tool calls carry no ids.
    pub swallow_ids: bool,
    /// Leaves out every second log-probability.
    pub lose_logprobs: bool,
    pub fault: Option<Fault>,
    /// Each event waits for the test.
    #[serde(skip)]
    pub gate: Option<Gate>,
}

/// A scripted tool call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub name: String,
    pub arguments: String,
}

/// Replies for the requests in whose bodies a mark stands; the last of them stands for all that follow. So conversations side by
/// side have scripts of their own, whatever their order.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    pub when: String,
    pub replies: VecDeque<Reply>,
}

impl Bound {
    pub(super) fn next(&mut self) -> Option<Reply> {
        if self.replies.len() > 1 { self.replies.pop_front() } else { self.replies.front().cloned() }
    }
}

/// What may be posted as a script.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Posted {
    Bound(Bound),
    Replies(Vec<Reply>),
}

/// What goes wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Fault {
    /// Another answer altogether.
    Status {
        status: u16,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        body: String,
    },
    /// 200 and a page of HTML.
    Html,
    /// 200, JSON by its type, and broken.
    BrokenJson,
    /// The connection closes with nothing said.
    CutBeforeHead,
    /// The head comes and then nothing.
    CutBeforeBody,
    /// So many events come, then the connection closes. A whole body is cut in its middle.
    CutAfter {
        events: usize,
    },
    /// Nothing comes, ever.
    StallBefore,
    /// So many events come, then nothing.
    StallAfter {
        events: usize,
    },
    /// One event's text is so long.
    LongLine {
        bytes: usize,
    },
    /// A byte-order mark comes first.
    Bom,
    /// The second piece of text has a byte that is not UTF-8.
    BadUtf8,
    Crlf,
    /// Comments stand between events and inside them.
    Comments,
    NoDone,
    /// The stream ends as a connection does that was closed in order, but nothing said that the reply had ended.
    NoFinish,
    /// The last piece, the reason and the usage come as one.
    FatLast,
    /// Events without choices stand between the others.
    EmptyChoices,
    /// So many events come, then one with an error.
    ErrorEvent {
        events: usize,
    },
    /// Each byte of the stream comes in a write of its own.
    ByteByByte,
    /// The server counts so many tokens more, or fewer.
    Miscount {
        prompt: i64,
        completion: i64,
    },
    /// The first token's log-probability is this JSON.
    Logprob {
        value: String,
    },
    /// The first token's id is this one.
    Foreign {
        id: u32,
    },
}

/// Holds events back until the test lets them go.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets so many events go.
    pub fn pass(&self, events: usize) {
        self.0.add_permits(events);
    }

    /// Whether all that were let go are gone.
    pub fn is_empty(&self) -> bool {
        self.0.available_permits() == 0
    }

    /// Lets everything go from now on.
    pub fn open(&self) {
        self.0.close();
    }

    pub(super) async fn wait(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

impl Reply {
    /// A reply of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// A reply that calls tools.
    pub fn tools(calls: &[(&str, &str)]) -> Self {
        let call = |(name, arguments): &(&str, &str)| ToolCall { name: (*name).to_owned(), arguments: (*arguments).to_owned() };
        Self { tool_calls: calls.iter().map(call).collect(), ..Self::default() }
    }

    /// The same reply with reasoning before it.
    #[must_use]
    pub fn thinking(self, reasoning: &str) -> Self {
        Self { reasoning: Some(reasoning.to_owned()), ..self }
    }

    /// The same reply with its fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }

    /// The same reply with another reason for its end.
    #[must_use]
    pub fn with_finish(self, finish: &str) -> Self {
        Self { finish: Some(finish.to_owned()), ..self }
    }

    /// The same reply behind a gate.
    #[must_use]
    pub fn behind(self, gate: &Gate) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }
}
