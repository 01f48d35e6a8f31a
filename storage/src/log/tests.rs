//! The worked logs of 12.1 to 12.5; rules, properties and mutations in files of their own.

mod mutations;
mod properties;
mod rules;
mod verifier;

use super::{ItemFate, repair};
use crate::{event::*, ids::*, testing::sample::*};

/// One tool turn up to, and with, the settled calls. The base of other tests.
pub(super) fn one_tool_turn() -> Sample {
    let mut log = Sample::fresh();
    log.push(vec![queued("m1", Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m1"])]).unwrap();
    log.push(vec![step_start(1, 1)]).unwrap();
    log.push(vec![
        system("sys", "Be kind.", SurfaceOp::Append),
        user("m1", Origin::Send),
        header(HeaderReason::Initial),
        context(1000),
    ])
    .unwrap();
    log.push(vec![answered(1, 1, 1, "", &["a", "b"])]).unwrap();
    log
}

/// CONTRACT 12.1.
#[test]
fn worked_log_one_tool_turn() {
    let mut log = one_tool_turn();
    let a = log.push(vec![call(1, 1, "a")]).unwrap();
    let b = log.push(vec![call(1, 1, "b")]).unwrap();
    log.push(vec![result(1, 1, "a", a, None)]).unwrap();
    log.push(vec![result(1, 1, "b", b, None), queued("ctx1", Origin::Context)]).unwrap();
    log.push(vec![step_end(1, 1)]).unwrap();
    log.push(vec![claimed(1, 2, 2, &["ctx1"])]).unwrap();
    log.push(vec![step_start(1, 2)]).unwrap();
    log.push(vec![user("ctx1", Origin::Context)]).unwrap();
    log.push(vec![answered(1, 2, 1, "It is noon.", &[])]).unwrap();
    log.push(vec![step_end(1, 2)]).unwrap();
    log.push(vec![turn_end(1, TurnReason::Completed, 2, &[])]).unwrap();
    assert_eq!(log.state.surface().len(), 7);
    assert_eq!(log.state.turns()[0].answer, Some(Seq(19)));
    assert_eq!(log.state.usage().input, 6);
}

/// CONTRACT 12.2.
#[test]
fn worked_log_retry_then_cancel() {
    let mut log = Sample::fresh();
    log.push(vec![queued("m1", Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m1"])]).unwrap();
    log.push(vec![step_start(1, 1)]).unwrap();
    log.push(vec![user("m1", Origin::Send), header(HeaderReason::Initial), context(1000)]).unwrap();
    log.push(vec![attempt(1, 1, 1, AttemptOutcome::Failed)]).unwrap();
    log.push(vec![retry("r1", 1, 1, 1, 1, 5)]).unwrap();
    log.push(vec![retry_started("r1")]).unwrap();
    log.push(vec![cut_answer(1, 1, 2, "Hel")]).unwrap();
    log.push(vec![step_end(1, 1), turn_end(1, TurnReason::Aborted { cause: Cause::User }, 1, &[])]).unwrap();
    assert_eq!(log.state.surface().len(), 2);
}

/// CONTRACT 12.3.
#[test]
fn worked_log_crash_with_three_calls() {
    let mut log = Sample::fresh();
    log.push(vec![queued("m1", Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m1"])]).unwrap();
    log.push(vec![step_start(1, 1)]).unwrap();
    log.push(vec![user("m1", Origin::Send), header(HeaderReason::Initial)]).unwrap();
    log.push(vec![answered(1, 1, 1, "", &["a", "b", "c"])]).unwrap();
    let a = log.push(vec![call(1, 1, "a")]).unwrap();
    log.push(vec![call(1, 1, "b")]).unwrap();
    log.push(vec![result(1, 1, "a", a, None)]).unwrap();
    let plan = repair::plan(&log.state, Epoch(2), 3).unwrap();
    let names: Vec<_> = plan.events.iter().map(|event| event.data.type_name()).collect();
    assert_eq!(names, ["session/opened", "tool/result", "tool/result", "step/end", "turn/end"]);
    log.push(plan.events).unwrap();
    assert_eq!(repair::plan(&log.state, Epoch(3), 3), None);
    assert_eq!(repair::opening(&log.state, Epoch(3)), None);
    assert_eq!(log.state.turns()[0].reason, TurnReason::Interrupted);
}

/// CONTRACT 12.4.
#[test]
fn worked_log_crash_before_admission() {
    let mut log = Sample::fresh();
    log.push(vec![queued("m4", Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m4"])]).unwrap();
    log.push(vec![step_start(1, 1)]).unwrap();
    let plan = repair::plan(&log.state, Epoch(2), 3).unwrap();
    let expected = vec![
        opened(OpenReason::Repair, 2),
        step_end(1, 1),
        turn_end(1, TurnReason::Interrupted, 1, &["m4"]),
        restored(&["m4"], 1),
    ];
    assert_eq!(plan.events, expected);
    log.push(plan.events).unwrap();
    assert_eq!(log.state.fate(&item_id("m4")), Some(&ItemFate::Pending));
    log.push(vec![turn_start(2), claimed(2, 1, 1, &["m4"])]).unwrap();
}

/// CONTRACT 12.5.
#[test]
fn worked_log_blocked_then_allowed() {
    let mut log = Sample::fresh();
    log.push(vec![queued("m5", Origin::Send)]).unwrap();
    log.push(vec![queued("m6", Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m5"])]).unwrap();
    let rejected = TurnReason::Rejected { reason: "policy".into() };
    log.push(vec![blocked(1, &["m5"]), turn_end(1, rejected, 0, &["m5"])]).unwrap();
    assert_eq!(log.state.fate(&item_id("m5")), Some(&ItemFate::Blocked(Turn(1))));
    log.push(vec![turn_start(2), claimed(2, 1, 1, &["m6"])]).unwrap();
    log.push(vec![step_start(2, 1)]).unwrap();
    log.push(vec![user("m6", Origin::Send), header(HeaderReason::Initial)]).unwrap();
}
