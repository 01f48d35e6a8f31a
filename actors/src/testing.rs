//! Scripted ports for tests of this package and of those above it.

mod model;
mod profiles;

pub use model::{Beat, Gate, Play, ScriptedModel};
pub use profiles::TestProfiles;

use crate::ports::World;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A world without surprises: time moves one millisecond a look, ids and random numbers are counted.
#[derive(Debug)]
pub struct TestWorld {
    now_ms: AtomicI64,
    ids: AtomicU64,
    random: AtomicU64,
    name: String,
}

impl TestWorld {
    /// One whose fresh ids begin with `name`, so that those of two processes never meet.
    pub fn new(name: &str) -> Self {
        Self {
            now_ms: AtomicI64::new(1_000),
            ids: AtomicU64::new(0),
            random: AtomicU64::new(0x2545_F491_4F6C_DD1D),
            name: name.to_owned(),
        }
    }
}

impl World for TestWorld {
    fn now_ms(&self) -> i64 {
        self.now_ms.fetch_add(1, Ordering::Relaxed)
    }

    fn random_u64(&self) -> u64 {
        self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
    }

    fn fresh_id(&self) -> String {
        format!("{}-{}", self.name, self.ids.fetch_add(1, Ordering::Relaxed))
    }
}
