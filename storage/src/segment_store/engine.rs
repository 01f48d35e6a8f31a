//! Keys and values over the log and the index: what the store is written against.

use super::{
    disk::Disk,
    frame::Batch,
    index::Place,
    log::{Shared, lock, read},
    recover, worker,
};
use crate::{
    limits::SCAN_PAGE_KEYS,
    store::{Error, Result},
};
use std::{path::Path, sync::Arc, thread::JoinHandle};

/// An open log with its index and the thread that keeps house.
#[derive(Debug)]
pub(super) struct Engine {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

/// How the files were left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// By a process that ended, in whatever way.
    Ended,
    /// By an opening of this process whose disk failed: what was written may be in memory only, and counts as written.
    Failed,
}

/// What opening found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The last LSN.
    pub(super) last: u64,
    pub(super) reports: Vec<String>,
    /// Something that was durable cannot be read.
    pub(super) lost: bool,
}

impl Engine {
    /// Opens the log in `dir`. What it then reads is durable. `acked` is the last LSN known to have been acknowledged.
    pub(super) fn open(disk: &Disk, dir: &Path, store: &[u8; 16], acked: u64, left: Left) -> Result<(Self, Found)> {
        let (shared, live, found) = recover::open(disk, dir, store, acked, left)?;
        let shared = Arc::new(shared);
        let theirs = Arc::clone(&shared);
        let worker = std::thread::Builder::new()
            .name("everturn-index".to_owned())
            .spawn(move || worker::run(&theirs, live))
            .map_err(|e| Error::Io(format!("starting the thread of the index: {e}")))?;
        Ok((Self { shared, worker: Some(worker) }, found))
    }

    /// Where the value of a key stands.
    pub(super) fn place(&self, key: &[u8]) -> Result<Option<Place>> {
        read(&self.shared.map).get(key)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.place(key)? {
            Some(place) => self.value(key, place),
            None => Ok(None),
        }
    }

    /// The value of a key that stood at `place` just now; `None` when it is gone. Bytes that cannot be had are
    /// missing, and fail the checksum of whoever reads them.
    pub(super) fn value(&self, key: &[u8], mut place: Place) -> Result<Option<Vec<u8>>> {
        loop {
            if place.len == 0 {
                return Ok(Some(Vec::new()));
            }
            let segment = read(&self.shared.segments).get(&place.segment).cloned();
            if let Some(segment) = segment
                && let Some(bytes) = segment.read_at(place.at, place.len as usize)?
            {
                return Ok(Some(bytes));
            }
            // It was moved while this looked, or its segment is missing.
            match self.place(key)? {
                None => return Ok(None),
                Some(now) if now == place => return Ok(Some(Vec::new())),
                Some(now) => place = now,
            }
        }
    }

    /// Applies a batch, all or nothing. It is not durable before [`Self::sync`].
    pub(super) fn apply(&self, batch: Batch) -> Result<()> {
        self.apply_all(&[batch])
    }

    /// Applies batches in order; each is all or nothing.
    pub(super) fn apply_all(&self, batches: &[Batch]) -> Result<()> {
        if batches.is_empty() { Ok(()) } else { self.shared.append(batches) }
    }

    /// Gives `take` the keys that begin with `prefix`, from `start` on and in order, until it answers `false`.
    pub(super) fn scan(
        &self,
        start: &[u8],
        prefix: &[u8],
        mut take: impl FnMut(&[u8], Place) -> Result<bool>,
    ) -> Result<()> {
        let mut from = Some(start.to_vec());
        while let Some(start) = from {
            let page = read(&self.shared.map).page(&start, prefix, SCAN_PAGE_KEYS)?;
            for (key, place) in page.keys {
                if !take(&key, place)? {
                    return Ok(());
                }
            }
            from = page.next;
        }
        Ok(())
    }

    /// The last key that begins with `prefix` and is not behind `end`.
    pub(super) fn last(&self, prefix: &[u8], end: &[u8]) -> Result<Option<(Vec<u8>, Place)>> {
        read(&self.shared.map).last(prefix, end)
    }

    /// Makes everything durable that was written before the call; gives back the last LSN of it.
    pub(super) fn sync(&self) -> Result<u64> {
        self.shared.sync()
    }

    /// Bytes of all files.
    pub(super) fn disk_bytes(&self) -> u64 {
        let segments: u64 = read(&self.shared.segments).values().map(|segment| segment.len).sum();
        segments + read(&self.shared.map).index.disk_bytes()
    }

    /// Ends in order: the next opening finds an index that covers the whole log.
    pub(super) fn close(mut self) -> Result<()> {
        self.stop();
        if let Some(error) = lock(&self.shared.failed).clone() {
            return Err(error);
        }
        let shared = Arc::clone(&self.shared);
        drop(self);
        // Nobody else holds it: the thread has ended, and calls hold the engine.
        Arc::into_inner(shared).map_or(Ok(()), worker::close)
    }

    /// Length of the segment in use.
    #[cfg(test)]
    pub(super) fn active_bytes(&self) -> u64 {
        lock(&self.shared.log).active.len
    }

    /// Waits until the background thread has nothing to do.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.shared.ring();
        let mut asked = lock(&self.shared.asked);
        while asked.work || asked.busy {
            asked = self.shared.caught_up.wait(asked).unwrap();
        }
    }

    fn stop(&mut self) {
        lock(&self.shared.asked).stop = true;
        self.shared.bell.notify_one();
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::warn!("the thread of the index had panicked");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}
