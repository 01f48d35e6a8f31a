//! The pending input: who waits, in which order, and what became of each item (I-6 to I-9).

use super::{
    ClaimedItem, ItemFate, LogState, PendingItem, QueuedRow,
    check::{Check, Expect, broken, distinct, ensure},
};
use crate::{
    event::{
        Event, InboxClaimed, InboxEdited, InboxMoved, InboxQueued, InboxRemoved, InboxRestored, Item, RemoveCause,
        Target,
    },
    ids::{ItemId, MessageId, Proposal, Seq},
    message::{Message, Role},
};
use imbl::Vector;
use std::sync::Arc;

fn position(list: &Vector<PendingItem>, id: &ItemId) -> Option<usize> {
    list.iter().position(|pending| pending.item.id == *id)
}

/// Which list an item waits in, and where.
fn find(state: &LogState, id: &ItemId) -> Option<(Target, usize)> {
    match state.fates.get(id) {
        Some(ItemFate::Pending) => {}
        _ => return None,
    }
    position(&state.next_turn, id)
        .map(|at| (Target::NextTurn, at))
        .or_else(|| position(&state.next_step, id).map(|at| (Target::NextStep, at)))
}

fn list(state: &mut LogState, target: Target) -> &mut Vector<PendingItem> {
    match target {
        Target::NextTurn => &mut state.next_turn,
        Target::NextStep => &mut state.next_step,
    }
}

fn is_user(message: &Message, seq: Seq) -> Check {
    ensure!(
        message.role == Role::User,
        "grammar",
        seq,
        "an item says what a user says, this one is of {:?}",
        message.role
    );
    Ok(())
}

/// A message id stands for one item, until that item was withdrawn.
fn message_is_free(state: &LogState, message: &MessageId, item: &ItemId, seq: Seq) -> Check {
    if let Some(other) = state.by_message.get(message)
        && other != item
    {
        let withdrawn = matches!(state.fates.get(other), Some(ItemFate::Removed) | None);
        ensure!(withdrawn, "I-7", seq, "message {message} is item {other} already");
    }
    Ok(())
}

pub(super) fn queued(state: &mut LogState, event: &Event, data: &InboxQueued, withdrawn: Option<PendingItem>) -> Check {
    let (item, seq) = (&data.item, event.seq);
    is_user(&item.message, seq)?;
    let mut restored = 0;
    if state.fates.contains_key(&item.id) {
        // Directly behind its withdrawal it is a move (Z2).
        let Some(old) = withdrawn.filter(|old| old.item.id == item.id) else {
            return Err(broken("I-7", seq, format!("item {} was queued before", item.id)));
        };
        ensure!(old.item.message == item.message, "I-7", seq, "a move keeps what item {} says", item.id);
        restored = old.restored;
    }
    message_is_free(state, &item.message.id, &item.id, seq)?;
    let pending = PendingItem { item: Arc::new(item.clone()), queued: seq, restored };
    let waiting = list(state, item.target);
    let at = data.position.map_or(waiting.len(), |at| at as usize);
    ensure!(at <= waiting.len(), "I-7", seq, "position {at} is behind the end of its list of {}", waiting.len());
    waiting.insert(at, pending);
    if !state.queued.contains_key(&item.id) {
        let position = u32::try_from(at).unwrap_or(u32::MAX);
        state.queued.insert(item.id.clone(), QueuedRow { seq, target: item.target, position });
    }
    state.by_message.insert(item.message.id.clone(), item.id.clone());
    state.fates.insert(item.id.clone(), ItemFate::Pending);
    Ok(())
}

pub(super) fn edited(state: &mut LogState, event: &Event, data: &InboxEdited) -> Check {
    let seq = event.seq;
    is_user(&data.message, seq)?;
    let Some((target, at)) = find(state, &data.id) else {
        return Err(broken("I-7", seq, format!("item {} does not wait, it cannot be edited", data.id)));
    };
    message_is_free(state, &data.message.id, &data.id, seq)?;
    let waiting = list(state, target);
    let Some(old) = waiting.get(at) else { return Ok(()) };
    let (old_message, old_item) = (old.item.message.id.clone(), Arc::clone(&old.item));
    let item = Arc::new(Item { message: data.message.clone(), ..(*old_item).clone() });
    if let Some(slot) = waiting.get_mut(at) {
        slot.item = item;
    }
    if old_message != data.message.id {
        state.by_message.remove(&old_message);
    }
    state.by_message.insert(data.message.id.clone(), data.id.clone());
    Ok(())
}

pub(super) fn moved(state: &mut LogState, event: &Event, data: &InboxMoved) -> Check {
    let seq = event.seq;
    distinct(&data.ids, "I-7", seq)?;
    let Some((target, _)) = data.ids.first().and_then(|id| find(state, id)) else {
        return Err(broken("I-7", seq, "it orders no item that waits"));
    };
    let waiting = list(state, target);
    ensure!(
        data.ids.len() == waiting.len(),
        "I-7",
        seq,
        "the new order names {} of {} items",
        data.ids.len(),
        waiting.len()
    );
    let mut rest: std::collections::BTreeMap<ItemId, PendingItem> =
        waiting.iter().map(|pending| (pending.item.id.clone(), pending.clone())).collect();
    let mut order = Vector::new();
    for id in &data.ids {
        match rest.remove(id) {
            Some(pending) => order.push_back(pending),
            None => return Err(broken("I-7", seq, format!("item {id} does not wait in that list"))),
        }
    }
    *waiting = order;
    Ok(())
}

