//! The store over a disk that delays, tears and loses what was not synced: seeded runs against a model of what was
//! acknowledged.

mod chance;
mod disk;
mod inode;
mod plants;
mod run;
mod tree;

pub(super) use disk::{File, Handle};
pub(super) use tree::Tree;
