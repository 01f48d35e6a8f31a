//! Writing: frames go to the active segment, and a sync makes durable what was written before it.

use super::{
    disk::Disk,
    frame::{self, Batch, Op},
    index::{Place, sum_of},
    map::Map,
    segment::{self, Segment},
};
use crate::{
    limits::INDEX_PENDING_KEYS,
    store::{Error, Result},
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

/// How long a writer sleeps at most before it looks again whether the index has caught up.
const CATCH_UP_MS: u64 = 1_000;

/// The end of the log.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) active: Arc<Segment>,
    /// Where the next frame goes.
    pub(super) at: u64,
    /// Its LSN.
    pub(super) next: u64,
    /// The last LSN that a sync covered.
    pub(super) durable: u64,
    /// Sum over the keys of all commits.
    pub(super) sum: u64,
    /// Bytes since the last checkpoint of the index.
    pub(super) since: u64,
    pub(super) buffer: Vec<u8>,
}

/// What the background thread is asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) stop: bool,
    pub(super) work: bool,
    /// Whether it works.
    pub(super) busy: bool,
    /// What it leaves behind when it ends: the live bytes of each segment.
    pub(super) live: BTreeMap<u64, u64>,
}

/// What the writers, the readers and the background thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) disk: Disk,
    pub(super) segments_dir: PathBuf,
    pub(super) index_dir: PathBuf,
    pub(super) store: [u8; 16],
    pub(super) log: Mutex<Log>,
    pub(super) map: RwLock<Map>,
    pub(super) segments: RwLock<BTreeMap<u64, Arc<Segment>>>,
    pub(super) asked: Mutex<Asked>,
    pub(super) bell: Condvar,
    pub(super) caught_up: Condvar,
    /// Held while the spare segment is made, taken or put back.
    pub(super) spare: Mutex<()>,
    /// Held while a sync runs: syncs of one file gain nothing from each other.
    pub(super) syncing: Mutex<()>,
    pub(super) failed: Mutex<Option<Error>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Remembers a final failure; nothing is written or synced any more.
    pub(super) fn fail(&self, error: Error) -> Error {
        if error.is_final() {
            lock(&self.failed).get_or_insert_with(|| error.clone());
            self.caught_up.notify_all();
        }
        error
    }

    fn check(&self) -> Result<()> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Wakes the background thread.
    pub(super) fn ring(&self) {
        lock(&self.asked).work = true;
        self.bell.notify_one();
    }

    /// Appends a frame for each batch, in order. None is durable before [`Self::sync`].
    pub(super) fn append(&self, batches: &[Batch]) -> Result<()> {
        self.wait_for_index()?;
        let mut log = lock(&self.log);
        self.append_locked(&mut log, batches).map_err(|error| self.fail(error))
    }

    /// As [`Self::append`], with the log in hand.
    pub(super) fn append_locked(&self, log: &mut Log, batches: &[Batch]) -> Result<()> {
        self.check()?;
        let mut rest = batches;
        while let Some(first) = rest.first() {
            let need = first.frame_bytes() as u64;
            if log.at + need > log.active.len {
                self.roll(log, need)?;
            }
            let room = log.active.len - log.at;
            let mut taken = 0;
            let mut bytes = 0;
            for batch in rest {
                bytes += batch.frame_bytes() as u64;
                if bytes > room {
                    break;
                }
                taken += 1;
            }
            let (now, later) = rest.split_at(taken);
            self.write(log, now)?;
            rest = later;
        }
        Ok(())
    }

    /// One write for all the frames.
    fn write(&self, log: &mut Log, batches: &[Batch]) -> Result<()> {
        log.buffer.clear();
        let mut changes = Vec::with_capacity(batches.len() * 2);
        let mut sum = log.sum;
        for (lsn, batch) in (log.next..).zip(batches) {
            let start = log.at + log.buffer.len() as u64;
            let places = frame::encode(batch, log.active.seed, lsn, log.durable, &mut log.buffer);
            for (op, at) in batch.ops.iter().zip(places) {
                let place = |len: usize, lsn: u64| {
                    Some(Place { segment: log.active.number, at: start + at as u64, len: len as u32, lsn })
                };
                changes.push(match op {
                    Op::Put { key, value } => {
                        sum = sum.wrapping_add(sum_of(key));
                        (key.clone(), place(value.len(), lsn))
                    }
                    Op::Move { key, value, lsn } => (key.clone(), place(value.len(), *lsn)),
                    Op::Remove { key } => {
                        sum = sum.wrapping_sub(sum_of(key));
                        (key.clone(), None)
                    }
                });
            }
        }
        log.active.write_at(&log.buffer, log.at)?;
        log.at += log.buffer.len() as u64;
        log.since += log.buffer.len() as u64;
        log.next += batches.len() as u64;
        log.sum = sum;
        let mut map = write(&self.map);
        map.fresh.extend(changes);
        let sizes = self.disk.sizes();
        let due = log.since >= sizes.checkpoint_bytes || map.fresh.len() >= sizes.checkpoint_keys;
        drop(map);
        if due {
            self.ring();
        }
        Ok(())
    }

    /// Begins the next segment. The full one is synced before: a sync of the new one must cover it.
    fn roll(&self, log: &mut Log, need: u64) -> Result<()> {
        log.active.sync()?;
        log.durable = log.next - 1;
        let number = log.active.number + 1;
        let need = segment::HEADER_BYTES as u64 + need;
        let next = {
            let _spare = lock(&self.spare);
            Arc::new(segment::begin(&self.disk, &self.segments_dir, &self.store, number, log.next, need)?)
        };
        write(&self.segments).insert(number, Arc::clone(&next));
        log.active = next;
        log.at = segment::HEADER_BYTES as u64;
        self.ring();
        Ok(())
    }

    /// Makes every frame durable that was written before the call. Gives back the last one's LSN.
    pub(super) fn sync(&self) -> Result<u64> {
        let _one_at_a_time = lock(&self.syncing);
        self.check()?;
        let (active, upto) = {
            let log = lock(&self.log);
            (Arc::clone(&log.active), log.next - 1)
        };
        active.sync().map_err(|error| self.fail(error))?;
        let mut log = lock(&self.log);
        log.durable = log.durable.max(upto);
        Ok(upto)
    }

    /// Bounds what waits in memory for the index.
    fn wait_for_index(&self) -> Result<()> {
        while read(&self.map).fresh.len() >= INDEX_PENDING_KEYS {
            self.check()?;
            self.ring();
            let asked = lock(&self.asked);
            let wait = Duration::from_millis(CATCH_UP_MS);
            drop(self.caught_up.wait_timeout(asked, wait).unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }
}
