//! The scenarios of the contract, driven through the real system: actors, journal and a store in memory, with a
//! scripted model, in virtual time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]
#![allow(dead_code, reason = "each section uses its own part of the fixtures")]

mod bench;
mod disk;
mod model;
mod parts;

mod a_fifo;
mod b_barrier;
mod c_admission;
mod c_routes;
mod d_steering;
mod e_cancel;
mod f_streaming;
mod g_retry;
mod h_tools;
mod i_repair;
mod j_projection;
mod k_lifecycle;
