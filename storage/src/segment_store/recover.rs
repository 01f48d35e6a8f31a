//! Opening: where the log ends, what of it is damaged, and an index that agrees with it.
//!
//! Frames are numbered without gaps and each says what was durable when it was written. A missing number that some
//! later frame, or the mark beside the store, knows to have been durable is damage: it is said, and the log goes on
//! behind it. A missing number that nobody knows ends the log: what stands behind it was never acknowledged.

use super::{
    disk::Disk,
    doubt,
    engine::{Found, Left},
    frame::{self, Change, Frame},
    home::failed,
    index::{self, Covered, Index, Place, sum_of},
    keys,
    log::{Asked, Log, Shared},
    map::Map,
    segment::{self, HEADER_BYTES, Segment},
};
use crate::{
    limits::{REDIRTY_BLOCK_BYTES, SCAN_PAGE_KEYS},
    store::{Error, Result},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex, RwLock},
};

/// Bytes of live values in each segment.
pub(super) type Live = BTreeMap<u64, u64>;

/// Most damaged places that are named one by one.
const REPORTS_MAX: usize = 100;

/// Where reading begins.
#[derive(Debug, Clone, Copy)]
struct Start {
    lsn: u64,
    segment: u64,
    at: u64,
}

/// A frame and where it stands.
struct Placed {
    segment: u64,
    at: u64,
    frame: Frame,
}

/// The frames of the log from a place on.
struct Reading {
    frames: Vec<Placed>,
    /// Where the log ends: the next frame goes there.
    end: Start,
    lost: bool,
}

/// Opens the log; see [`super::engine::Engine::open`].
pub(super) fn open(disk: &Disk, dir: &Path, store: &[u8; 16], acked: u64, left: Left) -> Result<(Shared, Live, Found)> {
    let (segments_dir, index_dir) = (dir.join("segments"), dir.join("index"));
    for dir in [&segments_dir, &index_dir] {
        disk.make_private_dir(dir).map_err(|e| failed("making", dir, &e))?;
    }
    // A name that a dead process gave may not be durable yet.
    disk.sync_dir(&segments_dir).map_err(|e| failed("syncing", &segments_dir, &e))?;
    let doubted = doubt::stands(disk, &segments_dir).map_err(|e| failed("reading", &segments_dir, &e))?;
    let left = if doubted { Left::Failed } else { left };
    let mut found = Found::default();
    let mut segments = segment::list(disk, &segments_dir, store, &mut found.reports)?;
    if segments.is_empty() {
        if acked > 0 {
            found.lost = true;
        }
        segments.push(segment::begin(disk, &segments_dir, store, 1, 1, 0)?);
    }
    let covered = usable(disk, &index_dir, &segments);
    let begin = covered.as_ref().map_or_else(|| beginning(&segments), start_of);
    for segment in segments.iter().filter(|segment| segment.number >= begin.segment) {
        // Pages that no sync covered may be read here: they are durable before anybody believes them.
        if left == Left::Failed {
            write_again(disk, segment.path())?;
        }
        segment.sync()?;
    }
    let kept = match covered {
        None => None,
        Some(covered) => {
            if left == Left::Failed {
                write_index_again(disk, &index_dir, covered.generation)?;
            }
            with_index(disk, &index_dir, &segments, &covered, acked, &mut found)?
        }
    };
    let (index, live, sum, end) = match kept {
        Some(kept) => kept,
        None => rebuild(disk, &index_dir, &segments, acked, &mut found)?,
    };
    found.last = end.lsn - 1;
    cut(disk, &segments_dir, &mut segments, end)?;
    if doubted {
        doubt::clear(disk, &segments_dir).map_err(|e| failed("writing", &segments_dir, &e))?;
    }
    let segments: BTreeMap<u64, Arc<Segment>> =
        segments.into_iter().map(|segment| (segment.number, Arc::new(segment))).collect();
    let Some(active) = segments.get(&end.segment).cloned() else {
        return Err(Error::Io("the last segment of the log went away while it was opened".to_owned()));
    };
    let log = Log { active, at: end.at, next: end.lsn, durable: end.lsn - 1, sum, since: 0, buffer: Vec::new() };
    let shared = Shared {
        disk: disk.clone(),
        segments_dir,
        index_dir,
        store: *store,
        log: Mutex::new(log),
        map: RwLock::new(Map::new(Arc::new(index))),
        segments: RwLock::new(segments),
        asked: Mutex::new(Asked { work: true, ..Asked::default() }),
        bell: Condvar::new(),
        caught_up: Condvar::new(),
        spare: Mutex::new(()),
        syncing: Mutex::new(()),
        failed: Mutex::new(None),
    };
    Ok((shared, live, found))
}

