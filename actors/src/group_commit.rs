//! Group commit as a pure machine: what to write next, when to sync, and whom to answer.
//!
//! One input or output job is in flight at any moment. What arrives meanwhile gathers; then one group is written,
//! with at most one sync behind it, and every waiter that the sync covers is answered after it, none before
//! (scenarios 38 and 257). A job that failed for good ends this opening of the store: nothing is retried as if it
//! had worked, every waiter is failed, and writers submit again once the store was opened anew.
//!
//! | state | Write | Sync | done | failed | reopened |
//! |---|---|---|---|---|---|
//! | idle | start | start | stale | stale | stale |
//! | in flight | gather | gather | answer, start the next | fail all, down | stale |
//! | down | drop | fail | stale | stale | idle |

#[cfg(test)]
mod tests;

use everturn_storage::{
    ids::{Epoch, Seq, SessionId},
    store::{Commit, Error},
};
use std::collections::{BTreeMap, VecDeque};

/// Who writes: one opening of one session.
pub type Writer = (SessionId, Epoch);

/// Whom to answer; given by the caller, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// Bounds of one group.
#[derive(Debug, Clone, Copy)]
pub struct GroupLimits {
    /// Most commits.
    pub commits: usize,
    /// Most bytes; a single larger commit still goes out alone.
    pub bytes: usize,
}

/// What happens to the machine.
#[derive(Debug)]
pub enum Input {
    /// A commit to write. It is not durable before a sync.
    Write(Commit),
    /// Answer `waiter` once everything that `writer` wrote before this is durable.
    Sync {
        /// Whose writes.
        writer: Writer,
        /// The last event that must be durable.
        upto: Seq,
        /// Whom to answer.
        waiter: WaiterId,
    },
    /// The job in flight ended.
    Done {
        /// Commits that the store refused for themselves, by place in the group. The others were written.
        refused: Vec<(usize, Error)>,
        /// A failure that is final for this opening of the store.
        failure: Option<Error>,
    },
    /// The store was opened again.
    Reopened,
    /// This writer is gone and asks nothing any more.
    Withdrawn(Writer),
}

/// What to do.
#[derive(Debug)]
pub enum Output {
    /// Write this group in order, then sync when `sync` says so.
    Start {
        /// The group; may be empty when only a sync is wanted.
        commits: Vec<Commit>,
        /// Whether a waiter needs a sync behind it.
        sync: bool,
    },
    /// Everything up to `durable` of the waiter's writer is durable.
    Ack {
        /// Whom.
        waiter: WaiterId,
        /// The last durable event.
        durable: Seq,
    },
    /// It could not be made durable.
    Fail {
        /// Whom.
        waiter: WaiterId,
        /// Why.
        error: Error,
    },
    /// The store refused a commit of this writer for itself; the writer is stale or wrong.
    Refused {
        /// Whose.
        writer: Writer,
        /// Why.
        error: Error,
    },
    /// The store can write nothing until it was opened again.
    Down(Error),
}

#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    writer: Writer,
    upto: Seq,
    /// Number of the last commit that must be written before the covering sync begins.
    after: u64,
}

#[derive(Debug)]
struct Flight {
    writers: Vec<Writer>,
    /// Number of the last commit that is written when this ends.
    through: u64,
    sync: bool,
}

/// The machine. Commits are numbered 1, 2, 3, … in order of arrival.
#[derive(Debug)]
pub struct GroupCommit {
    limits: GroupLimits,
    queue: VecDeque<Commit>,
    /// Number of the last commit that came in.
    arrived: u64,
    /// Number of the last commit that was handed out.
    started: u64,
    /// Number of the last commit of a job that ended.
    written: u64,
    /// Last commit of each writer that no sync covers yet.
    unsynced: BTreeMap<Writer, (u64, Seq)>,
    waiters: VecDeque<Waiter>,
    flight: Option<Flight>,
    down: Option<Error>,
    /// Writers of which a commit was refused, until they are withdrawn: what they write behind it has no place in the
    /// log, so a sync that comes late must not be answered as if it covered that commit.
    refused: BTreeMap<Writer, Error>,
}

impl GroupCommit {
    /// One without work.
    pub fn new(limits: GroupLimits) -> Self {
        Self {
            limits,
            queue: VecDeque::new(),
            arrived: 0,
            started: 0,
            written: 0,
            unsynced: BTreeMap::new(),
            waiters: VecDeque::new(),
            flight: None,
            down: None,
            refused: BTreeMap::new(),
        }
    }

    /// One whose store must be opened anew before anything is written.
    pub fn stopped(limits: GroupLimits, error: Error) -> Self {
        Self { down: Some(error), ..Self::new(limits) }
    }

    /// Number of the last commit that came in; reads behind it wait for [`Self::written`] to reach it.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Number up to which every commit was written, refused or given up.
    pub fn written(&self) -> u64 {
        if self.down.is_some() { self.arrived } else { self.written }
    }

