//! A model's chat template and tokenizer: from a folder, from a GGUF file, or the server's own.

use std::sync::Arc;

use llm_tokenizer::{Decoder as _, Encoder as _, TokenizerTrait as _};
use serde_json::{Map, Value};

use crate::call::SpecialText;
use crate::policy::config::PolicyConfig;
use crate::policy::http::Http;
use crate::policy::probe::Found;

/// Where a conversation's text and its ids come from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Model(Arc<llm_tokenizer::HuggingFaceTokenizer>);

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
    /// Reads the model that `config` names (`tokenizer`, `chat_template`), or takes the server's own, and checks it against the server.
    pub(super) async fn open(_config: &PolicyConfig, _http: &Arc<Http>, _found: &Found) -> Result<Self, ModelError> {
        Err(ModelError::Unreadable("not built yet".to_owned()))
    }

    #[cfg(test)]
    pub(super) fn in_folder(folder: &std::path::Path) -> Self {
        let path = folder.join("tokenizer.json");
        Self(Arc::new(llm_tokenizer::HuggingFaceTokenizer::from_file(path.to_str().unwrap()).unwrap()))
    }

    /// A name for what ids mean (SHA-256 of what makes them, in hex).
    pub(super) fn tokenizer_hash(&self) -> &str {
        ""
    }

    pub(super) fn template_hash(&self) -> &str {
        ""
    }

    /// What a text that is no conversation begins with.
    pub(super) fn beginning(&self) -> &[u32] {
        &[]
    }

    /// The template's source, by which parsers are chosen; empty if the server does not tell.
    pub(super) fn template(&self) -> &str {
        ""
    }

    pub(super) fn content_form(&self) -> ContentForm {
        ContentForm::Text
    }

    /// Renders a conversation.
    pub(super) async fn render(&self, conversation: &Conversation) -> Result<String, ModelError> {
        let kwargs = conversation.variables.clone().into_iter().collect();
        let params = llm_tokenizer::chat_template::ChatTemplateParams {
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            tools: conversation.tools.as_deref(),
            template_kwargs: Some(&kwargs),
            ..Default::default()
        };
        self.0.apply_chat_template(&conversation.messages, params).map_err(|error| ModelError::Refused(error.to_string()))
    }

    /// The ids of text that a template made (or a piece of it from a control token on). Adds nothing of its own.
    ///
    /// With [`SpecialText::Text`], names of control tokens in `typed` pieces of it, which somebody wrote, stay text: see [`Model::guard`].
    pub(super) async fn encode(&self, text: &str, _special: SpecialText) -> Result<Vec<u32>, ModelError> {
        Ok(self.0.encode(text, false).map_err(|error| ModelError::Unreadable(error.to_string()))?.token_ids().to_vec())
    }

    /// Marks control tokens' names in what somebody wrote, so that [`Model::encode`] with [`SpecialText::Text`] can tell them from
    /// the template's own. Text without any comes back as it is.
    pub(super) fn guard<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        text.into()
    }

    /// Whether a reply ends when this id is sampled (end of turn, end of text).
    pub(super) fn ends(&self, id: u32) -> bool {
        ["<|im_end|>", "<|endoftext|>"].iter().any(|token| self.0.token_to_id(token) == Some(id))
    }

    /// Whether an id is a control token, which no text reads as.
    pub(super) fn is_control(&self, id: u32) -> bool {
        ["<|im_end|>", "<|im_start|>"].iter().any(|token| self.0.token_to_id(token) == Some(id))
    }

    /// Ids at and above this are none of the model's; `None` if that is not known.
    pub(super) fn vocabulary(&self) -> Option<u32> {
        None
    }

    /// Reads sampled ids as text while they come; `None` where only the server can.
    pub(super) fn detokenizer(&self) -> Option<Detokenizer> {
        Some(Detokenizer(self.0.incremental_decoder(false)?))
    }
}

/// Sampled ids to text, a piece at a time. Control tokens that end a reply are not text; others (`<tool_call>`, `<think>`) are, since parsers
/// need them.
pub(super) struct Detokenizer(Box<dyn llm_tokenizer::traits::IncrementalDecoder>);

impl Detokenizer {
    /// The text that is complete with this id; empty while a character is not.
    pub(super) fn push(&mut self, id: u32) -> String {
        self.0.step(id).unwrap_or_default()
    }

    /// What was held back: half a character reads as U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        String::new()
    }
}
