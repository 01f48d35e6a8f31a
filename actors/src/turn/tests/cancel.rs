//! The cancel column of the failure table, and the windows of 4.4 that are the driver's (rows 51 to 55).

use super::bench::*;
use crate::{
    handle::Frame,
    ports::{Decision, RecoveryVerdict},
    turn::*,
};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    event::*,
    ids::*,
    log::tools,
    message::{Block, code},
    testing::sample,
};

/// Cancels while `name` is asked and not answered, and runs to the end.
fn cancelled_at(name: &str) -> Bench {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    bench.until(name);
    bench.cancel();
    bench
}

/// P2, row 51, scenario 47: no step, no system, no user, and `unadmitted` names the batch.
#[test]
fn p2_assembly_and_pre_step() {
    for point in ["assemble", "pre-step"] {
        let mut bench = cancelled_at(point);
        bench.run();
        assert_eq!(bench.types(), ["turn/start", "inbox/claimed", "turn/end"], "{point}");
        assert_eq!(bench.unadmitted(), [sample::item_id("m1")]);
        assert!(bench.trace.contains(&"abandon".to_owned()));
        bench.assert_aborted();
    }
}

/// P3, scenario 48: a cancel that is observed before a refusal wins.
#[test]
fn p3_cancel_beats_a_refusal() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("pre-step");
    bench.cancel();
    let result = Ok(Decision::Reject { reason: "rude".into() });
    bench.feed(Input::Decided { token, result, view: None });
    assert_eq!(bench.machine.stale(), 1);
    bench.assert_aborted();
    assert!(!bench.types().contains(&"prompt/blocked".to_owned()));
}

/// P3: a refusal that was observed first stands, whether its append succeeds at once or later.
#[test]
fn p3_the_refusal_stands_while_it_is_recorded() {
    let mut bench = Bench::new(&["m1"]);
    bench.decisions.push_back(Ok(Decision::Reject { reason: "rude".into() }));
    bench.wake();
    let token = bench.until("prompt/blocked turn/end");
    bench.cancel();
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.run();
    assert_eq!(bench.reason(), TurnReason::Rejected { reason: "rude".into() });
}

/// P4: an emptied batch that a cancel overtakes before its record is an abort.
#[test]
fn p4_emptied_batch() {
    let mut bench = Bench::new(&["m1"]);
    bench.decisions.push_back(Ok(Decision::Enter(Vec::new())));
    bench.wake();
    let token = bench.until("turn/end");
    bench.cancel();
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.assert_aborted();
}

/// P5, rows 51 and 53, scenario 49: step closed, nothing of the proposal on the surface.
#[test]
fn p5_step_start_settings_and_prepare() {
    for point in ["step/start", "settings", "prepare"] {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        let token = bench.until(point);
        bench.cancel();
        if point == "step/start" {
            let appended = bench.commit(vec![sample::step_start(1, 1)]);
            bench.feed(Input::Appended { token, appended });
        }
        bench.run();
        let types = ["turn/start", "inbox/claimed", "step/start", "step/end", "turn/end"];
        assert_eq!(bench.types(), types, "{point}");
        assert_eq!(bench.unadmitted(), [sample::item_id("m1")]);
        assert!(bench.trace.contains(&"step/end turn/end".to_owned()), "T-21");
        bench.assert_aborted();
    }
}

/// P5, row 54: a cancel during the wait for another try of `step/start` ends the wait.
#[test]
fn p5_waiting_for_the_journal() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("step/start");
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.cancel();
    bench.run();
    assert_eq!(bench.types(), ["turn/start", "inbox/claimed", "turn/end"]);
    bench.assert_aborted();
}

/// P6, row 53: behind the commit of the admission it is P7: no dispatch, the users stay.
#[test]
fn p6_admission() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let admission = "system/message user/message request/header request/context";
    while name_of(&bench.open[0]) != admission {
        bench.answer();
    }
    bench.cancel();
    bench.answer();
    bench.run();
    assert!(bench.unadmitted().is_empty());
    assert!(!bench.trace.contains(&"dispatch".to_owned()));
    assert!(!bench.trace.contains(&"CP-R".to_owned()));
    bench.assert_aborted();
}

