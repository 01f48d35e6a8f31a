//! All keys and where their values stand: what is newer than the index in memory, over the index.

use super::index::{Index, Place};
use crate::store::Result;
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

/// Changes of keys, the latest of each; `None` removes.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Place>>;

/// The layers, the upper ones newer.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) fresh: Changes,
    /// On its way into the index.
    pub(super) frozen: Arc<Changes>,
    pub(super) index: Arc<Index>,
}

/// Some keys in order, and where to go on.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) keys: Vec<(Vec<u8>, Place)>,
    pub(super) next: Option<Vec<u8>>,
}

impl Map {
    pub(super) fn new(index: Arc<Index>) -> Self {
        Self { fresh: Changes::new(), frozen: Arc::default(), index }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Place>> {
        match self.fresh.get(key).or_else(|| self.frozen.get(key)) {
            Some(place) => Ok(*place),
            None => self.index.get(key),
        }
    }

    /// Keys that begin with `prefix`, from `start` on; about `limit` of them.
    pub(super) fn page(&self, start: &[u8], prefix: &[u8], limit: usize) -> Result<Page> {
        let below = self.index.page(start, prefix, limit)?;
        // No layer may speak of keys behind the place where another one was cut off.
        let mut end = (below.len() == limit).then(|| below.last().map(|(key, _)| key.clone())).flatten();
        let mut merged: Changes = below.into_iter().map(|(key, place)| (key, Some(place))).collect();
        for layer in [&*self.frozen, &self.fresh] {
            let range = layer.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
            let mut count = 0;
            for (key, place) in range.take_while(|(key, _)| key.starts_with(prefix)) {
                if end.as_ref().is_some_and(|end| key > end) {
                    break;
                }
                merged.insert(key.clone(), *place);
                count += 1;
                if count == limit {
                    end = Some(key.clone());
                    break;
                }
            }
        }
        if let Some(end) = &end {
            merged.retain(|key, _| key <= end);
        }
        let next = end.map(|mut end| {
            end.push(0);
            end
        });
        let keys = merged.into_iter().filter_map(|(key, place)| place.map(|place| (key, place))).collect();
        Ok(Page { keys, next })
    }

    /// The last key that begins with `prefix` and is not behind `end`.
    pub(super) fn last(&self, prefix: &[u8], end: &[u8]) -> Result<Option<(Vec<u8>, Place)>> {
        let mut below = self.index.last(prefix, end)?;
        let mut bound = Bound::Included(end.to_vec());
        loop {
            let upper = |layer: &Changes| {
                let mut range = layer.range::<Vec<u8>, _>((Bound::Included(&prefix.to_vec()), bound.as_ref()));
                range.next_back().map(|(key, _)| key.clone())
            };
            let from_above = upper(&self.frozen).max(upper(&self.fresh));
            let candidate = from_above.max(below.as_ref().map(|(key, _)| key.clone()));
            let Some(key) = candidate else { return Ok(None) };
            if let Some(place) = self.get(&key)? {
                return Ok(Some((key, place)));
            }
            // It was removed: look before it.
            if below.as_ref().is_some_and(|(found, _)| *found == key) {
                below = self.before(prefix, &key)?;
            }
            bound = Bound::Excluded(key);
        }
    }

    /// The last key of the index before `key`.
    fn before(&self, prefix: &[u8], key: &[u8]) -> Result<Option<(Vec<u8>, Place)>> {
        match key.split_last() {
            Some((0, shorter)) => self.index.last(prefix, shorter),
            Some((last, shorter)) => {
                let mut end = shorter.to_vec();
                end.push(last - 1);
                // Longer than any key of a kind, so that nothing between the two is passed over.
                end.extend([0xff; 64]);
                self.index.last(prefix, &end)
            }
            None => Ok(None),
        }
    }
}
