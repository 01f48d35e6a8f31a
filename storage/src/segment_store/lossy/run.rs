//! Seeded runs of the store over the lossy disk. The model is a list of what was done: whatever dies, what an opening
//! shows must be the state behind some first part of it, and that part holds everything that was acknowledged.
//!
//! A failing seed prints itself and the shortest program that still fails:
//! `EVERTURN_DISK_SEED=N [EVERTURN_DISK_STEPS=…] cargo test -p everturn-storage lossy`.

use super::{
    super::{SegmentStore, disk::Disk},
    chance::Chance,
    disk::{Faults, Handle, Phase},
    plants::Plant,
};
use crate::{
    contract::{header, padded, session, summary},
    ids::{Seq, SessionId},
    store::{Opened, SmallKey, Store},
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, PoisonError},
};

/// Steps of one program.
const STEPS: u32 = 160;

/// Programs in the test run; `EVERTURN_DISK_PROGRAMS=100000` runs for long.
const PROGRAMS: u64 = 300;

/// Programs within which a planted bug must be caught.
const PLANT_PROGRAMS: u64 = 400;

/// Openings that may fail in a row before the disk is healed.
const SICK_OPENINGS: usize = 6;

const SESSIONS: usize = 4;
const DIR: &str = "/store";

/// Commits of a session: where each begins, and its bytes.
type Commits = Vec<(u64, Arc<[u8]>)>;

/// What a store shows.
#[derive(Debug, Clone, Default, PartialEq)]
struct Shown {
    logs: BTreeMap<SessionId, Commits>,
    small: BTreeMap<String, Vec<u8>>,
}

/// One thing that was done to it, whole or not at all.
#[derive(Debug, Clone)]
enum Done {
    Commit(SessionId, u64, Arc<[u8]>),
    Put(String, Vec<u8>),
    Delete(SessionId),
}

impl Shown {
    fn apply(&mut self, done: &Done) {
        match done {
            Done::Commit(session, first, bytes) => {
                self.logs.entry(session.clone()).or_default().push((*first, Arc::clone(bytes)));
            }
            Done::Put(name, value) => drop(self.small.insert(name.clone(), value.clone())),
            Done::Delete(session) => drop(self.logs.remove(session)),
        }
    }
}

impl Shown {
    fn brief(&self) -> String {
        let logs = self.logs.iter().map(|(session, log)| format!("{session}..{}", end_of(log)));
        let small = self.small.iter().map(|(name, value)| format!("{name}={}", value[0]));
        logs.chain(small).collect::<Vec<_>>().join(" ")
    }
}

impl Done {
    fn brief(&self) -> String {
        match self {
            Self::Commit(session, first, _) => format!("{session}+{first}"),
            Self::Put(name, value) => format!("{name}={}", value[0]),
            Self::Delete(session) => format!("-{session}"),
        }
    }
}

type Verdict = Result<(), String>;

struct World {
    disk: Handle,
    store: Option<SegmentStore>,
    chance: Chance,
    /// What is durable for certain.
    base: Shown,
    /// What was done since, in order.
    done: Vec<Done>,
    /// How much of it was acknowledged.
    acked: usize,
    /// Seq of the next event of each session, as its writer knows it.
    next: BTreeMap<SessionId, u64>,
    crashes: u64,
    values: u64,
}

fn key(name: &str) -> SmallKey {
    SmallKey { session: None, kind: "k", name: name.to_owned() }
}

fn program_of(seed: u64, step: u32) -> Chance {
    Chance::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ (u64::from(step) << 20))
}

impl World {
    fn new(seed: u64, plant: Plant) -> Result<Self, String> {
        let disk = Handle::new(seed, plant);
        let store = None;
        let mut world = Self {
            disk,
            store,
            chance: Chance::new(seed),
            base: Shown::default(),
            done: Vec::new(),
            acked: 0,
            next: BTreeMap::new(),
            crashes: 0,
            values: 0,
        };
        world.recover()?;
        world.disk.state().faults = match seed % 4 {
            0 => Faults::default(),
            1 => Faults { sync: 20, ..Faults::default() },
            2 => Faults { write: 15, ..Faults::default() },
            _ => Faults { full: 15, ..Faults::default() },
        };
        Ok(world)
    }

    fn phase(&self, phase: Phase) {
        self.disk.state().phase = phase;
    }

    fn dead(&self) -> bool {
        self.store.is_none() || self.disk.state().dead
    }

    /// The store, which is there but while it is opened.
    fn with<T>(&self, call: impl FnOnce(&SegmentStore) -> crate::store::Result<T>) -> Result<T, ()> {
        self.store.as_ref().map_or(Err(()), |store| call(store).map_err(drop))
    }

