//! The events that the machine writes, built from what it knows.

use super::{
    input::{FailedBy, Outcome, Settlement},
    state::{Burial, Ending, Work},
};
use everturn_storage::{
    assemble::Assembler,
    chunk::StreamRecord,
    event::{
        AssistantAttempt, AssistantMessage, AttemptOutcome, EventBody, FinishLabel, PromptBlocked, RetryMode,
        RetryScheduled, StepEnd, StepStart, ToolCall, ToolError, ToolResult, TurnEnd, UserMessage,
    },
    ids::{MessageId, RetryId},
    log::{
        CallRow,
        request::{Admission, reconcile},
        tools::{ABORTED_BEFORE_DISPATCH, TOOL_OUTCOME_UNKNOWN},
    },
    message::{Block, Failure, Message, Role, ToolMessage},
};

/// S4.
pub(super) fn step_start(work: &Work) -> EventBody {
    StepStart { turn: work.turn, step: work.step() }.into()
}

/// S13.
pub(super) fn step_end(work: &Work) -> EventBody {
    StepEnd { turn: work.turn, step: work.step() }.into()
}

/// D5, with the open step in the same append (T-21).
pub(super) fn turn_end(work: &Work, ending: &Ending) -> Vec<EventBody> {
    let mut events = Vec::new();
    if work.in_step() {
        events.push(step_end(work));
    }
    events.extend(ending.blocked.clone().map(EventBody::from));
    events.push(
        TurnEnd { turn: work.turn, reason: ending.reason.clone(), steps: work.steps(), unadmitted: work.unadmitted() }
            .into(),
    );
    events
}

/// What a refused proposal leaves (R5).
pub(super) fn blocked(work: &Work, reason: String) -> PromptBlocked {
    PromptBlocked {
        turn: work.turn,
        ids: work.items.iter().map(|item| item.id.clone()).collect(),
        content: work.items.iter().flat_map(|item| item.message.content.iter().cloned()).collect(),
        source: work.items.first().and_then(|item| item.message.source.clone()),
        reason,
    }
}

/// S7. The users stand in the first attempt only (T-9); empty when nothing changed.
pub(super) fn admission(work: &Work, system_id: MessageId) -> Vec<EventBody> {
    let users = if work.attempt.0 > 1 { &[] } else { work.batch.as_slice() };
    let user = |said: &crate::ports::BatchMessage| UserMessage {
        message: said.message.clone(),
        origin: said.origin,
        items: said.items.clone(),
    };
    reconcile(
        &work.view,
        &Admission {
            system: work.assembly.system.clone(),
            system_id,
            users: users.iter().map(user).collect(),
            config: work.facts.config.clone(),
            defaulted: work.facts.defaulted.clone(),
            tools: work.assembly.tools.clone(),
            system_update: work.facts.system_update,
            context_window: work.facts.context_window,
            input_modalities: work.facts.input_modalities.clone(),
        },
    )
}

/// S11: the one event that ends an attempt. A cancel keeps what was visible, nothing else does (R20).
pub(super) fn settlement(work: &Work, settled: &Settlement) -> EventBody {
    let attempt = |outcome, failure: Option<&Failure>| {
        EventBody::from(AssistantAttempt {
            turn: work.turn,
            step: work.step(),
            attempt: work.attempt,
            provider: work.config().provider.clone(),
            model: work.config().model.clone(),
            outcome,
            failure: failure.cloned(),
            usage: settled.usage,
            stream: settled.stream.clone(),
            request_digest: work.digest,
        })
    };
    match &settled.outcome {
        Outcome::Finished { blocks, finish } => message(work, settled, blocks.clone(), *finish, None),
        Outcome::Failed { failure, by: FailedBy::Provider } => attempt(AttemptOutcome::Failed, Some(failure)),
        Outcome::Failed { failure, by: FailedBy::Stream | FailedBy::Consumer } => {
            attempt(AttemptOutcome::StreamError, Some(failure))
        }
        Outcome::Cancelled => {
            let prefix = visible_prefix(&settled.stream);
            if prefix.is_empty() {
                attempt(AttemptOutcome::Cancelled, None)
            } else {
                message(work, settled, prefix, FinishLabel::Aborted, Some(true))
            }
        }
    }
}

