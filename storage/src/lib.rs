//! What Everturn records: the vocabulary of events, the algebra of the log, and the stores that keep it.
//!
//! Everything here is synchronous; all but the stores is pure: no clock, randomness, I/O or hash maps.
#![cfg_attr(
    test,
    allow(
        clippy::wildcard_enum_match_arm,
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "tests look at one variant and print the seed that they ran with"
    )
)]

pub mod ids;
pub mod limits;

mod dual;
pub mod message;

pub mod assemble;
pub mod chunk;
pub mod event;

pub use dual::RawJson;
pub mod json;
pub mod log;

pub mod codec;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod fence;
pub mod load;
pub mod memory;
pub mod raw;
pub mod segment_store;
pub mod store;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
