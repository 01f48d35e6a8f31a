//! Planted bugs: what the store would do if a step were forgotten. Each must be caught, or the simulation is blind.

use super::{
    disk::{Phase, State},
    inode::Inode,
};
use std::path::Path;

/// One forgotten step, as the disk sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plant {
    None,
    /// Commits are acknowledged before they are synced.
    AckBeforeSync,
    /// The names of new segments are not synced.
    NoDirSync,
    /// The full segment is not synced before the next one begins.
    RollUnsynced,
    /// The index knows more than the log that it was made from.
    IndexBeforeLog,
    /// Segments are given back before the index that says so is durable.
    IndexUnsynced,
    /// A sync that failed is asked again and believed.
    RetryFailedSync,
    /// What stands behind the end of the log stays there.
    NoCut,
    /// What opening read is believed before it is synced.
    NoSyncAtOpening,
    /// After a failed sync nothing is written again.
    NoRewrite,
    /// The mark is written before the sync that it speaks of.
    MarkBeforeSync,
}

impl Plant {
    pub(super) const ALL: [Self; 10] = [
        Self::AckBeforeSync,
        Self::NoDirSync,
        Self::RollUnsynced,
        Self::IndexBeforeLog,
        Self::IndexUnsynced,
        Self::RetryFailedSync,
        Self::NoCut,
        Self::NoSyncAtOpening,
        Self::NoRewrite,
        Self::MarkBeforeSync,
    ];
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|ext| ext == "seg") || path.ends_with("spare")
}

pub(super) fn forgets_sync(state: &State, path: &Path) -> bool {
    is_segment(path)
        && match state.plant {
            Plant::AckBeforeSync => state.phase == Phase::Syncing,
            Plant::RollUnsynced => state.phase == Phase::Writing,
            Plant::IndexBeforeLog => state.phase == Phase::House,
            Plant::NoSyncAtOpening => state.phase == Phase::Opening,
            _ => false,
        }
}

pub(super) fn forgets_dir(state: &State, dir: &Path) -> bool {
    state.plant == Plant::NoDirSync && dir.ends_with("segments")
}

pub(super) fn forgets_write(state: &State, path: &Path, inode: u64, bytes: &[u8], at: usize) -> bool {
    if state.phase != Phase::Opening || !is_segment(path) {
        return false;
    }
    match state.plant {
        Plant::NoCut => bytes.iter().all(|byte| *byte == 0),
        Plant::NoRewrite => {
            let there: Option<&Inode> = state.files.get(&inode);
            there.and_then(|file| file.now.get(at..at + bytes.len())) == Some(bytes)
        }
        _ => false,
    }
}

/// The mark speaks of one frame more than was synced.
pub(super) fn change_write(state: &State, path: &Path, bytes: &mut [u8]) {
    if state.plant == Plant::MarkBeforeSync && path.ends_with("ACKED") && state.phase == Phase::Syncing {
        let upto = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 1;
        bytes[16..24].copy_from_slice(&upto.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
    }
}
