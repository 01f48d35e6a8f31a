//! What a request brings, or the error of the house form.

use super::errors::ApiError;
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{StatusCode, request::Parts},
};
use everturn_storage::ids::SessionId;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Longest wait of a long poll.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// A JSON body. The content type is not looked at: foreign pages are refused by their origin.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        let wrong = |error: serde_json::Error| {
            ApiError::malformed(format!("the body is not what is wanted here ({error}); correct it"))
        };
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

/// A JSON body that may be left out.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        let wrong = |error: serde_json::Error| {
            ApiError::malformed(format!("the body is not what is wanted here ({error}); correct it"))
        };
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection| {
        let status = rejection.status();
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::new(
                status,
                "TOO_LARGE",
                format!("the body is larger than {} bytes; send less", super::BODY_MAX_BYTES),
            )
        } else {
            ApiError::malformed(format!("the body cannot be read ({})", rejection.body_text()))
        }
    })
}

/// The query, unknown names refused by the type.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                Err(ApiError::malformed(format!("the query is wrong ({}); correct it", rejection.body_text())))
            }
        }
    }
}

/// An id of a session as it stands in a path.
pub(super) fn session_id(text: &str) -> Result<SessionId, ApiError> {
    text.parse()
        .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, "INVALID_ID", format!("{text:?} is no id: {error}")))
}

/// Seconds of `?wait=`.
pub(super) fn wait(seconds: Option<f64>) -> Result<Duration, ApiError> {
    match seconds {
        None => Ok(Duration::ZERO),
        Some(s) => Duration::try_from_secs_f64(s)
            .map(|wait| wait.min(WAIT_MAX))
            .map_err(|_| ApiError::malformed("wait is a number of seconds, 0 or more")),
    }
}
