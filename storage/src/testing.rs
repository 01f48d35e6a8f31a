//! Generators for tests, here and in the packages above (feature `testing`).
//!
//! [`strategies`] makes single events of every type, [`sample`] names events by short functions, and [`logs`] drives
//! whole valid logs from a seed.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code: names say what it makes"
)]

pub mod logs;
pub mod sample;
pub mod strategies;
mod streams;
