//! The desk beside a journal and a driver that are as small as they can be.

mod random;
mod rules;

use super::*;
use crate::{
    handle::{Submit, SubmitKind},
    limits::TurnErrorPolicy,
    protocol::{Appended, CheckpointFailed, ClaimStepAnswer},
};
use everturn_storage::{
    event::{OpenReason, SessionOpened, TurnEnd, TurnReason},
    ids::{Epoch, SessionId},
    message::{Block, Failure},
};

pub(super) const RULES: Rules = Rules {
    steering: true,
    inbox_capacity: 8,
    message_max_bytes: 100,
    claim_restore_limit: 1,
    turn_error_policy: TurnErrorPolicy::Continue,
};

/// A desk, the log behind it, and what it said.
pub(super) struct Stage {
    pub(super) desk: Desk,
    pub(super) log: LogState,
    /// What checkpoints find durable.
    pub(super) durable: Option<Seq>,
    /// Opening appends and checkpoints fail.
    pub(super) down: bool,
    /// Answers of the journal wait in `held`.
    pub(super) hold: bool,
    pub(super) held: VecDeque<Input>,
    pub(super) answers: BTreeMap<ReplyId, Answer>,
    pub(super) asked: u64,
    /// What callers asked.
    pub(super) callers: Vec<ReplyId>,
    pub(super) notes: Vec<String>,
    /// The timers that run.
    pub(super) timers: Vec<(Token, u64)>,
    /// The turn that the driver has.
    pub(super) turn: Option<Turn>,
    pub(super) claimed: Vec<ItemId>,
    /// Whether the driver was woken or asks.
    pub(super) awake: bool,
    /// Whether the driver asks for the next turn by itself.
    pub(super) eager: bool,
}

pub(super) fn empty_log() -> LogState {
    let opened = SessionOpened { reason: OpenReason::Fresh, epoch: Epoch(1) };
    let log = LogState::empty(SessionId::trusted("s"));
    log.stage(vec![opened.into()], 1).expect("valid").0
}

pub(super) fn stage() -> Stage {
    stage_on(empty_log(), RULES, BootPending::Auto)
}

pub(super) fn stage_on(log: LogState, rules: Rules, boot_pending: BootPending) -> Stage {
    let desk = Desk::new(Arc::new(log.clone()), rules, boot_pending);
    let durable = log.next_seq().0.checked_sub(1).map(Seq);
    let mut stage = Stage {
        desk,
        log,
        durable,
        down: false,
        hold: false,
        held: VecDeque::new(),
        answers: BTreeMap::new(),
        asked: 0,
        callers: Vec::new(),
        notes: Vec::new(),
        timers: Vec::new(),
        turn: None,
        claimed: Vec::new(),
        awake: false,
        eager: true,
    };
    stage.feed(Input::Booted);
    stage
}

