//! What the actors need of the world, as traits that the edge implements.

pub mod clock;
pub mod extension;
pub mod model;
pub mod profile;
pub mod signal;
pub mod tool;

pub use clock::World;
pub use extension::{
    Assembly, BatchMessage, Decision, ExtensionError, PreStep, Proposed, Recovery, RecoveryVerdict, RequestPolicy,
    Stopping,
};
pub use model::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared};
pub use profile::{AgentProfile, Profiles, Section};
pub use signal::Signal;
pub use tool::{Tool, ToolContext, ToolOutput, ToolPolicy, ToolVerdict};
