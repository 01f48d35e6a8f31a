//! Property 253: a log that was changed in one place is refused, or the change is one of the neutral ones.
#![allow(clippy::wildcard_enum_match_arm, reason = "a list of changes names what it changes")]

use crate::{
    event::*,
    ids::*,
    log::{tools::TOOL_NOT_STARTED, verify::Verifier},
    message::Block,
    testing::{
        logs::{Dice, MAX_PARALLEL, random_log},
        sample::item_id,
    },
};
use proptest::prelude::*;
use std::sync::Arc;

/// What was done to a log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Drop,
    Duplicate,
    Swap,
    Edit(&'static str),
}

/// Whether the event may stand at almost any place: it says nothing of its neighbours (FREE of 2.4).
fn is_free(event: &Event) -> bool {
    matches!(
        event.body.data,
        EventData::InboxQueued(_)
            | EventData::InboxEdited(_)
            | EventData::InboxMoved(_)
            | EventData::InboxRemoved(_)
            | EventData::SessionOpened(_)
            | EventData::Plugin(_)
    )
}

/// A rewrite of the surface stands between turns, steps or attempts alike.
fn is_rewrite(event: &Event) -> bool {
    let of_users = matches!(event.body.data, EventData::UserMessage(_) | EventData::ToolResult(_));
    of_users && event.body.surface != Some(SurfaceOp::Append)
}

fn is_prune(event: &Event) -> bool {
    matches!(event.body.data, EventData::ToolResult(_)) && event.body.surface != Some(SurfaceOp::Append)
}

fn settled_step(event: &Event) -> Option<(Turn, Step)> {
    match &event.body.data {
        EventData::AssistantMessage(data) => Some((data.turn, data.step)),
        EventData::AssistantAttempt(data) => Some((data.turn, data.step)),
        _ => None,
    }
}

fn names(event: &Event, id: &ItemId) -> bool {
    match &event.body.data {
        EventData::UserMessage(data) => data.items.contains(id),
        EventData::TurnEnd(data) => data.unadmitted.contains(id),
        _ => false,
    }
}

/// Whether the changed log is one that a valid history could have written as well, so that no rule can see the
/// change. The list is closed: every other change must be refused. `events` is the log before the change.
fn is_neutral(events: &[Event], at: usize, change: Change) -> bool {
    use EventData as E;
    let event = &events[at];
    let later = || events[at + 1..].iter().filter_map(settled_step);
    // What only the model reads is bound by the digest of the next request, and by nothing else.
    let unread = later().next().is_none();
    let next_header = events[at + 1..]
        .iter()
        .position(|event| matches!(event.body.data, E::RequestHeader(_)))
        .map_or(events.len(), |gap| at + 1 + gap);
    let unused = events[at + 1..next_header].iter().filter_map(settled_step).next().is_none();
    match change {
        // A prefix is an open log (252), and what is free may follow it.
        Change::Drop if events[at + 1..].iter().all(|later| is_free(later) || is_rewrite(later)) => true,
        Change::Drop => match &event.body.data {
            _ if is_free(event) => true,
            E::RequestContext(_) => true,
            // Results alone made that proposal then, and nothing became of the items.
            E::InboxClaimed(data) if data.proposal > Proposal(1) => {
                !data.ids.iter().any(|id| events[at + 1..].iter().any(|later| names(later, id)))
            }
            E::UserMessage(_) | E::SystemMessage(_) | E::AssistantMessage(_) => unread,
            E::RequestHeader(data) => {
                // How a route reads a new system prompt is in no request.
                let last = events[..at].iter().rev().find_map(|event| match &event.body.data {
                    E::RequestHeader(last) => Some(last),
                    _ => None,
                });
                unused || last.is_some_and(|last| (&last.config, &last.tools) == (&data.config, &data.tools))
            }
            E::ToolResult(_) if is_prune(event) => unread,
            // The log ends before the next result or the end of the step would miss it.
            E::ToolResult(_) => !events[at + 1..]
                .iter()
                .any(|later| !is_prune(later) && matches!(later.body.data, E::ToolResult(_) | E::StepEnd(_))),
            E::ToolCall(data) => !events[at + 1..].iter().any(|later| match &later.body.data {
                E::ToolResult(result) => result.message.call_id == data.call_id && !is_prune(later),
                E::ToolCall(_) | E::StepEnd(_) => true,
                _ => false,
            }),
            // An attempt that nothing came of in its step; so are retries that led to none.
            E::AssistantAttempt(data) => later().all(|step| step != (data.turn, data.step)),
            E::RetryScheduled(data) => later().all(|step| step != (data.turn, data.step)),
            E::RetryStarted(_) => {
                let step = events[..at].iter().rev().find_map(settled_step);
                later().all(|later| Some(later) != step)
            }
            _ => false,
        },
        // Said twice it says the same.
        Change::Duplicate => match &event.body.data {
            E::InboxEdited(_) | E::InboxMoved(_) | E::Plugin(_) => true,
            // An addition of a policy stands for no item; it may have been made twice.
            E::UserMessage(data) => unread && data.items.is_empty(),
            _ => false,
        },
        Change::Swap => {
            let other = &events[at + 1];
            let tools = |event: &Event| matches!(event.body.data, E::ToolCall(_) | E::ToolResult(_));
            let loose = |event: &Event| is_free(event) || is_rewrite(event);
            // The context is no part of the request: it may belong to this attempt or to the next one.
            let context = |a: &Event, b: &Event| {
                matches!((&a.body.data, &b.body.data), (E::RequestContext(_), E::AssistantAttempt(_)))
            };
            let about = context(event, other) || context(other, event);
            // A policy may have put the batch into another order.
            let users = |event: &Event| matches!(event.body.data, E::UserMessage(_));
            let reordered = unread && users(event) && users(other);
            loose(event) || loose(other) || about || reordered || (tools(event) && tools(other))
        }
        Change::Edit(field) => match (&event.body.data, field) {
            // An item that nothing happened to.
            (E::InboxQueued(_), "id") => true,
            (E::RequestHeader(_), "model") => unused,
            // The number of the first opening.
            (E::SessionOpened(_), "epoch") => at == 0,
            // There is no call that it could cite.
            (E::ToolResult(data), "cites") => data.error.as_ref().is_some_and(|error| error.code == TOOL_NOT_STARTED),
            _ => false,
        },
    }
}

