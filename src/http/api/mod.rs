//! The API under `/api/v1`, for people, trainers and scripts.

use std::sync::Arc;

use axum::Router;

use crate::proxy::App;

/// The API's routes, below `/api/v1`.
#[must_use]
pub fn routes() -> Router<Arc<App>> {
    Router::new()
}
