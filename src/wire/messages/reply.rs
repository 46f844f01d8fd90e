//! The objects of a reply: the message, its blocks, its usage and why it ended.

use std::io::Write;

use crate::call::{Call, Content, FinishReason, Message, Part, Raw, Reply, Text, Usage, quote};
use crate::ids::CallId;
use crate::wire::{ReplyHead, fields};

/// What stands for the signature of thinking, which only Anthropic's own servers check: clients insist that there is one, and
/// send it back.
pub(super) const SIGNATURE: &str = "Z2xlYW5lcg==";
/// The field that holds a tool's input which is no JSON object, as Anthropic's documentation has it.
const INVALID: &str = "INVALID_JSON";
/// What an image counts for in a guess of a prompt's length, in bytes of text.
const IMAGE_BYTES: usize = 4_000;

/// Writes the objects of one reply.
pub(super) struct Objects {
    /// The call's id, of which the reply's ids are made.
    pub(super) hex: String,
    /// `{"id":..,"model":..` of the message.
    start: Vec<u8>,
    /// The strings that the client asked the reply to stop at.
    stops: Option<Raw>,
    /// A guess at the prompt's tokens.
    guess: u64,
}

/// A call's id as the ids of its reply have it.
pub(super) fn hex(call_id: CallId) -> String {
    call_id.0.simple().to_string()
}

impl Objects {
    pub(super) fn new(call: &Call, head: &ReplyHead) -> Self {
        let hex = hex(head.call_id);
        let mut start = Vec::with_capacity(128);
        let _ = write!(start, "{{\"id\":\"msg_{hex}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
        quote(&mut start, &head.model);
        Self { hex, start, stops: call.sampling.stop.clone(), guess: guess(call) }
    }

    /// Writes the message as it is before the model has said anything, for a prompt of so many tokens where that is known.
    pub(super) fn begun(&self, out: &mut Vec<u8>, prompt: Option<u64>) {
        out.extend_from_slice(&self.start);
        out.extend_from_slice(b",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        let prompt_tokens = prompt.filter(|count| *count > 0).unwrap_or(self.guess);
        write_usage(out, &Usage { prompt_tokens, ..Usage::default() });
        out.push(b'}');
    }

    /// Writes the whole message.
    pub(super) fn whole(&self, out: &mut Vec<u8>, reply: &Reply, id_of: impl Fn(usize) -> Text) {
        out.extend_from_slice(&self.start);
        out.extend_from_slice(b",\"content\":[");
        let first = out.len();
        let next = |out: &mut Vec<u8>| {
            if out.len() > first {
                out.push(b',');
            }
        };
        if let Some(thought) = said(reply.reasoning.as_ref()) {
            next(out);
            out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":");
            out.extend_from_slice(thought.literal());
            let _ = write!(out, ",\"signature\":\"{SIGNATURE}\"}}");
        }
        for text in [&reply.text, &reply.refusal].into_iter().filter_map(|text| said(text.as_ref())) {
            next(out);
            out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
            out.extend_from_slice(text.literal());
            out.push(b'}');
        }
        for (at, call) in reply.tool_calls.iter().enumerate() {
            next(out);
            write_tool(out, &id_of(at), &call.name, &input(&call.arguments));
        }
        out.push(b']');
        self.end(out, reply);
        out.extend_from_slice(b",\"usage\":");
        write_usage(out, &self.usage(reply));
        out.push(b'}');
    }

    /// Writes why a reply ended, as further fields of an object.
    pub(super) fn end(&self, out: &mut Vec<u8>, reply: &Reply) {
        let (reason, sequence) = self.stop(reply);
        let _ = write!(out, ",\"stop_reason\":\"{reason}\",\"stop_sequence\":");
        out.extend_from_slice(sequence.map_or(b"null", Text::literal));
    }

    /// What a reply took, counted by the server, else by its tokens, else guessed.
    pub(super) fn usage(&self, reply: &Reply) -> Usage {
        let counted = |ids: usize, guess: u64| if ids > 0 { ids as u64 } else { guess };
        reply.usage.unwrap_or_else(|| Usage {
            prompt_tokens: counted(reply.prompt_ids.as_ref().map_or(0, Vec::len), self.guess),
            completion_tokens: counted(reply.tokens.ids.len(), (message_bytes(&reply.message()) as u64).div_ceil(4)),
            ..Usage::default()
        })
    }

    fn stop<'a>(&self, reply: &'a Reply) -> (&'static str, Option<&'a Text>) {
        let calls = !reply.tool_calls.is_empty();
        match reply.finish {
            Some(FinishReason::ContentFilter) => return ("refusal", None),
            // Calls that came whole can be run; one that was cut must not be taken for what the model meant.
            Some(FinishReason::Length) if !calls || reply.tool_calls.iter().any(|call| !is_object(&call.arguments.decode())) => {
                return ("max_tokens", None);
            }
            _ => {}
        }
        if calls {
            return ("tool_use", None);
        }
        if reply.refusal.is_some() {
            return ("refusal", None);
        }
        // A policy may have stop strings of its own, which the client knows nothing of.
        let asked = self.stops.as_ref().and_then(|stops| stops.read::<Vec<String>>().ok()).unwrap_or_default();
        match &reply.stop_string {
            Some(stop) if asked.iter().any(|asked| *asked == stop.decode()) => ("stop_sequence", Some(stop)),
            _ => ("end_turn", None),
        }
    }
}

