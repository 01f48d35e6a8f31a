//! What the actors of one session say to each other. Each enum is the whole mailbox protocol of its actor as
//! others see it; what an actor tells itself stays in its own file.
//!
//! ```text
//! handle ─▶ agent ◀──▶ driver ─▶ tool pool
//!             │           │  └──▶ model port
//!             └────▶ session journal ◀──┘ (pool too)
//!                         └──▶ journal store ─▶ Store
//! ```

use crate::{handle::Frame, ports::Signal, reply::Reply};
use everturn_storage::{
    event::{Cause, Event, EventBody, Item, TurnReason},
    ids::{Epoch, Proposal, Seq, Step, Turn},
    log::{CallRow, LogState, Violation},
};
use std::sync::Arc;

/// Whether an append begins something or closes what is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendClass {
    /// Accepts input or opens a turn. Refused at once while the store is down.
    Opening,
    /// Goes on with or closes what is open. Accepted in memory while the store is down; the next checkpoint
    /// that succeeds covers it (K-3).
    Closing,
}

/// Why an append was not committed. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It breaks a rule of the log. Trying again cannot help.
    #[error("the journal refused an append: {0}")]
    Refused(#[from] Violation),
    /// The writer belongs to an earlier opening (W-2).
    #[error("the journal refused a writer of an earlier opening")]
    Fenced,
    /// The store is down, or holds too much that is not durable yet.
    #[error("the journal cannot take an append now: {0}")]
    Io(String),
}

/// A committed batch: logged, not yet durable.
#[derive(Debug, Clone)]
pub struct Appended {
    /// Seq of its first event.
    pub first: Seq,
    /// Seq of its last event.
    pub last: Seq,
    /// The fold of the log right behind it.
    pub view: Arc<LogState>,
}

/// A checkpoint failed. What it should have covered stays logged; the next one covers it too (K-3).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint failed: {0}")]
pub struct CheckpointFailed(pub String);

/// Which checkpoint it is (7.2); for reports and measurements only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CheckpointKind {
    /// After `inbox/queued`, before the receipt.
    Accept,
    /// CP-R: after admission, before dispatch.
    Request,
    /// CP-X: after `tool/call`, before the body.
    Execute,
    /// CP-S: after `step/end`.
    Step,
    /// CP-T: after `turn/end`.
    Turn,
    /// CP-M: after maintenance.
    Maintenance,
    /// CP-B: after repair.
    Boot,
    /// CP-D: at disposal.
    Dispose,
}

/// Asks of the session journal. Answers to one asker come in the order of its asks.
#[derive(Debug)]
pub enum JournalRequest {
    /// Commits one atomic batch.
    Append {
        /// The writer's opening.
        epoch: Epoch,
        /// What happened.
        events: Vec<EventBody>,
        /// Whether it begins or closes.
        class: AppendClass,
        /// The answer.
        reply: Reply<Result<Appended, AppendError>>,
    },
    /// Answers once everything up to `upto` is on stable storage, or that it could not be.
    Checkpoint {
        /// Which.
        kind: CheckpointKind,
        /// The last event that must be durable.
        upto: Seq,
        /// The answer; the number is what is durable now, at least `upto`.
        reply: Reply<Result<Seq, CheckpointFailed>>,
    },
    /// The fold as it is now, and what is durable.
    View {
        /// The answer.
        reply: Reply<(Arc<LogState>, Option<Seq>)>,
    },
    /// Events from `from`, as far as they are still in memory, and where memory begins.
    Tail {
        /// First event wanted.
        from: Seq,
        /// The answer.
        reply: Reply<Vec<Arc<Event>>>,
    },
}

/// A way to one session journal that does not depend on its actor type.
#[derive(Clone)]
pub struct JournalLink(Arc<dyn Fn(JournalRequest) + Send + Sync>);

impl JournalLink {
    /// Asks go through `deliver`, which must not block.
    pub fn new(deliver: impl Fn(JournalRequest) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Asks. When the journal is gone nothing comes back; its supervisor ends the asker.
    pub fn ask(&self, request: JournalRequest) {
        (self.0)(request);
    }
}

impl std::fmt::Debug for JournalLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JournalLink")
    }
}

/// What the agent tells the driver.
#[derive(Debug)]
pub enum DriverCommand {
    /// Something may be eligible. A driver that is active already needs none.
    Wake,
    /// The signal of the open turn has fired; observe it now.
    Cancel {
        /// The turn that it was meant for; a cancel for another turn is dropped.
        turn: Turn,
        /// Why; the first cause stands.
        cause: Cause,
    },
}

/// A claim, as the driver gets it.
#[derive(Debug, Clone)]
pub struct ClaimedBatch {
    /// The items in order: next-step items, then at most one next-turn item.
    pub items: Vec<Arc<Item>>,
    /// The fold right behind the claim.
    pub view: Arc<LogState>,
}

/// The agent's answer to [`AgentRequest::OpenTurn`].
#[derive(Debug)]
pub enum OpenTurnAnswer {
    /// `{turn/start, inbox/claimed}` is committed.
    Opened {
        /// The turn.
        turn: Turn,
        /// Its fresh signal.
        signal: Signal,
        /// Its first claim.
        batch: ClaimedBatch,
    },
    /// Nothing is eligible. The agent is idle now, its waiters are released and the driver stops: asking for a
    /// turn and becoming idle are one message, so that no wake is lost between them.
    Idle,
}