fn start_of(covered: &Covered) -> Start {
    Start { lsn: covered.lsn + 1, segment: covered.segment, at: covered.at }
}

/// The first frame of the first segment.
fn beginning(segments: &[Segment]) -> Start {
    let first = segments.first();
    Start {
        lsn: first.map_or(1, |segment| segment.first),
        segment: first.map_or(1, |segment| segment.number),
        at: HEADER_BYTES as u64,
    }
}

/// What the index says that it covers, when its files and its place in the log are there.
fn usable(disk: &Disk, dir: &Path, segments: &[Segment]) -> Option<Covered> {
    let covered = index::read_covered(disk, dir)?;
    let there = segments.iter().any(|segment| segment.number == covered.segment && covered.at <= segment.len);
    (there && Index::exists(disk, dir, covered.generation)).then_some(covered)
}

/// Brings the index up to the end of the log; `None` when it cannot be believed.
fn with_index(
    disk: &Disk,
    dir: &Path,
    segments: &[Segment],
    covered: &Covered,
    acked: u64,
    found: &mut Found,
) -> Result<Option<(Index, Live, u64, Start)>> {
    let mut doubt = |why: String| {
        tracing::warn!(why, "the index is built again");
        found.reports.push(format!("the index was built again from the segments: {why}"));
        Ok(None)
    };
    if let Some(sum) = covered.clean
        && index::sum_of_files(disk, dir, covered.generation)? != sum
    {
        return doubt("its files are not what was closed in order".to_owned());
    }
    let index = match Index::open(disk, dir, covered.generation) {
        Ok(index) => index,
        Err(error @ (Error::Full(_) | Error::Busy { .. })) => return Err(error),
        Err(error) => return doubt(error.to_string()),
    };
    let mut reports = Vec::new();
    let reading = read(segments, start_of(covered), acked, &mut reports)?;
    let mut live = covered.live.clone();
    let mut sum = covered.sum;
    if let Err(error) = replay(&index, &reading.frames, &mut live, &mut sum) {
        index.drop_quietly();
        if matches!(error, Error::Full(_)) {
            return Err(error);
        }
        return doubt(error.to_string());
    }
    if covered.clean.is_none() || !reading.frames.is_empty() {
        match survey(&index) {
            Ok((there, lives)) if there == sum => live = lives,
            Ok(_) => {
                index.drop_quietly();
                return doubt("it does not hold the commits that it should".to_owned());
            }
            Err(error) => {
                index.drop_quietly();
                return doubt(error.to_string());
            }
        }
    }
    if covered.clean.is_some() {
        // From now on it is only a beginning.
        index::write_covered(disk, dir, &Covered { clean: None, ..covered.clone() })?;
    }
    index::sweep(disk, dir, Some(covered.generation))?;
    found.reports.extend(reports);
    found.lost |= reading.lost;
    Ok(Some((index, live, sum, reading.end)))
}

