//! Closers for what a dead process left open: a pure function of the log (7.5).

use super::{CallRow, LogState, tools};
use crate::{
    event::{EventBody, InboxRestored, OpenReason, SessionOpened, StepEnd, ToolError, ToolResult, TurnEnd, TurnReason},
    ids::{Epoch, ItemId, MessageId, Seq, SessionId, Step, Turn},
    message::{Block, Role, ToolMessage},
};

/// What repair would append.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// One atomic batch. Its events take the time of the last stored one (B-10).
    pub events: Vec<EventBody>,
    /// Items that were restored more than the limit and are parked as poison from now on (B-16, Z6).
    pub poisoned: Vec<ItemId>,
}

/// The closers for `state`, or `None` when it is balanced (B-19).
///
/// They depend on the log, the epoch and nothing else; applied, they leave a state that needs none (I-35).
pub fn plan(state: &LogState, epoch: Epoch, restore_limit: u32) -> Option<Plan> {
    let turn = state.open_turn()?;
    let mut events = vec![SessionOpened { reason: OpenReason::Repair, epoch }.into()];
    if let Some(step) = &turn.step {
        if let Some(settled) = &step.settled {
            for call in settled.calls.iter().filter(|call| call.resulted.is_none()) {
                events.push(dead_result(state.session(), turn.turn, step.step, settled.seq, call));
            }
        }
        events.push(StepEnd { turn: turn.turn, step: step.step }.into());
    }
    let left: Vec<_> = turn.claimed.iter().filter(|item| !item.admitted).collect();
    let ids: Vec<ItemId> = left.iter().map(|item| item.item.id.clone()).collect();
    events.push(
        TurnEnd { turn: turn.turn, reason: TurnReason::Interrupted, steps: turn.steps, unadmitted: ids.clone() }.into(),
    );
    if !ids.is_empty() {
        let counts = left.iter().map(|item| (item.item.id.clone(), item.restored + 1)).collect();
        events.push(InboxRestored { ids, counts }.into());
    }
    let poisoned = left.iter().filter(|item| item.restored >= restore_limit).map(|item| item.item.id.clone()).collect();
    Some(Plan { events, poisoned })
}

/// The `session/opened` that a process owes before it works on a balanced log (2.3, Z10).
///
/// `None` when a turn is open, which is [`plan`]'s business, and when nothing was done since the last opening.
pub fn opening(state: &LogState, epoch: Epoch) -> Option<EventBody> {
    let reason = match state.opened() {
        None => OpenReason::Fresh,
        Some(opened) if opened.worked_since && state.open_turn().is_none() => OpenReason::Resume,
        Some(_) => return None,
    };
    Some(SessionOpened { reason, epoch }.into())
}

const UNKNOWN: &str = "The process that ran this call died before the result was recorded. Whether the call ran, and \
    whether it had effects, is not known. Check before repeating it.";
const NOT_STARTED: &str =
    "The process died before this call was started. It did not run and had no effects. It may be made again.";
fn dead_result(session: &SessionId, turn: Turn, step: Step, message: Seq, call: &CallRow) -> EventBody {
    let (code, text, cited) = match call.called {
        Some(called) => (tools::TOOL_OUTCOME_UNKNOWN, UNKNOWN, called),
        None => (tools::TOOL_NOT_STARTED, NOT_STARTED, message),
    };
    let message = ToolMessage {
        // Call ids hold any characters; this id was made here and needs no check.
        id: MessageId::trusted(format!("repair:{session}:{}:{turn}.{step}", call.call_id)),
        role: Role::Tool,
        call_id: call.call_id.clone(),
        content: vec![Block::text(text)],
        is_error: true,
    };
    let error = Some(ToolError { name: call.name.clone(), code: code.to_owned() });
    EventBody::appended(ToolResult { turn, step, message, error, meta: None }.into()).citing(vec![cited])
}
