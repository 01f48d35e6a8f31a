//! Runs by lot: whatever answers come, every log is valid, and once the faults end everything that waits runs.

use super::bench::*;
use crate::{
    ports::{Decision, RecoveryVerdict},
    protocol::{CheckpointFailed, ClaimStepAnswer},
    turn::*,
};
use everturn_storage::{
    event::*,
    ids::*,
    message::{Failure, code},
};

/// A small generator, for runs that a seed repeats.
struct Lot(u64);

impl Lot {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Answers the next question badly, in one of the ways that its kind has; `None` when it has none.
fn bad_answer(bench: &mut Bench, lot: &mut Lot) -> Option<Input> {
    let token = token_of(bench.open.front()?)?;
    let name = name_of(bench.open.front()?);
    let failure = || Failure::new(code::UNKNOWN_MODEL, "which?");
    let retry_id = RetryId::trusted(format!("r{}", token.0));
    Some(match name.as_str() {
        "assemble" => Input::Assembled { token, result: Err(extension_error()) },
        "pre-step" => {
            let decisions = [
                Err(extension_error()),
                Ok(Decision::Enter(Vec::new())),
                Ok(Decision::Reject { reason: "rude".into() }),
            ];
            let result = decisions.into_iter().nth(lot.below(3) as usize)?;
            Input::Decided { token, result, view: None }
        }
        "settings" => Input::RequestProposed { token, result: Err(failure()) },
        "prepare" => Input::Refused { token, failure: failure() },
        "CP-R" | "CP-S" | "CP-T" => Input::CheckpointFailed { token, error: CheckpointFailed("away".into()) },
        "recovery" if lot.below(2) == 0 => {
            let result = Ok(RecoveryVerdict::Retry);
            Input::Recovered { token, result, random: 0, retry_id, view: None }
        }
        "recovery" => Input::Recovered { token, result: Err(extension_error()), random: 0, retry_id, view: None },
        "batch" => Input::PoolDied { token, view: bench.view(), fresh: format!("f{}", token.0) },
        "claim" => Input::ClaimAnswered { token, answer: ClaimStepAnswer::Failed(io()) },
        "stopping" => Input::StoppingDone { token, result: Err(extension_error()), view: None },
        "open" | "wait" | "dispatch" => return None,
        _ => Input::AppendFailed { token, error: io() },
    })
}

fn answer_by_lot(lot: &mut Lot) -> Answer {
    match lot.below(8) {
        0 => fails(code::SERVER, FailedBy::Provider, "x"),
        1 => fails(code::MALFORMED_RESPONSE, FailedBy::Stream, "x"),
        2 => fails(code::EXTENSION, FailedBy::Consumer, ""),
        3 => (Outcome::Cancelled, stream("Hel", None)),
        4 | 5 => calls(&["a", "b"]),
        _ => says("Fine."),
    }
}

/// One run: 300 things happen, a part of them bad, then only good ones.
fn one_run(seed: u64) -> bool {
    let mut lot = Lot(seed);
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.rules.max_steps = (lot.below(2) == 0).then_some(3);
    bench.rules.fold_step_checkpoint = lot.below(2) == 0;
    bench.wake();
    for round in 0..300 {
        bench.answers.clear();
        bench.answers.push_back(answer_by_lot(&mut lot));
        match lot.below(20) {
            0 => bench.cancel(),
            1 => bench.wake(),
            2 => {
                let origin = [Origin::Send, Origin::Steer, Origin::Inject][lot.below(3) as usize];
                bench.queue(&format!("q{round}"), origin);
            }
            3 => bench.feed(Input::Timer { token: Token(lot.below(9)) }),
            4..=6 => {
                if let Some(input) = bad_answer(&mut bench, &mut lot) {
                    bench.open.pop_front();
                    bench.feed(input);
                }
            }
            _ if bench.open.is_empty() => bench.wake(),
            _ => bench.answer(),
        }
    }
    bench.answers.clear();
    bench.wake();
    bench.run();
    if bench.trace.last().is_some_and(|entry| entry == "fault") {
        return false;
    }
    assert!(bench.machine.is_idle(), "seed {seed}: {:?}", bench.trace);
    assert!(bench.log.open_turn().is_none(), "seed {seed}");
    assert!(bench.log.next_turn().is_empty(), "seed {seed}: nothing is stranded (F-3)");
    assert_eq!(bench.ended.len(), bench.log.turns().len(), "seed {seed}");
    bench.rules.max_steps = None;
    bench.assert_goes_on();
    true
}

/// F-1 to F-3, I-*: safety in every run, liveness in every run that could be closed.
#[test]
fn runs_by_lot() {
    let lively = (0..400).filter(|seed| one_run(*seed)).count();
    assert!(lively > 300, "only {lively} of 400 runs could be closed");
}
