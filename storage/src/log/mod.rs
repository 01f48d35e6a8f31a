//! The algebra of the log: what a valid log is, and everything that is derived from one.
//!
//! [`LogState`] is the fold of a log. It is checked while it is folded, so that a state always belongs to a valid
//! log, and it is cheap to clone (its lists are shared): the journal applies a batch to a clone and keeps the
//! clone only when every rule held. Nothing here has a clock, randomness, I/O or hash maps.

pub mod check;
mod inbox;
mod opening;
pub mod repair;
pub mod request;
pub(crate) mod settle;
mod surface;
#[cfg(test)]
mod tests;
pub mod tools;
mod turn_rules;
pub mod verify;

use crate::{
    event::{Event, Item, OpenReason, RequestContext, RequestHeader, SessionHeader, Target, TurnReason},
    ids::{Attempt, CallId, Epoch, ItemId, MessageId, Proposal, RetryId, Seq, SessionId, Step, Turn},
    message::{Role, Usage},
    store::SessionSummary,
};
use imbl::{OrdMap, Vector};
use std::sync::Arc;

/// A rule that an append would break (2.5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} breaks {rule}: {why}")]
pub struct Violation {
    /// The rule, such as `I-16` or `grammar`.
    pub rule: &'static str,
    /// Where.
    pub seq: Seq,
    /// How.
    pub why: String,
}

/// What became of an item (SURFACE 4).
#[derive(Debug, Clone, PartialEq)]
pub enum ItemFate {
    /// It waits.
    Pending,
    /// A turn took it and has not decided yet.
    Claimed(Turn),
    /// It is part of history.
    Admitted(Turn),
    /// A policy refused it.
    Blocked(Turn),
    /// Its turn closed before it became part of history.
    Unadmitted(Turn),
    /// It was removed before any claim.
    Removed,
}

/// Where an item came in first; a later move or restore does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedRow {
    /// Its `inbox/queued`.
    pub seq: Seq,
    /// The list it came into.
    pub target: Target,
    /// 0-based place in that list.
    pub position: u32,
}

/// An item that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingItem {
    /// The item.
    pub item: Arc<Item>,
    /// Where it was queued.
    pub queued: Seq,
    /// How often repair gave it back.
    pub restored: u32,
}

/// An item that the open turn took.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedItem {
    /// The item.
    pub item: Arc<Item>,
    /// Which proposal took it.
    pub proposal: Proposal,
    /// How often repair had given it back before.
    pub restored: u32,
    /// Whether it became a user.
    pub admitted: bool,
}

/// A node of the model's surface.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its event; one of the four surface types.
    pub event: Arc<Event>,
    /// Who speaks.
    pub role: Role,
}

/// A call of the settled message of the open step.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    /// As the model named it.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// The arguments, verbatim.
    pub arguments: String,
    /// Where it was logged.
    pub called: Option<Seq>,
    /// Where its result was logged.
    pub resulted: Option<Seq>,
}

/// What settled the open step.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledRow {
    /// The `assistant/message`.
    pub seq: Seq,
    /// Its calls, in model order.
    pub calls: Vector<CallRow>,
    /// Whether a cancel cut it.
    pub interrupted: bool,
}

/// The open step.
#[derive(Debug, Clone)]
pub struct OpenStep {
    /// Its number.
    pub step: Step,
    /// Whether its admission is logged.
    pub admitted: bool,
    /// The last attempt that settled.
    pub attempt: Attempt,
    /// The message that settled it.
    pub settled: Option<SettledRow>,
    /// Generation of the surface when the last attempt was admitted or settled.
    pub generation: u64,
    /// Retries scheduled so far, by (provider, policy key).
    pub retries: OrdMap<(String, String), u32>,
    /// Where it stands between its attempts.
    pub(crate) gate: settle::Gate,
    /// Every retry of the step.
    pub(crate) retry_ids: OrdMap<RetryId, ()>,
    /// The retry that is scheduled and not started.
    pub(crate) waiting_retry: Option<RetryId>,
    /// Whether the admission under way added a system message behind an older one.
    pub(crate) system_appended: bool,
}

