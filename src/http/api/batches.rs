//! Batches: ordering, watching, cancelling and going on with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::routing::MethodRouter;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Id, Params, idempotency_key, named, page_size};
use super::names;
use super::view::rfc3339;
use crate::harness::summary::{self, Summary};
use crate::harness::{DispatchError, Dispatcher, Live, Plan, Report, Standing};
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::{BatchId, RolloutId};
use crate::proxy::App;
use crate::store::{Batch, BatchBrief, BatchStatus, Outcome, Rollout};

/// The tasks of a batch may be long; this many bytes are read.
const MOST_BYTES: usize = 64 << 20;

/// Who runs batches; a server that does not run any has none.
#[derive(Clone, Default)]
pub struct Batches(pub Option<Arc<Dispatcher>>);

impl Batches {
    fn get(&self) -> Result<&Arc<Dispatcher>, Problem> {
        self.0.as_ref().ok_or_else(|| Problem::not_found("this server runs no batches"))
    }
}

impl FromRef<Arc<App>> for Batches {
    fn from_ref(_: &Arc<App>) -> Self {
        Self::default()
    }
}

/// Lets a body be as long as a batch's tasks.
pub(super) fn roomy<S: Clone + Send + Sync + 'static>(methods: MethodRouter<S>) -> MethodRouter<S> {
    methods.layer(DefaultBodyLimit::max(MOST_BYTES))
}

impl From<DispatchError> for Problem {
    fn from(error: DispatchError) -> Self {
        match error {
            DispatchError::Wrong(_) => Self::invalid(error.to_string()),
            DispatchError::KeyReused(_) => Self::KeyReused(error.to_string()),
            DispatchError::Unknown(id) => Self::not_found(format!("there is no batch {id}")),
            DispatchError::Conflict(what) => Self::Conflict(what),
            DispatchError::Store(error) => error.into(),
            DispatchError::Failed(_) => Self::Internal { cause: error.to_string() },
        }
    }
}

/// A batch in short.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchView {
    #[schema(value_type = String, format = "uuid")]
    id: BatchId,
    #[schema(value_type = names::BatchStatus)]
    status: BatchStatus,
    /// When it was ordered.
    created_at: String,
    /// Rollouts that it is to have: tasks x harnesses x samples.
    rollouts: u64,
}

impl From<&Batch> for BatchView {
    fn from(batch: &Batch) -> Self {
        batch.brief().into()
    }
}

impl From<BatchBrief> for BatchView {
    fn from(batch: BatchBrief) -> Self {
        Self { id: batch.id, status: batch.status, created_at: rfc3339(batch.created_at), rollouts: batch.rollouts }
    }
}

/// A batch as it stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchDetail {
    #[serde(flatten)]
    batch: BatchView,
    /// What was ordered; tasks that were given themselves are only counted.
    #[schema(value_type = Object)]
    plan: Value,
    /// Rollouts that have ended, replaced ones not counted.
    ended: u64,
    /// Of them: how many ended so.
    outcomes: BTreeMap<String, u64>,
    groups: Groups,
    /// Rollouts that are running.
    running: Vec<RunningView>,
    /// What they wait for, all of them: a payload that is being built, an engine that does not answer.
    waiting: Option<String>,
    /// Why it stopped, if a fault of this server's surroundings stopped it.
    error: Option<String>,
    /// By harness, in the plan's order: rates and their intervals, pass@k (`pass_at`) and pass^k (`pass_all`), what they cost.
    #[schema(value_type = Vec<Object>)]
    summary: Vec<Summary>,
}

/// The groups of a batch: the rollouts of a task in a harness.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(super) struct Groups {
    total: u64,
    /// Those all of whose rollouts have ended other than as `infra_error` or `cancelled`.
    ready: u64,
}

/// A rollout that is running.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunningView {
    #[schema(value_type = String, format = "uuid")]
    id: RolloutId,
    harness: Option<String>,
    task_id: Option<String>,
    /// Its place in its group, from 0.
    index: u32,
    /// Which try of that place it is, from 1.
    attempt: u32,
    /// Calls begun.
    turn: u64,
    began_at: String,
    /// What is done for it now; null if another process runs it.
    doing: Option<String>,
    /// Since when.
    since: Option<String>,
}

/// A rollout that has ended, as `gleaner batch --json` prints it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RowView {
    #[schema(value_type = String, format = "uuid")]
    id: RolloutId,
    harness: String,
    task_id: String,
    group_id: Option<String>,
    index: u32,
    #[schema(value_type = names::Outcome)]
    outcome: Outcome,
    reward: Option<f64>,
    calls: u64,
    tokens: u64,
    drift: u64,
    ms: u64,
    /// What went wrong, if something did.
    error: Option<String>,
}

impl From<Report> for RowView {
    fn from(report: Report) -> Self {
        let Report { id, harness, task_id, group, index, outcome, reward, calls, tokens, drift, ms, error, .. } = report;
        Self { id, harness, task_id, group_id: group, index, outcome, reward, calls, tokens, drift, ms, error }
    }
}

