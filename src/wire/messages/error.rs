//! Anthropic's error form.

use serde::Serialize;

use crate::call::{Failure, FailureKind};

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    error: Inner<'a>,
    request_id: Option<String>,
}

#[derive(Serialize)]
struct Inner<'a> {
    r#type: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    error_code: &'static str,
}

/// The field that names the conversation to go on from. SDKs send all of it again where that is not found, which they tell by the
/// error's details.
pub(super) const LOST_THREAD: &str = "thread.previous_message_id";

/// Writes `{"type": "error", "error": {type, message}, "request_id"}`; `call` names the call where there is one.
pub(super) fn body(failure: &Failure, call: Option<&str>) -> Vec<u8> {
    let said;
    let message = match failure.kind {
        // Clients know by these words that they must shorten the conversation.
        FailureKind::ContextOverflow if !failure.message.contains("prompt is too long") => {
            said = format!("prompt is too long: {}", failure.message);
            &said
        }
        _ => &failure.message,
    };
    let lost = failure.param.as_deref() == Some(LOST_THREAD) && failure.kind == FailureKind::NotFound;
    let details = lost.then_some(Details { error_code: "thread_not_found" });
    let error = Inner { r#type: kind(failure), message, details };
    let body = Body { r#type: "error", error, request_id: call.map(|hex| format!("req_{hex}")) };
    // A struct of strings is always JSON.
    serde_json::to_vec(&body).unwrap_or_default()
}

/// The type that Anthropic's SDKs know a failure by.
fn kind(failure: &Failure) -> &'static str {
    match failure.kind {
        // A full queue or a server that is away: worth another try, which this type says.
        FailureKind::Unavailable | FailureKind::Draining | FailureKind::NotRecorded => "overloaded_error",
        FailureKind::TimedOut => "timeout_error",
        FailureKind::Cut | FailureKind::Cancelled => "api_error",
        _ => match failure.status {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            409 => "conflict_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(failure: &Failure, call: Option<&str>) -> String {
        String::from_utf8(body(failure, call)).unwrap()
    }

    #[test]
    fn a_failure_has_anthropic_s_form_and_names_its_call() {
        let failure = Failure::invalid("max_tokens", "max_tokens is missing");
        let expected =
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens is missing"},"request_id":"#;
        assert_eq!(said(&failure, None), format!("{expected}null}}"));
        assert_eq!(said(&failure, Some("0a")), format!("{expected}\"req_0a\"}}"));
    }

    #[test]
    fn every_kind_and_status_has_the_type_that_sdks_know() {
        for (kind, expected) in [
            (FailureKind::Invalid, "invalid_request_error"),
            (FailureKind::ContextOverflow, "invalid_request_error"),
            (FailureKind::MethodNotAllowed, "invalid_request_error"),
            (FailureKind::Unauthorized, "authentication_error"),
            (FailureKind::Forbidden, "permission_error"),
            (FailureKind::NotFound, "not_found_error"),
            (FailureKind::Ended, "conflict_error"),
            (FailureKind::Capped, "permission_error"),
            (FailureKind::TooLarge, "request_too_large"),
            (FailureKind::RateLimited, "rate_limit_error"),
            (FailureKind::Unavailable, "overloaded_error"),
            (FailureKind::NotRecorded, "overloaded_error"),
            (FailureKind::Draining, "overloaded_error"),
            (FailureKind::TimedOut, "timeout_error"),
            (FailureKind::Cut, "api_error"),
        ] {
            assert_eq!(super::kind(&Failure::new(kind, "m")), expected, "{kind:?}");
        }
        for (status, expected) in [(402, "billing_error"), (404, "not_found_error"), (422, "invalid_request_error")] {
            let failure = Failure { status, ..Failure::new(FailureKind::Refused, "m") };
            assert_eq!(super::kind(&failure), expected, "{status}");
        }
    }

    #[test]
    fn a_prompt_that_does_not_fit_is_told_in_the_words_that_make_clients_compact() {
        let failure = Failure::new(FailureKind::ContextOverflow, "the window has 8 tokens");
        assert!(said(&failure, None).contains(r#""message":"prompt is too long: the window has 8 tokens""#));
        let failure = Failure::new(FailureKind::ContextOverflow, "prompt is too long: 9 tokens > 8 maximum");
        assert!(said(&failure, None).contains(r#""message":"prompt is too long: 9 tokens > 8 maximum""#));
    }
}
