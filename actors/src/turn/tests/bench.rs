//! A small world around the machine: a log that is checked like the journal's, and answers that tests can hold back.

use crate::{
    handle::Frame,
    limits::CheckpointPolicy,
    ports::{Assembly, Decision, ExtensionError, RecoveryVerdict},
    protocol::{AppendError, Appended, CheckpointFailed, CheckpointKind, ClaimStepAnswer, ClaimedBatch},
    turn::*,
};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    event::*,
    ids::*,
    log::{CallRow, LogState, tools},
    message::{Block, Failure, Usage, code},
    testing::sample,
};
use std::{collections::VecDeque, sync::Arc};

/// What an attempt will say.
pub(super) type Answer = (Outcome, StreamRecord);

/// The world.
pub(super) struct Bench {
    pub machine: Machine,
    pub log: LogState,
    pub events: Vec<Arc<Event>>,
    /// Effects that nobody has answered yet.
    pub open: VecDeque<Effect>,
    /// What was done, in short words.
    pub trace: Vec<String>,
    pub frames: Vec<Frame>,
    pub rules: Rules,
    pub facts: RouteFacts,
    pub system: String,
    pub decisions: VecDeque<Result<Decision, ExtensionError>>,
    pub answers: VecDeque<Answer>,
    pub verdicts: VecDeque<Result<RecoveryVerdict, ExtensionError>>,
    /// Items that the stopping chain steers, one each time it is asked.
    pub steers: VecDeque<&'static str>,
    pub delays_ms: Vec<u64>,
    pub ended: Vec<(Turn, TurnReason)>,
    /// Whether the batch in the pool concludes the turn.
    pub concludes: bool,
    cancelled: bool,
    taken: Token,
    ids: u64,
}

/// A stream with one text block that ends as `finish`, or does not end.
pub(super) fn stream(text: &str, finish: Option<Finish>) -> StreamRecord {
    let mut record = StreamRecord::default();
    record.push(1, Chunk::BlockStart { index: 0, kind: BlockKind::Text });
    record.push(2, Chunk::TextDelta { index: 0, text: text.to_owned() });
    if let Some(finish) = finish {
        record.push(3, Chunk::BlockEnd { index: 0 });
        record.push(3, Chunk::Finish { finish });
    }
    record
}

/// A complete answer.
pub(super) fn says(text: &str) -> Answer {
    let outcome = Outcome::Finished { blocks: vec![Block::text(text)], finish: FinishLabel::Stop };
    (outcome, stream(text, Some(Finish::Stop)))
}

/// An answer with calls.
pub(super) fn calls(ids: &[&str]) -> Answer {
    let mut blocks = vec![Block::text("Let me see.")];
    blocks.extend(ids.iter().map(|id| sample::call_block(id)));
    (Outcome::Finished { blocks, finish: FinishLabel::ToolUse }, stream("Let me see.", Some(Finish::ToolUse)))
}

/// A failed answer, after `text` was seen.
pub(super) fn fails(code: &str, by: FailedBy, text: &str) -> Answer {
    (Outcome::Failed { failure: Failure::new(code, "no"), by }, stream(text, None))
}

pub(super) fn extension_error() -> ExtensionError {
    ExtensionError("the policy broke".to_owned())
}

pub(super) fn io() -> AppendError {
    AppendError::Io("the disk is away".to_owned())
}

impl Bench {
    /// A fresh log with these items waiting as sends.
    pub(super) fn new(sends: &[&str]) -> Self {
        let mut bench = Self {
            machine: Machine::new(),
            log: LogState::empty(SessionId::trusted("s")).with_max_parallel(1),
            events: Vec::new(),
            open: VecDeque::new(),
            trace: Vec::new(),
            frames: Vec::new(),
            rules: Rules::default(),
            facts: RouteFacts { config: sample::config(), ..RouteFacts::default() },
            system: "Be kind.".to_owned(),
            decisions: VecDeque::new(),
            answers: VecDeque::new(),
            verdicts: VecDeque::new(),
            steers: VecDeque::new(),
            delays_ms: Vec::new(),
            ended: Vec::new(),
            concludes: false,
            cancelled: false,
            taken: Token(0),
            ids: 0,
        };
        bench.commit(vec![sample::opened(OpenReason::Fresh, 1)]);
        sends.iter().for_each(|id| bench.queue(id, Origin::Send));
        bench
    }

    /// An item comes in.
    pub(super) fn queue(&mut self, id: &str, origin: Origin) {
        self.commit(vec![sample::queued(id, origin)]);
    }

