//! A whole fleet: several sessions, one journal store with the real group commit, and a disk that delays, fails, tears and
//! loses what was not synced. Processes die with all of them, single sessions die alone, the journal store dies with what
//! it has in hand, and what the dead had sent still arrives (scenarios 30, 202, 239, 250, 251, 268).

use super::{
    chance::Chance,
    judge::{Broken, Verdict},
    life::{Lane, Life, Parcel, Waiter, Who},
    outside::Mood,
    plants::Plant,
    plug::{Ask, Plug, Stage},
    run::{Program, chance_of, shorten},
};
use everturn_actors::{
    group_commit::{GroupCommit, GroupLimits, Input, Output, WaiterId, Writer},
    ledger::StoreNews,
};
use everturn_storage::{
    codec,
    ids::{Epoch, Seq, SessionId},
    memory::{Fault, MemoryStore},
    store::{Commit, Error, SmallKey, Store},
};
use std::collections::{BTreeMap, VecDeque};

/// Most things that happen in the first phase.
const STEPS: usize = 700;

/// Rules of the store and of group commit that are forgotten (269).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorePlant {
    None,
    /// A checkpoint is answered before the sync.
    AckBeforeSync,
    /// A failed sync is answered as if it had worked (BR-040).
    AckFailedSync,
    /// What a failed store had lost is not submitted again (BR-020).
    ForgetResubmit,
    /// A record that was synced is gone.
    LoseSynced,
}

impl StorePlant {
    pub(crate) const ALL: [Self; 4] =
        [Self::AckBeforeSync, Self::AckFailedSync, Self::ForgetResubmit, Self::LoseSynced];
}

enum Job {
    Read,
    Tail(Seq),
}

pub(crate) struct Fleet {
    chance: Chance,
    store: MemoryStore,
    group: GroupCommit,
    generation: u64,
    incarnation: u64,
    flight: Option<(Vec<Commit>, bool)>,
    asked: BTreeMap<WaiterId, (usize, Epoch, Option<Waiter>)>,
    writers: BTreeMap<Writer, usize>,
    jobs: VecDeque<(u64, usize, Epoch, Job)>,
    down: bool,
    next: u64,
    pub(crate) lives: Vec<Life>,
    pub(crate) crashes: u64,
    faults: bool,
    plant: StorePlant,
}

fn limits() -> GroupLimits {
    GroupLimits { commits: 4, bytes: 4_000 }
}

impl Fleet {
    fn new(seed: u64, plant: StorePlant) -> Self {
        let mut chance = Chance::new(seed);
        let sessions = 1 + chance.below(4);
        let lives = (0..sessions)
            .map(|n| {
                let mut life = Life::new(seed.wrapping_mul(31).wrapping_add(n as u64), Plant::None);
                let mut plug = Plug::new(SessionId::trusted(format!("s{n}")));
                plug.resubmits = plant != StorePlant::ForgetResubmit;
                life.plug = Some(plug);
                life.disk.truth = Some(None);
                life
            })
            .collect();
        Self {
            chance,
            store: MemoryStore::new(),
            group: GroupCommit::new(limits()),
            generation: 0,
            incarnation: 0,
            flight: None,
            asked: BTreeMap::new(),
            writers: BTreeMap::new(),
            jobs: VecDeque::new(),
            down: false,
            next: 0,
            lives,
            crashes: 0,
            faults: true,
            plant,
        }
    }

    pub(crate) fn inputs(&self) -> u64 {
        self.next + self.lives.iter().map(|life| life.inputs).sum::<u64>()
    }

