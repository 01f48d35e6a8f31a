//! The real desk in the simulated session, and callers who do what they like.

use super::{
    disk::{Disk, RESTORE_LIMIT},
    judge::{Broken, Verdict},
    life::{Lane, Life, Parcel, Task, Who},
    plants::Plant,
};
use everturn_actors::{
    desk::{Answer, Desk, Input, Op, Output, ReplyId, Rules, Token as DeskToken},
    handle::{KeptItems, Submit, SubmitKind},
    limits::{BootPending, Limits},
    protocol::{AppendError, Appended, CheckpointFailed, ClaimStepAnswer, Phase},
    turn::{self, Token},
};
use everturn_storage::{
    event::{Cause, Target, TurnReason},
    ids::{ItemId, MessageId, Proposal, Seq, Step, Turn},
    log::LogState,
    message::Block,
};
use std::{collections::BTreeMap, sync::Arc};

/// What is on its way to the desk.
#[derive(Debug)]
pub(crate) enum DeskIn {
    Appended { tag: u64, result: Result<Appended, AppendError> },
    Checkpointed { tag: u64, upto: Seq, good: bool },
    Committed(Arc<LogState>),
    StoreDown,
    StoreUp,
    OpenTurn { token: Token },
    ClaimStep { token: Token, turn: Turn, proposal: Proposal, step: Step, owed: bool, view: Arc<LogState> },
    Phase { phase: Phase, view: Arc<LogState> },
    TurnEnded { turn: Turn, reason: TurnReason, view: Arc<LogState> },
    TurnSettled { turn: Turn, outcome: Result<Seq, CheckpointFailed> },
    Timer { tag: u64 },
    Op(Op),
    WhenIdle,
    Booted,
}

/// Whom the desk answers.
enum Asker {
    Driver(Token),
    Caller,
    Waiter,
}

pub(crate) struct DeskPort {
    pub(crate) desk: Desk,
    askers: BTreeMap<ReplyId, Asker>,
    next: u64,
    /// Callers that wait for quiescence and were not answered.
    pub(crate) waiting: usize,
}

fn rules() -> Rules {
    let limits = Limits::default();
    Rules {
        steering: true,
        inbox_capacity: 64,
        message_max_bytes: limits.message_max_bytes,
        claim_restore_limit: RESTORE_LIMIT,
        turn_error_policy: limits.turn_error_policy,
    }
}

impl DeskPort {
    pub(crate) fn new(disk: &Disk, auto: bool) -> Self {
        let boot = if auto { BootPending::Auto } else { BootPending::Park };
        let desk = Desk::new(Arc::new(disk.state.clone()), rules(), boot);
        Self { desk, askers: BTreeMap::new(), next: 0, waiting: 0 }
    }

    fn ask(&mut self, asker: Asker) -> ReplyId {
        self.next += 1;
        self.askers.insert(ReplyId(self.next), asker);
        ReplyId(self.next)
    }

    fn input(&mut self, input: DeskIn) -> Input {
        match input {
            DeskIn::Appended { tag, result } => Input::Appended { token: DeskToken(tag), result },
            DeskIn::Checkpointed { tag, upto, good } => {
                let outcome = if good { Ok(upto) } else { Err(CheckpointFailed("simulated".to_owned())) };
                Input::Settled { token: DeskToken(tag), outcome }
            }
            DeskIn::Committed(view) => Input::Committed(view),
            DeskIn::StoreDown => Input::StoreDown,
            DeskIn::StoreUp => Input::StoreUp,
            DeskIn::OpenTurn { token } => Input::OpenTurn { reply: self.ask(Asker::Driver(token)) },
            DeskIn::ClaimStep { token, turn, proposal, step, owed, view } => {
                Input::ClaimStep { turn, proposal, step, owed, view, reply: self.ask(Asker::Driver(token)) }
            }
            DeskIn::Phase { phase, view } => Input::Phase { phase, view },
            DeskIn::TurnEnded { turn, reason, view } => Input::TurnEnded { turn, reason, view },
            DeskIn::TurnSettled { turn, outcome } => Input::TurnSettled { turn, outcome },
            DeskIn::Timer { tag } => Input::Timer { token: DeskToken(tag) },
            DeskIn::Op(op) => Input::Op { op, reply: self.ask(Asker::Caller) },
            DeskIn::WhenIdle => {
                self.waiting += 1;
                Input::WhenIdle { reply: self.ask(Asker::Waiter) }
            }
            DeskIn::Booted => Input::Booted,
        }
    }
}

