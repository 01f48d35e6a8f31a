//! The adapters against a server on the loopback interface: what goes over the wire, and what happens when it breaks.
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
#[path = "../common/strict.rs"]
mod strict;

mod answers;
mod breaks;
mod cancels;
mod checks;
mod gates;
mod rows;
mod server;
mod settings;
mod town;
mod world;
