//! What the machine wants done. An effect that touches the world leaves only when its cause is durable.

use super::input::Token;
use crate::{
    handle::Frame,
    ports::{Proposed, extension::Failed},
    protocol::{CheckpointFailed, CheckpointKind, Phase},
};
use everturn_storage::{
    event::{AttemptId, EventBody, RequestConfig, TurnReason},
    ids::{Attempt, Proposal, Seq, Step, Turn},
    log::{CallRow, LogState, request::ModelRequest},
};
use std::sync::Arc;

/// One thing to do. Effects are done in their order.
#[derive(Debug)]
pub enum Effect {
    /// Ask the agent for a turn (D1, D2).
    AskOpenTurn {
        /// For the answer.
        token: Token,
    },
    /// Render sections and tools (S1).
    Assemble {
        /// For the answer.
        token: Token,
        /// The turn.
        turn: Turn,
        /// The number that the step gets if it enters.
        step: Step,
    },
    /// Ask the pre-step chain (S2).
    AskPreStep {
        /// For the answer.
        token: Token,
        /// What about.
        proposed: Box<Proposed>,
    },
    /// Ask the request waterfall (S5).
    AskRequest {
        /// For the answer.
        token: Token,
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// The attempt.
        attempt: Attempt,
    },
    /// Ask the route (S6). The prepared call is kept for the next `Dispatch` and used once (L-4).
    Prepare {
        /// For the answer.
        token: Token,
        /// Settings as proposed.
        config: RequestConfig,
        /// The content modalities that the request will use.
        modalities: Vec<String>,
    },
    /// Append one atomic batch; class `Closing`, for the turn is open.
    Append {
        /// For the answer.
        token: Token,
        /// What happened.
        events: Vec<EventBody>,
    },
    /// Ask for a checkpoint.
    Checkpoint {
        /// For the answer.
        token: Token,
        /// Which.
        kind: CheckpointKind,
        /// The last event that must be durable.
        upto: Seq,
    },
    /// Send the frozen request with the prepared call (S10).
    Dispatch {
        /// For the settlement.
        token: Token,
        /// Which attempt.
        attempt: AttemptId,
        /// The request, derived from the log (T-11).
        request: ModelRequest,
    },
    /// End the stream; its settlement is still awaited (L-20).
    AbortAttempt {
        /// Which dispatch.
        token: Token,
    },
    /// Nobody waits for the answer of this question any more: end its task, drop its timer.
    Abandon {
        /// Which.
        token: Token,
    },
    /// Ask the recovery chain (5.6).
    AskRecovery {
        /// For the answer.
        token: Token,
        /// What about.
        failed: Box<Failed>,
    },
    /// Wait.
    ArmTimer {
        /// For the answer.
        token: Token,
        /// How long, in milliseconds.
        delay_ms: u64,
    },
    /// Have the tool pool run the calls, or record them as skipped when the signal has fired (S12, P11).
    RunBatch {
        /// For the answer.
        token: Token,
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// The calls in model order; none is logged yet.
        calls: Vec<CallRow>,
        /// The `assistant/message`.
        message: Seq,
    },
    /// Ask the agent whether there is more for this turn (S14).
    AskClaimStep {
        /// For the answer.
        token: Token,
        /// The turn.
        turn: Turn,
        /// Number of the next proposal.
        proposal: Proposal,
        /// Number that its step would get.
        step: Step,
        /// Whether tool results force a step (T-15).
        owed: bool,
        /// The machine's view.
        view: Arc<LogState>,
    },
    /// Ask the stopping chain (S15).
    AskStopping {
        /// For the answer.
        token: Token,
        /// The turn.
        turn: Turn,
    },
    /// Tell watchers.
    Publish(Frame),
    /// Tell the agent what the driver does now.
    TellPhase {
        /// It.
        phase: Phase,
        /// The machine's view.
        view: Arc<LogState>,
    },
    /// `turn/end` is logged: tell the agent.
    TurnEnded {
        /// The turn.
        turn: Turn,
        /// How it ended.
        reason: TurnReason,
        /// The machine's view.
        view: Arc<LogState>,
    },
    /// CP-T has settled: tell the agent.
    TurnSettled {
        /// The turn.
        turn: Turn,
        /// Whether it is durable.
        outcome: Result<Seq, CheckpointFailed>,
    },
    /// The turn could not be closed: tell the agent. Nothing follows.
    Fault {
        /// Why.
        why: String,
    },
}

impl Effect {
    /// The fail-point that the driver passes before it does this.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::AskOpenTurn { .. } => "driver.ask_open_turn",
            Self::Assemble { .. } => "driver.assemble",
            Self::AskPreStep { .. } => "driver.ask_pre_step",
            Self::AskRequest { .. } => "driver.ask_request",
            Self::Prepare { .. } => "driver.prepare",
            Self::Append { .. } => "driver.append",
            Self::Checkpoint { .. } => "driver.checkpoint",
            Self::Dispatch { .. } => "driver.dispatch",
            Self::AbortAttempt { .. } => "driver.abort_attempt",
            Self::Abandon { .. } => "driver.abandon",
            Self::AskRecovery { .. } => "driver.ask_recovery",
            Self::ArmTimer { .. } => "driver.arm_timer",
            Self::RunBatch { .. } => "driver.run_batch",
            Self::AskClaimStep { .. } => "driver.ask_claim_step",
            Self::AskStopping { .. } => "driver.ask_stopping",
            Self::Publish(_) => "driver.publish",
            Self::TellPhase { .. } => "driver.tell_phase",
            Self::TurnEnded { .. } => "driver.turn_ended",
            Self::TurnSettled { .. } => "driver.turn_settled",
            Self::Fault { .. } => "driver.fault",
        }
    }
}
