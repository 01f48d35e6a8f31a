//! What goes into the window of one batch, and what comes out of it.

use crate::{
    limits::Limits,
    ports::tool::{PostVerdict, ToolFailure, ToolNotes, ToolOutput},
    protocol::AppendError,
};
use everturn_storage::{
    event::EventBody,
    ids::{Seq, Step, Turn},
    log::CallRow,
    message::Block,
};

/// The codes of 6.5 that the pool itself gives. Tools have their own, with a prefix.
pub mod code {
    #![allow(missing_docs)]
    pub use everturn_storage::log::tools::{ABORTED_BEFORE_DISPATCH, TOOL_NOT_STARTED, TOOL_OUTCOME_UNKNOWN};

    pub const UNKNOWN_TOOL: &str = "UNKNOWN_TOOL";
    pub const INVALID_ARGS: &str = "INVALID_ARGS";
    pub const DENIED: &str = "DENIED";
    pub const POLICY_ERROR: &str = "POLICY_ERROR";
    pub const CHECKPOINT_FAILED: &str = "CHECKPOINT_FAILED";
    pub const ABORTED: &str = "ABORTED";
    pub const TOOL_TIMEOUT: &str = "TOOL_TIMEOUT";
    pub const TOOL_PANIC: &str = "TOOL_PANIC";
    pub const INVALID_TOOL_OUTPUT: &str = "INVALID_TOOL_OUTPUT";
    pub const BLOCKED: &str = "BLOCKED";

    /// All of them: no tool may give one as its own.
    pub const CORE: &[&str] = &[
        UNKNOWN_TOOL,
        INVALID_ARGS,
        DENIED,
        POLICY_ERROR,
        CHECKPOINT_FAILED,
        ABORTED_BEFORE_DISPATCH,
        ABORTED,
        TOOL_TIMEOUT,
        TOOL_PANIC,
        INVALID_TOOL_OUTPUT,
        BLOCKED,
        TOOL_NOT_STARTED,
        TOOL_OUTCOME_UNKNOWN,
    ];
}

/// What a batch is and how it may run.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchConfig {
    /// The turn.
    pub turn: Turn,
    /// The step.
    pub step: Step,
    /// The settled message's calls, in model order; none is logged yet.
    pub calls: Vec<CallRow>,
    /// Most calls that may be logged and have no result (I-20); 0 counts as 1.
    pub max_parallel: usize,
    /// Whether there is any policy to ask.
    pub policies: bool,
    /// Whether bodies wait for CP-X (K-4).
    pub checkpoint: bool,
    /// Budget of tools that declare none.
    pub default_timeout_ms: Option<u64>,
    /// How long an abandonable body may ignore a cancel.
    pub abandon_after_ms: Option<u64>,
    /// Longest text that the model gets of one result.
    pub inline_limit_bytes: usize,
}

impl BatchConfig {
    /// A batch under `limits`, with checkpoints and without policies.
    pub fn new(turn: Turn, step: Step, calls: Vec<CallRow>, limits: &Limits) -> Self {
        Self {
            turn,
            step,
            calls,
            max_parallel: limits.max_parallel_tool_calls,
            policies: false,
            checkpoint: true,
            default_timeout_ms: limits.tool_default_timeout_ms,
            abandon_after_ms: limits.tool_abandon_after_ms,
            inline_limit_bytes: limits.tool_inline_limit_bytes,
        }
    }
}

/// Whether a call may run beside others. It stands in `tool/result.meta.class` (Z13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Beside other parallel ones.
    Parallel,
    /// Alone.
    Exclusive,
}

impl Class {
    /// As it stands in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Exclusive => "exclusive",
        }
    }
}

/// What is known of a call when its start is considered (steps 1 and 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// The tool is known and takes the arguments.
    Runnable {
        /// Whether it said, just now, that this call may run beside others.
        parallel: bool,
        /// The tool's own budget.
        timeout_ms: Option<u64>,
        /// Whether its body may be let go.
        abandonable: bool,
    },
    /// The call is logged and gets an error result; nothing runs. Such a call is exclusive.
    Refused {
        /// [`code::UNKNOWN_TOOL`] or [`code::INVALID_ARGS`].
        code: &'static str,
        /// For the model.
        text: String,
    },
}

/// What the policies in front of a body said; the strictest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No objection.
    Allow,
    /// A person would have to say, and there is nobody to ask.
    Unavailable,
    /// Refused.
    Deny {
        /// For the model.
        reason: String,
    },
    /// A policy failed: a refusal too.
    Failed {
        /// What failed.
        why: String,
    },
}

