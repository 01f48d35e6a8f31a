//! What can happen to a turn. Answers carry the token of the effect that asked; time, chance and ids come in here.

use crate::{
    limits::{CheckpointPolicy, RetryLimits},
    ports::{Assembly, Decision, ExtensionError, RecoveryVerdict},
    protocol::{AppendError, Appended, CheckpointFailed, ClaimStepAnswer},
};
use everturn_storage::{
    chunk::StreamRecord,
    event::{Cause, FinishLabel, Item, RequestConfig, SystemUpdate},
    ids::{MessageId, RetryId, Seq, Turn},
    log::LogState,
    message::{Block, Failure, Usage},
};
use std::sync::Arc;

/// Names one question of the machine. Whatever answers with another one is stale: it is dropped and counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What the profile says for one proposal, read anew each time (S1).
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Which checkpoints the turn waits for (7.2).
    pub checkpoint: CheckpointPolicy,
    /// Whether CP-S may be served by the next CP-R or CP-T of the turn: no pre-step, stopping or recovery member
    /// exists that could reach outside in between (Z11).
    pub fold_step_checkpoint: bool,
    /// Most steps of the turn (T-20).
    pub max_steps: Option<u32>,
    /// When to try again, unless the route brings its own policy.
    pub retry: RetryLimits,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            checkpoint: CheckpointPolicy::Semantic,
            fold_step_checkpoint: false,
            max_steps: None,
            retry: RetryLimits::default(),
        }
    }
}

/// What a step is proposed with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assembled {
    /// Instructions and tools; retained for the retries of the step (T-9).
    pub assembly: Assembly,
    /// Bounds and policies.
    pub rules: Rules,
}

/// What the route said of the settings. The call itself stays with the shell, under the same token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteFacts {
    /// Completed settings.
    pub config: RequestConfig,
    /// Which of them the adapter filled in.
    pub defaulted: Vec<String>,
    /// How many tokens fit.
    pub context_window: Option<u64>,
    /// What the route takes in.
    pub input_modalities: Option<Vec<String>>,
    /// How it reads a changed system prompt.
    pub system_update: SystemUpdate,
    /// Its own retry policy.
    pub retry: Option<RetryLimits>,
}

/// Whose failure ended an attempt; it decides who is asked about it (F-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailedBy {
    /// The provider or the transport said so: outcome `failed`, recovery is asked.
    Provider,
    /// The stream broke its grammar: outcome `stream_error`, recovery is asked.
    Stream,
    /// Our own code died on the stream: outcome `stream_error`, recovery is never asked (T-13).
    Consumer,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The stream is complete and says something (or ran into the output limit).
    Finished {
        /// The fold of the stream.
        blocks: Vec<Block>,
        /// How it ended; `Stop`, `ToolUse` or `MaxTokens`.
        finish: FinishLabel,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
        /// By whom.
        by: FailedBy,
    },
    /// The signal cut it. What was visible is in the stream.
    Cancelled,
}

/// What the model port hands over when it has let go of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// How it ended.
    pub outcome: Outcome,
    /// Tokens, where known.
    pub usage: Option<Usage>,
    /// Every chunk with its time.
    pub stream: StreamRecord,
    /// A fresh id for the message, should one be made.
    pub message_id: MessageId,
}

