//! Writes the request that goes upstream, by copying slices of what the client sent.

use crate::call::{Call, Message, Prompt, Role, Sampling, Text, ToolChoice, quote};

use super::names::Names;
use super::plain;

/// The field that a server reads reasoning from.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReasoningField {
    pub name: &'static str,
    /// Also where the client used another; otherwise the client knows its server.
    pub always: bool,
}

/// What a request says beside the call's own content.
pub(super) struct Outer<'a> {
    pub model: &'a str,
    pub stream: bool,
    pub sampling: &'a Sampling,
    /// The server's name for the repetition penalty.
    pub repetition: &'static str,
    pub max_tokens: Option<u64>,
    /// The kind's own fields, names and values, each the last word on its name.
    pub added: &'a [(&'static str, String)],
}

/// Writes a whole request.
pub(super) fn write(call: &Call, names: &Names, reasoning: ReasoningField, outer: &Outer) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024 + size(call));
    out.extend_from_slice(b"{\"model\":");
    quote(&mut out, outer.model);
    if let Some(prompt) = &call.prompt {
        plain::write(&mut out, prompt);
        if let Some(format) = &call.response_format {
            field(&mut out, "response_format", format.as_bytes());
        }
    } else {
        write_conversation(&mut out, call, names, reasoning);
    }
    write_sampling(&mut out, outer.sampling, outer.repetition);
    if let Some(max_tokens) = outer.max_tokens {
        field(&mut out, "max_tokens", max_tokens.to_string().as_bytes());
    }
    let others = |name: &str| outer.sampling.others.contains_key(name);
    let written = |name: &str| {
        others(name) || OWN.contains(&name) || name == outer.repetition && outer.sampling.repetition_penalty.is_some()
    };
    let own = |name: &str| written(name) || outer.added.iter().any(|(added, _)| *added == name);
    write_rest(&mut out, call, &own);
    if outer.stream {
        out.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    }
    for (name, value) in outer.added {
        field(&mut out, name, value.as_bytes());
    }
    out.push(b'}');
    out
}

/// Writes what a server's template endpoint is asked: all that the prompt depends on, and nothing of the reply's form.
pub(super) fn write_template(call: &Call, names: &Names, reasoning: ReasoningField) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024 + size(call));
    // A client that has begun the reply itself says so.
    let own = call.rest.iter().find(|(name, _)| name.inner() == b"add_generation_prompt");
    out.extend_from_slice(b"{\"add_generation_prompt\":");
    out.extend_from_slice(own.map_or(b"true", |(_, value)| value.as_bytes()));
    write_conversation(&mut out, call, names, reasoning);
    let own = |name: &str| OWN.contains(&name) || name == "logprobs" || name == "top_logprobs" || name == "add_generation_prompt";
    write_rest(&mut out, call, &own);
    out.push(b'}');
    out
}

/// Writes what vLLM's `/tokenize` is asked, to count a prompt.
pub(super) fn write_tokenize(call: &Call, names: &Names, reasoning: ReasoningField, model: &str) -> Vec<u8> {
    let mut out = b"{\"model\":".to_vec();
    quote(&mut out, model);
    write_conversation(&mut out, call, names, reasoning);
    let templated = ["chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents"];
    write_rest(&mut out, call, &|name| !templated.contains(&name));
    out.push(b'}');
    out
}

/// Fields that are written from the call's own, so that a client's left-over of the same name would stand twice.
const OWN: [&str; 21] = [
    "model",
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "response_format",
    "stream",
    "stream_options",
];

fn write_conversation(out: &mut Vec<u8>, call: &Call, names: &Names, reasoning: ReasoningField) {
    out.extend_from_slice(b",\"messages\":[");
    let name_of = |tool: &crate::call::ToolCall| names.of_call(tool);
    for (i, message) in call.messages.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        // Templates know no developer; the role's place in the conversation stays as the client chose it.
        if message.role == Role::Developer {
            Message { role: Role::System, ..message.clone() }.write_chat(out, reasoning.name, &name_of);
        } else if reasoning.always && message.reasoning_field.is_some_and(|field| field != reasoning.name) {
            Message { reasoning_field: None, ..message.clone() }.write_chat(out, reasoning.name, &name_of);
        } else {
            message.write_chat(out, reasoning.name, &name_of);
        }
    }
    out.push(b']');
    if !call.tools.is_empty() {
        out.extend_from_slice(b",\"tools\":[");
        for (i, tool) in call.tools.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            tool.write_chat(out, &names.of_tool(tool));
        }
        out.push(b']');
    }
    if let Some(choice) = &call.tool_choice {
        out.extend_from_slice(b",\"tool_choice\":");
        write_choice(out, choice, names);
    }
    if let Some(parallel) = call.parallel_tool_calls {
        field(out, "parallel_tool_calls", parallel.to_string().as_bytes());
    }
    if let Some(effort) = &call.reasoning_effort {
        field(out, "reasoning_effort", effort.literal());
    }
    if let Some(format) = &call.response_format {
        field(out, "response_format", format.as_bytes());
    }
}

fn write_choice(out: &mut Vec<u8>, choice: &ToolChoice, names: &Names) {
    let plain: &[u8] = match choice {
        ToolChoice::Auto => b"\"auto\"",
        ToolChoice::None => b"\"none\"",
        ToolChoice::Required => b"\"required\"",
        ToolChoice::Named { namespace, name } => {
            let name: Text = names.offered(namespace.as_ref(), name);
            out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
            out.extend_from_slice(name.literal());
            b"}}"
        }
    };
    out.extend_from_slice(plain);
}

