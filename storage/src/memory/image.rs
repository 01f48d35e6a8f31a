//! What a store holds at one moment: what was written, or what is durable.

use crate::{
    codec,
    event::SessionHeader,
    fence::{self, QUARANTINE, Tail, quarantine_name},
    ids::{Seq, SessionId},
    store::{Commit, Result, SessionSummary, SmallKey, Stored},
};
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

/// One change; each is atomic.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Commit(Commit),
    Summary(Arc<SessionSummary>),
    Small(SmallKey, Arc<[u8]>),
    Truncate(SessionId, Option<Seq>),
    Delete(SessionId),
}

#[derive(Debug, Clone)]
struct Record {
    bytes: Arc<[u8]>,
    acknowledged: bool,
}

#[derive(Debug, Clone, Default)]
struct Session {
    header: Option<Arc<SessionHeader>>,
    summary: Option<Arc<SessionSummary>>,
    records: BTreeMap<Seq, Record>,
    /// The last event that was written, whatever became of its record.
    noted: Option<Seq>,
}

type SmallName = (Option<SessionId>, &'static str, String);

#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    sessions: BTreeMap<SessionId, Session>,
    small: BTreeMap<SmallName, Arc<[u8]>>,
}

impl Image {
    pub(super) fn apply(&mut self, op: Op, acknowledged: bool) {
        match op {
            Op::Commit(commit) => {
                let session = self.sessions.entry(commit.session).or_default();
                session.noted = Some(Seq(commit.first.0 + u64::from(commit.count) - 1));
                session.records.insert(commit.first, Record { bytes: commit.bytes, acknowledged });
                session.header = commit.header.or(session.header.take());
                session.summary = commit.summary.or(session.summary.take());
            }
            Op::Summary(summary) => {
                let id = summary.session.clone();
                self.sessions.entry(id).or_default().summary = Some(summary);
            }
            Op::Small(key, value) => {
                self.small.insert((key.session, key.kind, key.name), value);
            }
            Op::Truncate(session, last) => self.truncate(&session, last),
            Op::Delete(session) => {
                self.sessions.remove(&session);
                self.small.retain(|(owner, _, _), _| owner.as_ref() != Some(&session));
            }
        }
    }

    /// Marks what a sync covered.
    pub(super) fn acknowledge(&mut self, op: &Op) {
        if let Op::Commit(commit) = op
            && let Some(session) = self.sessions.get_mut(&commit.session)
            && let Some(record) = session.records.get_mut(&commit.first)
        {
            record.acknowledged = true;
        }
    }

    fn truncate(&mut self, id: &SessionId, last: Option<Seq>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.noted = session.noted.min(last);
        let cut = session.records.split_off(&last.map_or(Seq(0), Seq::next));
        if let Some(summary) = &mut session.summary
            && Some(summary.last_seq) > last
        {
            Arc::make_mut(summary).last_seq = last.unwrap_or_default();
        }
        if last.is_none() {
            self.sessions.remove(id);
        }
        for (first, record) in cut {
            let free = (0..)
                .map(|n| quarantine_name(first, n))
                .find(|name| !self.small.contains_key(&(Some(id.clone()), QUARANTINE, name.clone())));
            if let Some(name) = free {
                self.small.insert((Some(id.clone()), QUARANTINE, name), record.bytes);
            }
        }
    }

    /// Bytes that a cut behind `last` would move aside.
    pub(super) fn cut_bytes(&self, session: &SessionId, last: Option<Seq>) -> u64 {
        let from = last.map_or(Seq(0), Seq::next);
        self.sessions
            .get(session)
            .map_or(0, |session| session.records.range(from..).map(|(_, record)| record.bytes.len() as u64).sum())
    }

    pub(super) fn tail(&self, session: &SessionId) -> Option<Tail> {
        let (first, record) = self.sessions.get(session)?.records.last_key_value()?;
        Some(Tail::of_record(*first, &record.bytes))
    }

    /// The tail, checked against what is known to have been written.
    pub(super) fn checked_tail(&self, session: &SessionId) -> Result<Option<Tail>> {
        let tail = self.tail(session);
        fence::check_tail(session, tail, self.sessions.get(session).and_then(|session| session.noted))?;
        Ok(tail)
    }

    pub(super) fn header(&self, session: &SessionId) -> Option<SessionHeader> {
        self.sessions.get(session)?.header.as_deref().cloned()
    }

    pub(super) fn summary(&self, session: &SessionId) -> Option<SessionSummary> {
        self.sessions.get(session)?.summary.as_deref().cloned()
    }

    pub(super) fn read(&self, session: &SessionId, from: Seq, max_events: usize, max_bytes: usize) -> Vec<Stored> {
        let Some(session) = self.sessions.get(session) else { return Vec::new() };
        let holder = session.records.range(..=from).next_back();
        let start = match holder {
            Some((first, record)) if Tail::of_record(*first, &record.bytes).last >= from => *first,
            Some(_) | None => from,
        };
        let (mut out, mut events, mut bytes) = (Vec::new(), 0_usize, 0_usize);
        for (first, record) in session.records.range(start..) {
            events = events.saturating_add(codec::peek(&record.bytes).map_or(1, |head| head.count as usize));
            bytes = bytes.saturating_add(record.bytes.len());
            if !out.is_empty() && (events > max_events || bytes > max_bytes) {
                break;
            }
            let acknowledged = record.acknowledged;
            out.push(Stored { first: *first, bytes: record.bytes.to_vec(), acknowledged });
        }
        out
    }

    pub(super) fn list(&self, after: Option<&SessionId>, limit: usize) -> Vec<SessionSummary> {
        let start = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.clone()));
        let sessions = self.sessions.range((start, Bound::Unbounded));
        sessions.filter_map(|(_, session)| session.summary.as_deref().cloned()).take(limit).collect()
    }

    pub(super) fn attention(&self) -> Vec<SessionId> {
        let waits = |session: &Session| session.summary.as_ref().is_some_and(|summary| summary.needs_attention());
        self.sessions.iter().filter(|(_, session)| waits(session)).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn small(&self, key: &SmallKey) -> Option<Vec<u8>> {
        self.small.get(&(key.session.clone(), key.kind, key.name.clone())).map(|value| value.to_vec())
    }

    pub(super) fn bytes(&self) -> u64 {
        let records = self.sessions.values().flat_map(|session| session.records.values());
        let small = self.small.values();
        records.map(|record| record.bytes.len() as u64).sum::<u64>() + small.map(|v| v.len() as u64).sum::<u64>()
    }

    pub(super) fn flip_bit(&mut self, session: &SessionId, first: Seq, bit: usize) -> bool {
        let record = self.sessions.get_mut(session).and_then(|session| session.records.get_mut(&first));
        let Some(record) = record else { return false };
        let mut bytes = record.bytes.to_vec();
        let Some(byte) = bytes.get_mut(bit / 8) else { return false };
        *byte ^= 1 << (bit % 8);
        record.bytes = bytes.into();
        true
    }

    pub(super) fn lose_record(&mut self, session: &SessionId, first: Seq) -> bool {
        self.sessions.get_mut(session).is_some_and(|session| session.records.remove(&first).is_some())
    }
}
