//! What a journal keeps in memory: every commit that is not durable, and some events behind it for watchers.

use everturn_storage::{event::Event, ids::Seq, store::Commit};
use std::{collections::VecDeque, sync::Arc};

struct Kept {
    /// Present until it is durable.
    commit: Option<Commit>,
    events: Vec<Arc<Event>>,
    last: Seq,
    bytes: usize,
}

/// Commits in order. Those that are not durable are always a suffix.
pub(super) struct Memory {
    kept: VecDeque<Kept>,
    recent_max_bytes: usize,
    undurable_bytes: usize,
    recent_bytes: usize,
}

impl Memory {
    /// Keeps about `recent_max_bytes` of what is durable already.
    pub(super) fn new(recent_max_bytes: usize) -> Self {
        Self { kept: VecDeque::new(), recent_max_bytes, undurable_bytes: 0, recent_bytes: 0 }
    }

    pub(super) fn push(&mut self, commit: Commit, events: Vec<Arc<Event>>) {
        let (last, bytes) = (commit.last(), commit.bytes.len());
        self.undurable_bytes += bytes;
        self.kept.push_back(Kept { commit: Some(commit), events, last, bytes });
    }

    /// Everything up to `upto` is durable.
    pub(super) fn now_durable(&mut self, upto: Seq) {
        let fresh = self.kept.partition_point(|kept| kept.commit.is_none());
        for kept in self.kept.range_mut(fresh..).take_while(|kept| kept.last <= upto) {
            kept.commit = None;
            self.undurable_bytes -= kept.bytes;
            self.recent_bytes += kept.bytes;
        }
        while self.recent_bytes > self.recent_max_bytes {
            let Some(old) = self.kept.pop_front_if(|kept| kept.commit.is_none()) else { return };
            self.recent_bytes -= old.bytes;
        }
    }

    pub(super) fn undurable_bytes(&self) -> usize {
        self.undurable_bytes
    }

    /// The commits that are not durable, in order.
    pub(super) fn undurable(&self) -> impl Iterator<Item = &Commit> {
        self.kept.iter().filter_map(|kept| kept.commit.as_ref())
    }

    /// The events from `from` on that are still here.
    pub(super) fn events_from(&self, from: Seq) -> Vec<Arc<Event>> {
        let start = self.kept.partition_point(|kept| kept.last < from);
        let events = self.kept.range(start..).flat_map(|kept| &kept.events);
        events.filter(|event| event.seq >= from).cloned().collect()
    }
}
