//! Rows P1 to P11 of CONTRACT 4.3.

use super::rig::{
    Act::{CancelAt, CancelHeld, Crash, KillHeld, Wait},
    Rig, cell,
};

/// P1: the opening append is in flight. It is decided behind it; what was refused is tried again; a crash leaves all of
/// it or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn p01_opening_append() {
    let cells = [
        cell("cancel", "plain", "append:turn/start@=HOLD", CancelHeld, "turn claimed /turn(aborted,U)"),
        cell(
            "append",
            "plain",
            "append:turn/start#1@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "crash-before",
            "plain",
            "append:turn/start@=HOLD",
            KillHeld,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "crash-behind",
            "plain",
            "policy.pre_step@=HOLD",
            KillHeld,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P2: claimed, the pre-step chain runs.
#[tokio::test(flavor = "multi_thread")]
async fn p02_pre_step() {
    let cells = [
        cell("cancel", "plain", "policy.pre_step#1@=HOLD", CancelHeld, "turn claimed /turn(aborted,U)"),
        cell("error", "plain", "policy.pre_step#1@=error", Wait, "turn claimed /turn(error:EXTENSION,U)"),
        cell("panic", "plain", "policy.pre_step#1@=panic", Wait, "turn claimed /turn(error:EXTENSION,U)"),
        cell(
            "close",
            "plain",
            "policy.pre_step#1@=error; append:turn/end#1@=error",
            Wait,
            "turn claimed /turn(error:EXTENSION,U)",
        ),
        cell(
            "faulted",
            "plain",
            "policy.pre_step#1@=error; append:turn/end#1..9@=error",
            Wait,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
        cell(
            "crash",
            "plain",
            "policy.pre_step@=HOLD",
            KillHeld,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P3: the prompt is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn p03_rejected() {
    let cells = [
        cell("rejected", "plain", "policy.pre_step#1@=reject(not now)", Wait, "turn claimed blocked /turn(rejected,U)"),
        cell(
            "append",
            "plain",
            "policy.pre_step#1@=reject(not now); append:prompt/blocked#1@=error",
            Wait,
            "turn claimed blocked /turn(rejected,U)",
        ),
        cell(
            "faulted",
            "plain",
            "policy.pre_step#1..2@=reject(no); append:prompt/blocked#1..9@=error",
            Wait,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
        cell(
            "crash-before",
            "plain",
            "policy.pre_step@=reject(no); append:prompt/blocked@=HOLD",
            KillHeld,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
        cell(
            "crash-behind",
            "plain",
            "policy.pre_step@=reject(no); checkpoint:turn@=HOLD",
            KillHeld,
            "turn claimed blocked /turn(rejected,U) opened(resume)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P4: the chain leaves nothing of the batch.
#[tokio::test(flavor = "multi_thread")]
async fn p04_empty() {
    let cells = [
        cell("empty", "plain", "policy.pre_step#1@=empty", Wait, "turn claimed /turn(completed,U)"),
        cell(
            "append",
            "plain",
            "policy.pre_step#1@=empty; append:turn/end#1@=error",
            Wait,
            "turn claimed /turn(completed,U)",
        ),
        cell(
            "crash",
            "plain",
            "policy.pre_step@=empty; append:turn/end@=HOLD",
            KillHeld,
            "turn claimed opened(repair) /turn(interrupted,U) restored",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P5: the step is open, the request is put together.
#[tokio::test(flavor = "multi_thread")]
async fn p05_prepare() {
    let cells = [
        cell("cancel", "plain", "port.prepare#1@=HOLD", CancelHeld, "turn claimed step /step /turn(aborted,U)"),
        cell("error", "plain", "policy.request#3=error", Wait, "turn claimed step /step /turn(error:EXTENSION,U)"),
        cell("route", "plain", "port.prepare#1@=error", Wait, "turn claimed step /step /turn(error:UNKNOWN_MODEL,U)"),
        cell("append", "plain", "append:step/start#1..3@=error", Wait, "turn claimed /turn(error:JOURNAL,U)"),
        cell(
            "crash",
            "plain",
            "port.prepare@=HOLD",
            KillHeld,
            "turn claimed step opened(repair) /step /turn(interrupted,U) restored",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P6: the admission.
#[tokio::test(flavor = "multi_thread")]
async fn p06_admission() {
    let cells = [
        cell(
            "cancel",
            "plain",
            "append:user/message#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context /step /turn(aborted)",
        ),
        cell(
            "append",
            "plain",
            "append:user/message#1..3@=error",
            Wait,
            "turn claimed step /step /turn(error:JOURNAL,U)",
        ),
        cell(
            "crash-before",
            "plain",
            "append:user/message@=HOLD",
            KillHeld,
            "turn claimed step opened(repair) /step /turn(interrupted,U) restored",
        ),
        cell(
            "crash-behind",
            "plain",
            "checkpoint:request@=HOLD",
            KillHeld,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P7: admitted, and not yet durable.
#[tokio::test(flavor = "multi_thread")]
async fn p07_request_checkpoint() {
    let cells = [
        cell(
            "cancel",
            "plain",
            "checkpoint:request#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context /step /turn(aborted)",
        ),
        cell(
            "retried",
            "plain",
            "checkpoint:request#1@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "failed",
            "plain",
            "checkpoint:request#1..3@=error",
            Wait,
            "turn claimed step system user header context /step /turn(error:CHECKPOINT)",
        ),
        cell(
            "crash",
            "plain",
            "driver.dispatch@=kill",
            Crash,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P8: dispatched, nothing visible.
#[tokio::test(flavor = "multi_thread")]
async fn p08_dispatched() {
    let cells = [
        cell(
            "cancel",
            "hang",
            "",
            CancelAt("request/context"),
            "turn claimed step system user header context attempt(cancelled) /step /turn(aborted)",
        ),
        cell(
            "consumer",
            "plain",
            "port.chunk#1@=panic",
            Wait,
            "turn claimed step system user header context attempt(stream_error) /step /turn(error:EXTENSION)",
        ),
        cell(
            "retried",
            "server",
            "",
            Wait,
            "turn claimed step system user header context attempt(failed) retry again message /step /turn(completed)",
        ),
        cell(
            "gives-up",
            "refuses",
            "",
            Wait,
            "turn claimed step system user header context attempt(failed) /step /turn(error:INVALID_REQUEST)",
        ),
        cell(
            "crash",
            "plain",
            "port.dispatch@=HOLD",
            KillHeld,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P9: a prefix was seen.
#[tokio::test(flavor = "multi_thread")]
async fn p09_prefix() {
    let cells = [
        cell(
            "cancel",
            "plain",
            "port.chunk#3@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message(interrupted) /step /turn(aborted)",
        ),
        cell(
            "consumer",
            "prefix",
            "port.chunk#3@=panic",
            Wait,
            "turn claimed step system user header context attempt(stream_error) /step /turn(error:EXTENSION)",
        ),
        cell(
            "provider",
            "prefix",
            "port.chunk#3@=error",
            Wait,
            "turn claimed step system user header context attempt(failed) retry again message /step /turn(completed)",
        ),
        cell(
            "append",
            "plain",
            "append:assistant/message#1@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "close",
            "plain",
            "append:assistant/message#1..3@=error",
            Wait,
            "turn claimed step system user header context /step /turn(error:JOURNAL)",
        ),
        cell(
            "crash",
            "plain",
            "port.chunk#3@=HOLD",
            KillHeld,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P10: the stream has finished, its settlement is not logged.
#[tokio::test(flavor = "multi_thread")]
async fn p10_finished() {
    let cells = [
        cell(
            "cancel",
            "tool",
            "port.finished#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message(interrupted) /step /turn(aborted)",
        ),
        cell(
            "panic",
            "plain",
            "port.finished#1@=panic",
            Wait,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
        cell(
            "crash",
            "tool",
            "append:assistant/message@=HOLD",
            KillHeld,
            "turn claimed step system user header context opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}

/// P11: settled with calls, none logged; P11': settled without calls.
#[tokio::test(flavor = "multi_thread")]
async fn p11_settled() {
    let cells = [
        cell(
            "cancel",
            "pair",
            "appended:assistant/message#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message call result(ABORTED_BEFORE_DISPATCH) call result(ABORTED_BEFORE_DISPATCH) /step /turn(aborted)",
        ),
        cell(
            "append",
            "pair",
            "append:tool/call#1..9@=error",
            Wait,
            "turn claimed step system user header context message opened(repair) result(TOOL_NOT_STARTED) result(TOOL_NOT_STARTED) /step /turn(interrupted)",
        ),
        cell(
            "crash",
            "pair",
            "append:tool/call@=HOLD",
            KillHeld,
            "turn claimed step system user header context message opened(repair) result(TOOL_NOT_STARTED) result(TOOL_NOT_STARTED) /step /turn(interrupted)",
        ),
        cell(
            "no-calls-cancel",
            "plain",
            "appended:assistant/message#1@=HOLD",
            CancelHeld,
            "turn claimed step system user header context message /step /turn(aborted)",
        ),
        cell(
            "no-calls-append",
            "plain",
            "append:step/end#1@=error",
            Wait,
            "turn claimed step system user header context message /step /turn(completed)",
        ),
        cell(
            "no-calls-faulted",
            "plain",
            "append:step/end#1..9@=error",
            Wait,
            "turn claimed step system user header context message opened(repair) /step /turn(interrupted)",
        ),
        cell(
            "no-calls-crash",
            "plain",
            "append:step/end@=HOLD",
            KillHeld,
            "turn claimed step system user header context message opened(repair) /step /turn(interrupted)",
        ),
    ];
    Rig::new().row(&cells).await;
}