/// P7, row 51: admitted, CP-R pending; no dispatch, no attempt, the users stay.
#[test]
fn p7_request_checkpoint() {
    let mut bench = cancelled_at("CP-R");
    bench.run();
    assert!(bench.unadmitted().is_empty());
    assert_eq!(bench.types()[7..], ["step/end", "turn/end"]);
    assert!(!bench.trace.contains(&"dispatch".to_owned()));
    bench.assert_aborted();
}

/// P8 and P9 with what each stream leaves (scenarios 99 to 103).
#[test]
fn p8_p9_a_stream_is_cut() {
    let reasoning = |text: &str| {
        let mut record = StreamRecord::default();
        record.push(1, Chunk::BlockStart { index: 0, kind: BlockKind::Reasoning });
        record.push(1, Chunk::ReasoningDelta { index: 0, text: text.to_owned() });
        record
    };
    let mut half_call = stream("Hel", None);
    let kind = BlockKind::ToolCall { call_id: CallId::trusted("a"), name: "time".into() };
    half_call.push(3, Chunk::BlockStart { index: 1, kind });
    half_call.push(4, Chunk::CallFragment { index: 1, text: "{\"zo".into() });
    let cases = [
        (StreamRecord::default(), None),
        (stream("  \n", None), None),
        (stream("Hel", None), Some(vec![Block::text("Hel")])),
        (reasoning("Hm"), Some(vec![Block::Reasoning { text: "Hm".into(), replay: None }])),
        (half_call, Some(vec![Block::text("Hel")])),
    ];
    for (record, kept) in cases {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        let token = bench.until("dispatch");
        bench.cancel();
        assert!(bench.open.is_empty(), "the settlement is awaited");
        assert_eq!(bench.trace.last().unwrap(), "abort");
        let input = bench.settled(token, (Outcome::Cancelled, record));
        bench.feed(input);
        bench.run();
        match kept {
            Some(content) => {
                let EventData::AssistantMessage(message) = bench.last("assistant/message") else { panic!() };
                assert_eq!(message.message.content, content);
                assert_eq!((message.finish, message.interrupted), (FinishLabel::Aborted, Some(true)));
                assert!(message.usage.is_some(), "scenario 100");
                assert!(matches!(bench.frames.last(), Some(Frame::Settled { .. })));
            }
            None => {
                let EventData::AssistantAttempt(attempt) = bench.last("assistant/attempt") else { panic!() };
                assert_eq!((attempt.outcome, attempt.failure), (AttemptOutcome::Cancelled, None));
                assert!(matches!(bench.frames.last(), Some(Frame::Discarded { .. })));
            }
        }
        bench.assert_aborted();
    }
}

/// P10, scenario 104: the stream is complete, its settlement is not logged: the cancel wins, calls are dropped.
#[test]
fn p10_a_finished_stream_is_cut() {
    for answer in [says("Hello."), calls(&["a"]), fails(code::SERVER, FailedBy::Provider, "Hello.")] {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        let token = bench.until("dispatch");
        bench.cancel();
        let input = bench.settled(token, answer);
        bench.feed(input);
        bench.run();
        let EventData::AssistantMessage(message) = bench.last("assistant/message") else { panic!() };
        assert_eq!(message.interrupted, Some(true));
        assert!(!bench.trace.contains(&"batch".to_owned()));
        bench.assert_aborted();
    }
}

/// P10, row 54: the settlement waits for the journal: the cancel still wins.
#[test]
fn p10_a_settlement_that_waits_is_cut() {
    for in_flight in [true, false] {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back(calls(&["a"]));
        bench.wake();
        let token = bench.until("assistant/message");
        if in_flight {
            bench.cancel();
        }
        bench.feed(Input::AppendFailed { token, error: io() });
        if !in_flight {
            bench.cancel();
        }
        bench.run();
        let EventData::AssistantMessage(message) = bench.last("assistant/message") else { panic!() };
        assert_eq!(message.message.content, [Block::text("Let me see.")]);
        assert_eq!(message.interrupted, Some(true));
        bench.assert_aborted();
    }
}

