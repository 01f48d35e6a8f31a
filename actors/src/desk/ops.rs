//! What callers ask for, decided on the log as it is.

use super::{
    Answer, AppendClass, Cause, Check, CheckpointKind, Desk, Duplicate, Flight, ItemId, KeptItems, Life, MessageId, Op,
    OpError, Output, ReplyId, validate,
};
use crate::handle::{CancelReport, Submit, SubmitKind};
use everturn_storage::{
    event::{InboxEdited, InboxMoved, InboxQueued, InboxRemoved, Item, Origin, RemoveCause, Target},
    ids::check_id,
    log::ItemFate,
    message::{Block, Message, Role},
};
use std::collections::BTreeSet;

impl Desk {
    /// Whether a mutating operation may go on.
    fn open_for(&self) -> Result<(), OpError> {
        match &self.life {
            Life::Live => Ok(()),
            Life::Draining | Life::Disposing { .. } | Life::Disposed => Err(OpError::Disposed),
            Life::Faulted(why) => Err(OpError::Faulted(why.clone())),
        }
    }

    pub(super) fn op(&mut self, op: Op, reply: ReplyId) {
        let done = match op {
            Op::Cancel { cause, kept } => return self.cancel(cause, kept, reply),
            Op::Dispose { mode } => return self.dispose(mode, reply),
            Op::Submit { submit, fresh } => self.submit(submit, fresh, reply),
            Op::Edit { item, content } => self.edit(item, content, reply),
            Op::Remove { items } => self.remove(items, reply),
            Op::Reorder { list, items } => self.reorder(list, items, reply),
            Op::Move { item, target } => self.move_item(&item, target, reply),
            Op::Wake => self.wake_all(reply),
            Op::Maintain => self.maintain(reply),
        };
        if let Err(error) = done {
            self.refuse(reply, error);
        }
    }

    fn submit(&mut self, submit: Submit, fresh: String, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        let Submit { kind, id, content, source } = submit;
        validate::content(&content, &self.rules)?;
        let message = id.unwrap_or_else(|| MessageId::trusted(fresh.as_str()));
        check_id(message.as_str()).map_err(|error| OpError::InvalidMessage(error.to_string()))?;
        if let Some((item, kind)) = self.duplicate(&message) {
            self.answer_duplicate(item, kind, reply);
            return Ok(());
        }
        if self.view.next_turn().len() + self.view.next_step().len() >= self.rules.inbox_capacity {
            return Err(OpError::InboxFull(self.rules.inbox_capacity));
        }
        // The item of a withdrawn message stays in the log as removed; a new one needs another name.
        let known = self.view.fate(&ItemId::trusted(message.as_str())).is_some();
        let id = ItemId::trusted(if known { fresh.as_str() } else { message.as_str() });
        let (target, wake, origin) = self.place(kind);
        let message = Message { id: message, role: Role::User, content, source };
        let item = Item { id: id.clone(), target, wake, origin, message };
        let queued = InboxQueued { item, position: None };
        self.append(vec![queued.into()], AppendClass::Opening, Flight::Accept { item: id, reply });
        Ok(())
    }

    /// The item that stands for a message already, unless that message was withdrawn (C-3).
    fn duplicate(&self, message: &MessageId) -> Option<(ItemId, Duplicate)> {
        let same_name = ItemId::trusted(message.as_str());
        let item = match self.view.item_of_message(message) {
            Some(item) => item.clone(),
            None => self.view.fate(&same_name).map(|_| same_name)?,
        };
        match self.view.fate(&item)? {
            ItemFate::Pending => Some((item, Duplicate::Pending)),
            ItemFate::Removed if self.withdrawn.contains(message) => None,
            ItemFate::Claimed(_)
            | ItemFate::Admitted(_)
            | ItemFate::Blocked(_)
            | ItemFate::Unadmitted(_)
            | ItemFate::Removed => Some((item, Duplicate::Consumed)),
        }
    }

    /// A repeat is told of the first receipt, so that one must be durable too (C-4).
    fn answer_duplicate(&mut self, item: ItemId, kind: Duplicate, reply: ReplyId) {
        let last = self.last_logged().filter(|last| self.durable < Some(*last));
        match last {
            Some(last) => self.check(CheckpointKind::Accept, last, Check::Duplicate { item, kind, reply }),
            None => self.answer(reply, Answer::Duplicate { item, kind }),
        }
    }

    /// Where a message goes: target, wake flag, origin.
    fn place(&self, kind: SubmitKind) -> (Target, bool, Origin) {
        match kind {
            SubmitKind::Send => (Target::NextTurn, true, Origin::Send),
            SubmitKind::Steer if !self.rules.steering => (Target::NextTurn, true, Origin::Send),
            SubmitKind::Steer if self.steerable() => (Target::NextStep, true, Origin::Steer),
            SubmitKind::Steer => (Target::NextTurn, true, Origin::Steer),
            SubmitKind::Inject => (Target::NextStep, false, Origin::Inject),
        }
    }

    /// Whether a turn is open that is not being closed (R3).
    fn steerable(&self) -> bool {
        self.view.open_turn().is_some() && self.turn.as_ref().is_some_and(|turn| !turn.cancelled)
    }

    fn edit(&mut self, item: ItemId, content: Vec<Block>, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        validate::content(&content, &self.rules)?;
        let Some(pending) = self.view.pending(&item) else { return Err(OpError::UnknownItem(item)) };
        let message = Message { content, ..pending.item.message.clone() };
        // An edit says that the item is meant to run (B-16).
        self.forgiven.insert(item.clone());
        let edited = InboxEdited { id: item, message };
        self.append(vec![edited.into()], AppendClass::Opening, Flight::Change { reply });
        Ok(())
    }

