//! Where turns and steps begin and end (I-2 to I-6, I-11, I-13, I-26, I-32).

use super::{
    ItemFate, LogState, OpenStep, OpenTurn, TurnRow,
    check::{Check, Expect, broken, distinct, ensure},
    settle::Gate,
};
use crate::{
    event::{Event, PromptBlocked, StepEnd, StepStart, TurnEnd, TurnReason, TurnStart},
    ids::{Attempt, Proposal, Step, Turn},
    message::Usage,
};
use imbl::{OrdMap, Vector};
use std::collections::BTreeSet;

pub(super) fn turn_start(state: &mut LogState, event: &Event, data: &TurnStart) -> Check {
    ensure!(state.turn.is_none(), "I-2", event.seq, "a turn is open already");
    let turn = state.last_turn().next();
    ensure!(data.turn == turn, "I-3", event.seq, "the next turn is {turn}");
    state.turn = Some(OpenTurn {
        turn,
        started: event.seq,
        proposals: Proposal(0),
        steps: 0,
        claimed: Vector::new(),
        step: None,
        max_tokens: false,
        owed_results: false,
        usage: Usage::default(),
        answer: None,
        unstepped: false,
        cut: false,
        settled_last: true,
        blocked: Vec::new(),
    });
    state.expect = Expect::FirstClaim;
    Ok(())
}

pub(super) fn step_start(state: &mut LogState, event: &Event, data: &StepStart) -> Check {
    let (seq, generation) = (event.seq, state.generation);
    let turn = open_turn(state, event, data.turn)?;
    ensure!(turn.step.is_none(), "I-2", seq, "a step is open already");
    ensure!(data.step.0 == turn.steps + 1, "I-3", seq, "the next step is {}", turn.steps + 1);
    ensure!(!turn.cut, "I-26", seq, "a turn that was cut goes on with nothing");
    ensure!(
        turn.unstepped || turn.owed_results,
        "grammar",
        seq,
        "a step needs a claim or results that the model has not seen"
    );
    if !turn.unstepped {
        // Results alone made this proposal; it took nothing from the inbox.
        turn.proposals = turn.proposals.next();
    }
    turn.unstepped = false;
    turn.settled_last = false;
    turn.steps = data.step.0;
    turn.step = Some(OpenStep {
        step: data.step,
        admitted: false,
        attempt: Attempt(0),
        settled: None,
        generation,
        retries: OrdMap::new(),
        gate: Gate::Open,
        retry_ids: OrdMap::new(),
        waiting_retry: None,
        system_appended: false,
    });
    Ok(())
}

pub(super) fn step_end(state: &mut LogState, event: &Event, data: &StepEnd) -> Check {
    let seq = event.seq;
    let turn = open_turn(state, event, data.turn)?;
    let Some(step) = turn.step.take() else {
        return Err(broken("I-4", seq, "no step is open"));
    };
    ensure!(data.step == step.step, "I-4", seq, "the open step is {}", step.step);
    if let Some(settled) = &step.settled {
        if let Some(open) = settled.calls.iter().find(|call| call.resulted.is_none()) {
            return Err(broken("I-16", seq, format!("call {} has no result", open.call_id)));
        }
        turn.settled_last = !settled.interrupted;
    }
    turn.owed_results = step.settled.as_ref().is_some_and(|settled| !settled.calls.is_empty())
        || (turn.owed_results && step.settled.is_none());
    Ok(())
}

pub(super) fn blocked(state: &mut LogState, event: &Event, data: &PromptBlocked) -> Check {
    let seq = event.seq;
    distinct(&data.ids, "I-11", seq)?;
    let turn = open_turn(state, event, data.turn)?;
    ensure!(turn.step.is_none(), "I-13", seq, "a proposal is refused before its step");
    ensure!(!turn.cut, "I-26", seq, "a turn that was cut goes on with nothing");
    ensure!(turn.unstepped || turn.owed_results, "I-13", seq, "there is no proposal that could be refused");
    for id in &data.ids {
        let of_batch = turn.unstepped
            && turn
                .claimed
                .iter()
                .rev()
                .take_while(|item| item.proposal == turn.proposals)
                .any(|item| item.item.id == *id);
        ensure!(of_batch, "I-11", seq, "item {id} is not of the refused batch");
    }
    turn.blocked.clone_from(&data.ids);
    state.expect = Expect::RejectedEnd;
    Ok(())
}

