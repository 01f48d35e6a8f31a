//! The agent as a pure machine: its inbox, its phase, and who is told what (3).
//!
//! It has no clock, chance, I/O or tasks, and knows nothing of steps. One append of its own is in flight at any
//! moment; other operations wait in the order in which they came (C-8), so that every decision is made on the log as
//! it is. The pending inbox is not held here: it is the fold of the log, and what others commit reaches the desk as
//! a newer fold.
//!
//! ```text
//! caller ─ op ─▶ waiting ─▶ append ─▶ logged ─┬▶ wake the driver
//!                                             └▶ checkpoint ─▶ receipt
//! driver ─ open turn ─▶ waiting ─▶ {turn/start, inbox/claimed} ─▶ opened, or idle in the same answer
//! ```

mod answers;
mod dispose;
mod drain;
mod ops;
mod types;
mod validate;

#[cfg(test)]
mod tests;

pub use types::{Answer, Duplicate, Input, Op, Output, ReplyId, Rules, Token};

use crate::{
    handle::{DisposeMode, Frame, KeptItems, OpError, Pending, PendingCounts, Receipt, Status, Visible},
    limits::{AGENT_OPS_MAX, BootPending},
    protocol::{AppendClass, AppendError, CheckpointKind, Phase},
};
use everturn_storage::{
    event::{Cause, EventBody, Item},
    ids::{ItemId, MessageId, Proposal, Seq, Step, Turn},
    log::{LogState, PendingItem},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// What waits for its turn at the desk.
#[derive(Debug)]
enum Waiting {
    Op {
        op: Op,
        reply: ReplyId,
    },
    Open {
        reply: ReplyId,
        tries: u32,
    },
    Claim {
        turn: Turn,
        proposal: Proposal,
        step: Step,
        owed: bool,
        reply: ReplyId,
    },
    /// Take back an item whose acceptance could not be made durable.
    Withdraw {
        item: ItemId,
        reply: ReplyId,
        why: String,
    },
    /// Remove what waits, for a disposal that discards.
    Discard,
}

/// What the append in flight is for.
#[derive(Debug)]
enum Flight {
    Accept { item: ItemId, reply: ReplyId },
    Change { reply: ReplyId },
    Cancel { cause: Cause, removed: Vec<ItemId>, reply: ReplyId },
    Withdraw { message: MessageId, why: String, reply: ReplyId },
    Open { turn: Turn, items: Vec<Arc<Item>>, tries: u32, reply: ReplyId },
    Claim { items: Vec<Arc<Item>>, reply: ReplyId },
    Discard,
}

/// What a checkpoint in flight is for.
#[derive(Debug)]
enum Check {
    Accept {
        item: ItemId,
        receipt: Receipt,
        reply: ReplyId,
    },
    Change {
        reply: ReplyId,
    },
    Duplicate {
        item: ItemId,
        kind: Duplicate,
        reply: ReplyId,
    },
    Maintenance {
        reply: ReplyId,
    },
    /// Nobody waits; readers outside see only what is durable.
    Nobody,
    Dispose,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Life {
    Live,
    /// Takes nothing new; open steps may end.
    Draining,
    Disposing {
        mode: DisposeMode,
        cleared: bool,
    },
    Disposed,
    Faulted(String),
}

/// The open turn as the desk knows it: from its opening until the driver says that it ended.
#[derive(Debug)]
struct LiveTurn {
    turn: Turn,
    cancelled: bool,
}

/// The machine.
#[derive(Debug)]
pub struct Desk {
    view: Arc<LogState>,
    rules: Rules,
    /// The last event that a checkpoint of this desk found durable.
    durable: Option<Seq>,
    life: Life,
    turn: Option<LiveTurn>,
    /// The turn whose CP-T has not settled.
    settling: Option<Turn>,
    phase: Phase,
    /// Whether the driver was woken and has not been told to stop.
    active: bool,
    /// Whether watchers see it running.
    running: bool,
    maintaining: bool,
    /// Items that do not wake anybody until the next wake (R13).
    parked: BTreeSet<ItemId>,
    /// Poisonous items that somebody wants to run all the same.
    forgiven: BTreeSet<ItemId>,
    /// Messages that were not accepted and may be submitted again.
    withdrawn: BTreeSet<MessageId>,
    /// No turn is opened before this timer, the store's return, or the next append that works (R14).
    journal_parked: Option<Token>,
    /// The opening that waits for its next try.
    retrying: Option<(Token, ReplyId, u32)>,
    flight: Option<(Token, Flight)>,
    waiting: VecDeque<Waiting>,
    checks: BTreeMap<Token, Check>,
    idle_waiters: Vec<ReplyId>,
    item_waiters: Vec<(ItemId, ReplyId)>,
    dispose_waiters: Vec<ReplyId>,
    failed_checkpoints: u32,
    next_token: u64,
    out: Vec<Output>,
}

impl Desk {
    /// The desk of an agent whose log, durable as it is, folds to `view` and needs no repair.
    pub fn new(view: Arc<LogState>, rules: Rules, boot_pending: BootPending) -> Self {
        let mut desk = Self {
            durable: view.next_seq().0.checked_sub(1).map(Seq),
            view,
            rules,
            life: Life::Live,
            turn: None,
            settling: None,
            phase: Phase::Idle,
            active: false,
            running: false,
            maintaining: false,
            parked: BTreeSet::new(),
            forgiven: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            journal_parked: None,
            retrying: None,
            flight: None,
            waiting: VecDeque::new(),
            checks: BTreeMap::new(),
            idle_waiters: Vec::new(),
            item_waiters: Vec::new(),
            dispose_waiters: Vec::new(),
            failed_checkpoints: 0,
            next_token: 0,
            out: Vec::new(),
        };
        if boot_pending == BootPending::Park {
            desk.park_all();
        }
        desk
    }

    /// The settings from now on.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Takes one input and says what to do now, in order.
    pub fn step(&mut self, input: Input) -> Vec<Output> {
        match input {
            Input::Booted => {}
            Input::Op { op, reply } => self.op_came(op, reply),
            Input::WhenIdle { reply } => self.idle_waiters.push(reply),
            Input::AwaitItem { item, reply } => self.await_item(item, reply),
            Input::Maintained { reply } => self.maintained(reply),
            Input::Drain => self.drain(),
            Input::OpenTurn { reply } => self.waiting.push_back(Waiting::Open { reply, tries: 0 }),
            Input::ClaimStep { turn, proposal, step, owed, view, reply } => {
                self.look(view);
                self.waiting.push_back(Waiting::Claim { turn, proposal, step, owed, reply });
            }
            Input::Phase { phase, view } => {
                self.look(view);
                self.phase = phase;
            }
            Input::TurnEnded { turn, reason, view } => {
                self.look(view);
                self.turn_ended(turn, &reason);
            }
            Input::TurnSettled { turn, outcome } => self.turn_settled(turn, outcome),
            Input::Fault { why } => self.fault(why),
            Input::Appended { token, result } => self.appended(token, result),
            Input::Settled { token, outcome } => self.settled(token, outcome),
            Input::Timer { token } => self.timer(token),
            Input::Committed(view) => self.look(view),
            // The journal refuses by itself; what fails meanwhile is retried or parked where it fails.
            Input::StoreDown => {}
            Input::StoreUp => self.journal_parked = None,
        }
        self.pump();
        self.wake();
        self.dispose_on();
        self.release_idle();
        std::mem::take(&mut self.out)
    }

    /// The fold of the log as the desk knows it.
    pub fn view(&self) -> &Arc<LogState> {
        &self.view
    }

    /// A snapshot for people.
    pub fn status(&self) -> Status {
        let open = self.view.open_turn();
        let step = open.and_then(|turn| turn.step.as_ref());
        let phase = self.shown_phase();
        let waking = self.pending().any(|pending| pending.item.wake);
        Status {
            visible: match (&self.life, self.running) {
                (Life::Disposed, _) => Visible::Disposed,
                (_, true) => Visible::Running,
                (_, false) => Visible::Idle,
            },
            phase,
            turn: open.map(|turn| turn.turn).or(self.settling),
            step: step.map(|step| step.step),
            attempt: step.filter(|_| phase == Phase::Streaming).map(|step| step.attempt.next()),
            pending: self.counts(),
            parked: waking && self.claim().is_none() && !self.parked.is_empty(),
            fault: match &self.life {
                Life::Faulted(why) => Some(why.clone()),
                Life::Live | Life::Draining | Life::Disposing { .. } | Life::Disposed => None,
            },
        }
    }

    /// What waits, in order.
    pub fn pending_items(&self) -> Pending {
        Pending {
            next_turn: self.view.next_turn().iter().cloned().collect(),
            next_step: self.view.next_step().iter().cloned().collect(),
        }
    }

    fn shown_phase(&self) -> Phase {
        match &self.life {
            Life::Faulted(_) => Phase::Faulted,
            Life::Disposed => Phase::Disposed,
            Life::Disposing { .. } => Phase::Disposing,
            Life::Live | Life::Draining if self.maintaining => Phase::Maintenance,
            Life::Live | Life::Draining if self.settling.is_some() => Phase::Checkpoint,
            Life::Live | Life::Draining if self.turn.is_some() => self.phase,
            Life::Live | Life::Draining => Phase::Idle,
        }
    }

    fn counts(&self) -> PendingCounts {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        PendingCounts { next_turn: count(self.view.next_turn().len()), next_step: count(self.view.next_step().len()) }
    }

    /// Everything that waits: next-step items, then next-turn items.
    fn pending(&self) -> impl Iterator<Item = &PendingItem> {
        self.view.next_step().iter().chain(self.view.next_turn())
    }

    /// Takes a newer fold.
    fn look(&mut self, view: Arc<LogState>) {
        if view.next_seq() <= self.view.next_seq() {
            return;
        }
        self.view = view;
        let view = &self.view;
        self.parked.retain(|item| view.pending(item).is_some());
        self.forgiven.retain(|item| view.pending(item).is_some());
    }

    fn park_all(&mut self) {
        self.parked = self.pending().map(|pending| pending.item.id.clone()).collect();
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn append(&mut self, events: Vec<EventBody>, class: AppendClass, flight: Flight) {
        let token = self.token();
        self.flight = Some((token, flight));
        self.out.push(Output::Append { token, events, class });
    }

    fn check(&mut self, kind: CheckpointKind, upto: Seq, check: Check) {
        let token = self.token();
        self.checks.insert(token, check);
        self.out.push(Output::Checkpoint { token, kind, upto });
    }

    fn arm(&mut self, delay_ms: u64) -> Token {
        let token = self.token();
        self.out.push(Output::ArmTimer { token, delay_ms });
        token
    }

    fn answer(&mut self, reply: ReplyId, answer: Answer) {
        self.out.push(Output::Answer { reply, answer });
    }

    fn refuse(&mut self, reply: ReplyId, error: OpError) {
        self.answer(reply, Answer::Refused(error));
    }

    fn notice(&mut self, code: &str, message: String) {
        self.out.push(Output::Notify(Frame::Notice { code: code.to_owned(), message }));
    }

    /// Admission is bounded here: mailboxes are not.
    fn op_came(&mut self, op: Op, reply: ReplyId) {
        if self.waiting.len() + self.checks.len() >= AGENT_OPS_MAX {
            self.refuse(reply, OpError::Busy);
            return;
        }
        self.waiting.push_back(Waiting::Op { op, reply });
    }

    /// Starts what waits, one append at a time.
    fn pump(&mut self) {
        while self.flight.is_none() {
            let Some(next) = self.waiting.pop_front() else { return };
            match next {
                Waiting::Op { op, reply } => self.op(op, reply),
                Waiting::Open { reply, tries } => self.open_turn(reply, tries),
                Waiting::Claim { turn, proposal, step, owed, reply } => {
                    self.claim_step(turn, proposal, step, owed, reply);
                }
                Waiting::Withdraw { item, reply, why } => self.withdraw(&item, reply, why),
                Waiting::Discard => self.discard(),
            }
        }
    }
}
