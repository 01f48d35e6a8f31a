//! Calls and their results (I-14 to I-18, I-20).

use super::{
    LogState, Node, SettledRow,
    check::{Check, broken, ensure},
    surface,
    turn_rules::open_step,
};
use crate::{
    event::{Event, SurfaceOp, ToolCall, ToolResult},
    ids::{Seq, Step, Turn},
    message::Role,
};
use std::sync::Arc;

/// `error.code` of a call whose process died before it was logged.
pub const TOOL_NOT_STARTED: &str = "TOOL_NOT_STARTED";
/// `error.code` of a call that was logged, and of which nobody knows whether it ran.
pub const TOOL_OUTCOME_UNKNOWN: &str = "TOOL_OUTCOME_UNKNOWN";
/// `error.code` of a call that was skipped.
pub const ABORTED_BEFORE_DISPATCH: &str = "ABORTED_BEFORE_DISPATCH";

/// The response whose calls are worked on.
fn settled<'a>(
    state: &'a mut LogState,
    event: &Event,
    turn: Turn,
    step: Step,
) -> Result<&'a mut SettledRow, super::Violation> {
    let seq = event.seq;
    match open_step(state, event, turn, step)?.settled.as_mut() {
        Some(settled) if !settled.interrupted => Ok(settled),
        Some(_) => Err(broken("I-14", seq, "the response was cut, it has no calls")),
        None => Err(broken("I-14", seq, "no response of the step asks for a tool")),
    }
}

pub(super) fn call(state: &mut LogState, event: &Event, data: &ToolCall) -> Check {
    let seq = event.seq;
    let cap = state.max_parallel;
    let settled = settled(state, event, data.turn, data.step)?;
    let open = settled.calls.iter().filter(|call| call.called.is_some() && call.resulted.is_none()).count();
    ensure!(cap.is_none_or(|cap| open < cap as usize), "I-20", seq, "{open} calls are open already");
    let Some(at) = settled.calls.iter().position(|call| call.call_id == data.call_id) else {
        return Err(broken("I-14", seq, format!("the response has no call {}", data.call_id)));
    };
    let Some(next) = settled.calls.iter().position(|call| call.called.is_none() && call.resulted.is_none()) else {
        return Err(broken("I-15", seq, "every call is logged already"));
    };
    ensure!(at == next, "I-15", seq, "calls are logged once each and in the order of the response");
    if let Some(row) = settled.calls.get_mut(at) {
        let same = (&row.name, &row.arguments) == (&data.name, &data.arguments);
        ensure!(same, "I-14", seq, "the response has another name or other arguments for call {}", data.call_id);
        row.called = Some(seq);
    }
    Ok(())
}

pub(super) fn result(state: &mut LogState, event: &Arc<Event>, data: &ToolResult) -> Check {
    let seq = event.seq;
    ensure!(data.message.role == Role::Tool, "grammar", seq, "a result is of role tool");
    match event.body.surface {
        Some(SurfaceOp::Append) => {}
        Some(SurfaceOp::Replace { start, end }) => {
            ensure!(!state.repairing(), "grammar", seq, "repair rewrites nothing");
            return surface::prune(state, event, data, start, end);
        }
        Some(SurfaceOp::Prepend) | None => return Err(broken("I-21", seq, "a result goes to the end of the surface")),
    }
    let repairing = state.repairing();
    let code = data.error.as_ref().map(|error| error.code.as_str());
    let not_started = code == Some(TOOL_NOT_STARTED);
    let settled = settled(state, event, data.turn, data.step)?;
    let Some(at) = settled.calls.iter().position(|call| call.call_id == data.message.call_id) else {
        return Err(broken("I-14", seq, format!("the response has no call {}", data.message.call_id)));
    };
    let before = settled.calls.iter().take(at).all(|call| call.resulted.is_some());
    let Some(row) = settled.calls.get_mut(at) else { return Ok(()) };
    ensure!(row.resulted.is_none(), "I-16", seq, "call {} has its result already", row.call_id);
    ensure!(before, "I-15", seq, "results are logged in the order of the response");
    match row.called {
        Some(called) => {
            let honest = !repairing || code == Some(TOOL_OUTCOME_UNKNOWN);
            ensure!(honest, "I-17", seq, "repair knows nothing of call {} but that it was logged", row.call_id);
            cites(event, called)?;
        }
        None => {
            ensure!(not_started && repairing, "I-17", seq, "call {} was not logged", row.call_id);
        }
    }
    ensure!(!not_started || repairing, "I-17", seq, "only repair says that a call was not started");
    row.resulted = Some(seq);
    state.surface.push_back(Node { event: Arc::clone(event), role: Role::Tool });
    Ok(())
}

fn cites(event: &Event, call: Seq) -> Check {
    ensure!(event.body.cites.contains(&call), "I-15", event.seq, "a result cites its call, which is event {call}");
    Ok(())
}