    /// Appends like the journal: every event is checked.
    pub(super) fn commit(&mut self, bodies: Vec<EventBody>) -> Appended {
        let first = self.log.next_seq();
        let (log, events) = self.log.stage(bodies, 1_000).unwrap();
        self.log = log;
        self.events.extend(events);
        Appended { first, last: Seq(self.log.next_seq().0 - 1), view: self.view() }
    }

    pub(super) fn view(&self) -> Arc<LogState> {
        Arc::new(self.log.clone())
    }

    fn fresh(&mut self) -> String {
        self.ids += 1;
        format!("id{}", self.ids)
    }

    /// The token of the question that was taken out last.
    pub(super) fn asked(&self) -> Token {
        self.taken
    }

    /// Feeds one input and takes the effects in.
    pub(super) fn feed(&mut self, input: Input) {
        for effect in self.machine.step(input) {
            match effect {
                Effect::Publish(frame) => self.frames.push(frame),
                Effect::TellPhase { phase, .. } => self.trace.push(format!("phase {phase:?}")),
                Effect::TurnEnded { turn, reason, view } => {
                    assert!(view.open_turn().is_none());
                    self.trace.push("turn ended".to_owned());
                    self.ended.push((turn, reason));
                    self.cancelled = false;
                }
                Effect::TurnSettled { outcome, .. } => self.trace.push(format!("turn settled {}", outcome.is_ok())),
                Effect::Abandon { token } => {
                    self.trace.push("abandon".to_owned());
                    self.open.retain(|effect| token_of(effect) != Some(token));
                }
                Effect::AbortAttempt { .. } => self.trace.push("abort".to_owned()),
                Effect::Fault { .. } => self.trace.push("fault".to_owned()),
                asked => self.open.push_back(asked),
            }
        }
    }

    pub(super) fn wake(&mut self) {
        self.feed(Input::Wake);
    }

