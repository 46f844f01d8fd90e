//! The error form that `OpenAI`'s APIs share.

use serde::Serialize;

use crate::call::{Failure, FailureKind};

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

/// Writes `{"error": {message, type, param, code}}`.
pub(super) fn write(out: &mut Vec<u8>, failure: &Failure) {
    let (kind, code) = names(failure.kind);
    write_as(out, failure, kind, code);
}

/// Writes a failure of this type and code.
pub(super) fn write_as(out: &mut Vec<u8>, failure: &Failure, kind: &'static str, code: Option<&'static str>) {
    let error = Inner { message: &failure.message, r#type: kind, param: failure.param.as_deref(), code };
    // A `Vec` takes every write and the struct is always JSON.
    let _ = serde_json::to_writer(out, &Body { error });
}

/// The type and the code that `OpenAI`'s SDKs know a kind by.
fn names(kind: FailureKind) -> (&'static str, Option<&'static str>) {
    const REQUEST: &str = "invalid_request_error";
    const SERVER: &str = "server_error";
    match kind {
        FailureKind::Invalid | FailureKind::Refused => (REQUEST, None),
        FailureKind::Unauthorized => ("authentication_error", Some("invalid_api_key")),
        FailureKind::Forbidden => ("permission_error", None),
        FailureKind::NotFound => ("not_found_error", None),
        FailureKind::MethodNotAllowed => (REQUEST, Some("method_not_allowed")),
        FailureKind::Ended => (REQUEST, Some("rollout_ended")),
        FailureKind::Capped => ("permission_error", Some("rollout_capped")),
        FailureKind::TooLarge => (REQUEST, Some("request_too_large")),
        FailureKind::ContextOverflow => (REQUEST, Some("context_length_exceeded")),
        FailureKind::UpgradeRequired => (REQUEST, Some("upgrade_required")),
        FailureKind::RateLimited => ("rate_limit_error", Some("rate_limit_exceeded")),
        FailureKind::Unavailable => (SERVER, Some("upstream_unavailable")),
        FailureKind::TimedOut => (SERVER, Some("upstream_timeout")),
        FailureKind::Cut => (SERVER, Some("upstream_cut")),
        FailureKind::NotRecorded => (SERVER, Some("not_recorded")),
        FailureKind::Cancelled => (SERVER, Some("cancelled")),
        FailureKind::Draining => (SERVER, Some("shutting_down")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_openai_s_form() {
        let mut out = Vec::new();
        write(&mut out, &Failure::invalid("messages[0].role", "unknown \"role\""));
        let expected =
            r#"{"error":{"message":"unknown \"role\"","type":"invalid_request_error","param":"messages[0].role","code":null}}"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_prompt_that_does_not_fit_is_told_by_its_code() {
        assert_eq!(names(FailureKind::ContextOverflow), ("invalid_request_error", Some("context_length_exceeded")));
    }
}
