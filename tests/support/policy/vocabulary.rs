//! What the toy tokenizer's ids read as: it can only spell words that this server has seen.

use std::collections::HashMap;

use super::tokens::{self, Token};

/// The words behind ids.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary(HashMap<u32, String>);

impl Vocabulary {
    /// Learns the words of a text.
    pub(super) fn read(&mut self, text: &str) {
        for word in text.split_whitespace() {
            self.0.insert(tokens::id_of(word), format!("{word} "));
        }
    }

    /// Learns what was sampled.
    pub(super) fn sampled(&mut self, tokens: &[Token]) {
        self.0.extend(tokens.iter().map(|token| (token.id, token.text.clone())));
    }

    /// What an id reads as.
    pub(super) fn word(&self, id: u32) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| if id < 1_000 { String::new() } else { format!("<{id}>") })
    }

    /// What ids read as.
    pub(super) fn text(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| self.word(*id)).collect()
    }
}
