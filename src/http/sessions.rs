//! Sessions: create, list, show, delete.

use super::{
    App,
    errors::ApiError,
    extract::{Asked, Body, session_id},
};
use crate::wire;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use everturn_actors::system::CreateSession;
use everturn_storage::{ids::SessionId, limits::LIST_MAX};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The agent of a session that names none.
const DEFAULT_AGENT: &str = "default";

/// How many sessions a page holds unless told.
const PAGE: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    agent: Option<String>,
    id: Option<String>,
    cwd: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Body(body): Body<Create>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    app.takes_input()?;
    let id = body.id.as_deref().map(session_id).transpose()?;
    let agent = body.agent.unwrap_or_else(|| DEFAULT_AGENT.to_owned());
    let create = CreateSession { id, agent, cwd: body.cwd, labels: body.labels };
    let handle = app.system.create(create).await?;
    let (header, _) = app.system.session(handle.session()).await?;
    let answer = json!({"id": header.session_id, "agent": header.agent, "created_at": header.created_at_ms});
    Ok((StatusCode::CREATED, Json(answer)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    state: Option<String>,
    agent: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

/// Answered from the index; logs are never read (BR-028).
pub(super) async fn list(State(app): State<Arc<App>>, Asked(query): Asked<List>) -> Result<Json<Value>, ApiError> {
    let wanted = query.state.as_deref().map(wire::SessionState::parse).transpose().map_err(ApiError::malformed)?;
    let limit = page_limit(query.limit, PAGE, LIST_MAX)?;
    let mut after: Option<SessionId> = query.after.as_deref().map(session_id).transpose()?;
    let mut rows = Vec::new();
    let mut next = None;
    'pages: loop {
        let page = app.system.sessions(after.clone(), LIST_MAX).await?;
        let full = page.len() == LIST_MAX;
        for summary in page {
            let state = wire::SessionState::of(&summary, app.system.live(&summary.session).is_some());
            if wanted.is_some_and(|wanted| wanted != state) || query.agent.as_ref().is_some_and(|a| *a != summary.agent)
            {
                after = Some(summary.session);
                continue;
            }
            if rows.len() == limit {
                next = after;
                break 'pages;
            }
            rows.push(wire::session_row(&summary, state));
            after = Some(summary.session);
        }
        if !full {
            break;
        }
    }
    let mut answer = json!({"sessions": rows});
    if let Some(next) = next {
        answer["next"] = json!(next);
    }
    Ok(Json(answer))
}

pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = session_id(&id)?;
    let (header, summary) = app.system.session(&id).await?;
    let status = match app.system.live(&id) {
        Some(handle) => Some(handle.status().await),
        None => None,
    };
    Ok(Json(wire::session_record(&header, &summary, status.as_ref())))
}

pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.takes_input()?;
    app.system.delete(&session_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A `limit` of a query: at least 1, at most `max` whatever is asked for.
pub(super) fn page_limit(asked: Option<usize>, default: usize, max: usize) -> Result<usize, ApiError> {
    match asked {
        None => Ok(default),
        Some(0) => Err(ApiError::malformed("limit is at least 1")),
        Some(limit) => Ok(limit.min(max)),
    }
}

/// Maintenance by order of a black-box test (P20).
#[cfg(feature = "testkit")]
pub(super) async fn maintain(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let handle = app.open(&id).await?;
    Ok(Json(match crate::testkit::maintain(&handle).await? {
        Ok(()) => json!({"maintained": true}),
        Err(why) => json!({"failed": why}),
    }))
}
