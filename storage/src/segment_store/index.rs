//! The index: where the value of each key stands. It can be thrown away and built again from the segments.
//!
//! Sled holds it. Nothing in it is believed because sled says so: a checkpoint is its flush, an fdatasync of its
//! file and then a file of ours that names what it covers; after an unclean end its keys are compared with a sum
//! that was kept beside. Sled never collects here, which is where it loses data; an index that has grown far beyond
//! its live size is copied into a fresh generation instead.

use super::{
    disk::Disk,
    home::{failed, is_full},
    keys,
};
use crate::{
    limits::{INDEX_CACHE_BYTES, INDEX_SEGMENT_BYTES, REDIRTY_BLOCK_BYTES, REOPEN_WAIT_MS},
    store::{Error, Result},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) at: u64,
    pub(super) len: u32,
    /// LSN of its first copy.
    pub(super) lsn: u64,
}

impl Place {
    fn encode(self) -> [u8; 28] {
        let mut out = [0; 28];
        out[..8].copy_from_slice(&self.segment.to_le_bytes());
        out[8..16].copy_from_slice(&self.at.to_le_bytes());
        out[16..20].copy_from_slice(&self.len.to_le_bytes());
        out[20..].copy_from_slice(&self.lsn.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 28] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let len = u32::from_le_bytes(bytes[16..20].try_into().ok()?);
        Some(Self { segment: word(0)?, at: word(8)?, len, lsn: word(20)? })
    }
}

/// What the file of the index says that it covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Covered {
    /// Which directory holds it.
    pub(super) generation: u64,
    /// The last LSN in it.
    pub(super) lsn: u64,
    /// Where the next frame stands.
    pub(super) segment: u64,
    pub(super) at: u64,
    /// Sum over the keys of all commits.
    pub(super) sum: u64,
    /// Sum over the files of the index, when it was closed in order and nothing was written since.
    pub(super) clean: Option<u32>,
    /// Bytes of live values in each segment.
    pub(super) live: BTreeMap<u64, u64>,
}

const COVERED: &str = "COVERED";

/// Reads the file; `None` when there is none that can be read.
pub(super) fn read_covered(disk: &Disk, dir: &Path) -> Option<Covered> {
    let bytes = disk.read(&dir.join(COVERED)).ok()?;
    keys::unseal(COVERED.as_bytes(), &bytes).ok()
}

/// Replaces the file, durably.
pub(super) fn write_covered(disk: &Disk, dir: &Path, covered: &Covered) -> Result<()> {
    let (path, draft) = (dir.join(COVERED), dir.join("COVERED.new"));
    let bytes = keys::seal(COVERED.as_bytes(), covered)
        .map_err(|e| Error::Invalid(format!("what the index covers cannot be encoded: {e}")))?;
    let write = || {
        let file = disk.create(&draft, true)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        disk.rename(&draft, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(|e| failed("writing", &path, &e))
}

/// What a key adds to the sum of the index. Only commits count: their keys are written once and removed once.
pub(super) fn sum_of(key: &[u8]) -> u64 {
    if key.first() != Some(&keys::COMMIT) {
        return 0;
    }
    u64::from(crc32c::crc32c(key)) << 32 | u64::from(crc32c::crc32c_append(0x5bd1_e995, key))
}

/// Sum over the names and bytes of the files of a generation that nobody has open.
pub(super) fn sum_of_files(disk: &Disk, dir: &Path, generation: u64) -> Result<u32> {
    match disk {
        Disk::Real => {}
        #[cfg(test)]
        Disk::Lossy(disk) => return Ok(disk.sum_of_tree(generation)),
    }
    let dir = dir_of(dir, generation);
    let mut paths = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|e| failed("listing", &dir, &e))? {
        paths.push(entry.map_err(|e| failed("listing", &dir, &e))?.path());
    }
    paths.sort();
    let (mut sum, mut block) = (0, vec![0; REDIRTY_BLOCK_BYTES]);
    for path in paths.iter().filter(|path| path.is_file()) {
        sum = crc32c::crc32c_append(sum, path.file_name().unwrap_or_default().as_encoded_bytes());
        let mut file = File::open(path).map_err(|e| failed("opening", path, &e))?;
        loop {
            match file.read(&mut block).map_err(|e| failed("reading", path, &e))? {
                0 => break,
                n => sum = crc32c::crc32c_append(sum, &block[..n]),
            }
        }
    }
    Ok(sum)
}

/// One generation of the index.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) generation: u64,
    tree: Tree,
    dir: PathBuf,
}

/// What holds the keys.
#[derive(Debug)]
enum Tree {
    Sled {
        db: sled::Db,
        /// A handle of our own, so that the sync is ours and we are told of it.
        file: File,
    },
    #[cfg(test)]
    Lossy(super::lossy::Tree),
}

fn dir_of(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation}"))
}

/// Removes every generation but `keep`.
pub(super) fn sweep(disk: &Disk, dir: &Path, keep: Option<u64>) -> Result<()> {
    match disk {
        Disk::Real => {}
        #[cfg(test)]
        Disk::Lossy(disk) => return disk.sweep_trees(keep),
    }
    for entry in fs::read_dir(dir).map_err(|e| failed("listing", dir, &e))? {
        let path = entry.map_err(|e| failed("listing", dir, &e))?.path();
        let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<u64>().ok());
        if number.is_some() && number != keep {
            fs::remove_dir_all(&path).map_err(|e| failed("removing", &path, &e))?;
        }
    }
    Ok(())
}