/// Events again with places 0, 1, 2, …; `moved` says where the event of an old place went.
fn renumbered(events: Vec<Event>) -> Vec<Event> {
    let moved: std::collections::BTreeMap<Seq, Seq> =
        events.iter().zip(0..).map(|(event, place)| (event.seq, Seq(place))).collect();
    let place = |seq: &Seq| moved.get(seq).copied().unwrap_or(*seq);
    events
        .into_iter()
        .zip(0..)
        .map(|(mut event, seq)| {
            event.body.cites = event.body.cites.iter().map(place).collect();
            event.seq = Seq(seq);
            event
        })
        .collect()
}

/// Changes the log at `at`; `None` when that changed nothing.
fn mutate(events: &mut Vec<Event>, at: usize, dice: &mut Dice) -> Option<Change> {
    match dice.roll(5) {
        0 => {
            events.remove(at);
            *events = renumbered(std::mem::take(events));
            Some(Change::Drop)
        }
        1 => {
            let copy = events[at].clone();
            events.insert(at + 1, copy);
            // Both copies have one old place; the first keeps what cites it.
            let late = |cite: &Seq| if cite.0 > at as u64 { cite.next() } else { *cite };
            for (event, seq) in events.iter_mut().zip(0..) {
                event.body.cites = event.body.cites.iter().map(late).collect();
                event.seq = Seq(seq);
            }
            Some(Change::Duplicate)
        }
        2 => {
            let same = at + 1 == events.len() || events[at].body == events[at + 1].body;
            if same {
                return None;
            }
            events.swap(at, at + 1);
            *events = renumbered(std::mem::take(events));
            Some(Change::Swap)
        }
        _ => {
            let before = events[at].clone();
            let field = edit(&mut events[at], dice);
            (events[at] != before).then_some(Change::Edit(field))
        }
    }
}

