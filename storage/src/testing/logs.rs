//! Whole valid logs from a seed: a small driver that does by lot what the real one may do.
//!
//! Equal seeds give equal logs. Every append goes through [`crate::log::LogState::stage`]; a refusal is a defect of
//! the checker or of this driver, and panics with the rule.

use super::{
    sample::{self, Sample},
    streams::{bracket, streamed},
};
use crate::{
    RawJson,
    event::*,
    ids::*,
    log::{
        CallRow, ClaimedItem, LogState, OpenStep, OpenTurn, repair,
        request::{Admission, reconcile},
        settle::Gate,
    },
    message::{Block, Failure, Role, code},
};
use std::sync::Arc;

/// A source of decisions that depends on its seed only (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides`, which is not 0.
    pub fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(sides)) as u32
    }

    /// True in `percent` of 100.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.roll(100) < percent
    }
}

/// Most calls that the driver lets be open at once.
pub const MAX_PARALLEL: u32 = 3;

/// The driver. It holds nothing that the log does not say, but what it has not decided yet.
#[derive(Debug, Clone)]
pub struct Driver {
    /// The log so far.
    pub log: Sample,
    dice: Dice,
    named: u32,
    epoch: u64,
    readmitted: bool,
    exclusive: bool,
    compacting: bool,
}

