//! One run: a random program under faults and crashes, then peace. A program is a list of steps, each with a seed of its
//! own, so that a failing one can be made shorter step by step.

use super::{
    chance::Chance,
    judge::{Broken, Verdict},
    life::Life,
    outside::Mood,
    plants::Plant,
};

/// Most things that happen in the first phase.
const STEPS: usize = 900;

/// Most runs that shortening a program may take.
const SHRINK_RUNS: usize = 3_000;

/// What happens in the first phase: places in the program of a seed.
pub(crate) type Program = Vec<u32>;

/// Everything that the seed says.
pub(crate) fn whole() -> Program {
    (0..u32::try_from(STEPS).unwrap()).collect()
}

/// How often a process dies, in a thousand steps; a trait of the seed.
fn deaths(seed: u64) -> usize {
    [3, 12, 40, 100][usize::try_from(seed % 4).unwrap()]
}

pub(crate) fn run(seed: u64, plant: Plant) -> Result<Life, Broken> {
    run_program(seed, plant, &whole())
}

pub(crate) fn run_program(seed: u64, plant: Plant, program: &[u32]) -> Result<Life, Broken> {
    let mut life = Life::new(seed, plant);
    life.start_desk()?;
    let deaths = deaths(seed);
    for step in program {
        life.chance = chance_of(seed, *step);
        something(&mut life, deaths)?;
    }
    life.chance = Chance::new(seed);
    // Peace: no faults, a kind model; what is under way comes to its end.
    life.faults = false;
    life.mood = Mood::Kind;
    life.settle_down()?;
    if !life.desk.desk.status().parked {
        unstranded(&life)?;
    }
    // A waiter that came before the end is released by now (226, 98).
    if life.desk.waiting > 0 {
        return Err(Broken::new("O-4", format!("{} waiters for idle were never released", life.desk.waiting)));
    }
    life.wake();
    life.settle_down()?;
    life.judge.finally(&life.disk)?;
    // A second life begins with nothing to mend.
    let before = life.disk.batches.len();
    life.disk.open(Plant::None)?;
    if life.disk.batches.len() > before + 1 {
        return Err(Broken::new("Z10", "a balanced log got closers"));
    }
    Ok(life)
}

/// The shortest program found that still breaks the same rule.
pub(crate) fn shrink(seed: u64, plant: Plant, rule: &str) -> Program {
    shorten(whole(), |program| run_program(seed, plant, program).is_err_and(|broken| broken.rule == rule))
}

/// Leaves pieces out, ever smaller ones, until none can be.
pub(crate) fn shorten(mut program: Program, breaks: impl Fn(&[u32]) -> bool) -> Program {
    let (mut piece, mut runs) = (program.len() / 2, 0);
    while piece > 0 && runs < SHRINK_RUNS {
        let mut at = 0;
        while at < program.len() && runs < SHRINK_RUNS {
            let mut shorter = program.clone();
            shorter.drain(at..(at + piece).min(program.len()));
            runs += 1;
            if breaks(&shorter) { program = shorter } else { at += piece }
        }
        piece /= 2;
    }
    program
}

/// The chance of one step of a seed: the same whichever other steps are left out.
pub(crate) fn chance_of(seed: u64, step: u32) -> Chance {
    Chance::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ (u64::from(step) << 20))
}

/// 256: without parked items, nothing eligible waits at quiescence.
fn unstranded(life: &Life) -> Verdict {
    match life.disk.state.next_turn().iter().find(|row| row.item.wake) {
        Some(row) if row.restored <= super::disk::RESTORE_LIMIT => {
            Err(Broken::new("F-3", format!("{} is eligible and nobody runs it", row.item.id)))
        }
        Some(_) | None => Ok(()),
    }
}

fn something(life: &mut Life, deaths: usize) -> Verdict {
    if life.chance.below(1_000) < deaths {
        return if life.chance.permille(800) { life.crash() } else { life.reborn() };
    }
    match life.chance.below(1_000) {
        0..65 => life.user_op(),
        65..70 if !life.waiters.is_empty() => life.sync(false),
        70..200 if life.disk.down => life.store_up(),
        70..300 if !life.waiters.is_empty() => life.sync(true),
        300..550 if !life.tasks.is_empty() => {
            let at = life.chance.below(life.tasks.len());
            life.finish(at)?;
        }
        _ => {
            life.deliver()?;
        }
    }
    Ok(())
}
