//! The error form: `{"error": {code, message, status, details}}`, as Google's APIs have it.

use serde::Serialize;

use crate::call::{Failure, FailureKind};

#[derive(Serialize)]
struct Body<'a> {
    // First: the Python SDK tells an error inside a stream by what it begins with.
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    code: u16,
    message: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "@type")]
enum Detail<'a> {
    #[serde(rename = "type.googleapis.com/google.rpc.BadRequest", rename_all = "camelCase")]
    BadRequest { field_violations: [Violation<'a>; 1] },
    /// The command line waits as long as this says, and passes over the header.
    #[serde(rename = "type.googleapis.com/google.rpc.RetryInfo", rename_all = "camelCase")]
    RetryInfo { retry_delay: String },
}

#[derive(Serialize)]
struct Violation<'a> {
    field: &'a str,
    description: &'a str,
}

/// Writes a failure.
pub(super) fn write(out: &mut Vec<u8>, failure: &Failure) {
    let overflow = format!("The input token count exceeds the maximum number of tokens allowed: {}", failure.message);
    let message = if failure.kind == FailureKind::ContextOverflow { &overflow } else { &failure.message };
    let violation = failure.param.as_ref().map(|field| Violation { field, description: message });
    let retry = failure.retry_after.map(|seconds| Detail::RetryInfo { retry_delay: format!("{seconds}s") });
    let details = violation.map(|violation| Detail::BadRequest { field_violations: [violation] }).into_iter().chain(retry);
    let error = Inner { code: failure.status, message, status: status(failure), details: details.collect() };
    // A `Vec` takes every write and the struct is always JSON.
    let _ = serde_json::to_writer(out, &Body { error });
}

/// The name that Google's clients know a failure by.
fn status(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::Invalid | FailureKind::TooLarge | FailureKind::ContextOverflow => "INVALID_ARGUMENT",
        FailureKind::Unauthorized => "UNAUTHENTICATED",
        FailureKind::Forbidden | FailureKind::Capped => "PERMISSION_DENIED",
        FailureKind::NotFound => "NOT_FOUND",
        FailureKind::MethodNotAllowed | FailureKind::UpgradeRequired => "UNIMPLEMENTED",
        FailureKind::Ended => "FAILED_PRECONDITION",
        FailureKind::RateLimited => "RESOURCE_EXHAUSTED",
        FailureKind::Cancelled => "CANCELLED",
        FailureKind::TimedOut => "DEADLINE_EXCEEDED",
        FailureKind::Unavailable | FailureKind::Cut | FailureKind::NotRecorded | FailureKind::Draining => "UNAVAILABLE",
        FailureKind::Refused => match failure.status {
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            409 => "ABORTED",
            _ => "INVALID_ARGUMENT",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(failure: &Failure) -> String {
        let mut out = Vec::new();
        write(&mut out, failure);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_failure_has_google_s_form() {
        let expected = concat!(
            r#"{"error":{"code":400,"message":"wrong \"role\"","status":"INVALID_ARGUMENT","details":["#,
            r#"{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":"contents[0].role","description":"wrong \"role\""}]}]}}"#
        );
        assert_eq!(written(&Failure::invalid("contents[0].role", "wrong \"role\"")), expected);
        let waits = Failure { retry_after: Some(4), ..Failure::new(FailureKind::RateLimited, "later") };
        let expected = concat!(
            r#"{"error":{"code":429,"message":"later","status":"RESOURCE_EXHAUSTED","details":["#,
            r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"4s"}]}}"#
        );
        assert_eq!(written(&waits), expected);
    }

    #[test]
    fn a_prompt_that_does_not_fit_is_told_by_the_api_s_own_words() {
        let said = written(&Failure::new(FailureKind::ContextOverflow, "9000 of 8192"));
        assert!(said.contains("The input token count exceeds the maximum number of tokens allowed: 9000 of 8192"), "{said}");
    }

    #[test]
    fn a_refusal_keeps_the_policy_s_status() {
        let refused = |status| Failure { status, ..Failure::new(FailureKind::Refused, "no") };
        let names = [400, 401, 403, 404, 422].map(|code| status(&refused(code)));
        assert_eq!(names, ["INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT"]);
    }
}
