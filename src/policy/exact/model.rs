//! A model's chat template and tokenizer: from a folder, from a GGUF file, or the server's own.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::call::SpecialText;
use crate::policy::config::PolicyConfig;
use crate::policy::http::Http;
use crate::policy::probe::Found;

/// Where a conversation's text and its ids come from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Model {}

/// What a template is given.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    /// Messages as templates know them: `role`, `content`, `reasoning_content`, `tool_calls` with arguments as objects ...
    pub messages: Vec<Value>,
    /// Null: no tools, which is not the same to templates as an empty list.
    pub tools: Option<Vec<Value>>,
    /// `chat_template_kwargs` and the like.
    pub variables: Map<String, Value>,
    /// Ends with what begins the assistant's turn.
    pub add_generation_prompt: bool,
    /// The last message is the assistant's, and its turn is left open.
    pub continue_final_message: bool,
}

/// How a template takes a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForm {
    Text,
    Parts,
}

/// Why there is no text, or no ids.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ModelError {
    /// The files, or the server's answers, are no model's.
    #[error("{0}")]
    Unreadable(String),
    /// The model here and the server's are not the same: what was compared, and the first difference.
    #[error("{0}")]
    Mismatch(String),
    /// The template refuses this conversation (`raise_exception`), or fails in it: the client's to mend.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The server that should say it can't be reached.
    #[error("{0}")]
    Unreachable(String),
}

impl Model {
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self {}
    }

    /// Reads the model that `config` names (`tokenizer`, `chat_template`), or takes the server's own, and checks it against the server.
    pub(super) async fn open(_config: &PolicyConfig, _http: &Arc<Http>, _found: &Found) -> Result<Self, ModelError> {
        Err(ModelError::Unreadable("not built yet".to_owned()))
    }

    /// A name for what ids mean (SHA-256 of what makes them, in hex).
    pub(super) fn tokenizer_hash(&self) -> &str {
        ""
    }

    pub(super) fn template_hash(&self) -> &str {
        ""
    }

    /// The template's source, by which parsers are chosen; empty if the server does not tell.
    pub(super) fn template(&self) -> &str {
        ""
    }

    pub(super) fn content_form(&self) -> ContentForm {
        ContentForm::Text
    }

    /// Renders a conversation.
    pub(super) async fn render(&self, _conversation: &Conversation) -> Result<String, ModelError> {
        Err(ModelError::Unreadable("not built yet".to_owned()))
    }

    /// The ids of text that a template made (or a piece of it from a control token on). Adds nothing of its own.
    ///
    /// With [`SpecialText::Text`], names of control tokens in `typed` pieces of it, which somebody wrote, stay text: see [`Model::guard`].
    pub(super) async fn encode(&self, _text: &str, _special: SpecialText) -> Result<Vec<u32>, ModelError> {
        Err(ModelError::Unreadable("not built yet".to_owned()))
    }

    /// Marks control tokens' names in what somebody wrote, so that [`Model::encode`] with [`SpecialText::Text`] can tell them from
    /// the template's own. Text without any comes back as it is.
    pub(super) fn guard<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        text.into()
    }

    /// Whether a reply ends when this id is sampled (end of turn, end of text).
    pub(super) fn ends(&self, _id: u32) -> bool {
        false
    }

    /// Whether an id is a control token, which no text reads as.
    pub(super) fn is_control(&self, _id: u32) -> bool {
        false
    }

    /// Ids at and above this are none of the model's; `None` if that is not known.
    pub(super) fn vocabulary(&self) -> Option<u32> {
        None
    }

    /// Reads sampled ids as text while they come; `None` where only the server can.
    pub(super) fn detokenizer(&self) -> Option<Detokenizer> {
        None
    }
}

/// Sampled ids to text, a piece at a time. Control tokens that end a reply are not text; others (`<tool_call>`, `<think>`) are, since parsers
/// need them.
pub(super) struct Detokenizer {}

impl Detokenizer {
    /// The text that is complete with this id; empty while a character is not.
    pub(super) fn push(&mut self, _id: u32) -> String {
        String::new()
    }

    /// What was held back: half a character reads as U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        String::new()
    }
}
