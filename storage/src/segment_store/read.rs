//! Reading: logs, the index, small values.

use super::{
    engine::Engine,
    index::Place,
    keys::{self, Broken},
};
use crate::{
    codec,
    event::SessionHeader,
    fence::Tail,
    ids::{Seq, SessionId},
    limits::{COMMIT_MAX_BYTES, LIST_MAX, READ_MAX_EVENTS},
    store::{Error, Result, SessionSummary, SmallKey, Stored},
};
use serde::de::DeserializeOwned;

impl Engine {
    pub(super) fn header(&self, session: &SessionId) -> Result<Option<SessionHeader>> {
        self.sealed(keys::HEADER, session, "the header")
    }

    pub(super) fn summary(&self, session: &SessionId) -> Result<Option<SessionSummary>> {
        self.sealed(keys::INDEX, session, "the index entry")
    }

    fn sealed<T: DeserializeOwned>(&self, kind: u8, session: &SessionId, what: &str) -> Result<Option<T>> {
        let key = keys::session_key(kind, session);
        let Some(value) = self.get(&key)? else { return Ok(None) };
        keys::unseal(&key, &value).map(Some).map_err(|broken| match broken {
            Broken::TooNew(found) => Error::Format { found: found.into(), supported: super::home::STORE_FORMAT },
            Broken::Damaged => Error::Corrupt {
                session: session.clone(),
                seq: Seq(0),
                why: format!("{what} beside the log cannot be read"),
            },
        })
    }

    /// Where the log ends.
    pub(super) fn tail(&self, session: &SessionId) -> Result<Option<Tail>> {
        let prefix = keys::session_prefix(keys::COMMIT, session);
        let Some((key, place)) = self.last(&prefix, &keys::commit_key(session, Seq(u64::MAX)))? else {
            return Ok(None);
        };
        let record = self.value(&key, place)?.unwrap_or_default();
        Ok(keys::seq_of(&key).map(|first| Tail::of_record(first, &record)))
    }

    /// See [`crate::store::Store::read`]; frames up to the LSN `acked` are known to be durable.
    pub(super) fn read(
        &self,
        session: &SessionId,
        from: Seq,
        max_events: usize,
        max_bytes: usize,
        acked: u64,
    ) -> Result<Vec<Stored>> {
        let (max_events, max_bytes) = (max_events.min(READ_MAX_EVENTS), max_bytes.min(COMMIT_MAX_BYTES));
        let prefix = keys::session_prefix(keys::COMMIT, session);
        let start = match self.last(&prefix, &keys::commit_key(session, from))? {
            Some((key, place)) if self.reaches(&key, place, from)? => key,
            Some(_) | None => keys::commit_key(session, from),
        };
        let (mut found, mut events, mut bytes) = (Vec::new(), 0_usize, 0_usize);
        self.scan(&start, &prefix, |key, place| {
            bytes += place.len as usize;
            if !found.is_empty() && (events >= max_events || bytes > max_bytes) {
                return Ok(false);
            }
            let (Some(first), Some(record)) = (keys::seq_of(key), self.value(key, place)?) else { return Ok(true) };
            events += codec::peek(&record).map_or(1, |head| head.count as usize);
            if !found.is_empty() && events > max_events {
                return Ok(false);
            }
            found.push(Stored { first, bytes: record, acknowledged: place.lsn <= acked });
            Ok(true)
        })?;
        Ok(found)
    }

    /// Whether a commit may hold `from`. One that cannot be read may hold anything.
    fn reaches(&self, key: &[u8], place: Place, from: Seq) -> Result<bool> {
        if keys::seq_of(key) == Some(from) {
            return Ok(true);
        }
        let record = self.value(key, place)?.unwrap_or_default();
        Ok(codec::peek(&record).is_none_or(|head| keys::seq_of(key) != Some(head.first) || head.last() >= from))
    }

    pub(super) fn list(&self, after: Option<&SessionId>, limit: usize) -> Result<Vec<SessionSummary>> {
        let limit = limit.min(LIST_MAX);
        let mut start = after.map_or(vec![keys::INDEX], |id| keys::session_key(keys::INDEX, id));
        if after.is_some() {
            start.push(0);
        }
        let mut out = Vec::new();
        self.scan(&start, &[keys::INDEX], |key, place| {
            if out.len() == limit {
                return Ok(false);
            }
            let Some(value) = self.value(key, place)? else { return Ok(true) };
            match keys::unseal(key, &value) {
                Ok(summary) => out.push(summary),
                // One damaged entry must not hide all others; opening its session says more.
                Err(broken) => tracing::error!(session = ?keys::session_of(key), ?broken, "a damaged index entry"),
            }
            Ok(true)
        })?;
        Ok(out)
    }

    pub(super) fn attention(&self) -> Result<Vec<SessionId>> {
        self.sessions(keys::ATTENTION)
    }

    /// Sessions whose deletion was cut short.
    pub(super) fn deletions(&self) -> Result<Vec<SessionId>> {
        self.sessions(keys::DELETING)
    }

    fn sessions(&self, kind: u8) -> Result<Vec<SessionId>> {
        let mut out = Vec::new();
        self.scan(&[kind], &[kind], |key, _| {
            out.extend(keys::session_of(key));
            Ok(true)
        })?;
        Ok(out)
    }

    pub(super) fn small(&self, key: &SmallKey) -> Result<Option<Vec<u8>>> {
        let place = keys::small_key(key);
        let Some(value) = self.get(&place)? else { return Ok(None) };
        match keys::unseal_bytes(&place, value) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::Io(format!("the small value {}/{} is damaged", key.kind, key.name))),
        }
    }
}
