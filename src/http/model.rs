//! The endpoints that harnesses call: each wire's paths.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;

use crate::call::{Failure, FailureKind};
use crate::ids::{RolloutId, RolloutKey};
use crate::proxy::{Answered, Identity, Live, conversation_of, count, handle, marks_of, place};
use crate::telemetry::now_ms;
use crate::wire::{self, Target, Wire};

use super::auth::bearer;
use super::compress::{self, Coding};
use super::family::{not_taken, refuse};
use super::models::asker;
use super::serve::Http;
use super::{archive, body};

pub(super) const CALL_HEADER: HeaderName = HeaderName::from_static("x-gleaner-call");
const ROLLOUT_HEADER: &str = "x-gleaner-rollout";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// The rollout whose unix socket a connection came by.
#[derive(Clone, Copy)]
pub(super) struct Socket(pub RolloutId);

/// The key in the path, if there is one.
#[derive(Clone, Deserialize)]
pub(super) struct PathKey {
    pub key: Option<String>,
}

/// The model endpoints, under every base URL that clients make of ours.
pub(super) fn routes() -> Router<Http> {
    let mut router = Router::new();
    for wire in wire::ALL {
        for rollout in ["", "/rollouts/{key}"] {
            for base in wire.bases() {
                router = archive::add(router, *wire, &format!("{rollout}{base}"));
            }
            for (base, path) in wire.bases().iter().flat_map(|base| wire.paths().iter().map(move |path| (base, path))) {
                let base = format!("{rollout}{base}");
                router = router.route(&format!("{base}{path}"), call_route(*wire, base.matches('/').count()));
            }
        }
    }
    // What a client of a rollout's base URL finds there, as at the server's own root.
    router.route("/rollouts/{key}", get(|| async { "gleaner\n" }))
}

/// Serves a wire's calls; `base` is the number of the path's segments before the wire's own.
fn call_route(wire: &'static dyn Wire, base: usize) -> axum::routing::MethodRouter<Http> {
    let call = move |State(http): State<Http>, Path(path): Path<PathKey>, socket: Option<Extension<Socket>>, request: Request| async move {
        let (parts, body) = request.into_parts();
        match placed(&http, &parts, path.key.as_deref(), socket).await {
            Ok(rollout) => {
                if let Some(failure) = rollout.barred() {
                    return refuse(wire, &failure);
                }
                let target = target(&parts.uri, base);
                let body = body::read(&parts.headers, body, http.body_limit).await;
                if wire.asks_count(Target::read(&target)) {
                    return counted(wire, count(&http.app, wire, &rollout, &target, body).await);
                }
                let coding = compress::wanted(&http, &parts.headers);
                let marks = marks_of(|name| text(&parts, name), rollout.signature());
                respond(handle(&http.app, wire, rollout, &target, marks, body).await, coding).await
            }
            Err(failure) => refuse(wire, &failure),
        }
    };
    let other = move |request: Request| async move {
        if request.headers().contains_key(header::UPGRADE) {
            let message = "websockets are not served here; post the request instead";
            return refuse(wire, &Failure::new(FailureKind::UpgradeRequired, message));
        }
        let allow = [(header::ALLOW, HeaderValue::from_static("POST, OPTIONS"))];
        if request.method() == Method::OPTIONS {
            return (StatusCode::NO_CONTENT, allow).into_response();
        }
        (allow, refuse(wire, &not_taken(request.method(), request.uri(), "POST"))).into_response()
    };
    post(call).fallback(other)
}

/// Where a request was posted, below the base URL, without a key that the query may have.
pub(super) fn target(uri: &Uri, base: usize) -> String {
    let path = uri.path();
    let start = path.match_indices('/').nth(base).map_or(path.len(), |(at, _)| at);
    let fields = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("key="));
    let query = fields.collect::<Vec<_>>().join("&");
    let path = &path[start..];
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Answers with a body of JSON.
pub(super) fn whole(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}

