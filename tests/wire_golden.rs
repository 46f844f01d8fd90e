//! Every file in `tests/fixtures/wire/<wire>/*.json` is a test: its `request` is read, and its `reply`, a list of events, is
//! written as a stream and as a whole. What comes out stands beside it as a snapshot.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::fmt::Write;
use std::path::Path;

use bytes::Bytes;
use gleaner::call::{Call, Event, Extra, Failure, FailureKind, FinishReason, Fold, Raw, Text, ToolKind, ToolStart, Usage, Wants};
use gleaner::ids::CallId;
use gleaner::wire::{self, ReplyHead, Target, Wire};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    request: Box<serde_json::value::RawValue>,
    /// Where it is posted, below the base URL; the wire's first path if nothing is said.
    target: Option<String>,
    #[serde(default)]
    reply: Vec<Step>,
    /// Ends the stream in place of its finish.
    failure: Option<FailureKind>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Step {
    Prompt(Vec<u32>),
    PromptText(Text),
    Tokens {
        ids: Vec<u32>,
        logprobs: Vec<f64>,
    },
    Text(Text),
    Reasoning(Text),
    Refusal(Text),
    Tool {
        index: u32,
        id: Text,
        name: Text,
        namespace: Option<Text>,
        #[serde(default)]
        custom: bool,
    },
    Arguments {
        index: u32,
        fragment: Text,
    },
    Choice {
        name: Text,
        value: Raw,
    },
    Delta {
        name: Text,
        value: Raw,
    },
    Finish(FinishReason),
    StopString(Text),
    Usage(Usage),
}

impl From<Step> for Event {
    fn from(step: Step) -> Self {
        match step {
            Step::Prompt(ids) => Self::Prompt(ids),
            Step::PromptText(text) => Self::PromptText(text),
            Step::Tokens { ids, logprobs } => Self::Tokens(gleaner::call::Tokens { ids, logprobs }),
            Step::Text(piece) => Self::Text(piece),
            Step::Reasoning(piece) => Self::Reasoning(piece),
            Step::Refusal(piece) => Self::Refusal(piece),
            Step::Tool { index, id, name, namespace, custom } => {
                let kind = if custom { ToolKind::Custom } else { ToolKind::Function };
                Self::ToolStart { index, tool: ToolStart { id, kind, namespace, name } }
            }
            Step::Arguments { index, fragment } => Self::ToolArguments { index, fragment },
            Step::Choice { name, value } => Self::Extra(Extra::Choice { name, value }),
            Step::Delta { name, value } => Self::Extra(Extra::Delta { name, value }),
            Step::Finish(reason) => Self::Finish(reason),
            Step::StopString(text) => Self::StopString(text),
            Step::Usage(usage) => Self::Usage(usage),
        }
    }
}

/// What is wanted, so that a new thing to want changes no snapshot of others.
fn show_wants(call: &Call) -> String {
    let Wants { usage, logprobs, top_logprobs, token_ids, prompt, function_call, array, .. } = call.wants;
    let Wants { thoughts, reasoning_summary, sealed_reasoning, .. } = call.wants;
    let flags = [("usage", usage), ("logprobs", logprobs), ("token_ids", token_ids), ("prompt", prompt)];
    let flags = flags.into_iter().chain([("function_call", function_call), ("array", array), ("thoughts", thoughts)]);
    let flags = flags.chain([("reasoning_summary", reasoning_summary), ("sealed_reasoning", sealed_reasoning)]);
    let wanted = flags.filter(|(_, wanted)| *wanted).map(|(name, _)| format!(" {name}"));
    wanted.chain(top_logprobs.map(|count| format!(" top_logprobs={count}"))).collect()
}