/// Builds the index from all segments.
fn rebuild(
    disk: &Disk,
    dir: &Path,
    segments: &[Segment],
    acked: u64,
    found: &mut Found,
) -> Result<(Index, Live, u64, Start)> {
    let generation = index::read_covered(disk, dir).map_or(1, |covered| covered.generation + 1);
    index::sweep(disk, dir, None)?;
    let index = Index::open(disk, dir, generation)?;
    let mut start = beginning(segments);
    let durable = known_durable(segments, acked)?;
    // Segment by segment, so that memory stays bounded.
    for segment in segments {
        if segment.number > start.segment {
            start = Start { segment: segment.number, at: HEADER_BYTES as u64, ..start };
        }
        let reading = read_known(std::slice::from_ref(segment), start, durable, &mut found.reports)?;
        found.lost |= reading.lost;
        replay(&index, &reading.frames, &mut Live::new(), &mut 0)?;
        start = reading.end;
    }
    found.lost |= ends_early(start, durable, &mut found.reports);
    let (sum, live) = survey(&index)?;
    index.sync()?;
    let covered = Covered {
        generation,
        lsn: start.lsn - 1,
        segment: start.segment,
        at: start.at,
        sum,
        clean: None,
        live: live.clone(),
    };
    index::write_covered(disk, dir, &covered)?;
    Ok((index, live, sum, start))
}

/// The last LSN that the log itself or the mark knows to have been durable.
fn known_durable(segments: &[Segment], acked: u64) -> Result<u64> {
    let mut durable = acked;
    for segment in segments.iter().rev().take(2) {
        // A segment is synced before the next one begins.
        durable = durable.max(segment.first.saturating_sub(1));
        let bytes = segment.read_all()?;
        let mut at = HEADER_BYTES;
        while let Some((found, frame)) = frame::next(&bytes, at, segment.seed) {
            durable = durable.max(frame.durable);
            at = found + frame.bytes;
        }
    }
    Ok(durable)
}

fn read(segments: &[Segment], start: Start, acked: u64, reports: &mut Vec<String>) -> Result<Reading> {
    let later: Vec<&Segment> = segments.iter().filter(|segment| segment.number >= start.segment).collect();
    let mut durable = acked;
    for segment in &later {
        durable = durable.max(if segment.number == start.segment { 0 } else { segment.first.saturating_sub(1) });
    }
    if let Some(last) = segments.last() {
        durable = durable.max(known_durable(std::slice::from_ref(last), acked)?);
    }
    let mut reading = read_known(segments, start, durable, reports)?;
    reading.lost |= ends_early(reading.end, durable, reports);
    Ok(reading)
}

/// Reads the frames from `start` on, where everything up to `durable` was durable once.
fn read_known(segments: &[Segment], start: Start, durable: u64, reports: &mut Vec<String>) -> Result<Reading> {
    let mut reading = Reading { frames: Vec::new(), end: start, lost: false };
    for segment in segments.iter().filter(|segment| segment.number >= start.segment) {
        let bytes = segment.read_all()?;
        let mut at = if segment.number == start.segment { start.at as usize } else { HEADER_BYTES };
        while let Some((found, frame)) = frame::next(&bytes, at, segment.seed) {
            at = found + frame.bytes;
            let expected = reading.end.lsn;
            if frame.lsn < expected || (!frame.intact && frame.lsn > durable) {
                // A remainder of a log that was cut here once, or a torn frame.
                continue;
            }
            if frame.lsn > expected {
                if expected > durable {
                    return Ok(reading);
                }
                reading.lost = true;
                say(reports, || {
                    let last = frame.lsn - 1;
                    format!("{}: frames {expected} to {last} are damaged before byte {found}", segment.path().display())
                });
            }
            if !frame.intact {
                reading.lost = true;
                say(reports, || {
                    let whose = sessions(&frame);
                    format!("{}: a damaged frame at byte {found} hits {whose}", segment.path().display())
                });
            }
            reading.end = Start { lsn: frame.lsn + 1, segment: segment.number, at: at as u64 };
            reading.frames.push(Placed { segment: segment.number, at: found as u64, frame });
        }
    }
    Ok(reading)
}

/// Whether the log ends before what was durable; it must be read to its end before.
fn ends_early(end: Start, durable: u64, reports: &mut Vec<String>) -> bool {
    let early = end.lsn <= durable;
    if early {
        say(reports, || format!("the log ends at frame {}, but frame {durable} was durable", end.lsn - 1));
    }
    early
}

fn say(reports: &mut Vec<String>, report: impl FnOnce() -> String) {
    if reports.len() < REPORTS_MAX {
        reports.push(report());
    }
}

