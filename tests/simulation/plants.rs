//! Planted bugs: what a machine would do if a rule were forgotten. Each must be caught, or the simulation is blind.

use super::{disk::Disk, life::Who};
use everturn_actors::{
    protocol::CheckpointKind,
    tool_pool::code,
    turn::{FailedBy, Input, Outcome},
};
use everturn_storage::{
    event::{
        Digest, EventBody, EventData, FinishLabel, HeaderReason, InboxClaimed, InboxRestored, Origin, ToolResult,
        TurnReason, UserMessage,
    },
    ids::{ItemId, MessageId},
    log::LogState,
    message::{Block, Message, Role},
};
use std::collections::BTreeMap;

/// One forgotten rule, with the seed that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Plant {
    /// The real machines.
    #[default]
    None,
    /// \[S2\] The model is asked before the admission is durable.
    SkipCpR,
    /// \[S2\] A tool runs before its call is durable.
    SkipCpX,
    /// \[S0\] The next turn begins before the checkpoint of this one has settled.
    SkipCpT,
    /// \[S0\] A receipt is given before the record is durable.
    SkipReceiptSync,
    /// \[S0\] Two sends share a turn.
    TwoSendsInOneTurn,
    /// \[S2\] Users become history before the route has accepted the request.
    UsersBeforePrepare,
    /// \[S2\] A retry appends the users again.
    UsersAgainOnRetry,
    /// \[S2\] Results are recorded as they finish.
    ResultsInFinishOrder,
    /// \[S2\] The prefix of a failed attempt becomes history.
    PromoteFailedPrefix,
    /// \[S2\] An extension's error is retried.
    RetryExtensionErrors,
    /// \[S2\] Repair gives back what had been admitted.
    RestoreAdmitted,
    /// \[S2\] Repair leaves calls without results.
    RepairForgetsResults,
    /// \[S0\] A refused prompt becomes history all the same.
    RejectedBecomesHistory,
    /// \[S3\] A turn is closed while its step is open.
    StepEndForgotten,
    /// \[S2\] Calls that a cancel skipped leave no trace.
    SkippedCallsForgotten,
    /// \[S0\] The queue stops behind a turn that failed.
    StopBehindErrors,
    /// \[S0\] A wake is lost.
    LostWake,
    /// \[S2\] A request envelope is not recorded again after a restart or a change.
    HeaderForgotten,
    /// \[S2\] The request that was sent is not the one that follows from the log.
    OtherRequest,
    /// \[S2\] A claimed item is neither admitted nor accounted for.
    UnadmittedForgotten,
    /// \[D\] A failed sync is answered as if it had worked (BR-040).
    FailedSyncAcked,
    /// \[S2\] A body is run a second time.
    BodyTwice,
    /// \[S2\] A caller is answered twice.
    AnswerTwice,
    /// \[S0\] A later message is taken before an earlier one.
    ClaimOutOfOrder,
    /// \[S2\] A turn is ended twice.
    TurnEndTwice,
    /// \[D\] The disk loses what it said was synced, and nobody notices.
    DiskLies,
    /// \[S3\] A step gets the number of another one.
    WrongStepNumber,
    /// \[S2\] A body runs without a record of its call.
    CallForgotten,
}

impl Plant {
    /// All of them.
    pub(crate) const ALL: [Self; 28] = [
        Self::SkipCpR,
        Self::SkipCpX,
        Self::SkipCpT,
        Self::SkipReceiptSync,
        Self::TwoSendsInOneTurn,
        Self::UsersBeforePrepare,
        Self::UsersAgainOnRetry,
        Self::ResultsInFinishOrder,
        Self::PromoteFailedPrefix,
        Self::RetryExtensionErrors,
        Self::RestoreAdmitted,
        Self::RepairForgetsResults,
        Self::RejectedBecomesHistory,
        Self::StepEndForgotten,
        Self::SkippedCallsForgotten,
        Self::StopBehindErrors,
        Self::LostWake,
        Self::HeaderForgotten,
        Self::OtherRequest,
        Self::UnadmittedForgotten,
        Self::FailedSyncAcked,
        Self::BodyTwice,
        Self::AnswerTwice,
        Self::ClaimOutOfOrder,
        Self::TurnEndTwice,
        Self::DiskLies,
        Self::WrongStepNumber,
        Self::CallForgotten,
    ];

