//! Messages and tools as templates know them: in vLLM's way, so that the same conversation is the same text there.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::call::{Call, Content, Failure, Message, Part, Role, SpecialText, Text, ToolCall, ToolKind};
use crate::policy::exact::model::{ContentForm, Model};
use crate::policy::names::Names;

/// How much of an old text a template is shown at each end, in bytes.
const ABRIDGED: usize = 32;

/// Writes what a template is given.
pub(super) struct Writer<'a> {
    model: &'a Model,
    names: &'a Names,
    special: SpecialText,
}

/// Names the first image of a call, as the request's field: ids can't say where a server would put it.
pub(in crate::policy::exact) fn image(call: &Call) -> Option<String> {
    call.messages.iter().enumerate().find_map(|(at, message)| {
        let Content::Parts(parts) = &message.content else { return None };
        let part = parts.iter().position(|part| part.image_url().is_some())?;
        Some(format!("messages[{at}].content[{part}]"))
    })
}

impl<'a> Writer<'a> {
    pub(super) fn new(model: &'a Model, names: &'a Names, special: SpecialText) -> Self {
        Self { model, names, special }
    }

    /// A call's tools; none is not an empty list.
    pub(super) fn tools(&self, call: &Call) -> Result<Option<Vec<Value>>, Failure> {
        if call.tools.is_empty() {
            return Ok(None);
        }
        let tools = call.tools.iter().enumerate().map(|(at, tool)| {
            let mut written = Vec::new();
            tool.write_chat(&mut written, &self.names.of_tool(tool));
            let mut tool = serde_json::from_slice(&written)
                .map_err(|error| Failure::invalid(format!("tools[{at}]"), format!("tools[{at}] can't be read: {error}")))?;
            self.guard_all(&mut tool);
            Ok(tool)
        });
        tools.collect::<Result<_, _>>().map(Some)
    }

    /// The message at this place of the request.
    ///
    /// # Errors
    /// If it has a part that is no text.
    pub(super) fn message(&self, at: usize, message: &Message) -> Result<Value, Failure> {
        // What the assistant says came of tokens, control tokens among them.
        let typed = message.role != Role::Assistant;
        let take = |text: &Text| {
            let plain = text.decode();
            if typed { self.guard(&plain).into_owned() } else { plain.into_owned() }
        };
        self.write(at, message, &take, &|call| self.arguments(call))
    }

    /// A message that a template needs only to be there: what is long in it is cut.
    pub(super) fn abridged(&self, at: usize, message: &Message) -> Result<Value, Failure> {
        self.write(at, message, &|text| abridge(text.decode()), &|_| json!({}))
    }

    fn write(
        &self,
        at: usize,
        message: &Message,
        take: &dyn Fn(&Text) -> String,
        arguments: &dyn Fn(&ToolCall) -> Value,
    ) -> Result<Value, Failure> {
        let role = if message.role == Role::Developer { Role::System } else { message.role };
        let mut fields = Map::new();
        fields.insert("role".to_owned(), role.name().into());
        fields.insert("content".to_owned(), self.content(at, &message.content, take)?);
        if let Some(reasoning) = &message.reasoning {
            let reasoning = take(reasoning);
            fields.insert("reasoning".to_owned(), reasoning.clone().into());
            fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(|call| {
                let function = json!({ "name": self.names.of_call(call).decode(), "arguments": arguments(call) });
                json!({ "id": call.id.decode(), "type": "function", "function": function })
            });
            fields.insert("tool_calls".to_owned(), calls.collect());
        }
        if let Some(id) = &message.tool_call_id {
            fields.insert("tool_call_id".to_owned(), id.decode().into());
        }
        for (name, value) in &message.rest {
            let (name, value) = (name.decode(), value.as_text());
            if let (Some(value), None) = (value, fields.get(&*name)) {
                fields.insert(name.into_owned(), take(&value).into());
            }
        }
        Ok(Value::Object(fields))
    }

    fn content(&self, at: usize, content: &Content, take: &dyn Fn(&Text) -> String) -> Result<Value, Failure> {
        let mut texts = Vec::new();
        match content {
            Content::Absent | Content::Null => {}
            Content::Text(text) => texts.push(take(text)),
            Content::Parts(parts) => {
                for (part_at, part) in parts.iter().enumerate() {
                    let Part::Text(text) = part else {
                        return Err(no_text(format!("messages[{at}].content[{part_at}]"), "no text"));
                    };
                    texts.push(take(text));
                }
            }
        }
        Ok(match self.model.content_form() {
            ContentForm::Text => texts.join("\n").into(),
            ContentForm::Parts => texts.into_iter().map(|text| json!({ "type": "text", "text": text })).collect(),
        })
    }

    /// The object that a call's arguments are; what is none stays a string.
    fn arguments(&self, call: &ToolCall) -> Value {
        let given = call.arguments.decode();
        match call.kind {
            ToolKind::Custom => json!({ ToolKind::CUSTOM_FIELD: given }),
            ToolKind::Function if given.trim().is_empty() => json!({}),
            ToolKind::Function => match serde_json::from_str(&given) {
                Ok(object @ Value::Object(_)) => object,
                _ => given.into(),
            },
        }
    }

    fn guard<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.special {
            SpecialText::Control => text.into(),
            SpecialText::Text => self.model.guard(text),
        }
    }

    fn guard_all(&self, value: &mut Value) {
        if self.special == SpecialText::Control {
            return;
        }
        match value {
            Value::String(text) => *text = self.guard(text).into_owned(),
            Value::Array(items) => items.iter_mut().for_each(|item| self.guard_all(item)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.guard_all(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The two ends of a text: what templates look at where they look into it.
fn abridge(text: Cow<'_, str>) -> String {
    if text.len() <= 4 * ABRIDGED {
        return text.into_owned();
    }
    let head = &text[..text.floor_char_boundary(ABRIDGED)];
    let tail = &text[text.ceil_char_boundary(text.len() - ABRIDGED)..];
    format!("{head} {tail}")
}

/// Says that a part can't be served.
pub(super) fn no_text(param: String, what: &str) -> Failure {
    let message = format!(
        "{param} is {what}, which can't be put into a prompt of token ids; send text, or use a policy with tokens = \"server\""
    );
    Failure::invalid(param, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_their_ends() {
        assert_eq!(abridge(Cow::Borrowed("short")), "short");
        let long = format!("<tool_response>{}</tool_response>", "é".repeat(1000));
        let short = abridge(Cow::Borrowed(&long));
        assert!(short.starts_with("<tool_response>é") && short.ends_with("é</tool_response>"), "{short}");
        assert!(short.len() < 70, "{short}");
    }
}