impl Stage {
    /// Feeds an input and everything that follows from it at once.
    pub(super) fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for output in self.desk.step(input) {
                let answer = self.perform(output);
                match answer {
                    Some(answer) if self.hold => self.held.push_back(answer),
                    answer => inputs.extend(answer),
                }
            }
            if self.eager && self.awake && self.turn.is_none() && inputs.is_empty() && !self.hold {
                self.awake = false;
                inputs.push_back(Input::OpenTurn { reply: self.reply() });
            }
        }
    }

    fn perform(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Append { token, events, class } => {
                Some(Input::Appended { token, result: self.append(events, class) })
            }
            Output::Checkpoint { token, upto, .. } => {
                assert!(upto < self.log.next_seq(), "only what is logged can be durable");
                let outcome = if self.down {
                    Err(CheckpointFailed("down".to_owned()))
                } else {
                    self.durable = self.durable.max(Some(upto));
                    Ok(upto)
                };
                Some(Input::Settled { token, outcome })
            }
            Output::ArmTimer { token, delay_ms } => {
                self.timers.push((token, delay_ms));
                None
            }
            Output::WakeDriver => {
                assert!(!self.awake && self.turn.is_none(), "only a driver that sleeps is woken");
                self.awake = true;
                None
            }
            Output::FireSignal { turn, cause } => self.note(format!("fire {turn} {cause:?}")),
            Output::FireMaintenance { .. } => self.note("fire maintenance".to_owned()),
            Output::Opened { turn, batch, .. } => {
                self.turn = Some(turn);
                self.claimed = batch.items.iter().map(|item| item.id.clone()).collect();
                None
            }
            Output::NothingOpened { .. } => self.note("idle".to_owned()),
            Output::Claimed { answer, .. } => {
                let note = match answer {
                    ClaimStepAnswer::Work(batch) => {
                        self.claimed.extend(batch.items.iter().map(|item| item.id.clone()));
                        format!("claimed {:?}", batch.items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>())
                    }
                    ClaimStepAnswer::Nothing => "nothing".to_owned(),
                    ClaimStepAnswer::Failed(_) => "claim failed".to_owned(),
                };
                self.note(note)
            }
            Output::Answer { reply, answer } => {
                if let Answer::Receipt(receipt) = &answer {
                    assert!(self.durable >= Some(receipt.seq), "a receipt before its record is durable");
                }
                assert!(self.answers.insert(reply, answer).is_none(), "answered twice");
                None
            }
            Output::Notify(Frame::Notice { code, .. }) => self.note(format!("notice {code}")),
            Output::Notify(Frame::Status { status }) => self.note(format!("{status:?}")),
            Output::Notify(_) => None,
            Output::Disposed => self.note("disposed".to_owned()),
            Output::Fault { why } => self.note(format!("fault {why}")),
        }
    }

    fn note(&mut self, note: String) -> Option<Input> {
        self.notes.push(note);
        None
    }

    fn append(&mut self, events: Vec<EventBody>, class: AppendClass) -> Result<Appended, AppendError> {
        if self.down && class == AppendClass::Opening {
            return Err(AppendError::Io("down".to_owned()));
        }
        let (log, events) = self.log.stage(events, 1).unwrap_or_else(|broken| panic!("{broken}"));
        self.log = log;
        Ok(Appended { first: events[0].seq, last: events[events.len() - 1].seq, view: Arc::new(self.log.clone()) })
    }

    fn reply(&mut self) -> ReplyId {
        self.asked += 1;
        ReplyId(self.asked)
    }

    /// Lets the journal give the answers that it held.
    pub(super) fn release(&mut self) {
        self.hold = false;
        while let Some(answer) = self.held.pop_front() {
            self.feed(answer);
        }
    }

    pub(super) fn op(&mut self, op: Op) -> ReplyId {
        let reply = self.reply();
        self.callers.push(reply);
        self.feed(Input::Op { op, reply });
        reply
    }

    pub(super) fn submit(&mut self, kind: SubmitKind, id: &str) -> ReplyId {
        let content = vec![Block::text(format!("say {id}"))];
        let fresh = format!("fresh-{}", self.asked);
        let submit = Submit { kind, id: Some(MessageId::trusted(id)), content, source: None };
        self.op(Op::Submit { submit, fresh })
    }

    pub(super) fn send(&mut self, id: &str) -> ReplyId {
        self.submit(SubmitKind::Send, id)
    }

    pub(super) fn receipt(&self, reply: ReplyId) -> &Receipt {
        let answer = &self.answers[&reply];
        let Answer::Receipt(receipt) = answer else { panic!("no receipt: {answer:?}") };
        receipt
    }

    pub(super) fn refusal(&self, reply: ReplyId) -> &str {
        let answer = &self.answers[&reply];
        let Answer::Refused(error) = answer else { panic!("no refusal: {answer:?}") };
        error.code()
    }

    pub(super) fn idle(&mut self) -> ReplyId {
        let reply = self.reply();
        self.callers.push(reply);
        self.feed(Input::WhenIdle { reply });
        reply
    }

    /// The driver asks for more for its turn.
    pub(super) fn more(&mut self, owed: bool) {
        let Some(turn) = self.log.open_turn() else { panic!("a turn is open") };
        let (proposal, step, turn) = (turn.proposals.next(), Step(turn.steps + 1), turn.turn);
        let (view, reply) = (Arc::new(self.log.clone()), self.reply());
        self.feed(Input::ClaimStep { turn, proposal, step, owed, view, reply });
    }

    /// The driver logs the end of its turn.
    pub(super) fn end(&mut self, reason: TurnReason) {
        let Some(open) = self.log.open_turn() else { panic!("a turn is open") };
        let unadmitted = open.claimed.iter().map(|item| item.item.id.clone()).collect();
        let end = TurnEnd { turn: open.turn, reason: reason.clone(), steps: 0, unadmitted };
        self.append(vec![end.into()], AppendClass::Closing).expect("closing");
        let view = Arc::new(self.log.clone());
        let turn = self.turn.expect("the driver has a turn");
        self.feed(Input::TurnEnded { turn, reason, view });
    }

    /// CP-T settles, and the driver asks for the next turn.
    pub(super) fn settle(&mut self) {
        let turn = self.turn.take().expect("the driver has a turn");
        let last = Seq(self.log.next_seq().0 - 1);
        let outcome = if self.down { Err(CheckpointFailed("down".to_owned())) } else { Ok(last) };
        if !self.down {
            self.durable = Some(last);
        }
        self.awake = true;
        self.feed(Input::TurnSettled { turn, outcome });
    }

    pub(super) fn run(&mut self, reason: TurnReason) {
        self.end(reason);
        self.settle();
    }

    /// Ends the timer that was armed last.
    pub(super) fn ring(&mut self) -> u64 {
        let (token, delay_ms) = self.timers.pop().expect("a timer runs");
        self.feed(Input::Timer { token });
        delay_ms
    }

    pub(super) fn ids(&self) -> Vec<&str> {
        self.claimed.iter().map(ItemId::as_str).collect()
    }
}

pub(super) fn failed() -> TurnReason {
    TurnReason::Error { failure: Failure::new("SERVER", "x") }
}

pub(super) fn aborted() -> TurnReason {
    TurnReason::Aborted { cause: Cause::User }
}

pub(super) fn id(text: &str) -> ItemId {
    ItemId::trusted(text)
}
