//! From a store to a checked log: reading, the torn tail, and what refuses to open (7.5, 7.6).

use crate::{
    codec::{self, CodecError, DecodedCommit},
    event::{Event, EventData, FORMAT_VERSION, PLUGIN_TYPES, SessionHeader},
    ids::{Seq, SessionId},
    limits::{LOAD_PAGE_BYTES, READ_MAX_EVENTS},
    log::LogState,
    store::{self, Store, Stored},
};
use std::sync::Arc;

/// Why a session does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There is no such session.
    #[error("there is no session {0}")]
    NotFound(SessionId),
    /// A newer build wrote it (V-1). Nothing was touched.
    #[error(
        "a newer build wrote this session: it has version {found}, this build knows {supported}; use a newer build"
    )]
    TooNew {
        /// Its version.
        found: u32,
        /// Known here.
        supported: u32,
    },
    /// It has a version from which no upgrade leads here (V-1).
    #[error("the session has version {found}, and no upgrade to {supported} is known; export it with an older build")]
    TooOld {
        /// Its version.
        found: u32,
        /// Known here.
        supported: u32,
    },
    /// It is damaged inside what was acknowledged, or it breaks a rule of the log (B-2, V-5).
    #[error("the session is damaged at event {seq}: {why}; inspect what is before it, or restore a backup")]
    Corrupt {
        /// The first event that cannot be used.
        seq: Seq,
        /// What is wrong.
        why: String,
    },
    /// An event has a type that this build does not know and may not skip (V-4).
    #[error("event {seq} has the type {type_name}, which this build does not know; use a build that does")]
    UnknownEvent {
        /// Its type.
        type_name: String,
        /// Where.
        seq: Seq,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A tail that was written and never acknowledged, and cannot be read (B-1, Z1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The last event that is whole: the `last` of [`Store::truncate`].
    pub keep: Option<Seq>,
    /// The first event of the defect.
    pub first: Seq,
    /// What is wrong there.
    pub why: String,
}

/// A log that opened.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What is known beside the log.
    pub header: SessionHeader,
    /// The fold of its whole events.
    pub state: LogState,
    /// The last event that is known to have been acknowledged; what is behind it needs a sync before it counts.
    pub durable: Option<Seq>,
    /// What the caller has to cut, with [`Store::truncate`], before anything is appended.
    pub cut: Option<Torn>,
}

/// What can be seen of a session, whatever its state.
#[derive(Debug, Clone)]
pub struct Inspected {
    /// What is known beside the log.
    pub header: SessionHeader,
    /// The fold of the intact prefix.
    pub state: LogState,
    /// Why there is no more of it: what opening for writing would answer, or cut.
    pub defect: Option<String>,
}

/// Reads a whole log for writing: decodes, checks and folds it, page by page. It changes nothing.
///
/// A defect behind the last acknowledged event is a torn tail, also when intact records follow (Z1). Where nothing
/// tells what was acknowledged, it is one unless a whole `turn/end` follows it (B-1).
pub fn load(store: &dyn Store, session: &SessionId) -> Result<Loaded, LoadError> {
    let header = store.header(session)?;
    let mut walk = Walk::new(session);
    let defect = match header.as_ref().map(check_version) {
        Some(Err(error)) => return Err(error),
        Some(Ok(())) | None => walk.run(store)?,
    };
    let Some(header) = header else {
        return Err(match store.last_seq(session)? {
            None => LoadError::NotFound(session.clone()),
            Some(_) => LoadError::Corrupt { seq: Seq(0), why: "the header beside the log is missing".to_owned() },
        });
    };
    let cut = match defect {
        None => {
            walk.check_end(store)?;
            None
        }
        Some(Defect::Refused(error)) => return Err(error),
        Some(Defect::Broken { seq, why }) => {
            let mut rest = Rest { durable: walk.durable, turn_end: false };
            rest.look(store, session, seq)?;
            let inside = rest.durable.map_or(rest.turn_end, |durable| seq <= durable);
            if inside {
                return Err(LoadError::Corrupt { seq, why });
            }
            Some(Torn { keep: seq.0.checked_sub(1).map(Seq), first: seq, why })
        }
    };
    Ok(Loaded { header, state: walk.state, durable: walk.durable, cut })
}

