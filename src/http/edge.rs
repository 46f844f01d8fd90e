//! What every request and answer gets on its way in and out, whoever serves it: [`pass`] is the whole of it, straight down.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use crate::call::{Failure, FailureKind};
use crate::wire::percent_decoded;

use super::compress;
use super::family::{Family, meant, refuse};
use super::model::CALL_HEADER;
use super::problem::Problem;
use super::serve::Http;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's SDKs read it where the others read [`REQUEST_ID`].
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
/// What a page of an allowed site may read of an answer beside its body.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, request-id, x-gleaner-call, retry-after");

/// Puts the path in order, sees to what needs no route, and finishes the answer: coding, ids, leave for pages of other sites.
pub(super) async fn pass(State(http): State<Http>, mut request: Request, next: Next) -> Response {
    if let Some(path) = tidy(request.uri().path()) {
        *request.uri_mut() = with_path(request.uri(), &path);
    }
    let family = Family::of(request.uri(), request.headers());
    let id = request.headers().get(REQUEST_ID).filter(|id| (1..=128).contains(&id.len())).cloned();
    let coding = compress::wanted(&http, request.headers()).filter(|_| request.method() != Method::HEAD);
    let origin = allowed_origin(&http, &request);
    let mut response = if !is_text(request.uri().path()) {
        unreadable(&request, family)
    } else if let (Some(_), true) = (&origin, is_preflight(&request)) {
        preflight(request.headers())
    } else {
        next.run(request).await
    };
    if let Some(coding) = coding {
        response = compress::answer(response, coding).await;
    }
    let headers = response.headers_mut();
    name(headers, family, id);
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// The path without what base URLs with a slash at their end make of it; `None` if it is in order.
fn tidy(path: &str) -> Option<String> {
    if !path.contains("//") && (path.len() <= 1 || !path.ends_with('/')) {
        return None;
    }
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    Some(format!("/{}", segments.join("/")))
}

fn with_path(uri: &Uri, path: &str) -> Uri {
    let target = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    // It was a part of an address before.
    target.parse().unwrap_or_else(|_| uri.clone())
}

/// Whether a path is UTF-8 once its escapes are undone.
fn is_text(path: &str) -> bool {
    !path.contains('%') || std::str::from_utf8(&percent_decoded(path)).is_ok()
}

fn unreadable(request: &Request, family: Family) -> Response {
    let message = "the path is no UTF-8 once its percent-escapes are undone";
    if meant(request.method(), request.uri(), request.headers()) {
        refuse(family.wire(), &Failure::new(FailureKind::Invalid, message))
    } else {
        Problem::invalid(message).into_response()
    }
}

/// Names the answer: as the client named its request, else after its call, else anew.
fn name(headers: &mut HeaderMap, family: Family, asked: Option<HeaderValue>) {
    let call = headers.get(CALL_HEADER).and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let own = || HeaderValue::from_str(&format!("req_{}", call.unwrap_or_else(Uuid::now_v7).simple())).ok();
    if family == Family::Anthropic
        && let Some(id) = own()
    {
        headers.insert(ANTHROPIC_ID, id);
    }
    if let Some(id) = asked.or_else(own) {
        headers.insert(REQUEST_ID, id);
    }
}

/// The origin of a page that may call the model endpoints (`[server] cors_origins`).
fn allowed_origin(http: &Http, request: &Request) -> Option<HeaderValue> {
    if http.cors_origins.is_empty() || request.uri().path().starts_with("/api/") {
        return None;
    }
    let origin = request.headers().get(header::ORIGIN)?;
    let named = |allowed: &String| allowed == "*" || origin == allowed.as_str();
    http.cors_origins.iter().any(named).then(|| origin.clone())
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Lets an allowed page send what it asks to send; each request is still judged by its key.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_too_many_are_left_out() {
        for (path, tidied) in [
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("//v1//messages", Some("/v1/messages")),
            ("//", Some("/")),
            ("/", None),
            ("/v1/models", None),
        ] {
            assert_eq!(tidy(path).as_deref(), tidied, "{path}");
        }
        assert_eq!(with_path(&"//v1/messages/?beta=true&x=//".parse().unwrap(), "/v1/messages"), "/v1/messages?beta=true&x=//");
    }

    #[test]
    fn escapes_that_make_no_text_are_seen() {
        for (path, text) in
            [("/a%20b", true), ("/%C3%A9", true), ("/%ff/v1", false), ("/%c3", false), ("/%zz%", true), ("/%", true)]
        {
            assert_eq!(is_text(path), text, "{path}");
        }
    }
}
