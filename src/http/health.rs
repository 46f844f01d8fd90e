//! Whether the process lives, whether it can serve, and its metrics.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;

use super::serve::Http;

/// `/` (GET and HEAD), `/healthz`, `/readyz` and `/metrics`.
pub(super) fn routes() -> Router<Http> {
    Router::new()
        .route("/", get(root))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(|State(http): State<Http>| async move { http.metrics.render() }))
}

async fn root() -> &'static str {
    "gleaner\n"
}

/// 200 if every policy can serve and the store can be read, else 503 with what stands in the way.
async fn ready(State(http): State<Http>) -> Response {
    let mut reasons = Vec::new();
    if http.app.draining.is_cancelled() {
        reasons.push("the server is shutting down".to_owned());
    }
    for policy in http.app.policies.iter() {
        if let Err(failure) = policy.ready().await {
            reasons.push(format!("policy {}: {failure}", policy.name()));
        }
    }
    if let Err(error) = http.app.store.rollouts(&crate::store::RolloutFilter { limit: 1, ..Default::default() }).await {
        reasons.push(error.to_string());
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(json!({"ready": reasons.is_empty(), "reasons": reasons}))).into_response()
}
