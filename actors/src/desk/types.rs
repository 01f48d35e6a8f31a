//! What goes into the desk and what comes out of it.

use crate::{
    handle::{CancelReport, DisposeMode, Frame, KeptItems, OpError, Receipt, Submit},
    limits::{Limits, TurnErrorPolicy},
    ports::AgentProfile,
    protocol::{
        AppendClass, AppendError, Appended, CheckpointFailed, CheckpointKind, ClaimStepAnswer, ClaimedBatch, Phase,
    },
    system::Awaited,
};
use everturn_storage::{
    event::{Cause, EventBody, Target, TurnReason},
    ids::{ItemId, Proposal, Seq, Step, Turn},
    log::LogState,
    message::Block,
};
use std::sync::Arc;

/// Whom to answer; made by the caller, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// Names one append, checkpoint or timer of the desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The settings that the desk follows. They may change from input to input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Whether steering is accepted as steering; otherwise it is a send (Z16).
    pub steering: bool,
    /// Most items that wait.
    pub inbox_capacity: usize,
    /// Largest message, in bytes.
    pub message_max_bytes: usize,
    /// Restores beyond which an item is poison (B-16).
    pub claim_restore_limit: u32,
    /// What happens behind a turn that ended in an error.
    pub turn_error_policy: TurnErrorPolicy,
}

impl Rules {
    /// The settings of a profile.
    pub fn of(profile: &AgentProfile) -> Self {
        let Limits { inbox_capacity, message_max_bytes, claim_restore_limit, turn_error_policy, .. } = profile.limits;
        Self { steering: profile.steering, inbox_capacity, message_max_bytes, claim_restore_limit, turn_error_policy }
    }
}

/// What callers ask for.
#[derive(Debug, Clone)]
pub enum Op {
    /// Accept a message.
    Submit {
        /// The message.
        submit: Submit,
        /// A fresh id, for a message without one and for an item whose message id was withdrawn before.
        fresh: String,
    },
    /// Put another content in the place of a waiting item's.
    Edit {
        /// The item.
        item: ItemId,
        /// What it shall say.
        content: Vec<Block>,
    },
    /// Remove waiting items, all or none.
    Remove {
        /// The items.
        items: Vec<ItemId>,
    },
    /// Put one list in another order.
    Reorder {
        /// The list.
        list: Target,
        /// A permutation of it.
        items: Vec<ItemId>,
    },
    /// Move an item to the other list.
    Move {
        /// The item.
        item: ItemId,
        /// Where to.
        target: Target,
    },
    /// Make what is parked eligible.
    Wake,
    /// Cancel the running turn, and clear or keep what waits.
    Cancel {
        /// Who asks.
        cause: Cause,
        /// What happens to what waits.
        kept: KeptItems,
    },
    /// Put the agent away.
    Dispose {
        /// How.
        mode: DisposeMode,
    },
    /// Begin exclusive work that is no turn.
    Maintain,
}

/// What happens to the desk.
#[derive(Debug)]
pub enum Input {
    /// The agent exists; what waits may run.
    Booted,
    /// A caller asks.
    Op {
        /// For what.
        op: Op,
        /// Whom to answer.
        reply: ReplyId,
    },
    /// A caller waits for quiescence.
    WhenIdle {
        /// Whom to answer.
        reply: ReplyId,
    },
    /// A caller waits for the end of an item.
    AwaitItem {
        /// The item.
        item: ItemId,
        /// Whom to answer.
        reply: ReplyId,
    },
    /// Maintenance ended.
    Maintained {
        /// Whom to answer once it is durable.
        reply: ReplyId,
    },
    /// Take nothing new: the process is about to end. Open steps may end.
    Drain,
    /// The driver could start a turn.
    OpenTurn {
        /// Whom to answer.
        reply: ReplyId,
    },
    /// The driver asks for more for its turn.
    ClaimStep {
        /// The turn.
        turn: Turn,
        /// Number of the next proposal.
        proposal: Proposal,
        /// Number that its step would get.
        step: Step,
        /// Whether tool results force a step.
        owed: bool,
        /// The driver's view.
        view: Arc<LogState>,
        /// Whom to answer.
        reply: ReplyId,
    },
    /// What the driver does now.
    Phase {
        /// The phase.
        phase: Phase,
        /// The driver's view.
        view: Arc<LogState>,
    },
    /// `turn/end` is logged.
    TurnEnded {
        /// The turn.
        turn: Turn,
        /// How it ended.
        reason: TurnReason,
        /// The driver's view.
        view: Arc<LogState>,
    },
    /// CP-T has settled.
    TurnSettled {
        /// The turn.
        turn: Turn,
        /// Whether it is durable.
        outcome: Result<Seq, CheckpointFailed>,
    },
    /// The driver, or the journal, cannot go on.
    Fault {
        /// Why.
        why: String,
    },
    /// The answer to [`Output::Append`].
    Appended {
        /// Which.
        token: Token,
        /// What came of it.
        result: Result<Appended, AppendError>,
    },
    /// The answer to [`Output::Checkpoint`].
    Settled {
        /// Which.
        token: Token,
        /// What came of it.
        outcome: Result<Seq, CheckpointFailed>,
    },
    /// A timer ended.
    Timer {
        /// Which.
        token: Token,
    },
    /// Somebody committed something.
    Committed(Arc<LogState>),
    /// The store failed.
    StoreDown,
    /// The store works again.
    StoreUp,
}