impl Life {
    pub(crate) fn start_desk(&mut self) -> Verdict {
        self.feed_desk(DeskIn::Booted)
    }

    pub(crate) fn feed_desk(&mut self, input: DeskIn) -> Verdict {
        let input = self.desk.input(input);
        let outputs = self.desk.desk.step(input);
        let faulted = outputs.iter().any(|output| matches!(output, Output::Fault { .. }));
        for output in outputs {
            self.obey_desk(output)?;
        }
        // Only a restart through repair helps (F-4); callers have their answers by now.
        if faulted { self.reborn() } else { Ok(()) }
    }

    fn obey_desk(&mut self, output: Output) -> Verdict {
        match output {
            Output::Append { token, events, class } => {
                self.post(Lane::DeskToJournal, Parcel::Append { who: Who::Desk, tag: token.0, class, events });
            }
            Output::Checkpoint { token, kind, upto } => {
                self.post(Lane::DeskToJournal, Parcel::Checkpoint { who: Who::Desk, tag: token.0, kind, upto });
            }
            Output::ArmTimer { token, .. } => self.tasks.push(Task::DeskTimer(token.0)),
            Output::WakeDriver => self.post(Lane::DeskToMachine, Parcel::Machine(turn::Input::Wake)),
            Output::FireSignal { turn, cause } => {
                self.fired = Some(turn);
                self.post(Lane::DeskToMachine, Parcel::Machine(turn::Input::Cancel { turn, cause }));
                if let Some(pool) = self.pool.as_ref().filter(|pool| pool.turn == turn) {
                    let input = everturn_actors::tool_pool::Input::Cancel;
                    let batch = pool.batch;
                    self.post(Lane::SignalToPool, Parcel::Pool { batch, input });
                }
            }
            Output::Opened { reply, turn, batch } => {
                let Some(Asker::Driver(token)) = self.desk.askers.remove(&reply) else { return Ok(()) };
                let (items, view) = (batch.items, batch.view);
                let input = turn::Input::TurnOpened { token, turn, items, view };
                self.post(Lane::DeskToMachine, Parcel::Machine(input));
                // The shell looks at the fresh signal right behind the opening.
                if self.fired == Some(turn) {
                    let input = turn::Input::Cancel { turn, cause: Cause::User };
                    self.post(Lane::DeskToMachine, Parcel::Machine(input));
                }
            }
            Output::NothingOpened { reply } => {
                let Some(Asker::Driver(token)) = self.desk.askers.remove(&reply) else { return Ok(()) };
                self.post(Lane::DeskToMachine, Parcel::Machine(turn::Input::NothingToOpen { token }));
            }
            Output::Claimed { reply, answer } => {
                let Some(Asker::Driver(token)) = self.desk.askers.remove(&reply) else { return Ok(()) };
                if let ClaimStepAnswer::Work(batch) = &answer {
                    self.judge.claimed(batch.items.len());
                }
                let input = turn::Input::ClaimAnswered { token, answer };
                self.post(Lane::DeskToMachine, Parcel::Machine(input));
            }
            Output::Answer { reply, answer } => {
                if self.plant == Plant::AnswerTwice && self.chance.permille(100) {
                    self.answered(reply, answer.clone())?;
                }
                self.answered(reply, answer)?;
            }
            Output::Notify(_) | Output::FireMaintenance { .. } | Output::Disposed | Output::Fault { .. } => {}
        }
        Ok(())
    }

