//! The script of faults, and the gate that a test holds.

use crate::store::Error;
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// How a store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No space.
    Full,
    /// Input or output.
    Io,
}

impl Fault {
    pub(super) fn error(self) -> Error {
        match self {
            Self::Full => Error::Full("by the script".to_owned()),
            Self::Io => Error::Io("by the script".to_owned()),
        }
    }
}

/// What shall go wrong, by the number of the operation.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) commits: u64,
    pub(super) syncs: u64,
    pub(super) commit_faults: BTreeMap<u64, (usize, Fault)>,
    pub(super) sync_faults: BTreeMap<u64, Fault>,
    pub(super) full: bool,
    pub(super) lose_on_reopen: Option<Option<u64>>,
    pub(super) gate: Option<SyncGate>,
}

#[derive(Debug, Default)]
struct Gate {
    open: bool,
    passes: u64,
    waiting: u64,
    arrived: u64,
}

/// Holds syncs until a test lets them go on.
#[derive(Debug, Clone, Default)]
pub struct SyncGate(Arc<(Mutex<Gate>, Condvar)>);

impl SyncGate {
    /// Lets one sync pass, now or when it comes.
    pub fn let_one_pass(&self) {
        self.lock().passes += 1;
        self.0.1.notify_all();
    }

    /// Lets every sync pass from now on.
    pub fn open(&self) {
        self.lock().open = true;
        self.0.1.notify_all();
    }

    /// Blocks until `n` syncs in all have come to the gate.
    pub fn wait_for_arrivals(&self, n: u64) {
        let mut gate = self.lock();
        while gate.arrived < n {
            gate = self.0.1.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many syncs stand at the gate now.
    pub fn waiting(&self) -> u64 {
        self.lock().waiting
    }

    pub(super) fn pass(&self) {
        let mut gate = self.lock();
        gate.arrived += 1;
        gate.waiting += 1;
        self.0.1.notify_all();
        while !gate.open && gate.passes == 0 {
            gate = self.0.1.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        gate.waiting -= 1;
        if !gate.open {
            gate.passes -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number below `bound` that depends on the seed only.
pub(super) fn below(seed: u64, bound: usize) -> usize {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
}
