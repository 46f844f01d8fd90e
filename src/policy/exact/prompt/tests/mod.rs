//! Prompts of real templates, with a tokenizer that is small and still has more than one way to write a text.

mod cases;
mod properties;
mod tiny;

use std::fmt::Write;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

use super::*;
use crate::call::{Capture, CaptureLevel, Content, Message, Raw, Role, ToolCall, ToolKind};
use crate::ids::CallId;
use crate::policy::Exchange;
use tiny::Tiny;

/// The real templates.
static QWEN3: LazyLock<Tiny> = LazyLock::new(|| Tiny::new(include_str!("../../../../../tests/fixtures/templates/qwen3.jinja")));
static QWEN2_5: LazyLock<Tiny> =
    LazyLock::new(|| Tiny::new(include_str!("../../../../../tests/fixtures/templates/qwen2_5.jinja")));
static SMOLLM2: LazyLock<Tiny> =
    LazyLock::new(|| Tiny::new(include_str!("../../../../../tests/fixtures/templates/smollm2.jinja")));

/// A rollout with a policy that says what it is told to.
struct Talk<'a> {
    tiny: &'a Tiny,
    config: PolicyConfig,
    transcript: Transcript,
    notes: Vec<String>,
}

impl<'a> Talk<'a> {
    fn new(tiny: &'a Tiny) -> Self {
        Self { tiny, config: PolicyConfig::default(), transcript: Transcript::default(), notes: Vec::new() }
    }

    fn prompt(&mut self, call: &Call) -> Prompted {
        self.tried(call).unwrap()
    }

    fn tried(&mut self, call: &Call) -> Result<Prompted, Failure> {
        let names = Names::of(call);
        run(make(&self.tiny.model, &self.config, call, &names, &self.transcript, &mut self.notes))
    }

    /// Makes a call whose reply has these ids; gives the whole sequence.
    fn say(&mut self, call: &Call, reply: &Message, completion_ids: Vec<u32>) -> (CallId, Vec<u32>) {
        let Prompted { ids: prompt_ids, rendered, .. } = self.prompt(call);
        let whole = [&prompt_ids[..], &completion_ids].concat();
        let capture =
            Capture { level: CaptureLevel::Full, prompt_ids, completion_ids, rendered: Some(rendered), ..Capture::default() };
        let call_id = CallId::generate();
        self.transcript.note(Exchange { call_id, call, reply, capture: &capture });
        (call_id, whole)
    }

    /// The same with the text that a model would have sampled for this reply, and its end.
    fn says(&mut self, messages: &[Message], reply: &Message) -> (CallId, Vec<u32>) {
        let sampled = self.tiny.drifting(&(sampled(reply) + "<|im_end|>"), 3);
        self.say(&ask(messages), reply, sampled)
    }
}

/// Waits for a model, which works on threads of its own.
fn run<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
    RUNTIME.block_on(future)
}

fn ask(messages: &[Message]) -> Call {
    Call { messages: messages.to_vec(), ..Call::new("chat") }
}

fn text(role: Role, text: &str) -> Message {
    Message::text(role, crate::call::Text::new(text))
}

fn user(said: &str) -> Message {
    text(Role::User, said)
}

fn result(said: &str) -> Message {
    Message { tool_call_id: Some(crate::call::Text::new("c")), ..text(Role::Tool, said) }
}

fn turn(said: &str, reasoning: Option<&str>, calls: &[(&str, &str)]) -> Message {
    let calls = calls.iter().map(|(name, arguments)| ToolCall {
        id: crate::call::Text::new("c"),
        kind: ToolKind::Function,
        namespace: None,
        name: crate::call::Text::new(name),
        arguments: crate::call::Text::new(arguments),
    });
    Message { reasoning: reasoning.map(crate::call::Text::new), tool_calls: calls.collect(), ..text(Role::Assistant, said) }
}

/// The text that a Qwen model samples for a reply.
fn sampled(reply: &Message) -> String {
    let mut out = String::new();
    if let Some(reasoning) = &reply.reasoning {
        write!(out, "<think>\n{}\n</think>\n\n", reasoning.decode()).unwrap();
    }
    if let Content::Text(text) = &reply.content {
        out.push_str(&text.decode());
    }
    for call in &reply.tool_calls {
        let (name, arguments) = (call.name.decode(), call.arguments.decode());
        write!(out, "\n<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>").unwrap();
    }
    out
}

/// What a template of this family puts after a reply's end token, written down by hand.
fn chatml(new: &[Message], tool_role: bool) -> String {
    let mut out = "\n".to_owned();
    let is_tool = |message: Option<&Message>| message.is_some_and(|message| message.role == Role::Tool);
    for (at, message) in new.iter().enumerate() {
        let Content::Text(said) = &message.content else { panic!("tests say texts") };
        let (role, said) = (message.role.name(), said.decode());
        if message.role == Role::Tool && !tool_role {
            let first = at == 0 || !is_tool(new.get(at - 1));
            out.push_str(if first { "<|im_start|>user" } else { "" });
            write!(out, "\n<tool_response>\n{said}\n</tool_response>").unwrap();
            out.push_str(if is_tool(new.get(at + 1)) { "" } else { "<|im_end|>\n" });
        } else {
            write!(out, "<|im_start|>{role}\n{said}<|im_end|>\n").unwrap();
        }
    }
    out + "<|im_start|>assistant\n"
}

/// The text of ids, all of them.
fn read(model: &Model, ids: &[u32]) -> String {
    let mut detokenizer = model.detokenizer().unwrap();
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text.push_str(&detokenizer.finish());
    text
}
