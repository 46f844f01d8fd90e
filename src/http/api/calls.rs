//! Calls: their full records and their raw bytes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use http::{HeaderName, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Id, Params, named, page_size};
use super::known;
use super::view::{CallView, ImageView};
use crate::call::{Call, CallRecord, Image, Prompt, Raw, RawKind, grouped_name};
use crate::export::asked;
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::{CallId, RolloutId};
use crate::proxy::App;
use crate::store::{Rollout, Store, StoreError};

/// Where to go on in a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the page before.
    after: Option<String>,
    /// Clamped to 1..1000.
    #[param(default = 100)]
    limit: Option<i64>,
}

/// A page of calls.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallPage {
    calls: Vec<CallView>,
    /// Give it as `after` to read on; null on the last page.
    next: Option<String>,
}

/// Lists a rollout's calls in the order in which they began, each whole.
#[utoipa::path(
    get, path = "/rollouts/{id}/calls", tag = "calls", params(("id" = String, Path, description = "The rollout's id"), Page),
    responses(
        (status = 200, description = "A page", body = CallPage),
        (status = 400, description = "An unknown or wrong parameter", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such rollout", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Id(id): Id<RolloutId>,
    Params(page): Params<Page>,
) -> Result<Json<CallPage>, Problem> {
    let after: Option<CallId> = named("after", page.after.as_deref())?;
    let size = page_size(page.limit) as usize;
    let rollout = known(app.store.rollout(id).await?, "rollout", id)?;
    let (records, next) = cut(app.store.calls(id).await?, after, size)?;
    let classes = crate::export::classes(app.store.as_ref(), &rollout).await?;
    let mut calls = Vec::with_capacity(records.len());
    for record in records {
        let class = classes.get(&record.id).copied().unwrap_or_default();
        calls.push(whole(app.store.as_ref(), record, &rollout).await?.classed(class));
    }
    Ok(Json(CallPage { calls, next: next.map(|id| id.to_string()) }))
}

/// The page of `size` calls that follows `after`, and the cursor of the next one.
fn cut(calls: Vec<CallRecord>, after: Option<CallId>, size: usize) -> Result<(Vec<CallRecord>, Option<CallId>), Problem> {
    let start = match after {
        None => 0,
        Some(after) => {
            let place = calls.iter().position(|call| call.id == after);
            1 + place.ok_or_else(|| Problem::invalid(format!("after: the rollout has no call {after}")))?
        }
    };
    let more = calls.len() - start > size;
    let page: Vec<CallRecord> = calls.into_iter().skip(start).take(size).collect();
    let next = page.last().filter(|_| more).map(|call| call.id);
    Ok((page, next))
}

/// Reads one call's full record.
#[utoipa::path(
    get, path = "/calls/{id}", tag = "calls", params(("id" = String, Path, description = "The call's id")),
    responses(
        (status = 200, description = "The call", body = CallView),
        (status = 404, description = "There is no such call", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(State(app): State<Arc<App>>, Id(id): Id<CallId>) -> Result<Json<CallView>, Problem> {
    let record = known(app.store.call(id).await?, "call", id)?;
    let rollout = known(app.store.rollout(record.rollout_id).await?, "rollout", record.rollout_id)?;
    Ok(Json(whole(app.store.as_ref(), record, &rollout).await?))
}

/// A call's record with its request's messages and tools.
///
/// # Errors
/// If the store fails.
pub async fn whole(store: &dyn Store, record: CallRecord, rollout: &Rollout) -> Result<CallView, StoreError> {
    let asked = asked(store, &record).await?;
    let mut view = CallView::new(record, rollout);
    view.prompt = asked.as_ref().and_then(|call| call.prompt.as_ref()).map(|prompt| match prompt {
        Prompt::Text(text) => Raw::from_json(text.literal().to_vec()),
        Prompt::Ids(ids) => Raw::from_value(ids),
    });
    (view.messages, view.tools) = asked.as_ref().and_then(conversation).unzip();
    let images = Image::of_messages(view.messages.as_deref().unwrap_or_default());
    view.images = images.into_iter().map(ImageView::from).collect();
    Ok(view)
}

/// The messages and tools of a call in chat completions' form.
fn conversation(call: &Call) -> Option<(Vec<Raw>, Vec<Raw>)> {
    let messages = call.messages.iter().map(|message| {
        let mut out = Vec::new();
        message.write_chat(&mut out, "reasoning_content", &|call| grouped_name(call.namespace.as_ref(), &call.name));
        out
    });
    let tools = call.tools.iter().map(|tool| {
        let mut out = Vec::new();
        tool.write_chat(&mut out, &grouped_name(tool.namespace.as_ref(), &tool.name));
        out
    });
    let read = |json: Vec<u8>| serde_json::from_slice(&json).ok();
    Some((messages.map(read).collect::<Option<_>>()?, tools.map(read).collect::<Option<_>>()?))
}

/// The raw bytes of a call, as JSON where they are.
type RawAnswer = Result<([(HeaderName, &'static str); 2], Bytes), Problem>;

/// The request as the client sent it, its content coding undone.
#[utoipa::path(
    get, path = "/calls/{id}/request", tag = "calls", params(("id" = String, Path, description = "The call's id")),
    responses(
        (status = 200, description = "The bytes; `application/json` where they are JSON", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such call", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn request(State(app): State<Arc<App>>, Id(id): Id<CallId>) -> RawAnswer {
    raw(&app, id, RawKind::Request).await
}

/// What went to the policy; empty if nothing did.
#[utoipa::path(
    get, path = "/calls/{id}/upstream", tag = "calls", params(("id" = String, Path, description = "The call's id")),
    responses(
        (status = 200, description = "The bytes; `application/json` where they are JSON", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such call", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn upstream(State(app): State<Arc<App>>, Id(id): Id<CallId>) -> RawAnswer {
    raw(&app, id, RawKind::Upstream).await
}

/// What came back from the policy; empty if nothing did.
#[utoipa::path(
    get, path = "/calls/{id}/response", tag = "calls", params(("id" = String, Path, description = "The call's id")),
    responses(
        (status = 200, description = "The bytes; `application/json` where they are JSON", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such call", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn response(State(app): State<Arc<App>>, Id(id): Id<CallId>) -> RawAnswer {
    raw(&app, id, RawKind::Response).await
}

/// The server's answer that gave the prompt's ids, where that was a question of its own; else empty.
#[utoipa::path(
    get, path = "/calls/{id}/prompt", tag = "calls", params(("id" = String, Path, description = "The call's id")),
    responses(
        (status = 200, description = "The bytes; `application/json` where they are JSON", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such call", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn prompt(State(app): State<Arc<App>>, Id(id): Id<CallId>) -> RawAnswer {
    raw(&app, id, RawKind::Prompt).await
}

async fn raw(app: &App, id: CallId, kind: RawKind) -> RawAnswer {
    let bytes = known(app.store.raw(id, kind).await?, "call", id)?;
    let json = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
    let media = if json { "application/json" } else { "application/octet-stream" };
    // What a policy or harness sent is never a page of ours.
    Ok(([(header::CONTENT_TYPE, media), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], bytes))
}
