//! The policies and how they stand.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::Body;
use super::names;
use crate::call::VersionSource;
use crate::http::problem::{Problem, ProblemDocument};
use crate::policy::{PauseMode, Policy, PolicyUpdate};
use crate::proxy::App;
use crate::store::Write;

/// A named model server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PolicyView {
    #[serde(flatten)]
    state: StateView,
    /// What was found out of the server: kind, address, model, version.
    description: String,
    /// Whether it can serve calls now.
    ready: bool,
    /// What stands in the way.
    reason: Option<String>,
}

/// How a policy stands, without asking its server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StateView {
    name: String,
    /// The server's address, without `/v1`.
    url: String,
    /// The weights that it holds, as far as is known.
    version: Option<String>,
    /// Grows with each change of the weights.
    policy_seq: i64,
    #[schema(value_type = Option<names::VersionSource>)]
    version_source: Option<VersionSource>,
    /// Calls wait until it is no longer paused, up to the policy's `pause_s`.
    paused: bool,
    /// What becomes of replies that run while it is paused.
    #[schema(value_type = Option<names::PauseMode>)]
    mode: Option<PauseMode>,
    /// Replies that run.
    in_flight: usize,
    /// It is paused and no reply runs.
    drained: bool,
}

impl StateView {
    fn of(policy: &dyn Policy) -> Self {
        let state = policy.state();
        Self {
            name: policy.name().to_owned(),
            url: state.url,
            version: state.version.version,
            policy_seq: state.version.seq,
            version_source: state.version.source,
            paused: state.paused.is_some(),
            mode: state.paused,
            in_flight: state.in_flight,
            drained: state.paused.is_some() && state.in_flight == 0,
        }
    }
}

/// All policies.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Policies {
    policies: Vec<PolicyView>,
    /// Always null: the list is whole.
    next: Option<String>,
}

/// What to change of a policy; what is not given stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// The weights that it has from now on; `policy_seq` grows if they are others.
    version: Option<String>,
    /// Lets calls wait, or lets them go.
    paused: Option<bool>,
    /// Where calls go from now on; what runs goes on where it is.
    url: Option<String>,
    /// What becomes of replies that run while it is paused: they run to their end (`drain`), are broken off and go on from the tokens that were
    /// sampled (`resume`, with `tokens = "exact"` only), or run on while the server changes its weights (`in_place`).
    #[schema(value_type = Option<names::PauseMode>)]
    mode: Option<PauseMode>,
}

/// Lists the policies, asking each whether it is ready.
#[utoipa::path(get, path = "/policies", tag = "policies", responses((status = 200, description = "All of them", body = Policies)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Policies>, Problem> {
    let views = app.policies.iter().map(|policy| async move {
        let reason = policy.ready().await.err().map(|failure| failure.message);
        // Asking may find out what the server is, so it is described afterwards.
        PolicyView { state: StateView::of(&**policy), description: policy.describe(), ready: reason.is_none(), reason }
    });
    Ok(Json(Policies { policies: join_all(views).await, next: None }))
}

/// Changes a policy while calls run: a trainer pauses it, waits until it is drained, loads new weights, and lets calls go on with the new version.
/// Asking again with an empty object tells how it stands.
#[utoipa::path(put, path = "/policies/{name}", tag = "policies", params(("name" = String, Path, description = "The policy's name in the config")),
    request_body = Change, responses(
        (status = 200, description = "How it stands now", body = StateView),
        (status = 400, description = "An unknown field, or what can't be", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such policy", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The store can't be written now", body = ProblemDocument, content_type = "application/problem+json"),
    ))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Body(change): Body<Change>,
) -> Result<Json<StateView>, Problem> {
    let policy = app.policies.get(&name).ok_or_else(|| Problem::not_found(format!("there is no policy {name}")))?;
    let Change { version, paused, url, mode } = change;
    policy.update(PolicyUpdate { version, paused, mode, url }).map_err(|failure| Problem::invalid(failure.message))?;
    let version = policy.state().version;
    app.recorder.write(Write::PolicyVersion { policy: name, version }).await?;
    Ok(Json(StateView::of(&**policy)))
}
