//! The policies and how they stand.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use futures::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::problem::Problem;
use crate::proxy::App;

/// A named model server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PolicyView {
    name: String,
    /// What was found out of the server: kind, address, model, version.
    description: String,
    /// Whether it can serve calls now.
    ready: bool,
    /// What stands in the way.
    reason: Option<String>,
}

/// All policies.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Policies {
    policies: Vec<PolicyView>,
    /// Always null: the list is whole.
    next: Option<String>,
}

/// Lists the policies, asking each whether it is ready.
#[utoipa::path(get, path = "/policies", tag = "policies", responses((status = 200, description = "All of them", body = Policies)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Policies>, Problem> {
    let views = app.policies.iter().map(|policy| async move {
        let reason = policy.ready().await.err().map(|failure| failure.message);
        // Asking may find out what the server is, so it is described afterwards.
        PolicyView { name: policy.name().to_owned(), description: policy.describe(), ready: reason.is_none(), reason }
    });
    Ok(Json(Policies { policies: join_all(views).await, next: None }))
}
