//! What callers hold: a handle to one agent, and what its operations take and give (3).
//!
//! A handle outlives restarts of the actors behind it. Calling it never means that a message ran.

use crate::protocol::Phase;
use everturn_storage::{
    chunk::Chunk,
    event::{Cause, Event, Target, TurnReason},
    ids::{Attempt, ItemId, MessageId, Seq, SessionId, Step, Turn},
    log::{LogState, PendingItem},
    message::Block,
};
use serde::Serialize;
use std::sync::Arc;

/// How a message comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SubmitKind {
    /// A turn of its own.
    Send,
    /// The next step of the open turn; without one, as `Send`.
    Steer,
    /// Waits for the next claim of any kind; never causes one.
    Inject,
}

/// A message to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// How it comes in.
    pub kind: SubmitKind,
    /// The caller's id, for idempotent resubmission; made up when absent (C-3).
    pub id: Option<MessageId>,
    /// What is said. Only text and images; at least one block that is not empty text.
    pub content: Vec<Block>,
    /// Where it came from, in the caller's words.
    pub source: Option<String>,
}

/// An accepted message. It is durable, and it is no result (C-4, C-5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// The item.
    pub item_id: ItemId,
    /// The list it waits in.
    pub list: Target,
    /// 0-based place in that list when it was accepted.
    pub position: u32,
    /// Whether it woke the driver.
    pub woke: bool,
    /// Its `inbox/queued` event.
    pub seq: Seq,
    /// Always true for receipts of this handle.
    pub durable: bool,
}

/// Why an operation was refused. Nothing was done (C-1), except where a variant says otherwise.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    /// `DISPOSED`.
    #[error("the agent is shutting down and takes no more input; send again once it runs")]
    Disposed,
    /// `FAULTED`.
    #[error("the agent cannot record anything now: {0}")]
    Faulted(String),
    /// `EMPTY_MESSAGE`.
    #[error("the message is empty; give it some text")]
    EmptyMessage,
    /// `INVALID_MESSAGE`.
    #[error("the message is not valid: {0}")]
    InvalidMessage(String),
    /// `MESSAGE_TOO_LARGE`.
    #[error("the message has {bytes} bytes, the limit is {limit_bytes}")]
    MessageTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// `INBOX_FULL`.
    #[error("the inbox holds {0} items and takes no more; wait until some have run, or cancel")]
    InboxFull(usize),
    /// `DUPLICATE_PENDING`: an item with this id waits. Boxed details let the caller answer idempotently.
    #[error("a message with this id is waiting already")]
    DuplicatePending(Box<ItemReport>),
    /// `DUPLICATE_CONSUMED`: an item with this id was claimed before, also before a restart.
    #[error("a message with this id was taken already")]
    DuplicateConsumed(Box<ItemReport>),
    /// `UNKNOWN_ITEM`.
    #[error("no item {0} is waiting")]
    UnknownItem(ItemId),
    /// `BUSY`.
    #[error("the agent is busy; wait until it is idle")]
    Busy,
    /// `WOULD_DEADLOCK`.
    #[error("waiting for the agent from inside its own work would never end")]
    WouldDeadlock,
    /// `STORAGE`: the store is down. A message in this error is not accepted: it was withdrawn, or, when a turn had
    /// taken it already, that turn ends with a storage error.
    #[error("the store cannot keep it now: {0}")]
    Storage(String),
    /// `CANCELLED`: maintenance was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// An argument is wrong, for example a reorder that is no permutation.
    #[error("{0}")]
    Invalid(String),
}

impl OpError {
    /// The code of 3.2.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Disposed => "DISPOSED",
            Self::Faulted(_) => "FAULTED",
            Self::EmptyMessage => "EMPTY_MESSAGE",
            Self::InvalidMessage(_) => "INVALID_MESSAGE",
            Self::MessageTooLarge { .. } => "MESSAGE_TOO_LARGE",
            Self::InboxFull(_) => "INBOX_FULL",
            Self::DuplicatePending(_) => "DUPLICATE_PENDING",
            Self::DuplicateConsumed(_) => "DUPLICATE_CONSUMED",
            Self::UnknownItem(_) => "UNKNOWN_ITEM",
            Self::Busy => "BUSY",
            Self::WouldDeadlock => "WOULD_DEADLOCK",
            Self::Storage(_) => "STORAGE",
            Self::Cancelled => "CANCELLED",
            Self::Invalid(_) => "INVALID",
        }
    }
}