pub(super) fn turn_end(state: &mut LogState, event: &Event, data: &TurnEnd) -> Check {
    let seq = event.seq;
    let was_blocked = matches!(state.expect, Expect::RejectedEnd);
    let repairing = state.repairing();
    let turn = open_turn(state, event, data.turn)?;
    ensure!(turn.step.is_none(), "I-4", seq, "step {} of the turn is open", turn.steps);
    ensure!(data.steps == turn.steps, "I-5", seq, "the turn had {} steps", turn.steps);
    reason(turn, event, &data.reason, was_blocked, repairing)?;
    distinct(&data.unadmitted, "I-11", seq)?;
    let listed: BTreeSet<_> = data.unadmitted.iter().collect();
    let left: Vector<_> = turn.claimed.iter().filter(|item| !item.admitted).cloned().collect();
    let exact = left.len() == listed.len() && left.iter().all(|item| listed.contains(&item.item.id));
    ensure!(exact, "I-11", seq, "unadmitted does not name exactly what was claimed and not admitted");
    let Some(turn) = state.turn.take() else { return Ok(()) };
    for item in &left {
        let id = item.item.id.clone();
        let fate =
            if turn.blocked.contains(&id) { ItemFate::Blocked(turn.turn) } else { ItemFate::Unadmitted(turn.turn) };
        state.fates.insert(id, fate);
    }
    state.turns.push_back(TurnRow {
        turn: turn.turn,
        started: turn.started,
        ended: seq,
        reason: data.reason.clone(),
        steps: turn.steps,
        usage: turn.usage,
        answer: turn.answer,
    });
    state.expect = if repairing && !left.is_empty() { Expect::Restored(left) } else { Expect::Nothing };
    Ok(())
}

/// Whether the turn may end in this way.
fn reason(turn: &OpenTurn, event: &Event, reason: &TurnReason, was_blocked: bool, repairing: bool) -> Check {
    let seq = event.seq;
    let (rejected, interrupted, aborted) = match reason {
        TurnReason::Completed => {
            ensure!(
                !turn.max_tokens,
                "I-32",
                seq,
                "a response ended on the output limit; the turn cannot be completed"
            );
            ensure!(turn.settled_last, "2.3", seq, "the last step has no answer; the turn cannot be completed");
            (false, false, false)
        }
        TurnReason::MaxTokens => {
            ensure!(turn.max_tokens, "I-32", seq, "no response ended on the output limit");
            ensure!(turn.settled_last, "2.3", seq, "the last step has no answer; the turn failed or was aborted");
            (false, false, false)
        }
        TurnReason::Rejected { .. } => (true, false, false),
        TurnReason::Interrupted => (false, true, false),
        TurnReason::Aborted { .. } => (false, false, true),
        TurnReason::Error { .. } => (false, false, false),
    };
    ensure!(
        rejected == was_blocked,
        "I-13",
        seq,
        "prompt/blocked stands before the end of a rejected turn, and only there"
    );
    ensure!(interrupted == repairing, "I-6", seq, "interrupted is what repair writes, and all that it writes");
    ensure!(!turn.cut || aborted || interrupted, "I-26", seq, "a turn whose response was cut ends aborted");
    Ok(())
}

/// The open turn, if it is `number`.
pub(super) fn open_turn<'a>(
    state: &'a mut LogState,
    event: &Event,
    number: Turn,
) -> Result<&'a mut OpenTurn, super::Violation> {
    match state.turn.as_mut() {
        Some(turn) if turn.turn == number => Ok(turn),
        Some(turn) => Err(broken("I-4", event.seq, format!("the open turn is {}", turn.turn))),
        None => Err(broken("I-2", event.seq, "no turn is open")),
    }
}

/// The open step, if it is `step` of `turn`.
pub(super) fn open_step<'a>(
    state: &'a mut LogState,
    event: &Event,
    turn: Turn,
    step: Step,
) -> Result<&'a mut OpenStep, super::Violation> {
    match open_turn(state, event, turn)?.step.as_mut() {
        Some(open) if open.step == step => Ok(open),
        Some(open) => Err(broken("I-4", event.seq, format!("the open step is {}", open.step))),
        None => Err(broken("I-2", event.seq, "no step is open")),
    }
}
