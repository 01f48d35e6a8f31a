//! The turn machine: `(state, input) → effects`, without a clock, chance, I/O or tasks (4).
//!
//! It runs the drain of one agent: turn after turn, and in each turn step after step. Each state waits for one
//! answer, named by a token; an answer with another token is stale, dropped and counted. The machine holds no
//! history: numbers, counts and the surface come from the fold that an answer brought (T-19).
//!
//! | # | state | input | effects | next state |
//! |---|---|---|---|---|
//! | 1 | Idle | wake | ask for a turn | Opening |
//! | 2 | Opening | nothing to open | | Idle |
//! | 3 | Opening | turn opened | phase, assemble (S1) | Asking assembly |
//! | 4 | Asking assembly | assembled | ask pre-step (S2) | Asking pre-step |
//! | 5 | Asking assembly, pre-step, settings | extension error | append `turn/end` error | Appending turn end |
//! | 6 | Asking pre-step | enter, or results are owed | append `step/start` (S4) | Appending step start |
//! | 7 | Asking pre-step | reject | append `{prompt/blocked, turn/end}` | Appending turn end |
//! | 8 | Asking pre-step | batch empty, first proposal | append `turn/end` completed (P4) | Appending turn end |
//! | 9 | Asking pre-step | batch empty, later proposal | ask for a claim (S14) | Asking claim |
//! | 10 | Appending step start | committed | ask for settings (S5) | Asking settings |
//! | 11 | Asking settings | proposed | prepare (S6) | Asking route |
//! | 12 | Asking route | prepared | append the admission (S7), none when nothing changed | Appending admission |
//! | 13 | Asking route | refused | append `{step/end, turn/end}` error (L-5) | Appending turn end |
//! | 14 | Appending admission | committed | phase, CP-R (S9) | Syncing CP-R |
//! | 15 | Syncing CP-R | durable | publish started, dispatch (S10) | Sampling |
//! | 16 | Syncing CP-R, CP-S | failed for good | close with `CHECKPOINT` | Appending turn end |
//! | 17 | Sampling | settled | append the settlement (S11) | Appending settlement |
//! | 18 | Appending settlement | committed, calls | publish settled, run the batch (S12) | Tools |
//! | 19 | Appending settlement | committed, no call | publish settled, append `step/end` (S13) | Appending step end |
//! | 20 | Appending settlement | committed, failed | publish discarded, ask recovery | Asking recovery |
//! | 21 | Appending settlement | committed, consumer died | publish discarded, close with the failure (T-13) | Appending turn end |
//! | 22 | Asking recovery | retry | ask for settings, next attempt | Asking settings |
//! | 23 | Asking recovery | pass, within the policy | append `retry/scheduled` (L-44) | Appending retry scheduled |
//! | 24 | Asking recovery | pass, beyond it | close with the failure (L-48) | Appending turn end |
//! | 25 | Asking recovery | extension error | close with the failure and the error as detail (P18) | Appending turn end |
//! | 26 | Appending retry scheduled | committed | notice, arm the wait | BackingOff |
//! | 27 | BackingOff | timer | append `retry/started` | Appending retry started |
//! | 28 | Appending retry started | committed | ask for settings, next attempt | Asking settings |
//! | 29 | Tools | batch done | append `step/end` (S13) | Appending step end |
//! | 30 | Tools | batch fault | fault | Faulted |
//! | 31 | Tools | pool died | append results, one call after the other (6.10) | Appending burial |
//! | 32 | Appending burial | committed | append the next, at last with `{step/end, turn/end}` | Appending burial, turn end |
//! | 33 | Appending step end | committed | phase, CP-S | Syncing CP-S |
//! | 34 | Appending step end | committed, CP-S folded or left out | ask for a claim (S14) | Asking claim |
//! | 35 | Syncing CP-S | durable | ask for a claim (S14) | Asking claim |
//! | 36 | Asking claim | work | assemble (S1) | Asking assembly |
//! | 37 | Asking claim | nothing | ask stopping (S15) | Asking stopping |
//! | 38 | Asking stopping | done | ask for a claim again | Asking claim |
//! | 39 | Asking claim behind stopping | nothing | append `turn/end` | Appending turn end |
//! | 40 | Asking claim, stopping | step limit or stop loop reached, more is owed | close with the code | Appending turn end |
//! | 41 | Asking claim | not logged for good | close with `JOURNAL` | Appending turn end |
//! | 42 | Asking stopping | extension error | close with `EXTENSION` | Appending turn end |
//! | 43 | Appending turn end | committed | tell the agent, CP-T (D6) | Syncing CP-T |
//! | 44 | Syncing CP-T | durable, or failed with a notice | tell the agent, ask for a turn (D7) | Opening |
//! | 45 | Appending anything, Syncing CP-R or CP-S, Asking claim | failed, tries left | arm the journal wait | same |
//! | 46 | the same, waiting | timer | the same once more | same |
//! | 47 | Appending step start, admission, settlement | failed for good | close with `JOURNAL` | Appending turn end |
//! | 48 | Appending retry scheduled, retry started | failed for good | close with the failure (P18) | Appending turn end |
//! | 49 | Appending step end, burial, turn end | failed for good | fault | Faulted |
//! | 50 | Appending anything | fenced | fault | Faulted |
//! | 51 | Asking anything but claim, Syncing CP-R or CP-S, BackingOff | cancel | abandon what was asked, close aborted | Appending turn end |
//! | 52 | Sampling | cancel | abort the attempt; its settlement is awaited | Sampling |
//! | 53 | Appending, Asking claim, Tools | cancel | remembered; observed behind the answer | same |
//! | 54 | Appending, waiting | cancel | abandon the wait, close aborted (a settlement: keep the prefix first) | Appending |
//! | 55 | Idle, Opening, Syncing CP-T, Faulted | cancel | | same |
//! | 56 | any but Idle | wake | | same |
//! | 57 | any | an answer to another question | counted | same |
//!
//! # Syncs of a turn
//!
//! A turn of one text step waits for CP-R, CP-S and CP-T. When no pre-step, stopping or recovery member exists,
//! nothing outside can happen between `step/end` and the next CP-R or CP-T of the turn; the acknowledgement of that
//! checkpoint then covers `step/end` as well (Z11), and the turn waits for two syncs. No acknowledgement is
//! skipped: each dispatch waits for a CP-R behind everything before it, each next turn for its CP-T. Policy `turn`
//! leaves CP-T only (K-4).

