//! The physical limit: records appended to one preallocated, zeroed file, and an fdatasync.
//!
//! It is what a store is measured against, in benches and by `everturn bench`; it keeps nothing that anybody reads.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Block in which the file is zeroed.
const ZERO_BLOCK_BYTES: usize = 1024 * 1024;

/// An append-only file whose blocks exist beforehand, so that a sync writes data and no metadata.
#[derive(Debug)]
pub struct RawLog {
    file: File,
    capacity_bytes: u64,
    at: u64,
}

impl RawLog {
    /// Makes the file, private to its owner, fills it with `capacity_bytes` zeros, and syncs it.
    ///
    /// A file that is there already is refused. Allocated space alone would not do: its first write still changes
    /// metadata.
    pub fn create(path: &Path, capacity_bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let zeros = vec![0; ZERO_BLOCK_BYTES];
        let mut at = 0;
        while at < capacity_bytes {
            let n = (capacity_bytes - at).min(ZERO_BLOCK_BYTES as u64);
            file.write_all_at(&zeros[..n as usize], at)?;
            at += n;
        }
        file.sync_all()?;
        Ok(Self { file, capacity_bytes, at: 0 })
    }

    /// Writes a group of records one behind the other, each with its length and checksum, in one system call.
    ///
    /// At the end of the file it goes on at the beginning. Errors: those of the disk, and `InvalidInput` for a group
    /// that does not fit into the file.
    pub fn append(&mut self, group: &[&[u8]]) -> io::Result<()> {
        let len = group.iter().map(|record| record.len() + 8).sum();
        let mut bytes = Vec::with_capacity(len);
        for record in group {
            let len = u32::try_from(record.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
            bytes.extend(len.to_le_bytes());
            bytes.extend(crc32c::crc32c(record).to_le_bytes());
            bytes.extend(*record);
        }
        let len = bytes.len() as u64;
        if len > self.capacity_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.at + len > self.capacity_bytes {
            self.at = 0;
        }
        self.file.write_all_at(&bytes, self.at)?;
        self.at += len;
        Ok(())
    }

    /// Makes everything durable that was appended before.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::RawLog;

    #[test]
    fn it_appends_and_wraps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        let mut log = RawLog::create(&path, 64).unwrap();
        log.append(&[b"abc", b""]).unwrap();
        log.sync().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), &bytes[8..11], bytes[11]), (64, &b"abc"[..], 0));
        log.append(&[&[7; 40]]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[8]), (64, 7), "it went on at the beginning");
        assert!(log.append(&[&[7; 57]]).is_err());
        assert!(RawLog::create(&path, 64).is_err());
    }
}
