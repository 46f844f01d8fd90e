//! What the policy's server says of templates and tokens.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::{Conversation, ModelError};
use crate::policy::config::PolicyKind;
use crate::policy::http::Http;
use crate::policy::probe::Found;
use crate::policy::refusal;

/// The server, asked about conversations and texts.
#[derive(Clone)]
pub(super) struct Server {
    http: Arc<Http>,
    pub kind: PolicyKind,
    model: Option<String>,
}

/// What a server makes of a conversation.
pub(super) enum Made {
    /// llama.cpp tells the text, without the token that begins it.
    Text {
        text: String,
        ids: Vec<u32>,
    },
    Ids(Vec<u32>),
    /// Other servers tell only how many tokens a prompt has.
    Count(u64),
}

/// llama.cpp's own words of its model.
#[derive(Deserialize)]
pub(super) struct Props {
    #[serde(default)]
    pub chat_template: String,
    #[serde(default)]
    pub bos_token: String,
    #[serde(default)]
    pub eos_token: String,
}

#[derive(Deserialize)]
struct Templated {
    prompt: String,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// llama.cpp says `content`, vLLM `prompt`, `SGLang` `text`.
#[derive(Deserialize)]
struct Text {
    #[serde(alias = "prompt", alias = "text")]
    content: String,
}

#[derive(Deserialize)]
struct Counted {
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
}

impl Server {
    pub(super) fn new(http: &Arc<Http>, found: &Found) -> Self {
        Self { http: Arc::clone(http), kind: found.kind, model: found.model.clone() }
    }

    /// Whether it tells ids of any text.
    pub(super) fn tokenizes(&self) -> bool {
        matches!(self.kind, PolicyKind::Llamacpp | PolicyKind::Vllm | PolicyKind::Sglang)
    }

    /// What it makes of a conversation.
    ///
    /// # Errors
    /// `Refused` if its template, or the server itself, takes no such conversation.
    pub(super) async fn render(&self, conversation: &Conversation) -> Result<Made, ModelError> {
        let mut question = self.question(conversation);
        match self.kind {
            PolicyKind::Llamacpp => {
                let templated: Templated = self.ask("/apply-template", question.into()).await?;
                let ids = self.encode(&templated.prompt, true).await?;
                Ok(Made::Text { text: templated.prompt, ids })
            }
            PolicyKind::Vllm | PolicyKind::Sglang => {
                question.insert("add_special_tokens".to_owned(), false.into());
                let tokens: Tokens = self.ask("/tokenize", question.into()).await?;
                Ok(Made::Ids(tokens.tokens))
            }
            PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => {
                question.insert("max_tokens".to_owned(), 1.into());
                let counted: Counted = self.ask("/v1/chat/completions", question.into()).await?;
                Ok(Made::Count(counted.usage.prompt_tokens))
            }
        }
    }

    /// The ids of a text; `begin` with the token that its prompts begin with.
    pub(super) async fn encode(&self, text: &str, begin: bool) -> Result<Vec<u32>, ModelError> {
        let question = match self.kind {
            PolicyKind::Llamacpp => json!({"content": text, "add_special": begin, "parse_special": true}),
            _ => self.with_model(json!({"prompt": text, "add_special_tokens": begin})),
        };
        Ok(self.ask::<Tokens>("/tokenize", question).await?.tokens)
    }

    /// The text of ids, control tokens too.
    pub(super) async fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        let question = match self.kind {
            PolicyKind::Sglang => self.with_model(json!({"tokens": ids, "skip_special_tokens": false})),
            PolicyKind::Llamacpp => json!({"tokens": ids}),
            _ => self.with_model(json!({"tokens": ids})),
        };
        Ok(self.ask::<Text>("/detokenize", question).await?.content)
    }

    pub(super) async fn props(&self) -> Result<Props, ModelError> {
        let unreachable = |why: String| ModelError::Unreachable(format!("{}/props: {why}", self.http.base()));
        match self.http.get("/props").await {
            Ok((200, body)) => serde_json::from_slice(&body).map_err(|error| unreachable(error.to_string())),
            Ok((status, _)) => Err(unreachable(format!("status {status}"))),
            Err(error) => Err(unreachable(error.to_string())),
        }
    }

    fn with_model(&self, mut question: Json) -> Json {
        if let (Some(fields), Some(model)) = (question.as_object_mut(), &self.model) {
            fields.insert("model".to_owned(), model.clone().into());
        }
        question
    }

    /// The conversation as chat completions know it.
    fn question(&self, conversation: &Conversation) -> Map<String, Json> {
        let mut question = Map::new();
        if let Some(model) = &self.model {
            question.insert("model".to_owned(), model.clone().into());
        }
        let messages = conversation.messages.iter().map(|message| self.message(message));
        question.insert("messages".to_owned(), messages.collect());
        if let Some(tools) = &conversation.tools {
            question.insert("tools".to_owned(), tools.clone().into());
        }
        if !conversation.variables.is_empty() {
            question.insert("chat_template_kwargs".to_owned(), conversation.variables.clone().into());
        }
        // Where no prompt is made of it, these are none of chat completions' fields.
        if self.tokenizes() {
            question.insert("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into());
            if conversation.continue_final_message {
                question.insert("continue_final_message".to_owned(), true.into());
            }
        }
        question
    }

    /// On the wire a call's arguments are text, and vLLM calls reasoning so.
    fn message(&self, message: &Json) -> Json {
        let mut message = message.clone();
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
        for (index, call) in calls.into_iter().flatten().enumerate() {
            let arguments = call.get_mut("function").and_then(|function| function.get_mut("arguments"));
            if let Some(arguments) = arguments.filter(|arguments| !arguments.is_string()) {
                *arguments = arguments.to_string().into();
            }
            if let Some(call) = call.as_object_mut() {
                call.entry("id").or_insert_with(|| format!("call_{index}").into());
                call.entry("type").or_insert_with(|| "function".into());
            }
        }
        if self.kind == PolicyKind::Vllm
            && let Some(fields) = message.as_object_mut()
            && let Some(reasoning) = fields.get("reasoning_content").cloned()
        {
            fields.insert("reasoning".to_owned(), reasoning);
        }
        message
    }

    async fn ask<T: for<'a> Deserialize<'a>>(&self, path: &str, question: Json) -> Result<T, ModelError> {
        let place = format!("{}{path}", self.http.base());
        let body = Bytes::from(question.to_string());
        let (status, answer) =
            self.http.ask(path, body).await.map_err(|error| ModelError::Unreachable(format!("{place}: {error}")))?;
        match status {
            200 => serde_json::from_slice(&answer)
                .map_err(|error| ModelError::Unreadable(format!("{place} answers something else than it should: {error}"))),
            404 | 405 | 501 => Err(ModelError::Unreadable(format!(
                "{place} is not there (status {status}), without which templates and tokens can't be checked"
            ))),
            // llama.cpp has 500 for templates that raise.
            400 | 422 => Err(ModelError::Refused(refusal::read(&answer).message)),
            500 if self.kind == PolicyKind::Llamacpp => Err(ModelError::Refused(refusal::read(&answer).message)),
            _ => {
                Err(ModelError::Unreachable(format!("{place} answers with status {status}: {}", refusal::read(&answer).message)))
            }
        }
    }
}
