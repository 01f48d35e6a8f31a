//! The store: what keeps commits and says when they are durable.
//!
//! One trait, one contract suite (`contract`, feature `testing`) that every store passes. A commit is atomic:
//! a reader or a crash sees all of its events or none. It is durable once a [`Store::sync`] that began after it
//! has returned `Ok`. The trait does not assume that the sessions of this process are all there are: every
//! commit carries the writer's epoch and the seq that it expects to be next.

use crate::{
    event::{SessionHeader, TurnReason},
    ids::{Epoch, Seq, SessionId, Turn},
    message::Usage,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why a store refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another process owns the data directory (W-1).
    #[error("the store is in use by {holder}; stop it, or choose another data directory")]
    Busy {
        /// Who, for people.
        holder: String,
    },
    /// A record is damaged inside what was acknowledged.
    #[error("session {session} is damaged at event {seq}: {why}")]
    Corrupt {
        /// Whose.
        session: SessionId,
        /// The first event that cannot be read.
        seq: Seq,
        /// What is wrong with it.
        why: String,
    },
    /// The store has a format that this build does not know.
    #[error("the store has format {found}, this build supports {supported}; use a build that knows it")]
    Format {
        /// Found on disk.
        found: u32,
        /// Known here.
        supported: u32,
    },
    /// The disk is full. Final for this opening of the store.
    #[error("the disk is full: {0}; free some space, work then goes on by itself")]
    Full(String),
    /// Input or output failed. Final for this opening of the store.
    #[error("the disk failed: {0}")]
    Io(String),
    /// An earlier failure was final, or the store's own code panicked. [`Store::reopen`] is the way on.
    #[error("the store stopped after an earlier failure: {0}")]
    Poisoned(String),
    /// The commit does not go on where the log ends, or its epoch is old (W-2). Nothing was written.
    #[error("a stale writer of session {session}: expected event {expected}, the log is at {found}")]
    Fenced {
        /// Whose.
        session: SessionId,
        /// What the commit expected to be next.
        expected: Seq,
        /// What is next.
        found: Seq,
    },
    /// What was asked for cannot be stored: too large, or a bad key.
    #[error("the store refuses this: {0}")]
    Invalid(String),
}

impl Error {
    /// Whether nothing can be written until the store was reopened.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Full(_) | Self::Io(_) | Self::Poisoned(_) => true,
            Self::Busy { .. } | Self::Corrupt { .. } | Self::Format { .. } | Self::Fenced { .. } | Self::Invalid(_) => {
                false
            }
        }
    }
}

/// The answer of a store.
pub type Result<T> = std::result::Result<T, Error>;

/// One atomic unit of a log, encoded.
#[derive(Debug, Clone)]
pub struct Commit {
    /// Whose.
    pub session: SessionId,
    /// The writer's opening.
    pub epoch: Epoch,
    /// Seq of its first event; the commit is refused when the log is not at it.
    pub first: Seq,
    /// How many events it holds; at least one.
    pub count: u32,
    /// The record, from [`crate::codec::encode_commit`].
    pub bytes: Arc<[u8]>,
    /// With the first commit of a session: its header, in the same atomic write (2.2).
    pub header: Option<Arc<SessionHeader>>,
    /// What the index shall say from now on, in the same atomic write.
    pub summary: Option<Arc<SessionSummary>>,
}

impl Commit {
    /// Seq of its last event.
    pub fn last(&self) -> Seq {
        Seq(self.first.0 + u64::from(self.count) - 1)
    }
}

/// A commit as stored: the record, still encoded and not yet verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Seq under which it is kept.
    pub first: Seq,
    /// The record.
    pub bytes: Vec<u8>,
    /// Whether the store knows that a sync covered it: damage to it is never a torn tail (Z1).
    pub acknowledged: bool,
}

