//! One gate for each account: how many requests run at once, and when the next may leave after a refusal.
//!
//! Agents that share an account are refused together. Without a gate they would come back together and be refused
//! again, for ever (BR-100). After a refusal the gate closes for as long as the provider asked, then lets one call
//! through. Successes double the number that may run up to half of what was too much, and go on one by one from
//! there. Waiting callers are served in order, and a caller that goes away leaves no trace.

use super::limits::{GATE_BACKOFF_MAX_MS, GATE_INITIAL_MS, GATE_MAX_MS};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

#[cfg(test)]
mod tests;

/// From this many on there is no need to count.
const WINDOW_OPEN: usize = 1_024;

/// The gate of one account.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// When the gate opens again; told to those who wait, so that each can set its timer.
    opens: watch::Sender<Option<Instant>>,
}

#[derive(Debug)]
struct State {
    running: usize,
    /// How many may run after a refusal; `None` when nothing was refused lately.
    window: Option<Window>,
    /// Counts refusals: a success of a call from before the last one proves nothing.
    refusals: u64,
    /// Refusals in a row.
    in_row: u32,
    queue: VecDeque<Waiter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    /// How many may run.
    size: usize,
    /// Half of what was too much.
    threshold: usize,
    /// Successes since the size last grew, beyond the threshold.
    successes: usize,
}

impl Window {
    /// Room behind a success; `None` when there is no need to count any more.
    fn grown(mut self) -> Option<Self> {
        if self.size < self.threshold {
            self.size = (self.size * 2).min(self.threshold);
        } else {
            self.successes += 1;
            if self.successes >= self.size {
                self.successes = 0;
                self.size += 1;
            }
        }
        (self.size < WINDOW_OPEN).then_some(self)
    }
}

#[derive(Debug)]
struct Waiter {
    max: usize,
    grant: oneshot::Sender<Permit>,
}

/// The right to send one request. Dropping it lets the next one in.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    refusals: u64,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        let state = State { running: 0, window: None, refusals: 0, in_row: 0, queue: VecDeque::new() };
        Arc::new(Self { state: Mutex::new(state), opens: watch::Sender::new(None) })
    }

    /// Waits for a place among at most `max`. Dropping the future gives the place up.
    pub(super) async fn enter(self: &Arc<Self>, max: usize) -> Permit {
        let (grant, mut granted) = oneshot::channel();
        self.lock().queue.push_back(Waiter { max: max.max(1), grant });
        let mut opens = self.opens.subscribe();
        loop {
            self.let_in();
            let opens_at = *opens.borrow_and_update();
            tokio::select! {
                biased;
                permit = &mut granted => match permit {
                    Ok(permit) => return permit,
                    // The queue never drops a waiter without its grant; should it, this one runs unpaced.
                    Err(_) => return self.unpaced(),
                },
                // The sender lives in `self`, so this never fails.
                _ = opens.changed() => {}
                () = until(opens_at) => {}
            }
        }
    }

    fn unpaced(self: &Arc<Self>) -> Permit {
        let mut state = self.lock();
        state.running += 1;
        Permit { gate: Arc::clone(self), refusals: state.refusals }
    }

    /// Gives out every place that is free now.
    fn let_in(self: &Arc<Self>) {
        loop {
            if self.opens.borrow().is_some_and(|at| Instant::now() < at) {
                return;
            }
            let mut state = self.lock();
            while state.queue.front().is_some_and(|waiter| waiter.grant.is_closed()) {
                state.queue.pop_front();
            }
            let free =
                |waiter: &Waiter| state.running < waiter.max.min(state.window.map_or(usize::MAX, |window| window.size));
            if !state.queue.front().is_some_and(free) {
                return;
            }
            let Some(waiter) = state.queue.pop_front() else { return };
            state.running += 1;
            let permit = Permit { gate: Arc::clone(self), refusals: state.refusals };
            drop(state);
            // A waiter that has just gone gives its permit back by dropping it, outside the lock.
            drop(waiter.grant.send(permit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) if Instant::now() < at => tokio::time::sleep_until(at).await,
        _ => std::future::pending().await,
    }
}

impl Permit {
    /// The provider took the request.
    pub(super) fn accepted(&self) {
        let mut state = self.gate.lock();
        if state.refusals == self.refusals {
            state.in_row = 0;
            state.window = state.window.and_then(Window::grown);
        }
    }

    /// The provider refused because there were too many requests. `lot` in [0, 1) spreads those who share the
    /// account in other processes.
    pub(super) fn refused(&self, retry_after_ms: Option<u64>, lot: f64) {
        let mut state = self.gate.lock();
        if state.refusals == self.refusals {
            state.in_row = state.in_row.saturating_add(1);
            state.refusals += 1;
            state.window = Some(Window { size: 1, threshold: (state.running / 2).max(1), successes: 0 });
        }
        let wait_ms = closing_ms(state.in_row, retry_after_ms, lot);
        drop(state);
        let at = Instant::now() + Duration::from_millis(wait_ms);
        self.gate.opens.send_modify(|opens| *opens = Some(opens.map_or(at, |old| old.max(at))));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.running = state.running.saturating_sub(1);
        drop(state);
        self.gate.let_in();
    }
}

/// How long a refusal closes the gate: as long as was asked and up to a tenth more, or, when nothing was asked, a
/// random part of a doubling wait.
fn closing_ms(in_row: u32, retry_after_ms: Option<u64>, lot: f64) -> u64 {
    let part = |of_ms: u64| (of_ms as f64 * lot.clamp(0.0, 1.0)) as u64;
    match retry_after_ms {
        Some(asked_ms) => {
            let asked_ms = asked_ms.min(GATE_MAX_MS);
            asked_ms + part(asked_ms / 10)
        }
        None => {
            let factor = 1_u64.checked_shl(in_row.saturating_sub(1)).unwrap_or(u64::MAX);
            part(GATE_INITIAL_MS.saturating_mul(factor).min(GATE_BACKOFF_MAX_MS))
        }
    }
}
