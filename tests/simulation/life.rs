//! One simulated session: the real machines, wired by queues that keep the order of each pair and nothing else.

use super::{
    chance::Chance,
    desk_port::{DeskIn, DeskPort},
    disk::Disk,
    judge::{Broken, Judge, Verdict},
    outside::{Mood, Truth},
    plants::Plant,
    plug::Plug,
    wire::Wire,
};
use everturn_actors::{
    ledger::StoreNews,
    limits::CheckpointPolicy,
    protocol::{AppendClass, AppendError, Appended, CheckpointFailed, CheckpointKind},
    tool_pool::{self, Window},
    turn::{self, Machine, Rules, Token},
};
use everturn_storage::{
    event::{EventBody, EventData},
    ids::{Epoch, Seq, Step, Turn},
    log::CallRow,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Who asks the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Desk,
    Machine,
    /// The window of this batch; answers to older ones are dropped.
    Pool(u64),
    /// Whoever opens the session.
    Keeper,
}

/// A pair of actors whose messages keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    DeskToJournal,
    MachineToJournal,
    PoolToJournal,
    JournalToDesk,
    JournalToMachine,
    JournalToPool,
    MachineToDesk,
    DeskToMachine,
    CallerToDesk,
    SignalToPool,
    StoreToJournal,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) enum Parcel {
    Append { who: Who, tag: u64, class: AppendClass, events: Vec<EventBody> },
    Checkpoint { who: Who, tag: u64, kind: CheckpointKind, upto: Seq },
    Machine(turn::Input),
    Pool { batch: u64, input: tool_pool::Input },
    Desk(DeskIn),
    News { epoch: Epoch, news: StoreNews },
    Synced { epoch: Epoch, outcome: Result<Seq, everturn_storage::store::Error>, waiter: Option<Waiter> },
}

/// Work that ends whenever it likes.
#[derive(Debug)]
pub(crate) enum Task {
    Assemble(Token),
    PreStep(Token, Box<everturn_actors::ports::Proposed>),
    Request(Token),
    Prepare(Token, everturn_storage::event::RequestConfig),
    Attempt { token: Token, aborted: bool },
    Recovery(Token),
    MachineTimer(Token),
    Stopping(Token),
    Policy { batch: u64, index: usize },
    Post { batch: u64, index: usize },
    Body { batch: u64, index: usize, signalled: bool },
    PoolTimer { batch: u64, timer: tool_pool::Timer },
    DeskTimer(u64),
}

/// A waiter for stable storage.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) who: Who,
    pub(crate) tag: u64,
    pub(crate) kind: CheckpointKind,
    pub(crate) upto: Seq,
}

pub(crate) struct Pool {
    pub(crate) batch: u64,
    pub(crate) token: Token,
    pub(crate) turn: Turn,
    pub(crate) step: Step,
    pub(crate) calls: Vec<CallRow>,
    pub(crate) window: Window,
}

/// One session over all its incarnations.
pub(crate) struct Life {
    pub(crate) seed: u64,
    pub(crate) chance: Chance,
    pub(crate) disk: Disk,
    pub(crate) judge: Judge,
    pub(crate) wire: Wire,
    pub(crate) desk: DeskPort,
    pub(crate) machine: Machine,
    pub(crate) pool: Option<Pool>,
    pub(crate) lanes: BTreeMap<Lane, VecDeque<Parcel>>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) waiters: Vec<Waiter>,
    /// The turn whose signal has fired.
    pub(crate) fired: Option<Turn>,
    /// Whether a planted bug keeps the driver from asking for more.
    pub(crate) stopped: bool,
    pub(crate) last_truth: Option<Truth>,
    pub(crate) mood: Mood,
    pub(crate) faults: bool,
    pub(crate) semantic: bool,
    pub(crate) plant: Plant,
    pub(crate) fresh: u64,
    /// How often the model was heard to its end.
    pub(crate) answers: u64,
    /// The next append, or the next sync, fails.
    pub(crate) fail_append: bool,
    pub(crate) fail_sync: bool,
    pub(crate) batches: u64,
    /// How many inputs the machines and the journal took.
    pub(crate) inputs: u64,
    pub(crate) crashes: u64,
    /// The turn that the CP-T under way belongs to.
    pub(crate) closing: Option<Turn>,
    /// Its place in a fleet.
    pub(crate) plug: Option<Plug>,
}