/// What the list of sessions shows of one, kept in an index: listing never reads logs.
///
/// It is derived from the log and holds what was true at `last_seq`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Which session.
    pub session: SessionId,
    /// Which agent of the configuration.
    pub agent: String,
    /// Wall clock in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Time of the last event.
    pub updated_at_ms: i64,
    /// The last event that this speaks of.
    pub last_seq: Seq,
    /// The open turn. A session with one needs repair at boot.
    pub open_turn: Option<Turn>,
    /// How many turns it has had.
    pub turns: u32,
    /// How the last closed turn ended.
    pub last_reason: Option<TurnReason>,
    /// Items that wait for a turn.
    pub pending_next_turn: u32,
    /// Items that wait for a step.
    pub pending_next_step: u32,
    /// Tokens of all settled attempts.
    pub usage: Usage,
    /// A name for people.
    pub title: Option<String>,
    /// The caller's labels.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl SessionSummary {
    /// Whether boot has to look at the session: an open turn, or input that waits.
    pub fn needs_attention(&self) -> bool {
        self.open_turn.is_some() || self.pending_next_turn > 0 || self.pending_next_step > 0
    }
}

/// What opening a store found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    /// Things that a person should know, a sentence each: what was cut, what was lost.
    pub reports: Vec<String>,
    /// Whether the store ends before what it had acknowledged: data is lost and the loss must be loud.
    pub behind_acknowledged: bool,
}

/// Figures of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Commits written since it was opened.
    pub commits: u64,
    /// Syncs that ended well since it was opened.
    pub syncs: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

/// A small value beside the logs, such as a spilled tool output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallKey {
    /// The session that it goes away with, or none.
    pub session: Option<SessionId>,
    /// Which kind of value, such as `spill`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Keeps commits. Methods block; all may be called from any thread.
pub trait Store: Send + Sync + 'static {
    /// Writes the commits in order. Each is atomic for itself. None is durable before [`Store::sync`].
    ///
    /// An error that [`Error::is_final`] leaves it open which commits of the group were written. `Fenced` and
    /// `Invalid` concern one commit: those before it were written, it and those behind it were not.
    fn commit(&self, group: &[Commit]) -> Result<()>;

    /// Makes every commit and small value written before the call durable.
    ///
    /// The first failure is final for this opening: afterwards every write and sync answers `Poisoned`.
    fn sync(&self) -> Result<()>;

    /// Closes what is left of a failed opening and opens the store again.
    ///
    /// Everything that then can be read was made durable again by fresh writes; a commit that was never
    /// acknowledged may be gone.
    fn reopen(&self) -> Result<Opened>;

    /// The header of a session.
    fn header(&self, session: &SessionId) -> Result<Option<SessionHeader>>;

    /// The index entry of a session.
    fn summary(&self, session: &SessionId) -> Result<Option<SessionSummary>>;

    /// Seq of the last stored event. `Corrupt` when the store knows that the log was longer once.
    fn last_seq(&self, session: &SessionId) -> Result<Option<Seq>>;

    /// Commits in order, beginning with the one that holds `from`; about `max_events` events and `max_bytes`
    /// bytes at most, at least one commit where there is one.
    fn read(&self, session: &SessionId, from: Seq, max_events: usize, max_bytes: usize) -> Result<Vec<Stored>>;

    /// Index entries in order of id, behind `after`.
    fn list(&self, after: Option<&SessionId>, limit: usize) -> Result<Vec<SessionSummary>>;

    /// Sessions with an open turn or input that waits. It costs what they are, not what the store holds.
    fn attention(&self) -> Result<Vec<SessionId>>;

    /// Cuts a session's log behind `last`, and keeps what is cut under the kind `quarantine`. Returns the bytes kept.
    ///
    /// The index entry speaks of no event behind `last` afterwards. With `None` nothing is left of the session but
    /// its small values.
    fn truncate(&self, session: &SessionId, last: Option<Seq>) -> Result<u64>;

    /// Puts the index entry right without a commit.
    fn put_summary(&self, summary: &SessionSummary) -> Result<()>;

    /// Writes a small value.
    fn put(&self, key: &SmallKey, value: &[u8]) -> Result<()>;

    /// Reads a small value.
    fn get(&self, key: &SmallKey) -> Result<Option<Vec<u8>>>;

    /// Removes the session and all that goes away with it, in small pieces; the index entry goes first.
    fn delete(&self, session: &SessionId) -> Result<()>;

    /// Figures.
    fn stats(&self) -> Stats;

    /// Syncs, and gives the data directory free. Everything afterwards answers `Poisoned`.
    fn close(&self) -> Result<()>;
}
