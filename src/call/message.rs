//! Messages and tools, and the form in which they are written for policies and data sets: chat completions'.

use super::json::{Raw, Rest, Text};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The role's name, the same on every wire that has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// Reads a role's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool].into_iter().find(|role| role.name() == name)
    }
}

/// One message of a conversation. All of one assistant turn (reasoning, text, tool calls) is one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    pub content: Content,
    /// What the assistant thought before it spoke.
    pub reasoning: Option<Text>,
    /// The field that the reasoning came in, where the client's wire has several (`reasoning`, `reasoning_content`).
    pub reasoning_field: Option<&'static str>,
    pub tool_calls: Vec<ToolCall>,
    /// In a tool's message: the call that it answers.
    pub tool_call_id: Option<Text>,
    /// Fields that nobody here acts on, passed on to policies that speak chat completions.
    pub rest: Rest,
}

impl Message {
    /// A message with nothing in it yet.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            content: Content::Absent,
            reasoning: None,
            reasoning_field: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            rest: Vec::new(),
        }
    }

    /// A message of text.
    #[must_use]
    pub fn text(role: Role, text: Text) -> Self {
        Self { content: Content::Text(text), ..Self::new(role) }
    }

    /// Writes the message as chat completions has it. `reasoning_field` is the name that the reader knows reasoning by where
    /// the message's own doesn't say; `tool_name` gives the name that the reader knows a called tool by.
    pub fn write_chat(&self, out: &mut Vec<u8>, reasoning_field: &str, tool_name: &dyn Fn(&ToolCall) -> Text) {
        out.extend_from_slice(b"{\"role\":\"");
        out.extend_from_slice(self.role.name().as_bytes());
        out.push(b'"');
        match &self.content {
            Content::Absent => {}
            Content::Null => out.extend_from_slice(b",\"content\":null"),
            Content::Text(text) => {
                out.extend_from_slice(b",\"content\":");
                out.extend_from_slice(text.literal());
            }
            Content::Parts(parts) => {
                out.extend_from_slice(b",\"content\":[");
                for (i, part) in parts.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    part.write_chat(out);
                }
                out.push(b']');
            }
        }
        if let Some(reasoning) = &self.reasoning {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(self.reasoning_field.unwrap_or(reasoning_field).as_bytes());
            out.extend_from_slice(b"\":");
            out.extend_from_slice(reasoning.literal());
        }
        if !self.tool_calls.is_empty() {
            out.extend_from_slice(b",\"tool_calls\":[");
            for (i, call) in self.tool_calls.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                call.write_chat(out, &tool_name(call));
            }
            out.push(b']');
        }
        if let Some(id) = &self.tool_call_id {
            out.extend_from_slice(b",\"tool_call_id\":");
            out.extend_from_slice(id.literal());
        }
        write_rest(out, &self.rest);
        out.push(b'}');
    }
}

/// What a message says. The forms are told apart because templates may render them differently.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// No content field at all.
    Absent,
    /// An explicit null.
    Null,
    /// A string.
    Text(Text),
    /// A list of parts.
    Parts(Vec<Part>),
}

/// One part of a message's content.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Text(Text),
    /// An image: the string that names it, a data URL or a link.
    Image(Text),
    /// A part that nobody here acts on, in chat completions' form where the client's wire has none of its own.
    Opaque(Raw),
}

impl Part {
    fn write_chat(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                out.extend_from_slice(text.literal());
                out.push(b'}');
            }
            Self::Image(url) => {
                out.extend_from_slice(b"{\"type\":\"image_url\",\"image_url\":{\"url\":");
                out.extend_from_slice(url.literal());
                out.extend_from_slice(b"}}");
            }
            Self::Opaque(raw) => out.extend_from_slice(raw.as_bytes()),
        }
    }
}

/// What a tool is fed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A JSON object that fits the tool's schema.
    Function,
    /// Free text; policies are offered it as a function of one string, [`ToolKind::CUSTOM_FIELD`].
    Custom,
}

impl ToolKind {
    /// The one argument of the function that stands for a custom tool.
    pub const CUSTOM_FIELD: &str = "input";
}

/// A call of a tool by the assistant.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    pub id: Text,
    pub kind: ToolKind,
    /// The group of tools that the name belongs to, on wires that group them.
    pub namespace: Option<Text>,
    pub name: Text,
    /// A string: for a function the JSON text of its arguments, for a custom tool its input as it is.
    pub arguments: Text,
}

impl ToolCall {
    fn write_chat(&self, out: &mut Vec<u8>, name: &Text) {
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(self.id.literal());
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        out.extend_from_slice(name.literal());
        out.extend_from_slice(b",\"arguments\":");
        match self.kind {
            ToolKind::Function => out.extend_from_slice(self.arguments.literal()),
            ToolKind::Custom => {
                let input = serde_json::json!({ ToolKind::CUSTOM_FIELD: self.arguments.decode() });
                super::quote(out, &input.to_string());
            }
        }
        out.extend_from_slice(b"}}");
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub kind: ToolKind,
    pub namespace: Option<Text>,
    pub name: Text,
    pub description: Option<Text>,
    /// A function's JSON schema, as it came.
    pub parameters: Option<Raw>,
    /// Other fields of the function (`strict`, ...), passed on.
    pub rest: Rest,
}

impl Tool {
    /// Writes the tool as chat completions has it, under the name that the reader is to know it by.
    pub fn write_chat(&self, out: &mut Vec<u8>, name: &Text) {
        out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
        out.extend_from_slice(name.literal());
        if let Some(description) = &self.description {
            out.extend_from_slice(b",\"description\":");
            out.extend_from_slice(description.literal());
        }
        match (self.kind, &self.parameters) {
            (ToolKind::Function, Some(parameters)) => {
                out.extend_from_slice(b",\"parameters\":");
                out.extend_from_slice(parameters.as_bytes());
            }
            (ToolKind::Function, None) => {}
            (ToolKind::Custom, _) => out.extend_from_slice(
                br#","parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#,
            ),
        }
        write_rest(out, &self.rest);
        out.extend_from_slice(b"}}");
    }
}

/// Writes `,"name":value` for each field.
pub(super) fn write_rest(out: &mut Vec<u8>, rest: &Rest) {
    for (name, value) in rest {
        out.push(b',');
        out.extend_from_slice(name.literal());
        out.push(b':');
        out.extend_from_slice(value.as_bytes());
    }
}