/// A page of batches.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchPage {
    batches: Vec<BatchView>,
    /// Give it as `after` to read on; null on the last page.
    next: Option<String>,
}

/// A page of a batch's rollouts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RowPage {
    rollouts: Vec<RowView>,
    /// Give it as `after` to read on; null on the last page.
    next: Option<String>,
}

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

/// How to go on.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Resume {
    /// Although its tasks or harnesses are not what they were.
    force: bool,
}

/// Orders a batch: tasks x harnesses x samples, each rollout in a container of its own.
///
/// With an `Idempotency-Key`, a repeat gives the batch that the first began, with 200; the key with another body is 422.
#[utoipa::path(
    post, path = "/batches", tag = "batches", request_body = names::Plan,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters that name this request; a repeat begins no second batch")),
    responses(
        (status = 201, description = "The batch, which runs", body = BatchView),
        (status = 200, description = "The batch that an earlier request with this Idempotency-Key began", body = BatchView),
        (status = 400, description = "An unknown field, or a wrong task, harness, choice or policy", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "The server is ending", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The Idempotency-Key was used with another body", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    State(batches): State<Batches>,
    headers: HeaderMap,
    body: Result<Body<Plan>, Problem>,
) -> Result<(StatusCode, Json<BatchView>), Problem> {
    let Body(plan) = body.map_err(without_leases)?;
    let key = idempotency_key(&headers)?;
    known_policy(&app, plan.policy.as_deref())?;
    let (batch, new) = batches.get()?.order(plan, key.as_deref()).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(BatchView::from(&batch))))
}

/// Says of the one field that is to come why it is refused.
fn without_leases(problem: Problem) -> Problem {
    match problem {
        Problem::Invalid(why) if why.contains("unknown field `max_unleased_groups`") => {
            Problem::invalid("max_unleased_groups: groups can't be leased yet, so all of them would count; leave it out")
        }
        other => other,
    }
}

/// Refuses a policy that the config has not.
pub(super) fn known_policy(app: &App, name: Option<&str>) -> Result<(), Problem> {
    let Some(name) = name.filter(|name| app.policies.get(name).is_none()) else { return Ok(()) };
    let known: Vec<&str> = app.policies.iter().map(|policy| policy.name()).collect();
    Err(Problem::invalid(format!("policy: there is no policy {name}; there are: {}", known.join(", "))))
}