fn show_call(call: &Call) -> String {
    let mut out = String::new();
    if let Some(prompt) = &call.prompt {
        let _ = writeln!(out, "prompt {prompt:?}");
    }
    if let Some(previous) = &call.previous {
        let _ = writeln!(out, "previous {previous:?}");
    }
    if !call.quotes.is_empty() {
        let _ = writeln!(out, "quotes {:?}", call.quotes);
    }
    let Call { model, stream, messages, tools, tool_choice, parallel_tool_calls, sampling, max_tokens, .. } = call;
    let _ = writeln!(out, "model {model:?} stream {stream} max_tokens {max_tokens:?} wants{}", show_wants(call));
    let _ = writeln!(out, "tool_choice {tool_choice:?} parallel {parallel_tool_calls:?} effort {:?}", call.reasoning_effort);
    let _ = writeln!(out, "sampling {} format {:?}", serde_json::to_string(sampling).unwrap(), call.response_format);
    let _ = writeln!(out, "rest {:?}", call.rest);
    if !call.echo.is_empty() {
        let _ = writeln!(out, "echo {:?}", call.echo);
    }
    for message in messages {
        let mut json = Vec::new();
        message.write_chat(&mut json, "reasoning", &|call| call.name.clone());
        let _ = writeln!(out, "{}", String::from_utf8(json).unwrap());
        for call in &message.tool_calls {
            let _ = writeln!(out, "  {:?} in {:?}", call.kind, call.namespace);
        }
    }
    for tool in tools {
        let mut json = Vec::new();
        tool.write_chat(&mut json, &tool.name);
        let _ = writeln!(out, "{:?} in {:?} {}", tool.kind, tool.namespace, String::from_utf8(json).unwrap());
    }
    for note in &call.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// What clients sent, and servers, may have line breaks between its tokens; an event's data may not.
#[track_caller]
fn assert_framed(content_type: &str, stream: &[u8]) {
    let is_field = |line: &str| {
        ["", ":", "event:", "data:"].iter().any(|start| line == *start || !start.is_empty() && line.starts_with(start))
    };
    if content_type == "text/event-stream" {
        let stray = std::str::from_utf8(stream).unwrap().lines().find(|line| !is_field(line));
        assert_eq!(stray, None);
    }
}

fn run(wire: &dyn Wire, case: Case) -> String {
    let target = case.target.as_deref().unwrap_or(wire.paths()[0]);
    let calls = match wire.parse(Target::read(target), &Bytes::from(case.request.get().to_owned())) {
        Ok(calls) => calls,
        Err(failure) => return format!("{} {}\n", failure.status, String::from_utf8(wire.failure(&failure)).unwrap()),
    };
    let mut out: String = calls.iter().map(show_call).collect();
    let call = &calls[0];
    let head = || ReplyHead {
        call_id: CallId(uuid::Uuid::from_u128(0xabc)),
        choice: 0,
        created: 1_750_000_000,
        model: call.model.clone(),
    };
    let mut encoder = wire.encoder(call, head());
    let mut fold = Fold::default();
    let mut live = Vec::new();
    encoder.begin(&mut live);
    for event in case.reply.into_iter().map(Event::from) {
        fold.push(&event);
        encoder.event(&event, &mut live);
    }
    encoder.ping(&mut live);
    assert_framed(encoder.content_type(), &live);
    let _ = write!(out, "--- live\n{}", String::from_utf8(live).unwrap());
    let mut end = Vec::new();
    if let Some(kind) = case.failure {
        encoder.fail(&Failure::new(kind, "the reply broke off"), &mut end);
        let _ = write!(out, "--- failed\n{}", String::from_utf8(end).unwrap());
        return out;
    }
    let reply = fold.reply();
    encoder.finish(&reply, &mut end);
    encoder.close(reply.usage.as_ref(), &mut end);
    assert_framed(encoder.content_type(), &end);
    let _ = write!(out, "--- held back\n{}", String::from_utf8(end).unwrap());
    let mut whole = Vec::new();
    wire.encoder(call, head()).whole(&[reply], &mut whole);
    let _: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    let _ = write!(out, "--- whole\n{}", String::from_utf8(whole).unwrap());
    out
}

#[test]
fn every_fixture_reads_and_writes_as_its_snapshot_says() {
    for wire in wire::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wire").join(wire.name());
        let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
        paths.sort();
        assert!(!paths.is_empty(), "{} has no fixtures", wire.name());
        for path in paths {
            let case = serde_json::from_slice(&std::fs::read(&path).unwrap());
            let case: Case = case.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut settings = insta::Settings::clone_current();
            settings.set_snapshot_path(&folder);
            settings.set_prepend_module_to_snapshot(false);
            settings.set_omit_expression(true);
            settings.bind(|| insta::assert_snapshot!(path.file_stem().unwrap().to_str().unwrap(), run(*wire, case)));
        }
    }
}
