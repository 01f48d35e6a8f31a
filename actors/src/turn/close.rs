//! How a turn ends: one atomic append, CP-T, and on to the next (D5 to D7).

use super::{
    Machine,
    effect::Effect,
    records,
    state::{Ending, State, Synced, Work, Written},
};
use crate::protocol::{CheckpointFailed, Phase};
use everturn_storage::{event::TurnReason, ids::Seq, message::Failure};
use std::sync::Arc;

impl Ending {
    /// One without a refused batch.
    pub(super) fn of(reason: TurnReason) -> Self {
        Self { reason, blocked: None }
    }

    /// The same, unless a cancel came before it was logged and nothing had gone wrong (F-1). A refusal or an error
    /// that was observed first stands.
    #[must_use]
    pub(super) fn under_cancel(self, work: &Work) -> Self {
        match (&work.cancel, self.ignores_cancel()) {
            (Some(cause), false) => Self::of(TurnReason::Aborted { cause: cause.clone() }),
            (Some(_), true) | (None, true | false) => self,
        }
    }

    /// Whether a cancel changes nothing about it.
    pub(super) fn ignores_cancel(&self) -> bool {
        match &self.reason {
            TurnReason::Completed | TurnReason::MaxTokens => false,
            TurnReason::Rejected { .. }
            | TurnReason::Aborted { .. }
            | TurnReason::Error { .. }
            | TurnReason::Interrupted => true,
        }
    }
}

impl Machine {
    /// D5.
    pub(super) fn close(&mut self, work: Box<Work>, ending: Ending) {
        let events = records::turn_end(&work, &ending);
        self.append(work, Written::TurnEnd(ending), events);
    }

    /// Nothing is owed (S15).
    pub(super) fn close_done(&mut self, work: Box<Work>) {
        let reason = if work.hit_max_tokens() { TurnReason::MaxTokens } else { TurnReason::Completed };
        self.close(work, Ending::of(reason));
    }

    /// ABORT.
    pub(super) fn close_cancelled(&mut self, work: Box<Work>) {
        match work.cancel.clone() {
            Some(cause) => self.close(work, Ending::of(TurnReason::Aborted { cause })),
            None => self.close_done(work),
        }
    }

    /// A failure ends the turn, unless a cancel was observed before: then it is a detail of the draining (F-1).
    pub(super) fn close_failed(&mut self, work: Box<Work>, failure: Failure) {
        let reason = match work.cancel.clone() {
            Some(cause) => TurnReason::Aborted { cause },
            None => TurnReason::Error { failure },
        };
        self.close(work, Ending::of(reason));
    }

    /// D5 is committed: D6 for every turn without exception (T-17).
    pub(super) fn turn_ended(&mut self, work: Box<Work>, ending: Ending) {
        self.out.push(Effect::TurnEnded { turn: work.turn, reason: ending.reason, view: Arc::clone(&work.view) });
        self.phase(&work, Phase::Checkpoint);
        self.sync(work, Synced::Turn);
    }

    /// D6 is through, D7 follows. Whether anything may run next is the agent's to say.
    pub(super) fn turn_settled(&mut self, work: &Work, outcome: Result<Seq, CheckpointFailed>) {
        self.out.push(Effect::TurnSettled { turn: work.turn, outcome });
        self.open();
    }

    /// D1.
    pub(super) fn open(&mut self) {
        let token = self.fresh_token();
        self.out.push(Effect::AskOpenTurn { token });
        self.state = State::Opening;
    }

    /// What is open cannot be closed (F-4).
    pub(super) fn fault(&mut self, why: String) {
        self.out.push(Effect::Fault { why });
        self.state = State::Faulted;
    }
}
