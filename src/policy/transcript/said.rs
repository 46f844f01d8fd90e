//! What messages say, as numbers that are equal where they say the same: harnesses send back what was said, and not how it was written.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::call::{Call, Content, Message, Part, Role, Text, ToolCall, ToolKind};
use crate::trajectory::{hash_arguments, tool_name};

/// What one message says.
#[derive(Clone, Debug)]
pub(super) enum Says {
    Assistant(Said),
    /// The others: their role, and their text to the letter.
    Other(u64),
}

/// What the assistant said in one turn. White space in its text does not count, since harnesses trim it and put some between
/// pieces; ids of calls do not either.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Said {
    text: u64,
    /// None where it has none, or where a harness left it out.
    reasoning: Option<u64>,
    calls: Vec<Called>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Called {
    name: u64,
    /// As a JSON value, where they are one.
    arguments: u64,
}

impl Says {
    /// Reads a message.
    pub(super) fn of(message: &Message) -> Self {
        if message.role == Role::Assistant {
            return Self::Assistant(Said::of(&[message]));
        }
        let mut hasher = DefaultHasher::new();
        // Templates know no developer.
        let role = if message.role == Role::Developer { Role::System } else { message.role };
        role.name().hash(&mut hasher);
        each_text(&message.content, |text| hasher.write(text.as_bytes()));
        Self::Other(hasher.finish())
    }
}

impl Said {
    /// Reads a turn, which may stand in several messages.
    pub(super) fn of(messages: &[&Message]) -> Self {
        let mut text = DefaultHasher::new();
        for message in messages {
            each_text(&message.content, |piece| words(piece, &mut text));
        }
        let mut reasoning = DefaultHasher::new();
        let mut thought = false;
        for piece in messages.iter().filter_map(|message| message.reasoning.as_ref()) {
            let piece = piece.decode();
            thought |= !piece.trim().is_empty();
            words(&piece, &mut reasoning);
        }
        let calls = messages.iter().flat_map(|message| &message.tool_calls).map(Called::of);
        Self { text: text.finish(), reasoning: thought.then(|| reasoning.finish()), calls: calls.collect() }
    }

    /// How an echo differs from this reply, in people's words; `None` if it says the same. An echo without reasoning may
    /// have left it out.
    pub(super) fn differs(&self, echo: &Self) -> Option<&'static str> {
        let names = |said: &Self| said.calls.iter().map(|call| call.name).collect::<Vec<_>>();
        if self.text != echo.text {
            Some("its text differs")
        } else if echo.reasoning.is_some() && echo.reasoning != self.reasoning {
            Some("its reasoning differs")
        } else if names(self) != names(echo) {
            Some("it calls other tools")
        } else if self.calls != echo.calls {
            Some("its tool calls have other arguments")
        } else {
            None
        }
    }
}

impl Called {
    fn of(call: &ToolCall) -> Self {
        let mut arguments = DefaultHasher::new();
        let given = call.arguments.decode();
        match call.kind {
            // What the policy is told of a custom tool is a function of one string.
            ToolKind::Custom => {
                hash_arguments(&serde_json::json!({ ToolKind::CUSTOM_FIELD: given }).to_string(), &mut arguments);
            }
            ToolKind::Function => hash_arguments(&given, &mut arguments),
        }
        Self { name: hash(&tool_name(&call.name.decode())), arguments: arguments.finish() }
    }
}

/// A number for a message's bytes: what is sent again byte for byte need not be read again.
pub(super) fn bytes_of(message: &Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.role.name().hash(&mut hasher);
    match &message.content {
        Content::Absent | Content::Null => 0.hash(&mut hasher),
        Content::Text(text) => text.literal().hash(&mut hasher),
        Content::Parts(parts) => {
            for part in parts {
                match part {
                    Part::Text(text) => (1, text.literal()).hash(&mut hasher),
                    Part::Image(url) => (2, url.literal()).hash(&mut hasher),
                    Part::Opaque(raw) => (3, raw.as_bytes()).hash(&mut hasher),
                }
            }
        }
    }
    message.reasoning.as_ref().map(Text::literal).hash(&mut hasher);
    for call in &message.tool_calls {
        (call.kind == ToolKind::Custom, call.name.literal(), call.arguments.literal()).hash(&mut hasher);
    }
    hasher.finish()
}

/// What a prompt depends on beside its messages, in the order in which a difference is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Setting {
    model: u64,
    tools: u64,
    variables: u64,
}

/// The fields of a request that templates are given.
pub(in crate::policy) const VARIABLES: [&str; 2] = ["chat_template_kwargs", "documents"];

impl Setting {
    pub(super) fn of(call: &Call, tokenizer_hash: &str, template_hash: &str) -> Self {
        let mut tools = DefaultHasher::new();
        let mut written = Vec::new();
        for tool in &call.tools {
            written.clear();
            tool.write_chat(&mut written, &tool.name);
            (tool.namespace.as_ref().map(Text::literal), &written).hash(&mut tools);
        }
        let mut variables = DefaultHasher::new();
        call.reasoning_effort.as_ref().map(Text::literal).hash(&mut variables);
        for (name, value) in &call.rest {
            if VARIABLES.iter().any(|variable| name.inner() == variable.as_bytes()) {
                hash_arguments(value.as_str(), &mut variables);
            }
        }
        let model = hash(&(tokenizer_hash, template_hash));
        Self { model, tools: tools.finish(), variables: variables.finish() }
    }

    /// How it differs from that of earlier calls, in people's words; `None` if it does not.
    pub(super) fn differs(&self, earlier: &Self) -> Option<&'static str> {
        if self.model != earlier.model {
            Some("the tokenizer or the chat template is not that of the earlier calls")
        } else if self.tools != earlier.tools {
            Some("its tools are not those of the earlier calls")
        } else if self.variables != earlier.variables {
            Some("its template variables are not those of the earlier calls")
        } else {
            None
        }
    }
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Null, an empty string and no content are the same; parts of text are the text that they make.
fn each_text(content: &Content, mut take: impl FnMut(&str)) {
    match content {
        Content::Absent | Content::Null => {}
        Content::Text(text) => take(&text.decode()),
        Content::Parts(parts) => {
            for part in parts {
                match part {
                    Part::Text(text) => take(&text.decode()),
                    Part::Image(url) => take(&url.decode()),
                    Part::Opaque(raw) => take(raw.as_str()),
                }
            }
        }
    }
}

fn words(text: &str, hasher: &mut impl Hasher) {
    for word in text.split_whitespace() {
        hasher.write(word.as_bytes());
    }
}