    /// The journal store takes the next thing that session `at` asks.
    fn take(&mut self, at: usize) -> Verdict {
        let Some((epoch, ask)) = self.lives[at].plug().outbox.pop_front() else { return Ok(()) };
        self.next += 1;
        let writer = (self.lives[at].plug().session.clone(), epoch);
        match ask {
            Ask::Write { generation, commit } if generation == self.generation => self.step(Input::Write(commit)),
            Ask::Write { .. } => Ok(()),
            Ask::Sync { generation, waiter, .. } if generation != self.generation => {
                let outcome = Err(Error::Poisoned("the store was opened anew meanwhile".to_owned()));
                self.lives[at].post(Lane::StoreToJournal, Parcel::Synced { epoch, outcome, waiter });
                Ok(())
            }
            Ask::Sync { upto, waiter, .. } => {
                let id = WaiterId(self.next);
                self.asked.insert(id, (at, epoch, waiter));
                self.step(Input::Sync { writer, upto, waiter: id })
            }
            Ask::Enroll => {
                let down = self.down.then(|| "simulated".to_owned());
                let news = StoreNews::Enrolled { generation: self.generation, down };
                self.writers.insert(writer, at);
                self.lives[at].post(Lane::StoreToJournal, Parcel::News { epoch, news });
                Ok(())
            }
            Ask::Withdraw => {
                self.writers.remove(&writer);
                self.step(Input::Withdrawn(writer))
            }
            Ask::Read => {
                self.jobs.push_back((self.group.arrived(), at, epoch, Job::Read));
                Ok(())
            }
            Ask::Tail { upto } => {
                self.jobs.push_back((self.group.arrived(), at, epoch, Job::Tail(upto)));
                Ok(())
            }
        }
    }

