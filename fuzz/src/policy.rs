//! The pure part of `policy`: what goes up and what comes back, without the HTTP between.

use std::sync::Arc;

use bytes::Bytes;

use crate::call::{Call, Event, Failure, Prompt};

#[path = "../../src/policy/body.rs"]
mod body;
#[path = "../../src/policy/chunk.rs"]
mod chunk;
#[path = "../../src/policy/decode.rs"]
mod decode;
#[path = "../../src/policy/names.rs"]
mod names;
#[path = "../../src/policy/exact/parse/read/mod.rs"]
mod read;
#[path = "../../src/policy/refusal.rs"]
mod refusal;
#[path = "../../src/policy/scan.rs"]
mod scan;
#[path = "../../src/policy/tools.rs"]
mod tools;

/// Stands for the module that asks servers about prompts that are no conversation.
mod plain {
    use crate::call::{Prompt, Raw, Text};

    #[derive(Clone, Debug, PartialEq)]
    pub(super) enum Echo {
        No,
        Ours(Text),
        Servers(Text),
    }

    pub(super) fn write(out: &mut Vec<u8>, prompt: &Prompt) {
        match prompt {
            Prompt::Text(text) => super::body::field(out, "prompt", text.literal()),
            Prompt::Ids(ids) => super::body::field(out, "prompt", Raw::from_value(ids).as_bytes()),
        }
    }
}

/// Stands for the module that speaks HTTP with a llama.cpp server.
mod llamacpp {
    use crate::call::{Raw, Wants};

    pub(super) fn client_logprobs(json: &str, _wants: Wants) -> Raw {
        serde_json::from_str(json).unwrap_or_else(|_| Raw::from_value(&()))
    }
}

/// Everything that a policy writes of a call: the request, and what a template and a tokenize endpoint are asked.
pub fn written(call: &Call) -> [Vec<u8>; 3] {
    let names = names::Names::of(call);
    let reasoning = body::ReasoningField { name: "reasoning", always: false };
    let outer = body::Outer {
        model: "m",
        stream: call.stream,
        sampling: &call.sampling,
        repetition: "repetition_penalty",
        max_tokens: call.max_tokens,
        added: &[("return_token_ids", "true".to_owned())],
    };
    [
        body::write(call, &names, reasoning, &outer),
        body::write_template(call, &names, reasoning),
        body::write_tokenize(call, &names, reasoning, "m"),
    ]
}

/// What was read of sampled text.
#[derive(Debug)]
pub struct Sampled {
    pub events: Vec<Event>,
    /// What another parser would be given.
    pub kept: Option<String>,
    pub notes: Vec<String>,
}

/// The forms of calls that sampled text is read in.
pub const FORMS: usize = 7;

/// Reads sampled text in one of the forms. `opened`: there may be reasoning, and the prompt has begun it or not.
pub fn sampled(call: &Arc<Call>, form: usize, opened: Option<bool>, pieces: &[&str]) -> Sampled {
    use read::Form;
    let kept = Form::Kept { markers: &["<tool_call>"], bare: Some(b'[') };
    let forms: [Option<Form>; FORMS] =
        [None, Some(Form::Hermes), Some(Form::Coder), Some(Form::Mistral), Some(Form::Llama), Some(Form::Json), Some(kept)];
    let thinking = opened.map(|_| read::Thinking { start: "<think>", end: "</think>" });
    let mut reader = read::Reader::new(call, names::Names::of(call), thinking, forms[form], opened == Some(true));
    let mut events = Vec::new();
    pieces.iter().for_each(|piece| reader.push(piece, &mut events));
    let kept = reader.finish(&mut events);
    Sampled { events, kept, notes: reader.notes() }
}

/// Where a server puts its token ids.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    TokenIds,
    Entries,
    None,
}

/// Reads a server's reply, whole or in pieces: its events, and how it ended.
pub fn read(call: &Arc<Call>, source: Source, whole: bool, limit: usize, pieces: &[&[u8]]) -> (Vec<Event>, Result<(), Failure>) {
    let source = match source {
        Source::TokenIds => decode::IdSource::TokenIds,
        Source::Entries => decode::IdSource::Entries,
        Source::None => decode::IdSource::None,
    };
    let echo = match &call.prompt {
        Some(Prompt::Text(text)) if call.wants.prompt && call.wants.logprobs => plain::Echo::Servers(text.clone()),
        Some(Prompt::Text(text)) if call.wants.prompt => plain::Echo::Ours(text.clone()),
        _ => plain::Echo::No,
    };
    let mut decoder = decode::Decoder::new(call, names::Names::of(call), source, echo, limit);
    let mut events = Vec::new();
    if whole {
        let end = decoder.whole(&Bytes::from(pieces.concat()), &mut events);
        return (events, end);
    }
    for piece in pieces {
        if let Err(failure) = decoder.push(&Bytes::copy_from_slice(piece), &mut events) {
            return (events, Err(failure));
        }
    }
    let end = decoder.finish(&mut events);
    (events, end)
}
