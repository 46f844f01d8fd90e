//! What becomes of a rollout: its rewards and its end.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::extract::{Body, Id};
use super::view::RolloutView;
use super::{known, names};
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::{CallId, RolloutId};
use crate::proxy::App;
use crate::store::{Finish, Outcome, Reward, Rollout, Write};
use crate::telemetry::now_ms;

/// A reward for a rollout, or for one of its calls.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GiveReward {
    reward: f64,
    /// `reward`, the one that counts, if left out.
    #[serde(default = "counting")]
    #[schema(default = "reward")]
    name: String,
    /// The call that is rewarded; the whole rollout if left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "uuid")]
    call_id: Option<CallId>,
}

fn counting() -> String {
    Rollout::REWARD.to_owned()
}

/// Gives a reward; a repeat replaces, also after the rollout's end.
#[utoipa::path(
    post, path = "/rollouts/{id}/reward", tag = "rollouts", request_body = GiveReward,
    params(("id" = String, Path, description = "The rollout's id")),
    responses(
        (status = 200, description = "The rollout with its rewards", body = RolloutView),
        (status = 400, description = "An unknown field or a wrong type", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such rollout, or it has no such call", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The store can't be written now", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn reward(
    State(app): State<Arc<App>>,
    Id(id): Id<RolloutId>,
    Body(body): Body<GiveReward>,
) -> Result<Json<RolloutView>, Problem> {
    known(app.store.rollout(id).await?, "rollout", id)?;
    if let Some(call_id) = body.call_id {
        let call = app.store.call(call_id).await?.filter(|call| call.rollout_id == id);
        known(call, "call", format!("{call_id} in rollout {id}"))?;
    }
    let reward = Reward { rollout_id: id, call_id: body.call_id, name: body.name, value: body.reward };
    app.recorder.write(Write::Reward(reward)).await?;
    let rollout = known(app.store.rollout(id).await?, "rollout", id)?;
    Ok(Json(RolloutView::new(&rollout, None)))
}

/// How a rollout ends.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FinishRollout {
    /// `failed` for a reward below 1, else `passed`, if left out.
    #[schema(value_type = Option<names::Outcome>)]
    outcome: Option<Outcome>,
    /// The rollout gets no reward: its group does not wait for one.
    no_reward: bool,
}

/// Ends a rollout: calls in flight are cancelled, later ones get 409. Ending an ended one gives it as it is.
#[utoipa::path(
    post, path = "/rollouts/{id}/finish", tag = "rollouts", request_body = Option<FinishRollout>,
    params(("id" = String, Path, description = "The rollout's id")),
    responses(
        (status = 200, description = "The rollout, ended", body = RolloutView),
        (status = 400, description = "An unknown field or outcome", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such rollout", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The store can't be written now", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn finish(
    State(app): State<Arc<App>>,
    Id(id): Id<RolloutId>,
    Body(body): Body<FinishRollout>,
) -> Result<Json<RolloutView>, Problem> {
    let rollout = known(app.store.rollout(id).await?, "rollout", id)?;
    let outcome = body.outcome.unwrap_or_else(|| outcome_of(rollout.reward()));
    let finish = Finish { rollout_id: id, at: now_ms(), outcome, no_reward: body.no_reward, evidence: None };
    let rollout = app.rollouts.finish(finish).await?;
    Ok(Json(RolloutView::new(&rollout, None)))
}

/// The outcome that a reward means.
fn outcome_of(reward: Option<f64>) -> Outcome {
    match reward {
        Some(reward) if reward < 1.0 => Outcome::Failed,
        _ => Outcome::Passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_below_one_is_a_failure() {
        let rewards = [None, Some(1.0), Some(1.5), Some(0.999), Some(0.0), Some(-1.0)];
        let (passed, failed) = (Outcome::Passed, Outcome::Failed);
        assert_eq!(rewards.map(outcome_of), [passed, passed, passed, failed, failed, failed]);
    }
}