    fn answered(&mut self, reply: ReplyId, answer: Answer) -> Verdict {
        match (self.desk.askers.remove(&reply), answer) {
            (Some(Asker::Caller), Answer::Receipt(receipt)) => {
                self.judge.receipt(receipt.item_id, receipt.seq, &self.disk)
            }
            // A fault releases who waits, whatever is open (F-4).
            (Some(Asker::Waiter), Answer::Idle(Some(_))) => {
                self.desk.waiting -= 1;
                Ok(())
            }
            (Some(Asker::Waiter), Answer::Idle(None)) => {
                self.desk.waiting -= 1;
                // 226, K-2: never between two turns, never before CP-T settles.
                match self.disk.state.open_turn() {
                    Some(open) => Err(Broken::new("O-4", format!("idle while turn {} is open", open.turn))),
                    None => Ok(()),
                }
            }
            (Some(_), _) => Ok(()),
            (None, answer) => Err(Broken::new("C-5", format!("answered twice, or nobody: {answer:?}"))),
        }
    }

    pub(crate) fn op(&mut self, op: Op) {
        self.post(Lane::CallerToDesk, Parcel::Desk(DeskIn::Op(op)));
    }

    pub(crate) fn wake(&mut self) {
        self.op(Op::Wake);
    }

    pub(crate) fn submit(&mut self, kind: SubmitKind) {
        let n = self.fresh();
        let id = self.chance.permille(700).then(|| MessageId::trusted(format!("m{n}")));
        let submit = Submit { kind, id, content: vec![Block::text("hi")], source: None };
        self.op(Op::Submit { submit, fresh: format!("g{n}") });
    }

    pub(crate) fn submit_from_inside(&mut self) {
        self.submit(SubmitKind::Steer);
    }

    /// Some item that waits, if any.
    fn someone(&mut self) -> Option<(ItemId, Target)> {
        let state = &self.disk.state;
        let turns = state.next_turn().iter().map(|row| (row.item.id.clone(), Target::NextTurn));
        let all: Vec<_> =
            turns.chain(state.next_step().iter().map(|row| (row.item.id.clone(), Target::NextStep))).collect();
        if all.is_empty() { None } else { Some(self.chance.pick(&all).clone()) }
    }

    pub(crate) fn user_op(&mut self) {
        match self.chance.below(100) {
            0..45 => self.submit(SubmitKind::Send),
            45..62 => self.submit(SubmitKind::Steer),
            62..74 => self.submit(SubmitKind::Inject),
            74..84 => {
                let kept = *self.chance.pick(&[KeptItems::Clear, KeptItems::Park, KeptItems::Continue]);
                let cause = self.chance.pick(&[Cause::User, Cause::Parent]).clone();
                self.op(Op::Cancel { cause, kept });
            }
            84..87 => self.op(Op::Wake),
            87..90 => self.post(Lane::CallerToDesk, Parcel::Desk(DeskIn::WhenIdle)),
            roll => {
                let Some((item, list)) = self.someone() else { return };
                self.edit(roll, item, list);
            }
        }
    }

    fn edit(&mut self, roll: usize, item: ItemId, list: Target) {
        match roll {
            90..92 => self.op(Op::Edit { item, content: vec![Block::text("rather this")] }),
            92..95 => self.op(Op::Remove { items: vec![item] }),
            95..98 => {
                let state = &self.disk.state;
                let rows = if list == Target::NextTurn { state.next_turn() } else { state.next_step() };
                let mut items: Vec<ItemId> = rows.iter().map(|row| row.item.id.clone()).collect();
                items.reverse();
                self.op(Op::Reorder { list, items });
            }
            _ => {
                let target = if list == Target::NextTurn { Target::NextStep } else { Target::NextTurn };
                self.op(Op::Move { item, target });
            }
        }
    }
}
