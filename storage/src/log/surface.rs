//! What the model sees: system and user nodes, and the rewriting of the list (I-11, I-12, I-21 to I-23, 8.1, 8.3).

use super::{
    ItemFate, LogState, Node,
    check::{Check, broken, distinct, ensure},
    settle::{self, Gate, Rank},
};
use crate::{
    event::{Event, EventData, SurfaceOp, SystemMessage, ToolResult, UserMessage},
    ids::Seq,
    message::{Block, Role},
};
use std::{collections::BTreeSet, sync::Arc};

pub(super) fn system(state: &mut LogState, event: &Arc<Event>, data: &SystemMessage) -> Check {
    let seq = event.seq;
    ensure!(data.message.role == Role::System, "grammar", seq, "a system message is of role system");
    settle::admit(state, seq, Rank::System)?;
    let node = Node { event: Arc::clone(event), role: Role::System };
    let live = state.live_system.as_ref().map(|live| live.seq);
    match event.body.surface {
        Some(SurfaceOp::Append) => {
            ensure!(
                live.is_some() || state.surface.is_empty(),
                "I-22",
                seq,
                "the first system message goes to the front"
            );
            if let (Some(_), Some(step)) = (live, state.open_step_mut()) {
                // The header of this admission says whether the route reads it so; it comes behind.
                step.system_appended = true;
            }
            state.surface.push_back(node);
        }
        Some(SurfaceOp::Prepend) => {
            ensure!(live.is_none(), "I-22", seq, "a system node stands already");
            state.surface.push_front(node);
        }
        Some(SurfaceOp::Replace { start, end }) => {
            let hidden = state.surface.get(start as usize).map(|node| node.event.seq);
            let exact = start == end && hidden.is_some() && hidden == live;
            ensure!(exact, "I-22", seq, "a system message replaces exactly the live system node");
            cites_all(event, hidden.into_iter())?;
            state.surface.set(start as usize, node);
        }
        None => {}
    }
    state.live_system = Some(Arc::clone(event));
    Ok(())
}

pub(super) fn user(state: &mut LogState, event: &Arc<Event>, data: &UserMessage) -> Check {
    let seq = event.seq;
    ensure!(data.message.role == Role::User, "grammar", seq, "a user message is of role user");
    let node = Node { event: Arc::clone(event), role: Role::User };
    match event.body.surface {
        Some(SurfaceOp::Append) => {
            admit_items(state, event, data)?;
            state.surface.push_back(node);
        }
        Some(SurfaceOp::Replace { start, end }) => {
            rewritable(state, seq)?;
            ensure!(data.items.is_empty(), "I-11", seq, "a summary stands for no item of the inbox");
            let (start, end) = range(state, start, end, seq)?;
            hides_well(state, event, start, end)?;
            let mut rest = state.surface.split_off(start);
            let tail = rest.split_off(end - start + 1);
            state.surface.push_back(node);
            state.surface.append(tail);
            state.generation += 1;
        }
        Some(SurfaceOp::Prepend) => {
            return Err(broken("I-21", seq, "only a system message goes to the front"));
        }
        None => {}
    }
    Ok(())
}

fn admit_items(state: &mut LogState, event: &Event, data: &UserMessage) -> Check {
    let seq = event.seq;
    let late = state.open_step_mut().is_some_and(|step| step.attempt.0 > 0);
    ensure!(!late, "I-12", seq, "users join history before the first attempt of a step");
    settle::admit(state, seq, Rank::User)?;
    distinct(&data.items, "I-11", seq)?;
    let Some(turn) = state.turn.as_mut() else { return Ok(()) };
    for id in &data.items {
        let Some(at) = turn.claimed.iter().rposition(|item| item.item.id == *id && !item.admitted) else {
            return Err(broken("I-11", seq, format!("item {id} is not claimed by this turn, or is admitted already")));
        };
        if let Some(item) = turn.claimed.get_mut(at) {
            item.admitted = true;
        }
        state.fates.insert(id.clone(), ItemFate::Admitted(turn.turn));
    }
    Ok(())
}

