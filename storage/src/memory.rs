//! A store in memory that forgets what was not synced and fails as it is told to.
//!
//! It is the twin of the store on disk in tests and simulations: it keeps apart what was written and what is
//! durable, and every fault comes from a script or a seed, never by chance.

mod faults;
mod image;

pub use faults::{Fault, SyncGate};

use crate::{
    event::SessionHeader,
    fence,
    ids::{Seq, SessionId},
    limits::{LIST_MAX, READ_MAX_EVENTS},
    store::{Commit, Error, Opened, Result, SessionSummary, SmallKey, Stats, Store, Stored},
};
use faults::Script;
use image::{Image, Op};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What a [`MemoryStore`] was asked for so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Groups of commits.
    pub groups: u64,
    /// Commits that were written.
    pub commits: u64,
    /// Syncs that ended well.
    pub syncs: u64,
    /// Changes of any kind that were written; reading makes none (211).
    pub writes: u64,
    /// Bytes of records that were written.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Which handle may use the store; older ones belong to a process that died.
    life: u64,
    poisoned: Option<String>,
    written: Image,
    durable: Image,
    unsynced: VecDeque<Op>,
    script: Script,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Held while a sync runs: one at a time, as on a disk.
    syncing: Mutex<()>,
}

/// A store in memory. Clones are handles to the same store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    life: u64,
}

impl MemoryStore {
    /// An empty store without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses power: forgets everything that was not synced, and gives the handle of the next process.
    ///
    /// With a seed, a random prefix of what was not synced stays, as it may on a disk. This handle and its clones
    /// answer `Poisoned` from now on; scripted faults and an open gate are gone, counters go on.
    pub fn crash(&self, keep: Option<u64>) -> Self {
        let mut state = self.lock();
        let unsynced = std::mem::take(&mut state.unsynced);
        let kept = keep.map_or(0, |seed| faults::below(seed, unsynced.len() + 1));
        let mut image = state.durable.clone();
        unsynced.into_iter().take(kept).for_each(|op| image.apply(op, false));
        self.restart(&mut state, image)
    }

    /// Kills the process and not the machine: all that was written stays, and is still not durable.
    pub fn kill(&self) -> Self {
        let mut state = self.lock();
        let image = state.written.clone();
        let unsynced = std::mem::take(&mut state.unsynced);
        let durable = state.durable.clone();
        let next = self.restart(&mut state, image);
        (state.unsynced, state.durable) = (unsynced, durable);
        next
    }

    fn restart(&self, state: &mut State, image: Image) -> Self {
        state.life += 1;
        state.poisoned = None;
        state.script = Script::default();
        (state.written, state.durable) = (image.clone(), image);
        Self { shared: Arc::clone(&self.shared), life: state.life }
    }

    /// Lets the `nth` group of commits from now on (1 is the next) fail after its first `written` commits.
    pub fn fail_commit(&self, nth: u64, written: usize, fault: Fault) {
        let mut state = self.lock();
        let at = state.script.commits + nth;
        state.script.commit_faults.insert(at, (written, fault));
    }

    /// Lets the `nth` sync from now on (1 is the next) fail.
    pub fn fail_sync(&self, nth: u64, fault: Fault) {
        let mut state = self.lock();
        let at = state.script.syncs + nth;
        state.script.sync_faults.insert(at, fault);
    }

    /// While `full`, every commit, small value and sync fails with `Full`, also after a reopening.
    pub fn set_full(&self, full: bool) {
        self.lock().script.full = full;
    }

    /// Lets the next reopening lose what was not synced, but for a random prefix when there is a seed.
    pub fn lose_on_reopen(&self, keep: Option<u64>) {
        self.lock().script.lose_on_reopen = Some(keep);
    }

    /// Stops every later sync at a gate that the test opens.
    pub fn gate_syncs(&self) -> SyncGate {
        let gate = SyncGate::default();
        self.lock().script.gate = Some(gate.clone());
        gate
    }

    /// Flips one bit of a stored record, counted from its first byte. Tells whether there is such a bit.
    pub fn flip_bit(&self, session: &SessionId, first: Seq, bit: usize) -> bool {
        let mut state = self.lock();
        let flipped = state.written.flip_bit(session, first, bit);
        state.durable.flip_bit(session, first, bit);
        flipped
    }

    /// Loses one stored record without a trace. Tells whether it was there.
    pub fn lose_record(&self, session: &SessionId, first: Seq) -> bool {
        let mut state = self.lock();
        state.durable.lose_record(session, first);
        state.written.lose_record(session, first)
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Seq of the last event that is durable.
    pub fn durable_seq(&self, session: &SessionId) -> Option<Seq> {
        self.lock().durable.tail(session).map(|tail| tail.last)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.life == self.life {
            Ok(state)
        } else {
            Err(Error::Poisoned("it was closed, or its process died".to_owned()))
        }
    }

    fn write(&self, op: Op) -> Result<()> {
        let mut state = self.live()?;
        state.writable()?;
        state.write(op);
        Ok(())
    }
}

impl State {
    fn writable(&mut self) -> Result<()> {
        match &self.poisoned {
            Some(why) => Err(Error::Poisoned(why.clone())),
            None if self.script.full => Err(self.poison(Fault::Full)),
            None => Ok(()),
        }
    }

