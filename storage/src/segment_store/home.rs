//! The data directory around the engine: who owns it, which format it has, what was acknowledged.
//!
//! ```text
//! LOCK       locked by the kernel while a process owns the directory; its text is for people only
//! FORMAT     format version and id of the store; written and synced before anything else
//! ACKED      the last acknowledged frame, written after each good sync
//! segments/  the log
//! index/     where in it each value stands; it can be built again
//! ```

use super::disk::{self, Disk};
use crate::store::{Error, Result};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// The version of the directory's layout and of everything in it but the records.
pub(super) const STORE_FORMAT: u32 = 2;

const MARK_BYTES: usize = 16 + 8 + 4;

/// An owned data directory. Dropping it gives the directory free.
#[derive(Debug)]
pub(super) struct Home {
    disk: Disk,
    dir: PathBuf,
    id: [u8; 16],
    mark: disk::File,
    /// Held for its lock.
    _lock: Option<File>,
}

/// What the mark of acknowledged commits said when the directory was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The store is new.
    New,
    /// Every commit up to this number was acknowledged.
    Upto(u64),
    /// There is one, but it cannot be read.
    Unreadable,
}

impl Home {
    /// Takes the directory, which is made when it is missing. A newer format is refused before anything is touched.
    pub(super) fn open(disk: &Disk, dir: &Path) -> Result<(Self, Mark)> {
        read_format(disk, dir)?;
        disk.make_private_dir(dir).map_err(|e| failed("making the data directory", dir, &e))?;
        let lock = match disk {
            Disk::Real => Some(take_lock(dir)?),
            // Those who simulate open one store at a time.
            #[cfg(test)]
            Disk::Lossy(_) => None,
        };
        // Again, now that nobody else can be making the store.
        let (id, new) = match read_format(disk, dir)? {
            Some(id) => (id, false),
            None => (write_format(disk, dir)?, true),
        };
        let path = dir.join("ACKED");
        let mark = disk.create(&path, false).map_err(|e| failed("opening", &path, &e))?;
        let bytes = disk.read(&path).map_err(|e| failed("reading", &path, &e))?;
        let found = match decode_mark(&id, &bytes) {
            Some(upto) => Mark::Upto(upto),
            None if new => Mark::New,
            None => Mark::Unreadable,
        };
        let home = Self { disk: disk.clone(), dir: dir.to_owned(), id, mark, _lock: lock };
        if new {
            home.acknowledge(0)?;
            disk.sync_dir(dir).map_err(|e| failed("syncing", dir, &e))?;
        }
        Ok((home, found))
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The data directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The id of the store.
    pub(super) fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// Notes that every commit up to `upto` is durable. It needs no sync: a mark that falls behind is still true.
    pub(super) fn acknowledge(&self, upto: u64) -> Result<()> {
        let mut bytes = [0; MARK_BYTES];
        bytes[..16].copy_from_slice(&self.id);
        bytes[16..24].copy_from_slice(&upto.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        self.mark.write_all_at(&bytes, 0).map_err(|e| failed("writing", &self.dir.join("ACKED"), &e))
    }
}

fn decode_mark(id: &[u8; 16], bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; MARK_BYTES] = bytes.try_into().ok()?;
    let (head, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(head).to_le_bytes() != *crc || head.first_chunk() != Some(id) {
        return None;
    }
    head.last_chunk().map(|upto| u64::from_le_bytes(*upto))
}

fn take_lock(dir: &Path) -> Result<File> {
    let path = dir.join("LOCK");
    let mut file = open_private(&path).map_err(|e| failed("opening", &path, &e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The holder may be writing its name just now; the lock is what counts.
            let _ = file.take(64).read_to_string(&mut text);
            let holder = match text.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            return Err(Error::Busy { holder });
        }
        Err(TryLockError::Error(e)) => return Err(failed("locking", &path, &e)),
    }
    let name = format!("{}\n", std::process::id());
    file.set_len(0).and_then(|()| file.write_all(name.as_bytes())).map_err(|e| failed("writing", &path, &e))?;
    Ok(file)
}

/// The id in `FORMAT`; `None` when there is no store here.
fn read_format(disk: &Disk, dir: &Path) -> Result<Option<[u8; 16]>> {
    let path = dir.join("FORMAT");
    let text = match disk.read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e)
            if e.kind() == io::ErrorKind::NotFound
                && ["segments", "sled"].iter().all(|name| disk.list(&dir.join(name)).is_err()) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(failed("reading", &path, &e)),
    };
    let mut words = text.split_whitespace();
    let parsed = match (words.next(), words.next(), words.next()) {
        (Some("everturn-store"), Some(version), Some(id)) => version.parse::<u32>().ok().zip(parse_id(id)),
        _ => None,
    };
    match parsed {
        None => Err(Error::Io(format!("{} is damaged; restore it from a backup", path.display()))),
        Some((found, _)) if found != STORE_FORMAT => Err(Error::Format { found, supported: STORE_FORMAT }),
        Some((_, id)) => Ok(Some(id)),
    }
}

fn parse_id(hex: &str) -> Option<[u8; 16]> {
    (hex.len() == 32).then(|| u128::from_str_radix(hex, 16).ok().map(u128::to_be_bytes))?
}

fn write_format(disk: &Disk, dir: &Path) -> Result<[u8; 16]> {
    let (path, draft) = (dir.join("FORMAT"), dir.join("FORMAT.new"));
    let id = new_id();
    let text = format!("everturn-store {STORE_FORMAT} {:032x}\n", u128::from_be_bytes(id));
    let write = || {
        let file = disk.create(&draft, true)?;
        file.write_all_at(text.as_bytes(), 0)?;
        file.sync_all()?;
        disk.rename(&draft, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(|e| failed("writing", &path, &e))?;
    Ok(id)
}

/// A name for a store: unlikely to meet again, and no secret.
fn new_id() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let half = || RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now())).to_be_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&half());
    id[8..].copy_from_slice(&half());
    id
}

fn open_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The error for an operation on a file.
pub(super) fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    let text = format!("{what} {}: {e}", path.display());
    if is_full(e) { Error::Full(text) } else { Error::Io(text) }
}

pub(super) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
