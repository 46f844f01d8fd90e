//! The server's own template and tokenizer, where the config names none.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

use super::ask::{Made, Server};
use super::template::Template;
use super::{Conversation, ModelError, check, hash};
use crate::policy::config::PolicyKind;

/// Names under which tokens end a reply.
const ENDS: [&str; 8] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|return|>", "</s>"];

/// Names of other control tokens.
const OTHERS: [&str; 6] =
    ["<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "<s>"];

/// Asks the server. llama.cpp tells its template, which is rendered here.
pub(super) struct Served {
    server: Server,
    pub template: Option<Template>,
    pub ends: HashSet<u32>,
    pub control: HashSet<u32>,
}

impl Served {
    /// Asks for what the server tells; gives the hashes of tokenizer and template, too.
    pub(super) async fn open(server: Server) -> Result<(Self, String, String), ModelError> {
        if !server.tokenizes() {
            return Err(ModelError::Unreadable(
                "this kind of server tells neither its template nor its tokens: name the model's folder or GGUF file in tokenizer".to_owned(),
            ));
        }
        let mut ends: Vec<String> = ENDS.map(str::to_owned).into();
        let mut others: Vec<String> = OTHERS.map(str::to_owned).into();
        let mut template = None;
        if server.kind == PolicyKind::Llamacpp {
            let props = server.props().await?;
            let mut names = Map::new();
            for (variable, name) in [("bos_token", &props.bos_token), ("eos_token", &props.eos_token)] {
                if !name.is_empty() {
                    names.insert(variable.to_owned(), Json::String(name.clone()));
                }
            }
            let begins = server.encode("a", true).await? != server.encode("a", false).await?;
            let begins = Some(props.bos_token.clone()).filter(|bos| begins && !bos.is_empty());
            others.push(props.bos_token);
            ends.push(props.eos_token);
            if props.chat_template.is_empty() {
                return Err(ModelError::Unreadable("the server's model has no chat template".to_owned()));
            }
            template = Some(Template::new(props.chat_template, names, begins)?);
        }
        let mut served = Self { server, template, ends: HashSet::new(), control: HashSet::new() };
        for name in ends.iter().chain(&others).filter(|name| !name.is_empty()) {
            // A name that is no token is several.
            if let [id] = served.encode(name).await?[..] {
                served.control.insert(id);
                if ends.contains(name) {
                    served.ends.insert(id);
                }
            }
        }
        let (tokenizer_hash, template_hash) = served.hashes().await?;
        Ok((served, tokenizer_hash, template_hash))
    }

    /// Of what the server makes of the probes: two servers that make the same are the same.
    async fn hashes(&self) -> Result<(String, String), ModelError> {
        let mut tokens = Vec::new();
        for text in check::TEXTS {
            let ids = self.encode(text).await?;
            tokens.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            tokens.extend(u32::MAX.to_le_bytes());
        }
        let template = match &self.template {
            Some(template) => hash(&[template.source().as_bytes(), &serde_json::to_vec(template.names()).unwrap_or_default()]),
            None => {
                let mut texts = Vec::new();
                for (_, conversation) in check::conversations() {
                    match self.server.render(&conversation).await {
                        Ok(Made::Ids(ids)) => texts.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
                        Ok(_) | Err(ModelError::Refused(_)) => {}
                        Err(error) => return Err(error),
                    }
                    texts.extend(u32::MAX.to_le_bytes());
                }
                hash(&[&texts])
            }
        };
        Ok((hash(&[&tokens]), template))
    }

    /// Renders at a server that tells no template: its ids, read as text.
    pub(super) async fn render(&self, conversation: &Conversation) -> Result<String, ModelError> {
        match self.server.render(conversation).await? {
            Made::Text { text, .. } => Ok(text),
            Made::Ids(ids) => self.server.decode(&ids).await,
            Made::Count(_) => Err(ModelError::Unreadable("the server tells no text".to_owned())),
        }
    }

    pub(super) async fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.server.encode(text, false).await
    }

    pub(super) async fn encode_begun(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.server.encode(text, true).await
    }

    pub(super) async fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.server.decode(ids).await
    }
}
