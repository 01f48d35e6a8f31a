//! One file of the lossy disk: what a reader sees, and what a power loss leaves.

use super::chance::Chance;
use std::collections::{BTreeMap, BTreeSet};

/// What reaches the medium whole or not at all.
pub(super) const SECTOR: usize = 512;

/// A file.
#[derive(Debug, Default)]
pub(super) struct Inode {
    /// As the page cache has it.
    pub(super) now: Vec<u8>,
    /// As the medium has it.
    durable: Vec<u8>,
    /// Sectors that are not written back, with every content that they had since.
    dirty: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Sectors whose write-back failed. The kernel counts them as clean: no later sync writes them (BR-040).
    forgotten: BTreeSet<usize>,
    /// Whether the length is not durable.
    longer: bool,
}

impl Inode {
    pub(super) fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if end > self.now.len() {
            self.now.resize(end, 0);
            self.longer = true;
        }
        self.now[at..end].copy_from_slice(bytes);
        for sector in at / SECTOR..end.div_ceil(SECTOR) {
            let from = sector * SECTOR;
            let content = self.now[from..self.now.len().min(from + SECTOR)].to_vec();
            self.forgotten.remove(&sector);
            self.dirty.entry(sector).or_default().push(content);
        }
    }

    /// A file that is cut to nothing. That is durable at once: later than it may be, but never a help to the store.
    pub(super) fn truncate(&mut self) {
        *self = Self::default();
    }

    fn settle(&mut self, sector: usize, content: &[u8]) {
        let from = sector * SECTOR;
        if from + content.len() > self.durable.len() {
            self.durable.resize(from + content.len(), 0);
        }
        self.durable[from..from + content.len()].copy_from_slice(content);
    }

    pub(super) fn sync(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            self.settle(sector, versions.last().map_or(&[], Vec::as_slice));
        }
        if self.longer && self.durable.len() < self.now.len() {
            self.durable.resize(self.now.len(), 0);
        }
        self.longer = false;
    }

    /// A sync that fails: some sectors reach the medium, the others are forgotten.
    pub(super) fn sync_badly(&mut self, chance: &mut Chance) {
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if chance.permille(500) {
                self.settle(sector, versions.last().map_or(&[], Vec::as_slice));
            } else {
                self.forgotten.insert(sector);
            }
        }
    }

    /// The power goes: each sector that was not synced has any content that it had since, or the one before.
    pub(super) fn lose(&mut self, chance: &mut Chance) {
        let mood = chance.below(4);
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            let kept = match mood {
                0 => 0,
                1 => versions.len(),
                _ => chance.below(versions.len() + 1),
            };
            if let Some(content) = kept.checked_sub(1).map(|n| versions[n].clone()) {
                self.settle(sector, &content);
            }
        }
        self.forgotten.clear();
        self.longer = false;
        self.now.clone_from(&self.durable);
    }
}
