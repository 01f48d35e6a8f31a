//! A simulated session in a fleet: the real session-journal machine between the other machines and a store that it shares.

use super::{
    desk_port::{DeskIn, DeskPort},
    judge::{Broken, Verdict},
    life::{Lane, Life, Parcel, Waiter, Who},
};
use everturn_actors::{
    ledger::{Ledger, Output, StoreNews},
    protocol::{AppendClass, AppendError, CheckpointKind},
    turn::Machine,
};
use everturn_storage::{
    event::{EventBody, FORMAT_VERSION, InboxQueued, Item, Origin, SessionHeader, Target},
    ids::{Epoch, ItemId, MessageId, Seq, SessionId},
    load::{self, LoadError, Loaded},
    log::{LogState, repair},
    memory::MemoryStore,
    message::{Block, Message, Role},
    store::{Commit, Error, Store},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// What a session asks of the journal store, in order.
#[derive(Debug)]
pub(crate) enum Ask {
    Write {
        generation: u64,
        commit: Commit,
    },
    Sync {
        generation: u64,
        upto: Seq,
        waiter: Option<Waiter>,
    },
    Enroll,
    Withdraw,
    /// Read the log, behind everything that was written before.
    Read,
    /// Where the log ends, the same.
    Tail {
        upto: Seq,
    },
}

/// How far the keeper is with the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The log is being read.
    Reading,
    /// Repair or the marker is logged, CP-B pending; or the end of the log is compared.
    Booting,
    /// The actors run.
    Live,
}

pub(crate) struct Plug {
    pub(crate) session: SessionId,
    header: Arc<SessionHeader>,
    pub(crate) ledger: Ledger<Waiter>,
    pub(crate) outbox: VecDeque<(Epoch, Ask)>,
    pub(crate) stage: Stage,
    /// The highest epoch that this process has used.
    used: Epoch,
    /// Whether what a failed store lost is given to it again; a planted bug forgets it.
    pub(crate) resubmits: bool,
}

impl Plug {
    pub(crate) fn new(session: SessionId) -> Self {
        let header = Arc::new(SessionHeader {
            version: FORMAT_VERSION,
            session_id: session.clone(),
            agent: "default".to_owned(),
            created_at_ms: 1,
            cwd: None,
            parent: None,
            seed_length: None,
            origin: None,
            delegation_depth: None,
            preset: None,
            labels: BTreeMap::new(),
        });
        let ledger = Ledger::new(Epoch(0), Arc::clone(&header), LogState::empty(session.clone()), None);
        let outbox = VecDeque::from([(Epoch(0), Ask::Read)]);
        Self { session, header, ledger, outbox, stage: Stage::Reading, used: Epoch(0), resubmits: true }
    }
}

impl Life {
    pub(crate) fn plug(&mut self) -> &mut Plug {
        self.plug.as_mut().expect("the session is part of a fleet")
    }

    /// The actors of this session die; the keeper opens it again. Sometimes the dead journal was just writing.
    pub(crate) fn die(&mut self) -> Verdict {
        self.forget();
        let late = self.plug().stage == Stage::Live && self.chance.permille(200);
        let n = self.fresh();
        let plug = self.plug();
        let epoch = plug.ledger.epoch();
        plug.outbox.push_back((epoch, Ask::Withdraw));
        plug.outbox.push_back((epoch, Ask::Read));
        plug.stage = Stage::Reading;
        if late {
            // 202: it carries the old epoch, and nobody was told of it.
            let mut out = Vec::new();
            let queued = vec![late_item(n)];
            drop(plug.ledger.append(epoch, queued, AppendClass::Opening, 1_000_000 + n.cast_signed(), &mut out));
            for output in out {
                if let Output::Write { generation, commit } = output {
                    plug.outbox.push_back((epoch, Ask::Write { generation, commit }));
                }
            }
        }
        Ok(())
    }

    /// The process dies.
    pub(crate) fn process_died(&mut self) {
        self.forget();
        let plug = self.plug();
        plug.outbox.clear();
        plug.used = Epoch(0);
        plug.stage = Stage::Reading;
        plug.outbox.push_back((Epoch(0), Ask::Read));
    }

    fn forget(&mut self) {
        self.lanes.clear();
        self.tasks.clear();
        self.pool = None;
        self.fired = None;
        self.closing = None;
        self.last_truth = None;
        self.stopped = false;
        self.desk.waiting = 0;
    }

    /// The log was read: check, cut, repair, mark, CP-B.
    pub(crate) fn was_read(&mut self, store: &MemoryStore) -> Verdict {
        let session = self.plug().session.clone();
        let (state, durable) = match load::load(store, &session) {
            Ok(Loaded { header, state, durable, cut }) => {
                if let Some(torn) = cut {
                    let cut = store
                        .truncate(&session, torn.keep)
                        .and_then(|_| store.put_summary(&state.summary(&header)))
                        .and_then(|()| store.sync());
                    if cut.is_err() {
                        return self.die();
                    }
                }
                (state, durable)
            }
            Err(LoadError::NotFound(_)) => (LogState::empty(session), None),
            Err(LoadError::Store(_)) => return self.die(),
            Err(error) => return Err(Broken::new("B-2", format!("a log does not open: {error}"))),
        };
        self.judge.reborn(&state)?;
        let plug = self.plug.as_mut().expect("the session is part of a fleet");
        let logged = state.opened().map_or(Epoch(0), |row| row.epoch);
        let epoch = logged.max(plug.used).next();
        plug.used = epoch;
        let time_ms = state.last_time_ms().max(1);
        let events = match repair::plan(&state, epoch, super::disk::RESTORE_LIMIT) {
            Some(plan) => plan.events,
            None => repair::opening(&state, epoch).into_iter().collect(),
        };
        plug.ledger = Ledger::new(epoch, Arc::clone(&plug.header), state, durable);
        plug.outbox.push_back((epoch, Ask::Enroll));
        let mut out = Vec::new();
        if !events.is_empty() {
            match plug.ledger.append(epoch, events, AppendClass::Opening, time_ms, &mut out) {
                Ok(_) => {}
                Err(AppendError::Refused(violation)) => return Err(Broken::new(violation.rule, violation.to_string())),
                Err(AppendError::Fenced | AppendError::Io(_)) => return self.die(),
            }
        }
        let upto = Seq(plug.ledger.view().next_seq().0 - 1);
        let kind = CheckpointKind::Boot;
        plug.ledger.checkpoint(kind, upto, Waiter { who: Who::Keeper, tag: 0, kind, upto }, &mut out);
        plug.stage = Stage::Booting;
        self.perform(out)
    }

