//! The index on the lossy disk: keys that a power loss may take back one by one, unless they were synced.
//!
//! Sled gives back a prefix of its own log or refuses to open. Any subset is harder on the store than that.

use super::{
    super::index::Place,
    chance::Chance,
    disk::{Handle, Op},
};
use crate::store::Result;
use std::collections::BTreeMap;

type Keys = BTreeMap<Vec<u8>, Place>;

/// What the disk keeps of one generation.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) now: Keys,
    durable: Keys,
    /// Keys that changed since the last sync.
    dirty: BTreeMap<Vec<u8>, Option<Place>>,
}

impl Kept {
    pub(super) fn sync(&mut self) {
        self.dirty.clear();
        self.durable.clone_from(&self.now);
    }

    /// A sync that fails and is not repeated: what was not synced stays in memory only.
    pub(super) fn sync_badly(&mut self) {
        self.dirty.clear();
    }

    pub(super) fn lose(&mut self, chance: &mut Chance) {
        let mood = chance.below(4);
        for (key, place) in std::mem::take(&mut self.dirty) {
            let kept = match mood {
                0 => false,
                1 => true,
                _ => chance.permille(500),
            };
            if kept {
                match place {
                    Some(place) => drop(self.durable.insert(key, place)),
                    None => drop(self.durable.remove(&key)),
                }
            }
        }
        self.now.clone_from(&self.durable);
    }

    pub(super) fn sum(&self) -> u32 {
        self.now.iter().fold(0, |sum, (key, place)| {
            let place = [place.segment, place.at, u64::from(place.len), place.lsn];
            let sum = crc32c::crc32c_append(sum, key);
            place.iter().fold(sum, |sum, word| crc32c::crc32c_append(sum, &word.to_le_bytes()))
        })
    }
}

/// An open generation.
#[derive(Debug)]
pub(in super::super) struct Tree {
    pub(super) disk: Handle,
    pub(super) generation: u64,
}

impl Tree {
    fn with<T>(&self, op: Op, call: impl FnOnce(&mut Kept) -> T) -> Result<T> {
        self.disk.with_tree(self.generation, op, call)
    }

    pub(in super::super) fn get(&self, key: &[u8]) -> Result<Option<Place>> {
        self.with(Op::Look, |kept| kept.now.get(key).copied())
    }

    pub(in super::super) fn set(&self, key: &[u8], place: Option<Place>) -> Result<Option<Place>> {
        self.with(Op::SetKey, |kept| {
            kept.dirty.insert(key.to_vec(), place);
            match place {
                Some(place) => kept.now.insert(key.to_vec(), place),
                None => kept.now.remove(key),
            }
        })
    }

    pub(in super::super) fn page(&self, start: &[u8], prefix: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Place)>> {
        self.with(Op::Look, |kept| {
            let range = kept.now.range(start.to_vec()..).take(limit);
            range.take_while(|(key, _)| key.starts_with(prefix)).map(|(key, place)| (key.clone(), *place)).collect()
        })
    }

    pub(in super::super) fn last(&self, prefix: &[u8], end: &[u8]) -> Result<Option<(Vec<u8>, Place)>> {
        self.with(Op::Look, |kept| {
            let found = kept.now.range(prefix.to_vec()..=end.to_vec()).next_back();
            found.filter(|(key, _)| key.starts_with(prefix)).map(|(key, place)| (key.clone(), *place))
        })
    }

    pub(in super::super) fn sync(&self) -> Result<()> {
        self.disk.sync_tree(self.generation)
    }

    pub(in super::super) fn bytes(&self) -> u64 {
        0
    }
}
