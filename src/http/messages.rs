//! Messages: submit, look, edit, remove; cancel and wait.

use super::{
    App,
    errors::ApiError,
    extract::{Asked, Body, OptionalBody, wait},
};
use crate::wire;
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
};
use everturn_actors::{
    handle::{ItemReport, KeptItems, OpError, Submit, SubmitKind, caller_cause},
    system::AgentHandle,
};
use everturn_storage::{
    event::Cause,
    ids::{MessageId, Seq},
    message::Block,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// What `/idle` waits at least: asking an agent takes a moment, also when nobody wants to wait.
const IDLE_WAIT_MIN: Duration = Duration::from_millis(100);

/// How long `/idle` waits for what was logged to become durable: longer than a store needs to be opened again.
const IDLE_DURABLE_WAIT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Send,
    Steer,
    Inject,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Message {
    kind: Kind,
    id: Option<String>,
    content: Value,
    source: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edit {
    content: Value,
}

/// A string, or blocks.
fn content(value: Value) -> Result<Vec<Block>, ApiError> {
    match value {
        Value::String(text) => Ok(vec![Block::text(text)]),
        Value::Array(_) => serde_json::from_value(value)
            .map_err(|error| OpError::InvalidMessage(format!("a block is wrong ({error}); correct it")).into()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(ApiError::malformed("content is a string or a list of blocks"))
        }
    }
}

/// The id of the body or of the `Idempotency-Key` header.
fn message_id(body: Option<String>, headers: &HeaderMap) -> Result<Option<MessageId>, ApiError> {
    let bad = |why: String| ApiError::new(StatusCode::BAD_REQUEST, "INVALID_ID", why);
    let header = match headers.get("idempotency-key") {
        None => None,
        Some(value) => {
            let text = value.to_str().map_err(|_| bad("Idempotency-Key is no text".to_owned()))?;
            Some(text.trim().trim_matches('"').to_owned())
        }
    };
    if let (Some(id), Some(key)) = (&body, &header)
        && id != key
    {
        return Err(bad("id and Idempotency-Key differ; give one of them".to_owned()));
    }
    let parse = |text: String| text.parse().map_err(|error| bad(format!("{text:?} is no id: {error}")));
    body.or(header).map(parse).transpose()
}

pub(super) async fn submit(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(body): Body<Message>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    app.takes_input()?;
    let kind = match body.kind {
        Kind::Send => SubmitKind::Send,
        Kind::Steer => SubmitKind::Steer,
        Kind::Inject => SubmitKind::Inject,
    };
    let id_given = message_id(body.id, &headers)?;
    let content = content(body.content)?;
    let handle = app.open(&id).await?;
    let submit = Submit { kind, id: id_given, content: content.clone(), source: body.source };
    let error = match handle.submit(submit).await {
        Ok(receipt) => return Ok((StatusCode::ACCEPTED, Json(json!(receipt)))),
        Err(error) => error,
    };
    if let OpError::DuplicatePending(report) | OpError::DuplicateConsumed(report) = &error {
        return repeated(report, error.clone().into(), kind, &content);
    }
    Err(error.into())
}

/// The same message again is answered with its fate; another one under its id is a conflict (BR-055, BR-056).
///
/// A steer that is sent again as a send, or the other way round, is the same message: callers fall back so when
/// they saw no answer (BR-046).
fn repeated(
    report: &ItemReport,
    conflict: ApiError,
    kind: SubmitKind,
    content: &[Block],
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let waits = |kind: SubmitKind| kind == SubmitKind::Inject;
    if report.content != content || waits(report.kind) != waits(kind) {
        let message = format!("{}, and it says something else; take a fresh id", conflict.message);
        return Err(ApiError { message, ..conflict }.with_detail(wire::item(report)));
    }
    let mut answer = json!(report.receipt);
    if let (Some(answer), Value::Object(item)) = (answer.as_object_mut(), wire::item(report)) {
        answer.extend(item);
    }
    Ok((StatusCode::OK, Json(answer)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    wait: Option<f64>,
}

/// An item of that id, or 404.
async fn report(handle: &AgentHandle, id: &str) -> Result<ItemReport, ApiError> {
    handle.item(id).await.map_err(|error| {
        let unknown = matches!(error, OpError::UnknownItem(_));
        let mut error = ApiError::from(error);
        if unknown {
            error.status = StatusCode::NOT_FOUND;
            error.message = format!("no message {id} is known in this session");
        }
        error
    })
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path((id, item)): Path<(String, String)>,
    Asked(query): Asked<Wait>,
) -> Result<Json<Value>, ApiError> {
    let wait = wait(query.wait)?;
    let handle = app.open(&id).await?;
    let mut known = report(&handle, &item).await?;
    // Also for a turn that has ended: who waits for its end is told once it is durable.
    if !wait.is_zero() {
        tokio::select! {
            ended = handle.await_item(&known.item_id) => { ended?; }
            () = tokio::time::sleep(wait) => {}
            () = app.closing.cancelled() => {}
        }
        known = report(&handle, &item).await?;
    }
    Ok(Json(wire::item(&known)))
}

pub(super) async fn edit(
    State(app): State<Arc<App>>,
    Path((id, item)): Path<(String, String)>,
    Body(body): Body<Edit>,
) -> Result<Json<Value>, ApiError> {
    app.takes_input()?;
    let content = content(body.content)?;
    let handle = app.open(&id).await?;
    let known = report(&handle, &item).await?;
    handle.edit(known.item_id, content).await?;
    Ok(Json(wire::item(&report(&handle, &item).await?)))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path((id, item)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.takes_input()?;
    let handle = app.open(&id).await?;
    let known = report(&handle, &item).await?;
    handle.remove(vec![known.item_id]).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    cause: Option<Value>,
    #[serde(default)]
    keep_inbox: bool,
    then: Option<Then>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Then {
    Park,
    Continue,
}

pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<Cancel>,
) -> Result<Json<Value>, ApiError> {
    let cause = cause(body.cause)?;
    let kept = match (body.keep_inbox, body.then) {
        (false, None) => KeptItems::Clear,
        (true, None | Some(Then::Park)) => KeptItems::Park,
        (true, Some(Then::Continue)) => KeptItems::Continue,
        (false, Some(_)) => return Err(ApiError::malformed("then says what kept items do; set keep_inbox to true")),
    };
    let handle = app.open(&id).await?;
    Ok(Json(json!(handle.cancel(cause, kept).await?)))
}

/// `"user"`, `"parent"`, `"hook:REASON"`, or the object that events show.
fn cause(value: Option<Value>) -> Result<Cause, ApiError> {
    match value {
        None => Ok(caller_cause(None)?),
        Some(Value::String(text)) => Ok(caller_cause(Some(&text))?),
        Some(other) => match serde_json::from_value(other) {
            Ok(cause @ (Cause::User | Cause::Parent | Cause::Hook { .. })) => Ok(cause),
            Ok(Cause::Disposed) | Err(_) => Err(ApiError::malformed("cause is user, parent or hook:REASON")),
        },
    }
}

pub(super) async fn idle(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Asked(query): Asked<Wait>,
) -> Result<Json<Value>, ApiError> {
    let wait = wait(query.wait)?.max(IDLE_WAIT_MIN);
    let handle = app.open(&id).await?;
    tokio::select! {
        fault = at_rest(&handle) => Ok(Json(match fault {
            None => json!({"idle": true}),
            Some(fault) => json!({"idle": true, "fault": fault}),
        })),
        () = tokio::time::sleep(wait) => Err(not_idle()),
        () = app.closing.cancelled() => Err(not_idle()),
    }
}

/// Ends when the agent is idle and everything that it logged is durable: after a failed checkpoint the end of a turn
/// becomes visible only once the store works again, and an idle agent has nothing more to show (K-3).
async fn at_rest(handle: &AgentHandle) -> Option<String> {
    loop {
        if let Some(fault) = handle.when_idle().await {
            return Some(fault);
        }
        let mut durable = handle.durable().await;
        let next = match handle.snapshot().await {
            Ok(snapshot) => snapshot.view.next_seq(),
            Err(OpError::Disposed) => return None,
            Err(error) => return Some(error.to_string()),
        };
        let all = durable.wait_for(|durable| durable.map_or(Seq(0), Seq::next) >= next);
        match tokio::time::timeout(IDLE_DURABLE_WAIT, all).await {
            // Where a checkpoint failed and the store did not, the next one covers it; an idle agent may have none.
            Ok(Ok(_)) | Err(_) => return None,
            Ok(Err(_)) => {}
        }
        // The journal died before: what it had not made durable may be gone, and the agent may have work again.
    }
}

fn not_idle() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "NOT_IDLE", "the agent is still at work; ask again, or wait longer")
}