    /// Whether a checkpoint of this kind is answered without the disk.
    pub(crate) fn skips(self, kind: CheckpointKind) -> bool {
        match self {
            Self::SkipCpR => kind == CheckpointKind::Request,
            Self::SkipCpX => kind == CheckpointKind::Execute,
            Self::SkipCpT => kind == CheckpointKind::Turn,
            Self::SkipReceiptSync => kind == CheckpointKind::Accept,
            _ => false,
        }
    }

    /// What the machine hears; `None` when it hears nothing.
    pub(crate) fn machine_input(self, input: Input) -> Option<Input> {
        match (self, input) {
            (Self::LostWake, Input::Wake) => None,
            (Self::PromoteFailedPrefix, Input::Settled { token, mut settlement }) => {
                if matches!(settlement.outcome, Outcome::Failed { .. }) {
                    let blocks = vec![Block::text("half an answer")];
                    settlement.outcome = Outcome::Finished { blocks, finish: FinishLabel::Stop };
                }
                Some(Input::Settled { token, settlement })
            }
            (Self::RetryExtensionErrors, Input::Settled { token, mut settlement }) => {
                if let Outcome::Failed { by, .. } = &mut settlement.outcome
                    && *by == FailedBy::Consumer
                {
                    *by = FailedBy::Provider;
                }
                Some(Input::Settled { token, settlement })
            }
            (_, input) => Some(input),
        }
    }

    /// What is written.
    pub(crate) fn append(self, who: Who, mut events: Vec<EventBody>, disk: &Disk) -> Vec<EventBody> {
        match self {
            Self::TwoSendsInOneTurn => {
                let state = &disk.state;
                for event in &mut events {
                    if let EventData::InboxClaimed(InboxClaimed { ids, .. }) = &mut event.data
                        && let Some(more) = state.next_turn().iter().find(|row| !ids.contains(&row.item.id))
                    {
                        ids.push(more.item.id.clone());
                    }
                }
            }
            Self::UsersBeforePrepare if has(&events, |data| matches!(data, EventData::StepStart(_))) => {
                events.extend(claimed_users(&disk.state));
            }
            Self::UsersAgainOnRetry if has(&events, |data| matches!(data, EventData::RetryStarted(_))) => {
                events.extend(admitted_users(&disk.state));
            }
            Self::RejectedBecomesHistory if has(&events, |data| matches!(data, EventData::PromptBlocked(_))) => {
                let users = claimed_users(&disk.state);
                events.splice(0..0, users);
            }
            Self::ResultsInFinishOrder if matches!(who, Who::Pool(_)) => swap_result(&mut events, &disk.state),
            Self::SkippedCallsForgotten => events.retain(|event| !is_skipped(&event.data)),
            Self::StepEndForgotten if events.len() > 1 => {
                events.retain(|event| !matches!(event.data, EventData::StepEnd(_)));
            }
            Self::HeaderForgotten => events.retain(|event| match &event.data {
                EventData::RequestHeader(header) => header.reason == HeaderReason::Initial,
                _ => true,
            }),
            Self::OtherRequest => {
                for event in &mut events {
                    if let EventData::AssistantMessage(message) = &mut event.data {
                        message.request_digest = Digest([7; 32]);
                    }
                }
            }
            Self::ClaimOutOfOrder => {
                let state = &disk.state;
                for event in &mut events {
                    if let EventData::InboxClaimed(InboxClaimed { ids, .. }) = &mut event.data
                        && let [first, second, ..] = state.next_turn().iter().collect::<Vec<_>>()[..]
                        && let Some(at) = ids.iter().position(|id| *id == first.item.id)
                    {
                        ids[at] = second.item.id.clone();
                    }
                }
            }
            Self::TurnEndTwice => {
                let again = events.iter().find(|event| matches!(event.data, EventData::TurnEnd(_))).cloned();
                events.extend(again);
            }
            Self::WrongStepNumber => {
                for event in &mut events {
                    if let EventData::StepStart(start) = &mut event.data
                        && start.step.0 > 1
                    {
                        start.step.0 = 1;
                    }
                }
            }
            Self::CallForgotten => events.retain(|event| !matches!(event.data, EventData::ToolCall(_))),
            Self::UnadmittedForgotten => {
                for event in &mut events {
                    if let EventData::TurnEnd(end) = &mut event.data {
                        end.unadmitted.clear();
                    }
                }
            }
            _ => {}
        }
        events
    }