pub(super) fn removed(state: &mut LogState, event: &Event, data: &InboxRemoved) -> Check {
    let seq = event.seq;
    ensure!(!data.ids.is_empty(), "grammar", seq, "it removes no item");
    distinct(&data.ids, "I-7", seq)?;
    let mut last = None;
    for id in &data.ids {
        let Some((target, at)) = find(state, id) else {
            return Err(broken("I-7", seq, format!("item {id} does not wait, it cannot be removed")));
        };
        last = Some(list(state, target).remove(at));
        state.fates.insert(id.clone(), ItemFate::Removed);
    }
    if data.ids.len() == 1 && data.cause == RemoveCause::Removed {
        state.withdrawn = last;
    }
    Ok(())
}

pub(super) fn claimed(state: &mut LogState, event: &Event, data: &InboxClaimed) -> Check {
    let seq = event.seq;
    let Some(turn) = state.turn.as_ref() else {
        return Err(broken("I-2", seq, "a claim belongs to an open turn"));
    };
    ensure!(data.turn == turn.turn, "I-3", seq, "the open turn is {}", turn.turn);
    ensure!(turn.step.is_none(), "grammar", seq, "a claim stands between steps");
    ensure!(!turn.cut, "I-26", seq, "a turn that was cut goes on with nothing");
    let proposal = Proposal(turn.proposals.0 + 1);
    ensure!(data.proposal == proposal, "I-3", seq, "the next proposal is {proposal}");
    ensure!(data.step.0 == turn.steps + 1, "I-3", seq, "the next step is {}", turn.steps + 1);
    ensure!(!data.ids.is_empty(), "grammar", seq, "a claim takes at least one item");
    distinct(&data.ids, "I-7", seq)?;
    let first = matches!(state.expect, Expect::FirstClaim);
    let mut taken = Vec::with_capacity(data.ids.len());
    let (mut at, mut ordinary) = (0, false);
    for id in &data.ids {
        match find(state, id) {
            None => return Err(broken("I-7", seq, format!("item {id} does not wait, it cannot be claimed"))),
            Some((Target::NextStep, place)) => {
                ensure!(!ordinary, "grammar", seq, "next-step items come first in a claim, {id} does not");
                at = fifo(&state.next_step, at, place, id, seq)?;
                taken.push(state.next_step.remove(at));
            }
            Some((Target::NextTurn, place)) => {
                ensure!(
                    first,
                    "I-8",
                    seq,
                    "only the first claim of a turn takes a next-turn item, this one takes {id}"
                );
                ensure!(!ordinary, "I-8", seq, "{id} is the second next-turn item of one claim");
                ordinary = true;
                let place = fifo(&state.next_turn, 0, place, id, seq)?;
                taken.push(state.next_turn.remove(place));
            }
        }
    }
    let wakes = !first || taken.iter().any(|pending| pending.item.wake);
    ensure!(wakes, "T-1", seq, "no item of the first claim obliges anyone to run");
    let Some(turn) = state.turn.as_mut() else { return Ok(()) };
    for pending in taken {
        state.fates.insert(pending.item.id.clone(), ItemFate::Claimed(data.turn));
        turn.claimed.push_back(ClaimedItem {
            item: pending.item,
            proposal,
            restored: pending.restored,
            admitted: false,
        });
    }
    turn.proposals = proposal;
    turn.unstepped = true;
    state.expect = Expect::Nothing;
    Ok(())
}

/// Nothing that waited before an item is passed over (I-9). What repair gave back may be: it can be parked (B-16).
fn fifo(
    list: &Vector<PendingItem>,
    from: usize,
    place: usize,
    id: &ItemId,
    seq: Seq,
) -> Result<usize, super::Violation> {
    ensure!(place >= from, "I-9", seq, "item {id} is claimed behind one that waited longer");
    let passed = list.iter().take(place).skip(from).find(|pending| pending.restored == 0);
    if let Some(passed) = passed {
        return Err(broken("I-9", seq, format!("item {id} is claimed before {}, which waited longer", passed.item.id)));
    }
    Ok(place)
}

pub(super) fn restored(state: &mut LogState, event: &Event, data: &InboxRestored) -> Check {
    let seq = event.seq;
    let Expect::Restored(owed) = std::mem::take(&mut state.expect) else {
        return Err(broken("I-6", seq, "inbox/restored stands only in a repair, behind the end of the dead turn"));
    };
    let same = owed.len() == data.ids.len() && owed.iter().zip(&data.ids).all(|(item, id)| item.item.id == *id);
    ensure!(same, "I-11", seq, "repair gives back exactly what the turn claimed and did not admit, in order");
    let counted = data.counts.len() == owed.len()
        && owed.iter().all(|item| data.counts.get(&item.item.id) == Some(&(item.restored + 1)));
    ensure!(counted, "I-7", seq, "the counts are not one more than before, for each item");
    for claimed in owed.into_iter().rev() {
        let id = claimed.item.id.clone();
        let pending = PendingItem { queued: seq, restored: claimed.restored + 1, item: claimed.item };
        list(state, pending.item.target).push_front(pending);
        state.fates.insert(id, ItemFate::Pending);
    }
    Ok(())
}
