//! A model's chat template and tokenizer: from a folder, from a GGUF file, or the server's own.
//!
//! ```text
//! folder, ggml <- gguf -> Parts -> Template (python), Tokenizer -> Detokenizer
//! ask: the server's own words, which check compares with these, or which stand in for them (served)
//! ```

mod ask;
mod check;
mod detokenizer;
mod folder;
mod ggml;
mod gguf;
mod python;
mod served;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::call::SpecialText;
use crate::policy::config::PolicyConfig;
use crate::policy::http::Http;
use crate::policy::probe::Found;

pub(super) use detokenizer::Detokenizer;

use ask::Server;
use folder::Parts;
use served::Served;
use template::Template;
use tokenizer::Tokenizer;

/// Texts longer than this are encoded beside the runtime's threads, in bytes: some milliseconds' work.
const LONG: usize = 32 << 10;

/// Where a conversation's text and its ids come from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Model(Arc<Inner>);

struct Inner {
    source: Source,
    tokenizer_hash: String,
    template_hash: String,
}

enum Source {
    /// Read from files.
    Local { template: Template, tokenizer: Arc<Tokenizer> },
    /// Only the server has it.
    Served(Served),
}

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
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
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
    pub(super) async fn open(config: &PolicyConfig, http: &Arc<Http>, found: &Found) -> Result<Self, ModelError> {
        let server = Server::new(http, found);
        let model =
            if config.tokenizer.is_some() { Self::read(config).await? } else { Self::served(config, server.clone()).await? };
        check::agree(&model, &server).await?;
        Ok(model)
    }

    /// Checks the model against a further server.
    pub(super) async fn agrees(&self, http: &Arc<Http>, found: &Found) -> Result<(), ModelError> {
        check::agree(self, &Server::new(http, found)).await
    }

    /// Whether this is the same model, as it was opened.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reads the model that `config` names, without a look at any server.
    pub(super) async fn read(config: &PolicyConfig) -> Result<Self, ModelError> {
        let config = config.clone();
        // Large files, and tables made of them.
        blocking(move || {
            let Some(place) = config.tokenizer.clone() else {
                return Err(ModelError::Unreadable("no tokenizer is named".to_owned()));
            };
            let named = |why: &dyn std::fmt::Display| ModelError::Unreadable(format!("{}: {why}", place.display()));
            let mut parts = Parts::read(&config, &place)?;
            let tokenizer = Tokenizer::new(&parts, config.special_text == SpecialText::Text).map_err(|error| named(&error))?;
            let tokenizer = Arc::new(tokenizer);
            let Some(source) = parts.template.take() else {
                return Err(named(&"it has no chat template: name a file with one in chat_template"));
            };
            let variables = serde_json::to_vec(&parts.names).unwrap_or_default();
            let template_hash = hash(&[source.as_bytes(), &variables]);
            let template = Template::new(source, parts.names, parts.begins).map_err(|error| named(&error))?;
            let source = Source::Local { template, tokenizer };
            Ok(Self(Arc::new(Inner { source, tokenizer_hash: parts.tokenizer_hash, template_hash })))
        })
        .await
    }

    async fn served(config: &PolicyConfig, server: Server) -> Result<Self, ModelError> {
        if config.chat_template.is_some() || config.special_text == SpecialText::Text {
            let what = if config.chat_template.is_some() { "chat_template" } else { "special_text = \"text\"" };
            return Err(ModelError::Unreadable(format!("{what} needs tokenizer, the model's folder or GGUF file")));
        }
        let (own, tokenizer_hash, template_hash) = Served::open(server).await?;
        Ok(Self(Arc::new(Inner { source: Source::Served(own), tokenizer_hash, template_hash })))
    }

    /// A name for what ids mean (SHA-256 of what makes them, in hex).
    pub(super) fn tokenizer_hash(&self) -> &str {
        &self.0.tokenizer_hash
    }

    pub(super) fn template_hash(&self) -> &str {
        &self.0.template_hash
    }

    /// The template's source, by which parsers are chosen; empty if the server does not tell.
    pub(super) fn template(&self) -> &str {
        self.own_template().map_or("", Template::source)
    }

    pub(super) fn content_form(&self) -> ContentForm {
        self.own_template().map_or(ContentForm::Text, Template::form)
    }

    fn own_template(&self) -> Option<&Template> {
        match &self.0.source {
            Source::Local { template, .. } => Some(template),
            Source::Served(served) => served.template.as_ref(),
        }
    }

    /// Renders a conversation, beside the runtime's threads. With what a prompt always begins with (a GGUF file's `add_bos_token`), whether the
    /// template writes it or not.
    pub(super) async fn render(&self, conversation: &Conversation) -> Result<String, ModelError> {
        match (self.own_template().cloned(), &self.0.source) {
            (Some(template), _) => {
                let prepared = template.prepare(conversation)?;
                let rendered = timeout(template::TIME * 2, blocking(move || template.render(prepared)));
                rendered.await.unwrap_or_else(|_| Err(ModelError::Refused("it takes too long".to_owned())))
            }
            (None, Source::Served(served)) => served.render(conversation).await,
            (None, Source::Local { .. }) => Err(ModelError::Unreadable("there is no chat template".to_owned())),
        }
    }

    /// The ids of text that a template made (or a piece of it from a control token on). Adds nothing of its own.
    ///
    /// With [`SpecialText::Text`], names of control tokens that [`Model::guard`] has marked stay text, with the ids of plain text in their place.
    pub(super) async fn encode(&self, text: &str, special: SpecialText) -> Result<Vec<u32>, ModelError> {
        let tokenizer = match &self.0.source {
            Source::Local { tokenizer, .. } => tokenizer,
            Source::Served(served) => return served.encode(text).await,
        };
        let encode = move |tokenizer: &Tokenizer, text: &str| match special {
            SpecialText::Control => tokenizer.encode(text),
            SpecialText::Text => tokenizer.encode_guarded(text),
        };
        if text.len() <= LONG {
            return encode(tokenizer, text);
        }
        let (tokenizer, text) = (Arc::clone(tokenizer), text.to_owned());
        blocking(move || encode(&tokenizer, &text)).await
    }

    /// The ids of a prompt that is no conversation, with what the model begins with. Names of control tokens in it are meant.
    pub(super) async fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        match &self.0.source {
            Source::Local { template, tokenizer } => {
                let (tokenizer, text) = (Arc::clone(tokenizer), text.to_owned());
                let begins = template.begins().map(str::to_owned);
                blocking(move || tokenizer.encode_begun(begins.as_deref(), &text)).await
            }
            Source::Served(served) => served.encode_begun(text).await,
        }
    }

    /// Marks control tokens' names in what somebody wrote, so that [`Model::encode`] with [`SpecialText::Text`] can tell them from
    /// the template's own. Text without any comes back as it is; so does all text unless the config says `special_text = "text"`.
    pub(super) fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.0.source {
            Source::Local { tokenizer, .. } => tokenizer.guard(text),
            Source::Served(_) => Cow::Borrowed(text),
        }
    }

    /// Whether a reply ends when this id is sampled (end of turn, end of text).
    pub(super) fn ends(&self, id: u32) -> bool {
        match &self.0.source {
            Source::Local { tokenizer, .. } => tokenizer.ends(id),
            Source::Served(served) => served.ends.contains(&id),
        }
    }

    /// Whether an id is a control token, which no text reads as.
    pub(super) fn is_control(&self, id: u32) -> bool {
        match &self.0.source {
            Source::Local { tokenizer, .. } => tokenizer.is_control(id),
            Source::Served(served) => served.control.contains(&id),
        }
    }

    /// Ids at and above this are none of the model's; `None` if that is not known.
    pub(super) fn vocabulary(&self) -> Option<u32> {
        match &self.0.source {
            Source::Local { tokenizer, .. } => Some(tokenizer.vocabulary()),
            Source::Served(_) => None,
        }
    }

    /// Reads sampled ids as text while they come; `None` where only the server can.
    pub(super) fn detokenizer(&self) -> Option<Detokenizer> {
        match &self.0.source {
            Source::Local { tokenizer, .. } => Some(Detokenizer::new(Arc::clone(tokenizer))),
            Source::Served(_) => None,
        }
    }

    /// The text of ids, for people.
    async fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        match &self.0.source {
            Source::Local { tokenizer, .. } => Ok(tokenizer.decode(ids)),
            Source::Served(served) => served.decode(ids).await,
        }
    }
}

/// Does work that takes long beside the runtime's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ModelError> + Send + 'static) -> Result<T, ModelError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ModelError::Unreadable(format!("it broke off: {error}"))))
}

/// SHA-256 in hex; parts can't run into each other.
fn hash(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // A string takes all that is written to it.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
