//! Runs of whole fleets, and the bugs planted in their store.

use super::{
    fleet::{self, StorePlant},
    judge::Broken,
    number, program_asked,
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// Inputs of fleets in the test run, beside those of single sessions.
const INPUTS: u64 = 1_000_000;

/// Scenarios 30, 202, 239, 250, 251, 256 to 258, 268: epochs that overlap, stores that fail and come back.
#[test]
fn fleets_break_nothing() {
    let wanted = number("EVERTURN_FLEET_INPUTS", INPUTS);
    let first = number("EVERTURN_SIM_FIRST_SEED", 1);
    let (next, inputs, crashes) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let worker = || {
        while inputs.load(Ordering::Relaxed) < wanted {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match fleet::run(seed, StorePlant::None) {
                Ok(fleet) => {
                    inputs.fetch_add(fleet.inputs(), Ordering::Relaxed);
                    crashes.fetch_add(fleet.crashes, Ordering::Relaxed);
                }
                Err(broken) => report(seed, &broken),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let (inputs, crashes, seeds) = (inputs.into_inner(), crashes.into_inner(), next.into_inner() - first);
    println!("{inputs} inputs of {seeds} fleets, {crashes} crashes, {:.1} s", began.elapsed().as_secs_f64());
    assert!(crashes >= inputs / 300, "only {crashes} crashes: the simulation is too kind");
}

/// Prints how to see it again, and the shortest program that still shows it.
fn report(seed: u64, broken: &Broken) -> ! {
    let program = fleet::shrink(seed, StorePlant::None, broken.rule);
    let kept: Vec<String> = program.iter().map(ToString::to_string).collect();
    panic!(
        "seed {seed}: {} broken: {}\nagain: EVERTURN_FLEET_SEED={seed} cargo test --test simulation fleet_again\n\
         shorter, {} steps: EVERTURN_FLEET_SEED={seed} EVERTURN_SIM_STEPS={} cargo test --test simulation fleet_again",
        broken.rule,
        broken.why,
        program.len(),
        kept.join(",")
    )
}

/// Runs one fleet again, with only the steps of `EVERTURN_SIM_STEPS` when it is set.
#[test]
fn fleet_again() {
    let Ok(seed) = std::env::var("EVERTURN_FLEET_SEED") else { return };
    let seed = seed.parse().expect("EVERTURN_FLEET_SEED is a number");
    if let Err(broken) = fleet::run_program(seed, StorePlant::None, &program_asked(fleet::whole)) {
        panic!("seed {seed}: {} broken: {}", broken.rule, broken.why);
    }
}

/// Scenario 269: what the store and group commit could forget is caught too.
#[test]
fn planted_bugs_of_the_store_are_caught() {
    let mut missed = Vec::new();
    for plant in StorePlant::ALL {
        match (1..=2_000).find_map(|seed| fleet::run(seed, plant).err().map(|broken| (seed, broken))) {
            Some((seed, broken)) => println!("{plant:?}: seed {seed} breaks {}", broken.rule),
            None => missed.push(plant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// A fleet that fails gets much shorter too, and still fails for the same reason.
#[test]
fn failures_of_fleets_shrink() {
    let plant = StorePlant::AckBeforeSync;
    let (seed, broken) =
        (1..=2_000).find_map(|seed| Some((seed, fleet::run(seed, plant).err()?))).expect("it is caught");
    let program = fleet::shrink(seed, plant, broken.rule);
    println!("seed {seed}: {} steps of {}", program.len(), fleet::whole().len());
    assert!(program.len() <= fleet::whole().len() / 4, "{} steps are left", program.len());
    assert!(fleet::run_program(seed, plant, &program).is_err_and(|again| again.rule == broken.rule));
}