impl Life {
    pub(crate) fn new(seed: u64, plant: Plant) -> Self {
        let mut chance = Chance::new(seed);
        let semantic = !chance.permille(100);
        let disk = Disk::new();
        let desk = DeskPort::new(&disk, true);
        Self {
            seed,
            chance,
            disk,
            judge: Judge::default(),
            wire: Wire::new(),
            desk,
            machine: Machine::new(),
            pool: None,
            lanes: BTreeMap::new(),
            tasks: Vec::new(),
            waiters: Vec::new(),
            fired: None,
            stopped: false,
            last_truth: None,
            mood: Mood::Free,
            faults: true,
            semantic,
            plant,
            fresh: 0,
            answers: 0,
            fail_append: false,
            fail_sync: false,
            batches: 0,
            inputs: 0,
            crashes: 0,
            closing: None,
            plug: None,
        }
    }

    pub(crate) fn rules(&self) -> Rules {
        let checkpoint = if self.semantic { CheckpointPolicy::Semantic } else { CheckpointPolicy::Turn };
        Rules { checkpoint, fold_step_checkpoint: self.fresh.is_multiple_of(2), ..Rules::default() }
    }

    pub(crate) fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    pub(crate) fn post(&mut self, lane: Lane, parcel: Parcel) {
        self.lanes.entry(lane).or_default().push_back(parcel);
    }

