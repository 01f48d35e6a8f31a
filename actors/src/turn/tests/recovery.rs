//! Recovery and retry (5.6): rows 20, 22 to 28.

use super::bench::*;
use crate::{
    handle::Frame,
    limits::{RetryLimits, RetryModeSetting},
    ports::RecoveryVerdict,
    turn::*,
};
use everturn_storage::{event::*, message::code, testing::sample};

fn failing(times: usize) -> Bench {
    let mut bench = Bench::new(&["m1"]);
    bench.rules.retry = RetryLimits { jitter_ratio: 0.0, ..RetryLimits::default() };
    bench.answers.extend((0..times).map(|_| fails(code::RATE_LIMIT, FailedBy::Provider, "Hel")));
    bench
}

fn count(bench: &Bench, name: &str) -> usize {
    bench.trace.iter().filter(|entry| *entry == name).count()
}

/// Rows 20, 23, 26 to 28; T-9, R9, scenarios 138, 139 and 152.
#[test]
fn one_retry_then_success() {
    let mut bench = failing(1);
    bench.drain();
    assert_eq!(
        bench.types()[7..],
        ["assistant/attempt", "retry/scheduled", "retry/started", "assistant/message", "step/end", "turn/end"]
    );
    assert_eq!((count(&bench, "pre-step"), count(&bench, "prepare"), count(&bench, "CP-R")), (1, 2, 2));
    let EventData::AssistantMessage(message) = bench.last("assistant/message") else { panic!() };
    assert_eq!(message.attempt.0, 2);
    assert_eq!(bench.log.surface().len(), 3, "only the answer of attempt 2 is history");
    assert_eq!(bench.log.usage().output, 4, "L-49");
    assert!(bench.frames.iter().any(|frame| matches!(frame, Frame::Discarded { .. })));
    assert!(bench.phases().contains(&"RetryWait"));
}

/// L-44: the retry is on record before it waits.
#[test]
fn the_wait_is_on_record_first() {
    let mut bench = failing(1);
    bench.wake();
    let token = bench.until("wait");
    assert_eq!(bench.types().last().unwrap(), "retry/scheduled");
    bench.feed(Input::Timer { token });
    bench.until("settings");
    assert_eq!(bench.types().last().unwrap(), "retry/started");
}

/// Row 24, L-41, L-48, scenarios 140 and 143: the budget is counted from the log.
#[test]
fn the_budget_is_spent() {
    let mut bench = failing(6);
    bench.drain();
    assert_eq!(bench.code(), code::RATE_LIMIT);
    assert_eq!(bench.delays_ms, [500, 1_000, 2_000, 4_000, 8_000]);
    let EventData::AssistantAttempt(attempt) = bench.last("assistant/attempt") else { panic!() };
    assert_eq!(attempt.attempt.0, 6);
    bench.assert_goes_on();
}

/// Row 24, scenario 144.
#[test]
fn a_failure_off_the_list_is_not_tried_again() {
    for off in [code::AUTH, code::INVALID_REQUEST, code::CONTENT_FILTER, "SOMETHING_ELSE"] {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back(fails(off, FailedBy::Provider, ""));
        bench.drain();
        assert_eq!(bench.code(), off);
        assert!(bench.delays_ms.is_empty());
    }
}

/// The policy of the route wins, with a budget of its own.
#[test]
fn the_route_brings_its_own_policy() {
    let mut bench = failing(3);
    let own = RetryLimits { max_retries: 1, jitter_ratio: 0.0, initial_delay_ms: 7, ..RetryLimits::default() };
    bench.facts.retry = Some(own);
    bench.drain();
    assert_eq!(bench.delays_ms, [7]);
    let EventData::RetryScheduled(retry) = bench.last("retry/scheduled") else { panic!() };
    assert_eq!((retry.policy_key.as_str(), retry.max_retries), ("provider", Some(1)));
}