/// A log of about `appends` appends.
pub fn random_log(seed: u64, appends: usize) -> Sample {
    let mut driver = Driver::new(seed);
    for _ in 0..appends {
        driver.advance();
    }
    driver.log
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        let mut log = Sample::fresh();
        log.state = log.state.with_max_parallel(MAX_PARALLEL);
        let (readmitted, exclusive, compacting) = (false, false, false);
        Self { log, dice: Dice::new(seed), named: 0, epoch: 1, readmitted, exclusive, compacting }
    }

    fn push(&mut self, bodies: Vec<EventBody>) {
        if let Err(why) = self.log.push(bodies.clone()) {
            panic!("the driver made an append that breaks a rule: {why}\n{bodies:#?}");
        }
    }

    fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    fn state(&self) -> &LogState {
        &self.log.state
    }

    /// Does the next thing. Now and then it is input from outside, or the process dies.
    pub fn advance(&mut self) {
        match self.dice.roll(100) {
            0..3 => self.restart(),
            3..20 => self.input(),
            20..24 => self.plugin(),
            24..29 if self.may_rewrite() => self.rewrite(),
            _ => self.work(),
        }
    }

    /// Ends the open turn in the most direct way.
    pub fn close(&mut self) {
        self.restart();
    }

    fn restart(&mut self) {
        self.epoch += 1;
        self.compacting = false;
        let epoch = Epoch(self.epoch);
        let events = match repair::plan(self.state(), epoch, 3) {
            Some(plan) => plan.events,
            None => repair::opening(self.state(), epoch).into_iter().collect(),
        };
        if !events.is_empty() {
            self.push(events);
        }
    }

    fn plugin(&mut self) {
        let title = self.name("title ");
        let data = RawJson::from_value(&serde_json::json!({ "title": title }));
        let event = EventData::Plugin(PluginEvent { type_name: "session/title".into(), data });
        self.push(vec![EventBody { ignorable: true, ..event.into() }]);
    }

    fn input(&mut self) {
        let pending: Vec<Arc<Item>> =
            self.state().next_turn().iter().chain(self.state().next_step()).map(|p| Arc::clone(&p.item)).collect();
        let pick = (!pending.is_empty()).then(|| Arc::clone(&pending[self.dice.roll(pending.len() as u32) as usize]));
        match (self.dice.roll(12), pick) {
            (0, Some(item)) => {
                let name = self.name("edit");
                let message = if self.dice.chance(50) {
                    sample::message(&name, Role::User, "other")
                } else {
                    crate::message::Message { content: vec![Block::text("other")], ..item.message.clone() }
                };
                self.push(vec![InboxEdited { id: item.id.clone(), message }.into()]);
            }
            (1, Some(item)) => {
                let cause = if self.dice.chance(50) { RemoveCause::Removed } else { RemoveCause::Canceled };
                self.push(vec![InboxRemoved { ids: vec![item.id.clone()], cause }.into()]);
            }
            (2, Some(item)) => {
                let target = match item.target {
                    Target::NextTurn => Target::NextStep,
                    Target::NextStep => Target::NextTurn,
                };
                let removed = InboxRemoved { ids: vec![item.id.clone()], cause: RemoveCause::Removed };
                let queued = InboxQueued { item: Item { target, ..(*item).clone() }, position: None };
                self.push(vec![removed.into(), queued.into()]);
            }
            (3, Some(item)) => {
                let mut ids: Vec<ItemId> =
                    pending.iter().filter(|p| p.target == item.target).map(|p| p.id.clone()).collect();
                ids.rotate_left(1);
                self.push(vec![InboxMoved { ids }.into()]);
            }
            (kind, _) => {
                let origin = match kind {
                    4 => Origin::Steer,
                    5 => Origin::Inject,
                    6 => Origin::Context,
                    _ => Origin::Send,
                };
                let item = sample::item(&self.name("m"), origin);
                let position = self.dice.chance(10).then_some(0);
                self.push(vec![InboxQueued { item, position }.into()]);
            }
        }
    }

    fn work(&mut self) {
        match self.state().open_turn().cloned() {
            None => self.open_turn(),
            Some(turn) => match turn.step.clone() {
                None => self.between_steps(&turn),
                Some(step) => self.in_step(&turn, &step),
            },
        }
    }

    fn open_turn(&mut self) {
        let state = self.state();
        let next: Vec<Arc<Item>> =
            state.next_step().iter().chain(state.next_turn().iter().take(1)).map(|p| Arc::clone(&p.item)).collect();
        if !next.iter().any(|item| item.wake) {
            return self.input();
        }
        let turn = state.last_turn().next();
        let ids = next.iter().map(|item| item.id.clone()).collect();
        let claim = InboxClaimed { turn, proposal: Proposal(1), step: Step(1), ids };
        self.push(vec![TurnStart { turn }.into(), claim.into()]);
    }

    fn end(&mut self, turn: &OpenTurn, reason: TurnReason, close_step: bool) {
        let open = self.state().open_turn().expect("a turn is open");
        let left = open.claimed.iter().filter(|item| !item.admitted);
        let unadmitted: Vec<ItemId> = left.map(|item| item.item.id.clone()).collect();
        let mut events = Vec::new();
        if let (true, Some(step)) = (close_step, &turn.step) {
            events.push(StepEnd { turn: turn.turn, step: step.step }.into());
        }
        if let TurnReason::Rejected { reason } = &reason {
            let ids = self.batch(turn).iter().map(|item| item.item.id.clone()).collect();
            let (content, source) = (vec![Block::text("refused")], None);
            events.push(PromptBlocked { turn: turn.turn, ids, content, source, reason: reason.clone() }.into());
        }
        let steps = turn.steps;
        events.push(TurnEnd { turn: turn.turn, reason, steps, unadmitted }.into());
        self.push(events);
    }

    /// The claim that has no step yet, or the one of the open step.
    fn batch(&self, turn: &OpenTurn) -> Vec<ClaimedItem> {
        let fresh = |item: &&ClaimedItem| item.proposal == turn.proposals && !item.admitted;
        let started = turn.unstepped || turn.step.is_some();
        turn.claimed.iter().filter(fresh).filter(|_| started).cloned().collect()
    }

    fn between_steps(&mut self, turn: &OpenTurn) {
        let failure = Failure::new(code::EXTENSION, "a policy failed");
        if turn.cut {
            return self.end(turn, TurnReason::Aborted { cause: Cause::User }, false);
        }
        if turn.steps > 0 && !turn.settled_last {
            return self.end(turn, TurnReason::Error { failure }, false);
        }
        match self.dice.roll(20) {
            0 => return self.end(turn, TurnReason::Aborted { cause: Cause::User }, false),
            1 => return self.end(turn, TurnReason::Error { failure }, false),
            2 | 3 if turn.unstepped || turn.owed_results => {
                return self.end(turn, TurnReason::Rejected { reason: "policy".into() }, false);
            }
            _ => {}
        }
        let done = if turn.max_tokens { TurnReason::MaxTokens } else { TurnReason::Completed };
        let waking = self.state().next_step().iter().any(|pending| pending.item.wake);
        let (turn_no, step) = (turn.turn, Step(turn.steps + 1));
        if turn.unstepped {
            // Now and then the policy drops the whole batch.
            if self.dice.chance(5) && !turn.owed_results {
                return self.end(turn, done, false);
            }
            self.push(vec![StepStart { turn: turn_no, step }.into()]);
        } else if waking || (turn.owed_results && !self.state().next_step().is_empty()) {
            let ids = self.state().next_step().iter().map(|pending| pending.item.id.clone()).collect();
            self.push(vec![InboxClaimed { turn: turn_no, proposal: turn.proposals.next(), step, ids }.into()]);
        } else if turn.owed_results && self.dice.chance(90) {
            self.push(vec![StepStart { turn: turn_no, step }.into()]);
        } else {
            self.end(turn, done, false);
        }
    }

    fn in_step(&mut self, turn: &OpenTurn, step: &OpenStep) {
        if let Some(settled) = &step.settled {
            let open = settled.calls.iter().any(|call| call.resulted.is_none());
            if open {
                return self.tools(turn, step);
            }
            if settled.interrupted {
                return self.end(turn, TurnReason::Aborted { cause: Cause::User }, true);
            }
            return self.push(vec![StepEnd { turn: turn.turn, step: step.step }.into()]);
        }
        let failure = Failure::new(code::SERVER, "overloaded");
        match step.gate {
            Gate::Final => self.end(turn, TurnReason::Aborted { cause: Cause::User }, true),
            Gate::Open if step.attempt.0 > 0 => self.recover(turn, step),
            Gate::Open if self.dice.chance(6) => self.end(turn, TurnReason::Error { failure }, true),
            Gate::Open => self.admit(turn, true),
            Gate::Within(_) | Gate::Admitted if self.dice.chance(4) => {
                self.end(turn, TurnReason::Aborted { cause: Cause::User }, true);
            }
            Gate::Within(_) | Gate::Admitted => self.settle(turn, step),
        }
    }

    fn admit(&mut self, turn: &OpenTurn, with_users: bool) {
        let batch = if with_users { self.batch(turn) } else { Vec::new() };
        let mut users: Vec<UserMessage> = Vec::new();
        for claimed in batch {
            match self.dice.roll(12) {
                // The policy drops one, merges it into the one before, or adds something of its own.
                0 if !users.is_empty() => {}
                1 if !users.is_empty() => users.last_mut().expect("not empty").items.push(claimed.item.id.clone()),
                2 => {
                    let addition = sample::message(&self.name("add"), Role::User, "by the way");
                    users.push(UserMessage { message: addition, origin: Origin::Context, items: vec![] });
                    users.push(Self::as_user(&claimed));
                }
                _ => users.push(Self::as_user(&claimed)),
            }
        }
        let admission = self.admission(users);
        let events = reconcile(self.state(), &admission);
        if events.is_empty() {
            let step = self.state().open_turn().and_then(|turn| turn.step.clone()).expect("a step is open");
            return self.settle(turn, &step);
        }
        self.push(events);
    }

    fn as_user(claimed: &ClaimedItem) -> UserMessage {
        let item = &claimed.item;
        UserMessage { message: item.message.clone(), origin: item.origin, items: vec![item.id.clone()] }
    }

    fn admission(&mut self, users: Vec<UserMessage>) -> Admission {
        let variant = if self.dice.chance(15) { self.dice.roll(3) } else { 0 };
        let schema = |text: &str| RawJson::parse(text).expect("JSON");
        let tool =
            |name: &str, text: &str| ToolSpec { name: name.into(), description: "".into(), schema: schema(text) };
        let mut tools = vec![tool("time", r#"{"type":"object","a":1}"#), tool("fetch", "{}")];
        tools.rotate_left(self.dice.roll(2) as usize);
        tools.truncate(2 - (variant / 2) as usize);
        Admission {
            system: ["Be kind.", "Be kind. Be short.", ""][variant as usize].into(),
            system_id: MessageId::trusted(self.name("sys")),
            users,
            config: sample::config(),
            defaulted: vec!["max_tokens".into()],
            tools,
            system_update: if variant == 1 { SystemUpdate::Append } else { SystemUpdate::Replace },
            context_window: Some(1_000 + u64::from(variant)),
            input_modalities: None,
        }
    }

    fn recover(&mut self, turn: &OpenTurn, step: &OpenStep) {
        if let Some(waiting) = step.waiting_retry.clone() {
            return self.push(vec![RetryStarted { retry_id: waiting }.into()]);
        }
        let scheduled = step.retries.values().copied().max().unwrap_or(0);
        let failure = Failure::new(code::RATE_LIMIT, "slow down");
        if self.readmitted {
            self.readmitted = false;
            return self.admit(turn, false);
        }
        if scheduled >= 3 || self.dice.chance(20) {
            return self.end(turn, TurnReason::Error { failure }, true);
        }
        let id = self.name("retry");
        self.readmitted = true;
        self.push(vec![sample::retry(&id, turn.turn.0, step.step.0, step.attempt.0, scheduled + 1, 3)]);
    }

    fn settle(&mut self, turn: &OpenTurn, step: &OpenStep) {
        self.readmitted = false;
        let (t, s, a) = (turn.turn.0, step.step.0, step.attempt.0 + 1);
        match self.dice.roll(20) {
            0 => self.push(vec![sample::attempt(t, s, a, AttemptOutcome::Cancelled)]),
            1..4 => self.push(vec![sample::attempt(t, s, a, AttemptOutcome::Failed)]),
            4 => self.push(vec![streamed(sample::cut_answer(t, s, a, "Hel"))]),
            5 => {
                let limited =
                    AssistantMessage { finish: FinishLabel::MaxTokens, ..sample::answer(t, s, a, "so long", &[]) };
                self.push(vec![streamed(EventBody::appended(limited.into()))]);
            }
            6..13 => {
                let calls: Vec<String> = (0..=self.dice.roll(4)).map(|i| format!("call-{i}")).collect();
                let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
                self.exclusive = self.dice.chance(30);
                self.push(vec![streamed(sample::answered(t, s, a, "", &calls))]);
            }
            _ => self.push(vec![streamed(sample::answered(t, s, a, "It is noon.", &[]))]),
        }
    }

    fn tools(&mut self, turn: &OpenTurn, step: &OpenStep) {
        let settled = step.settled.as_ref().expect("settled");
        let (t, s) = (turn.turn.0, step.step.0);
        let next = settled.calls.iter().find(|call| call.called.is_none());
        let open = settled.calls.iter().filter(|call| call.called.is_some() && call.resulted.is_none()).count();
        let room = open < if self.exclusive { 1 } else { MAX_PARALLEL as usize };
        if self.dice.chance(5) {
            return self.abort_calls(t, s, &settled.calls.iter().cloned().collect::<Vec<_>>());
        }
        match next {
            Some(call) if room && (open == 0 || self.dice.chance(60)) => {
                self.push(vec![sample::call(t, s, call.call_id.as_str())]);
            }
            _ => {
                let first = settled.calls.iter().find(|call| call.resulted.is_none()).expect("one is open");
                let called = first.called.expect("logged before the later ones").0;
                let code = self.dice.chance(20).then_some("DENIED");
                let mut result = sample::result(t, s, first.call_id.as_str(), called, code);
                if let EventData::ToolResult(data) = &mut result.data {
                    let class = if self.exclusive { "exclusive" } else { "parallel" };
                    data.meta = Some(RawJson::from_value(&serde_json::json!({ "class": class })));
                }
                let last = settled.calls.iter().filter(|call| call.resulted.is_none()).count() == 1;
                let mut events = vec![result];
                if last && self.dice.chance(30) {
                    events.push(sample::queued(&self.name("ctx"), Origin::Context));
                }
                self.push(events);
            }
        }
    }

    /// Every call that has none gets its result in one append; those that were not logged are logged before.
    fn abort_calls(&mut self, t: u32, s: u32, calls: &[CallRow]) {
        let next = self.state().next_seq().0;
        let mut events = Vec::new();
        for call in calls.iter().filter(|call| call.resulted.is_none()) {
            let id = call.call_id.as_str();
            let (called, code) = match call.called {
                Some(called) => (called.0, "ABORTED"),
                None => {
                    events.push(sample::call(t, s, id));
                    (next + events.len() as u64 - 1, "ABORTED_BEFORE_DISPATCH")
                }
            };
            events.push(sample::result(t, s, id, called, Some(code)));
        }
        self.push(events);
    }

    fn may_rewrite(&self) -> bool {
        self.state()
            .open_turn()
            .and_then(|turn| turn.step.as_ref())
            .is_none_or(|step| step.attempt.0 > 0 && step.gate == Gate::Open && step.waiting_retry.is_none())
    }

    fn rewrite(&mut self) {
        let surface = self.state().surface().clone();
        if let Some(at) = surface.iter().position(|node| node.role == Role::Tool)
            && self.dice.chance(30)
            && let EventData::ToolResult(old) = &surface[at].event.body.data
        {
            let mut pruned = old.clone();
            pruned.message.content = vec![Block::text(self.name("pruned "))];
            let at_index = at as u32;
            let op = SurfaceOp::Replace { start: at_index, end: at_index };
            let body = EventBody::appended(pruned.into()).citing(vec![surface[at].event.seq]);
            return self.push(vec![EventBody { surface: Some(op), ..body }]);
        }
        if !self.compacting {
            self.compacting = true;
            return self.push(vec![bracket("compaction/start", "")]);
        }
        self.compacting = false;
        let Some((start, end)) = self.compactable() else {
            return self.push(vec![bracket("compaction/end", "noop")]);
        };
        let cites: Vec<u64> = surface.iter().skip(start).take(end - start + 1).map(|node| node.event.seq.0).collect();
        let mut cites = cites;
        cites.dedup();
        let mut summary = sample::summary_of(start as u32, end as u32, &cites);
        if let EventData::UserMessage(data) = &mut summary.data {
            data.message.content = vec![Block::text(self.name("summary "))];
        }
        self.push(vec![summary, bracket("compaction/end", "done")]);
    }

    /// A range of whole exchanges, behind the last system message or before it, that may be hidden.
    fn compactable(&mut self) -> Option<(usize, usize)> {
        let state = self.state();
        let surface = state.surface();
        let since = state.open_turn().map_or(state.next_seq(), |turn| turn.started);
        let free: Vec<usize> = surface
            .iter()
            .enumerate()
            .skip_while(|(_, node)| node.role == Role::System)
            .take_while(|(_, node)| node.role != Role::System && node.event.seq < since)
            .map(|(at, _)| at)
            .collect();
        let (start, last) = (*free.first()?, *free.last()?);
        let mut end = start + self.dice.roll((last - start + 1) as u32) as usize;
        while self.state().surface().get(end + 1).is_some_and(|node| node.role == Role::Tool) {
            end += 1;
        }
        (end <= last && self.state().surface()[start].role != Role::Tool).then_some((start, end))
    }
}
