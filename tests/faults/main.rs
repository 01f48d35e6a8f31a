//! The test build (SURFACE 7): the shipped binary with `--features testkit`, driven over HTTP with a fault script. Every
//! row of CONTRACT 4.3 is reached from outside, and the process dies at every fail-point, also while it repairs.
#![cfg(feature = "testkit")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod field;
mod others;
mod rig;
mod rows;
mod script;
mod tail;
