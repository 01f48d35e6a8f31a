//! What the driver asks and tells: turns, claims, idleness (D1 to D7, S14).

use super::{
    Answer, AppendClass, Cause, Desk, Flight, Frame, Item, ItemId, Life, OpError, Output, PendingItem, Phase, Proposal,
    ReplyId, Seq, Step, Turn, Visible,
};
use crate::{
    limits::TurnErrorPolicy,
    protocol::{CheckpointFailed, ClaimStepAnswer, ClaimedBatch},
    system::Awaited,
};
use everturn_storage::{
    event::{InboxClaimed, TurnReason, TurnStart},
    log::ItemFate,
    message::code,
};
use std::sync::Arc;

impl Desk {
    /// Given back so often that it seems to kill what runs it (B-16).
    fn poisonous(&self, pending: &PendingItem) -> bool {
        pending.restored > self.rules.claim_restore_limit && !self.forgiven.contains(&pending.item.id)
    }

    /// The batch that the next turn would claim, when something in it obliges anybody to run (T-1).
    pub(super) fn claim(&self) -> Option<Vec<Arc<Item>>> {
        let wakes = |pending: &PendingItem| pending.item.wake && !self.poisonous(pending);
        if !self.pending().any(|pending| wakes(pending) && !self.parked.contains(&pending.item.id)) {
            return None;
        }
        let steps = self.view.next_step().iter().filter(|pending| !self.poisonous(pending));
        let turn = self.view.next_turn().iter().find(|pending| !self.poisonous(pending));
        let batch: Vec<Arc<Item>> = steps.chain(turn).map(|pending| Arc::clone(&pending.item)).collect();
        batch.iter().any(|item| item.wake).then_some(batch)
    }

    /// Wakes the driver when it sleeps and something may run. Tells whether it did.
    pub(super) fn wake(&mut self) -> bool {
        let may = self.life == Life::Live && !self.active && !self.maintaining && self.journal_parked.is_none();
        if !may || self.claim().is_none() {
            return false;
        }
        self.active = true;
        self.out.push(Output::WakeDriver);
        true
    }

    /// Opens a turn with its first claim in one append (T-2), or lets the driver stop: one answer, so that no wake is
    /// lost between the two.
    pub(super) fn open_turn(&mut self, reply: ReplyId, tries: u32) {
        let free = self.life == Life::Live && self.turn.is_none() && !self.maintaining;
        let Some(items) = self.claim().filter(|_| free) else { return self.go_idle(reply) };
        let turn = self.view.last_turn().next();
        let ids: Vec<ItemId> = items.iter().map(|item| item.id.clone()).collect();
        let claimed = InboxClaimed { turn, proposal: Proposal(1), step: Step(1), ids };
        let events = vec![TurnStart { turn }.into(), claimed.into()];
        self.append(events, AppendClass::Opening, Flight::Open { turn, items, tries, reply });
    }

    pub(super) fn go_idle(&mut self, reply: ReplyId) {
        self.active = false;
        self.phase = Phase::Idle;
        self.out.push(Output::NothingOpened { reply });
        if self.running {
            self.running = false;
            self.out.push(Output::Notify(Frame::Status { status: Visible::Idle }));
        }
    }

    /// S14. A turn that is being closed gets nothing any more, so that no input is claimed by it.
    pub(super) fn claim_step(&mut self, turn: Turn, proposal: Proposal, step: Step, owed: bool, reply: ReplyId) {
        let nothing = Output::Claimed { reply, answer: ClaimStepAnswer::Nothing };
        let open = self.turn.as_ref().is_some_and(|live| live.turn == turn && !live.cancelled);
        let items: Vec<&PendingItem> = self.view.next_step().iter().filter(|item| !self.poisonous(item)).collect();
        let work = owed || items.iter().any(|pending| pending.item.wake);
        if !open || !work {
            self.out.push(nothing);
            return;
        }
        let items: Vec<Arc<Item>> = items.into_iter().map(|pending| Arc::clone(&pending.item)).collect();
        if self.life != Life::Live {
            // More is owed and the process is about to end (Z15).
            self.fire(Cause::Disposed);
            self.out.push(nothing);
            return;
        }
        if items.is_empty() {
            let batch = ClaimedBatch { items, view: Arc::clone(&self.view) };
            self.out.push(Output::Claimed { reply, answer: ClaimStepAnswer::Work(batch) });
            return;
        }
        let ids = items.iter().map(|item| item.id.clone()).collect();
        let claimed = InboxClaimed { turn, proposal, step, ids };
        self.append(vec![claimed.into()], AppendClass::Closing, Flight::Claim { items, reply });
    }

