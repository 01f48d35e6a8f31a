//! The columns of extensions and of providers (F-5), and the death of the pool.

use super::bench::*;
use crate::{handle::Frame, ports::Decision, protocol::AppendError, turn::*};
use everturn_storage::{
    event::*,
    ids::*,
    log::tools,
    message::{Failure, code},
    testing::sample,
};

/// P2, P5, row 5, T-4, scenarios 42 and 54: an extension failure closes the turn and the next one runs.
#[test]
fn p2_p5_extension_errors() {
    for point in ["assemble", "pre-step", "settings"] {
        let mut bench = Bench::new(&["m1", "m2"]);
        bench.wake();
        let token = bench.until(point);
        let expected = match point {
            "assemble" => {
                bench.feed(Input::Assembled { token, result: Err(extension_error()) });
                code::EXTENSION
            }
            "pre-step" => {
                bench.decisions.clear();
                bench.feed(Input::Decided { token, result: Err(extension_error()), view: None });
                code::EXTENSION
            }
            _ => {
                let failure = Failure::new(code::INVALID_REQUEST_PROPOSAL, "no number");
                bench.feed(Input::RequestProposed { token, result: Err(failure) });
                code::INVALID_REQUEST_PROPOSAL
            }
        };
        bench.run();
        assert!(matches!(&bench.ended[0].1, TurnReason::Error { failure } if failure.code == expected));
        assert_eq!(bench.ended[1].1, TurnReason::Completed);
        assert_eq!(bench.log.fate(&sample::item_id("m1")), Some(&everturn_storage::log::ItemFate::Unadmitted(Turn(1))));
    }
}

/// P5, row 13, L-5, scenario 50: a refused route closes step and turn, without attempt or recovery.
#[test]
fn p5_the_route_refuses() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("prepare");
    let failure = Failure::new(code::UNSUPPORTED_REASONING_EFFORT, "too deep");
    bench.feed(Input::Refused { token, failure: failure.clone() });
    bench.run();
    assert_eq!(bench.types(), ["turn/start", "inbox/claimed", "step/start", "step/end", "turn/end"]);
    assert_eq!(bench.reason(), TurnReason::Error { failure });
    assert_eq!(bench.unadmitted(), [sample::item_id("m1")]);
    bench.assert_goes_on();
}

/// P5 to P7 for a second attempt: users and system stay, `unadmitted` is empty.
#[test]
fn p5_the_route_refuses_a_retry() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(fails(code::SERVER, FailedBy::Provider, ""));
    bench.wake();
    bench.until("dispatch");
    let answer = bench.answers.pop_front().unwrap();
    let token = bench.asked();
    let input = bench.settled(token, answer);
    bench.feed(input);
    let token = bench.until("prepare");
    bench.feed(Input::Refused { token, failure: Failure::new(code::NO_ADAPTER, "gone") });
    bench.run();
    assert_eq!(bench.code(), code::NO_ADAPTER);
    assert!(bench.unadmitted().is_empty());
}

/// P8, row 21, T-13, scenario 136: our own code died on the stream; recovery is not asked.
#[test]
fn p8_the_consumer_dies() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(fails(code::EXTENSION, FailedBy::Consumer, "Hel"));
    bench.drain();
    let EventData::AssistantAttempt(attempt) = bench.last("assistant/attempt") else { panic!() };
    assert_eq!(attempt.outcome, AttemptOutcome::StreamError);
    assert!(!bench.trace.contains(&"recovery".to_owned()));
    assert_eq!(bench.code(), code::EXTENSION);
    bench.assert_goes_on();
}

/// P9, rows 20 and 24, R20, scenarios 119 and 122: the prefix of a failed attempt is in its record only.
#[test]
fn p9_the_provider_fails_behind_visible_text() {
    let by_outcome = [
        (code::CONTENT_FILTER, FailedBy::Provider, AttemptOutcome::Failed),
        (code::MALFORMED_RESPONSE, FailedBy::Stream, AttemptOutcome::StreamError),
    ];
    for (failed, by, outcome) in by_outcome {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back(fails(failed, by, "Hel"));
        bench.drain();
        let EventData::AssistantAttempt(attempt) = bench.last("assistant/attempt") else { panic!() };
        assert_eq!(attempt.outcome, outcome);
        assert!(!attempt.stream.is_empty());
        assert_eq!(bench.log.surface().len(), 2, "system and user");
        assert!(bench.frames.iter().any(|frame| matches!(frame, Frame::Discarded { reason, .. } if reason == failed)));
        assert!(bench.trace.contains(&"recovery".to_owned()), "F-5");
        assert_eq!(bench.code(), failed);
        bench.assert_goes_on();
    }
}

