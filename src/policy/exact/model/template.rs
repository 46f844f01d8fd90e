//! A chat template: rendered as transformers does, within bounds.
//!
//! `llm-tokenizer` has templates too, but sets no bound on them, and a thread in which one loops can't be ended.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llm_tokenizer::chat_template::{ChatTemplateContentFormat, detect_chat_template_content_format};
use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::{ContentForm, Conversation, ModelError, python};

/// Instructions that any conversation may take, and those for each of its messages, parts and tools.
const INSTRUCTIONS: u64 = 1_000_000;
const INSTRUCTIONS_EACH: u64 = 50_000;

/// The longest text that is rendered, in bytes: twice the largest request.
const LONGEST: usize = 128 << 20;

/// How long a template may write.
const TIME: Duration = Duration::from_secs(30);

/// What transformers writes behind a message that is to go on, to find its end again.
const GOES_ON: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A chat template, and what it is given besides the conversation. Cheap to clone.
#[derive(Clone)]
pub(super) struct Template(Arc<Inner>);

struct Inner {
    environment: Environment<'static>,
    source: String,
    form: ContentForm,
    /// `bos_token`, `eos_token` ...
    names: Map<String, Json>,
    /// What a prompt begins with, whether the template writes it or not.
    begins: Option<String>,
}

/// A conversation on its way to another thread.
pub(super) struct Prepared {
    variables: Value,
    fuel: u64,
    /// With a message that goes on: its text.
    goes_on: Option<String>,
}

impl Template {
    /// Compiles a template. `names` are the control tokens' names that it may write, such as `bos_token`; a prompt begins with `begins`.
    pub(super) fn new(source: String, names: Map<String, Json>, begins: Option<String>) -> Result<Self, ModelError> {
        let mut environment = python::environment();
        environment
            .add_template_owned("chat", python::without_generation_marks(&source))
            .map_err(|error| ModelError::Unreadable(format!("the chat template is none: {}", say(&error))))?;
        let form = match detect_chat_template_content_format(&source) {
            ChatTemplateContentFormat::OpenAI => ContentForm::Parts,
            _ => ContentForm::Text,
        };
        Ok(Self(Arc::new(Inner { environment, source, form, names, begins })))
    }

    pub(super) fn source(&self) -> &str {
        &self.0.source
    }

    pub(super) fn form(&self) -> ContentForm {
        self.0.form
    }

    pub(super) fn names(&self) -> &Map<String, Json> {
        &self.0.names
    }

    pub(super) fn begins(&self) -> Option<&str> {
        self.0.begins.as_deref()
    }

    /// Copies what the template is to see.
    pub(super) fn prepare(&self, conversation: &Conversation) -> Result<Prepared, ModelError> {
        let mut messages: Vec<Value> = Vec::with_capacity(conversation.messages.len());
        let mut goes_on = None;
        let last = conversation.messages.len().wrapping_sub(1);
        for (index, message) in conversation.messages.iter().enumerate() {
            if conversation.continue_final_message && index == last {
                let (marked, text) = mark(message)?;
                messages.push(Value::from_serialize(marked));
                goes_on = Some(text);
            } else {
                messages.push(Value::from_serialize(message));
            }
        }
        if conversation.continue_final_message && (goes_on.is_none() || conversation.add_generation_prompt) {
            return Err(ModelError::Refused("only a last message can go on, and not before a new one".to_owned()));
        }
        let parts = |message: &Json| message.get("content").and_then(Json::as_array).map_or(0, Vec::len);
        let pieces = conversation.messages.iter().map(|message| 1 + parts(message)).sum::<usize>();
        let pieces = pieces + conversation.tools.as_ref().map_or(0, Vec::len);
        let variables = self.0.names.iter().map(|(name, value)| (name.clone(), Value::from_serialize(value)));
        let variables = variables.chain([
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), conversation.tools.as_ref().map_or(Value::from(()), Value::from_serialize)),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into()),
        ]);
        let own = conversation.variables.iter().map(|(name, value)| (name.clone(), Value::from_serialize(value)));
        Ok(Prepared {
            variables: variables.chain(own).collect(),
            fuel: INSTRUCTIONS + INSTRUCTIONS_EACH * u64::try_from(pieces).unwrap_or(u64::MAX / INSTRUCTIONS_EACH / 2),
            goes_on,
        })
    }

    /// Renders; works for as long as it takes, within the bounds.
    pub(super) fn render(&self, prepared: Prepared) -> Result<String, ModelError> {
        let mut environment = self.0.environment.clone();
        environment.set_fuel(Some(prepared.fuel));
        let mut sheet = Sheet { text: Vec::new(), until: Instant::now() + TIME, full: None };
        let template = environment.get_template("chat").map_err(|error| ModelError::Refused(say(&error)))?;
        let rendered = template.render_captured_to(prepared.variables, &mut sheet).map(|_| ());
        if let Some(why) = sheet.full {
            return Err(ModelError::Refused(why.to_owned()));
        }
        rendered.map_err(|error| ModelError::Refused(say(&error)))?;
        let mut text = String::from_utf8(sheet.text).map_err(|error| ModelError::Refused(error.to_string()))?;
        if let Some(last) = prepared.goes_on {
            cut(&mut text, &last)?;
        }
        match &self.0.begins {
            Some(begins) if !text.starts_with(begins.as_str()) => text.insert_str(0, begins),
            _ => {}
        }
        Ok(text)
    }
}

/// What a template said when it failed: its own words if it raised, without their place.
fn say(error: &minijinja::Error) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => "it does not come to an end".to_owned(),
        _ => match (error.detail(), error.line()) {
            (Some(detail), _) if python::is_raised(error) => detail.to_owned(),
            (Some(detail), Some(line)) => format!("{}: {detail} (line {line})", error.kind()),
            (None, Some(line)) => format!("{} (line {line})", error.kind()),
            (detail, None) => format!("{}: {}", error.kind(), detail.unwrap_or_default()),
        },
    }
}

/// The message with the mark behind its text, and the text.
fn mark(message: &Json) -> Result<(Json, String), ModelError> {
    let mut message = message.clone();
    let text = match message.get_mut("content") {
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        content => content,
    };
    let Some(Json::String(text)) = text else {
        return Err(ModelError::Refused("the last message has no text to go on from".to_owned()));
    };
    let before = text.clone();
    text.push_str(GOES_ON);
    Ok((message, before))
}

/// Cuts at the mark, as transformers does: a template may have trimmed the blanks before it.
fn cut(rendered: &mut String, last: &str) -> Result<(), ModelError> {
    let missing = || ModelError::Refused("it does not write the message that is to go on".to_owned());
    let at = rendered.rfind(GOES_ON.trim_end()).ok_or_else(missing)?;
    if !rendered[..at].trim_end().ends_with(last.trim()) {
        return Err(missing());
    }
    let at = if rendered[at..].starts_with(GOES_ON) { at } else { rendered[..at].trim_end().len() };
    rendered.truncate(at);
    Ok(())
}

/// Takes what a template writes, up to a size and for a while.
struct Sheet {
    text: Vec<u8>,
    until: Instant,
    full: Option<&'static str>,
}

impl io::Write for Sheet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > LONGEST {
            self.full = Some("it writes more than 128 MiB");
        } else if Instant::now() > self.until {
            self.full = Some("it writes for more than 30 s");
        } else {
            self.text.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        Err(io::Error::other("full"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
