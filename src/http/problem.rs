//! Errors of the API as RFC 9457 problem documents: one enum, a status per variant, the cause logged once and never sent.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::export::ExportError;
use crate::proxy::FinishError;
use crate::store::StoreError;

/// Why an API call was not done. The texts are for whoever called: what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The request is not what the call asks for.
    #[error("{0}")]
    Invalid(String),
    /// No admin key, or a wrong one.
    #[error("{0}")]
    Unauthorized(String),
    /// A caller that the API is not for.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The path is right, the method is not.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// The thing's state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The body is larger than allowed.
    #[error("{0}")]
    TooLarge(String),
    /// An idempotency key that was used with another body.
    #[error("{0}")]
    KeyReused(String),
    /// The store can't be read or written now.
    #[error("{detail}")]
    Unavailable { detail: &'static str, cause: String },
    /// A fault of ours.
    #[error("something went wrong inside; the server's log has the cause")]
    Internal { cause: String },
}

/// A problem document.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Problem, example = json!({
    "type": "urn:gleaner:problem:invalid", "title": "Invalid request", "status": 400, "detail": "unknown field `rewrd`"
}))]
pub struct ProblemDocument<'a> {
    /// Names the kind of problem; scripts may branch on it.
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    /// The HTTP status again.
    status: u16,
    /// What happened this time, to what, and what to do.
    detail: String,
}

impl Problem {
    /// The media type of problem documents.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// The request is not what the call asks for.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::Invalid(detail.into())
    }

    /// No admin key, or a wrong one.
    #[must_use]
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::Unauthorized(detail.into())
    }

    /// A caller that the API is not for.
    #[must_use]
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::Forbidden(detail.into())
    }

    /// There is no such thing.
    #[must_use]
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::NotFound(detail.into())
    }

    /// The HTTP status that goes with it.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::KeyReused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The document's `type` and `title`.
    fn kind(&self) -> (&'static str, &'static str) {
        match self {
            Self::Invalid(_) => ("urn:gleaner:problem:invalid", "Invalid request"),
            Self::Unauthorized(_) => ("urn:gleaner:problem:unauthorized", "Not authorized"),
            Self::Forbidden(_) => ("urn:gleaner:problem:forbidden", "Forbidden"),
            Self::NotFound(_) => ("urn:gleaner:problem:not-found", "Not found"),
            Self::MethodNotAllowed(_) => ("urn:gleaner:problem:method-not-allowed", "Method not allowed"),
            Self::Conflict(_) => ("urn:gleaner:problem:conflict", "Conflict"),
            Self::TooLarge(_) => ("urn:gleaner:problem:too-large", "Body too large"),
            Self::KeyReused(_) => ("urn:gleaner:problem:key-reused", "Idempotency key used with another body"),
            Self::Unavailable { .. } => ("urn:gleaner:problem:unavailable", "Store unavailable"),
            Self::Internal { .. } => ("urn:gleaner:problem:internal", "Internal error"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if let Self::Unavailable { cause, .. } | Self::Internal { cause } = &self {
            tracing::error!(error = %cause, "an API call failed");
        }
        let (kind, title) = self.kind();
        let status = self.status();
        let document = ProblemDocument { kind, title, status: status.as_u16(), detail: self.to_string() };
        // Strings and a number are always JSON.
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA_TYPE));
        match self {
            Self::Unavailable { .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Unauthorized(_) => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let cause = error.to_string();
        let detail = match error {
            StoreError::Full(_) => "the store's disk is full; make room and try again",
            StoreError::Locked(_) => "the store is locked by another process; try again",
            StoreError::ReadOnly(_) => "the store can't be written; check its folder's permissions",
            StoreError::Newer(_) => "the store was written by a newer Gleaner; use that version or another database",
            StoreError::Other(_) => return Self::Internal { cause },
        };
        Self::Unavailable { detail, cause }
    }
}

impl From<FinishError> for Problem {
    fn from(error: FinishError) -> Self {
        match error {
            FinishError::Unknown(_) => Self::NotFound(error.to_string()),
            FinishError::Store(error) => error.into(),
        }
    }
}

impl From<ExportError> for Problem {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Store(error) => error.into(),
            other => Self::Internal { cause: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::{Value, json};

    use super::*;

    async fn sent(problem: Problem) -> (u16, String, Value) {
        let response = problem.into_response();
        let status = response.status().as_u16();
        let media = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, media, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn a_problem_is_a_document_of_rfc_9457() {
        let (status, media, body) = sent(Problem::NotFound("there is no call 7".to_owned())).await;
        assert_eq!((status, media.as_str()), (404, "application/problem+json"));
        assert_eq!(
            body,
            json!({"type": "urn:gleaner:problem:not-found", "title": "Not found", "status": 404, "detail": "there is no call 7"})
        );
    }

    #[tokio::test]
    async fn causes_stay_inside() {
        let (status, _, body) = sent(StoreError::Other("/secret/path: malformed page".to_owned()).into()).await;
        assert_eq!(status, 500);
        assert!(!body.to_string().contains("secret"), "{body}");
        let (status, _, body) = sent(StoreError::Full("/secret/path".to_owned()).into()).await;
        assert_eq!(status, 503);
        assert_eq!(body["detail"], "the store's disk is full; make room and try again");
    }
}