/// A tool result that takes the place of an older form of itself (I-23).
pub(super) fn prune(state: &mut LogState, event: &Arc<Event>, data: &ToolResult, start: u32, end: u32) -> Check {
    let seq = event.seq;
    rewritable(state, seq)?;
    let (start, end) = range(state, start, end, seq)?;
    ensure!(start == end, "I-23", seq, "a result is rewritten alone, not with its neighbours");
    let Some(old) = state.surface.get(start) else { return Ok(()) };
    let same = matches!(&old.event.body.data, EventData::ToolResult(before)
        if (before.turn, before.step, &before.message.call_id) == (data.turn, data.step, &data.message.call_id));
    ensure!(same, "I-23", seq, "a result takes the place of the result of the same call only");
    cites_all(event, std::iter::once(old.event.seq))?;
    state.surface.set(start, Node { event: Arc::clone(event), role: Role::Tool });
    state.generation += 1;
    Ok(())
}

/// A rewrite stands outside of turns, between steps, or between a failed attempt and the next one (2.4).
fn rewritable(state: &mut LogState, seq: Seq) -> Check {
    if let Some(step) = state.open_step_mut() {
        let recovering = step.gate == Gate::Open && step.attempt.0 > 0;
        ensure!(recovering, "grammar", seq, "the surface is not rewritten while a request may be under way");
    }
    Ok(())
}

fn range(state: &LogState, start: u32, end: u32, seq: Seq) -> Result<(usize, usize), super::Violation> {
    let (start, end) = (start as usize, end as usize);
    let inside = start <= end && end < state.surface.len();
    ensure!(inside, "I-21", seq, "nodes {start} to {end} are not in a surface of {}", state.surface.len());
    Ok((start, end))
}

fn cites_all(event: &Event, mut hidden: impl Iterator<Item = Seq>) -> Check {
    let cited: BTreeSet<Seq> = event.body.cites.iter().copied().collect();
    match hidden.find(|seq| !cited.contains(seq)) {
        Some(missing) => Err(broken("I-21", event.seq, format!("it hides event {missing} without citing it"))),
        None => Ok(()),
    }
}

/// A summary hides whole exchanges, no instructions, and not what the open turn asks (I-21, I-22, M-20).
fn hides_well(state: &LogState, event: &Event, start: usize, end: usize) -> Check {
    let seq = event.seq;
    let hidden = || state.surface.focus_range(start, end);
    cites_all(event, hidden().map(|node| node.event.seq))?;
    ensure!(!hidden().any(|node| node.role == Role::System), "I-22", seq, "it hides the system message");
    let cuts_front = state.surface.get(start).is_some_and(|node| node.role == Role::Tool);
    let cuts_back = state.surface.get(end + 1).is_some_and(|node| node.role == Role::Tool);
    ensure!(!cuts_front && !cuts_back, "I-21", seq, "it parts calls from their results");
    if let Some(turn) = &state.turn {
        let asks = |node: &&Node| {
            node.role == Role::User
                && node.event.seq >= turn.started
                && node.event.body.surface == Some(SurfaceOp::Append)
        };
        let newest = hidden().filter(asks).map(|node| node.event.seq).max();
        let kept = state.surface.iter().skip(end + 1).any(|node| asks(&node));
        ensure!(newest.is_none() || kept, "M-20", seq, "it hides the newest input of the open turn");
    }
    Ok(())
}

impl LogState {
    pub(super) fn open_step_mut(&mut self) -> Option<&mut super::OpenStep> {
        self.turn.as_mut().and_then(|turn| turn.step.as_mut())
    }
}

/// Nodes of a part of the surface.
trait Part {
    fn focus_range(&self, start: usize, end: usize) -> impl Iterator<Item = &Node>;
}

impl Part for imbl::Vector<Node> {
    fn focus_range(&self, start: usize, end: usize) -> impl Iterator<Item = &Node> {
        self.iter().skip(start).take(end - start + 1)
    }
}

/// Whether a message holds text or reasoning that a person could see.
pub(super) fn speaks(content: &[Block]) -> bool {
    content.iter().any(|block| match block {
        Block::Text { .. } | Block::Reasoning { .. } => block.is_visible(),
        Block::ToolCall { .. } | Block::Image { .. } => false,
    })
}