    /// The end of the log, once CP-B had settled: what is not there was lost by a store that was opened anew between.
    pub(crate) fn tail_is(&mut self, last: Option<Seq>, upto: Seq) -> Verdict {
        if last != Some(upto) {
            return self.die();
        }
        let plug = self.plug();
        plug.stage = Stage::Live;
        self.disk.state = (**plug.ledger.view()).clone();
        self.disk.batches.clear();
        self.judge.reborn(&self.disk.state)?;
        self.machine = Machine::new();
        let auto = self.chance.permille(700);
        self.desk = DeskPort::new(&self.disk, auto);
        self.start_desk()
    }

    pub(crate) fn append_plugged(
        &mut self,
        (who, tag): (Who, u64),
        class: AppendClass,
        events: Vec<EventBody>,
        races: bool,
    ) -> Verdict {
        let fail = self.faults && self.chance.permille(8);
        self.disk.now_ms += 1;
        let now_ms = self.disk.now_ms;
        let mut out = Vec::new();
        let plug = self.plug();
        let epoch = plug.ledger.epoch();
        let result = if fail {
            Err(AppendError::Io("simulated".to_owned()))
        } else {
            plug.ledger.append(epoch, events, class, now_ms, &mut out)
        };
        self.perform(out)?;
        let answer = match result {
            Ok((appended, batch)) => {
                self.judge.committed(&batch)?;
                self.disk.batches.push(batch);
                self.disk.state = (*appended.view).clone();
                self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::Committed(Arc::clone(&appended.view))));
                Ok(appended)
            }
            Err(AppendError::Refused(violation)) if !(races && violation.rule == "I-7") => {
                return Err(Broken { rule: violation.rule, why: format!("{who:?}: {violation}") });
            }
            Err(error) => Err(error),
        };
        self.answer_append(who, tag, answer);
        Ok(())
    }

    pub(crate) fn checkpoint_plugged(&mut self, waiter: Waiter) -> Verdict {
        let mut out = Vec::new();
        let (kind, upto) = (waiter.kind, waiter.upto);
        self.plug().ledger.checkpoint(kind, upto, waiter, &mut out);
        self.perform(out)
    }

    /// What the store says comes to the journal.
    pub(crate) fn news(&mut self, epoch: Epoch, news: StoreNews) -> Verdict {
        if self.plug().ledger.epoch() != epoch || self.plug().stage == Stage::Reading {
            return Ok(());
        }
        let again = matches!(news, StoreNews::Up { .. }) && !self.plug().resubmits;
        let mut out = Vec::new();
        let told = self.plug().ledger.store_news(news, &mut out);
        if again {
            out.retain(|output| !matches!(output, Output::Write { .. }));
        }
        self.perform(out)?;
        // A journal that cannot go on dies, and its session is opened again.
        if told.is_err() { self.die() } else { Ok(()) }
    }

    pub(crate) fn synced(&mut self, epoch: Epoch, outcome: Result<Seq, Error>, waiter: Option<Waiter>) -> Verdict {
        if self.plug().ledger.epoch() != epoch || self.plug().stage == Stage::Reading {
            return Ok(());
        }
        let mut out = Vec::new();
        self.plug().ledger.synced(outcome, waiter, &mut out);
        self.perform(out)
    }

    fn perform(&mut self, out: Vec<Output<Waiter>>) -> Verdict {
        for output in out {
            let plug = self.plug();
            let epoch = plug.ledger.epoch();
            match output {
                Output::Write { generation, commit } => {
                    plug.outbox.push_back((epoch, Ask::Write { generation, commit }))
                }
                Output::Sync { generation, upto, waiter } => {
                    plug.outbox.push_back((epoch, Ask::Sync { generation, upto, waiter }));
                }
                Output::Answer { waiter, outcome } if waiter.who == Who::Keeper => match outcome {
                    Ok(_) => plug.outbox.push_back((epoch, Ask::Tail { upto: waiter.upto })),
                    Err(_) => self.die()?,
                },
                Output::Answer { waiter, outcome } => self.answer_checkpoint(&waiter, outcome.is_ok(), true),
                Output::Down if plug.stage == Stage::Live => {
                    self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::StoreDown));
                }
                Output::Up if plug.stage == Stage::Live => {
                    self.post(Lane::JournalToDesk, Parcel::Desk(DeskIn::StoreUp));
                }
                Output::Down | Output::Up | Output::Durable(_) => {}
            }
        }
        Ok(())
    }
}

fn late_item(n: u64) -> EventBody {
    let id = format!("late-{n}");
    let message = Message {
        id: MessageId::trusted(id.as_str()),
        role: Role::User,
        content: vec![Block::text("too late")],
        source: None,
    };
    let item = Item { id: ItemId::trusted(id), target: Target::NextTurn, wake: true, origin: Origin::Send, message };
    InboxQueued { item, position: None }.into()
}