    fn poison(&mut self, fault: Fault) -> Error {
        let error = fault.error();
        self.poisoned = Some(error.to_string());
        error
    }

    fn write(&mut self, op: Op) {
        self.counts.writes += 1;
        self.written.apply(op.clone(), false);
        self.unsynced.push_back(op);
    }
}

impl Store for MemoryStore {
    fn commit(&self, group: &[Commit]) -> Result<()> {
        let mut state = self.live()?;
        state.script.commits += 1;
        state.counts.groups += 1;
        state.writable()?;
        let at = state.script.commits;
        let fault = state.script.commit_faults.remove(&at);
        let allowed = fault.map_or(usize::MAX, |(written, _)| written);
        for commit in group.iter().take(allowed) {
            fence::check_commit(state.written.checked_tail(&commit.session)?, commit)?;
            state.counts.commits += 1;
            state.counts.bytes += commit.bytes.len() as u64;
            state.write(Op::Commit(commit.clone()));
        }
        match fault {
            Some((_, fault)) => Err(state.poison(fault)),
            None => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.shared.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.live()?;
        state.writable()?;
        state.script.syncs += 1;
        let at = state.script.syncs;
        let covered = state.unsynced.len();
        let (fault, gate) = (state.script.sync_faults.remove(&at), state.script.gate.clone());
        drop(state);
        if let Some(gate) = gate {
            gate.pass();
        }
        let mut state = self.live()?;
        if let Some(fault) = fault {
            return Err(state.poison(fault));
        }
        state.writable()?;
        for op in state.unsynced.drain(..covered).collect::<Vec<_>>() {
            state.written.acknowledge(&op);
            state.durable.apply(op, true);
        }
        state.counts.syncs += 1;
        Ok(())
    }

    fn reopen(&self) -> Result<Opened> {
        let _no_sync_runs = self.shared.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.live()?;
        let unsynced = std::mem::take(&mut state.unsynced);
        let kept = match state.script.lose_on_reopen.take() {
            None => unsynced.len(),
            Some(None) => 0,
            Some(Some(seed)) => faults::below(seed, unsynced.len() + 1),
        };
        let lost = unsynced.len() - kept;
        let mut image = state.durable.clone();
        unsynced.into_iter().take(kept).for_each(|op| image.apply(op, false));
        (state.written, state.durable) = (image.clone(), image);
        state.poisoned = None;
        let reports = if lost > 0 { vec![format!("{lost} unacknowledged writes are gone")] } else { Vec::new() };
        Ok(Opened { reports, behind_acknowledged: false })
    }

    fn header(&self, session: &SessionId) -> Result<Option<SessionHeader>> {
        Ok(self.live()?.written.header(session))
    }

    fn summary(&self, session: &SessionId) -> Result<Option<SessionSummary>> {
        Ok(self.live()?.written.summary(session))
    }

    fn last_seq(&self, session: &SessionId) -> Result<Option<Seq>> {
        Ok(self.live()?.written.checked_tail(session)?.map(|tail| tail.last))
    }

    fn read(&self, session: &SessionId, from: Seq, max_events: usize, max_bytes: usize) -> Result<Vec<Stored>> {
        Ok(self.live()?.written.read(session, from, max_events.min(READ_MAX_EVENTS), max_bytes))
    }

    fn list(&self, after: Option<&SessionId>, limit: usize) -> Result<Vec<SessionSummary>> {
        Ok(self.live()?.written.list(after, limit.min(LIST_MAX)))
    }

    fn attention(&self) -> Result<Vec<SessionId>> {
        Ok(self.live()?.written.attention())
    }

    fn truncate(&self, session: &SessionId, last: Option<Seq>) -> Result<u64> {
        let mut state = self.live()?;
        state.writable()?;
        let kept = state.written.cut_bytes(session, last);
        state.write(Op::Truncate(session.clone(), last));
        Ok(kept)
    }

    fn put_summary(&self, summary: &SessionSummary) -> Result<()> {
        self.write(Op::Summary(Arc::new(summary.clone())))
    }

    fn put(&self, key: &SmallKey, value: &[u8]) -> Result<()> {
        fence::check_small(key, value.len())?;
        self.write(Op::Small(key.clone(), value.into()))
    }

    fn get(&self, key: &SmallKey) -> Result<Option<Vec<u8>>> {
        Ok(self.live()?.written.small(key))
    }

    fn delete(&self, session: &SessionId) -> Result<()> {
        self.write(Op::Delete(session.clone()))
    }

    fn stats(&self) -> Stats {
        let state = self.lock();
        Stats { commits: state.counts.commits, syncs: state.counts.syncs, disk_bytes: state.written.bytes() }
    }

    fn close(&self) -> Result<()> {
        self.sync()?;
        // The next process gets its handle from `kill`.
        self.live()?.life += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