/// P11, row 53, scenario 105: settled with calls: the pool records the pairs.
#[test]
fn p11_settled_with_calls() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a", "b"]));
    bench.wake();
    while !name_of(&bench.open[0]).starts_with("assistant/message") {
        bench.answer();
    }
    bench.cancel();
    bench.run();
    assert_eq!(bench.trace.iter().filter(|entry| *entry == "batch").count(), 1);
    let EventData::ToolResult(result) = bench.last("tool/result") else { panic!() };
    assert_eq!(result.error.unwrap().code, tools::ABORTED_BEFORE_DISPATCH);
    bench.assert_aborted();
}

/// P11': settled without calls: the message stays complete.
#[test]
fn p11_settled_without_calls() {
    for point in ["assistant/message", "step/end"] {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        while name_of(&bench.open[0]) != point {
            bench.answer();
        }
        bench.cancel();
        bench.answer();
        bench.run();
        let EventData::AssistantMessage(message) = bench.last("assistant/message") else { panic!() };
        assert_eq!(message.interrupted, None);
        bench.assert_aborted();
    }
}

/// P12 to P15: the pool works with the signal; its records are awaited, then the turn closes in one append.
#[test]
fn p13_tools() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.wake();
    while name_of(&bench.open[0]) != "batch" {
        bench.answer();
    }
    bench.cancel();
    assert_eq!(bench.open.len(), 1, "the batch is awaited");
    bench.run();
    assert!(bench.trace.contains(&"step/end turn/end".to_owned()));
    bench.assert_aborted();
}

/// P16, row 51, scenario 110: CP-S and the stopping chain end at once.
#[test]
fn p16_step_checkpoint_and_stopping() {
    for point in ["CP-S", "stopping"] {
        let mut bench = cancelled_at(point);
        bench.run();
        assert_eq!(bench.types()[7..], ["assistant/message", "step/end", "turn/end"], "{point}");
        bench.assert_aborted();
    }
}

/// P16, row 53: a claim that is under way is awaited, for what it takes must be accounted for.
#[test]
fn p16_claim() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("dispatch");
    bench.queue("s1", Origin::Steer);
    let input = bench.settled(token, says("One."));
    bench.feed(input);
    while name_of(&bench.open[0]) != "claim" {
        bench.answer();
    }
    bench.cancel();
    bench.run();
    assert_eq!(bench.unadmitted(), [sample::item_id("s1")]);
    bench.assert_aborted();
}

/// P16: the turn would be complete, its end is not logged: aborted when the append fails first (F-1).
#[test]
fn p16_before_the_end_is_logged() {
    for failed_first in [true, false] {
        let mut bench = Bench::new(&["m1"]);
        bench.wake();
        let token = bench.until("turn/end");
        if failed_first {
            bench.feed(Input::AppendFailed { token, error: io() });
            bench.cancel();
        } else {
            bench.cancel();
            bench.feed(Input::AppendFailed { token, error: io() });
        }
        bench.assert_aborted();
    }
}

/// P17, row 55, scenario 27: the outcome is unchanged, CP-T is still awaited.
#[test]
fn p17_turn_checkpoint() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("CP-T");
    bench.cancel();
    assert!(bench.open.is_empty());
    bench.feed(Input::Durable { token, seq: Seq(11) });
    bench.run();
    assert_eq!(bench.reason(), TurnReason::Completed);
    assert!(bench.machine.is_idle());
}