    /// Whether nothing is in flight and nothing waits.
    pub fn is_quiet(&self) -> bool {
        self.flight.is_none() && self.queue.is_empty() && self.waiters.is_empty()
    }

    /// Takes one input.
    pub fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Write(commit) => self.write(commit, &mut out),
            Input::Sync { writer, upto, waiter } => self.sync(writer, upto, waiter, &mut out),
            Input::Done { refused, failure } => self.done(refused, failure, &mut out),
            Input::Reopened => self.down = None,
            Input::Withdrawn(writer) => drop(self.refused.remove(&writer)),
        }
        out
    }

    fn write(&mut self, commit: Commit, out: &mut Vec<Output>) {
        if self.down.is_some() || self.refused.contains_key(&(commit.session.clone(), commit.epoch)) {
            return;
        }
        self.arrived += 1;
        self.unsynced.insert((commit.session.clone(), commit.epoch), (self.arrived, commit.last()));
        self.queue.push_back(commit);
        self.start(out);
    }

    fn sync(&mut self, writer: Writer, upto: Seq, waiter: WaiterId, out: &mut Vec<Output>) {
        if let Some(error) = &self.down {
            out.push(Output::Fail { waiter, error: error.clone() });
            return;
        }
        if let Some(error) = self.refused.get(&writer) {
            out.push(Output::Fail { waiter, error: error.clone() });
            return;
        }
        let after = self.unsynced.get(&writer).map_or(0, |(number, _)| *number);
        self.waiters.push_back(Waiter { id: waiter, writer, upto, after });
        self.start(out);
    }

    /// Hands out the next job, unless one is in flight.
    fn start(&mut self, out: &mut Vec<Output>) {
        if self.flight.is_some() || (self.queue.is_empty() && self.waiters.is_empty()) {
            return;
        }
        let (mut commits, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.queue.front() {
            let full = commits.len() >= self.limits.commits || bytes + next.bytes.len() > self.limits.bytes;
            if full && !commits.is_empty() {
                break;
            }
            bytes += next.bytes.len();
            commits.extend(self.queue.pop_front());
        }
        self.started += commits.len() as u64;
        let sync = self.waiters.iter().any(|waiter| waiter.after <= self.started);
        let writers = commits.iter().map(|commit| (commit.session.clone(), commit.epoch)).collect();
        self.flight = Some(Flight { writers, through: self.started, sync });
        out.push(Output::Start { commits, sync });
    }

    fn done(&mut self, refused: Vec<(usize, Error)>, failure: Option<Error>, out: &mut Vec<Output>) {
        let Some(flight) = self.flight.take() else { return };
        if let Some(error) = failure {
            self.fail_all(error, out);
            return;
        }
        self.written = flight.through;
        for (place, error) in refused {
            if let Some(writer) = flight.writers.get(place) {
                self.refuse(writer.clone(), error, out);
            }
        }
        if flight.sync {
            self.answer(flight.through, out);
        }
        self.start(out);
    }

    /// Answers everyone whom a sync behind commit number `through` covers.
    fn answer(&mut self, through: u64, out: &mut Vec<Output>) {
        let mut rest = VecDeque::with_capacity(self.waiters.len());
        for waiter in self.waiters.drain(..) {
            if waiter.after > through {
                rest.push_back(waiter);
                continue;
            }
            // Only a commit that this sync covers may raise the answer above what was asked.
            let covered = self.unsynced.get(&waiter.writer).filter(|(number, _)| *number <= through);
            let durable = covered.map_or(waiter.upto, |(_, last)| waiter.upto.max(*last));
            out.push(Output::Ack { waiter: waiter.id, durable });
        }
        self.waiters = rest;
        self.unsynced.retain(|_, (number, _)| *number > through);
    }

    /// A refused writer gets no acknowledgement any more: what follows its refused commit has no place in the log.
    fn refuse(&mut self, writer: Writer, error: Error, out: &mut Vec<Output>) {
        self.unsynced.remove(&writer);
        self.refused.insert(writer.clone(), error.clone());
        self.waiters.retain(|waiter| {
            let keep = waiter.writer != writer;
            if !keep {
                out.push(Output::Fail { waiter: waiter.id, error: error.clone() });
            }
            keep
        });
        out.push(Output::Refused { writer, error });
    }

    fn fail_all(&mut self, error: Error, out: &mut Vec<Output>) {
        self.queue.clear();
        self.unsynced.clear();
        self.started = self.arrived;
        self.written = self.arrived;
        for waiter in self.waiters.drain(..) {
            out.push(Output::Fail { waiter: waiter.id, error: error.clone() });
        }
        out.push(Output::Down(error.clone()));
        self.down = Some(error);
    }
}
