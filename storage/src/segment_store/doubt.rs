//! A failed sync outlives the process that saw it.
//!
//! After a failed sync the kernel counts pages as clean that never reached the disk (BR-040). A process that is started
//! while the machine stays up reads them from memory, and its own syncs succeed. So the failure is noted in a file, which
//! needs no sync: where the power goes the pages go too, and what is read then is true. While the doubt stands an
//! opening writes everything again that it is about to believe.

use super::disk::Disk;
use std::{io, path::Path};

const DOUBT: &str = "doubt";
const NONE: [u8; 1] = [0];
const RAISED: [u8; 1] = [1];

/// Makes the file ahead of need, so that a full disk can take the note. Tells whether a doubt stands.
pub(super) fn stands(disk: &Disk, segments_dir: &Path) -> io::Result<bool> {
    let path = segments_dir.join(DOUBT);
    match disk.read(&path) {
        Ok(bytes) if bytes == NONE => Ok(false),
        Ok(bytes) if !bytes.is_empty() => Ok(true),
        Ok(_) => clear(disk, segments_dir).map(|()| false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => clear(disk, segments_dir).map(|()| false),
        Err(e) => Err(e),
    }
}

/// The sync of this file failed. Best effort: where even this fails, the process that saw it still knows.
pub(super) fn raise(disk: &Disk, of: &Path) {
    let path = of.with_file_name(DOUBT);
    if let Err(error) = disk.create(&path, false).and_then(|file| file.write_all_at(&RAISED, 0)) {
        tracing::error!(%error, file = %path.display(), "a failed sync could not be noted; do not restart before the disk is mended");
    }
}

/// Everything that was in doubt was written again and synced.
pub(super) fn clear(disk: &Disk, segments_dir: &Path) -> io::Result<()> {
    disk.create(&segments_dir.join(DOUBT), false)?.write_all_at(&NONE, 0)
}
