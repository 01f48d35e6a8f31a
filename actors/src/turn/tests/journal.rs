//! The column of the journal: appends and checkpoints that fail (rows 16, 41, 45 to 50).

use super::bench::*;
use crate::{
    handle::Frame,
    limits::JOURNAL_TRIES,
    ports::Decision,
    protocol::{AppendError, CheckpointFailed, ClaimStepAnswer},
    turn::*,
};
use everturn_storage::{event::*, ids::*, log::Violation, message::code, testing::sample};

const ADMISSION: &str = "system/message user/message request/header request/context";

/// A bench whose first append of this name was refused for good.
fn refused_at(name: &str, answers: Vec<Answer>) -> Bench {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.extend(answers);
    bench.wake();
    let token = bench.until(name);
    bench.refuse_append(token);
    bench
}

/// P5, P6, rows 45 to 47, scenario 58: nothing of the batch is there, the turn closes with an error.
#[test]
fn p5_p6_the_opening_appends_fail() {
    for (point, steps) in [("step/start", 0), (ADMISSION, 1)] {
        let mut bench = refused_at(point, vec![]);
        bench.run();
        assert_eq!(bench.code(), code::JOURNAL, "{point}");
        assert_eq!(bench.unadmitted(), [sample::item_id("m1")]);
        assert_eq!(bench.log.turns()[0].steps, steps);
        assert!(bench.log.surface().is_empty());
        bench.assert_goes_on();
    }
}

/// P9, row 47: the settlement cannot be logged: the turn closes with an error, watchers are told.
#[test]
fn p9_the_settlement_fails() {
    let mut bench = refused_at("assistant/message", vec![]);
    bench.run();
    assert_eq!(bench.code(), code::JOURNAL);
    assert!(matches!(bench.frames.last(), Some(Frame::Discarded { .. })));
    bench.assert_goes_on();
}

/// P18, row 48: no wait without its record, and the original failure stands.
#[test]
fn p18_the_retry_cannot_be_recorded() {
    for point in ["retry/scheduled", "retry/started"] {
        let mut bench = refused_at(point, vec![fails(code::SERVER, FailedBy::Provider, "")]);
        bench.run();
        assert_eq!(bench.code(), code::SERVER, "{point}");
        bench.assert_goes_on();
    }
}

/// P2 to P4, P11', P16, row 49: what is open cannot be closed: faulted.
#[test]
fn the_closing_appends_fail() {
    for (point, decision) in [
        ("step/end", Decision::Pass),
        ("turn/end", Decision::Pass),
        ("turn/end", Decision::Enter(Vec::new())),
        ("prompt/blocked turn/end", Decision::Reject { reason: "rude".into() }),
    ] {
        let mut bench = Bench::new(&["m1"]);
        bench.decisions.push_back(Ok(decision));
        bench.wake();
        let token = bench.until(point);
        bench.refuse_append(token);
        assert_eq!(bench.trace.last().unwrap(), "fault", "{point}");
        assert!(bench.open.is_empty());
    }
}

/// Rows 45 and 46: another try with the same batch succeeds, within the tries and waits of `journal_retry`.
#[test]
fn a_second_try_succeeds() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("assistant/message");
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.run();
    assert_eq!(bench.reason(), TurnReason::Completed);
    assert_eq!(bench.delays_ms, [50]);
    assert_eq!(JOURNAL_TRIES, 3);
}

/// Row 45: a batch that breaks a rule is not tried again.
#[test]
fn a_refused_batch_is_not_tried_again() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("step/start");
    let violation = Violation { rule: "I-3", seq: Seq(3), why: "no".into() };
    bench.feed(Input::AppendFailed { token, error: AppendError::Refused(violation) });
    bench.run();
    assert!(bench.delays_ms.is_empty());
    assert_eq!(bench.code(), code::JOURNAL);
}

/// Row 50, W-2: a fenced writer stops at once.
#[test]
fn a_fenced_writer_stops() {
    for point in ["step/start", ADMISSION, "assistant/message", "step/end", "turn/end"] {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        let token = bench.until(point);
        bench.feed(Input::AppendFailed { token, error: AppendError::Fenced });
        assert_eq!(bench.trace.last().unwrap(), "fault");
        assert!(bench.open.is_empty());
    }
}