/// L-45: in `always` mode there is no budget.
#[test]
fn always_mode_has_no_budget() {
    let mut bench = failing(20);
    bench.rules.retry.mode = RetryModeSetting::Always;
    bench.drain();
    assert_eq!(bench.reason(), TurnReason::Completed);
    let EventData::RetryScheduled(retry) = bench.last("retry/scheduled") else { panic!() };
    assert_eq!((retry.mode, retry.retry, retry.max_retries), (RetryMode::Always, 20, None));
}

/// Scenario 151: another provider after the wait has a budget of its own, and its header is a change.
#[test]
fn the_route_changes_during_the_wait() {
    let mut bench = failing(2);
    bench.rules.retry.max_retries = 1;
    bench.wake();
    let token = bench.until("wait");
    bench.facts.config.provider = "other".into();
    bench.feed(Input::Timer { token });
    bench.run();
    assert_eq!(bench.reason(), TurnReason::Completed);
    let EventData::RequestHeader(header) = bench.last("request/header") else { panic!() };
    assert_eq!((header.config.provider.as_str(), header.reason), ("other", HeaderReason::Change));
    assert_eq!(count(&bench, "retry/scheduled"), 2);
}

/// Row 22: a member wants another attempt at once; users are not admitted again.
#[test]
fn a_member_retries_at_once() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(fails(code::AUTH, FailedBy::Provider, ""));
    bench.verdicts.push_back(Ok(RecoveryVerdict::Retry));
    bench.drain();
    assert_eq!(bench.types()[7..], ["assistant/attempt", "assistant/message", "step/end", "turn/end"]);
    assert!(bench.delays_ms.is_empty());
}

/// Row 25, P18, scenario 146: the original failure stands with the error of the member beside it.
#[test]
fn a_member_fails() {
    let mut bench = failing(1);
    bench.verdicts.push_back(Err(extension_error()));
    bench.drain();
    let TurnReason::Error { failure } = bench.reason() else { panic!() };
    assert_eq!(failure.code, code::RATE_LIMIT);
    assert_eq!(failure.detail.unwrap().to_value()["recovery_error"], "the policy broke");
    bench.assert_goes_on();
}

/// Row 24, L-47, scenario 148: an overflow without a shorter history gives up.
#[test]
fn an_overflow_without_progress_gives_up() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(Bench::overflow());
    bench.verdicts.push_back(Ok(RecoveryVerdict::Retry));
    bench.drain();
    assert_eq!(bench.code(), code::CONTEXT_WINDOW_EXCEEDED);
    assert_eq!(count(&bench, "dispatch"), 1);
}

/// Row 22, L-47, scenario 147: a shorter history is tried, three times in a step at most.
#[test]
fn an_overflow_with_progress_is_tried_again() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.drain();
    bench.queue("m3", Origin::Send);
    bench.answers.extend((0..9).map(|_| Bench::overflow()));
    bench.verdicts.extend((0..9).map(|_| Ok(RecoveryVerdict::Retry)));
    bench.wake();
    let mut dispatched = 0;
    while bench.ended.len() < 3 {
        match name_of(&bench.open[0]).as_str() {
            "dispatch" => dispatched += 1,
            // A member rewrites one old user into a shorter one.
            "recovery" => {
                let hidden = bench.log.surface()[1].event.seq.0;
                let mut summary = sample::summary_of(1, 1, &[hidden]);
                if let EventData::UserMessage(user) = &mut summary.data {
                    user.message.id = everturn_storage::ids::MessageId::trusted(format!("sum{hidden}"));
                }
                bench.commit(vec![summary]);
            }
            _ => {}
        }
        bench.answer();
    }
    assert_eq!(dispatched, 4);
    assert_eq!(bench.code(), code::CONTEXT_WINDOW_EXCEEDED);
}

/// Scenario 150: both budgets are separate.
#[test]
fn transient_failures_and_verdicts_do_not_share_a_budget() {
    let mut bench = failing(2);
    bench.rules.retry.max_retries = 1;
    bench.verdicts.extend([Ok(RecoveryVerdict::Retry), Ok(RecoveryVerdict::Pass)]);
    bench.drain();
    assert_eq!(bench.reason(), TurnReason::Completed);
    assert_eq!(bench.delays_ms, [500]);
}