/// Changes one field of one event; returns which.
fn edit(event: &mut Event, dice: &mut Dice) -> &'static str {
    let side = dice.roll(4);
    match &mut event.body.data {
        EventData::InboxQueued(data) if side < 2 => {
            data.item.id = item_id("other");
            "id"
        }
        EventData::InboxClaimed(data) => match side {
            0 => {
                data.turn = data.turn.next();
                "turn"
            }
            1 => {
                data.proposal = data.proposal.next();
                "proposal"
            }
            2 => {
                data.step = data.step.next();
                "step"
            }
            _ => {
                data.ids.push(item_id("other"));
                "ids"
            }
        },
        EventData::InboxRemoved(data) => {
            data.ids.push(item_id("other"));
            "ids"
        }
        EventData::InboxMoved(data) => {
            data.ids.pop();
            "ids"
        }
        EventData::InboxRestored(data) => {
            data.counts.values_mut().for_each(|count| *count += 1);
            "counts"
        }
        EventData::TurnStart(data) => {
            data.turn = data.turn.next();
            "turn"
        }
        EventData::TurnEnd(data) => match side {
            0 => {
                data.steps += 1;
                "steps"
            }
            1 => {
                data.unadmitted.push(item_id("other"));
                "unadmitted"
            }
            2 => {
                data.reason = TurnReason::Interrupted;
                "reason"
            }
            _ => {
                data.turn = data.turn.next();
                "turn"
            }
        },
        EventData::StepStart(data) => {
            data.step = data.step.next();
            "step"
        }
        EventData::StepEnd(data) => {
            data.step = data.step.next();
            "step"
        }
        EventData::PromptBlocked(data) => {
            data.ids.push(item_id("other"));
            "ids"
        }
        EventData::UserMessage(data) if side < 2 => {
            data.items.push(item_id("other"));
            "items"
        }
        EventData::RequestHeader(data) => {
            if side < 2 {
                data.config.model.push('x');
                "model"
            } else {
                data.reason = match data.reason {
                    HeaderReason::Initial => HeaderReason::Change,
                    HeaderReason::Resume | HeaderReason::Change => HeaderReason::Initial,
                };
                "reason"
            }
        }
        EventData::AssistantMessage(data) => match side {
            0 => {
                data.attempt = data.attempt.next();
                "attempt"
            }
            1 => {
                data.request_digest.0[0] ^= 1;
                "digest"
            }
            2 => {
                data.message.content.push(Block::text("more"));
                "content"
            }
            _ => {
                data.provider.push('x');
                "provider"
            }
        },
        EventData::AssistantAttempt(data) => match side {
            0 => {
                data.attempt = data.attempt.next();
                "attempt"
            }
            1 => {
                data.model.push('x');
                "model"
            }
            _ => {
                data.request_digest.0[0] ^= 1;
                "digest"
            }
        },
        EventData::ToolCall(data) => match side {
            0 => {
                data.call_id = CallId::trusted("other");
                "call"
            }
            1 => {
                data.name.push('x');
                "name"
            }
            _ => {
                data.arguments.push(' ');
                "arguments"
            }
        },
        EventData::ToolResult(data) => match side {
            0 => {
                data.message.call_id = CallId::trusted("other");
                "call"
            }
            1 => {
                event.body.cites.clear();
                "cites"
            }
            _ => {
                data.step = data.step.next();
                "step"
            }
        },
        EventData::RetryScheduled(data) => {
            data.retry += 1;
            "retry"
        }
        EventData::RetryStarted(data) => {
            data.retry_id = RetryId::trusted("other");
            "id"
        }
        EventData::SessionOpened(data) => {
            data.epoch = Epoch(0);
            "epoch"
        }
        EventData::InboxQueued(_)
        | EventData::InboxEdited(_)
        | EventData::SystemMessage(_)
        | EventData::UserMessage(_)
        | EventData::RequestContext(_)
        | EventData::Plugin(_) => {
            event.body.surface = match event.body.surface {
                None => Some(SurfaceOp::Append),
                Some(_) => None,
            };
            "surface"
        }
    }
}

fn refused(events: Vec<Event>) -> bool {
    let mut verifier = Verifier::new(SessionId::trusted("s"), Some(MAX_PARALLEL));
    for event in events {
        verifier.event(&Arc::new(event));
    }
    let open = !verifier.state().at_border();
    open || !verifier.finish().is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Property 253.
    #[test]
    fn a_changed_log_is_refused(seed in any::<u64>(), appends in 1..60_usize, change in any::<u64>()) {
        let log: Vec<Event> = random_log(seed, appends).events().iter().map(|event| (**event).clone()).collect();
        let mut dice = Dice::new(change);
        let at = dice.roll(log.len() as u32) as usize;
        let mut changed = log.clone();
        if let Some(change) = mutate(&mut changed, at, &mut dice)
            && !is_neutral(&log, at, change)
        {
            prop_assert!(refused(changed), "{change:?} of {:?} was not seen", log[at]);
        }
    }
}
