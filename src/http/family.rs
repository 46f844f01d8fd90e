//! Who asks, where the path does not say it: a client of `OpenAI`'s, Anthropic's or Google's API, each of which reads errors and
//! lists of models in its own form.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::call::{Failure, FailureKind};
use crate::wire::{self, Wire};

/// Clients that know one form of errors and of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    OpenAi,
    Anthropic,
    Gemini,
}

/// By what a family is known, the surest first, and the wire that writes its errors.
struct Signs {
    family: Family,
    wire: &'static str,
    /// What its paths begin with, below a rollout's own part.
    paths: &'static [&'static str],
    headers: &'static [&'static str],
}

static SIGNS: [Signs; 2] = [
    Signs {
        family: Family::Gemini,
        wire: "gemini",
        paths: &["v1beta", "v1alpha"],
        headers: &["x-goog-api-key", "x-goog-api-client"],
    },
    Signs {
        family: Family::Anthropic,
        wire: "messages",
        paths: &["v1/messages", "messages", "v1/organizations", "v1/complete", "api/hello"],
        headers: &["anthropic-version", "x-api-key"],
    },
];

impl Family {
    /// Whose request this is: its path says it, else its headers; else it is `OpenAI`'s, whose form most know.
    pub(super) fn of(uri: &Uri, headers: &HeaderMap) -> Self {
        let path = below_rollout(uri.path());
        let by_path = SIGNS.iter().find(|signs| signs.paths.iter().any(|start| begins(path, start)));
        let by_header = || SIGNS.iter().find(|signs| signs.headers.iter().any(|name| headers.contains_key(*name)));
        by_path.or_else(by_header).map_or(Self::OpenAi, |signs| signs.family)
    }

    /// The wire that writes this family's errors.
    pub(super) fn wire(self) -> &'static dyn Wire {
        let signs = SIGNS.iter().find(|signs| signs.family == self);
        signs.and_then(|signs| wire::named(signs.wire)).unwrap_or(wire::ALL[0])
    }
}

/// Whether a model endpoint was meant by a request that found none: errors are then in the form that its client reads.
pub(super) fn meant(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let path = below_rollout(uri.path());
    let named = ["v1", "models", "api/hello"].iter().any(|start| begins(path, start));
    let posted = !matches!(*method, Method::GET | Method::HEAD) && !begins(path, "api") && !PAGES.contains(&path);
    named || posted || path.len() + 1 < uri.path().len() || Family::of(uri, headers) == Family::Gemini
}

/// Pages that are no model endpoints, whatever is sent to them.
const PAGES: [&str; 4] = ["", "healthz", "readyz", "metrics"];

/// A path without its first slash, and without the part that names its rollout.
fn below_rollout(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    match path.strip_prefix("rollouts/") {
        Some(rest) => rest.split_once('/').map_or("", |(_, rest)| rest),
        None => path,
    }
}

/// A path as it is told and logged: without the key that it may have.
fn told(path: &str) -> std::borrow::Cow<'_, str> {
    match path.strip_prefix("/rollouts/") {
        Some(_) => format!("/rollouts/KEY/{}", below_rollout(path)).into(),
        None => path.into(),
    }
}

/// Whether a path is `start` or goes on below it.
fn begins(path: &str, start: &str) -> bool {
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The failure of a request to a path that is not served, which names those that are.
pub(super) fn not_served(method: &Method, uri: &Uri) -> Failure {
    let mut served: Vec<String> = Vec::new();
    for wire in wire::ALL {
        let base = wire.bases().iter().find(|base| !base.is_empty()).copied().unwrap_or_default();
        served.extend(wire.paths().iter().map(|path| format!("POST {base}{path}").replace("{*model}", "MODEL:METHOD")));
    }
    let message = format!("{method} {} is not served here; what is: {}, GET /v1/models", told(uri.path()), served.join(", "));
    Failure::new(FailureKind::NotFound, message)
}

/// The failure of a request by a method that its path does not take.
pub(super) fn not_taken(method: &Method, uri: &Uri, takes: &str) -> Failure {
    Failure::new(FailureKind::MethodNotAllowed, format!("{} takes {takes}, not {method}", told(uri.path())))
}

/// Answers a request that became no call.
pub(super) fn refuse(wire: &dyn Wire, failure: &Failure) -> Response {
    tracing::info!(wire = wire.name(), status = failure.status, reason = %failure, "refused a request");
    metrics::counter!("gleaner_refused_total", "status" => failure.status.to_string()).increment(1);
    let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    let mut response = (status, [(header::CONTENT_TYPE, json)], wire.failure(failure)).into_response();
    explain(failure.kind, failure.retry_after, response.headers_mut());
    response
}

/// Says in headers what clients act on without reading the body.
pub(super) fn explain(kind: FailureKind, retry_after: Option<u64>, headers: &mut HeaderMap) {
    if kind == FailureKind::UpgradeRequired {
        headers.insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if kind == FailureKind::Ended {
        // The SDKs take a 409 for a lock that opens again.
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn asked(path: &str, names: &[&'static str]) -> Family {
        let headers = names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("x"))).collect();
        Family::of(&path.parse().unwrap(), &headers)
    }

    #[test]
    fn a_client_is_known_by_its_path_and_then_by_its_headers() {
        for (path, headers, family) in [
            ("/v1/embeddings", &["authorization"] as &[_], Family::OpenAi),
            ("/v1/models", &["anthropic-version"], Family::Anthropic),
            ("/v1/models", &["x-api-key"], Family::Anthropic),
            ("/v1/messages/batches", &[], Family::Anthropic),
            ("/rollouts/glr_x/v1/messages/batches", &[], Family::Anthropic),
            ("/v1/messagesque", &[], Family::OpenAi),
            ("/v1beta/models", &["anthropic-version"], Family::Gemini),
            ("/rollouts/glr_x/v1beta/files", &[], Family::Gemini),
            ("/models", &["x-goog-api-key"], Family::Gemini),
        ] {
            assert_eq!(asked(path, headers), family, "{path} {headers:?}");
        }
    }

    #[test]
    fn what_is_no_page_and_no_api_was_meant_for_a_model() {
        for (method, path, is) in [
            (Method::GET, "/v1/files", true),
            (Method::POST, "/embeddings", true),
            (Method::GET, "/rollouts/glr_x/v2/x", true),
            (Method::HEAD, "/api/hello", true),
            (Method::GET, "/favicon.ico", false),
            (Method::POST, "/api/v2/rollouts", false),
            (Method::POST, "/", false),
            (Method::DELETE, "/healthz", false),
        ] {
            assert_eq!(meant(&method, &path.parse().unwrap(), &HeaderMap::new()), is, "{method} {path}");
        }
    }

    #[test]
    fn what_is_served_is_named() {
        let failure = not_served(&Method::POST, &"/v1/embeddings".parse().unwrap());
        assert_eq!(failure.status, 404);
        assert!(failure.message.starts_with("POST /v1/embeddings is not served here; what is: POST /v1/chat/completions, "));
    }

    #[test]
    fn a_key_in_the_path_is_not_told() {
        let uri = "/rollouts/glr_secret/v1/embeddings".parse().unwrap();
        for failure in [not_served(&Method::POST, &uri), not_taken(&Method::GET, &uri, "POST")] {
            assert!(failure.message.contains("/rollouts/KEY/v1/embeddings "), "{}", failure.message);
            assert!(!failure.message.contains("glr_secret"), "{}", failure.message);
        }
    }
}
