//! Providers of models: everything that is particular to one of them stays in here (CONTRACT 5).
//!
//! ```text
//! config ─ build ─ script                      answers from a file
//!              ├── openai ────┐ request: history → body      (pure)
//!              └── anthropic ─┤ response: events → chunks    (pure)
//!                             └ exchange: one request and its answer, over client, gate and secret
//! ```

mod anthropic;
mod blocks;
mod check;
mod classify;
mod client;
mod config;
mod exchange;
mod gate;
mod history;
pub mod limits;
mod openai;
mod preview;
mod registry;
mod route;
#[cfg(test)]
mod samples;
pub mod script;
mod secret;
pub mod sse;
#[cfg(test)]
#[path = "../../tests/common/strict.rs"]
mod strict;
#[cfg(test)]
mod testing;
mod wire;

pub use check::{CheckReport, CheckTarget, ToolSupport, check};
pub use config::{ProviderConfig, Quirks, ReplayReasoning, Thinking, build};
pub use preview::Preview;
pub use registry::{AlreadyRegistered, Generation, Registry};