/// What became of an item (SURFACE 4).
#[derive(Debug, Clone, PartialEq)]
pub struct ItemReport {
    /// The item.
    pub item_id: ItemId,
    /// Its state.
    pub state: ItemState,
    /// The turn that took it, when one did.
    pub turn: Option<Turn>,
    /// How that turn ended, once it has.
    pub reason: Option<TurnReason>,
    /// The last complete assistant text of that turn, once it has ended and said something.
    pub answer: Option<String>,
    /// The receipt it was given, rebuilt from the log: `woke` is not kept and is false after a restart.
    pub receipt: Receipt,
    /// What was said, to tell a repeat from another message under the same id.
    pub content: Vec<Block>,
    /// How it came in.
    pub kind: SubmitKind,
}

/// States of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ItemState {
    Pending,
    Claimed,
    Admitted,
    Blocked,
    Unadmitted,
    Removed,
}

/// What happens to what waits when a turn is cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeptItems {
    /// It is removed.
    #[default]
    Clear,
    /// It stays and waits for the next wake.
    Park,
    /// It stays and runs right behind the cancelled turn.
    Continue,
}

/// What a cancel did at once; the turn ends later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CancelReport {
    /// The turn whose signal fired, or none when nothing was running.
    pub cancelled: Option<Turn>,
    /// The items that were removed.
    pub removed: Vec<ItemId>,
}

/// How many items wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct PendingCounts {
    pub next_turn: u32,
    pub next_step: u32,
}

/// The three visible statuses (R12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Visible {
    Idle,
    Running,
    Disposed,
}

/// A snapshot of an agent; informative only (3.3).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// What watchers see.
    pub visible: Visible,
    /// The internal phase.
    pub phase: Phase,
    /// The open turn.
    pub turn: Option<Turn>,
    /// The open step.
    pub step: Option<Step>,
    /// The attempt in flight.
    pub attempt: Option<Attempt>,
    /// What waits.
    pub pending: PendingCounts,
    /// Whether what waits is parked until the next wake.
    pub parked: bool,
    /// Why the agent cannot go on, when it cannot.
    pub fault: Option<String>,
}

/// How an agent is put away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisposeMode {
    /// What waits is removed.
    Discard,
    /// What waits stays in the log for the next process (R19).
    Suspend,
}

/// A live frame: a courtesy for people who watch, never durable (5.7).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Frame {
    /// An attempt was dispatched.
    Started { turn: Turn, step: Step, attempt: Attempt },
    /// A chunk of it.
    Chunk { turn: Turn, step: Step, attempt: Attempt, chunk: Chunk },
    /// Some frames were left out for this watcher.
    Gap,
    /// It settled as this event.
    Settled { turn: Turn, step: Step, attempt: Attempt, seq: Seq },
    /// Its prefix is not history.
    Discarded { turn: Turn, step: Step, attempt: Attempt, reason: String },
    /// The visible status changed.
    Status { status: Visible },
    /// Something that a person should know: a retry, a failed checkpoint, a tool that ignores its signal.
    Notice { code: String, message: String },
}

/// What a subscriber of committed events gets: every event in order, or word of where to read on.
#[derive(Debug, Clone)]
pub enum Committed {
    /// An event; logged, perhaps not yet durable.
    Event(Arc<Event>),
    /// Events from here on were not kept for this subscriber; read them from the log, to its end. Events that
    /// follow may repeat what was read.
    Lagged {
        /// First event that was not delivered.
        from: Seq,
    },
}

/// An ordered snapshot of what waits.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// Items for turns of their own.
    pub next_turn: Vec<PendingItem>,
    /// Items for the next claim.
    pub next_step: Vec<PendingItem>,
}

/// The session of a handle and its fold right now.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Which.
    pub session: SessionId,
    /// The fold of its log.
    pub view: Arc<LogState>,
    /// The last durable event.
    pub durable: Option<Seq>,
}

/// The cause that a caller may give; `Disposed` is internal.
pub fn caller_cause(text: Option<&str>) -> Result<Cause, OpError> {
    match text {
        None | Some("user") => Ok(Cause::User),
        Some("parent") => Ok(Cause::Parent),
        Some(other) => match other.strip_prefix("hook:") {
            Some(reason) => Ok(Cause::Hook { reason: reason.to_owned() }),
            None => Err(OpError::Invalid(format!("no cause is called {other:?}; use user, parent or hook:REASON"))),
        },
    }
}