    fn step(&mut self, input: Input) -> Verdict {
        for output in self.group.step(input) {
            match output {
                Output::Start { commits, sync } => self.flight = Some((commits, sync)),
                Output::Ack { waiter, durable } => {
                    let Some((at, epoch, waiter)) = self.asked.remove(&waiter) else { continue };
                    let session = self.lives[at].plug().session.clone();
                    // K-2: it is on stable storage, whoever says so. A store may be opened anew between the reading of a
                    // log and its CP-B, and lack what was read: that is why the keeper looks at the end of it then.
                    let keeper = waiter.as_ref().is_some_and(|waiter| waiter.who == Who::Keeper);
                    if !keeper && self.store.durable_seq(&session) < Some(durable) {
                        return Err(Broken::new("K-2", format!("event {durable} of {session} is answered as durable")));
                    }
                    let outcome = Ok(durable);
                    self.lives[at].post(Lane::StoreToJournal, Parcel::Synced { epoch, outcome, waiter });
                }
                Output::Fail { waiter, error } => {
                    let Some((at, epoch, waiter)) = self.asked.remove(&waiter) else { continue };
                    let outcome = Err(error);
                    self.lives[at].post(Lane::StoreToJournal, Parcel::Synced { epoch, outcome, waiter });
                }
                Output::Refused { writer, error } => {
                    if let Some(at) = self.writers.get(&writer).copied() {
                        let (epoch, news) = (writer.1, StoreNews::Refused(error));
                        self.lives[at].post(Lane::StoreToJournal, Parcel::News { epoch, news });
                    }
                }
                Output::Down(_) => {
                    self.generation += 1;
                    self.down = true;
                    self.tell(|_| StoreNews::Down { why: "simulated".to_owned() });
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, news: impl Fn(&SessionId) -> StoreNews) {
        for (writer, at) in &self.writers {
            let (epoch, news) = (writer.1, news(&writer.0));
            self.lives[*at].post(Lane::StoreToJournal, Parcel::News { epoch, news });
        }
    }

    /// The group in flight comes to its end on the disk, and the actor hears of it.
    fn land(&mut self) -> Verdict {
        let Some((commits, sync)) = self.flight.take() else { return Ok(()) };
        self.next += 1;
        if self.faults && self.chance.permille(25) {
            let fault = *self.chance.pick(&[Fault::Io, Fault::Full]);
            let written = self.chance.below(commits.len() + 1);
            if self.chance.permille(500) && !commits.is_empty() {
                self.store.fail_commit(1, written, fault);
            } else {
                self.store.fail_sync(1, fault);
            }
        }
        let (refused, failure) = self.write(&commits, sync);
        self.look();
        self.step(Input::Done { refused, failure })
    }

    fn write(&self, commits: &[Commit], sync: bool) -> (Vec<(usize, Error)>, Option<Error>) {
        let (mut refused, mut at) = (Vec::new(), 0);
        while at < commits.len() {
            match self.store.commit(&commits[at..]) {
                Ok(()) => break,
                Err(error) if error.is_final() => return (refused, Some(error)),
                Err(error) => {
                    let Error::Fenced { session, expected, .. } = &error else { return (refused, Some(error)) };
                    let wrong = |commit: &Commit| commit.session == *session && commit.first == *expected;
                    let place = commits[at..].iter().position(wrong).map_or(at, |place| at + place);
                    refused.push((place, error));
                    at = place + 1;
                }
            }
        }
        let failure = match self.plant {
            StorePlant::AckBeforeSync => None,
            _ if sync => self.store.sync().err().filter(|_| self.plant != StorePlant::AckFailedSync),
            _ => None,
        };
        (refused, failure)
    }

    /// What is on stable storage now, for the judges.
    fn look(&mut self) {
        for life in &mut self.lives {
            let durable = self.store.durable_seq(&life.plug().session);
            life.disk.truth = Some(durable);
        }
    }

    fn reopen(&mut self) -> Verdict {
        self.next += 1;
        if self.chance.permille(700) {
            let keep = self.chance.next();
            self.store.lose_on_reopen(Some(keep));
        }
        let probe = SmallKey { session: None, kind: "probe", name: "reopen".to_owned() };
        let opened =
            self.store.reopen().and_then(|_| self.store.put(&probe, b"works")).and_then(|()| self.store.sync());
        self.look();
        if opened.is_err() {
            return Ok(());
        }
        self.down = false;
        self.step(Input::Reopened)?;
        let (generation, store) = (self.generation, self.store.clone());
        self.tell(|session| StoreNews::Up { generation, last: store.last_seq(session).ok().flatten() });
        Ok(())
    }

    fn run_job(&mut self) -> Verdict {
        let Some((_, at, epoch, job)) = self.jobs.pop_front() else { return Ok(()) };
        self.next += 1;
        let store = self.store.clone();
        let life = &mut self.lives[at];
        if life.plug().ledger.epoch() != epoch && epoch != Epoch(0) {
            return Ok(());
        }
        match job {
            Job::Read if life.plug().stage == Stage::Reading => life.was_read(&store)?,
            Job::Tail(upto) if life.plug().stage == Stage::Booting => {
                let last = store.last_seq(&life.plug().session).ok().flatten();
                life.tail_is(last, upto)?;
            }
            Job::Read | Job::Tail(_) => {}
        }
        // A cut is synced where the log is read.
        self.look();
        Ok(())
    }

    /// The process dies; or the power goes, and takes what was not synced.
    fn crash(&mut self, power: bool) {
        self.crashes += 1;
        let keep = self.chance.next();
        if self.plant == StorePlant::LoseSynced && self.chance.permille(300) {
            let session = self.lives[0].plug().session.clone();
            if let Some(last) = self.store.durable_seq(&session).filter(|last| last.0 > 2) {
                let lost =
                    self.store.read(&session, last, 1, 1).ok().and_then(|page| page.first().map(|stored| stored.first));
                lost.map(|first| self.store.lose_record(&session, first));
            }
        }
        self.store = if power { self.store.crash(Some(keep)) } else { self.store.kill() };
        self.group = GroupCommit::new(limits());
        (self.generation, self.incarnation, self.down) = (0, 0, false);
        self.drop_all();
        self.lives.iter_mut().for_each(Life::process_died);
        self.look();
    }

    fn drop_all(&mut self) {
        self.flight = None;
        self.asked.clear();
        self.writers.clear();
        self.jobs.clear();
    }

    /// The journal store dies; its group may still reach the disk.
    fn store_dies(&mut self) -> Verdict {
        if let Some((commits, sync)) = self.flight.take() {
            drop(self.write(&commits, sync));
        }
        self.drop_all();
        self.incarnation += 1;
        self.generation = self.incarnation << 32;
        self.group = GroupCommit::stopped(limits(), Error::Poisoned("restarted".to_owned()));
        self.down = true;
        self.look();
        // Whoever waited for it is ended with it; what was sent to the dead actor is lost.
        for life in &mut self.lives {
            life.plug().outbox.clear();
            life.die()?;
        }
        Ok(())
    }

    /// One thing that can happen by itself. False when nothing can.
    fn tick(&mut self) -> Result<bool, Broken> {
        let sessions = self.lives.len();
        for _ in 0..6 {
            let at = self.chance.below(sessions);
            match self.chance.below(6) {
                0 if self.flight.is_some() => self.land()?,
                1 if self.job_is_ready() => self.run_job()?,
                2 if !self.lives[at].plug().outbox.is_empty() => self.take(at)?,
                3 if !self.lives[at].tasks.is_empty() => {
                    let life = &mut self.lives[at];
                    let task = life.chance.below(life.tasks.len());
                    life.finish(task)?;
                }
                4 if self.down && self.flight.is_none() && self.chance.permille(300) => self.reopen()?,
                5 if self.lives[at].deliver()? => {}
                _ => continue,
            }
            return Ok(true);
        }
        // Chance missed; look at everything.
        for at in 0..sessions {
            if !self.lives[at].plug().outbox.is_empty() {
                return self.take(at).map(|()| true);
            }
            if self.lives[at].deliver()? {
                return Ok(true);
            }
            if !self.lives[at].tasks.is_empty() {
                return self.lives[at].finish(0).map(|()| true);
            }
        }
        if self.flight.is_some() {
            return self.land().map(|()| true);
        }
        if self.job_is_ready() {
            return self.run_job().map(|()| true);
        }
        if self.down {
            return self.reopen().map(|()| true);
        }
        Ok(false)
    }

    fn job_is_ready(&self) -> bool {
        self.jobs.front().is_some_and(|(behind, ..)| *behind <= self.group.written())
    }

    fn something(&mut self, deaths: usize) -> Verdict {
        let at = self.chance.below(self.lives.len());
        if self.chance.below(1_000) < deaths {
            return match self.chance.below(10) {
                0..5 => {
                    self.crash(true);
                    Ok(())
                }
                5..7 => {
                    self.crash(false);
                    Ok(())
                }
                7..9 => self.lives[at].die(),
                _ => self.store_dies(),
            };
        }
        if self.lives[at].plug().stage == Stage::Live && self.chance.permille(90) {
            self.lives[at].user_op();
            return Ok(());
        }
        self.tick().map(|_| ())
    }

    fn settle_down(&mut self) -> Verdict {
        for _ in 0..60_000 {
            if !self.tick()? {
                return Ok(());
            }
        }
        Err(Broken::new("F-3", "the fleet never came to rest"))
    }

    /// The verdict over every session at rest.
    fn finally(&mut self) -> Verdict {
        for life in &mut self.lives {
            let session = life.plug().session.clone();
            if life.plug().stage != Stage::Live {
                return Err(Broken::new("F-3", format!("{session} was never opened again")));
            }
            if life.desk.waiting > 0 {
                return Err(Broken::new("O-4", format!("{session}: waiters for idle were never released")));
            }
            let (mut next, mut batches) = (Seq(0), Vec::new());
            while let Ok(page) = self.store.read(&session, next, 10_000, 1 << 26) {
                if page.is_empty() {
                    break;
                }
                for stored in page {
                    let decoded = codec::decode_commit(&session, stored.first, &stored.bytes)
                        .map_err(|error| Broken::new("record", error.to_string()))?;
                    next = Seq(stored.first.0 + decoded.events.len() as u64);
                    batches.push(decoded.events);
                }
            }
            if next != life.plug().ledger.view().next_seq() {
                return Err(Broken::new("K-3", format!("{session}: the store ends at {next}, the journal does not")));
            }
            life.disk.batches = batches;
            life.judge.finally(&life.disk)?;
        }
        Ok(())
    }
}

/// Everything that the seed says.
pub(crate) fn whole() -> Program {
    (0..u32::try_from(STEPS).unwrap()).collect()
}

/// One run of a seed.
pub(crate) fn run(seed: u64, plant: StorePlant) -> Result<Fleet, Broken> {
    run_program(seed, plant, &whole())
}

/// One run with only these steps of the seed.
pub(crate) fn run_program(seed: u64, plant: StorePlant, program: &[u32]) -> Result<Fleet, Broken> {
    let mut fleet = Fleet::new(seed, plant);
    let deaths = [2, 8, 30][usize::try_from(seed % 3).unwrap()];
    for step in program {
        fleet.chance = chance_of(seed, *step);
        for (life, nth) in fleet.lives.iter_mut().zip(1..) {
            life.chance = chance_of(seed.wrapping_add(nth), *step);
        }
        fleet.something(deaths)?;
    }
    fleet.chance = Chance::new(seed);
    fleet.faults = false;
    for life in &mut fleet.lives {
        life.faults = false;
        life.mood = Mood::Kind;
    }
    fleet.settle_down()?;
    fleet.lives.iter_mut().for_each(Life::wake);
    fleet.settle_down()?;
    fleet.finally()?;
    Ok(fleet)
}

/// The shortest program found that still breaks the same rule.
pub(crate) fn shrink(seed: u64, plant: StorePlant, rule: &str) -> Program {
    shorten(whole(), |program| run_program(seed, plant, program).is_err_and(|broken| broken.rule == rule))
}