    /// What repair writes.
    pub(crate) fn repair(self, mut events: Vec<EventBody>, state: &LogState) -> Vec<EventBody> {
        match self {
            Self::RepairForgetsResults => events.retain(|event| !matches!(event.data, EventData::ToolResult(_))),
            Self::RestoreAdmitted => {
                let admitted: Vec<ItemId> = state
                    .open_turn()
                    .map(|turn| turn.claimed.iter().filter(|row| row.admitted).map(|row| row.item.id.clone()).collect())
                    .unwrap_or_default();
                if !admitted.is_empty() {
                    let counts: BTreeMap<_, _> = admitted.iter().map(|id| (id.clone(), 1)).collect();
                    events.push(InboxRestored { ids: admitted, counts }.into());
                }
            }
            _ => {}
        }
        events
    }

    /// Whether the queue stops behind a turn that ended so.
    pub(crate) fn stops_behind(self, reason: &TurnReason) -> bool {
        self == Self::StopBehindErrors && matches!(reason, TurnReason::Error { .. } | TurnReason::Rejected { .. })
    }
}

fn has(events: &[EventBody], test: impl Fn(&EventData) -> bool) -> bool {
    events.iter().any(|event| test(&event.data))
}

fn is_skipped(data: &EventData) -> bool {
    match data {
        EventData::ToolResult(result) => {
            result.error.as_ref().is_some_and(|error| error.code == code::ABORTED_BEFORE_DISPATCH)
        }
        _ => false,
    }
}

fn user(id: &ItemId) -> EventBody {
    let message = Message {
        id: MessageId::trusted(format!("planted-{id}")),
        role: Role::User,
        content: vec![Block::text("planted")],
        source: None,
    };
    EventBody::appended(EventData::UserMessage(UserMessage { message, origin: Origin::Send, items: vec![id.clone()] }))
}

fn claimed_users(state: &LogState) -> Vec<EventBody> {
    let rows = state.open_turn().map(|turn| turn.claimed.clone()).unwrap_or_default();
    rows.iter().filter(|row| !row.admitted).map(|row| user(&row.item.id)).collect()
}

fn admitted_users(state: &LogState) -> Vec<EventBody> {
    let rows = state.open_turn().map(|turn| turn.claimed.clone()).unwrap_or_default();
    rows.iter().filter(|row| row.admitted).map(|row| user(&row.item.id)).collect()
}

/// Gives a result to a later call that is logged, as if that one had finished first.
fn swap_result(events: &mut [EventBody], state: &LogState) {
    let step = state.open_turn().and_then(|turn| turn.step.as_ref());
    let Some(settled) = step.and_then(|step| step.settled.as_ref()) else { return };
    for event in events {
        if let EventData::ToolResult(ToolResult { message, .. }) = &mut event.data
            && let Some(other) = settled
                .calls
                .iter()
                .find(|call| call.called.is_some() && call.resulted.is_none() && call.call_id != message.call_id)
        {
            message.call_id = other.call_id.clone();
            event.cites = other.called.into_iter().collect();
            return;
        }
    }
}
