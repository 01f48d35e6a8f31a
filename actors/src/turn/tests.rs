//! One test for each row of the table, one for each cell of the failure table of CONTRACT 4.3 that is the driver's.
#![allow(clippy::wildcard_enum_match_arm, reason = "tests look for one variant and fail on all others")]

mod bench;
mod cancel;
mod faults;
mod journal;
mod lot;
mod recovery;
mod rows;