/// One thing that happened.
#[derive(Debug)]
pub enum Input {
    /// Something may be eligible. Only an idle machine needs it.
    Wake,
    /// The agent opened a turn (D2). A signal that fired before counts as [`Input::Cancel`] behind it.
    TurnOpened {
        /// Which question.
        token: Token,
        /// The turn.
        turn: Turn,
        /// Its first claim, in order.
        items: Vec<Arc<Item>>,
        /// The fold right behind it.
        view: Arc<LogState>,
    },
    /// The agent has nothing to open and is idle.
    NothingToOpen {
        /// Which question.
        token: Token,
    },
    /// Sections and tools are rendered (S1), or could not be (T-4).
    Assembled {
        /// Which question.
        token: Token,
        /// Them.
        result: Result<Box<Assembled>, ExtensionError>,
    },
    /// The pre-step chain decided (S2). Its batch is valid (T-5).
    Decided {
        /// Which question.
        token: Token,
        /// The decision; `Pass` leaves the batch as it was claimed.
        result: Result<Decision, ExtensionError>,
        /// The fold behind what members wrote, when any could.
        view: Option<Arc<LogState>>,
    },
    /// The request waterfall proposed (S5).
    RequestProposed {
        /// Which question.
        token: Token,
        /// Settings, or an extension failure with its code (T-7).
        result: Result<RequestConfig, Failure>,
    },
    /// The route accepted (S6).
    Prepared {
        /// Which question.
        token: Token,
        /// What it said.
        facts: Box<RouteFacts>,
        /// A fresh id for the system message, should one be written.
        system_id: MessageId,
    },
    /// The route refused (L-5).
    Refused {
        /// Which question.
        token: Token,
        /// Why.
        failure: Failure,
    },
    /// An append is committed.
    Appended {
        /// Which.
        token: Token,
        /// Where it went.
        appended: Appended,
    },
    /// An append is not committed.
    AppendFailed {
        /// Which.
        token: Token,
        /// Why.
        error: AppendError,
    },
    /// A checkpoint is acknowledged.
    Durable {
        /// Which.
        token: Token,
        /// Up to where.
        seq: Seq,
    },
    /// A checkpoint failed.
    CheckpointFailed {
        /// Which.
        token: Token,
        /// Why.
        error: CheckpointFailed,
    },
    /// The model port has let go of the stream (S11).
    Settled {
        /// Which dispatch.
        token: Token,
        /// What is left of it.
        settlement: Box<Settlement>,
    },
    /// The recovery chain answered (5.6).
    Recovered {
        /// Which question.
        token: Token,
        /// Its verdict.
        result: Result<RecoveryVerdict, ExtensionError>,
        /// Sixty-four random bits for the jitter of a wait.
        random: u64,
        /// A fresh id, should a retry be scheduled.
        retry_id: RetryId,
        /// The fold behind what members wrote, when any could.
        view: Option<Arc<LogState>>,
    },
    /// A wait is over.
    Timer {
        /// Which.
        token: Token,
    },
    /// The batch is done; every call has its result (S12).
    BatchDone {
        /// Which.
        token: Token,
        /// Whether a successful call concluded the turn.
        concluded: bool,
        /// Whether the signal cut it short.
        aborted: bool,
        /// The fold behind the last result.
        view: Arc<LogState>,
    },
    /// The pool could not record the batch.
    BatchFault {
        /// Which.
        token: Token,
        /// What the journal said.
        error: AppendError,
    },
    /// The pool died with the batch (6.10).
    PoolDied {
        /// Which batch.
        token: Token,
        /// The fold behind the last thing that the pool wrote.
        view: Arc<LogState>,
        /// A fresh id; the ids of the results are made from it.
        fresh: String,
    },
    /// The agent answered about more work for the turn (S14).
    ClaimAnswered {
        /// Which question.
        token: Token,
        /// Its answer.
        answer: ClaimStepAnswer,
    },
    /// The stopping chain is through (S15).
    StoppingDone {
        /// Which question.
        token: Token,
        /// Whether all members were content.
        result: Result<(), ExtensionError>,
        /// The fold behind what members wrote or steered, when any could.
        view: Option<Arc<LogState>>,
    },
    /// The signal of a turn fired. One for another turn is dropped.
    Cancel {
        /// The turn.
        turn: Turn,
        /// Why; the first cause stands.
        cause: Cause,
    },
}

impl Input {
    /// The question that it answers, when it is an answer.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Wake | Self::Cancel { .. } => None,
            Self::TurnOpened { token, .. }
            | Self::NothingToOpen { token }
            | Self::Assembled { token, .. }
            | Self::Decided { token, .. }
            | Self::RequestProposed { token, .. }
            | Self::Prepared { token, .. }
            | Self::Refused { token, .. }
            | Self::Appended { token, .. }
            | Self::AppendFailed { token, .. }
            | Self::Durable { token, .. }
            | Self::CheckpointFailed { token, .. }
            | Self::Settled { token, .. }
            | Self::Recovered { token, .. }
            | Self::Timer { token }
            | Self::BatchDone { token, .. }
            | Self::BatchFault { token, .. }
            | Self::PoolDied { token, .. }
            | Self::ClaimAnswered { token, .. }
            | Self::StoppingDone { token, .. } => Some(*token),
        }
    }
}
