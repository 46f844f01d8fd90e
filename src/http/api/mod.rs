//! The API under `/api/v1`, for people, trainers and scripts.

mod artifacts;
mod batches;
mod calls;
mod ending;
mod extract;
mod images;
mod names;
mod openapi;
mod policies;
mod rollouts;
mod samples;
#[cfg(test)]
mod tests;
mod view;

use std::fmt::Display;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::{MethodRouter, get, post, put};

use crate::http::problem::Problem;
use crate::proxy::App;
use crate::store::Rollout;
use crate::trajectory::Built;

pub use batches::Batches;
pub use calls::whole;
pub use view::{CallView, RolloutView, rfc3339};

/// The API's routes, below `/api/v1`, for a server whose state has the [`App`] and who runs [`Batches`]. Who may call them is decided above.
pub fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    Arc<App>: FromRef<S>,
    Batches: FromRef<S>,
{
    let router = Router::new().route("/openapi.json", get(openapi::document));
    let router = table().into_iter().fold(router, |router, (path, methods)| router.route(path, methods));
    router
        .fallback(async || Problem::not_found("there is no such path in the API; /api/v1/openapi.json lists them"))
        .method_not_allowed_fallback(async || {
            Problem::MethodNotAllowed("the path does not take this method; /api/v1/openapi.json lists them".to_owned())
        })
}

/// Every route but the OpenAPI page's own, which a test compares with that page.
fn table<S>() -> [(&'static str, MethodRouter<S>); 20]
where
    S: Clone + Send + Sync + 'static,
    Arc<App>: FromRef<S>,
    Batches: FromRef<S>,
{
    [
        ("/rollouts", get(rollouts::list).post(rollouts::create)),
        ("/rollouts/{id}", get(rollouts::get)),
        ("/rollouts/{id}/reward", post(ending::reward)),
        ("/rollouts/{id}/finish", post(ending::finish)),
        ("/rollouts/{id}/calls", get(calls::list)),
        ("/rollouts/{id}/samples", get(samples::get)),
        ("/rollouts/{id}/artifacts", get(artifacts::list)),
        ("/rollouts/{id}/artifacts/{*name}", get(artifacts::get)),
        ("/batches", batches::roomy(get(batches::list).post(batches::create))),
        ("/batches/{id}", get(batches::get).delete(batches::cancel)),
        ("/batches/{id}/rollouts", get(batches::rollouts)),
        ("/batches/{id}/resume", post(batches::resume)),
        ("/calls/{id}", get(calls::get)),
        ("/calls/{id}/request", get(calls::request)),
        ("/calls/{id}/upstream", get(calls::upstream)),
        ("/calls/{id}/response", get(calls::response)),
        ("/calls/{id}/prompt", get(calls::prompt)),
        ("/images/{hash}", get(images::get)),
        ("/policies", get(policies::list)),
        ("/policies/{name}", put(policies::change)),
    ]
}

/// What was found, or a 404 that names it.
fn known<T>(found: Option<T>, kind: &str, id: impl Display) -> Result<T, Problem> {
    found.ok_or_else(|| Problem::not_found(format!("there is no {kind} {id}")))
}

/// Builds a rollout's samples, from all that has been recorded so far.
async fn built(app: &App, rollout: &Rollout) -> Result<Built, Problem> {
    app.recorder.flush().await?;
    let trained = |policy: &str| app.policies.trained(policy);
    Ok(crate::export::build(app.store.as_ref(), rollout, &trained, app.drift).await?)
}
