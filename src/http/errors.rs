//! Errors of the HTTP interface: one form, one table.
//!
//! | status | codes |
//! |---|---|
//! | 400 | `MALFORMED` (no JSON, unknown or missing field, wrong type, bad query), `INVALID_ID`, `INVALID` |
//! | 401 | `UNAUTHORIZED` |
//! | 403 | `FORBIDDEN` (foreign `Host` or `Origin` on loopback without a token) |
//! | 404 | `NOT_FOUND` (no such path), `NO_SESSION`, `UNKNOWN_ITEM` (never heard of) |
//! | 405 | `METHOD_NOT_ALLOWED` |
//! | 408 | `NOT_IDLE` (`/idle` when the wait is over) |
//! | 409 | `SESSION_EXISTS`, `SESSION_BUSY`, `DUPLICATE_PENDING`, `DUPLICATE_CONSUMED`, `UNKNOWN_ITEM` (no longer pending), `BUSY`, `WOULD_DEADLOCK`, `CANCELLED` |
//! | 413 | `TOO_LARGE` (body), `MESSAGE_TOO_LARGE` |
//! | 422 | `EMPTY_MESSAGE`, `INVALID_MESSAGE`, `NO_AGENT`, `INVALID_AGENT` |
//! | 429 | `INBOX_FULL` |
//! | 500 | `INTERNAL` |
//! | 503 | `STORAGE`, `FAULTED`, `DISPOSED`, `CORRUPT`, `TOO_NEW`, `TOO_OLD`, `UNKNOWN_EVENT` |

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use everturn_actors::{handle::OpError, system::SessionError};
use serde_json::{Value, json};

/// An error on its way to a client.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) detail: Option<Value>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), detail: None }
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "MALFORMED", message)
    }

    pub(super) fn disposed() -> Self {
        SessionError::Disposed.into()
    }

    #[must_use]
    pub(super) fn with_detail(mut self, detail: Value) -> Self {
        self.detail = Some(detail);
        self
    }
}

impl From<OpError> for ApiError {
    fn from(error: OpError) -> Self {
        let status = match &error {
            OpError::Disposed | OpError::Faulted(_) | OpError::Storage(_) => StatusCode::SERVICE_UNAVAILABLE,
            OpError::EmptyMessage | OpError::InvalidMessage(_) => StatusCode::UNPROCESSABLE_ENTITY,
            OpError::MessageTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            OpError::InboxFull(_) => StatusCode::TOO_MANY_REQUESTS,
            OpError::DuplicatePending(_)
            | OpError::DuplicateConsumed(_)
            | OpError::UnknownItem(_)
            | OpError::Busy
            | OpError::WouldDeadlock
            | OpError::Cancelled => StatusCode::CONFLICT,
            OpError::Invalid(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.code(), error.to_string())
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        let (status, detail) = match &error {
            SessionError::Exists(_) | SessionError::Busy(_) => (StatusCode::CONFLICT, None),
            SessionError::Unknown(_) => (StatusCode::NOT_FOUND, None),
            SessionError::NoAgent(_) | SessionError::InvalidAgent { .. } => (StatusCode::UNPROCESSABLE_ENTITY, None),
            SessionError::Corrupt { session, seq, .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, Some(json!({"session": session, "seq": seq})))
            }
            SessionError::Unsupported { .. } | SessionError::Storage(_) | SessionError::Disposed => {
                (StatusCode::SERVICE_UNAVAILABLE, None)
            }
        };
        Self { status, code: error.code(), message: error.to_string(), detail }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(detail) = self.detail {
            error["detail"] = detail;
        }
        let mut response = (self.status, Json(json!({"error": error}))).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