/// P7, row 16, scenario 33: CP-R fails for good: no dispatch, the users stay.
#[test]
fn p7_the_request_checkpoint_fails() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.wake();
    let token = bench.until("CP-R");
    bench.refuse_checkpoint(token);
    assert!(!bench.trace.contains(&"dispatch".to_owned()));
    bench.run();
    assert!(matches!(&bench.ended[0].1, TurnReason::Error { failure } if failure.code == code::CHECKPOINT));
    assert_eq!(bench.ended[1].1, TurnReason::Completed);
    assert_eq!(bench.log.surface().len(), 4, "system, both users, one answer");
}

/// P16, row 16, scenario 36: CP-S fails for good: the results stay.
#[test]
fn p16_the_step_checkpoint_fails() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.wake();
    let token = bench.until("CP-S");
    bench.refuse_checkpoint(token);
    bench.run();
    assert_eq!(bench.code(), code::CHECKPOINT);
    assert_eq!(bench.log.surface().len(), 4);
    bench.assert_goes_on();
}

/// Row 46: a checkpoint that succeeds at the second try.
#[test]
fn a_checkpoint_is_tried_again() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("CP-R");
    bench.feed(Input::CheckpointFailed { token, error: CheckpointFailed("away".into()) });
    bench.run();
    assert_eq!(bench.delays_ms, [50]);
    assert_eq!(bench.reason(), TurnReason::Completed);
}

/// P7, row 54: a cancel ends the wait for another try of CP-R.
#[test]
fn p7_cancel_while_the_checkpoint_waits() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("CP-R");
    bench.feed(Input::CheckpointFailed { token, error: CheckpointFailed("away".into()) });
    bench.cancel();
    bench.assert_aborted();
    assert!(bench.delays_ms.is_empty());
}

/// P17, row 44, K-3, scenarios 25 and 26: a failed CP-T is reported and the next item proceeds, once it has failed.
#[test]
fn p17_the_turn_checkpoint_fails() {
    let reject = Ok(Decision::Reject { reason: "rude".into() });
    let empty = Ok(Decision::Enter(Vec::new()));
    for decision in [Ok(Decision::Pass), reject, empty, Err(extension_error())] {
        let mut bench = Bench::new(&["m1", "m2"]);
        bench.decisions.push_back(decision);
        bench.wake();
        let token = bench.until("CP-T");
        assert_eq!(bench.log.last_turn(), Turn(1));
        bench.feed(Input::CheckpointFailed { token, error: CheckpointFailed("away".into()) });
        assert!(matches!(bench.frames.last(), Some(Frame::Notice { .. })));
        assert_eq!(bench.trace.last().unwrap(), "turn settled false");
        bench.run();
        assert_eq!(bench.log.turns().len(), 2);
        assert!(bench.delays_ms.is_empty(), "it is not tried again");
    }
}

/// P16, rows 41 and 45: a claim that cannot be logged is tried again, then the turn closes.
#[test]
fn p16_the_claim_fails() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    for _ in 0..JOURNAL_TRIES {
        let token = bench.until("claim");
        bench.feed(Input::ClaimAnswered { token, answer: ClaimStepAnswer::Failed(io()) });
    }
    bench.run();
    assert_eq!(bench.delays_ms, [50, 150]);
    assert_eq!(bench.code(), code::JOURNAL);
    bench.assert_goes_on();
}

/// P16: a cancel ends the wait for another try of the claim.
#[test]
fn p16_cancel_while_the_claim_waits() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("claim");
    bench.feed(Input::ClaimAnswered { token, answer: ClaimStepAnswer::Failed(io()) });
    bench.cancel();
    bench.assert_aborted();
    assert!(bench.delays_ms.is_empty());
}

/// Row 50 for the claim.
#[test]
fn a_fenced_claim_faults() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("claim");
    bench.feed(Input::ClaimAnswered { token, answer: ClaimStepAnswer::Failed(AppendError::Fenced) });
    assert_eq!(bench.trace.last().unwrap(), "fault");
}