    /// The user cancels the open turn.
    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
        let turn = self.log.last_turn();
        self.feed(Input::Cancel { turn, cause: Cause::User });
    }

    /// Answers until an effect of this name is the next one, and gives its token.
    pub(super) fn until(&mut self, name: &str) -> Token {
        for _ in 0..1_000 {
            let next = self.open.front().unwrap_or_else(|| panic!("nothing asks, {name} never came: {:?}", self.trace));
            if name_of(next) == name {
                let token = token_of(next).unwrap();
                self.open.pop_front();
                self.taken = token;
                return token;
            }
            self.answer();
        }
        panic!("{name} never came: {:?}", self.trace);
    }

    /// Answers until nothing asks any more.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            if self.open.is_empty() {
                return;
            }
            self.answer();
        }
        panic!("it never ends: {:?}", self.trace);
    }

    /// Wakes and runs to the end.
    pub(super) fn drain(&mut self) {
        self.wake();
        self.run();
    }

    /// Answers what is asked next.
    pub(super) fn answer(&mut self) {
        let effect = self.open.pop_front().unwrap();
        self.trace.push(name_of(&effect));
        let input = match effect {
            Effect::AskOpenTurn { token } => self.open_turn(token),
            Effect::Assemble { token, .. } => {
                let assembly = Assembly { system: self.system.clone(), tools: Vec::new() };
                let assembled = Assembled { assembly, rules: self.rules.clone() };
                Input::Assembled { token, result: Ok(Box::new(assembled)) }
            }
            Effect::AskPreStep { token, .. } => {
                let result = self.decisions.pop_front().unwrap_or(Ok(Decision::Pass));
                Input::Decided { token, result, view: None }
            }
            Effect::AskRequest { token, .. } => Input::RequestProposed { token, result: Ok(self.facts.config.clone()) },
            Effect::Prepare { token, .. } => {
                let system_id = MessageId::trusted(self.fresh());
                Input::Prepared { token, facts: Box::new(self.facts.clone()), system_id }
            }
            Effect::Append { token, events } => {
                let appended = self.commit(events);
                Input::Appended { token, appended }
            }
            Effect::Checkpoint { token, upto, .. } => Input::Durable { token, seq: upto },
            Effect::Dispatch { token, .. } => {
                let answer = self.answers.pop_front().unwrap_or_else(|| says("Fine."));
                self.settled(token, answer)
            }
            Effect::AskRecovery { token, .. } => {
                let result = self.verdicts.pop_front().unwrap_or(Ok(RecoveryVerdict::Pass));
                let retry_id = RetryId::trusted(self.fresh());
                Input::Recovered { token, result, random: 0, retry_id, view: Some(self.view()) }
            }
            Effect::ArmTimer { token, delay_ms } => {
                self.delays_ms.push(delay_ms);
                Input::Timer { token }
            }
            Effect::RunBatch { token, turn, step, calls, .. } => self.run_batch(token, turn, step, &calls),
            Effect::AskClaimStep { token, turn, proposal, step, owed, .. } => {
                self.claim(token, turn, proposal, step, owed)
            }
            Effect::AskStopping { token, .. } => {
                if let Some(id) = self.steers.pop_front() {
                    self.queue(id, Origin::Steer);
                }
                Input::StoppingDone { token, result: Ok(()), view: Some(self.view()) }
            }
            other => panic!("{other:?} asks nothing"),
        };
        self.feed(input);
    }

    /// What the port hands over.
    pub(super) fn settled(&mut self, token: Token, (outcome, stream): Answer) -> Input {
        let message_id = MessageId::trusted(self.fresh());
        let usage = Some(Usage { output: 2, ..Usage::default() });
        Input::Settled { token, settlement: Box::new(Settlement { outcome, usage, stream, message_id }) }
    }

    fn open_turn(&mut self, token: Token) -> Input {
        let next: Vec<Arc<Item>> = self.log.next_step().iter().map(|pending| Arc::clone(&pending.item)).collect();
        let own = self.log.next_turn().front().map(|pending| Arc::clone(&pending.item));
        let items: Vec<Arc<Item>> = next.into_iter().chain(own).collect();
        if !items.iter().any(|item| item.wake) {
            return Input::NothingToOpen { token };
        }
        let turn = self.log.last_turn().next();
        let ids = items.iter().map(|item| item.id.clone()).collect();
        let claimed = InboxClaimed { turn, proposal: Proposal(1), step: Step(1), ids };
        self.commit(vec![sample::turn_start(turn.0), claimed.into()]);
        Input::TurnOpened { token, turn, items, view: self.view() }
    }

    fn claim(&mut self, token: Token, turn: Turn, proposal: Proposal, step: Step, owed: bool) -> Input {
        let items: Vec<Arc<Item>> = self.log.next_step().iter().map(|pending| Arc::clone(&pending.item)).collect();
        let forced = owed || items.iter().any(|item| item.wake);
        if !forced {
            return Input::ClaimAnswered { token, answer: ClaimStepAnswer::Nothing };
        }
        if !items.is_empty() {
            let ids = items.iter().map(|item| item.id.clone()).collect();
            self.commit(vec![InboxClaimed { turn, proposal, step, ids }.into()]);
        }
        let batch = ClaimedBatch { items, view: self.view() };
        Input::ClaimAnswered { token, answer: ClaimStepAnswer::Work(batch) }
    }

    /// What a pool does: a pair for each call, skipped ones when the turn was cancelled before.
    fn run_batch(&mut self, token: Token, turn: Turn, step: Step, calls: &[CallRow]) -> Input {
        for call in calls {
            let called = self.log_call(turn, step, call);
            let code = self.cancelled.then_some(tools::ABORTED_BEFORE_DISPATCH);
            let mut result = sample::result(turn.0, step.0, call.call_id.as_str(), called.0, code);
            if let EventData::ToolResult(data) = &mut result.data {
                data.message.id = MessageId::trusted(self.fresh());
            }
            self.commit(vec![result]);
        }
        let (concluded, aborted) = (self.concludes, self.cancelled);
        Input::BatchDone { token, concluded, aborted, view: self.view() }
    }

    pub(super) fn log_call(&mut self, turn: Turn, step: Step, call: &CallRow) -> Seq {
        self.commit(vec![sample::call(turn.0, step.0, call.call_id.as_str())]).first
    }

    /// The types in the log behind the items that waited at first.
    pub(super) fn types(&self) -> Vec<String> {
        let begin = self.events.iter().position(|event| event.body.data.type_name() == "turn/start").unwrap_or(0);
        self.events.iter().skip(begin).map(|event| event.body.data.type_name().to_owned()).collect()
    }

    /// How the last turn ended.
    pub(super) fn reason(&self) -> TurnReason {
        assert!(self.log.open_turn().is_none(), "a turn is open: {:?}", self.types());
        self.log.turns().last().unwrap().reason.clone()
    }

    /// The code of the error that ended the last turn.
    pub(super) fn code(&self) -> String {
        match self.reason() {
            TurnReason::Error { failure } => failure.code,
            other => panic!("the turn ended {other:?}"),
        }
    }

    pub(super) fn unadmitted(&self) -> Vec<ItemId> {
        let ends = self.events.iter().rev().find_map(|event| match &event.body.data {
            EventData::TurnEnd(end) => Some(end.unadmitted.clone()),
            _ => None,
        });
        ends.unwrap()
    }

    /// The last event of this type.
    pub(super) fn last(&self, name: &str) -> EventData {
        let found = self.events.iter().rev().find(|event| event.body.data.type_name() == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.types())).body.data.clone()
    }

    /// Asserts that the last turn was aborted, that nothing asks and that the next item runs by itself (F-3).
    pub(super) fn assert_aborted(&mut self) {
        self.run();
        assert_eq!(self.reason(), TurnReason::Aborted { cause: Cause::User });
        assert!(self.machine.is_idle());
        self.assert_goes_on();
    }

    /// A later send runs to its end.
    pub(super) fn assert_goes_on(&mut self) {
        let turns = self.log.turns().len();
        let id = self.fresh();
        self.queue(&id, Origin::Send);
        self.drain();
        assert_eq!(self.log.turns().len(), turns + 1);
        assert_eq!(self.reason(), TurnReason::Completed);
    }

    /// Fails the append that is asked next until the machine gives it up.
    pub(super) fn refuse_append(&mut self, mut token: Token) {
        for _ in 1..crate::limits::JOURNAL_TRIES {
            self.feed(Input::AppendFailed { token, error: io() });
            let timer = self.until("wait");
            self.feed(Input::Timer { token: timer });
            token = token_of(self.open.front().unwrap()).unwrap();
            self.open.pop_front();
        }
        self.feed(Input::AppendFailed { token, error: io() });
    }

    /// Fails the checkpoint that is asked next until the machine gives it up.
    pub(super) fn refuse_checkpoint(&mut self, mut token: Token) {
        for _ in 1..crate::limits::JOURNAL_TRIES {
            self.feed(Input::CheckpointFailed { token, error: CheckpointFailed("away".to_owned()) });
            let timer = self.until("wait");
            self.feed(Input::Timer { token: timer });
            token = token_of(self.open.front().unwrap()).unwrap();
            self.open.pop_front();
        }
        self.feed(Input::CheckpointFailed { token, error: CheckpointFailed("away".to_owned()) });
    }

    /// Policy `turn`.
    pub(super) fn turn_policy(mut self) -> Self {
        self.rules.checkpoint = CheckpointPolicy::Turn;
        self
    }

    /// The failure of a request that nothing more is known of.
    pub(super) fn overflow() -> Answer {
        fails(code::CONTEXT_WINDOW_EXCEEDED, FailedBy::Provider, "")
    }

    /// Checkpoints and world effects of the trace, for their order.
    pub(super) fn gates(&self) -> Vec<&str> {
        let shown = ["CP-R", "CP-S", "CP-T", "dispatch", "batch", "pre-step", "open"];
        self.trace.iter().map(String::as_str).filter(|name| shown.contains(name)).collect()
    }

    /// The phases that the agent was told.
    pub(super) fn phases(&self) -> Vec<&str> {
        self.trace.iter().filter_map(|entry| entry.strip_prefix("phase ")).collect()
    }
}

