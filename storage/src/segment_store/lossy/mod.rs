//! The store over a disk that delays, tears and loses what was not synced: seeded runs against a model of what was
//! acknowledged.

#![allow(dead_code, reason = "the runs follow")]

mod chance;
mod disk;
mod inode;
mod plants;
mod tree;

pub(super) use disk::{File, Handle};
pub(super) use tree::Tree;
