//! The files that a rollout's run left.

use std::fs::File;
use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::header;
use serde::Serialize;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use utoipa::ToSchema;

use super::extract::Id;
use super::known;
use crate::http::problem::{Problem, ProblemDocument};
use crate::ids::RolloutId;
use crate::proxy::App;
use crate::store::{Artifact, Artifacts};

/// A file that a run left.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ArtifactView {
    /// Its path among the rollout's files.
    #[schema(example = "patch.diff")]
    name: String,
    bytes: u64,
}

/// A rollout's files.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ArtifactList {
    artifacts: Vec<ArtifactView>,
}

/// Lists the files that a rollout's run left: what was printed, its result, its patch, what its task asks to keep.
#[utoipa::path(
    get, path = "/rollouts/{id}/artifacts", tag = "rollouts", params(("id" = String, Path, description = "The rollout's id")),
    responses(
        (status = 200, description = "All of them, by name", body = ArtifactList),
        (status = 404, description = "There is no such rollout", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(State(app): State<Arc<App>>, Id(id): Id<RolloutId>) -> Result<Json<ArtifactList>, Problem> {
    known(app.store.rollout(id).await?, "rollout", id)?;
    let found = blocking(app.store.artifacts(), move |artifacts| artifacts.list(id)).await?;
    let view = |Artifact { name, bytes }| ArtifactView { name, bytes };
    Ok(Json(ArtifactList { artifacts: found.into_iter().map(view).collect() }))
}

/// The bytes of one file.
#[utoipa::path(
    get, path = "/rollouts/{id}/artifacts/{name}", tag = "rollouts",
    params(
        ("id" = String, Path, description = "The rollout's id"),
        ("name" = String, Path, description = "The file's name as the list has it, with its slashes"),
    ),
    responses(
        (status = 200, description = "The bytes; as plain text where the name says that it is text", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such rollout or file", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(State(app): State<Arc<App>>, Path((id, name)): Path<(String, String)>) -> Result<Response, Problem> {
    let unknown = || Problem::not_found(format!("rollout {id} has no artifact {name:?}; /rollouts/{id}/artifacts lists them"));
    let rollout: RolloutId = id.parse().map_err(|_| unknown())?;
    let wanted = name.clone();
    let file = blocking(app.store.artifacts(), move |artifacts| open(artifacts, rollout, &wanted)).await?;
    let (file, bytes) = file.ok_or_else(unknown)?;
    // No more than was said, should it grow meanwhile.
    let body = Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(file).take(bytes)));
    let headers = [
        (header::CONTENT_TYPE, media(&name).to_owned()),
        (header::CONTENT_LENGTH, bytes.to_string()),
        // What a harness made is never a page of ours.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, body).into_response())
}

fn open(artifacts: &Artifacts, rollout: RolloutId, name: &str) -> io::Result<Option<(File, u64)>> {
    let Some(file) = artifacts.open(rollout, name)? else { return Ok(None) };
    let bytes = file.metadata()?.len();
    Ok(Some((file, bytes)))
}

/// Looks at files on a thread that may wait for them.
async fn blocking<T: Send + 'static>(
    artifacts: &Artifacts,
    look: impl FnOnce(&Artifacts) -> io::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let artifacts = artifacts.clone();
    let looked = tokio::task::spawn_blocking(move || look(&artifacts)).await;
    let failed = |error: &dyn std::fmt::Display| Problem::Internal { cause: format!("reading artifacts: {error}") };
    looked.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

/// What a file is by its name. Nothing that a browser would run.
fn media(name: &str) -> &'static str {
    const TEXTS: [&str; 8] = [".log", ".txt", ".json", ".jsonl", ".diff", ".patch", ".md", ".toml"];
    if TEXTS.iter().any(|ending| name.ends_with(ending)) { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

#[cfg(test)]
mod tests {
    use super::media;

    #[test]
    fn only_what_is_named_so_is_text() {
        let text = "text/plain; charset=utf-8";
        for (name, expected) in [("patch.diff", text), ("files/a.log", text), ("a.html", OTHER), ("log", OTHER), ("", OTHER)] {
            assert_eq!(media(name), expected, "{name}");
        }
    }

    const OTHER: &str = "application/octet-stream";
}