    fn remove(&mut self, items: Vec<ItemId>, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        if let Some(missing) = items.iter().find(|item| self.view.pending(item).is_none()) {
            return Err(OpError::UnknownItem(missing.clone()));
        }
        if items.is_empty() || items.iter().collect::<BTreeSet<_>>().len() != items.len() {
            return Err(OpError::Invalid("name each item to remove once".to_owned()));
        }
        let removed = InboxRemoved { ids: items, cause: RemoveCause::Removed };
        self.append(vec![removed.into()], AppendClass::Closing, Flight::Change { reply });
        Ok(())
    }

    fn reorder(&mut self, list: Target, items: Vec<ItemId>, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        let now = match list {
            Target::NextTurn => self.view.next_turn(),
            Target::NextStep => self.view.next_step(),
        };
        if let Some(missing) = items.iter().find(|item| self.view.pending(item).is_none()) {
            return Err(OpError::UnknownItem(missing.clone()));
        }
        let have: BTreeSet<&ItemId> = now.iter().map(|pending| &pending.item.id).collect();
        let want: BTreeSet<&ItemId> = items.iter().collect();
        if have != want || items.len() != now.len() {
            return Err(OpError::Invalid("the new order names every item of the list once".to_owned()));
        }
        if items.is_empty() {
            self.answer(reply, Answer::Done);
            return Ok(());
        }
        self.append(vec![InboxMoved { ids: items }.into()], AppendClass::Opening, Flight::Change { reply });
        Ok(())
    }

    fn move_item(&mut self, item: &ItemId, target: Target, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        let Some(pending) = self.view.pending(item) else { return Err(OpError::UnknownItem(item.clone())) };
        if pending.item.target == target {
            self.answer(reply, Answer::Done);
            return Ok(());
        }
        // A turn of its own that nobody starts would block those behind it.
        let wake = pending.item.wake || target == Target::NextTurn;
        let moved = Item { target, wake, ..(*pending.item).clone() };
        let removed = InboxRemoved { ids: vec![item.clone()], cause: RemoveCause::Removed };
        let events = vec![removed.into(), InboxQueued { item: moved, position: None }.into()];
        self.append(events, AppendClass::Opening, Flight::Change { reply });
        Ok(())
    }

    fn wake_all(&mut self, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        self.parked.clear();
        self.forgiven = self.pending().map(|pending| pending.item.id.clone()).collect();
        self.journal_parked = None;
        self.answer(reply, Answer::Done);
        Ok(())
    }

    fn maintain(&mut self, reply: ReplyId) -> Result<(), OpError> {
        self.open_for()?;
        if self.active || self.maintaining || self.turn.is_some() || self.claim().is_some() {
            return Err(OpError::Busy);
        }
        self.maintaining = true;
        self.answer(reply, Answer::Granted);
        Ok(())
    }

    /// CP-M, then the caller, then what was latched meanwhile.
    pub(super) fn maintained(&mut self, reply: ReplyId) {
        match self.last_logged() {
            Some(last) => self.check(CheckpointKind::Maintenance, last, Check::Maintenance { reply }),
            None => {
                self.maintaining = false;
                self.answer(reply, Answer::Done);
            }
        }
    }

    fn cancel(&mut self, cause: Cause, kept: KeptItems, reply: ReplyId) {
        match &self.life {
            Life::Live | Life::Draining => {}
            Life::Disposing { .. } | Life::Disposed => {
                return self.answer(reply, Answer::Cancelled(CancelReport::default()));
            }
            Life::Faulted(why) => return self.refuse(reply, OpError::Faulted(why.clone())),
        }
        match kept {
            KeptItems::Park => self.park_all(),
            KeptItems::Continue => self.parked.clear(),
            KeptItems::Clear => {
                let removed: Vec<ItemId> = self.pending().map(|pending| pending.item.id.clone()).collect();
                if !removed.is_empty() {
                    let event = InboxRemoved { ids: removed.clone(), cause: RemoveCause::Canceled };
                    let flight = Flight::Cancel { cause, removed, reply };
                    return self.append(vec![event.into()], AppendClass::Closing, flight);
                }
            }
        }
        let cancelled = self.fire(cause);
        self.answer(reply, Answer::Cancelled(CancelReport { cancelled, removed: Vec::new() }));
    }

    /// Fires the signal of whatever runs; the first cause stands. A turn whose end is logged is not touched any more.
    pub(super) fn fire(&mut self, cause: Cause) -> Option<everturn_storage::ids::Turn> {
        if self.maintaining {
            self.out.push(Output::FireMaintenance { cause: cause.clone() });
        }
        self.view.open_turn()?;
        let live = self.turn.as_mut()?;
        if !live.cancelled {
            live.cancelled = true;
            self.out.push(Output::FireSignal { turn: live.turn, cause });
        }
        Some(live.turn)
    }

    /// Takes back an item that could not be made durable, unless a turn has it already.
    pub(super) fn withdraw(&mut self, item: &ItemId, reply: ReplyId, why: String) {
        match self.view.pending(item) {
            Some(pending) => {
                let message = pending.item.message.id.clone();
                let removed = InboxRemoved { ids: vec![item.clone()], cause: RemoveCause::Removed };
                let flight = Flight::Withdraw { message, why, reply };
                self.append(vec![removed.into()], AppendClass::Closing, flight);
            }
            None => self.refuse(reply, OpError::Storage(why)),
        }
    }
}
