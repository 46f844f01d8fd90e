//! What the API reads from a request, refused as problem documents that name the field at fault.

use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use crate::http::problem::Problem;

/// A JSON body, whatever media type it is said to be of. An empty body counts as `{}`.
#[derive(Debug)]
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let text = rejection.body_text();
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    Problem::TooLarge("the body is larger than this call takes: 64 MiB of a batch, else 2 MiB".to_owned())
                }
                _ => Problem::invalid(text),
            }
        })?;
        parse(&bytes).map(Self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let bytes = match bytes.trim_ascii_start() {
        [] => b"{}",
        // serde would take a list as the fields in their order.
        [b'[', ..] => return Err(Problem::invalid("the body can't be read: it is a list, not an object")),
        bytes => bytes,
    };
    serde_json::from_slice(bytes).map_err(|error| Problem::invalid(format!("the body can't be read: {error}")))
}

/// The query's parameters.
#[derive(Debug)]
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let Query(params) = Query::try_from_uri(&parts.uri).map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self(params))
    }
}

/// An id in the path. What is no id names nothing, so it is 404 like an unknown one.
#[derive(Debug)]
pub(super) struct Id<T>(pub T);

impl<T: FromStr, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|_| Problem::not_found("the path holds no id"))?;
        text.parse().map(Self).map_err(|_| Problem::not_found(format!("there is nothing with the id {text}")))
    }
}

/// A header's text, if it is there.
pub(super) fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Problem::invalid(format!("{name}: the header is not plain ASCII")))?;
    Ok(Some(text.to_owned()))
}

/// What names a request, so that a repeat of it does nothing twice.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let key = header_text(headers, "idempotency-key")?;
    if key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 255) {
        return Err(Problem::invalid("Idempotency-Key: give 1 to 255 characters"));
    }
    Ok(key)
}

/// Reads a query's value by the names that serde knows a `T` by; an empty one counts as not given.
pub(super) fn named<T: DeserializeOwned>(field: &str, value: Option<&str>) -> Result<Option<T>, Problem> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(value);
    T::deserialize(name).map(Some).map_err(|error| Problem::invalid(format!("{field}: {error}")))
}

/// How many items a page has: `asked`, clamped to 1..1000, 100 if it is not given.
pub(super) fn page_size(asked: Option<i64>) -> u32 {
    asked.map_or(100, |limit| u32::try_from(limit.clamp(1, 1000)).unwrap_or(1000))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::store::{Outcome, RolloutStatus};

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        size: Option<u32>,
    }

    #[test]
    fn an_empty_body_is_an_empty_object() {
        assert_eq!(parse::<Asked>(b" \n").unwrap(), Asked { size: None });
        assert_eq!(parse::<Asked>(br#"{"size":3}"#).unwrap(), Asked { size: Some(3) });
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_named() {
        let text = parse::<Asked>(br#"{"sise":3}"#).unwrap_err().to_string();
        assert!(text.contains("unknown field `sise`, expected `size`"), "{text}");
        let text = parse::<Asked>(br#"{"size":"3"}"#).unwrap_err().to_string();
        assert!(text.contains("invalid type: string \"3\""), "{text}");
    }

    #[test]
    fn names_are_serdes() {
        assert_eq!(named::<RolloutStatus>("status", Some("open")).unwrap(), Some(RolloutStatus::Open));
        assert_eq!(named::<Outcome>("outcome", Some("timed_out")).unwrap(), Some(Outcome::TimedOut));
        assert_eq!(named::<Outcome>("outcome", Some("")).unwrap(), None);
        let text = named::<RolloutStatus>("status", Some("opened")).unwrap_err().to_string();
        assert_eq!(text, "status: unknown variant `opened`, expected `open` or `finished`");
    }

    #[test]
    fn pages_are_clamped() {
        assert_eq!([None, Some(0), Some(-5), Some(7), Some(9_999_999)].map(page_size), [100, 1, 1, 7, 1000]);
    }
}