    fn step(&mut self) -> Verdict {
        let worked = match self.chance.below(100) {
            0..40 => self.commit(),
            40..60 => self.sync(),
            60..70 => self.put(),
            70..74 => self.delete(),
            74..88 => {
                self.keep_house();
                Ok(())
            }
            88..90 => return self.restart(),
            90..93 => return self.recover(),
            93..97 => {
                let after = self.chance.below(60) as u64;
                self.disk.arm(Some(after));
                Ok(())
            }
            _ => return self.looks_right(),
        };
        if worked.is_err() || self.disk.state().dead { self.recover() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), ()> {
        self.phase(Phase::Writing);
        let mut group = Vec::new();
        for _ in 0..=self.chance.below(3) {
            let session = session(&format!("s{}", self.chance.below(SESSIONS)));
            let (count, len) = (1 + self.chance.below(2) as u32, self.chance.below(600));
            let first = self.next.entry(session.clone()).or_default();
            let mut commit = padded(&session, 1, *first, count, len);
            commit.header = (*first == 0).then(|| Arc::new(header(&session)));
            commit.summary = Some(Arc::new(summary(&session, commit.last().0, 0)));
            *first += u64::from(count);
            self.done.push(Done::Commit(session, commit.first.0, Arc::clone(&commit.bytes)));
            group.push(commit);
        }
        self.with(|store| store.commit(&group))
    }

    fn sync(&mut self) -> Result<(), ()> {
        self.phase(Phase::Syncing);
        self.with(Store::sync)?;
        self.acked = self.done.len();
        Ok(())
    }

    fn put(&mut self) -> Result<(), ()> {
        self.phase(Phase::Writing);
        self.values += 1;
        let (name, value) = (format!("n{}", self.chance.below(3)), self.values.to_le_bytes().to_vec());
        self.done.push(Done::Put(name.clone(), value.clone()));
        self.with(|store| store.put(&key(&name), &value))
    }

    fn delete(&mut self) -> Result<(), ()> {
        self.phase(Phase::Writing);
        let session = session(&format!("s{}", self.chance.below(SESSIONS)));
        if self.next.remove(&session).is_none() {
            return Ok(());
        }
        self.done.push(Done::Delete(session.clone()));
        self.with(|store| store.delete(&session))
    }

    /// The thread behind the writers works until it has nothing to do.
    fn keep_house(&self) {
        self.phase(Phase::House);
        self.disk.let_work(true);
        if let Some(store) = &self.store
            && let Some(engine) = &*store.engine.read().unwrap_or_else(PoisonError::into_inner)
        {
            engine.settle();
        }
        self.disk.let_work(false);
    }

    /// The process ends in order and another one begins.
    fn restart(&mut self) -> Verdict {
        self.phase(Phase::Syncing);
        if self.with(Store::close).is_ok() {
            self.acked = self.done.len();
        }
        self.store = None;
        self.recover()
    }

    /// Opens the store anew, by whatever is left of it, and looks at what it shows.
    fn recover(&mut self) -> Verdict {
        let mut why = String::new();
        for opening in 0.. {
            if opening == SICK_OPENINGS {
                self.disk.state().faults = Faults::default();
                self.disk.arm(None);
            } else if opening > 2 * SICK_OPENINGS {
                return Err(format!("it cannot be opened on a healthy disk: {why}"));
            }
            self.phase(Phase::Opening);
            let opened = if self.dead() {
                self.crashes += u64::from(self.store.is_some());
                drop(self.store.take());
                self.disk.crash(self.chance.permille(700));
                if self.chance.permille(250) && opening < SICK_OPENINGS {
                    let after = self.chance.below(40) as u64;
                    self.disk.arm(Some(after));
                }
                SegmentStore::open_on(&Disk::Lossy(self.disk.clone()), Path::new(DIR)).map(|(store, opened)| {
                    self.store = Some(store);
                    opened
                })
            } else {
                self.store.as_ref().map_or_else(|| Ok(Opened::default()), Store::reopen)
            };
            match opened {
                Ok(opened) if opened.behind_acknowledged && !self.disk.state().dead => {
                    return Err(format!("it says that it lost what it had acknowledged: {:?}", opened.reports));
                }
                Ok(_) => match self.shows() {
                    Some(shown) => return self.judge(shown),
                    None if self.disk.state().dead => {}
                    None => return Err("what was opened cannot be read".to_owned()),
                },
                Err(error) => why = error.to_string(),
            }
        }
        Ok(())
    }

    /// What it shows now; none when it cannot be read.
    fn shows(&self) -> Option<Shown> {
        let mut shown = Shown::default();
        for n in 0..SESSIONS {
            let session = session(&format!("s{n}"));
            let (mut from, mut log) = (Seq(0), Vec::new());
            loop {
                let page = self.with(|store| store.read(&session, from, 50, 1 << 20)).ok()?;
                let Some(last) = page.last() else { break };
                from = Seq(crate::codec::peek(&last.bytes)?.last().0 + 1);
                log.extend(page.into_iter().map(|stored| (stored.first.0, stored.bytes.into())));
            }
            if !log.is_empty() {
                shown.logs.insert(session, log);
            }
        }
        for n in 0..3 {
            let name = format!("n{n}");
            if let Some(value) = self.with(|store| store.get(&key(&name))).ok()? {
                shown.small.insert(name, value);
            }
        }
        let listed = self.with(|store| store.list(None, 100)).ok()?;
        let listed: Vec<SessionId> = listed.into_iter().map(|summary| summary.session).collect();
        shown.logs.keys().eq(&listed).then_some(shown)
    }

    /// Behind an opening: a first part of what was done, with everything acknowledged; and that is durable now.
    fn judge(&mut self, shown: Shown) -> Verdict {
        let mut state = self.base.clone();
        self.done[..self.acked].iter().for_each(|done| state.apply(done));
        let mut left = self.done[self.acked..].iter();
        while state != shown {
            let Some(done) = left.next() else {
                return Err(format!(
                    "it shows {}; durable before was {}, then {} of {:?} were acknowledged",
                    shown.brief(),
                    self.base.brief(),
                    self.acked,
                    self.done.iter().map(Done::brief).collect::<Vec<_>>()
                ));
            };
            state.apply(done);
        }
        self.next = state.logs.iter().map(|(session, log)| (session.clone(), end_of(log))).collect();
        (self.base, self.acked) = (state, 0);
        self.done.clear();
        Ok(())
    }

    /// While nothing has failed it shows everything that was done.
    fn looks_right(&mut self) -> Verdict {
        let mut state = self.base.clone();
        self.done.iter().for_each(|done| state.apply(done));
        match self.shows() {
            Some(shown) if shown == state => Ok(()),
            Some(_) => Err("it does not show what was written".to_owned()),
            None => self.recover(),
        }
    }
}

fn end_of(log: &[(u64, Arc<[u8]>)]) -> u64 {
    log.last().and_then(|(_, bytes)| crate::codec::peek(bytes)).map_or(0, |head| head.last().0 + 1)
}

/// Runs these steps of a seed; gives back how often it crashed.
fn run(seed: u64, plant: Plant, program: &[u32]) -> Result<u64, String> {
    let mut world = World::new(seed, plant)?;
    for step in program {
        world.chance = program_of(seed, *step);
        world.step()?;
    }
    world.disk.state().faults = Faults::default();
    world.disk.arm(None);
    world.recover()?;
    // Two openings of the same bytes are the same.
    world.restart()?;
    world.restart()?;
    Ok(world.crashes)
}

fn whole() -> Vec<u32> {
    (0..STEPS).collect()
}

/// Leaves out pieces, ever smaller ones, for as long as it still fails.
fn shorten(seed: u64, plant: Plant) -> Vec<u32> {
    let mut program = whole();
    let mut piece = program.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < program.len() {
            let shorter = [&program[..at], &program[program.len().min(at + piece)..]].concat();
            if run(seed, plant, &shorter).is_err() { program = shorter } else { at += piece }
        }
        piece /= 2;
    }
    program
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// STORAGE "What we build": order is everything. BR-013, BR-014, BR-016, BR-038, BR-040; scenarios 250, 251.
#[test]
fn nothing_acknowledged_is_lost_on_a_lossy_disk() {
    if let Some(seed) = number("EVERTURN_DISK_SEED") {
        let steps = std::env::var("EVERTURN_DISK_STEPS").map_or_else(
            |_| whole(),
            |steps| steps.split(',').map(|step| step.parse().expect("EVERTURN_DISK_STEPS are numbers")).collect(),
        );
        run(seed, Plant::None, &steps).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        return;
    }
    let programs = number("EVERTURN_DISK_PROGRAMS").unwrap_or(PROGRAMS);
    let mut crashes = 0;
    for seed in 1..=programs {
        crashes += run(seed, Plant::None, &whole()).unwrap_or_else(|why| {
            let steps: Vec<String> = shorten(seed, Plant::None).iter().map(ToString::to_string).collect();
            panic!(
                "seed {seed}: {why}\nagain: EVERTURN_DISK_SEED={seed} cargo test -p everturn-storage lossy\nshorter: \
                 EVERTURN_DISK_STEPS={}",
                steps.join(",")
            )
        });
    }
    println!("{programs} programs of {STEPS} steps, {crashes} crashes");
    assert!(crashes > programs, "only {crashes} crashes: the disk is too kind");
}

/// Scenario 269: each step that the protocol could forget is missed.
#[test]
fn planted_bugs_of_the_protocol_are_caught() {
    let mut missed = Vec::new();
    for plant in Plant::ALL {
        match (1..=PLANT_PROGRAMS).find_map(|seed| Some((seed, run(seed, plant, &whole()).err()?))) {
            Some((seed, why)) => println!("{plant:?}: seed {seed}: {why}"),
            None => missed.push(plant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// A failing program gets much shorter.
#[test]
fn failures_of_the_protocol_shrink() {
    let plant = Plant::AckBeforeSync;
    let fails = |seed: &u64| run(*seed, plant, &whole()).is_err();
    let seed = (1..=PLANT_PROGRAMS).find(fails).expect("it is caught");
    let program = shorten(seed, plant);
    assert!(program.len() <= 12, "{} steps are left", program.len());
    assert!(run(seed, plant, &program).is_err());
}
