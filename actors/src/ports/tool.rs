//! Tools and the policies around them (6).

use super::{ExtensionError, Signal};
use async_trait::async_trait;
use everturn_storage::{
    RawJson,
    event::ToolSpec,
    ids::{CallId, SessionId, Step, Turn},
    message::Block,
};
use std::sync::{Arc, Mutex};

/// What a tool says of a repeated run with the same arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Idempotency {
    /// A repeat may do the work twice.
    #[default]
    None,
    /// A repeat is safe.
    Safe,
    /// A repeat with the same key is safe.
    Keyed,
}

/// A tool. Arguments reach it as JSON that its schema accepted.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Name, description and argument schema as the model sees them.
    fn spec(&self) -> &ToolSpec;

    /// Whether this call may run beside others. A panic counts as no.
    fn parallel_safe(&self, args: &serde_json::Value) -> bool {
        let _ = args;
        false
    }

    /// Its time budget, in milliseconds of body time.
    fn timeout_ms(&self) -> Option<u64> {
        None
    }

    /// Whether a body that ignores its signal may be let go.
    fn abandonable(&self) -> bool {
        false
    }

    /// What a repeat would do.
    fn idempotency(&self) -> Idempotency {
        Idempotency::None
    }

    /// Does the work. An error is the tool's own text for the model. The future must watch the signal of its context:
    /// it is dropped only with the pool, or some time after the body was let go.
    async fn run(&self, args: serde_json::Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure>;
}

/// What a body gives back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutput {
    /// What the model reads.
    pub content: Vec<Block>,
    /// For user interfaces; never shown to the model.
    pub meta: Option<RawJson>,
}

impl ToolOutput {
    /// Text only.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::text(text)], meta: None }
    }
}

/// The tool's own failure: a result for the model, never a turn failure.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolFailure {
    /// The tool's own code; core codes are not for tools.
    pub code: Option<String>,
    /// What the model reads.
    pub content: Vec<Block>,
    /// For user interfaces.
    pub meta: Option<RawJson>,
}

impl ToolFailure {
    /// A failure with a sentence.
    pub fn text(text: impl Into<String>) -> Self {
        Self { code: None, content: vec![Block::text(text)], meta: None }
    }
}

/// What a body may use and say. It cannot append events.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// Whose call.
    pub session: SessionId,
    /// Which turn.
    pub turn: Turn,
    /// Which step.
    pub step: Step,
    /// Which call; with session, turn and step a stable key for the outside world.
    pub call_id: CallId,
    /// Fires on cancel and on time-out.
    pub signal: Signal,
    notes: Arc<Mutex<ToolNotes>>,
}

/// What a body said beside its output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolNotes {
    /// Contexts for the next step.
    pub contexts: Vec<String>,
    /// Whether the model need not be asked again because of the results.
    pub conclude: bool,
}

impl ToolContext {
    /// A context for one call.
    pub fn new(session: SessionId, turn: Turn, step: Step, call_id: CallId, signal: Signal) -> Self {
        Self { session, turn, step, call_id, signal, notes: Arc::default() }
    }

    /// Adds a text that the model sees with the next step, behind all results of the batch.
    pub fn add_context(&self, text: impl Into<String>) {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).contexts.push(text.into());
    }

    /// Asks that the turn end without another request because of this batch.
    pub fn conclude_turn(&self) {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).conclude = true;
    }

    /// What was said so far.
    pub fn notes(&self) -> ToolNotes {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// A call as policies see it; they cannot change it.
#[derive(Debug, Clone, PartialEq)]
pub struct CallView {
    /// Whose call.
    pub session: SessionId,
    /// Which turn.
    pub turn: Turn,
    /// Which step.
    pub step: Step,
    /// Which call.
    pub call_id: CallId,
    /// The tool.
    pub name: String,
    /// Validated arguments.
    pub args: serde_json::Value,
}

/// What a pre-policy says; the strictest of all members counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolVerdict {
    /// No objection.
    Allow,
    /// A person has to say. Without anybody to ask it counts as a refusal.
    Ask,
    /// Refused.
    Deny {
        /// For the model.
        reason: String,
    },
}

/// What a post-policy does with a result.
#[derive(Debug, Clone, PartialEq)]
pub enum PostVerdict {
    /// Nothing.
    Accept,
    /// Another content in its place.
    Replace {
        /// What the model reads.
        content: Vec<Block>,
    },
    /// The model does not see it.
    Block {
        /// Why, for the model.
        reason: String,
    },
}

/// A policy around tools. A panic or an error refuses the call (`POLICY_ERROR`).
#[async_trait]
pub trait ToolPolicy: Send + Sync + 'static {
    /// Before the body, in model order.
    async fn before(&self, call: &CallView, signal: &Signal) -> Result<ToolVerdict, ExtensionError> {
        let _ = (call, signal);
        Ok(ToolVerdict::Allow)
    }

    /// After the body, in model order.
    async fn after(&self, call: &CallView, content: &[Block], is_error: bool) -> Result<PostVerdict, ExtensionError> {
        let _ = (call, content, is_error);
        Ok(PostVerdict::Accept)
    }
}
