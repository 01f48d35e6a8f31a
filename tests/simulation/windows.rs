//! The canonical turn, with one thing gone wrong at each of its moments in turn (scenarios 250, 251, 266, 267; CONTRACT
//! 4.3 and 4.4): a cancel, a crash, a death of the actors, a failed append, a failed sync, a steer.

use super::{
    judge::{Broken, Verdict},
    life::Life,
    outside::Mood,
    plants::Plant,
};
use everturn_actors::{
    desk::Op,
    handle::{KeptItems, SubmitKind},
};
use everturn_storage::event::{Cause, TurnReason};

#[derive(Debug, Clone, Copy)]
enum Mishap {
    None,
    Cancel(KeptItems),
    /// Keeps everything that was logged.
    Crash,
    /// Keeps what chance leaves of what was not durable.
    PowerLoss,
    ActorsDie,
    FailAppend,
    FailSync,
    Steer,
    Inject,
}

const ALL: [Mishap; 10] = [
    Mishap::Cancel(KeptItems::Clear),
    Mishap::Cancel(KeptItems::Park),
    Mishap::Cancel(KeptItems::Continue),
    Mishap::Crash,
    Mishap::PowerLoss,
    Mishap::ActorsDie,
    Mishap::FailAppend,
    Mishap::FailSync,
    Mishap::Steer,
    Mishap::Inject,
];

/// Runs the program, with `mishap` behind the first `at` ticks. Returns how many ticks it had.
fn canonical(seed: u64, at: usize, mishap: Mishap) -> Result<(Life, usize), Broken> {
    let mut life = Life::new(seed, Plant::None);
    life.faults = false;
    life.mood = Mood::Script;
    life.start_desk()?;
    life.submit(SubmitKind::Send);
    life.submit(SubmitKind::Send);
    let mut ticks = 0;
    while ticks < at && life.tick()? {
        ticks += 1;
    }
    befall(&mut life, mishap)?;
    while life.tick()? {
        ticks += 1;
        if ticks > 20_000 {
            return Err(Broken::new("F-3", "the session never came to rest"));
        }
    }
    life.wake();
    life.settle_down()?;
    life.judge.finally(&life.disk)?;
    Ok((life, ticks))
}

fn befall(life: &mut Life, mishap: Mishap) -> Verdict {
    match mishap {
        Mishap::None => {}
        Mishap::Cancel(kept) => life.op(Op::Cancel { cause: Cause::User, kept }),
        Mishap::Crash => {
            life.disk.sync();
            life.crash()?;
        }
        Mishap::PowerLoss => life.crash()?,
        Mishap::ActorsDie => life.reborn()?,
        Mishap::FailAppend => life.fail_append = true,
        Mishap::FailSync => life.fail_sync = true,
        Mishap::Steer => life.submit(SubmitKind::Steer),
        Mishap::Inject => life.submit(SubmitKind::Inject),
    }
    Ok(())
}

/// F-1: what the reasons of the two turns may be behind each mishap.
fn allowed(mishap: Mishap, reason: &TurnReason) -> bool {
    match (mishap, reason) {
        (_, TurnReason::Completed) => true,
        (Mishap::Cancel(_), TurnReason::Aborted { cause }) => *cause == Cause::User,
        (Mishap::Crash | Mishap::PowerLoss | Mishap::ActorsDie, TurnReason::Interrupted) => true,
        (Mishap::FailAppend | Mishap::FailSync, TurnReason::Error { failure }) => {
            matches!(failure.code.as_str(), "JOURNAL" | "CHECKPOINT")
        }
        // A turn that could not be closed is closed by repair.
        (Mishap::FailAppend | Mishap::FailSync, TurnReason::Interrupted) => true,
        _ => false,
    }
}

/// Every mishap at every moment of the canonical program, under several schedules.
#[test]
fn every_window_of_the_canonical_turn() {
    let mut runs = 0;
    for seed in 1..=6 {
        let (_, ticks) = canonical(seed, 0, Mishap::None).unwrap_or_else(|broken| panic!("seed {seed}: {broken:?}"));
        assert!(ticks > 60, "the canonical turn has shrunk to {ticks} ticks");
        for at in 0..=ticks {
            for mishap in ALL {
                let (life, _) = canonical(seed, at, mishap)
                    .unwrap_or_else(|broken| panic!("seed {seed}, {mishap:?} behind tick {at}: {broken:?}"));
                for row in life.disk.state.turns() {
                    let reason = &row.reason;
                    assert!(allowed(mishap, reason), "seed {seed}, {mishap:?} behind tick {at}: {reason:?}");
                }
                runs += 1;
            }
        }
    }
    println!("{runs} runs");
}