    /// Delivers one message of a lane that has one. Returns whether there was any.
    pub(crate) fn deliver(&mut self) -> Result<bool, Broken> {
        let ready: Vec<Lane> =
            self.lanes.iter().filter(|(_, queue)| !queue.is_empty()).map(|(lane, _)| *lane).collect();
        if ready.is_empty() {
            return Ok(false);
        }
        let lane = *self.chance.pick(&ready);
        let Some(parcel) = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front) else { return Ok(false) };
        self.inputs += 1;
        match parcel {
            Parcel::Append { who, tag, class, events } => self.append(who, tag, class, events)?,
            Parcel::Checkpoint { who, tag, kind, upto } if self.plug.is_some() => {
                self.checkpoint_plugged(Waiter { who, tag, kind, upto })?;
            }
            Parcel::Checkpoint { who, tag, kind, upto } => self.checkpoint(who, tag, kind, upto),
            Parcel::News { epoch, news } => self.news(epoch, news)?,
            Parcel::Synced { epoch, outcome, waiter } => self.synced(epoch, outcome, waiter)?,
            Parcel::Machine(input) => self.feed_machine(input)?,
            Parcel::Pool { batch, input } => self.feed_pool(batch, input)?,
            Parcel::Desk(input) => self.feed_desk(input)?,
        }
        Ok(true)
    }

    fn append(&mut self, who: Who, tag: u64, class: AppendClass, events: Vec<EventBody>) -> Verdict {
        let fail = std::mem::take(&mut self.fail_append) || (self.faults && self.chance.permille(8));
        let events = self.plant.append(who, events, &self.disk);
        if events.is_empty() {
            // A planted bug left nothing of it.
            let (first, view) = (self.disk.state.next_seq(), Arc::new(self.disk.state.clone()));
            self.answer_append(who, tag, Ok(Appended { first, last: first, view }));
            return Ok(());
        }
        // A tool's context may join the list while a caller's new order of it is on its way: the caller is refused.
        let races = who == Who::Desk && events.iter().all(|event| matches!(event.data, EventData::InboxMoved(_)));
        if self.plug.is_some() {
            return self.append_plugged((who, tag), class, events, races);
        }
        let result = self.disk.append(self.disk.epoch, class, events, fail);
        match &result {
            Ok(_) => {
                let batch = self.disk.batches.last().cloned().unwrap_or_default();
                self.judge.committed(&batch)?;
                let view = Arc::new(self.disk.state.clone());
                self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::Committed(view)));
            }
            // Our machines never write what the log refuses: a refusal is a fault of theirs.
            Err(AppendError::Refused(violation)) if !(races && violation.rule == "I-7") => {
                return Err(Broken { rule: violation.rule, why: format!("{who:?}: {violation}") });
            }
            Err(AppendError::Refused(_) | AppendError::Fenced | AppendError::Io(_)) => {}
        }
        self.answer_append(who, tag, result);
        Ok(())
    }

    pub(crate) fn answer_append(&mut self, who: Who, tag: u64, result: Result<Appended, AppendError>) {
        match who {
            Who::Desk => self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::Appended { tag, result })),
            Who::Machine => {
                let token = Token(tag);
                let input = match result {
                    Ok(appended) => turn::Input::Appended { token, appended },
                    Err(error) => turn::Input::AppendFailed { token, error },
                };
                self.post(Lane::JournalToMachine, Parcel::Machine(input));
            }
            Who::Keeper => {}
            Who::Pool(batch) => {
                let input = match result {
                    Ok(appended) => tool_pool::Input::Appended { first: appended.first },
                    Err(error) => tool_pool::Input::AppendFailed { error },
                };
                self.post(Lane::JournalToPool, Parcel::Pool { batch, input });
            }
        }
    }

    fn checkpoint(&mut self, who: Who, tag: u64, kind: CheckpointKind, upto: Seq) {
        let waiter = Waiter { who, tag, kind, upto };
        if upto < self.disk.durable_next() || self.plant.skips(kind) {
            let truly = upto < self.disk.durable_next();
            self.answer_checkpoint(&waiter, true, truly);
        } else if self.disk.down {
            self.answer_checkpoint(&waiter, false, true);
        } else {
            self.waiters.push(waiter);
        }
    }

    /// One sync, good or bad; a bad one takes the store down.
    pub(crate) fn sync(&mut self, good: bool) {
        if good {
            self.disk.sync();
        } else {
            self.disk.down = true;
            self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::StoreDown));
        }
        let said = good || self.plant == Plant::FailedSyncAcked;
        for waiter in std::mem::take(&mut self.waiters) {
            self.answer_checkpoint(&waiter, said, true);
        }
    }

    pub(crate) fn store_up(&mut self) {
        self.disk.down = false;
        self.disk.sync();
        self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::StoreUp));
    }

    pub(crate) fn answer_checkpoint(&mut self, waiter: &Waiter, good: bool, truly: bool) {
        let Waiter { who, tag, kind, upto } = *waiter;
        if kind == CheckpointKind::Turn
            && truly
            && let Some(turn) = self.closing
        {
            self.judge.turn_settled(turn);
        }
        match who {
            Who::Desk => {
                self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::Checkpointed { tag, upto, good }));
            }
            Who::Machine => {
                let token = Token(tag);
                let input = if good {
                    turn::Input::Durable { token, seq: upto }
                } else {
                    turn::Input::CheckpointFailed { token, error: CheckpointFailed("simulated".to_owned()) }
                };
                self.post(Lane::JournalToMachine, Parcel::Machine(input));
            }
            Who::Keeper => {}
            Who::Pool(batch) => {
                let input = if good { tool_pool::Input::Durable { upto } } else { tool_pool::Input::CheckpointFailed };
                self.post(Lane::JournalToPool, Parcel::Pool { batch, input });
            }
        }
    }

    /// The process dies and another one takes the session.
    pub(crate) fn crash(&mut self) -> Verdict {
        self.crashes += 1;
        self.disk.crash(&mut self.chance, self.plant);
        self.reborn()
    }

    /// The actors die; the log stays as it is.
    pub(crate) fn reborn(&mut self) -> Verdict {
        if self.plug.is_some() {
            return self.die();
        }
        self.lanes.clear();
        self.tasks.clear();
        self.waiters.clear();
        self.pool = None;
        self.fired = None;
        self.closing = None;
        self.last_truth = None;
        self.stopped = false;
        self.disk.down = false;
        self.disk.open(self.plant)?;
        self.judge.reborn(&self.disk.state)?;
        self.machine = Machine::new();
        let auto = self.mood == Mood::Told || self.chance.permille(700);
        self.desk = DeskPort::new(&self.disk, auto);
        self.start_desk()
    }
}