/// Shows what is whole of a session, also of one that [`load`] refuses. It changes nothing (W-3, 197, 211).
pub fn inspect(store: &dyn Store, session: &SessionId) -> Result<Inspected, LoadError> {
    let Some(header) = store.header(session)? else { return Err(LoadError::NotFound(session.clone())) };
    check_version(&header)?;
    let mut walk = Walk::new(session);
    let defect = match walk.run(store)? {
        None => walk.check_end(store).err().map(|error| error.to_string()),
        Some(Defect::Refused(error)) => Some(error.to_string()),
        Some(Defect::Broken { seq, why }) => Some(format!("event {seq}: {why}")),
    };
    Ok(Inspected { header, state: walk.state, defect })
}

/// Reads up to `max_events` events from `from` on; fewer at the end of the log. It checks records, not rules.
pub fn read_events(
    store: &dyn Store,
    session: &SessionId,
    from: Seq,
    max_events: usize,
) -> Result<Vec<Arc<Event>>, LoadError> {
    let mut out: Vec<Arc<Event>> = Vec::new();
    let mut next = from;
    while out.len() < max_events {
        let page = store.read(session, next, (max_events - out.len()).min(READ_MAX_EVENTS), LOAD_PAGE_BYTES)?;
        if page.is_empty() {
            break;
        }
        for stored in page {
            let events = decode(session, &stored).map_err(Defect::into_error)?.events;
            for event in events.into_iter().filter(|event| event.seq >= from) {
                if event.seq != next {
                    return Err(LoadError::Corrupt { seq: next, why: "it is missing".to_owned() });
                }
                next = next.next();
                out.push(event);
            }
        }
    }
    out.truncate(max_events);
    Ok(out)
}

fn check_version(header: &SessionHeader) -> Result<(), LoadError> {
    let (found, supported) = (header.version, FORMAT_VERSION);
    match found.cmp(&supported) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(LoadError::TooNew { found, supported }),
        // Version 1 is the first, so there is no chain of upgrades yet.
        std::cmp::Ordering::Less => Err(LoadError::TooOld { found, supported }),
    }
}

/// Why the walk ended before the end of the log.
enum Defect {
    /// Damage that may be a torn tail.
    Broken { seq: Seq, why: String },
    /// Whole records that this build must not open, wherever they are.
    Refused(LoadError),
}

impl Defect {
    fn into_error(self) -> LoadError {
        match self {
            Self::Broken { seq, why } => LoadError::Corrupt { seq, why },
            Self::Refused(error) => error,
        }
    }
}

/// Folds commits from the first one on.
struct Walk<'a> {
    session: &'a SessionId,
    state: LogState,
    durable: Option<Seq>,
}

impl<'a> Walk<'a> {
    fn new(session: &'a SessionId) -> Self {
        Self { session, state: LogState::empty(session.clone()), durable: None }
    }

    /// Goes as far as the log is whole.
    fn run(&mut self, store: &dyn Store) -> Result<Option<Defect>, LoadError> {
        loop {
            let next = self.state.next_seq();
            let page = match store.read(self.session, next, READ_MAX_EVENTS, LOAD_PAGE_BYTES) {
                Ok(page) => page,
                Err(store::Error::Corrupt { seq, why, .. }) => return Ok(Some(Defect::Broken { seq, why })),
                Err(error) => return Err(error.into()),
            };
            if page.is_empty() {
                return Ok(None);
            }
            for stored in page {
                if let Err(defect) = self.take(&stored) {
                    return Ok(Some(defect));
                }
            }
        }
    }

    fn take(&mut self, stored: &Stored) -> Result<(), Defect> {
        let next = self.state.next_seq();
        if stored.first != next {
            // What is known to be durable behind a gap proves that the gap was durable too.
            if stored.acknowledged {
                self.durable = self.durable.max(Some(stored.first));
            }
            return Err(Defect::Broken { seq: next, why: "it is missing".to_owned() });
        }
        let decoded = match decode(self.session, stored) {
            Ok(decoded) => decoded,
            Err(defect) => {
                if stored.acknowledged {
                    self.durable = self.durable.max(Some(stored.first));
                }
                return Err(defect);
            }
        };
        check_types(&decoded.events)?;
        self.state = self.state.apply(&decoded.events).map_err(|violation| {
            Defect::Refused(LoadError::Corrupt { seq: violation.seq, why: violation.to_string() })
        })?;
        self.durable = self.durable.max(decoded.acked);
        if stored.acknowledged {
            self.durable = self.durable.max(decoded.events.last().map(|event| event.seq));
        }
        Ok(())
    }

