//! The HTTP interface (SURFACE 4): a thin layer over [`System`]. No handler decides anything about turns.

mod auth;
mod errors;
mod events;
mod extract;
mod messages;
mod sessions;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    middleware,
    response::IntoResponse,
    routing::{get, patch, post},
};
use errors::ApiError;
use everturn_actors::system::{AgentHandle, System};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Largest body of a request: the largest message of the defaults.
const BODY_MAX_BYTES: usize = 1024 * 1024;

/// How long open connections may take to end once the system has stopped.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// What handlers share.
pub(crate) struct App {
    system: System,
    token: Option<Arc<str>>,
    draining: AtomicBool,
    /// Ends streams and long polls.
    closing: CancellationToken,
}

impl App {
    pub(crate) fn new(system: System, token: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self { system, token, draining: AtomicBool::new(false), closing: CancellationToken::new() })
    }

    /// From now on nothing new is taken: 503 `DISPOSED`.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ends streams, long polls and the server.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    fn takes_input(&self) -> Result<(), ApiError> {
        if self.draining.load(Ordering::Acquire) { Err(ApiError::disposed()) } else { Ok(()) }
    }

    async fn open(&self, id: &str) -> Result<AgentHandle, ApiError> {
        Ok(self.system.open(&extract::session_id(id)?).await?)
    }
}

/// Serves until [`App::close`].
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>) -> std::io::Result<()> {
    let closing = app.closing.clone();
    let until = closing.clone();
    let server = axum::serve(listener, router(app)).with_graceful_shutdown(async move { until.cancelled().await });
    // A client that keeps its connection open cannot keep the daemon from ending.
    let forced = async move {
        closing.cancelled().await;
        tokio::time::sleep(CLOSE_WAIT).await;
    };
    tokio::select! {
        ended = server => ended,
        () = forced => Ok(()),
    }
}

fn router(app: Arc<App>) -> Router {
    let v1 = Router::new()
        .route("/sessions", post(sessions::create).get(sessions::list))
        .route("/sessions/{id}", get(sessions::show).delete(sessions::delete))
        .route("/sessions/{id}/messages", post(messages::submit))
        .route("/sessions/{id}/messages/{item}", patch(messages::edit).get(messages::show).delete(messages::remove))
        .route("/sessions/{id}/cancel", post(messages::cancel))
        .route("/sessions/{id}/idle", get(messages::idle))
        .route("/sessions/{id}/events", get(events::list))
        .route("/sessions/{id}/stream", get(events::stream))
        .route("/sessions/{id}/history", get(events::history))
        .route("/health", get(health))
        .route("/ready", get(ready));
    #[cfg(feature = "testkit")]
    let v1 = v1.route("/testkit/sessions/{id}/maintain", post(sessions::maintain));
    Router::new()
        .nest("/v1", v1)
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), auth::guard))
        .with_state(app)
}

async fn health() -> impl IntoResponse {
    Json(json!({"ok": true}))
}

async fn ready(State(app): State<Arc<App>>) -> impl IntoResponse {
    let mut reasons = app.system.readiness().borrow().reasons.clone();
    if app.draining.load(Ordering::Acquire) {
        reasons.push("the daemon is shutting down".to_owned());
    }
    if reasons.is_empty() {
        (StatusCode::OK, Json(json!({"ready": true})))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"ready": false, "reasons": reasons})))
    }
}

async fn no_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing under this path; see /v1/sessions")
}

async fn no_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "this path does not take that method")
}
