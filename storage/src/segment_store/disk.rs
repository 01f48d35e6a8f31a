//! The disk under the store: the few calls that the log, the mark and the file of the index are made of.
//!
//! There is one in every build. The tests put another in its place that delays, tears and loses what was not synced.

use crate::limits::{
    CLEAN_BATCH_BYTES, INDEX_CHECKPOINT_BYTES, INDEX_CHECKPOINT_KEYS, SEGMENT_BYTES, SEGMENT_SMALL_BYTES,
    SEGMENT_SMALL_COUNT,
};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

#[cfg(test)]
use super::lossy;

/// What stands in `segments/`, and when the thread behind the writers works; smaller on the disk of the tests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) small_segment: u64,
    pub(super) segment: u64,
    pub(super) checkpoint_bytes: u64,
    pub(super) checkpoint_keys: usize,
    pub(super) clean_batch: usize,
}

impl Sizes {
    /// How large the segment with this number is: a small store stays small.
    pub(super) fn of_segment(&self, number: u64) -> u64 {
        if number <= SEGMENT_SMALL_COUNT { self.small_segment } else { self.segment }
    }
}

/// Which disk.
#[derive(Debug, Clone)]
pub(super) enum Disk {
    /// That of this machine.
    Real,
    #[cfg(test)]
    #[allow(dead_code, reason = "the runs follow")]
    Lossy(lossy::Handle),
}

/// An open file, for reading and writing at places.
#[derive(Debug)]
pub(super) enum File {
    Real(fs::File),
    #[cfg(test)]
    Lossy(lossy::File),
}

impl Disk {
    pub(super) fn sizes(&self) -> Sizes {
        match self {
            Self::Real => Sizes {
                small_segment: SEGMENT_SMALL_BYTES,
                segment: SEGMENT_BYTES,
                checkpoint_bytes: INDEX_CHECKPOINT_BYTES,
                checkpoint_keys: INDEX_CHECKPOINT_KEYS,
                clean_batch: CLEAN_BATCH_BYTES,
            },
            #[cfg(test)]
            Self::Lossy(disk) => disk.sizes(),
        }
    }

    /// Whether the thread behind the writers may work now.
    pub(super) fn lets_work(&self) -> bool {
        match self {
            Self::Real => true,
            #[cfg(test)]
            Self::Lossy(disk) => disk.lets_work(),
        }
    }

    /// Opens a file that is there.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        match self {
            Self::Real => OpenOptions::new().read(true).write(true).open(path).map(File::Real),
            #[cfg(test)]
            Self::Lossy(disk) => disk.open(path).map(File::Lossy),
        }
    }

    /// Opens a file, private to its owner, and makes it when it is missing; empty when `truncate`.
    pub(super) fn create(&self, path: &Path, truncate: bool) -> io::Result<File> {
        match self {
            Self::Real => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(truncate).mode(0o600).open(path).map(File::Real)
            }
            #[cfg(test)]
            Self::Lossy(disk) => disk.create(path, truncate).map(File::Lossy),
        }
    }

    /// The whole file.
    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Self::Real => fs::read(path),
            #[cfg(test)]
            Self::Lossy(disk) => disk.read(path),
        }
    }

    /// Length of a file; an error when there is none.
    pub(super) fn len(&self, path: &Path) -> io::Result<u64> {
        match self {
            Self::Real => fs::metadata(path).map(|meta| meta.len()),
            #[cfg(test)]
            Self::Lossy(disk) => disk.len(path),
        }
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self {
            Self::Real => fs::rename(from, to),
            #[cfg(test)]
            Self::Lossy(disk) => disk.rename(from, to),
        }
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Real => fs::remove_file(path),
            #[cfg(test)]
            Self::Lossy(disk) => disk.remove(path),
        }
    }

    /// The paths in a directory, in no order.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match self {
            Self::Real => fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect(),
            #[cfg(test)]
            Self::Lossy(disk) => disk.list(dir),
        }
    }

    /// Makes the entries of a directory durable.
    pub(super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::Real => fs::File::open(dir)?.sync_all(),
            #[cfg(test)]
            Self::Lossy(disk) => disk.sync_dir(dir),
        }
    }

    /// Makes a directory that is private to its owner, durably, unless it is there.
    pub(super) fn make_private_dir(&self, dir: &Path) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        match self {
            Self::Real if dir.is_dir() => return Ok(()),
            Self::Real => fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?,
            #[cfg(test)]
            Self::Lossy(disk) => return disk.make_dir(dir),
        }
        match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => self.sync_dir(parent),
            None => self.sync_dir(Path::new(".")),
        }
    }
}

impl File {
    /// Reads at most as much as `out` holds; 0 at the end.
    pub(super) fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Real(file) => file.read_at(out, at),
            #[cfg(test)]
            Self::Lossy(file) => file.read_at(out, at),
        }
    }

    /// Fills `out`; `UnexpectedEof` when the file ends before.
    pub(super) fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Real(file) => file.read_exact_at(out, at),
            #[cfg(test)]
            Self::Lossy(file) => match file.read_at(out, at)? {
                n if n == out.len() => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self {
            Self::Real(file) => file.write_all_at(bytes, at),
            #[cfg(test)]
            Self::Lossy(file) => file.write_at(bytes, at),
        }
    }

    /// Makes the content durable, and the length where it changed.
    pub(super) fn sync_data(&self) -> io::Result<()> {
        match self {
            Self::Real(file) => file.sync_data(),
            #[cfg(test)]
            Self::Lossy(file) => file.sync(),
        }
    }

    /// As [`Self::sync_data`], with everything else that is known of the file.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        match self {
            Self::Real(file) => file.sync_all(),
            #[cfg(test)]
            Self::Lossy(file) => file.sync(),
        }
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        match self {
            Self::Real(file) => file.metadata().map(|meta| meta.len()),
            #[cfg(test)]
            Self::Lossy(file) => file.len(),
        }
    }
}
