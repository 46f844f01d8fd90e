//! What a template puts after a reply of the assistant: its turn's end, the new messages, and what begins the next turn.
//!
//! The conversation is rendered with a mark in the reply's place, and what stands after the mark is the tail. What stands before it does not
//! matter, so that old messages are abridged: a turn's cost is that of what is new.

use serde_json::{Value, json};

use super::{Making, failed};
use crate::call::Failure;
use crate::policy::exact::model::{ContentForm, Conversation, Model, ModelError};

/// Stands in a reply's place. No text of a conversation has it, unless somebody copies it from here: then the next one is tried.
pub(super) const MARKS: [&str; 3] = ["GLEANERq7x1MARKk93", "GLEANERw4z8MARKp20", "GLEANERj6v3MARKd57"];

/// The text after a reply, and its ids.
#[derive(Debug)]
pub(super) struct Tail {
    pub text: String,
    pub ids: Vec<u32>,
}

/// How the conversation is shown to the template, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// What is old is abridged.
    Abridged,
    /// For templates that refuse that.
    Whole,
    /// The reply keeps its calls, for templates that refuse results without them. The tail begins where a turn ends.
    WithCalls,
}

/// The tail after the reply that stands in these messages; `None` if the template does not show where it begins.
pub(super) async fn after(making: &Making<'_>, reply: (usize, usize)) -> Result<Option<Tail>, Failure> {
    for form in [Form::Abridged, Form::Whole, Form::WithCalls] {
        let Some(text) = after_mark(making, reply, form).await? else { continue };
        let ids = making.model.encode(&text, making.special).await.map_err(failed)?;
        let tail = Tail { text, ids };
        return Ok(if form == Form::WithCalls { tail.from_end(making.model) } else { Some(tail) });
    }
    Ok(None)
}

/// What the template puts after the mark; `None` if it refuses the conversation in this form, or does not show the mark once.
pub(super) async fn after_mark(making: &Making<'_>, reply: (usize, usize), form: Form) -> Result<Option<String>, Failure> {
    for mark in MARKS {
        let text = match making.model.render(&marked(making, reply, form, mark)?).await {
            Ok(text) => text,
            Err(ModelError::Refused(_)) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut pieces = text.split(mark);
        match (pieces.next(), pieces.next(), pieces.next()) {
            (Some(_), Some(after), None) => return Ok(Some(after.to_owned())),
            // Somebody wrote the mark too: the next one.
            (Some(_), Some(_), Some(_)) => {}
            _ => return Ok(None),
        }
    }
    Ok(None)
}

impl Tail {
    /// The ids after the turn's end, where the reply has ended by itself: by the token that was sampled, whichever it is. The turn's end is the
    /// first control token, if it ends replies or stands right after what was said.
    pub(super) fn after_end(&self, model: &Model) -> &[u32] {
        match self.ids.iter().position(|id| model.is_control(*id) || model.ends(*id)) {
            Some(at) if at == 0 || model.ends(self.ids[at]) => &self.ids[at + 1..],
            _ => &self.ids,
        }
    }

    /// This tail from the turn's end on.
    fn from_end(mut self, model: &Model) -> Option<Self> {
        let at = self.ids.iter().position(|id| model.ends(*id))?;
        self.ids.drain(..at);
        Some(self)
    }
}

fn marked(making: &Making<'_>, (from, upto): (usize, usize), form: Form, mark: &str) -> Result<Conversation, Failure> {
    let messages = &making.call.messages;
    let mut shown: Vec<Value> = Vec::with_capacity(messages.len());
    for (at, message) in messages[..from].iter().enumerate() {
        let old = if form == Form::Abridged { making.writer.abridged(at, message) } else { making.writer.message(at, message) };
        shown.push(old?);
    }
    let content = match making.model.content_form() {
        ContentForm::Text => json!(mark),
        ContentForm::Parts => json!([{ "type": "text", "text": mark }]),
    };
    let mut reply = json!({ "role": "assistant", "content": content });
    if form == Form::WithCalls {
        let mut calls = Vec::new();
        for (at, message) in messages[from..upto].iter().enumerate() {
            if let Some(Value::Array(more)) = making.writer.message(from + at, message)?.get_mut("tool_calls") {
                calls.append(more);
            }
        }
        reply["tool_calls"] = calls.into();
    }
    shown.push(reply);
    for (at, message) in messages.iter().enumerate().skip(upto) {
        shown.push(making.writer.message(at, message)?);
    }
    Ok(Conversation { messages: shown, ..making.frame.clone() })
}