    /// The index goes into the store together with commits, so it never speaks of an event that was not written:
    /// when it does, the end of the log is gone without a trace.
    fn check_end(&self, store: &dyn Store) -> Result<(), LoadError> {
        let seq = self.state.next_seq();
        match store.last_seq(self.session) {
            Ok(last) if last.map(Seq::next).unwrap_or_default() == seq => {}
            Ok(_) => return Err(LoadError::Corrupt { seq, why: "the store sees another end of the log".to_owned() }),
            Err(store::Error::Corrupt { seq, why, .. }) => return Err(LoadError::Corrupt { seq, why }),
            Err(error) => return Err(error.into()),
        }
        let known = match store.summary(self.session) {
            Ok(summary) => summary.map(|summary| summary.last_seq),
            // The index is derived; whoever opens the session writes it anew.
            Err(store::Error::Corrupt { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        match known.max(self.durable).max(Some(Seq(0))) {
            // Event 0 came in the same write as the header, which is there.
            Some(last) if last >= seq => {
                Err(LoadError::Corrupt { seq, why: format!("the log ends here, but it once held event {last}") })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What is behind a defect: it tells what had been acknowledged.
struct Rest {
    durable: Option<Seq>,
    turn_end: bool,
}

impl Rest {
    fn look(&mut self, store: &dyn Store, session: &SessionId, from: Seq) -> Result<(), LoadError> {
        let mut next = from;
        loop {
            let page = match store.read(session, next, READ_MAX_EVENTS, LOAD_PAGE_BYTES) {
                Ok(page) => page,
                // What cannot be read tells nothing.
                Err(store::Error::Corrupt { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let before = next;
            for stored in page {
                if stored.acknowledged {
                    self.durable = self.durable.max(Some(stored.first));
                }
                next = next.max(stored.first.next());
                if let Ok(decoded) = codec::decode_commit(session, stored.first, &stored.bytes) {
                    self.durable = self.durable.max(decoded.acked);
                    let last = decoded.events.last().map(|event| event.seq.next());
                    next = next.max(last.unwrap_or_default());
                    self.turn_end |= decoded.events.iter().any(is_turn_end);
                }
            }
            if next == before {
                return Ok(());
            }
        }
    }
}

fn is_turn_end(event: &Arc<Event>) -> bool {
    matches!(event.body.data, EventData::TurnEnd(_))
}

fn decode(session: &SessionId, stored: &Stored) -> Result<DecodedCommit, Defect> {
    codec::decode_commit(session, stored.first, &stored.bytes).map_err(|error| match error {
        CodecError::TooNew { found, supported } => {
            Defect::Refused(LoadError::TooNew { found: found.into(), supported: supported.into() })
        }
        CodecError::UnknownTag { seq, tag } => {
            Defect::Refused(LoadError::UnknownEvent { type_name: format!("number {tag}"), seq })
        }
        // The checksum holds, so this is what was written: no tear, and nothing to cut.
        CodecError::Schema { seq, why } => Defect::Refused(LoadError::Corrupt { seq, why }),
        CodecError::Damaged(why) => Defect::Broken { seq: stored.first, why: format!("the record is damaged: {why}") },
        CodecError::Refused(why) => Defect::Broken { seq: stored.first, why },
    })
}

/// V-4.
fn check_types(events: &[Arc<Event>]) -> Result<(), Defect> {
    for event in events {
        if let EventData::Plugin(plugin) = &event.body.data
            && !event.body.ignorable
            && !PLUGIN_TYPES.iter().any(|known| known.name == plugin.type_name)
        {
            let type_name = plugin.type_name.clone();
            return Err(Defect::Refused(LoadError::UnknownEvent { type_name, seq: event.seq }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
