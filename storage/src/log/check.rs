//! Folding with checks: the ◆ rules of 2.5 and the grammar of 2.4, before every append, in every build.
//!
//! What has to follow directly (a claim behind `turn/start`, `turn/end` behind `prompt/blocked`, the closers of a
//! repair) is an `Expect` in the state. So one code serves appends, whose borders are known and must not leave
//! one open, and imports, whose borders are not known.

use super::{ClaimedItem, LogState, Violation, inbox, opening, settle, surface, tools, turn_rules};
use crate::{
    event::{CORE_TYPES, Event, EventBody, EventData, OpenReason, PLUGIN_TYPES, PluginEvent},
    ids::{ItemId, Seq, SessionId},
};
use imbl::Vector;
use std::{collections::BTreeSet, sync::Arc};

/// Whether a rule holds.
pub(crate) type Check = Result<(), Violation>;

/// What must come next, because it belongs to the same atomic append.
#[derive(Debug, Clone, Default)]
pub(crate) enum Expect {
    /// Nothing in particular; an append may end here.
    #[default]
    Nothing,
    /// The first claim of the turn that was just started.
    FirstClaim,
    /// The end of the turn whose proposal was just refused.
    RejectedEnd,
    /// The next closer of a repair.
    Closer,
    /// The items that repair gives back.
    Restored(Vector<ClaimedItem>),
}

/// The violation of `rule` at `seq`.
pub(crate) fn broken(rule: &'static str, seq: Seq, why: impl Into<String>) -> Violation {
    Violation { rule, seq, why: why.into() }
}

/// Leaves the function with a [`Violation`] unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $rule:literal, $seq:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::log::check::broken($rule, $seq, format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

impl LogState {
    /// Gives the bodies their places and times, checks them as one atomic append, and folds them.
    ///
    /// `self` stays as it was; nothing of the batch is taken when one event breaks a rule.
    pub fn stage(&self, bodies: Vec<EventBody>, now_ms: i64) -> Result<(Self, Vec<Arc<Event>>), Violation> {
        let mut next = self.clone();
        let mut events = Vec::with_capacity(bodies.len());
        for body in bodies {
            let event = Arc::new(Event { seq: next.next_seq, time_ms: now_ms, body });
            writable(&event)?;
            next.fold(&event)?;
            events.push(event);
        }
        next.end_batch(self.next_seq)?;
        Ok((next, events))
    }

    /// Checks events that have their places already as one atomic append, and folds them.
    pub fn apply(&self, batch: &[Arc<Event>]) -> Result<Self, Violation> {
        let mut next = self.clone();
        for event in batch {
            next.fold(event)?;
        }
        next.end_batch(self.next_seq)?;
        Ok(next)
    }

    /// Folds a whole log of single events, as an import does; the borders of its commits are not known.
    pub fn replay(session: SessionId, events: &[Arc<Event>]) -> Result<Self, Violation> {
        let mut state = Self::empty(session);
        for event in events {
            state.fold(event)?;
        }
        if !events.is_empty() {
            state.end_batch(Seq(0))?;
        }
        Ok(state)
    }

    /// Whether an append may end here: nothing that must directly follow is missing, no admission is under way.
    ///
    /// Whoever cuts a log without borders into commits (fork, import) cuts only here.
    pub fn at_border(&self) -> bool {
        let admitting =
            self.turn.as_ref().and_then(|turn| turn.step.as_ref()).is_some_and(|step| step.gate.is_within());
        matches!(self.expect, Expect::Nothing) && !admitting && self.withdrawn.is_none()
    }