/// Answers a request that asked how many tokens its prompt has.
fn counted(wire: &dyn Wire, counted: Result<u64, Failure>) -> Response {
    match counted {
        Ok(tokens) => whole(wire.count(tokens)),
        Err(failure) => refuse(wire, &failure),
    }
}

/// Finds a call's rollout, before its body is read.
async fn placed(http: &Http, parts: &Parts, path: Option<&str>, socket: Option<Extension<Socket>>) -> Result<Arc<Live>, Failure> {
    if http.app.draining.is_cancelled() {
        return Err(Failure::new(FailureKind::Draining, "the server is shutting down and takes no new calls"));
    }
    let conversation = || conversation_of(|name| text(parts, name), now_ms());
    let conversation: Option<&(dyn Fn() -> String + Sync)> = if http.open { Some(&conversation) } else { None };
    place(&http.app, Identity { conversation, ..identity(http, parts, path, socket)? }).await
}

/// Whose replies a caller asks for: as [`asker`], or of the conversation that its calls would belong to.
pub(super) async fn reader(
    http: &Http,
    parts: &Parts,
    path: Option<&str>,
    socket: Option<Extension<Socket>>,
) -> Result<Option<Arc<Live>>, Failure> {
    match asker(http, parts, path, socket).await? {
        None => http.app.rollouts.of_conversation(&conversation_of(|name| text(parts, name), now_ms())).await,
        rollout => Ok(rollout),
    }
}

/// Reads what a request says of where it belongs.
pub(super) fn identity<'a>(
    http: &Http,
    parts: &'a Parts,
    path: Option<&'a str>,
    socket: Option<Extension<Socket>>,
) -> Result<Identity<'a>, Failure> {
    // Rollout keys need no escapes; what has one is no rollout's key.
    let query = parts.uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("key=")));
    let keys = [bearer(&parts.headers), text(parts, "x-api-key"), text(parts, "x-goog-api-key"), query];
    let keys: Vec<&str> = keys.into_iter().flatten().collect();
    let named = text(parts, ROLLOUT_HEADER);
    // A rollout's own key names one too, and the two must agree.
    let may_name = |key: &&str| http.client_keys.has(key) || RolloutKey::parse(key).is_some();
    if named.is_some() && !keys.iter().any(may_name) {
        let message = "x-gleaner-rollout needs a client's key beside it ([auth] client_keys_file)";
        return Err(Failure::new(FailureKind::Unauthorized, message));
    }
    Ok(Identity { socket: socket.map(|Extension(Socket(id))| id), path, keys, named, conversation: None })
}

fn text<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts.headers.get(name).and_then(|value| value.to_str().ok())
}

async fn respond(mut answered: Answered, coding: Option<Coding>) -> Response {
    let mut packed = None;
    if let Some((coding, whole)) = coding.zip(answered.body.bytes_mut().filter(|whole| whole.len() >= compress::SMALLEST)) {
        packed = compress::pack(whole, coding).await.map(|bytes| {
            answered.length = Some(bytes.len());
            *whole = bytes;
            coding
        });
    }
    let mut response = Response::new(Body::from_stream(answered.body));
    *response.status_mut() = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answered.content_type));
    compress::say(packed, coding.is_some() && answered.length.is_some(), headers);
    match answered.length {
        Some(length) => headers.insert(header::CONTENT_LENGTH, length.into()),
        None => headers.insert(header::CACHE_CONTROL, NO_CACHE),
    };
    if let Some(seconds) = answered.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Ok(id) = HeaderValue::from_str(&answered.call_id.to_string()) {
        headers.insert(CALL_HEADER, id);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::target;

    #[test]
    fn a_target_begins_after_the_base_and_leaves_out_the_key() {
        let read = |uri: &str, base| target(&uri.parse().unwrap(), base);
        assert_eq!(read("/chat/completions", 0), "/chat/completions");
        assert_eq!(read("/rollouts/glr_x/v1/messages?beta=true", 3), "/messages?beta=true");
        assert_eq!(read("/v1beta/models/a/b:generateContent?key=glr_x&alt=sse", 1), "/models/a/b:generateContent?alt=sse");
    }
}
