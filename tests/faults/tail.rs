//! Rows P12 to P19 of CONTRACT 4.3.

use super::rig::{
    Act::{CancelHeld, Crash, KillHeld, Wait},
    Rig, cell,
};

/// P12: a call is logged; policy or CP-X pending.
#[tokio::test(flavor = "multi_thread")]
async fn p12_call_logged() {
    let cells = [
        cell(
            "cancel",
            "pair",
            "policy.before_tool#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message call result(ABORTED_BEFORE_DISPATCH) call result(ABORTED_BEFORE_DISPATCH) /step /turn(aborted)",
        ),
        cell(
            "error",
            "tool",
            "policy.before_tool#1@=error",
            Wait,
            "turn claimed step system user header context message call result(POLICY_ERROR) /step step message /step /turn(completed)",
        ),
        cell(
            "panic",
            "tool",
            "policy.before_tool#1@=panic",
            Wait,
            "turn claimed step system user header context message call result(POLICY_ERROR) /step step message /step /turn(completed)",
        ),
        cell(
            "checkpoint",
            "tool",
            "checkpoint:execute#1@=error",
            Wait,
            "turn claimed step system user header context message call result(CHECKPOINT_FAILED) /step step message /step /turn(completed)",
        ),
        cell(
            "result",
            "tool",
            "append:tool/result#1..9@=error",
            Wait,
            "turn claimed step system user header context message call opened(repair) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)",
        ),
        cell(
            "crash",
            "pair",
            "checkpoint:execute@=HOLD",
            KillHeld,
            "turn claimed step system user header context message call call opened(repair) result(TOOL_OUTCOME_UNKNOWN) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P13: a body runs.
#[tokio::test(flavor = "multi_thread")]
async fn p13_body() {
    let cells = [
        cell(
            "cancel",
            "pair",
            "tool.body#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message call call result result /step /turn(aborted)",
        ),
        cell(
            "error",
            "tool",
            "tool.body#1@=error",
            Wait,
            "turn claimed step system user header context message call result(failed) /step step message /step /turn(completed)",
        ),
        cell(
            "panic",
            "tool",
            "tool.body#1@=panic",
            Wait,
            "turn claimed step system user header context message call result(TOOL_PANIC) /step step message /step /turn(completed)",
        ),
        cell(
            "append",
            "tool",
            "append:tool/result#1@=error",
            Wait,
            "turn claimed step system user header context message call result /step step message /step /turn(completed)",
        ),
        cell(
            "crash",
            "pair",
            "tool.body#1@=kill",
            Crash,
            "turn claimed step system user header context message call call opened(repair) result(TOOL_OUTCOME_UNKNOWN) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P14: the contexts of a tool go into the inbox with its result, in one append.
#[tokio::test(flavor = "multi_thread")]
async fn p14_contexts() {
    let cells = [
        cell(
            "context",
            "tool",
            "tool.notes#1@=context(by the way)",
            Wait,
            "turn claimed step system user header context message call result queued(context) /step claimed step user message /step /turn(completed)",
        ),
        cell(
            "cancel",
            "tool",
            "tool.notes#1@=context(by the way); appended:tool/result#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message call result queued(context) /step /turn(aborted)",
        ),
        cell(
            "append",
            "tool",
            "tool.notes#1@=context(by the way); append:tool/result#1..9@=error",
            Wait,
            "turn claimed step system user header context message call opened(repair) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)",
        ),
        cell(
            "crash",
            "tool",
            "tool.notes@=context(by the way); append:step/end@=HOLD",
            KillHeld,
            "turn claimed step system user header context message call result queued(context) opened(repair) /step /turn(interrupted)",
        ),
        cell(
            "concluded",
            "tool",
            "tool.notes#1@=conclude",
            Wait,
            "turn claimed step system user header context message call result /step /turn(completed)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P15: the policies behind a body.
#[tokio::test(flavor = "multi_thread")]
async fn p15_after_tool() {
    let cells = [
        cell(
            "cancel",
            "pair",
            "policy.after_tool#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message call call result result /step /turn(aborted)",
        ),
        cell(
            "error",
            "tool",
            "policy.after_tool#1@=error",
            Wait,
            "turn claimed step system user header context message call result(POLICY_ERROR) /step step message /step /turn(completed)",
        ),
        cell(
            "panic",
            "tool",
            "policy.after_tool#1@=panic",
            Wait,
            "turn claimed step system user header context message call result(POLICY_ERROR) /step step message /step /turn(completed)",
        ),
        cell(
            "crash",
            "tool",
            "policy.after_tool#1@=kill",
            Crash,
            "turn claimed step system user header context message call opened(repair) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P16: the step is closed; CP-S, the claim or the stopping chain.
#[tokio::test(flavor = "multi_thread")]
async fn p16_between_steps() {
    let cells = [
        cell(
            "cancel",
            "plain",
            "policy.stopping#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message /step /turn(aborted)",
        ),
        cell(
            "error",
            "plain",
            "policy.stopping#1@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(error:EXTENSION)",
        ),
        cell(
            "panic",
            "plain",
            "policy.stopping#1@=panic",
            Wait,
            "turn claimed step system user header context message /step /turn(error:EXTENSION)",
        ),
        cell(
            "checkpoint",
            "plain",
            "checkpoint:step#1..3@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(error:CHECKPOINT)",
        ),
        cell(
            "crash",
            "plain",
            "policy.stopping@=HOLD",
            KillHeld,
            "turn claimed step system user header context message /step opened(repair) /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P17: the turn is closed, its checkpoint has not settled.
#[tokio::test(flavor = "multi_thread")]
async fn p17_turn_checkpoint() {
    let cells = [
        cell(
            "cancel",
            "plain",
            "checkpoint:turn#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "failed",
            "plain",
            "checkpoint:turn#1..3@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "crash",
            "plain",
            "checkpoint:turn@=HOLD",
            KillHeld,
            "turn claimed step system user header context message /step /turn(completed) opened(resume)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P18: the wait before another attempt.
#[tokio::test(flavor = "multi_thread")]
async fn p18_retry_wait() {
    let cells = [
        cell(
            "cancel",
            "later",
            "driver.arm_timer#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context attempt(failed) retry /step /turn(aborted)",
        ),
        cell(
            "error",
            "server",
            "policy.recovery#1@=error",
            Wait,
            "turn claimed step system user header context attempt(failed) /step /turn(error:SERVER)",
        ),
        cell(
            "panic",
            "server",
            "policy.recovery#1@=panic",
            Wait,
            "turn claimed step system user header context attempt(failed) /step /turn(error:SERVER)",
        ),
        cell(
            "append",
            "server",
            "append:retry/scheduled#1..3@=error",
            Wait,
            "turn claimed step system user header context attempt(failed) /step /turn(error:SERVER)",
        ),
        cell(
            "crash",
            "server",
            "driver.arm_timer@=HOLD",
            KillHeld,
            "turn claimed step system user header context attempt(failed) retry opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P19: what a member of the recovery chain does before it answers. The built-in members compact nothing, so there is no
/// bracket to close; a cancel, an error and a crash in it leave what the table says of the step and the turn.
#[tokio::test(flavor = "multi_thread")]
async fn p19_recovery() {
    let cells = [
        cell(
            "cancel",
            "server",
            "policy.recovery#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context attempt(failed) /step /turn(aborted)",
        ),
        cell(
            "crash",
            "server",
            "policy.recovery@=HOLD",
            KillHeld,
            "turn claimed step system user header context attempt(failed) opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}