    pub(super) fn turn_ended(&mut self, turn: Turn, reason: &TurnReason) {
        self.turn = None;
        self.settling = Some(turn);
        let failed = matches!(reason, TurnReason::Error { .. });
        if failed && self.rules.turn_error_policy == TurnErrorPolicy::Park {
            self.park_all();
        }
    }

    pub(super) fn turn_settled(&mut self, turn: Turn, outcome: Result<Seq, CheckpointFailed>) {
        self.settling.take_if(|settling| *settling == turn);
        match outcome {
            Ok(durable) => {
                self.failed_checkpoints = 0;
                self.durable = self.durable.max(Some(durable));
            }
            Err(failed) => {
                self.failed_checkpoints += 1;
                self.notice(code::CHECKPOINT, format!("turn {turn} has ended and is not durable yet: {failed}"));
                if self.failed_checkpoints >= 2 {
                    self.notice("journal/degraded", format!("{} checkpoints in a row failed", self.failed_checkpoints));
                }
            }
        }
        self.settle_items();
    }

    pub(super) fn await_item(&mut self, item: ItemId, reply: ReplyId) {
        if self.view.fate(&item).is_none() {
            return self.refuse(reply, OpError::UnknownItem(item));
        }
        match self.ending(&item) {
            Some(ending) => self.answer(reply, Answer::Awaited(ending)),
            None if self.life == Life::Disposed => self.refuse(reply, OpError::Disposed),
            None => self.item_waiters.push((item, reply)),
        }
    }

    /// How an item ended: its turn is closed and CP-T of that turn has settled, or it was removed.
    fn ending(&self, item: &ItemId) -> Option<Awaited> {
        let turn = match self.view.fate(item)? {
            ItemFate::Removed => return Some(Awaited::Removed),
            ItemFate::Pending | ItemFate::Claimed(_) => return None,
            ItemFate::Admitted(turn) | ItemFate::Blocked(turn) | ItemFate::Unadmitted(turn) => *turn,
        };
        if self.settling == Some(turn) || self.turn.as_ref().is_some_and(|live| live.turn == turn) {
            return None;
        }
        let at = self.view.turns().binary_search_by_key(&turn, |row| row.turn).ok()?;
        let reason = self.view.turns().get(at)?.reason.clone();
        Some(Awaited::Ended { turn, reason })
    }

    pub(super) fn settle_items(&mut self) {
        for (item, reply) in std::mem::take(&mut self.item_waiters) {
            match self.ending(&item) {
                Some(ending) => self.answer(reply, Answer::Awaited(ending)),
                None => self.item_waiters.push((item, reply)),
            }
        }
    }

    /// Releases who waits for quiescence, after watchers were told (O-4).
    pub(super) fn release_idle(&mut self) {
        let fault = match &self.life {
            Life::Faulted(why) => Some(why.clone()),
            Life::Disposed => None,
            Life::Live | Life::Draining | Life::Disposing { .. } if self.is_quiescent() => None,
            Life::Live | Life::Draining | Life::Disposing { .. } => return,
        };
        for reply in std::mem::take(&mut self.idle_waiters) {
            self.answer(reply, Answer::Idle(fault.clone()));
        }
    }

    /// No driver activity, nothing on its way, no maintenance. Parked items do not count; a wake that waits for the
    /// journal to come back does, since nobody has to do anything for it (R14).
    pub(super) fn is_quiescent(&self) -> bool {
        let busy = self.active || self.maintaining || self.settling.is_some() || self.turn.is_some();
        let latched = self.life == Life::Live && self.journal_parked.is_some() && self.claim().is_some();
        !busy && !latched && self.flight.is_none() && self.waiting.is_empty()
    }
}
