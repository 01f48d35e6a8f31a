//! The turn machine, the desk, the tool window, the checker and repair in a seeded simulation: first safety under faults
//! and crashes, then liveness once the faults stop (STYLE rule 16; scenarios 249 to 258, 266, 267, 269).
//!
//! A failing seed prints itself; `EVERTURN_SIM_SEED=N cargo test --test simulation replay` runs it again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

mod chance;
mod desk_port;
mod disk;
mod fleet;
mod fleets;
mod judge;
mod life;
mod outside;
mod plants;
mod plug;
mod programs;
mod reference;
mod run;
mod steps;
mod windows;
mod wire;

#[path = "../common/strict.rs"]
mod strict;

use plants::Plant;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Inputs that the machines take in the test run; `EVERTURN_SIM_INPUTS=200000000` runs for hours.
const INPUTS: u64 = 5_000_000;

/// One crash in so many inputs is the least that counts.
const INPUTS_A_CRASH: u64 = 50;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The steps of `EVERTURN_SIM_STEPS`, or all of them.
fn program_asked(whole: impl FnOnce() -> run::Program) -> run::Program {
    match std::env::var("EVERTURN_SIM_STEPS") {
        Ok(steps) => steps.split(',').map(|step| step.parse().expect("EVERTURN_SIM_STEPS are numbers")).collect(),
        Err(_) => whole(),
    }
}

/// Prints how to see it again, and the shortest program that still shows it.
fn report(seed: u64, broken: &judge::Broken) -> ! {
    let program = run::shrink(seed, Plant::None, broken.rule);
    let kept: Vec<String> = program.iter().map(ToString::to_string).collect();
    panic!(
        "seed {seed}: {} broken: {}\nagain: EVERTURN_SIM_SEED={seed} cargo test --test simulation replay -- --nocapture\n\
         shorter, {} steps: EVERTURN_SIM_SEED={seed} EVERTURN_SIM_STEPS={} cargo test --test simulation replay -- --nocapture",
        broken.rule,
        broken.why,
        program.len(),
        kept.join(",")
    )
}

/// Scenarios 249 to 251, 255 to 258; F-1 to F-5; BR-052, BR-053, BR-091, BR-092: strict servers take every request.
#[test]
fn millions_of_inputs_break_nothing() {
    let wanted = number("EVERTURN_SIM_INPUTS", INPUTS);
    let first = number("EVERTURN_SIM_FIRST_SEED", 1);
    let (next, inputs, crashes) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let (requests, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Option<(u64, judge::Broken)>> = Mutex::new(None);
    let began = Instant::now();
    let worker = || {
        while inputs.load(Ordering::Relaxed) < wanted && failed.lock().unwrap().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match run::run(seed, Plant::None) {
                Ok(life) => {
                    inputs.fetch_add(life.inputs, Ordering::Relaxed);
                    crashes.fetch_add(life.crashes, Ordering::Relaxed);
                    requests.fetch_add(life.wire.requests, Ordering::Relaxed);
                    longest.fetch_max(life.wire.longest as u64, Ordering::Relaxed);
                }
                Err(broken) => {
                    let mut failed = failed.lock().unwrap();
                    if failed.as_ref().is_none_or(|(earlier, _)| seed < *earlier) {
                        *failed = Some((seed, broken));
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    if let Some((seed, broken)) = failed.into_inner().unwrap() {
        report(seed, &broken);
    }
    let (inputs, crashes, seeds) = (inputs.into_inner(), crashes.into_inner(), next.into_inner() - first);
    let (requests, longest) = (requests.into_inner(), longest.into_inner());
    println!("{requests} requests of up to {longest} messages");
    assert!(requests > wanted / 500, "only {requests} requests were judged");
    println!("{inputs} inputs, {crashes} crashes, {seeds} seeds from {first}, {:.1} s", began.elapsed().as_secs_f64());
    assert!(crashes >= inputs / INPUTS_A_CRASH, "only {crashes} crashes: the simulation is too kind");
}

/// Runs one seed again, with only the steps of `EVERTURN_SIM_STEPS` when it is set.
#[test]
fn replay() {
    let Ok(seed) = std::env::var("EVERTURN_SIM_SEED") else { return };
    let seed = seed.parse().expect("EVERTURN_SIM_SEED is a number");
    let program = program_asked(run::whole);
    if let Err(broken) = run::run_program(seed, Plant::None, &program) {
        panic!("seed {seed}: {} broken: {}", broken.rule, broken.why);
    }
}

/// Scenario 269: every planted bug is caught, so the simulation sees what it looks for.
#[test]
fn planted_bugs_are_caught() {
    let mut missed = Vec::new();
    for plant in Plant::ALL {
        match (1..=2_000).find_map(|seed| run::run(seed, plant).err().map(|broken| (seed, broken))) {
            Some((seed, broken)) => println!("{plant:?}: seed {seed} breaks {}", broken.rule),
            None => missed.push(plant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// A failing program gets much shorter, and still fails for the same reason.
#[test]
fn failures_shrink() {
    for (plant, most) in [(Plant::SkipCpT, 120), (Plant::FailedSyncAcked, 120)] {
        let (seed, broken) = (1..200)
            .find_map(|seed| run::run(seed, plant).err().map(|broken| (seed, broken)))
            .expect("the plant is caught");
        let program = run::shrink(seed, plant, broken.rule);
        println!(
            "{plant:?}, seed {seed}: {} of {} steps are enough for {}",
            program.len(),
            run::whole().len(),
            broken.rule
        );
        assert!(program.len() <= most, "{} steps are left", program.len());
        let again = run::run_program(seed, plant, &program).err().expect("it still breaks");
        assert_eq!(again.rule, broken.rule);
    }
}
