//! A segment: a file of fixed size that is full of zeroes before it is used.
//!
//! ```text
//! segments/0000000001.seg   a header of 48 bytes, then frames
//! segments/spare            made ahead, synced, not part of the log yet
//! ```

use super::{
    disk::{Disk, File},
    doubt, frame,
    home::failed,
};
use crate::{
    limits::ZERO_STEP_BYTES,
    store::{Error, Result},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Length of the header.
pub(super) const HEADER_BYTES: usize = 48;
const MAGIC: &[u8; 8] = b"EvSegm\x02\n";
const SPARE: &str = "spare";

/// An open segment of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    /// LSN of its first frame.
    pub(super) first: u64,
    pub(super) seed: u32,
    /// Length of the file; frames end before it.
    pub(super) len: u64,
    path: PathBuf,
    disk: Disk,
    file: File,
    /// Set before its file is given another content: what was read is void then.
    freed: AtomicBool,
}

/// Makes the spare as large as wanted, or, on a disk that is nearly full, as small as can be.
fn make_some_spare(disk: &Disk, dir: &Path, wanted: u64, need: u64) -> Result<()> {
    let least = disk.sizes().small_segment.max(need);
    match make_spare(disk, dir, wanted.max(need)) {
        Err(Error::Full(_)) if least < wanted => make_spare(disk, dir, least),
        made => made,
    }
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}.seg"))
}

fn header(store: &[u8; 16], number: u64, first: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..24].copy_from_slice(store);
    out[24..32].copy_from_slice(&number.to_le_bytes());
    out[32..40].copy_from_slice(&first.to_le_bytes());
    let crc = crc32c::crc32c(&out[..40]);
    out[40..44].copy_from_slice(&crc.to_le_bytes());
    out
}

/// LSN of the first frame, when this is the header of segment `number`.
fn first_of(store: &[u8; 16], number: u64, bytes: &[u8; HEADER_BYTES]) -> Option<u64> {
    let first = u64::from_le_bytes(bytes[32..40].try_into().ok()?);
    (*bytes == header(store, number, first)).then_some(first)
}

/// Whether this is the header of a segment of another store.
fn is_foreign(store: &[u8; 16], bytes: &[u8; HEADER_BYTES]) -> bool {
    let crc = crc32c::crc32c(&bytes[..40]).to_le_bytes();
    bytes[..8] == *MAGIC && bytes[40..44] == crc && bytes[8..24] != *store
}

impl Segment {
    /// The file is gone from the log; its bytes are void from now on.
    pub(super) fn free(&self) {
        self.freed.store(true, Ordering::SeqCst);
    }

    pub(super) fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| failed("writing", &self.path, &e))
    }

    /// Makes durable what was written before. A failure stays known to whoever opens the log next.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| {
            doubt::raise(&self.disk, &self.path);
            failed("syncing", &self.path, &e)
        })
    }

    /// The bytes at a place; `None` when the segment was freed meanwhile.
    pub(super) fn read_at(&self, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let mut out = vec![0; len];
        match self.file.read_exact_at(&mut out, at) {
            Ok(()) => {}
            // A file that was cut: what is missing fails the checksum of whoever reads it.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => out.clear(),
            Err(e) => return Err(failed("reading", &self.path, &e)),
        }
        Ok((!self.freed.load(Ordering::SeqCst)).then_some(out))
    }

    /// The whole file.
    pub(super) fn read_all(&self) -> Result<Vec<u8>> {
        self.disk.read(&self.path).map_err(|e| failed("reading", &self.path, &e))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The segments of the log in order. One whose header is damaged still counts: its frames bear its number.
pub(super) fn list(disk: &Disk, dir: &Path, store: &[u8; 16], reports: &mut Vec<String>) -> Result<Vec<Segment>> {
    let mut out = Vec::new();
    for path in disk.list(dir).map_err(|e| failed("listing", dir, &e))? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = name.strip_suffix(".seg").and_then(|number| number.parse().ok()) else { continue };
        let io = |e: io::Error| failed("opening", &path, &e);
        let file = disk.open(&path).map_err(io)?;
        let mut bytes = [0; HEADER_BYTES];
        let found = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => first_of(store, number, &bytes),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(e) => return Err(io(e)),
        };
        if is_foreign(store, &bytes) {
            // Beginning anew here would write over a log that only its name was lost of.
            return Err(Error::Io(format!(
                "{} belongs to another store than FORMAT names; restore FORMAT from a backup, or take the file away",
                path.display()
            )));
        }
        let len = file.len().map_err(io)?;
        let seed = frame::seed(store, number);
        let first = match found {
            Some(first) => first,
            None => {
                reports.push(format!("the header of {} is damaged; its frames are read all the same", path.display()));
                let bytes = disk.read(&path).map_err(io)?;
                let Some((_, frame)) = frame::next(&bytes, HEADER_BYTES, seed) else { continue };
                frame.lsn
            }
        };
        out.push(Segment { number, first, seed, len, path, disk: disk.clone(), file, freed: AtomicBool::new(false) });
    }
    out.sort_by_key(|segment| segment.number);
    Ok(out)
}

/// Makes the spare file, unless it is there: zeroes, and durable with its name.
pub(super) fn make_spare(disk: &Disk, dir: &Path, len: u64) -> Result<()> {
    let (path, draft) = (dir.join(SPARE), dir.join("spare.new"));
    if disk.len(&path).is_ok_and(|there| there >= len) {
        return Ok(());
    }
    let write = || {
        let file = disk.create(&draft, true)?;
        let zeroes = vec![0; 256 * 1024];
        let mut at = 0;
        while at < len {
            let n = zeroes.len().min((len - at) as usize);
            file.write_all_at(&zeroes[..n], at)?;
            at += n as u64;
            if at < len && at.is_multiple_of(ZERO_STEP_BYTES) {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        disk.rename(&draft, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(|e| {
        // Whatever was written takes room that others may need.
        let _ = disk.remove(&draft);
        failed("making", &path, &e)
    })
}

/// Begins segment `number`: its header is durable before it gets its name, and its name before it gets a frame.
pub(super) fn begin(disk: &Disk, dir: &Path, store: &[u8; 16], number: u64, first: u64, need: u64) -> Result<Segment> {
    make_some_spare(disk, dir, disk.sizes().of_segment(number), need)?;
    let (spare, path) = (dir.join(SPARE), path_of(dir, number));
    let begin = || {
        let file = disk.open(&spare)?;
        file.write_all_at(&header(store, number, first), 0)?;
        file.sync_data()?;
        disk.rename(&spare, &path)?;
        disk.sync_dir(dir)?;
        let len = file.len()?;
        Ok((file, len))
    };
    let (file, len) = begin().map_err(|e: io::Error| failed("beginning", &path, &e))?;
    Ok(Segment {
        number,
        first,
        seed: frame::seed(store, number),
        len,
        path,
        disk: disk.clone(),
        file,
        freed: AtomicBool::new(false),
    })
}

/// Takes a segment out of the log. Its file becomes the spare when there is none and it has the right size.
pub(super) fn retire(dir: &Path, segment: &Segment, wanted: u64) -> Result<()> {
    segment.free();
    let (disk, spare) = (&segment.disk, dir.join(SPARE));
    let reuse = segment.len == wanted && disk.len(&spare).is_err();
    let done = if reuse { disk.rename(&segment.path, &spare) } else { disk.remove(&segment.path) };
    done.and_then(|()| disk.sync_dir(dir)).map_err(|e| failed("retiring", &segment.path, &e))
}