    /// Checks one event and folds it; the borders of appends are the caller's business.
    pub(crate) fn fold(&mut self, event: &Arc<Event>) -> Check {
        let closer = self.expected(event)?;
        self.envelope(event)?;
        if !settle::belongs_to_admission(event) {
            settle::close_admission(self, event.seq)?;
        }
        let withdrawn = self.withdrawn.take();
        match &event.body.data {
            EventData::InboxQueued(data) => inbox::queued(self, event, data, withdrawn)?,
            EventData::InboxEdited(data) => inbox::edited(self, event, data)?,
            EventData::InboxMoved(data) => inbox::moved(self, event, data)?,
            EventData::InboxRemoved(data) => inbox::removed(self, event, data)?,
            EventData::InboxClaimed(data) => inbox::claimed(self, event, data)?,
            EventData::InboxRestored(data) => inbox::restored(self, event, data)?,
            EventData::TurnStart(data) => turn_rules::turn_start(self, event, data)?,
            EventData::TurnEnd(data) => turn_rules::turn_end(self, event, data)?,
            EventData::StepStart(data) => turn_rules::step_start(self, event, data)?,
            EventData::StepEnd(data) => turn_rules::step_end(self, event, data)?,
            EventData::PromptBlocked(data) => turn_rules::blocked(self, event, data)?,
            EventData::SystemMessage(data) => surface::system(self, event, data)?,
            EventData::UserMessage(data) => surface::user(self, event, data)?,
            EventData::RequestHeader(data) => settle::header(self, event, data)?,
            EventData::RequestContext(data) => settle::context(self, event, data)?,
            EventData::AssistantMessage(data) => settle::message(self, event, data)?,
            EventData::AssistantAttempt(data) => settle::attempt(self, event, data)?,
            EventData::ToolCall(data) => tools::call(self, event, data)?,
            EventData::ToolResult(data) => tools::result(self, event, data)?,
            EventData::RetryScheduled(data) => settle::retry_scheduled(self, event, data)?,
            EventData::RetryStarted(data) => settle::retry_started(self, event, data)?,
            EventData::SessionOpened(data) => opening::opened(self, event, data)?,
            EventData::Plugin(data) => self.plugin(data),
        }
        self.next_seq = event.seq.next();
        self.last_time_ms = event.time_ms;
        if let Some(opened) = &mut self.opened
            && opened.seq != event.seq
            && !closer
        {
            opened.worked_since = true;
        }
        Ok(())
    }

    /// An append ends: nothing may be missing that belongs to it, and what it began cannot be gone on with.
    pub(crate) fn end_batch(&mut self, first: Seq) -> Check {
        ensure!(self.next_seq > first, "grammar", first, "an append holds at least one event");
        let last = Seq(self.next_seq.0 - 1);
        let missing = match &self.expect {
            Expect::Nothing => None,
            Expect::FirstClaim => Some("the first inbox/claimed of the turn"),
            Expect::RejectedEnd => Some("the turn/end of the refused turn"),
            Expect::Closer => Some("the turn/end that repair owes"),
            Expect::Restored(_) => Some("the inbox/restored that repair owes"),
        };
        if let Some(missing) = missing {
            return Err(broken("grammar", last, format!("the append lacks {missing}")));
        }
        self.withdrawn = None;
        settle::close_admission(self, last)
    }

    /// Whether the event may follow directly; `true` when it is a closer of a repair.
    fn expected(&self, event: &Event) -> Result<bool, Violation> {
        let data = &event.body.data;
        let seq = event.seq;
        ensure!(seq == self.next_seq, "I-1", seq, "the next event is {}", self.next_seq);
        let first_is_opening = self.opened.is_some() || matches!(data, EventData::SessionOpened(_));
        ensure!(first_is_opening, "grammar", seq, "a log begins with session/opened, not with {}", data.type_name());
        let (fits, wanted) = match &self.expect {
            Expect::Nothing => (true, ""),
            Expect::FirstClaim => (matches!(data, EventData::InboxClaimed(_)), "inbox/claimed"),
            Expect::RejectedEnd => (matches!(data, EventData::TurnEnd(_)), "turn/end"),
            Expect::Closer => (
                matches!(data, EventData::ToolResult(_) | EventData::StepEnd(_) | EventData::TurnEnd(_)),
                "a closer of the repair",
            ),
            Expect::Restored(_) => (matches!(data, EventData::InboxRestored(_)), "inbox/restored"),
        };
        ensure!(fits, "grammar", seq, "{} stands where only {wanted} may follow", data.type_name());
        Ok(matches!(self.expect, Expect::Closer | Expect::Restored(_)))
    }