mod close;
pub mod effect;
pub mod input;
mod propose;
mod records;
pub mod retry;
mod sample;
mod state;
#[cfg(test)]
mod tests;
mod write;

pub use effect::Effect;
pub use input::{Assembled, FailedBy, Input, Outcome, RouteFacts, Rules, Settlement, Token};

use crate::{handle::Frame, protocol::Phase};
use everturn_storage::{event::Cause, ids::Turn};
use sample::Recovered;
use state::{Ask, State, Synced, Work};
use std::sync::Arc;

/// Drives the turns of one agent, one after the other.
#[derive(Debug, Default)]
pub struct Machine {
    state: State,
    /// The question whose answer is awaited.
    asked: Token,
    stale: u64,
    told: Option<Phase>,
    out: Vec<Effect>,
}

impl Machine {
    /// An idle one.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many answers came to a question that nobody asks any more.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Whether no turn is open and none was asked for.
    pub fn is_idle(&self) -> bool {
        match &self.state {
            State::Idle => true,
            State::Opening
            | State::Asking(..)
            | State::Appending(..)
            | State::Syncing(..)
            | State::Sampling(..)
            | State::BackingOff(..)
            | State::Tools(..)
            | State::Faulted => false,
        }
    }

    /// Takes one input and says what to do now, in order.
    #[must_use]
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        if input.token().is_some_and(|token| token != self.asked) {
            self.stale += 1;
            return Vec::new();
        }
        let state = std::mem::take(&mut self.state);
        self.transition(state, input);
        std::mem::take(&mut self.out)
    }

    /// The one place where a state meets an input. It leaves `self.state` set.
    fn transition(&mut self, state: State, input: Input) {
        use State::{Appending, Asking, BackingOff, Faulted, Idle, Opening, Sampling, Syncing, Tools};
        match (state, input) {
            (Idle, Input::Wake) => self.open(),
            (Opening, Input::NothingToOpen { .. }) => self.told = None,
            (Opening, Input::TurnOpened { turn, items, view, .. }) => {
                self.opened(Box::new(Work::new(turn, items, view)))
            }
            (Asking(Ask::Assembly, work), Input::Assembled { result, .. }) => self.assembled(work, result),
            (Asking(Ask::PreStep, work), Input::Decided { result, view, .. }) => self.decided(work, result, view),
            (Asking(Ask::Settings, work), Input::RequestProposed { result, .. }) => self.proposed(work, result),
            (Asking(Ask::Route, work), Input::Prepared { facts, system_id, .. }) => {
                self.prepared(work, *facts, system_id)
            }
            (Asking(Ask::Route, work), Input::Refused { failure, .. }) => self.close_failed(work, failure),
            (Asking(Ask::Recovery, work), Input::Recovered { result, random, retry_id, view, .. }) => {
                self.recovered(work, Recovered { verdict: result, random, retry_id, view })
            }
            (Asking(Ask::Claim { stopping, tries, .. }, work), Input::ClaimAnswered { answer, .. }) => {
                self.claimed(work, stopping, tries, answer)
            }
            (Asking(Ask::Claim { stopping, tries, waiting: true }, work), Input::Timer { .. }) => {
                self.ask_claim(work, stopping, tries)
            }
            (Asking(Ask::Stopping, work), Input::StoppingDone { result, view, .. }) => self.stopped(work, result, view),
            (Appending(write, work), Input::Appended { appended, .. }) => self.appended(work, *write, appended),
            (Appending(write, work), Input::AppendFailed { error, .. }) => self.append_failed(work, *write, error),
            (Appending(write, work), Input::Timer { .. }) if write.waiting => self.try_append(work, *write),
            (Syncing(sync, work), Input::Durable { seq, .. }) => self.durable(work, sync.what, seq),
            (Syncing(sync, work), Input::CheckpointFailed { error, .. }) => self.sync_failed(work, sync, error),
            (Syncing(sync, work), Input::Timer { .. }) if sync.waiting => self.try_sync(work, sync),
            (Sampling(work), Input::Settled { settlement, .. }) => self.stream_over(work, settlement),
            (BackingOff(retry_id, work), Input::Timer { .. }) => self.waited(work, retry_id),
            (Tools(work), Input::BatchDone { concluded, view, .. }) => self.batch_done(work, concluded, view),
            (Tools(_), Input::BatchFault { error, .. }) => self.fault(error.to_string()),
            (Tools(work), Input::PoolDied { view, fresh, .. }) => self.pool_died(work, view, fresh),
            (state, Input::Cancel { turn, cause }) => self.cancel(state, turn, cause),
            (
                state @ (Idle | Opening | Asking(..) | Appending(..) | Syncing(..) | Sampling(..) | BackingOff(..)
                | Tools(..) | Faulted),
                input @ (Input::Wake
                | Input::TurnOpened { .. }
                | Input::NothingToOpen { .. }
                | Input::Assembled { .. }
                | Input::Decided { .. }
                | Input::RequestProposed { .. }
                | Input::Prepared { .. }
                | Input::Refused { .. }
                | Input::Appended { .. }
                | Input::AppendFailed { .. }
                | Input::Durable { .. }
                | Input::CheckpointFailed { .. }
                | Input::Settled { .. }
                | Input::Recovered { .. }
                | Input::Timer { .. }
                | Input::BatchDone { .. }
                | Input::BatchFault { .. }
                | Input::PoolDied { .. }
                | Input::ClaimAnswered { .. }
                | Input::StoppingDone { .. }),
            ) => self.unasked(state, &input),
        }
    }

    /// Nothing waits for the input. Whoever is active looks for more by itself and needs no wake; an answer came to
    /// a question that was given up, or is one of another kind.
    fn unasked(&mut self, state: State, input: &Input) {
        self.stale += u64::from(input.token().is_some());
        self.state = state;
    }

    /// A cancel: what waits for nothing that must be kept ends at once, the rest looks behind its answer.
    fn cancel(&mut self, mut state: State, turn: Turn, cause: Cause) {
        match &mut state {
            State::Idle | State::Opening | State::Faulted => {
                self.state = state;
                return;
            }
            State::Asking(_, work)
            | State::Appending(_, work)
            | State::Syncing(_, work)
            | State::Sampling(work)
            | State::BackingOff(_, work)
            | State::Tools(work) => {
                if work.turn != turn || work.cancel.is_some() {
                    self.state = state;
                    return;
                }
                work.cancel = Some(cause);
            }
        }
        self.observe_cancel(state);
    }

    fn observe_cancel(&mut self, state: State) {
        match state {
            State::Asking(Ask::Claim { waiting: false, .. }, _) | State::Tools(_) => self.state = state,
            State::Asking(
                Ask::Assembly
                | Ask::PreStep
                | Ask::Settings
                | Ask::Route
                | Ask::Recovery
                | Ask::Claim { .. }
                | Ask::Stopping,
                work,
            )
            | State::BackingOff(_, work) => {
                self.abandon();
                self.close_cancelled(work);
            }
            State::Appending(write, work) if write.waiting && !write.ignores_cancel() => {
                self.abandon();
                self.append_cancelled(work, *write);
            }
            State::Syncing(sync, work) if sync.what != Synced::Turn => {
                self.abandon();
                self.close_cancelled(work);
            }
            State::Sampling(work) => {
                self.out.push(Effect::AbortAttempt { token: self.asked });
                self.state = State::Sampling(work);
            }
            State::Idle | State::Opening | State::Appending(..) | State::Syncing(..) | State::Faulted => {
                self.state = state;
            }
        }
    }

    /// The next question; answers to earlier ones are stale from now on.
    fn fresh_token(&mut self) -> Token {
        self.asked = Token(self.asked.0 + 1);
        self.asked
    }

    fn abandon(&mut self) {
        self.out.push(Effect::Abandon { token: self.asked });
    }

    fn arm(&mut self, delay_ms: u64) {
        let token = self.fresh_token();
        self.out.push(Effect::ArmTimer { token, delay_ms });
    }

    fn publish(&mut self, frame: Frame) {
        self.out.push(Effect::Publish(frame));
    }

    fn phase(&mut self, work: &Work, phase: Phase) {
        if self.told != Some(phase) {
            self.told = Some(phase);
            self.out.push(Effect::TellPhase { phase, view: Arc::clone(&work.view) });
        }
    }
}