/// Writes the settings that are fractions; `repetition` is the server's name for the repetition penalty.
pub(super) fn write_fractions(out: &mut Vec<u8>, sampling: &Sampling, repetition: &'static str) {
    let floats = [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("min_p", sampling.min_p),
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
        (repetition, sampling.repetition_penalty),
    ];
    for (name, value) in floats {
        // A setting that is not a finite number can't come out of JSON.
        if let Some(number) = value.and_then(serde_json::Number::from_f64) {
            field(out, name, number.to_string().as_bytes());
        }
    }
}

fn write_sampling(out: &mut Vec<u8>, sampling: &Sampling, repetition: &'static str) {
    write_fractions(out, sampling, repetition);
    for (name, value) in [("top_k", sampling.top_k), ("seed", sampling.seed)] {
        if let Some(number) = value {
            field(out, name, number.to_string().as_bytes());
        }
    }
    if let Some(stop) = &sampling.stop {
        field(out, "stop", stop.as_bytes());
    }
    for (name, value) in &sampling.others {
        field(out, name, value.to_string().as_bytes());
    }
}

fn write_rest(out: &mut Vec<u8>, call: &Call, own: &dyn Fn(&str) -> bool) {
    for (name, value) in &call.rest {
        if !own(&name.decode()) {
            out.push(b',');
            out.extend_from_slice(name.literal());
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
    }
}

/// Writes a field after others.
pub(super) fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value);
}

/// A guess at the bytes that a call's content takes, so that the body grows once.
fn size(call: &Call) -> usize {
    let text = |message: &Message| match &message.content {
        crate::call::Content::Text(text) => text.literal().len(),
        _ => 256,
    };
    let prompt = match &call.prompt {
        Some(Prompt::Text(text)) => text.literal().len(),
        Some(Prompt::Ids(ids)) => ids.len() * 7,
        None => 0,
    };
    let tools = call.tools.iter().map(|tool| tool.parameters.as_ref().map_or(0, |raw| raw.as_bytes().len()) + 256);
    call.messages.iter().map(|message| text(message) + 64).sum::<usize>() + tools.sum::<usize>() + prompt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Raw, Tool, ToolCall, ToolKind};
    use crate::policy::stub::call;

    fn text(plain: &str) -> Text {
        Text::new(plain)
    }

    #[test]
    fn a_template_is_asked_to_go_on_where_the_client_has_begun_the_reply() {
        let mut call = call();
        call.messages = vec![Message::text(Role::Assistant, text("1, "))];
        let field = ReasoningField { name: "reasoning", always: true };
        let write = |call: &Call| String::from_utf8(write_template(call, &Names::of(call), field)).unwrap();
        let messages = r#""messages":[{"role":"assistant","content":"1, "}]"#;
        assert_eq!(write(&call), format!("{{\"add_generation_prompt\":true,{messages}}}"));
        let raw = |value: bool| Raw::from_value(&value);
        call.rest = vec![(text("add_generation_prompt"), raw(false)), (text("continue_final_message"), raw(true))];
        assert_eq!(write(&call), format!("{{\"add_generation_prompt\":false,{messages},\"continue_final_message\":true}}"));
    }

    #[test]
    fn a_call_is_written_with_flat_names_and_our_own_fields() {
        let mut call = call();
        let tool = |kind, namespace: Option<&str>, name| Tool {
            kind,
            namespace: namespace.map(text),
            name: text(name),
            description: None,
            parameters: None,
            rest: Vec::new(),
        };
        call.tools = vec![tool(ToolKind::Function, Some("fs"), "read"), tool(ToolKind::Custom, None, "patch")];
        call.tool_choice = Some(ToolChoice::Named { namespace: Some(text("fs")), name: text("read") });
        call.messages = vec![
            Message::text(Role::Developer, text("be brief")),
            Message {
                reasoning: Some(text("hm")),
                reasoning_field: Some("reasoning_content"),
                tool_calls: vec![ToolCall {
                    id: text("c1"),
                    kind: ToolKind::Function,
                    namespace: Some(text("fs")),
                    name: text("read"),
                    arguments: text("{}"),
                }],
                ..Message::new(Role::Assistant)
            },
        ];
        let raw = |json: &str| Raw::from_value(&serde_json::from_str::<serde_json::Value>(json).unwrap());
        call.rest = vec![(text("logprobs"), raw("false")), (text("user"), raw("\"me\"")), (text("seed"), raw("1"))];
        let sampling = Sampling { temperature: Some(1.0), top_k: Some(-1), repetition_penalty: Some(1.5), ..Sampling::default() };
        let added = [("logprobs", "true".to_owned())];
        let outer = Outer {
            model: "m",
            stream: true,
            sampling: &sampling,
            repetition: "repeat_penalty",
            max_tokens: Some(7),
            added: &added,
        };
        let body = write(&call, &Names::of(&call), ReasoningField { name: "reasoning", always: true }, &outer);
        let message = r#"{"role":"assistant","reasoning":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"fs__read","arguments":"{}"}}]}"#;
        let patch = r#"{"type":"function","function":{"name":"patch","parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}}}"#;
        let expected = format!(
            "{}{message}{}{patch}{}",
            r#"{"model":"m","messages":[{"role":"system","content":"be brief"},"#,
            r#"],"tools":[{"type":"function","function":{"name":"fs__read"}},"#,
            r#"],"tool_choice":{"type":"function","function":{"name":"fs__read"}},"temperature":1.0,"repeat_penalty":1.5,"top_k":-1,"max_tokens":7,"user":"me","stream":true,"stream_options":{"include_usage":true},"logprobs":true}"#,
        );
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }
}
