//! The model seam (5): prepare and dispatch.

use super::Signal;
use crate::limits::RetryLimits;
use async_trait::async_trait;
use everturn_storage::{
    chunk::Chunk,
    event::{RequestConfig, SystemUpdate},
    log::request::ModelRequest,
    message::Failure,
};
use futures::stream::BoxStream;

/// What a step proposes to ask for. Explicit values are never changed by the adapter (L-2).
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareRequest {
    /// Whose request it is; a scripted adapter keeps its place by it.
    pub session: everturn_storage::ids::SessionId,
    /// Settings as proposed.
    pub config: RequestConfig,
    /// The content modalities that the request will use, such as `text` and `image`.
    pub modalities: Vec<String>,
}

/// A call that the route accepted: bound to one adapter generation, usable once (L-4).
pub struct Prepared {
    /// Completed settings.
    pub config: RequestConfig,
    /// The fields of `config` that the adapter filled in.
    pub defaulted: Vec<String>,
    /// How many tokens fit.
    pub context_window: Option<u64>,
    /// What the route takes in.
    pub input_modalities: Option<Vec<String>>,
    /// How the route reads a changed system prompt.
    pub system_update: SystemUpdate,
    /// The provider's own retry policy, when it has one.
    pub retry: Option<RetryLimits>,
    /// The call.
    pub call: Box<dyn Dispatch>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Chunks that end in exactly one [`Chunk::Finish`]; anything else is judged by the consumer (5.4).
pub type ChunkStream = BoxStream<'static, Chunk>;

/// The second half of a prepared call. Moved by value, so that nobody can use it twice.
pub trait Dispatch: Send {
    /// Sends the request. The stream ends with `aborted` soon after the signal fires (L-20); dropping it must
    /// release everything, the connection to the provider included.
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream;
}

/// One generation of one provider.
#[async_trait]
pub trait ModelAdapter: Send + Sync + 'static {
    /// Validates and completes the settings. No provider I/O for what can be refused locally; no side effect on
    /// the session (L-1, L-3). A refusal is a route error: its code closes the turn and nobody retries it (L-5).
    async fn prepare(&self, request: PrepareRequest, signal: Signal) -> Result<Prepared, Failure>;
}