/// The open turn.
#[derive(Debug, Clone)]
pub struct OpenTurn {
    /// Its number.
    pub turn: Turn,
    /// Its `turn/start`.
    pub started: Seq,
    /// How many proposals it had.
    pub proposals: Proposal,
    /// How many steps it started.
    pub steps: u32,
    /// What it claimed, in order.
    pub claimed: Vector<ClaimedItem>,
    /// The open step.
    pub step: Option<OpenStep>,
    /// Whether a response ended on the output limit; sticky.
    pub max_tokens: bool,
    /// Whether the last closed step left results that the model has not seen.
    pub owed_results: bool,
    /// Tokens of its settled attempts.
    pub usage: Usage,
    /// The last `assistant/message` with visible text that no cancel cut.
    pub answer: Option<Seq>,
    /// Whether the last claim has no step yet.
    pub(crate) unstepped: bool,
    /// Whether a cancel cut a response; the turn can only close.
    pub(crate) cut: bool,
    /// Whether the last step that closed has a whole response; `true` while there was none.
    pub(crate) settled_last: bool,
    /// What `prompt/blocked` named.
    pub(crate) blocked: Vec<ItemId>,
}

/// A closed turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    /// Its number.
    pub turn: Turn,
    /// Its `turn/start`.
    pub started: Seq,
    /// Its `turn/end`.
    pub ended: Seq,
    /// How it ended.
    pub reason: TurnReason,
    /// How many steps it had.
    pub steps: u32,
    /// Tokens.
    pub usage: Usage,
    /// Its last `assistant/message` with visible text that no cancel cut: the answer.
    pub answer: Option<Seq>,
}

/// The last `session/opened`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedRow {
    /// Where.
    pub seq: Seq,
    /// Why.
    pub reason: OpenReason,
    /// Which opening.
    pub epoch: Epoch,
    /// Whether anything but repair closers followed (Z10).
    pub worked_since: bool,
    /// Whether a header followed.
    pub header_since: bool,
}

/// The fold of a log, checked while folded.
#[derive(Debug, Clone)]
pub struct LogState {
    pub(crate) session: SessionId,
    pub(crate) next_seq: Seq,
    pub(crate) last_time_ms: i64,
    pub(crate) opened: Option<OpenedRow>,
    pub(crate) next_turn: Vector<PendingItem>,
    pub(crate) next_step: Vector<PendingItem>,
    pub(crate) fates: OrdMap<ItemId, ItemFate>,
    pub(crate) by_message: OrdMap<MessageId, ItemId>,
    pub(crate) queued: OrdMap<ItemId, QueuedRow>,
    pub(crate) surface: Vector<Node>,
    pub(crate) generation: u64,
    pub(crate) header: Option<Arc<RequestHeader>>,
    pub(crate) context: Option<Arc<RequestContext>>,
    pub(crate) turn: Option<OpenTurn>,
    pub(crate) turns: Vector<TurnRow>,
    pub(crate) usage: Usage,
    pub(crate) title: Option<Arc<str>>,
    /// The newest system node, which is the live one (I-22).
    pub(crate) live_system: Option<Arc<Event>>,
    /// What must directly follow.
    pub(crate) expect: check::Expect,
    /// The item that the last event withdrew; queued again directly behind, it was moved (Z2).
    pub(crate) withdrawn: Option<PendingItem>,
    /// Most calls that may be open at once (I-20); not checked where it is not known.
    pub(crate) max_parallel: Option<u32>,
}

impl LogState {
    /// The fold of the empty log of `session`.
    pub fn empty(session: SessionId) -> Self {
        Self {
            session,
            next_seq: Seq(0),
            last_time_ms: 0,
            opened: None,
            next_turn: Vector::new(),
            next_step: Vector::new(),
            fates: OrdMap::new(),
            by_message: OrdMap::new(),
            queued: OrdMap::new(),
            surface: Vector::new(),
            generation: 0,
            header: None,
            context: None,
            turn: None,
            turns: Vector::new(),
            usage: Usage::default(),
            title: None,
            live_system: None,
            expect: check::Expect::Nothing,
            withdrawn: None,
            max_parallel: None,
        }
    }

