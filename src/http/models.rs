//! The models, in the form of who asks for them.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{Failure, FailureKind};
use crate::proxy::{Live, named, nameless};

use super::api::rfc3339;
use super::family::{Family, not_taken, refuse};
use super::model::{PathKey, Socket, identity};
use super::serve::Http;

/// Where models are listed, below a rollout's own part: all that clients make of our base URL.
const BASES: [&str; 3] = ["", "/v1", "/v1beta"];

/// What Gemini's clients post to below a model.
const METHODS: [&str; 3] = [":generateContent", ":streamGenerateContent", ":countTokens"];

pub(super) fn routes() -> Router<Http> {
    let mut router = Router::new();
    for rollout in ["", "/rollouts/{key}"] {
        for base in BASES {
            let list = format!("{rollout}{base}/models");
            router = router.route(&list, get(models)).route(&format!("{list}/{{*model}}"), get(model));
        }
    }
    router
}

/// The models of the policy that the caller's calls go to. What pages the caller wants is no matter: all are on the first.
async fn models(
    State(http): State<Http>,
    Path(path): Path<PathKey>,
    socket: Option<Extension<Socket>>,
    request: Request,
) -> Response {
    let parts = request.into_parts().0;
    let family = Family::of(&parts.uri, &parts.headers);
    match listed(&http, &parts, path.key.as_deref(), socket).await.and_then(|list| written(family, list)) {
        Ok(list) => ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], list).into_response(),
        Err(failure) => refuse(family.wire(), &failure),
    }
}

/// One model; any name is accepted, as calls accept any.
async fn model(
    State(http): State<Http>,
    Path(path): Path<ModelPath>,
    socket: Option<Extension<Socket>>,
    request: Request,
) -> Response {
    let parts = request.into_parts().0;
    let family = Family::of(&parts.uri, &parts.headers);
    if METHODS.iter().any(|method| path.model.ends_with(method)) {
        let failure = not_taken(&parts.method, &parts.uri, "POST");
        return ([(header::ALLOW, HeaderValue::from_static("POST"))], refuse(family.wire(), &failure)).into_response();
    }
    match asker(&http, &parts, path.key.as_deref(), socket).await {
        Ok(_) => Json(one(family, &Model { id: path.model, ..Model::default() })).into_response(),
        Err(failure) => refuse(family.wire(), &failure),
    }
}

#[derive(Deserialize)]
struct ModelPath {
    key: Option<String>,
    model: String,
}

/// Whose models a caller asks for; who names no rollout opens none by asking.
pub(super) async fn asker(
    http: &Http,
    parts: &Parts,
    path: Option<&str>,
    socket: Option<Extension<Socket>>,
) -> Result<Option<Arc<Live>>, Failure> {
    match named(&http.app, identity(http, parts, path, socket)?).await? {
        None if !http.open => Err(nameless()),
        rollout => Ok(rollout),
    }
}

async fn listed(http: &Http, parts: &Parts, path: Option<&str>, socket: Option<Extension<Socket>>) -> Result<Bytes, Failure> {
    let rollout = asker(http, parts, path, socket).await?;
    http.app.policies.choose(rollout.as_deref().and_then(Live::policy), "").models().await
}

/// One model, as far as servers say something of it.
#[derive(Default, Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    created: i64,
    /// vLLM's name for the window.
    #[serde(default)]
    max_model_len: Option<u64>,
    #[serde(default)]
    meta: Option<Meta>,
}

/// What llama.cpp says of a model.
#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    n_ctx: Option<u64>,
}

/// Writes the server's list as a family reads it; `OpenAI`'s is the server's own.
fn written(family: Family, list: Bytes) -> Result<Bytes, Failure> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    if family == Family::OpenAi {
        return Ok(list);
    }
    let read: Result<List, _> = serde_json::from_slice(&list);
    let read = read.map_err(|error| Failure::new(FailureKind::Unavailable, format!("the policy's list of models: {error}")))?;
    let models: Vec<Value> = read.data.iter().map(|model| one(family, model)).collect();
    let end = |model: Option<&Model>| model.map(|model| model.id.clone());
    let list = match family {
        Family::Gemini => json!({ "models": models }),
        Family::OpenAi | Family::Anthropic => json!({
            "data": models, "has_more": false, "first_id": end(read.data.first()), "last_id": end(read.data.last()),
        }),
    };
    Ok(list.to_string().into())
}

fn one(family: Family, model: &Model) -> Value {
    /// What is said of a window that the server does not tell: no client may take it for a small one.
    const WINDOW: u64 = 1 << 20;
    let Model { id, created, .. } = model;
    match family {
        Family::OpenAi => json!({"id": id, "object": "model", "created": created, "owned_by": "gleaner"}),
        Family::Anthropic => {
            json!({"type": "model", "id": id, "display_name": id, "created_at": rfc3339(created.saturating_mul(1000))})
        }
        Family::Gemini => {
            let window = model.max_model_len.or_else(|| model.meta.as_ref()?.n_ctx).unwrap_or(WINDOW);
            json!({
                "name": format!("models/{id}"), "baseModelId": id, "version": "1", "displayName": id,
                "description": "", "inputTokenLimit": window, "outputTokenLimit": window,
                "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"object":"list","data":[{"id":"a","created":1700000000,"max_model_len":4096},{"id":"b/c"}]}"#;

    fn list(family: Family) -> Value {
        serde_json::from_slice(&written(family, LIST.into()).unwrap()).unwrap()
    }

    #[test]
    fn each_family_reads_its_own_list() {
        assert_eq!(list(Family::OpenAi).to_string(), LIST);
        assert_eq!(
            list(Family::Anthropic),
            json!({"data": [
                {"type": "model", "id": "a", "display_name": "a", "created_at": "2023-11-14T22:13:20Z"},
                {"type": "model", "id": "b/c", "display_name": "b/c", "created_at": "1970-01-01T00:00:00Z"},
            ], "has_more": false, "first_id": "a", "last_id": "b/c"})
        );
        let gemini = list(Family::Gemini);
        let names = ["name", "inputTokenLimit", "outputTokenLimit"].map(|name| gemini["models"][0][name].clone());
        assert_eq!(names, [json!("models/a"), json!(4096), json!(4096)]);
        assert_eq!(gemini["models"][1]["supportedGenerationMethods"][0], "generateContent");
    }

    #[test]
    fn a_list_that_is_none_is_the_policys_failure() {
        assert_eq!(written(Family::Gemini, "<html>".into()).unwrap_err().kind, FailureKind::Unavailable);
    }
}
