//! The endpoints that harnesses call: each wire's path, and the models.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use serde::Deserialize;

use crate::call::{Failure, FailureKind};
use crate::ids::{RolloutId, RolloutKey};
use crate::proxy::{Answered, Identity, Live, conversation_of, count, handle, named, nameless, place};
use crate::telemetry::now_ms;
use crate::wire::{self, Target, Wire};

use super::auth::bearer;
use super::body;
use super::serve::Http;

const CALL_HEADER: HeaderName = HeaderName::from_static("x-gleaner-call");
const ROLLOUT_HEADER: &str = "x-gleaner-rollout";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// The rollout whose unix socket a connection came by.
#[derive(Clone, Copy)]
pub(super) struct Socket(pub RolloutId);

/// The key in the path, if there is one.
#[derive(Clone, Deserialize)]
struct PathKey {
    key: Option<String>,
}

/// The model endpoints, under every base URL that clients make of ours.
pub(super) fn routes() -> Router<Http> {
    let mut router = Router::new();
    for wire in wire::ALL {
        for rollout in ["", "/rollouts/{key}"] {
            for (base, path) in wire.bases().iter().flat_map(|base| wire.paths().iter().map(move |path| (base, path))) {
                let base = format!("{rollout}{base}");
                router = router.route(&format!("{base}{path}"), call_route(*wire, base.matches('/').count()));
            }
        }
    }
    for base in ["", "/v1", "/rollouts/{key}", "/rollouts/{key}/v1"] {
        router = router.route(&format!("{base}/models"), get(models)).route(&format!("{base}/models/{{*model}}"), get(model));
    }
    router
}

/// Serves a wire's calls; `base` is the number of the path's segments before the wire's own.
fn call_route(wire: &'static dyn Wire, base: usize) -> axum::routing::MethodRouter<Http> {
    let call = move |State(http): State<Http>, Path(path): Path<PathKey>, socket: Option<Extension<Socket>>, request: Request| async move {
        let (parts, body) = request.into_parts();
        match placed(&http, &parts, path.key.as_deref(), socket).await {
            Ok(rollout) => {
                let target = target(&parts.uri, base);
                let body = body::read(&parts.headers, body, http.body_limit).await;
                if wire.asks_count(Target::read(&target)) {
                    return counted(wire, count(&http.app, wire, &rollout, &target, body).await);
                }
                respond(handle(&http.app, wire, rollout, &target, body).await)
            }
            Err(failure) => refuse(wire, &failure),
        }
    };
    let other = move |request: Request| async move {
        let failure = if request.headers().contains_key(header::UPGRADE) {
            Failure::new(FailureKind::UpgradeRequired, "websockets are not served here; post the request instead")
        } else {
            Failure::new(FailureKind::MethodNotAllowed, format!("{} takes POST, not {}", request.uri().path(), request.method()))
        };
        refuse(wire, &failure)
    };
    post(call).fallback(other)
}

/// Where a request was posted, below the base URL, without a key that the query may have.
fn target(uri: &Uri, base: usize) -> String {
    let path = uri.path();
    let start = path.match_indices('/').nth(base).map_or(path.len(), |(at, _)| at);
    let fields = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("key="));
    let query = fields.collect::<Vec<_>>().join("&");
    let path = &path[start..];
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Answers a request that asked how many tokens its prompt has.
fn counted(wire: &dyn Wire, counted: Result<u64, Failure>) -> Response {
    match counted {
        Ok(tokens) => ([(header::CONTENT_TYPE, JSON)], wire.count(tokens)).into_response(),
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

/// Whose models a caller asks for; who names no rollout opens none by asking.
async fn asker(
    http: &Http,
    parts: &Parts,
    path: Option<&str>,
    socket: Option<Extension<Socket>>,
) -> Result<Option<Arc<Live>>, Failure> {
    match named(&http.app, identity(http, parts, path, socket)?).await? {
        None if !http.open => Err(nameless()),
        rollout => Ok(rollout),
    }
}

/// Reads what a request says of where it belongs.
fn identity<'a>(
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

fn respond(answered: Answered) -> Response {
    let mut response = Response::new(Body::from_stream(answered.body));
    *response.status_mut() = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answered.content_type));
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

/// Answers a request that became no call.
fn refuse(wire: &dyn Wire, failure: &Failure) -> Response {
    tracing::info!(wire = wire.name(), status = failure.status, reason = %failure, "refused a request");
    metrics::counter!("gleaner_refused_total", "status" => failure.status.to_string()).increment(1);
    let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, [(header::CONTENT_TYPE, JSON)], wire.failure(failure)).into_response();
    let headers = response.headers_mut();
    match failure.kind {
        FailureKind::UpgradeRequired => {
            headers.insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
        }
        FailureKind::MethodNotAllowed => {
            headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        _ => {}
    }
    if let Some(seconds) = failure.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// The models of the policy that the caller's calls go to.
async fn models(
    State(http): State<Http>,
    Path(path): Path<PathKey>,
    socket: Option<Extension<Socket>>,
    request: Request,
) -> Response {
    match listed(&http, &request.into_parts().0, path.key.as_deref(), socket).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, JSON)], bytes).into_response(),
        Err(failure) => refuse(wire::ALL[0], &failure),
    }
}

/// One model; any name is accepted, as calls accept any.
async fn model(
    State(http): State<Http>,
    Path(path): Path<ModelPath>,
    socket: Option<Extension<Socket>>,
    request: Request,
) -> Response {
    match asker(&http, &request.into_parts().0, path.key.as_deref(), socket).await {
        Ok(_) => axum::Json(serde_json::json!({"id": path.model, "object": "model", "created": 0, "owned_by": "gleaner"}))
            .into_response(),
        Err(failure) => refuse(wire::ALL[0], &failure),
    }
}

#[derive(Deserialize)]
struct ModelPath {
    key: Option<String>,
    model: String,
}

async fn listed(http: &Http, parts: &Parts, path: Option<&str>, socket: Option<Extension<Socket>>) -> Result<Bytes, Failure> {
    let rollout = asker(http, parts, path, socket).await?;
    http.app.policies.choose(rollout.as_deref().and_then(Live::policy), "").models().await
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