/// T-12: the settlement is logged before anybody is asked about the failure.
#[test]
fn the_attempt_is_on_record_before_recovery_is_asked() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(fails(code::AUTH, FailedBy::Provider, ""));
    bench.wake();
    bench.until("recovery");
    assert_eq!(bench.types().last().unwrap(), "assistant/attempt");
}

/// P16, row 42: a stopping member fails.
#[test]
fn p16_the_stopping_chain_fails() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("stopping");
    bench.feed(Input::StoppingDone { token, result: Err(extension_error()), view: None });
    bench.run();
    assert_eq!(bench.code(), code::EXTENSION);
    bench.assert_goes_on();
}

/// P2: a pre-step member fails between steps; earlier steps stay.
#[test]
fn p2_extension_error_between_steps() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.decisions.extend([Ok(Decision::Pass), Err(extension_error())]);
    bench.drain();
    assert_eq!(bench.code(), code::EXTENSION);
    assert_eq!(bench.log.turns()[0].steps, 1);
    bench.assert_goes_on();
}

/// Rows 31 and 32, 6.10, scenario 183: unknown for what was logged, pairs for the rest, in model order. Somebody
/// else may append in between.
#[test]
fn the_pool_dies() {
    for logged in 0..=3 {
        for crowded in [false, true] {
            let mut bench = Bench::new(&["m1"]);
            bench.answers.push_back(calls(&["a", "b", "c"]));
            bench.wake();
            let token = bench.until("batch");
            let rows = bench.log.open_turn().unwrap().step.as_ref().unwrap().settled.as_ref().unwrap().calls.clone();
            bench.log = bench.log.clone().with_max_parallel(3);
            let mut places = Vec::new();
            for row in rows.iter().take(logged) {
                places.push(bench.log_call(Turn(1), Step(1), row));
            }
            if logged == 3 {
                bench.commit(vec![sample::result(1, 1, "a", places[0].0, None)]);
            }
            bench.feed(Input::PoolDied { token, view: bench.view(), fresh: "f".into() });
            while !bench.open.is_empty() && bench.log.open_turn().is_some() {
                if crowded {
                    let id = format!("i{}", bench.events.len());
                    bench.queue(&id, Origin::Inject);
                }
                bench.answer();
            }
            let results: Vec<_> = bench
                .events
                .iter()
                .filter_map(|event| match &event.body.data {
                    EventData::ToolResult(result) => {
                        Some((result.message.call_id.as_str(), result.error.as_ref().map(|error| error.code.as_str())))
                    }
                    _ => None,
                })
                .collect();
            let unknown = Some(tools::TOOL_OUTCOME_UNKNOWN);
            let skipped = Some(tools::ABORTED_BEFORE_DISPATCH);
            let expected = match logged {
                0 => [("a", skipped), ("b", skipped), ("c", skipped)],
                1 => [("a", unknown), ("b", skipped), ("c", skipped)],
                2 => [("a", unknown), ("b", unknown), ("c", skipped)],
                _ => [("a", None), ("b", unknown), ("c", unknown)],
            };
            assert_eq!(results, expected);
            bench.run();
            assert_eq!(bench.code(), code::EXTENSION);
        }
    }
}

/// Row 31: the pool died behind a cancel: the turn is aborted (F-1).
#[test]
fn the_pool_dies_behind_a_cancel() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.wake();
    let token = bench.until("batch");
    bench.cancel();
    bench.feed(Input::PoolDied { token, view: bench.view(), fresh: "f".into() });
    bench.assert_aborted();
}

/// Row 32: the pairs of a dead pool are written whatever a cancel says.
#[test]
fn a_cancel_waits_for_the_burial() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.wake();
    let token = bench.until("batch");
    bench.feed(Input::PoolDied { token, view: bench.view(), fresh: "f".into() });
    let token = bench.until("tool/call");
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.cancel();
    bench.until("wait");
    bench.feed(Input::Timer { token: bench.asked() });
    let token = bench.until("tool/call");
    let appended = bench.commit(vec![sample::call(1, 1, "a")]);
    bench.feed(Input::Appended { token, appended });
    let token = bench.until("tool/result step/end turn/end");
    bench.feed(Input::AppendFailed { token, error: io() });
    bench.run();
    assert_eq!(bench.code(), code::EXTENSION);
}

/// Row 30, P11, P12: the pool could not record: only a restart helps.
#[test]
fn the_pool_cannot_record() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.wake();
    let token = bench.until("batch");
    bench.feed(Input::BatchFault { token, error: AppendError::Fenced });
    assert_eq!(bench.trace.last().unwrap(), "fault");
    bench.wake();
    bench.cancel();
    assert!(bench.open.is_empty());
}
