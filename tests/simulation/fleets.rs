//! Runs of whole fleets, and the bugs planted in their store.

use super::{
    fleet::{self, StorePlant},
    number,
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
                Err(broken) => panic!(
                    "seed {seed}: {} broken: {}\nagain: EVERTURN_FLEET_SEED={seed} cargo test --test simulation fleet_again",
                    broken.rule, broken.why
                ),
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

/// Runs one fleet again.
#[test]
fn fleet_again() {
    let Ok(seed) = std::env::var("EVERTURN_FLEET_SEED") else { return };
    let seed = seed.parse().expect("EVERTURN_FLEET_SEED is a number");
    if let Err(broken) = fleet::run(seed, StorePlant::None) {
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
