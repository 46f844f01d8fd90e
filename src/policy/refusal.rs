//! Reads what a server says instead of a reply.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{Failure, FailureKind};

/// A server's error, in any of the forms that are about.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub message: String,
    pub kind: String,
    pub code: Option<u16>,
    pub param: Option<String>,
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    param: Option<&'a RawValue>,
}

/// Reads an error's body; of one in no known form, the first few hundred characters.
pub(super) fn read(body: &[u8]) -> Said {
    let text = String::from_utf8_lossy(body);
    let short = || text.trim().chars().take(500).collect::<String>();
    let Ok(outer) = serde_json::from_str::<Outer>(&text) else {
        return Said { message: short(), ..Said::default() };
    };
    let string = |raw: &RawValue| serde_json::from_str::<String>(raw.get()).ok();
    // `{"error": {...}}`, `{"error": "..."}`, vLLM's older `{"object": "error", "message": ...}`, FastAPI's `{"detail": ...}`.
    let inner_text = outer.error.map_or(&*text, RawValue::get);
    let inner = serde_json::from_str::<Inner>(inner_text).ok();
    let message = outer.error.and_then(string);
    let message = message.or_else(|| inner.as_ref().and_then(|inner| inner.message.as_deref().map(str::to_owned)));
    let message = message.or_else(|| outer.message.map(Cow::into_owned));
    let message = message.or_else(|| outer.detail.map(|raw| string(raw).unwrap_or_else(|| raw.get().to_owned())));
    let inner = inner.as_ref();
    let kind = inner.and_then(|inner| inner.kind.as_deref()).unwrap_or_default();
    Said {
        message: message.filter(|message| !message.is_empty()).unwrap_or_else(short),
        kind: kind.to_owned(),
        code: inner.and_then(|inner| inner.code).and_then(|raw| raw.get().trim_matches('"').parse().ok()),
        param: inner.and_then(|inner| inner.param).and_then(string),
    }
}

/// A refusal (a 4xx that no repetition cures), with the server's status and words.
pub(super) fn refused(status: u16, body: &[u8]) -> Failure {
    let said = read(body);
    let kind = if is_overflow(&said) { FailureKind::ContextOverflow } else { FailureKind::Refused };
    Failure { status, param: said.param, ..Failure::new(kind, said.message) }
}

/// An error told inside a reply that had status 200.
pub(super) fn in_reply(kind: FailureKind, body: &[u8]) -> Failure {
    let said = read(body);
    match said.code {
        Some(400) if is_overflow(&said) => Failure::new(FailureKind::ContextOverflow, said.message),
        Some(status @ 400..=499) if kind == FailureKind::Unavailable && !matches!(status, 408 | 429) => {
            Failure { status, param: said.param, ..Failure::new(FailureKind::Refused, said.message) }
        }
        Some(429) if kind == FailureKind::Unavailable => Failure::new(FailureKind::RateLimited, said.message),
        _ => Failure::new(kind, format!("the policy said inside its reply: {}", said.message)),
    }
}

fn is_overflow(said: &Said) -> bool {
    let phrases = [
        "maximum context length",
        "context length is only",
        "exceeds the available context size",
        "longer than the maximum model length",
        "longer than the model's context length",
    ];
    said.kind == "exceed_context_size_error" || phrases.iter().any(|phrase| said.message.contains(phrase))
}

/// The window and the prompt's exact length, as vLLM's refusal of a prompt with too large a `max_tokens` gives them. Both
/// `None` for other refusals; no length where the server stopped counting (`at least`).
pub(super) fn window_and_prompt(body: &[u8]) -> Option<(u64, Option<u64>)> {
    let message = read(body).message;
    let window = after(&message, "maximum context length is ").or_else(|| after(&message, "context length is only "))?;
    if message.contains("at least") {
        return Some((window, None));
    }
    let prompt = before(&message, " input tokens").or_else(|| before(&message, " in the messages"));
    // "the upper bound for N input tokens" counts no prompt.
    Some((window, prompt.filter(|_| !message.contains("upper bound"))))
}

fn after(text: &str, phrase: &str) -> Option<u64> {
    let (_, rest) = text.split_once(phrase)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

fn before(text: &str, phrase: &str) -> Option<u64> {
    let (rest, _) = text.split_once(phrase)?;
    let start = rest.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    rest[start..].trim_start_matches('(').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_in_every_form() {
        let read = |body: &str| {
            let said = read(body.as_bytes());
            (said.message, said.code, said.param)
        };
        let none = || (None, None);
        let with = |message: &str, (code, param): (Option<u16>, Option<String>)| (message.to_owned(), code, param);
        assert_eq!(
            read(r#"{"error":{"message":"m","type":"BadRequestError","param":"input_tokens","code":400}}"#),
            with("m", (Some(400), Some("input_tokens".to_owned())))
        );
        assert_eq!(read(r#"{"error":{"message":"m","code":"429"}}"#), with("m", (Some(429), None)));
        assert_eq!(read(r#"{"error":"m"}"#), with("m", none()));
        assert_eq!(read(r#"{"object":"error","message":"m","code":404}"#), with("m", (Some(404), None)));
        assert_eq!(read(r#"{"detail":"Not Found"}"#), with("Not Found", none()));
        assert_eq!(read(r#"{"detail":[{"loc":["body"]}]}"#), with(r#"[{"loc":["body"]}]"#, none()));
        assert_eq!(read("<html>Bad gateway</html>\n"), with("<html>Bad gateway</html>", none()));
    }

    #[test]
    fn overflows_are_told_from_other_refusals() {
        let kind = |message: &str| {
            let failure = refused(400, serde_json::json!({"error": {"message": message}}).to_string().as_bytes());
            failure.kind
        };
        assert_eq!(
            kind("request (3031 tokens) exceeds the available context size (2048 tokens), try increasing it"),
            FailureKind::ContextOverflow
        );
        assert_eq!(
            kind("This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens."),
            FailureKind::ContextOverflow
        );
        assert_eq!(kind("logprobs is not supported with tools + stream"), FailureKind::Refused);
    }

    #[test]
    fn a_refused_limit_gives_the_numbers() {
        let numbers =
            |message: &str| window_and_prompt(serde_json::json!({"error": {"message": message}}).to_string().as_bytes());
        assert_eq!(
            numbers(
                "'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context length is 8192 tokens and your request has 8150 input tokens (64 > 8192 - 8150)."
            ),
            Some((8192, Some(8150)))
        );
        assert_eq!(
            numbers(
                "This model's maximum context length is 8192 tokens. However, you requested 64 output tokens and your prompt contains 10000 input tokens, for a total of 10064 tokens."
            ),
            Some((8192, Some(10000)))
        );
        assert_eq!(
            numbers(
                "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion)."
            ),
            Some((4096, Some(4000)))
        );
        assert_eq!(
            numbers(
                "This model's maximum context length is 8192 tokens. However, you requested 64 output tokens and your prompt contains at least 8129 input tokens, for a total of at least 8193 tokens."
            ),
            Some((8192, None))
        );
        assert_eq!(
            numbers(
                "This model's maximum context length is 8192 tokens. However, you requested 64 output tokens and your prompt contains 100000 characters (more than 81280 characters, which is the upper bound for 8128 input tokens)."
            ),
            Some((8192, None))
        );
        assert_eq!(numbers("no such model"), None);
    }
}
