//! What a look at something came to.

use serde::Serialize;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is, in a word or two.
    pub name: String,
    pub state: Health,
    /// What was seen.
    pub seen: String,
    /// What to do, where something is to be done.
    pub advice: Option<String>,
}

/// How well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    /// It works, with less than there could be.
    Warning,
    /// Runs fail.
    Fault,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &str, seen: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state: Health::Ok, seen: seen.into(), advice: None }
    }

    /// It works, but.
    pub fn warning(name: &str, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state: Health::Warning, seen: seen.into(), advice: Some(advice.into()) }
    }

    /// It does not work.
    pub fn fault(name: &str, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state: Health::Fault, seen: seen.into(), advice: Some(advice.into()) }
    }

    /// Fine, or else a warning.
    #[must_use]
    pub fn expect(well: bool, name: &str, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        if well { Self::ok(name, seen) } else { Self::warning(name, seen, advice) }
    }
}
