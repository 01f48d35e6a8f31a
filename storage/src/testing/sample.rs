//! Short names for the events of test logs.

use crate::{
    chunk::StreamRecord,
    event::*,
    ids::*,
    log::{LogState, Violation, request},
    message::{Block, Failure, Message, Role, ToolMessage, Usage, code},
};
use std::{collections::BTreeMap, sync::Arc};

/// An id that is known to be one.
pub fn item_id(text: &str) -> ItemId {
    ItemId::trusted(text)
}

/// A message of `role` that says `text`, or nothing.
pub fn message(id: &str, role: Role, text: &str) -> Message {
    let content = if text.is_empty() { Vec::new() } else { vec![Block::text(text)] };
    Message { id: MessageId::trusted(id), role, content, source: None }
}

/// A call block.
pub fn call_block(id: &str) -> Block {
    Block::ToolCall { call_id: CallId::trusted(id), name: "time".into(), arguments: "{}".into(), replay: None }
}

/// An item as `send`, `steer`, `inject` or a tool would queue it.
pub fn item(id: &str, origin: Origin) -> Item {
    let (target, wake) = match origin {
        Origin::Send => (Target::NextTurn, true),
        Origin::Steer => (Target::NextStep, true),
        Origin::Inject | Origin::Context => (Target::NextStep, false),
    };
    Item { id: item_id(id), target, wake, origin, message: message(id, Role::User, id) }
}

/// `inbox/queued` at the tail.
pub fn queued(id: &str, origin: Origin) -> EventBody {
    InboxQueued { item: item(id, origin), position: None }.into()
}

/// `session/opened`.
pub fn opened(reason: OpenReason, epoch: u64) -> EventBody {
    SessionOpened { reason, epoch: Epoch(epoch) }.into()
}

/// `turn/start`.
pub fn turn_start(turn: u32) -> EventBody {
    TurnStart { turn: Turn(turn) }.into()
}

/// `inbox/claimed`.
pub fn claimed(turn: u32, proposal: u32, step: u32, ids: &[&str]) -> EventBody {
    InboxClaimed {
        turn: Turn(turn),
        proposal: Proposal(proposal),
        step: Step(step),
        ids: ids.iter().map(|id| item_id(id)).collect(),
    }
    .into()
}

/// `step/start`.
pub fn step_start(turn: u32, step: u32) -> EventBody {
    StepStart { turn: Turn(turn), step: Step(step) }.into()
}

/// `step/end`.
pub fn step_end(turn: u32, step: u32) -> EventBody {
    StepEnd { turn: Turn(turn), step: Step(step) }.into()
}

/// `turn/end`.
pub fn turn_end(turn: u32, reason: TurnReason, steps: u32, unadmitted: &[&str]) -> EventBody {
    let unadmitted = unadmitted.iter().map(|id| item_id(id)).collect();
    TurnEnd { turn: Turn(turn), reason, steps, unadmitted }.into()
}

/// `prompt/blocked`.
pub fn blocked(turn: u32, ids: &[&str]) -> EventBody {
    PromptBlocked {
        turn: Turn(turn),
        ids: ids.iter().map(|id| item_id(id)).collect(),
        content: vec![Block::text("no")],
        source: None,
        reason: "policy".into(),
    }
    .into()
}

/// `system/message` with its operation.
pub fn system(id: &str, text: &str, surface: SurfaceOp) -> EventBody {
    let data = SystemMessage { message: message(id, Role::System, text) };
    EventBody { surface: Some(surface), ..EventBody::appended(data.into()) }
}

/// `user/message` that stands for the item of the same name.
pub fn user(id: &str, origin: Origin) -> EventBody {
    EventBody::appended(UserMessage { message: message(id, Role::User, id), origin, items: vec![item_id(id)] }.into())
}

/// A summary in place of nodes; `cites` names what it hides.
pub fn summary_of(start: u32, end: u32, cites: &[u64]) -> EventBody {
    let data =
        UserMessage { message: message("summary", Role::User, "before"), origin: Origin::Context, items: vec![] };
    EventBody {
        surface: Some(SurfaceOp::Replace { start, end }),
        ..EventBody::appended(data.into()).citing(cites.iter().map(|seq| Seq(*seq)).collect())
    }
}

/// Settings of the test route.
pub fn config() -> RequestConfig {
    RequestConfig { provider: "script".into(), model: "m".into(), ..RequestConfig::default() }
}

/// `request/header` without tools.
pub fn header(reason: HeaderReason) -> EventBody {
    RequestHeader { config: config(), defaulted: vec![], tools: vec![], system_update: SystemUpdate::Replace, reason }
        .into()
}

/// `request/context` of the test route.
pub fn context(window: u64) -> EventBody {
    RequestContext {
        provider: "script".into(),
        model: "m".into(),
        context_window: Some(window),
        input_modalities: None,
    }
    .into()
}

/// `assistant/message` with text and calls.
pub fn answer(turn: u32, step: u32, attempt: u32, text: &str, calls: &[&str]) -> AssistantMessage {
    let mut message = message(&format!("a{turn}.{step}.{attempt}"), Role::Assistant, text);
    message.content.extend(calls.iter().map(|id| call_block(id)));
    AssistantMessage {
        turn: Turn(turn),
        step: Step(step),
        attempt: Attempt(attempt),
        message,
        finish: if calls.is_empty() { FinishLabel::Stop } else { FinishLabel::ToolUse },
        usage: Some(Usage { input: 3, output: 2, ..Usage::default() }),
        stream: StreamRecord::default(),
        interrupted: None,
        provider: "script".into(),
        model: "m".into(),
        request_digest: Digest([0; 32]),
    }
}

