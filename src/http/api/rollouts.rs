//! Rollouts: making, listing and reading them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::batches::known_policy;
use super::extract::{Body, Id, Params, header_text, idempotency_key, named, page_size};
use super::view::RolloutView;
use super::{built, known, names};
use crate::call::Sampling;
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::{RolloutId, RolloutKey};
use crate::proxy::App;
use crate::store::{NewRollout, Purpose, Rollout, RolloutFilter};
use crate::telemetry::now_ms;

/// A rollout to be made; every field may be left out.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CreateRollout {
    task_id: Option<String>,
    /// Rollouts of one task at one time; GRPO's group.
    group_id: Option<String>,
    /// How many rollouts the group will have.
    #[schema(minimum = 1)]
    group_size: Option<u32>,
    /// `train` where a group is given, else `record`, if left out.
    #[schema(value_type = Option<names::Purpose>)]
    purpose: Option<Purpose>,
    harness: Option<String>,
    /// A policy's name in the config.
    policy: Option<String>,
    /// Pinned for every call, whatever the harness asks for.
    #[schema(value_type = Option<names::Sampling>)]
    sampling: Option<Sampling>,
    /// Kept with the rollout and copied to its samples.
    #[schema(value_type = Option<Object>)]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seconds without a call after which the rollout ends as `cancelled`.
    #[schema(minimum = 1)]
    ttl_s: Option<u64>,
}

/// A rollout that was made, and how a harness reaches it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedRollout {
    /// The rollout's secret: a harness may send it as its API key.
    key: String,
    /// Where the harness's base URL points to, without `/v1`. It holds the key, so that any other API key will do.
    #[schema(example = "http://127.0.0.1:8080/rollouts/glr_6f1c")]
    base_url: String,
    #[serde(flatten)]
    rollout: RolloutView,
}

/// Makes a rollout.
///
/// With an `Idempotency-Key`, a repeat gives the rollout that the first made, with 200; the key with another body is 422.
#[utoipa::path(
    post, path = "/rollouts", tag = "rollouts", request_body = CreateRollout,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters that name this request; a repeat makes no second rollout")),
    responses(
        (status = 201, description = "The rollout", body = CreatedRollout),
        (status = 200, description = "The rollout that an earlier request with this Idempotency-Key made", body = CreatedRollout),
        (status = 400, description = "An unknown field, a wrong type, or an unknown policy", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The Idempotency-Key was used with another body", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Body(body): Body<CreateRollout>,
) -> Result<(StatusCode, Json<CreatedRollout>), Problem> {
    let host = header_text(&headers, header::HOST.as_str())?
        .ok_or_else(|| Problem::invalid("the request has no Host header, which base_url is made from"))?;
    let new = body.into_new(idempotency_key(&headers)?)?;
    known_policy(&app, new.policy.as_deref())?;
    let rollout = app.rollouts.create(new.clone()).await?;
    let status = if rollout.id == new.id {
        StatusCode::CREATED
    } else if same_request(&new, &rollout) {
        StatusCode::OK
    } else {
        return Err(Problem::KeyReused(format!("the Idempotency-Key was used for rollout {} with another body", rollout.id)));
    };
    let key = rollout.key.expose().to_owned();
    let base_url = format!("http://{host}/rollouts/{key}");
    Ok((status, Json(CreatedRollout { key, base_url, rollout: RolloutView::new(&rollout, None) })))
}

impl CreateRollout {
    fn into_new(self, idempotency_key: Option<String>) -> Result<NewRollout, Problem> {
        if self.group_size == Some(0) {
            return Err(Problem::invalid("group_size: a group has at least 1 rollout"));
        }
        if self.ttl_s == Some(0) {
            return Err(Problem::invalid("ttl_s: a rollout lives at least 1 second"));
        }
        let default = if self.group_id.is_some() { Purpose::Train } else { Purpose::Record };
        Ok(NewRollout {
            id: RolloutId::generate(),
            key: RolloutKey::generate(),
            created_at: now_ms(),
            purpose: self.purpose.unwrap_or(default),
            task_id: self.task_id,
            group_id: self.group_id,
            group_size: self.group_size,
            harness: self.harness,
            policy: self.policy,
            sampling: self.sampling.unwrap_or_default(),
            metadata: self.metadata.unwrap_or_default(),
            ttl_s: self.ttl_s,
            idempotency_key,
            conversation: None,
            index: None,
            run: None,
        })
    }
}

/// Whether the kept rollout is what `new` asks for.
fn same_request(new: &NewRollout, kept: &Rollout) -> bool {
    // Numbers are compared as they read back from JSON, since the kept ones went through it.
    let read_back = |sampling: &Sampling, metadata: &serde_json::Map<_, _>| {
        let text = serde_json::json!([sampling, metadata]).to_string();
        serde_json::from_str::<serde_json::Value>(&text).ok()
    };
    (new.purpose, &new.task_id, &new.group_id, new.group_size) == (kept.purpose, &kept.task_id, &kept.group_id, kept.group_size)
        && (&new.harness, &new.policy, new.ttl_s) == (&kept.harness, &kept.policy, kept.ttl_s)
        && read_back(&new.sampling, &new.metadata) == read_back(&kept.sampling, &kept.metadata)
}

/// Which rollouts to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct ListRollouts {
    /// `open` or `finished`.
    #[param(value_type = Option<names::RolloutStatus>)]
    status: Option<String>,
    group_id: Option<String>,
    task_id: Option<String>,
    harness: Option<String>,
    /// Those that were run for this batch, replaced ones included.
    batch_id: Option<String>,
    #[param(value_type = Option<names::Outcome>)]
    outcome: Option<String>,
    #[param(value_type = Option<names::Purpose>)]
    purpose: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// Clamped to 1..1000.
    #[param(default = 100)]
    limit: Option<i64>,
}