/// P18, scenarios 108 and 109: recovery and the wait end at once, no `retry/started`.
#[test]
fn p18_recovery_and_wait() {
    for point in ["recovery", "retry/scheduled", "wait", "retry/started"] {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back(fails(code::SERVER, FailedBy::Provider, "Hel"));
        bench.wake();
        while name_of(&bench.open[0]) != point {
            bench.answer();
        }
        bench.cancel();
        bench.run();
        let types = bench.types();
        assert_eq!(types.contains(&"retry/started".to_owned()), point == "retry/started", "{point}");
        assert_eq!(types.iter().filter(|name| *name == "assistant/attempt").count(), 1);
        assert!(!types.contains(&"assistant/message".to_owned()), "R20: the failed prefix stays off the surface");
        bench.assert_aborted();
    }
}

/// P19: a verdict that comes behind the cancel is stale.
#[test]
fn p19_late_verdict() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(fails(code::SERVER, FailedBy::Provider, ""));
    bench.wake();
    let token = bench.until("recovery");
    bench.cancel();
    let retry_id = RetryId::trusted("r");
    bench.feed(Input::Recovered { token, result: Ok(RecoveryVerdict::Retry), random: 0, retry_id, view: None });
    assert_eq!(bench.machine.stale(), 1);
    bench.assert_aborted();
}

/// P0, P1, row 55: without a turn, or for another one, a cancel does nothing; no cancel is kept for later (86, 117).
#[test]
fn p0_p1_no_turn() {
    let mut bench = Bench::new(&[]);
    bench.feed(Input::Cancel { turn: Turn(0), cause: Cause::User });
    bench.queue("m1", Origin::Send);
    bench.wake();
    bench.feed(Input::Cancel { turn: Turn(1), cause: Cause::User });
    bench.until("dispatch");
    bench.feed(Input::Cancel { turn: Turn(7), cause: Cause::User });
    assert!(!bench.trace.contains(&"abort".to_owned()));
}

/// 3.3, scenarios 94 and 95: the first cause stands.
#[test]
fn the_first_cause_stands() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("dispatch");
    bench.cancel();
    bench.feed(Input::Cancel { turn: Turn(1), cause: Cause::Disposed });
    assert_eq!(bench.trace.iter().filter(|entry| *entry == "abort").count(), 1);
    let input = bench.settled(token, (Outcome::Cancelled, StreamRecord::default()));
    bench.feed(input);
    bench.assert_aborted();
}

/// L-22, scenario 121: a stream that ends aborted although nobody cancelled is a failure, and is never retried.
#[test]
fn aborted_by_the_provider_is_a_failure() {
    let cut = stream("Hel", Some(Finish::Aborted));
    for outcome in [Outcome::Cancelled, fails(code::ABORTED, FailedBy::Provider, "").0] {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back((outcome, cut.clone()));
        bench.drain();
        assert_eq!(bench.code(), code::ABORTED);
        assert!(!bench.trace.contains(&"recovery".to_owned()));
        let EventData::AssistantAttempt(attempt) = bench.last("assistant/attempt") else { panic!() };
        assert_eq!(attempt.outcome, AttemptOutcome::Failed);
    }
}

/// F-1, F-3: whatever is asked, a cancel there ends in exactly one aborted turn and the next item runs.
#[test]
fn a_cancel_at_every_point_closes_the_turn() {
    let mut points = 0;
    loop {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.extend([fails(code::SERVER, FailedBy::Provider, "x"), calls(&["a", "b"]), says("One.")]);
        bench.steers.push_back("s1");
        bench.wake();
        let mut left = points;
        while left > 0 && !bench.open.is_empty() {
            bench.answer();
            left -= 1;
        }
        if bench.open.is_empty() {
            break;
        }
        points += 1;
        let ended = !bench.ended.is_empty() || bench.log.open_turn().is_none();
        bench.cancel();
        bench.answers.clear();
        bench.run();
        if !ended {
            assert_eq!(bench.ended.len(), 1, "{:?}", bench.trace);
            match &bench.ended[0].1 {
                TurnReason::Aborted { .. } => {}
                // Its end was on the way to the log.
                TurnReason::Completed => assert_eq!(bench.types().last().unwrap(), "turn/end"),
                other => panic!("{other:?}"),
            }
        }
        bench.assert_goes_on();
    }
    assert!(points > 40, "{points}");
}