/// A text that says something.
fn said(text: Option<&Text>) -> Option<&Text> {
    text.filter(|text| !text.is_empty())
}

/// Writes a `tool_use` block.
pub(super) fn write_tool(out: &mut Vec<u8>, id: &Text, name: &Text, input: &[u8]) {
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":");
    out.extend_from_slice(id.literal());
    out.extend_from_slice(b",\"name\":");
    out.extend_from_slice(name.literal());
    out.extend_from_slice(b",\"input\":");
    out.extend_from_slice(input);
    out.push(b'}');
}

/// Writes token counts; Anthropic counts what came from a cache apart.
pub(super) fn write_usage(out: &mut Vec<u8>, usage: &Usage) {
    let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
    let fresh = prompt_tokens.saturating_sub(*cached_tokens);
    let _ = write!(
        out,
        "{{\"input_tokens\":{fresh},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{cached_tokens},\
         \"output_tokens\":{completion_tokens}"
    );
    if *reasoning_tokens > 0 {
        let _ = write!(out, ",\"output_tokens_details\":{{\"thinking_tokens\":{reasoning_tokens}}}");
    }
    out.push(b'}');
}

/// A tool's input as a JSON object: what the model wrote, if that is one, else an object that holds it and says so. An empty
/// object in its place would be run.
fn input(arguments: &Text) -> Vec<u8> {
    let plain = arguments.decode();
    if is_object(&plain) {
        return plain.trim().as_bytes().to_vec();
    }
    if plain.is_empty() {
        return b"{}".to_vec();
    }
    let mut out = format!("{{\"{INVALID}\":").into_bytes();
    out.extend_from_slice(arguments.literal());
    out.push(b'}');
    out
}

/// Whether a text is an object that clients can read, and send back.
fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{')
        && !fields::is_deep(json.as_bytes())
        && serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok()
}

/// Four bytes a token is what English text and code come to.
fn guess(call: &Call) -> u64 {
    let tools = call.tools.iter().map(|tool| {
        let described = tool.description.as_ref().map_or(0, |text| text.inner().len());
        tool.name.inner().len() + described + tool.parameters.as_ref().map_or(0, |raw| raw.as_bytes().len())
    });
    let bytes = call.messages.iter().map(message_bytes).sum::<usize>() + tools.sum::<usize>();
    (bytes as u64).div_ceil(4).max(1)
}

fn message_bytes(message: &Message) -> usize {
    let content = match &message.content {
        Content::Absent | Content::Null => 0,
        Content::Text(text) => text.inner().len(),
        Content::Parts(parts) => parts.iter().map(part_bytes).sum(),
    };
    let calls = message.tool_calls.iter().map(|call| call.name.inner().len() + call.arguments.inner().len());
    content + message.reasoning.as_ref().map_or(0, |text| text.inner().len()) + calls.sum::<usize>()
}

fn part_bytes(part: &Part) -> usize {
    match part {
        Part::Text(text) => text.inner().len(),
        Part::Image(_) => IMAGE_BYTES,
        Part::Opaque(raw) => raw.as_bytes().len(),
    }
}

#[cfg(test)]
mod tests {
    use super::input;
    use crate::call::Text;

    #[test]
    fn an_input_that_could_not_be_sent_back_is_told_as_text() {
        let nested = |depth: usize| Text::new(&format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth)));
        assert_eq!(input(&nested(50)), nested(50).decode().as_bytes());
        for depth in [200, 100_000] {
            assert_eq!(input(&nested(depth)), [b"{\"INVALID_JSON\":", nested(depth).literal(), b"}"].concat());
        }
    }
}