/// A page of rollouts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RolloutPage {
    rollouts: Vec<RolloutView>,
    /// Give it as `after` to read on; null on the last page.
    next: Option<String>,
}

/// Lists rollouts, oldest first.
#[utoipa::path(
    get, path = "/rollouts", tag = "rollouts", params(ListRollouts),
    responses(
        (status = 200, description = "A page", body = RolloutPage),
        (status = 400, description = "An unknown or wrong parameter", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Params(params): Params<ListRollouts>,
) -> Result<Json<RolloutPage>, Problem> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let size = page_size(params.limit);
    let filter = RolloutFilter {
        status: named("status", params.status.as_deref())?,
        outcome: named("outcome", params.outcome.as_deref())?,
        purpose: named("purpose", params.purpose.as_deref())?,
        after: named("after", params.after.as_deref())?,
        group_id: given(params.group_id),
        task_id: given(params.task_id),
        harness: given(params.harness),
        batch: named("batch_id", params.batch_id.as_deref())?,
        // One more than the page holds tells whether there is another page.
        limit: size + 1,
    };
    if let Some(after) = filter.after
        && app.store.rollout(after).await?.is_none()
    {
        return Err(Problem::invalid(format!("after: there is no rollout {after}; give the next of the page before")));
    }
    let mut rollouts = app.store.rollouts(&filter).await?;
    let more = rollouts.len() > size as usize;
    rollouts.truncate(size as usize);
    let next = rollouts.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(Json(RolloutPage { rollouts: rollouts.iter().map(|rollout| RolloutView::new(rollout, None)).collect(), next }))
}

/// Reads one rollout.
#[utoipa::path(
    get, path = "/rollouts/{id}", tag = "rollouts", params(("id" = String, Path, description = "The rollout's id")),
    responses(
        (status = 200, description = "The rollout", body = RolloutView),
        (status = 404, description = "There is no such rollout", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(State(app): State<Arc<App>>, Id(id): Id<RolloutId>) -> Result<Json<RolloutView>, Problem> {
    let rollout = known(app.store.rollout(id).await?, "rollout", id)?;
    let built = built(&app, &rollout).await?;
    Ok(Json(RolloutView::new(&rollout, Some(built.drift))))
}
