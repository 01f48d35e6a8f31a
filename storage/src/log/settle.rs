//! Admissions, requests and what became of them (I-3, I-25, I-26, I-29, I-30, I-32, 2.4).

use super::{
    CallRow, LogState, Node, OpenStep, SettledRow,
    check::{Check, broken, ensure},
    request::same_header,
    surface::speaks,
    turn_rules::{open_step, open_turn},
};
use crate::{
    event::{
        AssistantAttempt, AssistantMessage, AttemptOutcome, Event, EventData, FinishLabel, HeaderReason,
        RequestContext, RequestHeader, RetryMode, RetryScheduled, RetryStarted, SurfaceOp, SystemUpdate,
    },
    ids::{Attempt, Seq, Step, Turn},
    message::{Block, Role, Usage, plain_text},
};
use imbl::Vector;
use std::{collections::BTreeSet, sync::Arc};

/// The order of the events of an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    System,
    User,
    Header,
    Context,
}

/// Where a step stands between its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// An admission, a recovery or an attempt may follow.
    Open,
    /// An admission is under way; the last of its events.
    Within(Rank),
    /// The admission is complete; the attempt follows.
    Admitted,
    /// No attempt follows any more.
    Final,
}

impl Gate {
    pub(super) fn is_within(self) -> bool {
        matches!(self, Self::Within(_))
    }
}

/// Whether the event is one that an admission is made of.
pub(super) fn belongs_to_admission(event: &Event) -> bool {
    let data = &event.body.data;
    let user = matches!(data, EventData::UserMessage(_)) && event.body.surface == Some(SurfaceOp::Append);
    user || matches!(data, EventData::SystemMessage(_) | EventData::RequestHeader(_) | EventData::RequestContext(_))
}

/// The next event of an admission. It has its place, and nothing stands between it and the one before.
pub(super) fn admit(state: &mut LogState, seq: Seq, rank: Rank) -> Check {
    let generation = state.generation;
    let Some(step) = state.open_step_mut() else {
        return Err(broken("I-2", seq, "an admission belongs to an open step"));
    };
    let ordered = match step.gate {
        Gate::Open => true,
        Gate::Within(last) => rank > last || (rank == last && rank == Rank::User),
        Gate::Admitted => false,
        Gate::Final => return Err(broken("grammar", seq, "the step is settled, nothing is admitted any more")),
    };
    ensure!(ordered, "grammar", seq, "an admission is one append of system, users, header and context in this order");
    ensure!(step.waiting_retry.is_none(), "I-29", seq, "the retry that was scheduled has not started");
    step.gate = Gate::Within(rank);
    step.admitted = true;
    step.generation = generation;
    Ok(())
}

/// The admission under way is complete.
pub(super) fn close_admission(state: &mut LogState, seq: Seq) -> Check {
    let appends = state.header.as_ref().is_some_and(|header| header.system_update == SystemUpdate::Append);
    if let Some(step) = state.open_step_mut()
        && step.gate.is_within()
    {
        ensure!(
            !step.system_appended || appends,
            "I-22",
            seq,
            "the route replaces a system message, it does not add one"
        );
        step.gate = Gate::Admitted;
        step.system_appended = false;
    }
    Ok(())
}

pub(super) fn header(state: &mut LogState, event: &Event, data: &RequestHeader) -> Check {
    let seq = event.seq;
    admit(state, seq, Rank::Header)?;
    let finite = data.config.temperature.is_none_or(f64::is_finite);
    ensure!(finite, "2.1", seq, "the temperature is no finite number");
    let sorted = data.tools.windows(2).all(|pair| pair[0].name < pair[1].name);
    ensure!(sorted, "M-30", seq, "tools are unique and sorted by name");
    let since = state.opened.as_ref().is_some_and(|opened| opened.header_since);
    let due = match &state.header {
        None => Some(HeaderReason::Initial),
        Some(_) if !since => Some(HeaderReason::Resume),
        Some(last) => (!same_header(last, data)).then_some(HeaderReason::Change),
    };
    ensure!(due == Some(data.reason), "I-25", seq, "a header with reason {:?} is not due, but {due:?}", data.reason);
    state.header = Some(Arc::new(data.clone()));
    if let Some(opened) = &mut state.opened {
        opened.header_since = true;
    }
    Ok(())
}

pub(super) fn context(state: &mut LogState, event: &Event, data: &RequestContext) -> Check {
    admit(state, event.seq, Rank::Context)?;
    let differs = state.context.as_ref().is_none_or(|last| **last != *data);
    ensure!(differs, "M-32", event.seq, "the route context is the last one");
    state.context = Some(Arc::new(data.clone()));
    Ok(())
}

/// What holds for every settlement. The caller says how the step goes on.
fn settled(
    state: &mut LogState,
    event: &Event,
    at: (Turn, Step, Attempt),
    route: (&str, &str),
    usage: Option<Usage>,
) -> Check {
    let (seq, generation) = (event.seq, state.generation);
    let since = state.opened.as_ref().is_some_and(|opened| opened.header_since);
    let header = state.header.clone();
    let step = open_step(state, event, at.0, at.1)?;
    ensure!(step.gate != Gate::Final, "grammar", seq, "the step is settled already");
    ensure!(at.2 == step.attempt.next(), "I-3", seq, "the next attempt is {}", step.attempt.next());
    ensure!(step.waiting_retry.is_none(), "I-29", seq, "the retry that was scheduled has not started");
    let Some(header) = header.filter(|_| since) else {
        return Err(broken("I-25", seq, "no request/header stands since the last session/opened"));
    };
    let same = route == (header.config.provider.as_str(), header.config.model.as_str());
    ensure!(same, "I-30", seq, "the header names {}/{}", header.config.provider, header.config.model);
    step.attempt = at.2;
    step.admitted = true;
    step.generation = generation;
    let usage = usage.unwrap_or_default();
    state.usage = state.usage.plus(usage);
    if let Some(turn) = state.turn.as_mut() {
        turn.usage = turn.usage.plus(usage);
    }
    Ok(())
}

