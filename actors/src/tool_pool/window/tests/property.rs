//! Scenario 260: the order rules under random classes, durations, caps, cancels and journal faults.

use super::rig::{BASE, Rig, Script, row, shape};
use crate::{
    ports::tool::{PostVerdict, ToolFailure, ToolNotes, ToolOutput},
    protocol::AppendError,
    tool_pool::types::{BodyEnd, Effect, Shape, Verdict, code},
};
use everturn_storage::{event::EventData, ids::Seq};

/// A small generator: the same seed gives the same run on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

fn random_shape(dice: &mut Dice) -> Shape {
    match dice.roll(8) {
        0 => Shape::Refused { code: code::INVALID_ARGS, text: "bad".into() },
        1 | 2 => shape(false),
        roll => Shape::Runnable {
            parallel: true,
            timeout_ms: (roll == 3).then(|| dice.roll(30)),
            abandonable: dice.one_in(3),
        },
    }
}

fn random_script(dice: &mut Dice) -> Script {
    let notes =
        ToolNotes { contexts: (0..dice.roll(3)).map(|n| format!("context {n}")).collect(), conclude: dice.one_in(4) };
    Script {
        shapes: (0..=dice.roll(2)).map(|_| random_shape(dice)).collect(),
        works_ms: dice.roll(40),
        stops_in_ms: (!dice.one_in(3)).then(|| dice.roll(10)),
        end: match dice.roll(4) {
            0 => BodyEnd::Failed(ToolFailure::text("no"), notes),
            1 => BodyEnd::Panicked,
            _ => BodyEnd::Ok(ToolOutput::text("yes"), notes),
        },
        verdict: (
            dice.roll(5),
            match dice.roll(6) {
                0 => Verdict::Deny { reason: "no".into() },
                1 => Verdict::Failed { why: "broken".into() },
                2 => Verdict::Unavailable,
                _ => Verdict::Allow,
            },
        ),
        post: (
            dice.roll(5),
            match dice.roll(6) {
                0 => Err("broken".into()),
                1 => Ok(PostVerdict::Block { reason: "secret".into() }),
                _ => Ok(PostVerdict::Accept),
            },
        ),
    }
}

fn random_rig(seed: u64) -> Rig {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let scripts = (0..=dice.roll(12)).map(|_| random_script(&mut dice)).collect();
    let mut rig = Rig::new(scripts, |config| {
        config.max_parallel = dice.roll(6) as usize;
        config.policies = dice.one_in(3);
        config.checkpoint = !dice.one_in(4);
        config.default_timeout_ms = dice.one_in(4).then(|| 10 + dice.roll(30));
        config.abandon_after_ms = dice.one_in(2).then(|| dice.roll(20));
    });
    let faulty = dice.one_in(3);
    rig.journal = (0..60)
        .map(|_| {
            let error = (faulty && dice.one_in(6)).then(|| AppendError::Io("full".into()));
            (dice.roll(4), error.or_else(|| (faulty && dice.one_in(80)).then_some(AppendError::Fenced)))
        })
        .collect();
    rig.checkpoints = (0..30).map(|_| (dice.roll(6), !(faulty && dice.one_in(5)))).collect();
    if dice.one_in(2) { rig.cancel_at(dice.roll(120)) } else { rig }
}

/// I-14 to I-20 over what a batch has logged; `whole` when every call must have its result.
fn check(rig: &Rig, whole: bool) {
    let cap = rig.config.max_parallel.max(1);
    let (mut calls, mut results) = (0, 0);
    for (at, body) in rig.log.iter().enumerate() {
        match &body.data {
            EventData::ToolCall(call) => {
                let want = row(calls);
                assert_eq!((&call.call_id, &call.arguments), (&want.call_id, &want.arguments), "I-14, I-15");
                calls += 1;
            }
            EventData::ToolResult(result) => {
                assert_eq!(result.message.call_id, row(results).call_id, "I-15: model order");
                let call = body.cites[0].0 - BASE;
                assert!(call < at as u64, "I-15: behind its call");
                assert_eq!(rig.called(results), Some(Seq(BASE + call)), "I-15: cites its call");
                let meta = result.meta.as_ref().unwrap().to_value();
                if meta["class"] == "exclusive" {
                    assert_eq!(calls, results + 1, "I-19: nothing is logged beside an exclusive call");
                } else {
                    assert_eq!(meta["class"], "parallel", "Z13");
                }
                results += 1;
            }
            EventData::InboxQueued(_) => assert_eq!(results, rig.config.calls.len(), "X-40: behind the last result"),
            other => panic!("the pool logged {other:?}"),
        }
        assert!(results <= calls && calls - results <= cap, "I-20");
    }
    assert!(rig.peak <= cap + rig.let_go.len(), "X-12: {} bodies at once", rig.peak);
    if whole {
        assert_eq!((calls, results), (rig.config.calls.len(), rig.config.calls.len()), "I-16");
    }
}

/// Scenario 260, I-14 to I-20, X-12, 258. That the window starts all that it may is checked by the rig at each step.
#[test]
#[allow(clippy::print_stderr, reason = "the seed of a failure has to be seen")]
fn order_holds_under_random_batches() {
    let (mut done, mut faults, mut aborted) = (0, 0, 0);
    for seed in 1..=20_000 {
        let checked = std::panic::catch_unwind(|| {
            let rig = random_rig(seed).run();
            check(&rig, matches!(rig.end, Some(Effect::Done { .. })));
            rig.end
        });
        match checked {
            Ok(Some(Effect::Done { aborted: cut, .. })) => {
                done += 1;
                aborted += u32::from(cut);
            }
            Ok(_) => faults += 1,
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // Every kind of end was seen, so that the test is about something.
    assert!(done > 10_000 && faults > 100 && aborted > 2_000, "{done} done, {faults} faults, {aborted} aborted");
}
