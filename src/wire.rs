//! The JSON that leaves the process: one place for every shape (SURFACE 5 and 7). Absent values are left out.

use everturn_actors::handle::{ItemReport, Status, Visible};
use everturn_storage::{
    event::{Event, SessionHeader},
    ids::SessionId,
    log::request::{MessageView, ModelMessage},
    store::SessionSummary,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The state that lists show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionState {
    /// No turn is open.
    Idle,
    /// A turn is open.
    Running,
    /// A turn is open and nobody works on it: its process died, and boot repair has not come to it yet.
    Interrupted,
}

impl SessionState {
    /// From the index.
    pub(crate) fn of(summary: &SessionSummary, live: bool) -> Self {
        match (summary.open_turn, live) {
            (None, _) => Self::Idle,
            (Some(_), true) => Self::Running,
            (Some(_), false) => Self::Interrupted,
        }
    }

    /// As asked for.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "idle" => Ok(Self::Idle),
            "running" => Ok(Self::Running),
            "interrupted" => Ok(Self::Interrupted),
            other => Err(format!("no state is called {other:?}; use idle, running or interrupted")),
        }
    }
}

/// An event in one line (SURFACE 5).
pub(crate) fn event(session: &SessionId, event: &Event) -> String {
    everturn_storage::json::event_line(session, event)
}

/// One line of the list of sessions.
pub(crate) fn session_row(summary: &SessionSummary, state: SessionState) -> Value {
    bare(json!({
        "id": summary.session,
        "agent": summary.agent,
        "state": state,
        "created_at": summary.created_at_ms,
        "updated_at": summary.updated_at_ms,
        "last_seq": summary.last_seq,
        "turns": summary.turns,
        "turn": summary.open_turn,
        "last_reason": summary.last_reason,
        "pending": {"next_turn": summary.pending_next_turn, "next_step": summary.pending_next_step},
        "usage": summary.usage,
        "title": summary.title,
        "labels": summary.labels,
    }))
}

/// The status record of CONTRACT 3.3 with what the index knows. A session that is not live is idle.
pub(crate) fn session_record(header: &SessionHeader, summary: &SessionSummary, status: Option<&Status>) -> Value {
    let state = match status.map(|status| status.visible) {
        Some(Visible::Running) => SessionState::Running,
        Some(Visible::Idle | Visible::Disposed) => SessionState::Idle,
        None => SessionState::of(summary, false),
    };
    let mut record = session_row(summary, state);
    let live = match status {
        Some(status) => json!(status),
        None => json!({
            "visible": "idle",
            "phase": "idle",
            "pending": {"next_turn": summary.pending_next_turn, "next_step": summary.pending_next_step},
            "parked": false,
        }),
    };
    let beside = json!({
        "cwd": header.cwd,
        "parent": header.parent,
        "preset": header.preset,
        "live": status.is_some(),
    });
    if let Some(record) = record.as_object_mut() {
        for part in [live, beside].map(bare) {
            if let Value::Object(part) = part {
                record.extend(part);
            }
        }
    }
    record
}

/// What became of an item.
pub(crate) fn item(report: &ItemReport) -> Value {
    bare(json!({
        "item_id": report.item_id,
        "state": report.state,
        "turn": report.turn,
        "reason": report.reason.as_ref().map(|reason| bare(json!(reason))),
        "answer": report.answer,
    }))
}

/// A message of the derived history.
pub(crate) fn message(message: &ModelMessage) -> Option<Value> {
    let value = match message.view()? {
        MessageView::System(message) | MessageView::User(message) | MessageView::Assistant(message) => json!(message),
        MessageView::Tool(message) => json!(message),
    };
    Some(bare(value))
}

/// Without the fields that are `null`, at every depth.
pub(crate) fn bare(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, bare(value)))
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(bare).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}