/// Lists batches, oldest first; also those that `gleaner batch` runs on the same store.
#[utoipa::path(
    get, path = "/batches", tag = "batches", params(Page),
    responses(
        (status = 200, description = "A page", body = BatchPage),
        (status = 400, description = "An unknown or wrong parameter", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(app): State<Arc<App>>, Params(page): Params<Page>) -> Result<Json<BatchPage>, Problem> {
    let after: Option<BatchId> = named("after", page.after.as_deref())?;
    let size = page_size(page.limit);
    if let Some(after) = after
        && app.store.batch(after).await?.is_none()
    {
        return Err(Problem::invalid(format!("after: there is no batch {after}; give the next of the page before")));
    }
    // One more than the page holds tells whether there is another page.
    let mut batches = app.store.batches(after, size + 1).await?;
    let more = batches.len() > size as usize;
    batches.truncate(size as usize);
    let next = batches.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(Json(BatchPage { batches: batches.into_iter().map(BatchView::from).collect(), next }))
}

/// Tells how a batch stands.
#[utoipa::path(
    get, path = "/batches/{id}", tag = "batches", params(("id" = String, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "The batch", body = BatchDetail),
        (status = 404, description = "There is no such batch", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(State(batches): State<Batches>, Id(id): Id<BatchId>) -> Result<Json<BatchDetail>, Problem> {
    detail(batches.get()?, id).await.map(Json)
}

/// Lists a batch's rollouts that have ended, by task, harness and sample, as the plan has them: one that ends later may come before one that
/// was listed. Of each sample the one that counts: others were replaced, and are in `/rollouts?batch_id=`.
#[utoipa::path(
    get, path = "/batches/{id}/rollouts", tag = "batches", params(("id" = String, Path, description = "The batch's id"), Page),
    responses(
        (status = 200, description = "A page", body = RowPage),
        (status = 400, description = "An unknown or wrong parameter", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such batch", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn rollouts(
    State(batches): State<Batches>,
    Id(id): Id<BatchId>,
    Params(page): Params<Page>,
) -> Result<Json<RowPage>, Problem> {
    let after: Option<RolloutId> = named("after", page.after.as_deref())?;
    let size = page_size(page.limit) as usize;
    let reports = batches.get()?.standing(id).await?.reports;
    let from = match after {
        None => 0,
        Some(after) => {
            let place = reports.iter().position(|report| report.id == after);
            1 + place.ok_or_else(|| Problem::invalid(format!("after: the list has no rollout {after}")))?
        }
    };
    let more = reports.len() > from + size;
    let rollouts: Vec<RowView> = reports.into_iter().skip(from).take(size).map(RowView::from).collect();
    let next = rollouts.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(Json(RowPage { rollouts, next }))
}

/// Cancels a batch for good. Answers once its rollouts have ended, as `cancelled`, and their containers are removed. A repeat changes nothing.
#[utoipa::path(
    delete, path = "/batches/{id}", tag = "batches", params(("id" = String, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "The batch as it was left", body = BatchDetail),
        (status = 404, description = "There is no such batch", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "It is done, or another process runs it", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn cancel(State(batches): State<Batches>, Id(id): Id<BatchId>) -> Result<Json<BatchDetail>, Problem> {
    let dispatcher = batches.get()?;
    dispatcher.cancel(id).await?;
    detail(dispatcher, id).await.map(Json)
}

/// Goes on with a batch that stopped: its server ended, or its engine did not answer for too long.
#[utoipa::path(
    post, path = "/batches/{id}/resume", tag = "batches", params(("id" = String, Path, description = "The batch's id")), request_body = Resume,
    responses(
        (status = 200, description = "The batch, which runs", body = BatchView),
        (status = 400, description = "An unknown field", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such batch", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "It runs, has ended, or its tasks or harnesses have changed", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn resume(
    State(batches): State<Batches>,
    Id(id): Id<BatchId>,
    Body(how): Body<Resume>,
) -> Result<Json<BatchView>, Problem> {
    Ok(Json(BatchView::from(&batches.get()?.resume(id, how.force).await?)))
}

async fn detail(dispatcher: &Dispatcher, id: BatchId) -> Result<BatchDetail, Problem> {
    let live = dispatcher.live(id);
    let Standing { batch, kept, reports, running, summaries } = dispatcher.standing(id).await?;
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for report in &reports {
        *outcomes.entry(report.outcome.name().to_owned()).or_default() += 1;
    }
    let samples = kept.plan.samples.max(1);
    Ok(BatchDetail {
        batch: BatchView::from(&batch),
        plan: counted(&kept.plan)?,
        ended: reports.len() as u64,
        outcomes,
        groups: Groups { total: batch.rollouts / u64::from(samples), ready: ready(&reports, samples) },
        running: running.iter().map(|rollout| running_view(rollout, live.as_deref())).collect(),
        waiting: live.as_ref().and_then(|live| live.note()),
        error: dispatcher.fault(id),
        summary: summaries,
    })
}

/// A plan without its tasks where they are not a path.
fn counted(plan: &Plan) -> Result<Value, Problem> {
    let mut plan = serde_json::to_value(plan).map_err(|error| Problem::Internal { cause: error.to_string() })?;
    let tasks = &mut plan["tasks"];
    if let Some(given) = tasks.as_array().map(Vec::len) {
        *tasks = Value::from(given);
    }
    Ok(plan)
}

/// Groups whose rollouts, so many, have all ended as ones that count.
fn ready(reports: &[Report], samples: u32) -> u64 {
    let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
    for report in reports.iter().filter(|report| summary::counts(report.outcome)) {
        *groups.entry(report.group.as_deref().unwrap_or_default()).or_default() += 1;
    }
    groups.values().filter(|ended| **ended >= samples).count() as u64
}

fn running_view(rollout: &Rollout, live: Option<&Live>) -> RunningView {
    let doing = live.and_then(|live| live.doing(rollout.id));
    RunningView {
        id: rollout.id,
        harness: rollout.harness.clone(),
        task_id: rollout.task_id.clone(),
        index: rollout.index,
        attempt: rollout.run.map_or(1, |run| run.attempt),
        turn: rollout.calls,
        began_at: rfc3339(rollout.created_at),
        since: doing.as_ref().map(|doing| rfc3339(doing.since)),
        doing: doing.map(|doing| doing.what.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    fn report(group: &str, outcome: Outcome) -> Report {
        Report {
            id: RolloutId::generate(),
            harness: "codex".to_owned(),
            task_id: "t".to_owned(),
            group: Some(group.to_owned()),
            index: 0,
            outcome,
            reward: None,
            calls: 0,
            tokens: 0,
            drift: 0,
            ms: 0,
            error: None,
            artifacts: PathBuf::new(),
        }
    }

    #[test]
    fn a_group_is_ready_once_all_of_it_counts() {
        let reports = [
            report("a", Outcome::Passed),
            report("a", Outcome::TimedOut),
            report("b", Outcome::Passed),
            report("b", Outcome::InfraError),
            report("c", Outcome::Cancelled),
        ];
        assert_eq!(ready(&reports, 2), 1);
        assert_eq!(ready(&reports, 1), 2);
    }

    #[test]
    fn tasks_that_were_given_are_counted() {
        let plan = |tasks: Value| serde_json::from_value(json!({"tasks": tasks, "harnesses": []})).unwrap();
        assert_eq!(counted(&plan(json!([{"id": "a"}, {"id": "b"}]))).unwrap()["tasks"], 2);
        assert_eq!(counted(&plan(json!("/tasks"))).unwrap()["tasks"], "/tasks");
    }
}