/// How a body ended.
#[derive(Debug, Clone, PartialEq)]
pub enum BodyEnd {
    /// With a result.
    Ok(ToolOutput, ToolNotes),
    /// With the tool's own error.
    Failed(ToolFailure, ToolNotes),
    /// By a panic.
    Panicked,
}

/// A wait that the window asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The next try of an append.
    Retry,
    /// The budget of a body.
    Budget(usize),
    /// What a body gets to return in after its budget.
    Grace(usize),
    /// What an abandonable body gets to return in after a cancel.
    Abandon(usize),
    /// The next report of a body that ignores its signal.
    Warning(usize),
}

/// What happens to a batch. `index` is the place of a call in model order.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Begin; the first input.
    Start {
        /// Whether the signal had fired already.
        cancelled: bool,
    },
    /// Answers [`Effect::Classify`].
    Classified {
        /// Which call.
        index: usize,
        /// What is known of it.
        shape: Shape,
    },
    /// The append is committed.
    Appended {
        /// Seq of its first event.
        first: Seq,
    },
    /// The append is not committed.
    AppendFailed {
        /// Why.
        error: AppendError,
    },
    /// CP-X is through.
    Durable {
        /// What is durable now.
        upto: Seq,
    },
    /// CP-X is not.
    CheckpointFailed,
    /// Answers [`Effect::AskPolicy`].
    Decided {
        /// Which call.
        index: usize,
        /// What was said.
        verdict: Verdict,
    },
    /// A body has returned.
    BodyDone {
        /// Which call.
        index: usize,
        /// How.
        end: BodyEnd,
        /// Whether its signal had fired when it returned.
        signalled: bool,
    },
    /// Answers [`Effect::AskPost`]; an error says which policy failed.
    Posted {
        /// Which call.
        index: usize,
        /// What was said.
        verdict: Result<PostVerdict, String>,
    },
    /// A wait is over.
    Timer(Timer),
    /// The signal of the turn has fired.
    Cancel,
}

/// What has to be done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Say what is known of a call, now and without waiting; the answer is the next input.
    Classify {
        /// Which call.
        index: usize,
    },
    /// Commit one atomic batch. At most one is under way.
    Append {
        /// What happened.
        events: Vec<EventBody>,
    },
    /// Make everything up to here durable (CP-X). At most one is under way.
    Checkpoint {
        /// The last event that must be durable.
        upto: Seq,
    },
    /// Ask the policies in front of the body.
    AskPolicy {
        /// Which call.
        index: usize,
    },
    /// Ask the policies behind the body.
    AskPost {
        /// Which call.
        index: usize,
        /// Its result.
        content: Vec<Block>,
        /// Whether it tells of a failure.
        is_error: bool,
    },
    /// Run a body with the arguments of the last [`Effect::Classify`] of this call.
    RunBody {
        /// Which call.
        index: usize,
    },
    /// Fire the signal of one body.
    FireSignal {
        /// Which call.
        index: usize,
    },
    /// Report [`Input::Timer`] after this long.
    ArmTimer {
        /// Which.
        timer: Timer,
        /// How long.
        after_ms: u64,
    },
    /// Let a body go; its result is decided.
    Abandon {
        /// Which call.
        index: usize,
    },
    /// Tell people who watch.
    Notice {
        /// What it is about.
        code: &'static str,
        /// A sentence.
        message: String,
    },
    /// Every call has its result. The last effect.
    Done {
        /// Whether a successful call concluded the turn.
        concluded: bool,
        /// Whether the signal fired before the last result was logged.
        aborted: bool,
    },
    /// A record could not be written. No body runs any more. The last effect.
    Fault {
        /// What the journal said.
        error: AppendError,
    },
}

impl Effect {
    /// The fail-point that the pool passes before it does this.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Classify { .. } => "pool.classify",
            Self::Append { .. } => "pool.append",
            Self::Checkpoint { .. } => "pool.checkpoint",
            Self::AskPolicy { .. } => "pool.ask_policy",
            Self::AskPost { .. } => "pool.ask_post",
            Self::RunBody { .. } => "pool.run_body",
            Self::FireSignal { .. } => "pool.fire_signal",
            Self::ArmTimer { .. } => "pool.arm_timer",
            Self::Abandon { .. } => "pool.abandon",
            Self::Notice { .. } => "pool.notice",
            Self::Done { .. } => "pool.done",
            Self::Fault { .. } => "pool.fault",
        }
    }
}