/// The agent's answer to [`AgentRequest::ClaimStep`].
#[derive(Debug)]
pub enum ClaimStepAnswer {
    /// There is work: go on with this batch, empty when only tool results are owed.
    Work(ClaimedBatch),
    /// Nothing is owed and nothing waits that would force a step.
    Nothing,
    /// The claim could not be logged.
    Failed(AppendError),
}

/// What the driver asks and tells of the agent. Opening a turn retries a refused append by itself, parks on the
/// journal when that does not help, and wakes the driver again once the journal is back (R14).
#[derive(Debug)]
pub enum AgentRequest {
    /// The driver could start a turn.
    OpenTurn {
        /// The answer.
        reply: Reply<OpenTurnAnswer>,
    },
    /// The step is closed; is there more for this turn (S14)?
    ClaimStep {
        /// The turn.
        turn: Turn,
        /// Number of the next proposal.
        proposal: Proposal,
        /// Number that its step would get.
        step: Step,
        /// Whether tool results force a step.
        owed: bool,
        /// The driver's view, which may be newer than the agent's.
        view: Arc<LogState>,
        /// The answer.
        reply: Reply<ClaimStepAnswer>,
    },
    /// What the driver does now; for the status record.
    Phase {
        /// The phase.
        phase: Phase,
        /// The driver's view.
        view: Arc<LogState>,
    },
    /// `turn/end` is logged. From here on the turn cannot be cancelled or steered.
    TurnEnded {
        /// The turn.
        turn: Turn,
        /// How it ended.
        reason: TurnReason,
        /// The driver's view.
        view: Arc<LogState>,
    },
    /// CP-T has settled. The driver asks for the next turn after this.
    TurnSettled {
        /// The turn.
        turn: Turn,
        /// Whether it is durable.
        outcome: Result<Seq, CheckpointFailed>,
    },
    /// The driver could not close what it opened; only a restart through repair helps.
    Fault {
        /// Why.
        why: String,
    },
}

/// A way to one agent that does not depend on its actor type.
#[derive(Clone)]
pub struct AgentLink(Arc<dyn Fn(AgentRequest) + Send + Sync>);

impl AgentLink {
    /// Asks go through `deliver`, which must not block.
    pub fn new(deliver: impl Fn(AgentRequest) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Asks or tells.
    pub fn tell(&self, request: AgentRequest) {
        (self.0)(request);
    }
}

impl std::fmt::Debug for AgentLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentLink")
    }
}

/// Where live frames go. A sink that panics is left alone: watchers never stop a turn (5.7).
#[derive(Clone)]
pub struct FrameSink(Arc<dyn Fn(Frame) + Send + Sync>);

impl FrameSink {
    /// Frames go through `deliver`, which must not block.
    pub fn new(deliver: impl Fn(Frame) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Shows a frame to whoever watches.
    pub fn send(&self, frame: Frame) {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.0)(frame)));
        if shown.is_err() {
            tracing::warn!("a watcher of live frames panicked");
        }
    }
}

impl std::fmt::Debug for FrameSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameSink")
    }
}

/// Internal phases of an agent (3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// ID.
    Idle,
    /// MT.
    Maintenance,
    /// PA.
    PreAdmission,
    /// ST.
    Streaming,
    /// RW.
    RetryWait,
    /// TL.
    Tools,
    /// BD.
    Boundary,
    /// CK.
    Checkpoint,
    /// DG.
    Disposing,
    /// DD.
    Disposed,
    /// FT.
    Faulted,
}

/// One batch of calls for the tool pool.
#[derive(Debug, Clone)]
pub struct RunBatch {
    /// The turn.
    pub turn: Turn,
    /// The step.
    pub step: Step,
    /// The settled message's calls, in model order; none is logged yet.
    pub calls: Vec<CallRow>,
    /// The `assistant/message`.
    pub message: Seq,
    /// The turn's signal.
    pub signal: Signal,
}

/// How a batch ended. Every call has its result in the log.
#[derive(Debug)]
pub struct BatchDone {
    /// The turn.
    pub turn: Turn,
    /// The step.
    pub step: Step,
    /// Whether a successful call concluded the turn (X-41).
    pub concluded: bool,
    /// Whether the signal cut it short.
    pub aborted: bool,
    /// The fold behind the last result.
    pub view: Arc<LogState>,
}

/// Why a batch could not be recorded: the session is faulted (P11, P12).
#[derive(Debug)]
pub struct BatchFault {
    /// What the journal said.
    pub error: AppendError,
}

/// A way to one tool pool that does not depend on its actor type.
#[derive(Clone)]
pub struct ToolPoolLink(Arc<RunFn>);

type RunFn = dyn Fn(RunBatch, Reply<Result<BatchDone, BatchFault>>) + Send + Sync;

impl ToolPoolLink {
    /// Batches go through `deliver`, which must not block.
    pub fn new(deliver: impl Fn(RunBatch, Reply<Result<BatchDone, BatchFault>>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Has a batch run. A reply that is dropped unanswered means that the pool died with the batch (6.10).
    pub fn run(&self, batch: RunBatch, reply: Reply<Result<BatchDone, BatchFault>>) {
        (self.0)(batch, reply);
    }
}

impl std::fmt::Debug for ToolPoolLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToolPoolLink")
    }
}
