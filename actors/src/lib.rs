//! The turn machine of Everturn and the actors that drive it.
//!
//! ```text
//! supervisor ─ journal store (one per data directory)
//!     └── session: session journal · agent · driver · tool pool
//! model port: a task per prepare and per attempt
//! ```
#![cfg_attr(
    test,
    allow(
        clippy::wildcard_enum_match_arm,
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "tests look at one variant and print the seed that they ran with"
    )
)]

mod agent;
pub mod desk;
pub mod driver;
pub mod fault;
mod frames;
pub mod group_commit;
pub mod handle;
mod journal_store;
pub mod journals;
mod keeper;
pub mod ledger;
pub mod limits;
pub mod model_port;
mod own_work;
pub mod ports;
pub mod protocol;
pub mod reply;
mod session_journal;
mod supervisor;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tool_pool;
pub mod turn;
