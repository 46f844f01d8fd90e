//! What a request says by where it is posted: the model, what is asked of it, and the form of the reply.

use crate::call::{Failure, FailureKind};
use crate::wire::{Target, percent_decoded};

/// Where a request was posted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The model's name, without `models/` before it.
    pub(super) model: String,
    pub(super) verb: Verb,
    /// The client reads server-sent events; otherwise a stream is one JSON array.
    pub(super) events: bool,
}

/// What is asked of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Generate,
    Stream,
    Count,
}

impl Address {
    /// Reads a target. A model's name may have slashes and colons in it; what is asked of it follows the last colon.
    ///
    /// # Errors
    /// If it asks for what is not served.
    pub(super) fn read(target: Target<'_>) -> Result<Self, Failure> {
        let path = String::from_utf8_lossy(&percent_decoded(target.path)).into_owned();
        let name = path.trim_end_matches('/');
        // Tuned models keep their prefix, by which they are told from others of the same name.
        let name = name.strip_prefix("/models/").unwrap_or_else(|| name.trim_start_matches('/'));
        let (model, verb) = name.rsplit_once(':').unwrap_or((name, ""));
        let verb = match verb {
            "generateContent" => Verb::Generate,
            "streamGenerateContent" => Verb::Stream,
            "countTokens" => Verb::Count,
            _ => {
                let served = "post to models/{model}:generateContent, :streamGenerateContent or :countTokens";
                return Err(Failure::new(FailureKind::NotFound, format!("{name} is not served here: {served}")));
            }
        };
        if model.is_empty() {
            return Err(Failure::new(FailureKind::NotFound, format!("{path} names no model: models/{{model}}{name}")));
        }
        let events = ["alt", "$alt", "%24alt"].iter().any(|field| target.field(field) == Some("sse"));
        Ok(Self { model: model.to_owned(), verb, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(target: &str) -> Result<Address, Failure> {
        Address::read(Target::read(target))
    }

    #[test]
    fn the_verb_follows_the_last_colon() {
        for (target, model, verb, events) in [
            ("/models/m:generateContent", "m", Verb::Generate, false),
            ("/models/m:streamGenerateContent?alt=sse", "m", Verb::Stream, true),
            ("/models/m:streamGenerateContent?x=y&$alt=sse", "m", Verb::Stream, true),
            ("/models/m:streamGenerateContent?alt=json", "m", Verb::Stream, false),
            ("/models/qwen/qwen3:7b:countTokens", "qwen/qwen3:7b", Verb::Count, false),
            ("/models/a%2Fb%20c%3AgenerateContent", "a/b c", Verb::Generate, false),
            ("/models/50%:generateContent", "50%", Verb::Generate, false),
            ("/models/m%C3%A9:generateContent/", "m\u{e9}", Verb::Generate, false),
            ("/tunedModels/t:generateContent", "tunedModels/t", Verb::Generate, false),
        ] {
            assert_eq!(read(target), Ok(Address { model: model.to_owned(), verb, events }), "{target}");
        }
    }

    #[test]
    fn what_is_not_served_is_named() {
        for target in [
            "/models/m:embedContent",
            "/models/m:batchGenerateContent",
            "/models/qwen3:7b",
            "/models/m",
            "/models/:generateContent",
        ] {
            let failure = read(target).unwrap_err();
            assert_eq!((failure.kind, failure.status), (FailureKind::NotFound, 404));
            assert!(failure.message.contains(target.trim_start_matches("/models/")), "{}", failure.message);
        }
    }
}