impl Index {
    pub(super) fn open(disk: &Disk, dir: &Path, generation: u64) -> Result<Self> {
        let dir = dir_of(dir, generation);
        match disk {
            Disk::Real => {}
            #[cfg(test)]
            Disk::Lossy(disk) => return Ok(Self { generation, tree: Tree::Lossy(disk.open_tree(generation)?), dir }),
        }
        let io = |what: &'static str| {
            let dir = dir.clone();
            move |e: io::Error| failed(what, &dir, &e)
        };
        disk.make_private_dir(&dir).map_err(io("making"))?;
        let config = sled::Config::new()
            .path(&dir)
            .segment_size(INDEX_SEGMENT_BYTES)
            .cache_capacity(INDEX_CACHE_BYTES)
            .mode(sled::Mode::HighThroughput)
            .flush_every_ms(None);
        let db = guarded("opening", || config.open())?;
        let path = dir.join("db");
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io("opening"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(io("protecting"))?;
        Ok(Self { generation, tree: Tree::Sled { db, file }, dir })
    }

    pub(super) fn exists(disk: &Disk, dir: &Path, generation: u64) -> bool {
        match disk {
            Disk::Real => dir_of(dir, generation).join("db").exists(),
            #[cfg(test)]
            Disk::Lossy(disk) => disk.has_tree(generation),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Place>> {
        let value = match &self.tree {
            Tree::Sled { db, .. } => guarded("reading", || db.get(key))?,
            #[cfg(test)]
            Tree::Lossy(tree) => return tree.get(key),
        };
        Ok(value.and_then(|value| Place::decode(&value)))
    }

    /// Sets or removes a key; gives back what was there.
    pub(super) fn set(&self, key: &[u8], place: Option<Place>) -> Result<Option<Place>> {
        let old = match &self.tree {
            Tree::Sled { db, .. } => guarded("writing", || match place {
                Some(place) => db.insert(key, &place.encode()[..]),
                None => db.remove(key),
            })?,
            #[cfg(test)]
            Tree::Lossy(tree) => return tree.set(key, place),
        };
        Ok(old.and_then(|value| Place::decode(&value)))
    }

    /// Up to `limit` keys that begin with `prefix`, from `start` on and in order.
    pub(super) fn page(&self, start: &[u8], prefix: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Place)>> {
        let db = match &self.tree {
            Tree::Sled { db, .. } => db,
            #[cfg(test)]
            Tree::Lossy(tree) => return tree.page(start, prefix, limit),
        };
        guarded("reading", || {
            let mut out = Vec::new();
            for pair in db.range(start..).take(limit) {
                let (key, value) = pair?;
                if !key.starts_with(prefix) {
                    break;
                }
                out.extend(Place::decode(&value).map(|place| (key.to_vec(), place)));
            }
            Ok(out)
        })
    }

    /// The last key that begins with `prefix` and is not behind `end`.
    pub(super) fn last(&self, prefix: &[u8], end: &[u8]) -> Result<Option<(Vec<u8>, Place)>> {
        let pair = match &self.tree {
            Tree::Sled { db, .. } => guarded("reading", || db.range(prefix..=end).next_back().transpose())?,
            #[cfg(test)]
            Tree::Lossy(tree) => return tree.last(prefix, end),
        };
        let pair = pair.filter(|(key, _)| key.starts_with(prefix));
        Ok(pair.and_then(|(key, value)| Place::decode(&value).map(|place| (key.to_vec(), place))))
    }

    /// Makes everything durable that was set before the call. Sled's own flush goes no further than the kernel.
    pub(super) fn sync(&self) -> Result<()> {
        let (db, file) = match &self.tree {
            Tree::Sled { db, file } => (db, file),
            #[cfg(test)]
            Tree::Lossy(tree) => return tree.sync(),
        };
        guarded("flushing", || db.flush())?;
        file.sync_data().map_err(|e| failed("syncing", &self.dir.join("db"), &e))?;
        Disk::Real.sync_dir(&self.dir).map_err(|e| failed("syncing", &self.dir, &e))
    }

    /// Length of its file, which sled only ever makes longer here.
    pub(super) fn disk_bytes(&self) -> u64 {
        match &self.tree {
            Tree::Sled { file, .. } => file.metadata().map_or(0, |meta| meta.len()),
            #[cfg(test)]
            Tree::Lossy(tree) => tree.bytes(),
        }
    }

    /// Drops it. What it still says is of no use.
    pub(super) fn drop_quietly(self) {
        if catch_unwind(AssertUnwindSafe(|| drop(self))).is_err() {
            tracing::warn!("the index panicked while it was closed");
        }
    }
}

/// Waits until no thread of a dropped index holds its file any more.
pub(super) fn wait_until_free(disk: &Disk, dir: &Path, generation: u64) -> Result<()> {
    match disk {
        Disk::Real => {}
        #[cfg(test)]
        Disk::Lossy(_) => return Ok(()),
    }
    let path = &dir_of(dir, generation).join("db");
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("opening", path, &e)),
    };
    let end = Instant::now() + Duration::from_millis(REOPEN_WAIT_MS);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(failed("locking", path, &e)),
            Err(TryLockError::WouldBlock) if Instant::now() > end => {
                return Err(Error::Poisoned("the failed index does not let go of its file".to_owned()));
            }
            // Sled tells nobody when its last thread is done, so this looks again.
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(Duration::from_millis(5)),
        }
    }
}

/// Runs a call into sled. A panic becomes `Poisoned`, a full disk `Full`.
fn guarded<T>(what: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(e))) if is_full(&e) => Err(Error::Full(format!("{what} the index: {e}"))),
        Ok(Err(e)) => Err(Error::Io(format!("{what} the index: {e}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            let mut text = text.to_owned();
            crate::message::truncate_utf8(&mut text, 512);
            Err(Error::Poisoned(format!("{what} the index: it panicked: {text}")))
        }
    }
}