    /// The same, with I-20 checked from now on: at most `cap` calls are open at once.
    #[must_use]
    pub fn with_max_parallel(mut self, cap: u32) -> Self {
        self.max_parallel = Some(cap);
        self
    }

    /// Whose log it is.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The seq that the next event gets.
    pub fn next_seq(&self) -> Seq {
        self.next_seq
    }

    /// Time of the last event, 0 when there is none. Repair uses it (B-10).
    pub fn last_time_ms(&self) -> i64 {
        self.last_time_ms
    }

    /// The last `session/opened`.
    pub fn opened(&self) -> Option<&OpenedRow> {
        self.opened.as_ref()
    }

    /// Items that wait for a turn of their own, in order.
    pub fn next_turn(&self) -> &Vector<PendingItem> {
        &self.next_turn
    }

    /// Items that wait for the next claim of any kind, in order.
    pub fn next_step(&self) -> &Vector<PendingItem> {
        &self.next_step
    }

    /// What became of an item.
    pub fn fate(&self, item: &ItemId) -> Option<&ItemFate> {
        self.fates.get(item)
    }

    /// Where and how an item came in, whatever became of it.
    pub fn queued_at(&self, item: &ItemId) -> Option<QueuedRow> {
        self.queued.get(item).copied()
    }

    /// The last item that carried this message id.
    pub fn item_of_message(&self, message: &MessageId) -> Option<&ItemId> {
        self.by_message.get(message)
    }

    /// The nodes that the model would see now.
    pub fn surface(&self) -> &Vector<Node> {
        &self.surface
    }

    /// Raised each time a replace of non-system nodes commits.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The last request header.
    pub fn header(&self) -> Option<&Arc<RequestHeader>> {
        self.header.as_ref()
    }

    /// The last route context.
    pub fn context(&self) -> Option<&Arc<RequestContext>> {
        self.context.as_ref()
    }

    /// The open turn.
    pub fn open_turn(&self) -> Option<&OpenTurn> {
        self.turn.as_ref()
    }

    /// The number of the last turn, open or closed; 0 when there was none.
    pub fn last_turn(&self) -> Turn {
        match (&self.turn, self.turns.last()) {
            (Some(open), _) => open.turn,
            (None, Some(row)) => row.turn,
            (None, None) => Turn(0),
        }
    }

    /// The closed turns.
    pub fn turns(&self) -> &Vector<TurnRow> {
        &self.turns
    }

    /// Tokens of all settled attempts.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

impl LogState {
    /// The name that a person or a plugin gave it last.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// The system node that counts: the newest (I-22).
    pub fn live_system(&self) -> Option<&Arc<Event>> {
        self.live_system.as_ref()
    }

    /// An item that waits.
    pub fn pending(&self, item: &ItemId) -> Option<&PendingItem> {
        match self.fates.get(item)? {
            ItemFate::Pending => self.next_turn.iter().chain(&self.next_step).find(|pending| pending.item.id == *item),
            ItemFate::Claimed(_)
            | ItemFate::Admitted(_)
            | ItemFate::Blocked(_)
            | ItemFate::Unadmitted(_)
            | ItemFate::Removed => None,
        }
    }

    /// What the index says of this log.
    pub fn summary(&self, header: &SessionHeader) -> SessionSummary {
        let count = |list: &Vector<PendingItem>| u32::try_from(list.len()).unwrap_or(u32::MAX);
        SessionSummary {
            session: self.session.clone(),
            agent: header.agent.clone(),
            created_at_ms: header.created_at_ms,
            updated_at_ms: self.last_time_ms,
            last_seq: Seq(self.next_seq.0.saturating_sub(1)),
            open_turn: self.turn.as_ref().map(|turn| turn.turn),
            turns: self.last_turn().0,
            last_reason: self.turns.last().map(|row| row.reason.clone()),
            pending_next_turn: count(&self.next_turn),
            pending_next_step: count(&self.next_step),
            usage: self.usage,
            title: self.title.as_deref().map(str::to_owned),
            labels: header.labels.clone(),
        }
    }
}
