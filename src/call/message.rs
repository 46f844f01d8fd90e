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

    /// A turn of the assistant. One that only calls tools has null for its text, as servers give it; one of nothing an empty text.
    #[must_use]
    pub fn turn(text: Option<Text>, reasoning: Option<Text>, tool_calls: Vec<ToolCall>) -> Self {
        let content = match text.filter(|text| !text.is_empty()) {
            Some(text) => Content::Text(text),
            None if tool_calls.is_empty() => Content::Text(Text::new("")),
            None => Content::Null,
        };
        Self { content, reasoning, tool_calls, ..Self::new(Role::Assistant) }
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

impl Content {
    /// The content of these parts. One text alone is a string, and so is nothing: templates that know no parts take that.
    #[must_use]
    pub fn of_parts(parts: Vec<Part>) -> Self {
        match parts.as_slice() {
            [] => Self::Text(Text::new("")),
            [Part::Text(text)] => Self::Text(text.clone()),
            _ => Self::Parts(parts),
        }
    }
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
    /// The string that names the image that this part is.
    #[must_use]
    pub fn image_url(&self) -> Option<Text> {
        match self {
            Self::Text(_) => None,
            Self::Image(url) => Some(url.clone()),
            Self::Opaque(raw) => super::Image::url_of_part(raw),
        }
    }

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

/// The name of a tool, with its group's before it where it has one, as records and data sets show it.
#[must_use]
pub fn grouped_name(namespace: Option<&Text>, name: &Text) -> Text {
    match namespace {
        None => name.clone(),
        Some(namespace) => Text::from_inner(&[namespace.inner(), b"__", name.inner()].concat()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(message: &Message) -> String {
        let mut out = Vec::new();
        let upper = |call: &ToolCall| Text::new(&call.name.decode().to_uppercase());
        message.write_chat(&mut out, "reasoning_content", &upper);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_message_keeps_the_form_of_its_content() {
        let user = |content| Message { content, ..Message::new(Role::User) };
        assert_eq!(chat(&user(Content::Absent)), r#"{"role":"user"}"#);
        assert_eq!(chat(&user(Content::Null)), r#"{"role":"user","content":null}"#);
        assert_eq!(chat(&user(Content::Text("a\"".into()))), r#"{"role":"user","content":"a\""}"#);
        let opaque = Part::Opaque(Raw::from_value(&serde_json::json!({ "type": "new" })));
        let parts = Content::Parts(vec![Part::Text("a".into()), Part::Image("data:x".into()), opaque]);
        let expected = r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"new"}]"#;
        assert_eq!(chat(&user(parts)), format!(r#"{{"role":"user","content":{expected}}}"#));
    }

    #[test]
    fn reasoning_goes_back_in_the_field_that_it_came_in() {
        let message = |reasoning_field| Message {
            reasoning: Some("r".into()),
            reasoning_field,
            ..Message::text(Role::Assistant, "t".into())
        };
        assert_eq!(chat(&message(None)), r#"{"role":"assistant","content":"t","reasoning_content":"r"}"#);
        assert_eq!(chat(&message(Some("reasoning"))), r#"{"role":"assistant","content":"t","reasoning":"r"}"#);
    }

    #[test]
    fn a_custom_call_is_a_function_of_one_string() {
        let call = |kind, arguments: &str| ToolCall {
            id: "1".into(),
            kind,
            namespace: Some("n".into()),
            name: "f".into(),
            arguments: arguments.into(),
        };
        let calls = vec![call(ToolKind::Function, "{\"a\": 1}"), call(ToolKind::Custom, "say \"hi\"")];
        let message = Message { content: Content::Null, tool_calls: calls, ..Message::new(Role::Assistant) };
        let expected = concat!(
            r#"{"role":"assistant","content":null,"tool_calls":["#,
            r#"{"id":"1","type":"function","function":{"name":"F","arguments":"{\"a\": 1}"}},"#,
            r#"{"id":"1","type":"function","function":{"name":"F","arguments":"{\"input\":\"say \\\"hi\\\"\"}"}}]}"#
        );
        assert_eq!(chat(&message), expected);
    }

    #[test]
    fn a_tool_keeps_its_schema_s_order_and_a_custom_one_gets_one() {
        let tool = |kind, parameters| Tool {
            kind,
            namespace: None,
            name: "f".into(),
            description: Some("d".into()),
            parameters,
            rest: vec![("strict".into(), Raw::from_value(&true))],
        };
        let write = |tool: Tool| {
            let mut out = Vec::new();
            tool.write_chat(&mut out, &"g".into());
            String::from_utf8(out).unwrap()
        };
        let schema = Raw::from_value(&serde_json::json!({ "z": 1, "a": 2 }));
        let expected =
            r#"{"type":"function","function":{"name":"g","description":"d","parameters":{"z":1,"a":2},"strict":true}}"#;
        assert_eq!(write(tool(ToolKind::Function, Some(schema))), expected);
        assert!(write(tool(ToolKind::Custom, None)).contains(r#""required":["input"]"#));
    }

    #[test]
    fn every_role_is_read_by_its_name() {
        for role in [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool] {
            assert_eq!(Role::parse(role.name()), Some(role));
        }
        assert_eq!(Role::parse("function"), None);
    }
}