/// A short name of an effect that asks; appends are named by what their last event is.
pub(super) fn name_of(effect: &Effect) -> String {
    let name = match effect {
        Effect::AskOpenTurn { .. } => "open",
        Effect::Assemble { .. } => "assemble",
        Effect::AskPreStep { .. } => "pre-step",
        Effect::AskRequest { .. } => "settings",
        Effect::Prepare { .. } => "prepare",
        Effect::Append { events, .. } => {
            let types: Vec<&str> = events.iter().map(|event| event.data.type_name()).collect();
            return types.join(" ");
        }
        Effect::Checkpoint { kind: CheckpointKind::Request, .. } => "CP-R",
        Effect::Checkpoint { kind: CheckpointKind::Step, .. } => "CP-S",
        Effect::Checkpoint { kind: CheckpointKind::Turn, .. } => "CP-T",
        Effect::Dispatch { .. } => "dispatch",
        Effect::AskRecovery { .. } => "recovery",
        Effect::ArmTimer { .. } => "wait",
        Effect::RunBatch { .. } => "batch",
        Effect::AskClaimStep { .. } => "claim",
        Effect::AskStopping { .. } => "stopping",
        other => panic!("{other:?} asks nothing"),
    };
    name.to_owned()
}

pub(super) fn token_of(effect: &Effect) -> Option<Token> {
    match effect {
        Effect::AskOpenTurn { token }
        | Effect::Assemble { token, .. }
        | Effect::AskPreStep { token, .. }
        | Effect::AskRequest { token, .. }
        | Effect::Prepare { token, .. }
        | Effect::Append { token, .. }
        | Effect::Checkpoint { token, .. }
        | Effect::Dispatch { token, .. }
        | Effect::AskRecovery { token, .. }
        | Effect::ArmTimer { token, .. }
        | Effect::RunBatch { token, .. }
        | Effect::AskClaimStep { token, .. }
        | Effect::AskStopping { token, .. } => Some(*token),
        _ => None,
    }
}
