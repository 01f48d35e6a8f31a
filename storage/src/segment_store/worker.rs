//! The thread behind the writers: a spare segment ahead of need, the index brought up to the log, and segments that
//! are mostly dead cleaned and given back.
//!
//! Segments are cleaned oldest first. So no older copy of a key is left when a newer one or its removal goes, and an
//! index that is built again from what remains is the same.

use super::{
    frame::{self, Batch, Change, Op, Value},
    index::{self, Covered, Index},
    log::{Shared, lock, read, write},
    map::Changes,
    recover::{Live, account},
    segment::{self, HEADER_BYTES, Segment},
};
use crate::{
    limits::{CLEAN_PAUSE_MS, INDEX_COPY_MIN_BYTES, INDEX_KEY_BYTES, SCAN_PAGE_KEYS},
    store::{Error, Result},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    time::Duration,
};

/// What the thread knows.
struct House {
    live: Live,
    /// The segment in which the index ends: what is before it is in the index, and counted.
    covered: u64,
    /// The oldest segment cannot be cleaned.
    stuck: bool,
    /// Length of the index at which copying it is worth a try.
    renew_at: u64,
}

/// Runs until it is told to stop. A failure is final for this opening of the store.
pub(super) fn run(shared: &Shared, live: Live) {
    let covered = lock(&shared.log).active.number;
    let mut house = House { live, covered, stuck: false, renew_at: INDEX_COPY_MIN_BYTES };
    while wait(shared) {
        if lock(&shared.failed).is_some() {
            continue;
        }
        let work = catch_unwind(AssertUnwindSafe(|| house.keep(shared)));
        let result = work.unwrap_or_else(|_| Err(Error::Poisoned("the thread of the index panicked".to_owned())));
        if let Err(error) = result {
            tracing::error!(%error, "the index could not follow the log");
            // Also an error that concerns one call only: here nobody else would notice.
            let error = if error.is_final() { error } else { Error::Io(error.to_string()) };
            shared.fail(error);
        }
    }
    // For the checkpoint at the end.
    lock(&shared.asked).live = house.live;
}

/// Waits for work; false when it is time to end.
fn wait(shared: &Shared) -> bool {
    let mut asked = lock(&shared.asked);
    asked.busy = false;
    shared.caught_up.notify_all();
    while !(asked.stop || asked.work && shared.disk.lets_work()) {
        asked = shared.bell.wait(asked).unwrap_or_else(PoisonError::into_inner);
    }
    asked.work = false;
    asked.busy = true;
    !asked.stop
}

fn stopping(shared: &Shared) -> bool {
    lock(&shared.asked).stop
}

impl House {
    fn keep(&mut self, shared: &Shared) -> Result<()> {
        let next = lock(&shared.log).active.number + 1;
        let spare = {
            let _spare = lock(&shared.spare);
            segment::make_spare(&shared.disk, &shared.segments_dir, shared.disk.sizes().of_segment(next))
        };
        if let Err(error) = spare {
            // Room may come back before it is needed.
            tracing::warn!(%error, "no segment could be made ahead");
        }
        let sizes = shared.disk.sizes();
        let due =
            lock(&shared.log).since >= sizes.checkpoint_bytes || read(&shared.map).fresh.len() >= sizes.checkpoint_keys;
        if due {
            self.covered = checkpoint(shared, &mut self.live)?;
        }
        while !self.stuck
            && !stopping(shared)
            && let Some(oldest) = self.garbage(shared)
        {
            self.stuck = !clean(shared, &oldest)?;
            self.covered = checkpoint(shared, &mut self.live)?;
            self.free(shared)?;
        }
        self.renew(shared)
    }

    /// The oldest segment, when so much is dead that cleaning pays: a third of all, and more than a segment's worth.
    fn garbage(&self, shared: &Shared) -> Option<Arc<Segment>> {
        let segments = read(&shared.segments);
        let sealed: Vec<&Arc<Segment>> = segments.values().filter(|one| one.number < self.covered).collect();
        let oldest = *sealed.first()?;
        let total: u64 = sealed.iter().map(|segment| segment.len).sum();
        let alive: u64 = sealed.iter().filter_map(|segment| self.live.get(&segment.number)).sum();
        let dead = total.saturating_sub(alive);
        let empty = self.live.get(&oldest.number).copied().unwrap_or(0) == 0;
        (empty || (dead > total / 3 && dead > oldest.len)).then(|| Arc::clone(oldest))
    }

    /// Gives back the oldest segments that hold nothing alive. The index that says so is durable.
    fn free(&mut self, shared: &Shared) -> Result<()> {
        loop {
            let oldest = read(&shared.segments).values().next().cloned();
            let Some(oldest) = oldest.filter(|oldest| oldest.number < self.covered) else { return Ok(()) };
            if self.live.get(&oldest.number).copied().unwrap_or(0) > 0 {
                return Ok(());
            }
            write(&shared.segments).remove(&oldest.number);
            self.live.remove(&oldest.number);
            let next = lock(&shared.log).active.number + 1;
            let _spare = lock(&shared.spare);
            segment::retire(&shared.segments_dir, &oldest, shared.disk.sizes().of_segment(next))?;
        }
    }

