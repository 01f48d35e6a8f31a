//! The chains around a step: pre-step, request waterfall, recovery, stopping. Awaited, in order; errors propagate.

use super::Signal;
use async_trait::async_trait;
use everturn_storage::{
    event::{Origin, RequestConfig, ToolSpec},
    ids::{Attempt, ItemId, SessionId, Step, Turn},
    message::{Failure, Message},
};

/// A policy, hook or plugin failed. It closes the turn and is never offered to recovery (F-5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExtensionError(pub String);

/// Rendered instructions and visible tools of a step. Pure; commits nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assembly {
    /// The system prompt; empty for none.
    pub system: String,
    /// Visible tools, sorted by name.
    pub tools: Vec<ToolSpec>,
}

/// One message on its way into history.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchMessage {
    /// What the model will read.
    pub message: Message,
    /// How it came in.
    pub origin: Origin,
    /// The items that it stands for; empty for additions.
    pub items: Vec<ItemId>,
}

/// A proposal on its way through the pre-step chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposed {
    /// Whose.
    pub session: SessionId,
    /// The turn.
    pub turn: Turn,
    /// The number that the step gets if it enters.
    pub step: Step,
    /// The batch.
    pub batch: Vec<BatchMessage>,
    /// Instructions and tools.
    pub assembly: Assembly,
}

/// What a pre-step member says.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing.
    Pass,
    /// Another batch.
    Enter(Vec<BatchMessage>),
    /// No step. Later members are not asked.
    Reject {
        /// Why.
        reason: String,
    },
}

/// Decides whether a step is entered, and with what (S2).
#[async_trait]
pub trait PreStep: Send + Sync + 'static {
    /// Decides. The decision is final for that step (T-5).
    async fn decide(&self, proposal: &Proposed, signal: &Signal) -> Result<Decision, ExtensionError>;
}

/// Proposes settings of a request (S5). It changes settings and nothing else (T-7).
#[async_trait]
pub trait RequestPolicy: Send + Sync + 'static {
    /// The settings to go on with.
    async fn propose(
        &self,
        config: RequestConfig,
        turn: Turn,
        step: Step,
        attempt: Attempt,
    ) -> Result<RequestConfig, ExtensionError>;
}

/// What recovery is asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// Whose.
    pub session: SessionId,
    /// The turn.
    pub turn: Turn,
    /// The step.
    pub step: Step,
    /// The attempt that failed.
    pub attempt: Attempt,
    /// What failed.
    pub failure: Failure,
    /// Generation of the surface at the failed attempt.
    pub generation: u64,
}

/// What a recovery member says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryVerdict {
    /// Not mine.
    Pass,
    /// Try again now, in the same step.
    Retry,
}

/// Asked after a failed attempt settled, before the built-in retry (5.6).
#[async_trait]
pub trait Recovery: Send + Sync + 'static {
    /// The first member that says retry wins.
    async fn recover(&self, failed: &Failed, signal: &Signal) -> Result<RecoveryVerdict, ExtensionError>;
}

/// Asked each time a turn is about to stop because nothing is owed (S15). It may steer.
#[async_trait]
pub trait Stopping: Send + Sync + 'static {
    /// Looks, and perhaps steers.
    async fn stopping(&self, session: &SessionId, turn: Turn, signal: &Signal) -> Result<(), ExtensionError>;
}
