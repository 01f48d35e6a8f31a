//! The fail-points of test builds (SURFACE 7).
//!
//! Without the feature `failpoints` every function here is empty and inlined away. With it, a point asks the registry
//! of the `fail` crate whether something is to go wrong, and whoever installed a [`live::Handler`] carries it out: this
//! package knows no files and ends no process. A point is asked twice, by its name and by `name@session`.

use everturn_storage::{event::EventBody, ids::SessionId};

use crate::protocol::CheckpointKind;

/// Every point by name, and whether an error means something there. Beside them stand `append` and `appended`, also
/// with a type of event (`append:turn/end`), and `checkpoint`, also with a kind (`checkpoint:request`).
pub const POINTS: &[(&str, bool)] = &[
    ("agent.append", false),
    ("agent.arm_timer", false),
    ("agent.answer", false),
    ("agent.checkpoint", false),
    ("agent.claimed", false),
    ("agent.disposed", false),
    ("agent.fault", false),
    ("agent.fire_maintenance", false),
    ("agent.fire_signal", false),
    ("agent.nothing_opened", false),
    ("agent.notify", false),
    ("agent.opened", false),
    ("agent.wake_driver", false),
    ("append", true),
    ("appended", false),
    ("boot.attention", true),
    ("boot.session", false),
    ("checkpoint", true),
    ("driver.abandon", false),
    ("driver.abort_attempt", false),
    ("driver.append", false),
    ("driver.arm_timer", false),
    ("driver.ask_claim_step", false),
    ("driver.ask_open_turn", false),
    ("driver.ask_pre_step", false),
    ("driver.ask_recovery", false),
    ("driver.ask_request", false),
    ("driver.ask_stopping", false),
    ("driver.assemble", false),
    ("driver.checkpoint", false),
    ("driver.dispatch", false),
    ("driver.fault", false),
    ("driver.prepare", false),
    ("driver.publish", false),
    ("driver.run_batch", false),
    ("driver.tell_phase", false),
    ("driver.turn_ended", false),
    ("driver.turn_settled", false),
    ("durable", false),
    ("keeper.checkpoint", false),
    ("keeper.cut", true),
    ("keeper.mark", false),
    ("keeper.open", false),
    ("keeper.pool", false),
    ("keeper.read", true),
    ("keeper.restart", false),
    ("keeper.start", false),
    ("policy.after_tool", true),
    ("policy.before_tool", true),
    ("policy.pre_step", true),
    ("policy.recovery", true),
    ("policy.request", true),
    ("policy.stopping", true),
    ("pool.abandon", false),
    ("pool.append", false),
    ("pool.arm_timer", false),
    ("pool.ask_policy", false),
    ("pool.ask_post", false),
    ("pool.checkpoint", false),
    ("pool.classify", false),
    ("pool.done", false),
    ("pool.fault", false),
    ("pool.fire_signal", false),
    ("pool.notice", false),
    ("pool.run_body", false),
    ("port.chunk", true),
    ("port.dispatch", true),
    ("port.finished", false),
    ("port.prepare", true),
    ("store.close", true),
    ("store.commit", true),
    ("store.read", true),
    ("store.reopen", true),
    ("store.sync", true),
    ("store.synced", false),
    ("store.written", false),
    ("tool.body", true),
    ("tool.body_done", true),
];

/// The name of a checkpoint kind in a fault script.
pub fn kind_name(kind: CheckpointKind) -> &'static str {
    match kind {
        CheckpointKind::Accept => "accept",
        CheckpointKind::Request => "request",
        CheckpointKind::Execute => "execute",
        CheckpointKind::Step => "step",
        CheckpointKind::Turn => "turn",
        CheckpointKind::Maintenance => "maintenance",
        CheckpointKind::Boot => "boot",
        CheckpointKind::Dispose => "dispose",
    }
}

/// What a test build plugs in.
#[cfg(feature = "failpoints")]
pub mod live {
    use std::sync::{Arc, PoisonError, RwLock};

    /// Carries out an action at a point: both as texts. May panic, wait, or end the process; what it returns is the
    /// error that the point shall report. It runs on threads of the runtime and must not need them.
    pub type Handler = dyn Fn(&str, &str) -> Option<String> + Send + Sync;

    static HANDLER: RwLock<Option<Arc<Handler>>> = RwLock::new(None);

    /// Has actions carried out by `handler` from now on.
    pub fn install(handler: Arc<Handler>) {
        *HANDLER.write().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    pub(super) fn eval(point: &str) -> Option<String> {
        let action = fail::eval(point, Option::unwrap_or_default)?;
        let handler = HANDLER.read().unwrap_or_else(PoisonError::into_inner).clone();
        handler.and_then(|handler| handler(point, &action))
    }
}

#[cfg(feature = "failpoints")]
fn ask(point: &str, session: Option<&SessionId>) -> Option<String> {
    let named = live::eval(point);
    let own = session.and_then(|session| live::eval(&format!("{point}@{session}")));
    named.or(own)
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
fn ask(_: &str, _: Option<&SessionId>) -> Option<String> {
    None
}

/// A point of a session where an actor may die, wait, or take the process with it.
#[inline(always)]
pub(crate) fn reach(point: &'static str, session: &SessionId) {
    drop(ask(point, Some(session)));
}

/// The same where an error means something: what went wrong.
#[inline(always)]
pub fn failure(point: &'static str, session: &SessionId) -> Option<String> {
    ask(point, Some(session))
}

/// The same where no session is concerned.
#[inline(always)]
pub fn failure_anywhere(point: &'static str) -> Option<String> {
    ask(point, None)
}

/// An append: asked as a whole, then for each type of event in it.
#[inline(always)]
pub(crate) fn append(point: &'static str, session: &SessionId, events: &[EventBody]) -> Option<String> {
    if cfg!(not(feature = "failpoints")) {
        return None;
    }
    let whole = ask(point, Some(session));
    let types = events.iter().filter_map(|event| ask(&format!("{point}:{}", event.data.type_name()), Some(session)));
    // Every one is asked, so that counts do not depend on the others.
    types.fold(whole, |first, next| first.or(Some(next)))
}

/// A checkpoint: asked as a whole, then for its kind.
#[inline(always)]
pub(crate) fn checkpoint(point: &'static str, session: &SessionId, kind: CheckpointKind) -> Option<String> {
    if cfg!(not(feature = "failpoints")) {
        return None;
    }
    let whole = ask(point, Some(session));
    let own = ask(&format!("{point}:{}", kind_name(kind)), Some(session));
    whole.or(own)
}