/// The sessions that a frame speaks of, for people.
fn sessions(frame: &Frame) -> String {
    let ids: BTreeSet<String> =
        frame.changes.iter().filter_map(|(key, _)| keys::owner(key)).map(|id| format!("session {id}")).collect();
    if ids.is_empty() { "no session".to_owned() } else { ids.into_iter().collect::<Vec<_>>().join(", ") }
}

fn replay(index: &Index, frames: &[Placed], live: &mut Live, sum: &mut u64) -> Result<()> {
    for Placed { segment, at, frame } in frames {
        for (key, change) in &frame.changes {
            let place = match change {
                Change::Put { at: inside, len, moved } => {
                    if moved.is_none() {
                        *sum = sum.wrapping_add(sum_of(key));
                    }
                    let lsn = moved.unwrap_or(frame.lsn);
                    Some(Place { segment: *segment, at: at + *inside as u64, len: *len, lsn })
                }
                Change::Remove => {
                    *sum = sum.wrapping_sub(sum_of(key));
                    None
                }
            };
            let old = index.set(key, place)?;
            account(live, old, place);
        }
    }
    Ok(())
}

/// Keeps count of live bytes when a key changes its place.
pub(super) fn account(live: &mut Live, old: Option<Place>, new: Option<Place>) {
    if let Some(old) = old
        && let Some(bytes) = live.get_mut(&old.segment)
    {
        *bytes = bytes.saturating_sub(u64::from(old.len));
    }
    if let Some(new) = new {
        *live.entry(new.segment).or_default() += u64::from(new.len);
    }
}

/// The sum over all commits in the index, and the live bytes of each segment.
fn survey(index: &Index) -> Result<(u64, Live)> {
    let (mut sum, mut live, mut from) = (0_u64, Live::new(), Vec::new());
    loop {
        let page = index.page(&from, &[], SCAN_PAGE_KEYS)?;
        let Some((last, _)) = page.last() else { return Ok((sum, live)) };
        from.clone_from(last);
        from.push(0);
        for (key, place) in &page {
            sum = sum.wrapping_add(sum_of(key));
            account(&mut live, None, Some(*place));
        }
    }
}

/// Takes away what stands behind the end of the log: it must never pass for part of it later.
fn cut(disk: &Disk, dir: &Path, segments: &mut Vec<Segment>, end: Start) -> Result<()> {
    while segments.len() > 1
        && let Some(last) = segments.pop_if(|last| last.number > end.segment)
    {
        segment::retire(dir, &last, 0)?;
    }
    let Some(last) = segments.last() else { return Ok(()) };
    let bytes = last.read_all()?;
    let rest = bytes.get(end.at as usize..).unwrap_or_default();
    let Some(junk) = rest.iter().rposition(|byte| *byte != 0) else { return Ok(()) };
    last.write_at(&vec![0; junk + 1], end.at)?;
    last.sync()?;
    disk.sync_dir(dir).map_err(|e| failed("syncing", dir, &e))
}

/// Writes a file over itself. After a failed sync the kernel counts its pages as clean: they would never be written
/// again, and the next sync would say that all is well (BR-040).
fn write_again(disk: &Disk, path: &Path) -> Result<()> {
    let write = || {
        let file = disk.open(path)?;
        let mut block = vec![0; REDIRTY_BLOCK_BYTES];
        let mut at = 0;
        loop {
            let n = match file.read_at(&mut block, at) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            file.write_all_at(&block[..n], at)?;
            at += n as u64;
        }
        file.sync_data().inspect_err(|_| doubt::raise(disk, path))
    };
    write().map_err(|e| failed("writing again", path, &e))
}

fn write_index_again(disk: &Disk, dir: &Path, generation: u64) -> Result<()> {
    index::wait_until_free(disk, dir, generation)?;
    match disk {
        Disk::Real => {}
        #[cfg(test)]
        Disk::Lossy(disk) => return disk.write_tree_again(generation),
    }
    let dir = dir.join(generation.to_string());
    for path in disk.list(&dir).map_err(|e| failed("listing", &dir, &e))? {
        if path.is_file() {
            write_again(disk, &path)?;
        }
    }
    disk.sync_dir(&dir).map_err(|e| failed("syncing", &dir, &e))
}