pub(super) fn message(state: &mut LogState, event: &Arc<Event>, data: &AssistantMessage) -> Check {
    let seq = event.seq;
    ensure!(event.body.surface == Some(SurfaceOp::Append), "I-21", seq, "a response goes to the end of the surface");
    ensure!(data.message.role == Role::Assistant, "grammar", seq, "a response is of role assistant");
    settled(state, event, (data.turn, data.step, data.attempt), (&data.provider, &data.model), data.usage)?;
    let calls = calls(data, seq)?;
    let interrupted = data.interrupted == Some(true);
    ensure!(
        interrupted == (data.finish == FinishLabel::Aborted),
        "I-26",
        seq,
        "a response is interrupted exactly when it ended aborted"
    );
    if interrupted {
        ensure!(calls.is_empty(), "I-26", seq, "an interrupted response carries no calls");
        ensure!(speaks(&data.message.content), "I-26", seq, "an interrupted response has something to read");
    }
    let limit = data.finish == FinishLabel::MaxTokens;
    ensure!(!limit || calls.is_empty(), "I-32", seq, "a response that ended on the output limit carries no calls");
    let turn = open_turn(state, event, data.turn)?;
    turn.max_tokens |= limit;
    turn.cut |= interrupted;
    if !interrupted && !plain_text(&data.message.content).trim().is_empty() {
        turn.answer = Some(seq);
    }
    if let Some(step) = turn.step.as_mut() {
        step.gate = Gate::Final;
        step.settled = Some(SettledRow { seq, calls, interrupted });
    }
    state.surface.push_back(Node { event: Arc::clone(event), role: Role::Assistant });
    Ok(())
}

fn calls(data: &AssistantMessage, seq: Seq) -> Result<Vector<CallRow>, super::Violation> {
    let mut ids = BTreeSet::new();
    let mut rows = Vector::new();
    for block in &data.message.content {
        match block {
            Block::ToolCall { call_id, name, arguments, .. } => {
                ensure!(!call_id.as_str().is_empty(), "I-18", seq, "a call has no id");
                ensure!(ids.insert(call_id.clone()), "I-18", seq, "call id {call_id} stands twice in one response");
                rows.push_back(CallRow {
                    call_id: call_id.clone(),
                    name: name.clone(),
                    arguments: arguments.clone(),
                    called: None,
                    resulted: None,
                });
            }
            Block::Text { .. } | Block::Reasoning { .. } | Block::Image { .. } => {}
        }
    }
    Ok(rows)
}

pub(super) fn attempt(state: &mut LogState, event: &Event, data: &AssistantAttempt) -> Check {
    settled(state, event, (data.turn, data.step, data.attempt), (&data.provider, &data.model), data.usage)?;
    let cancelled = match data.outcome {
        AttemptOutcome::Failed | AttemptOutcome::StreamError => false,
        AttemptOutcome::Cancelled => true,
    };
    ensure!(cancelled || data.failure.is_some(), "2.3", event.seq, "a failed attempt says why");
    if let Some(step) = state.open_step_mut() {
        step.gate = if cancelled { Gate::Final } else { Gate::Open };
    }
    Ok(())
}

/// A retry is about a failed attempt of the open step, before the next admission.
fn recovering(step: &OpenStep, seq: Seq) -> Check {
    let failed = step.attempt.0 > 0 && step.gate == Gate::Open;
    ensure!(failed, "grammar", seq, "a retry follows a failed attempt");
    Ok(())
}

pub(super) fn retry_scheduled(state: &mut LogState, event: &Event, data: &RetryScheduled) -> Check {
    let seq = event.seq;
    let step = open_step(state, event, data.turn, data.step)?;
    recovering(step, seq)?;
    ensure!(data.attempt == step.attempt, "I-29", seq, "the attempt that failed is {}", step.attempt);
    ensure!(step.waiting_retry.is_none(), "I-29", seq, "a retry is scheduled already");
    ensure!(!step.retry_ids.contains_key(&data.retry_id), "I-29", seq, "retry {} was scheduled before", data.retry_id);
    let key = (data.provider.clone(), data.policy_key.clone());
    let retry = step.retries.get(&key).copied().unwrap_or(0) + 1;
    ensure!(data.retry == retry, "I-29", seq, "the next retry of this budget is {retry}");
    let within = match data.mode {
        RetryMode::Normal => data.max_retries.is_none_or(|max| retry <= max),
        RetryMode::Always => true,
    };
    ensure!(within, "I-29", seq, "the budget of {:?} retries is spent", data.max_retries);
    step.retries.insert(key, retry);
    step.retry_ids.insert(data.retry_id.clone(), ());
    step.waiting_retry = Some(data.retry_id.clone());
    Ok(())
}

pub(super) fn retry_started(state: &mut LogState, event: &Event, data: &RetryStarted) -> Check {
    let seq = event.seq;
    let Some(step) = state.open_step_mut() else {
        return Err(broken("I-29", seq, "no step is open"));
    };
    recovering(step, seq)?;
    ensure!(step.waiting_retry.as_ref() == Some(&data.retry_id), "I-29", seq, "retry {} does not wait", data.retry_id);
    step.waiting_retry = None;
    Ok(())
}