/// What a person had seen of a stream; empty when it was nothing but white space.
fn visible_prefix(stream: &StreamRecord) -> Vec<Block> {
    let mut assembler = Assembler::new();
    // A record holds only what the assembler took when it came.
    let taken = stream.chunks().all(|chunk| assembler.push(&chunk).is_ok());
    if taken && assembler.has_visible() { assembler.visible_prefix() } else { Vec::new() }
}

fn message(
    work: &Work,
    settled: &Settlement,
    content: Vec<Block>,
    finish: FinishLabel,
    interrupted: Option<bool>,
) -> EventBody {
    let message = Message { id: settled.message_id.clone(), role: Role::Assistant, content, source: None };
    EventBody::appended(
        AssistantMessage {
            turn: work.turn,
            step: work.step(),
            attempt: work.attempt,
            message,
            finish,
            usage: settled.usage,
            stream: settled.stream.clone(),
            interrupted,
            provider: work.config().provider.clone(),
            model: work.config().model.clone(),
            request_digest: work.digest,
        }
        .into(),
    )
}

/// What a scheduled retry says beside the turn.
pub(super) struct Schedule {
    /// Its id.
    pub retry_id: RetryId,
    /// The budget that it counts against.
    pub policy_key: &'static str,
    /// Which retry it is.
    pub retry: u32,
    /// How it is allowed.
    pub mode: RetryMode,
    /// The budget.
    pub max_retries: Option<u32>,
    /// The wait.
    pub delay_ms: u64,
    /// What failed.
    pub failure: Failure,
}

/// L-44.
pub(super) fn retry_scheduled(work: &Work, schedule: Schedule) -> EventBody {
    RetryScheduled {
        retry_id: schedule.retry_id,
        turn: work.turn,
        step: work.step(),
        attempt: work.attempt,
        provider: work.config().provider.clone(),
        policy_key: schedule.policy_key.to_owned(),
        mode: schedule.mode,
        retry: schedule.retry,
        max_retries: schedule.max_retries,
        delay_ms: schedule.delay_ms,
        failure: schedule.failure,
    }
    .into()
}

/// The calls of the settled message of the open step.
pub(super) fn calls(work: &Work) -> Vec<CallRow> {
    let open = work.view.open_turn().and_then(|turn| turn.step.as_ref());
    open.and_then(|step| step.settled.as_ref()).map_or_else(Vec::new, |row| row.calls.iter().cloned().collect())
}

/// The next append for a batch whose pool died, and whether it is the last: results of all logged calls, then the
/// next call, because a result cites a call that is committed already (6.10, I-15).
pub(super) fn burial(work: &Work, burial: &Burial) -> (Vec<EventBody>, bool) {
    let calls = calls(work);
    let mut events = Vec::new();
    for (place, call) in calls.iter().enumerate() {
        match (call.called, call.resulted) {
            (Some(_), Some(_)) => {}
            (Some(called), None) => {
                let body = lost_result(work, call, place, burial);
                events.push(body.citing(vec![called]));
            }
            (None, Some(_) | None) => {
                events.push(
                    ToolCall {
                        turn: work.turn,
                        step: work.step(),
                        call_id: call.call_id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    }
                    .into(),
                );
                return (events, false);
            }
        }
    }
    (events, true)
}

fn lost_result(work: &Work, call: &CallRow, place: usize, burial: &Burial) -> EventBody {
    let (code, text) = if place < burial.logged {
        (
            TOOL_OUTCOME_UNKNOWN,
            "The tool was interrupted. Whether it did its work is unknown; check before you repeat it.",
        )
    } else {
        (ABORTED_BEFORE_DISPATCH, "The tool was not run, because the calls before it were interrupted.")
    };
    EventBody::appended(
        ToolResult {
            turn: work.turn,
            step: work.step(),
            message: ToolMessage {
                id: MessageId::trusted(format!("{}.{place}", burial.fresh)),
                role: Role::Tool,
                call_id: call.call_id.clone(),
                content: vec![Block::text(text)],
                is_error: true,
            },
            error: Some(ToolError { name: call.name.clone(), code: code.to_owned() }),
            meta: None,
        }
        .into(),
    )
}