/// The same as an event.
pub fn answered(turn: u32, step: u32, attempt: u32, text: &str, calls: &[&str]) -> EventBody {
    EventBody::appended(answer(turn, step, attempt, text, calls).into())
}

/// A response that a cancel cut.
pub fn cut_answer(turn: u32, step: u32, attempt: u32, text: &str) -> EventBody {
    let whole = answer(turn, step, attempt, text, &[]);
    EventBody::appended(AssistantMessage { finish: FinishLabel::Aborted, interrupted: Some(true), ..whole }.into())
}

/// `assistant/attempt`.
pub fn attempt(turn: u32, step: u32, attempt: u32, outcome: AttemptOutcome) -> EventBody {
    AssistantAttempt {
        turn: Turn(turn),
        step: Step(step),
        attempt: Attempt(attempt),
        provider: "script".into(),
        model: "m".into(),
        outcome,
        failure: (outcome != AttemptOutcome::Cancelled).then(|| Failure::new(code::RATE_LIMIT, "slow down")),
        usage: None,
        stream: StreamRecord::default(),
        request_digest: Digest([0; 32]),
    }
    .into()
}

/// `tool/call`.
pub fn call(turn: u32, step: u32, id: &str) -> EventBody {
    let (call_id, name, arguments) = (CallId::trusted(id), "time".into(), "{}".into());
    ToolCall { turn: Turn(turn), step: Step(step), call_id, name, arguments }.into()
}

/// `tool/result` that cites `called`.
pub fn result(turn: u32, step: u32, id: &str, called: u64, code: Option<&str>) -> EventBody {
    let data = ToolResult {
        turn: Turn(turn),
        step: Step(step),
        message: ToolMessage {
            id: MessageId::trusted(format!("r{turn}.{step}.{id}")),
            role: Role::Tool,
            call_id: CallId::trusted(id),
            content: vec![Block::text("noon")],
            is_error: code.is_some(),
        },
        error: code.map(|code| ToolError { name: "time".into(), code: code.into() }),
        meta: None,
    };
    EventBody::appended(data.into()).citing(vec![Seq(called)])
}

/// `retry/scheduled`.
pub fn retry(id: &str, turn: u32, step: u32, attempt: u32, count: u32, max: u32) -> EventBody {
    RetryScheduled {
        retry_id: RetryId::trusted(id),
        turn: Turn(turn),
        step: Step(step),
        attempt: Attempt(attempt),
        provider: "script".into(),
        policy_key: "default".into(),
        mode: RetryMode::Normal,
        retry: count,
        max_retries: Some(max),
        delay_ms: 500,
        failure: Failure::new(code::RATE_LIMIT, "slow down"),
    }
    .into()
}

/// `retry/started`.
pub fn retry_started(id: &str) -> EventBody {
    RetryStarted { retry_id: RetryId::trusted(id) }.into()
}

/// `inbox/restored`, each item for the `count`th time.
pub fn restored(ids: &[&str], count: u32) -> EventBody {
    let ids: Vec<ItemId> = ids.iter().map(|id| item_id(id)).collect();
    let counts: BTreeMap<ItemId, u32> = ids.iter().map(|id| (id.clone(), count)).collect();
    InboxRestored { ids, counts }.into()
}

/// `inbox/removed`.
pub fn removed(ids: &[&str], cause: RemoveCause) -> EventBody {
    InboxRemoved { ids: ids.iter().map(|id| item_id(id)).collect(), cause }.into()
}

/// The body with the digest of the request that `state` gives, where it is a settlement.
pub fn with_digest(state: &LogState, mut body: EventBody) -> EventBody {
    let digest = request::derive_request(state).map(|request| request.digest);
    match (&mut body.data, digest) {
        (EventData::AssistantMessage(data), Some(digest)) => data.request_digest = digest,
        (EventData::AssistantAttempt(data), Some(digest)) => data.request_digest = digest,
        _ => {}
    }
    body
}

/// A log made of appends, each checked like the journal does.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The fold.
    pub state: LogState,
    /// The appends.
    pub batches: Vec<Vec<Arc<Event>>>,
}

impl Sample {
    /// The log of session `s`, which a process has just opened.
    pub fn fresh() -> Self {
        let mut sample = Self { state: LogState::empty(SessionId::trusted("s")), batches: Vec::new() };
        // The first event of every log; it breaks no rule.
        let _ = sample.push(vec![opened(OpenReason::Fresh, 1)]);
        sample
    }

    /// Appends; nothing changes when a rule refuses.
    pub fn push(&mut self, bodies: Vec<EventBody>) -> Result<u64, Violation> {
        let bodies = bodies.into_iter().map(|body| with_digest(&self.state, body)).collect();
        let (state, events) = self.state.stage(bodies, 1_000 + i64::try_from(self.batches.len()).unwrap_or(0))?;
        let first = self.state.next_seq().0;
        self.state = state;
        self.batches.push(events);
        Ok(first)
    }

    /// All events in order.
    pub fn events(&self) -> Vec<Arc<Event>> {
        self.batches.iter().flatten().cloned().collect()
    }
}
