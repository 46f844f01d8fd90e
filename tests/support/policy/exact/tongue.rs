//! What texts and ids are to each other at a server: by hand, or as a real model's files have it.

use serde_json::Value;

use super::vocabulary;

/// A server's tokenizer and chat template.
pub enum Tongue {
    /// [`vocabulary`].
    ByHand,
    #[cfg(feature = "exact")]
    Real(Box<super::real::Real>),
}

impl Tongue {
    /// The ids of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self {
            Self::ByHand => vocabulary::encode(text),
            #[cfg(feature = "exact")]
            Self::Real(real) => real.encode(text),
        }
    }

    /// Ids of a text as a model may sample them: `odd` says whether a place that may be cut otherwise than by encoding it is.
    pub fn pieces(&self, text: &str, odd: impl FnMut(&str) -> bool) -> Vec<u32> {
        match self {
            Self::ByHand => vocabulary::pieces(text, odd),
            #[cfg(feature = "exact")]
            Self::Real(real) => real.pieces(text, odd),
        }
    }

    /// What ids read as, without the end.
    pub fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::ByHand => vocabulary::decode(ids),
            #[cfg(feature = "exact")]
            Self::Real(real) => real.decode(ids).replace(super::real::END, ""),
        }
    }

    /// What ids read as, control tokens too.
    pub fn decode_all(&self, ids: &[u32]) -> String {
        match self {
            Self::ByHand => vocabulary::decode_all(ids),
            #[cfg(feature = "exact")]
            Self::Real(real) => real.decode(ids),
        }
    }

    /// A conversation's text, or why the template refuses it.
    pub fn render(&self, request: &Value) -> Result<String, String> {
        match self {
            Self::ByHand => Ok(vocabulary::render(request)),
            #[cfg(feature = "exact")]
            Self::Real(real) => real.render(request),
        }
    }

    /// The token that ends a reply.
    pub fn end(&self) -> u32 {
        match self {
            Self::ByHand => vocabulary::END,
            #[cfg(feature = "exact")]
            Self::Real(real) => real.end(),
        }
    }

    /// The window, in tokens.
    pub fn window(&self) -> usize {
        match self {
            Self::ByHand => 4096,
            #[cfg(feature = "exact")]
            Self::Real(_) => 262_144,
        }
    }
}