    /// Copies an index that has grown far beyond its live size into a fresh generation.
    fn renew(&mut self, shared: &Shared) -> Result<()> {
        let old = Arc::clone(&read(&shared.map).index);
        let size = old.disk_bytes();
        if size < self.renew_at {
            return Ok(());
        }
        self.renew_at = size * 2;
        let Some(covered) = index::read_covered(&shared.disk, &shared.index_dir) else { return Ok(()) };
        let fresh = Index::open(&shared.disk, &shared.index_dir, old.generation + 1)?;
        let (mut from, mut keys) = (Vec::new(), 0_u64);
        loop {
            let page = old.page(&from, &[], SCAN_PAGE_KEYS)?;
            let Some((last, _)) = page.last() else { break };
            from.clone_from(last);
            from.push(0);
            keys += page.len() as u64;
            if keys * INDEX_KEY_BYTES * 4 > size {
                // It is as large as it has to be.
                fresh.drop_quietly();
                return index::sweep(&shared.disk, &shared.index_dir, Some(old.generation));
            }
            for (key, place) in page {
                fresh.set(&key, Some(place))?;
            }
        }
        fresh.sync()?;
        let generation = fresh.generation;
        self.renew_at = INDEX_COPY_MIN_BYTES.max(fresh.disk_bytes() * 4);
        index::write_covered(&shared.disk, &shared.index_dir, &Covered { generation, ..covered })?;
        write(&shared.map).index = Arc::new(fresh);
        drop(old);
        index::sweep(&shared.disk, &shared.index_dir, Some(generation))
    }
}

/// Brings the index up to the log and makes it durable, then says so in its file. Gives back the segment in which it
/// ends.
fn checkpoint(shared: &Shared, live: &mut Live) -> Result<u64> {
    let (frozen, index, mut covered) = {
        let mut log = lock(&shared.log);
        let mut map = write(&shared.map);
        map.frozen = Arc::new(std::mem::take(&mut map.fresh));
        log.since = 0;
        let covered = Covered {
            generation: map.index.generation,
            lsn: log.next - 1,
            segment: log.active.number,
            at: log.at,
            sum: log.sum,
            clean: None,
            live: Live::new(),
        };
        (Arc::clone(&map.frozen), Arc::clone(&map.index), covered)
    };
    shared.caught_up.notify_all();
    // An index must never know more than the log that it was made from.
    shared.sync()?;
    for (key, place) in frozen.iter() {
        let old = index.set(key, *place)?;
        account(live, old, *place);
    }
    index.sync()?;
    live.retain(|segment, bytes| *bytes > 0 || *segment >= covered.segment);
    covered.live.clone_from(live);
    index::write_covered(&shared.disk, &shared.index_dir, &covered)?;
    write(&shared.map).frozen = Arc::new(Changes::new());
    Ok(covered.segment)
}

/// The last checkpoint, when the thread has ended: afterwards the index is known to be whole without a look at its keys.
pub(super) fn close(shared: Shared) -> Result<()> {
    let mut live = std::mem::take(&mut lock(&shared.asked).live);
    checkpoint(&shared, &mut live)?;
    let (disk, dir) = (shared.disk.clone(), shared.index_dir.clone());
    let Some(covered) = index::read_covered(&disk, &dir) else { return Ok(()) };
    // Sled writes once more when it goes.
    drop(shared);
    index::wait_until_free(&disk, &dir, covered.generation)?;
    let clean = Some(index::sum_of_files(&disk, &dir, covered.generation)?);
    index::write_covered(&disk, &dir, &Covered { clean, ..covered })
}

/// Copies what is alive in a segment to the end of the log. False when it cannot be read to its end.
fn clean(shared: &Shared, segment: &Segment) -> Result<bool> {
    let bytes = segment.read_all()?;
    let (mut at, mut batch, mut size) = (HEADER_BYTES, Batch::default(), 0);
    while let Some(frame) = bytes.get(at..).and_then(|bytes| frame::decode(bytes, segment.seed)) {
        if !frame.intact {
            tracing::error!(file = %segment.path().display(), at, "a damaged frame: this segment is kept as it is");
            return Ok(false);
        }
        for (key, change) in &frame.changes {
            let Change::Put { at: inside, len, .. } = change else { continue };
            let (from, len) = (at + inside, *len as usize);
            if let Some(value) = bytes.get(from..from + len) {
                size += key.len() + len;
                batch.ops.push(Op::Move { key: key.clone(), value: Value::Owned(value.to_vec()), lsn: from as u64 });
            }
        }
        at += frame.bytes;
        if size >= shared.disk.sizes().clean_batch {
            move_over(shared, segment, std::mem::take(&mut batch))?;
            size = 0;
            if stopping(shared) {
                return Ok(true);
            }
            std::thread::park_timeout(Duration::from_millis(CLEAN_PAUSE_MS));
        }
    }
    move_over(shared, segment, batch)?;
    let junk = bytes.get(at..).is_some_and(|rest| frame::next(rest, 0, segment.seed).is_some());
    if junk {
        tracing::error!(file = %segment.path().display(), at, "damage in the middle: this segment is kept as it is");
    }
    Ok(!junk)
}

/// Appends those copies whose keys still stand where they were copied from.
fn move_over(shared: &Shared, segment: &Segment, batch: Batch) -> Result<()> {
    let mut log = lock(&shared.log);
    let mut alive = Batch::default();
    for op in batch.ops {
        // Until now `lsn` holds the place in the segment.
        if let Op::Move { key, value, lsn: from } = op
            && let Some(place) = read(&shared.map).get(&key)?
            && (place.segment, place.at) == (segment.number, from)
        {
            alive.ops.push(Op::Move { key, value, lsn: place.lsn });
        }
    }
    if alive.ops.is_empty() {
        return Ok(());
    }
    shared.append_locked(&mut log, &[alive])
}
