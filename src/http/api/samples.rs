//! A rollout's samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Id;
use super::{built, known, names};
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::RolloutId;
use crate::proxy::App;
use crate::trajectory;

/// What a rollout's calls became.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Samples {
    #[schema(value_type = Vec<Sample>)]
    samples: Vec<trajectory::Sample>,
    /// Every ended call that gives no trained token, with the reason.
    #[schema(value_type = Vec<LeftOut>)]
    left_out: Vec<trajectory::LeftOut>,
}

/// Builds a rollout's samples, also while it is open; calls still running are in neither list.
#[utoipa::path(
    get, path = "/rollouts/{id}/samples", tag = "samples", params(("id" = String, Path, description = "The rollout's id")),
    responses(
        (status = 200, description = "The samples", body = Samples),
        (status = 404, description = "There is no such rollout", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(State(app): State<Arc<App>>, Id(id): Id<RolloutId>) -> Result<Json<Samples>, Problem> {
    let rollout = known(app.store.rollout(id).await?, "rollout", id)?;
    let built = built(&app, &rollout).await?;
    Ok(Json(Samples { samples: built.samples, left_out: built.left_out }))
}

/// One leaf of the rollout's forest of calls: what a trainer reads.
#[derive(Serialize, ToSchema)]
pub(super) struct Sample {
    /// `gleaner.sample.v1`
    schema: String,
    id: String,
    #[schema(format = "uuid")]
    rollout_id: String,
    rollout_index: u32,
    group_id: Option<String>,
    task_id: Option<String>,
    harness: Option<String>,
    #[schema(value_type = names::Purpose)]
    purpose: (),
    /// Its place among the rollout's samples, from 0.
    index: u32,
    /// `main`, `side` (a title, a summary), `subagent` or `compaction`.
    kind: String,
    /// The whole sequence: prompt and everything after.
    token_ids: Vec<u32>,
    /// As long as `token_ids`; 1: sampled by the policy and trained.
    loss_mask: Vec<u8>,
    /// As long as `token_ids`; null outside spans.
    logprobs: Vec<Option<f64>>,
    /// The index of the first token with mask 1.
    prompt_length: usize,
    spans: Vec<Span>,
    reward: Option<f64>,
    rewards: BTreeMap<String, f64>,
    #[schema(value_type = Option<names::Outcome>)]
    outcome: Option<()>,
    /// `complete`, `truncated` or `aborted`.
    status: String,
    /// Trained tokens over the samples of this rollout that this answer gives.
    rollout_mask_total: u64,
    rollout_samples: u64,
    /// Where the branch left its sibling.
    parent: Option<Parent>,
    policy: String,
    model: String,
    tokenizer_hash: Option<String>,
    template_hash: Option<String>,
    /// The same conversation as text, in chat completions' form.
    #[schema(value_type = Vec<Object>)]
    messages: (),
    #[schema(value_type = Vec<Object>)]
    tools: (),
    /// The images of `messages` that came as data, in their order.
    images: Vec<SampleImage>,
    #[schema(value_type = Object)]
    metadata: (),
}

/// An image of the conversation.
#[derive(Serialize, ToSchema)]
pub(super) struct SampleImage {
    /// SHA-256 of its bytes; `/images/{hash}` gives them.
    hash: String,
    mime: String,
    /// Null where the server does not say which tokens stand for images, as none does yet.
    start: Option<usize>,
    end: Option<usize>,
}

/// Tokens of one call inside a sample.
#[derive(Serialize, ToSchema)]
pub(super) struct Span {
    #[schema(format = "uuid")]
    call_id: String,
    /// The first token's index.
    start: usize,
    /// The index after the last token's.
    end: usize,
    policy_version: Option<String>,
    policy_seq: i64,
    #[schema(value_type = Option<names::VersionSource>)]
    version_source: Option<()>,
    #[schema(value_type = Option<names::FinishReason>)]
    finish_reason: Option<()>,
    /// As used.
    #[schema(value_type = names::Sampling)]
    sampling: (),
    #[schema(value_type = names::LogprobKind)]
    logprob_kind: (),
    constrained: bool,
    rewards: BTreeMap<String, f64>,
    /// Not gone on from although the harness went on; left out where it is false.
    abandoned: Option<bool>,
    /// `retry`, `doubled_limit`, `resumed`, `phantom_call` or `duplicated`; left out where it is not abandoned.
    abandoned_as: Option<String>,
    /// These are a later prompt's tokens for what the call sampled: mask 0, no log-probabilities; left out where it is false.
    realigned: Option<bool>,
}

/// The sample that a branch left, and where.
#[derive(Serialize, ToSchema)]
pub(super) struct Parent {
    sample_id: String,
    at: usize,
}

/// A call that gives no trained token.
#[derive(Serialize, ToSchema)]
pub(super) struct LeftOut {
    #[schema(format = "uuid")]
    call_id: String,
    /// One of a closed list: `text_only`, `ids_incomplete`, `logprobs_incomplete`, `constrained`, `realigned`, `no_output`,
    /// `undelivered`, `interrupted`, `upstream_error`, `foreign`, `side_call`, `abandoned`, `untrained_policy`, `over_length`,
    /// `filtered`.
    reason: String,
    /// More, for people; left out where there is none.
    detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Map;
    use utoipa::PartialSchema;

    use super::*;
    use crate::call::{LogprobKind, Sampling};
    use crate::ids::CallId;
    use crate::trajectory::{Reason, SampleStatus};

    fn described<T: PartialSchema>() -> BTreeSet<String> {
        let schema = serde_json::to_value(T::schema()).unwrap();
        schema["properties"].as_object().unwrap().keys().cloned().collect()
    }

    fn served(value: &impl Serialize) -> BTreeSet<String> {
        serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn the_page_describes_every_field_that_is_served() {
        let span = trajectory::Span {
            call_id: CallId::generate(),
            start: 0,
            end: 1,
            policy_version: None,
            policy_seq: 0,
            version_source: None,
            finish_reason: None,
            sampling: Sampling::default(),
            logprob_kind: LogprobKind::Raw,
            constrained: false,
            rewards: BTreeMap::new(),
            abandoned: true,
            abandoned_as: Some(trajectory::Abandoned::Retry),
            realigned: true,
        };
        let left_out = trajectory::LeftOut { call_id: CallId::generate(), reason: Reason::Foreign, detail: Some(String::new()) };
        let parent = trajectory::Parent { sample_id: String::new(), at: 0 };
        assert_eq!(described::<Span>(), served(&span));
        assert_eq!(described::<LeftOut>(), served(&left_out));
        assert_eq!(described::<Parent>(), served(&parent));
        let sample = trajectory::Sample {
            schema: trajectory::SCHEMA.to_owned(),
            id: String::new(),
            rollout_id: RolloutId::generate(),
            rollout_index: 0,
            group_id: None,
            task_id: None,
            harness: None,
            purpose: String::new(),
            index: 0,
            kind: trajectory::Kind::Main,
            token_ids: Vec::new(),
            loss_mask: Vec::new(),
            logprobs: Vec::new(),
            prompt_length: 0,
            spans: vec![span],
            reward: None,
            rewards: BTreeMap::new(),
            outcome: None,
            status: SampleStatus::Complete,
            rollout_mask_total: 0,
            rollout_samples: 1,
            parent: Some(parent),
            policy: String::new(),
            model: String::new(),
            tokenizer_hash: None,
            template_hash: None,
            messages: Vec::new(),
            tools: Vec::new(),
            images: Vec::new(),
            metadata: Map::new(),
        };
        assert_eq!(described::<Sample>(), served(&sample));
    }
}