    /// What holds for every event (2.1, I-21, I-34).
    fn envelope(&self, event: &Event) -> Check {
        let (body, seq) = (&event.body, event.seq);
        let name = body.data.type_name();
        ensure!(
            body.surface.is_some() == body.data.is_surface(),
            "I-21",
            seq,
            "a surface operation belongs on surface types and on no others, {name} breaks that"
        );
        let mut seen = BTreeSet::new();
        for cite in &body.cites {
            ensure!(*cite < seq, "2.1", seq, "it cites {cite}, which is not earlier");
            ensure!(seen.insert(*cite), "2.1", seq, "it cites {cite} twice");
        }
        match &body.data {
            EventData::Plugin(plugin) => {
                let known = PLUGIN_TYPES.iter().any(|known| known.name == plugin.type_name);
                let core = CORE_TYPES.contains(&plugin.type_name.as_str());
                ensure!(!core, "I-34", seq, "{name} is a core type and was not read as one");
                ensure!(known || body.ignorable, "I-34", seq, "{name} is not known here and may not be skipped");
            }
            EventData::InboxQueued(_)
            | EventData::InboxEdited(_)
            | EventData::InboxMoved(_)
            | EventData::InboxRemoved(_)
            | EventData::InboxClaimed(_)
            | EventData::InboxRestored(_)
            | EventData::TurnStart(_)
            | EventData::TurnEnd(_)
            | EventData::StepStart(_)
            | EventData::StepEnd(_)
            | EventData::PromptBlocked(_)
            | EventData::SystemMessage(_)
            | EventData::UserMessage(_)
            | EventData::RequestHeader(_)
            | EventData::RequestContext(_)
            | EventData::AssistantMessage(_)
            | EventData::AssistantAttempt(_)
            | EventData::ToolCall(_)
            | EventData::ToolResult(_)
            | EventData::RetryScheduled(_)
            | EventData::RetryStarted(_)
            | EventData::SessionOpened(_) => {
                ensure!(!body.ignorable, "2.1", seq, "{name} is a core type; no reader may skip it");
            }
        }
        Ok(())
    }

    /// Plugin events change nothing but the title.
    fn plugin(&mut self, data: &PluginEvent) {
        if data.type_name == "session/title"
            && let Some(title) = data.data.to_value().get("title").and_then(|title| title.as_str())
        {
            self.title = Some(title.into());
        }
    }

    /// Whether a repair is being appended: `session/opened{repair}` stands and its closers are not complete.
    pub(crate) fn repairing(&self) -> bool {
        matches!(self.expect, Expect::Closer)
            && self.opened.as_ref().is_some_and(|opened| opened.reason == OpenReason::Repair)
    }
}

/// A writer appends only registered plugin types, marked as their owner says (I-34, V-4).
fn writable(event: &Event) -> Check {
    if let EventData::Plugin(plugin) = &event.body.data {
        let known = PLUGIN_TYPES.iter().find(|known| known.name == plugin.type_name);
        let Some(known) = known else {
            return Err(broken("I-34", event.seq, format!("{} is not a type of this build", plugin.type_name)));
        };
        let as_owned = known.ignorable == event.body.ignorable;
        ensure!(as_owned, "I-34", event.seq, "{} is marked other than its owner says", plugin.type_name);
    }
    Ok(())
}

/// Refuses an id that a list names twice.
pub(crate) fn distinct(ids: &[ItemId], rule: &'static str, seq: Seq) -> Check {
    let mut seen = BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(*id)) {
        Some(twice) => Err(broken(rule, seq, format!("it names item {twice} twice"))),
        None => Ok(()),
    }
}