/// Why a message is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicate {
    /// Its item waits.
    Pending,
    /// Its item was taken, or removed.
    Consumed,
}

/// What callers are answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Accepted and durable.
    Receipt(Receipt),
    /// The message is known; the item tells what became of it.
    Duplicate {
        /// Its item.
        item: ItemId,
        /// Which kind.
        kind: Duplicate,
    },
    /// What a cancel did.
    Cancelled(CancelReport),
    /// Done, and durable where there is something to keep.
    Done,
    /// Exclusive work may begin.
    Granted,
    /// Quiescent, or faulted.
    Idle(Option<String>),
    /// How an item ended.
    Awaited(Awaited),
    /// Refused; nothing was done, except where the error says otherwise.
    Refused(OpError),
}

/// What to do, in order.
#[derive(Debug)]
pub enum Output {
    /// Commit these events.
    Append {
        /// Names the answer.
        token: Token,
        /// What happens.
        events: Vec<EventBody>,
        /// Whether it begins or closes.
        class: AppendClass,
    },
    /// Make the log durable up to `upto`.
    Checkpoint {
        /// Names the answer.
        token: Token,
        /// Which.
        kind: CheckpointKind,
        /// The last event.
        upto: Seq,
    },
    /// Come back after this time.
    ArmTimer {
        /// Names the timer.
        token: Token,
        /// How long, in milliseconds.
        delay_ms: u64,
    },
    /// Tell the driver that something may be eligible.
    WakeDriver,
    /// Fire the signal of this turn and tell the driver.
    FireSignal {
        /// The turn.
        turn: Turn,
        /// Why.
        cause: Cause,
    },
    /// Fire the signal of the running maintenance.
    FireMaintenance {
        /// Why.
        cause: Cause,
    },
    /// A turn is open; it gets a fresh signal.
    Opened {
        /// Whom to answer.
        reply: ReplyId,
        /// The turn.
        turn: Turn,
        /// Its first claim.
        batch: ClaimedBatch,
    },
    /// Nothing is eligible and the driver stops.
    NothingOpened {
        /// Whom to answer.
        reply: ReplyId,
    },
    /// The answer to a driver that asked for more.
    Claimed {
        /// Whom to answer.
        reply: ReplyId,
        /// What it gets.
        answer: ClaimStepAnswer,
    },
    /// The answer to a caller.
    Answer {
        /// Whom.
        reply: ReplyId,
        /// What.
        answer: Answer,
    },
    /// Tell watchers.
    Notify(Frame),
    /// The agent is put away; nothing more comes.
    Disposed,
    /// Only a restart through repair helps.
    Fault {
        /// Why.
        why: String,
    },
}

impl Output {
    /// The fail-point that the agent passes before it does this.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Append { .. } => "agent.append",
            Self::Checkpoint { .. } => "agent.checkpoint",
            Self::ArmTimer { .. } => "agent.arm_timer",
            Self::WakeDriver => "agent.wake_driver",
            Self::FireSignal { .. } => "agent.fire_signal",
            Self::FireMaintenance { .. } => "agent.fire_maintenance",
            Self::Opened { .. } => "agent.opened",
            Self::NothingOpened { .. } => "agent.nothing_opened",
            Self::Claimed { .. } => "agent.claimed",
            Self::Answer { .. } => "agent.answer",
            Self::Notify(_) => "agent.notify",
            Self::Disposed => "agent.disposed",
            Self::Fault { .. } => "agent.fault",
        }
    }
}
