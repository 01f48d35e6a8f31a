//! The actor that owns the store: group commit, failure and reopening, and every other use of the store in order.
//!
//! Blocking work runs on the runtime's blocking threads: at most one group at a time, and a bounded number of
//! reads beside it. A read waits until every commit that came before it was written, so that a session that is
//! opened again sees all commits of its dead predecessor.
//!
//! When the store fails for good, every waiter is failed, sessions are told, and the store is opened again until a
//! probe was written and synced. A failed sync is never retried as if it had worked (BR-040): sessions submit again,
//! from memory, what the reopened store does not hold (BR-020).

mod io;
mod link;

pub(crate) use link::StoreLink;

use crate::{
    group_commit::{self, GroupCommit, GroupLimits, WaiterId, Writer},
    ledger::StoreNews,
    limits::{GROUP_MAX_BYTES, GROUP_MAX_COMMITS, REOPEN_DELAY_MS, STORE_READS_MAX},
    reply::Reply,
};
use everturn_storage::{
    ids::Seq,
    store::{Commit, Error, Store},
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Work that needs the store and is no commit.
pub(crate) type Job = Box<dyn FnOnce(&dyn Store) + Send>;

/// Tells one writer of the store's state; must not block.
pub(crate) type Listener = Arc<dyn Fn(StoreNews) + Send + Sync>;

/// The mailbox of the journal store.
pub(crate) enum Message {
    /// Write a commit; nothing comes back. Commits of another generation are dropped: their writer submits again.
    Write { generation: u64, commit: Commit },
    /// Answer once what the writer wrote before is durable.
    Sync { generation: u64, writer: Writer, upto: Seq, reply: Reply<Result<Seq, Error>> },
    /// Tell this writer of the store's state, now and when it changes.
    Enroll { writer: Writer, listener: Listener },
    /// The writer is gone.
    Withdraw { writer: Writer },
    /// Run a job behind every commit that came before it.
    Run { job: Job },
    /// A job ended.
    JobDone,
    /// The group in flight ended.
    GroupDone(io::GroupReport),
    /// Try to open the store again.
    Reopen,
    /// It was tried. Holds the last seq of every writer that was enrolled then.
    Reopened(Result<BTreeMap<Writer, Option<Seq>>, Error>),
    /// Close the store behind everything that came before.
    Close { reply: Reply<Result<(), Error>> },
    /// Dies as a fault in this actor would.
    #[cfg(any(test, feature = "testing"))]
    Panic,
}

/// What the actor runs on.
pub(crate) struct JournalStoreArgs {
    pub(crate) store: Arc<dyn Store>,
    /// How many of these actors ran before on this store. Their last group may still be in flight.
    pub(crate) incarnation: u64,
    /// Held while a group or a reopening runs, across incarnations.
    pub(crate) gate: Arc<Mutex<()>>,
    /// Told why the store cannot be written, or that it can.
    pub(crate) health: Arc<dyn Fn(Option<String>) + Send + Sync>,
}

pub(crate) struct State {
    args: JournalStoreArgs,
    machine: GroupCommit,
    /// Which opening of the store writers must know before their commits count.
    generation: u64,
    next_waiter: u64,
    waiters: BTreeMap<WaiterId, Reply<Result<Seq, Error>>>,
    writers: BTreeMap<Writer, Listener>,
    down: Option<Error>,
    delay_ms: u64,
    jobs: VecDeque<(u64, Job)>,
    running: usize,
    closing: Option<Reply<Result<(), Error>>>,
}

pub(crate) struct JournalStore;

#[ractor::async_trait]
impl Actor for JournalStore {
    type Msg = Message;
    type State = State;
    type Arguments = JournalStoreArgs;

    async fn pre_start(&self, me: ActorRef<Message>, args: JournalStoreArgs) -> Result<State, ActorProcessingErr> {
        let limits = GroupLimits { commits: GROUP_MAX_COMMITS, bytes: GROUP_MAX_BYTES };
        // A predecessor may have died in the middle of anything: what it left is only sure once opened anew.
        let down = (args.incarnation > 0).then(|| Error::Poisoned("the journal store was restarted".to_owned()));
        let machine = match &down {
            None => GroupCommit::new(limits),
            Some(error) => {
                me.cast(Message::Reopen)?;
                GroupCommit::stopped(limits, error.clone())
            }
        };
        // Generations of different incarnations never meet.
        let generation = args.incarnation << 32;
        Ok(State {
            args,
            machine,
            generation,
            next_waiter: 0,
            waiters: BTreeMap::new(),
            writers: BTreeMap::new(),
            down,
            delay_ms: REOPEN_DELAY_MS.0,
            jobs: VecDeque::new(),
            running: 0,
            closing: None,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Write { generation, commit } => {
                if generation == state.generation {
                    state.step(&me, group_commit::Input::Write(commit));
                }
            }
            Message::Sync { generation, writer, upto, reply } => state.sync(&me, generation, writer, upto, reply),
            Message::Enroll { writer, listener } => state.enroll(writer, listener),
            Message::Withdraw { writer } => {
                state.writers.remove(&writer);
                state.step(&me, group_commit::Input::Withdrawn(writer));
            }
            Message::Run { job } => state.jobs.push_back((state.machine.arrived(), job)),
            Message::JobDone => state.running = state.running.saturating_sub(1),
            Message::GroupDone(report) => {
                state.step(&me, group_commit::Input::Done { refused: report.refused, failure: report.failure });
            }
            Message::Reopen => state.reopen(&me),
            Message::Reopened(outcome) => state.reopened(&me, outcome),
            Message::Close { reply } => state.closing = Some(reply),
            #[cfg(any(test, feature = "testing"))]
            #[expect(clippy::panic, reason = "this is what the message is for")]
            Message::Panic => panic!("the journal store dies by order of a test"),
        }
        state.run_jobs(&me);
        state.close_when_quiet(&me);
        Ok(())
    }
}

impl State {
    fn step(&mut self, me: &ActorRef<Message>, input: group_commit::Input) {
        for output in self.machine.step(input) {
            match output {
                group_commit::Output::Start { commits, sync } => {
                    let (store, gate) = (Arc::clone(&self.args.store), Arc::clone(&self.args.gate));
                    io::spawn(
                        me,
                        move || Message::GroupDone(io::run_group(store.as_ref(), &gate, &commits, sync)),
                        |why| Message::GroupDone(io::GroupReport::died(why)),
                    );
                }
                group_commit::Output::Ack { waiter, durable } => self.answer(waiter, Ok(durable)),
                group_commit::Output::Fail { waiter, error } => self.answer(waiter, Err(error)),
                group_commit::Output::Refused { writer, error } => self.refused(&writer, error),
                group_commit::Output::Down(error) => self.went_down(me, error),
            }
        }
    }

    fn answer(&mut self, waiter: WaiterId, answer: Result<Seq, Error>) {
        if let Some(reply) = self.waiters.remove(&waiter) {
            reply.send(answer);
        }
    }

    fn sync(
        &mut self,
        me: &ActorRef<Message>,
        generation: u64,
        writer: Writer,
        upto: Seq,
        reply: Reply<Result<Seq, Error>>,
    ) {
        if generation != self.generation {
            // Its commits before this may have been dropped; its writer hears of the new generation and asks again.
            reply.send(Err(Error::Poisoned("the store was opened anew meanwhile".to_owned())));
            return;
        }
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiters.insert(waiter, reply);
        self.step(me, group_commit::Input::Sync { writer, upto, waiter });
    }

    fn enroll(&mut self, writer: Writer, listener: Listener) {
        let down = self.down.as_ref().map(ToString::to_string);
        listener(StoreNews::Enrolled { generation: self.generation, down });
        self.writers.insert(writer, listener);
    }

    fn refused(&mut self, writer: &Writer, error: Error) {
        tracing::error!(session = %writer.0, epoch = writer.1.0, %error, "the store refused a commit");
        if let Some(listener) = self.writers.get(writer) {
            listener(StoreNews::Refused(error));
        }
    }

    fn went_down(&mut self, me: &ActorRef<Message>, error: Error) {
        let why = error.to_string();
        tracing::error!(%error, "the store failed; nothing is acknowledged until it was opened again");
        self.generation += 1;
        self.down = Some(error);
        (self.args.health)(Some(why.clone()));
        for listener in self.writers.values() {
            listener(StoreNews::Down { why: why.clone() });
        }
        self.try_later(me);
    }

    fn try_later(&mut self, me: &ActorRef<Message>) {
        let (me, delay) = (me.clone(), Duration::from_millis(self.delay_ms));
        self.delay_ms = (self.delay_ms * 2).min(REOPEN_DELAY_MS.1);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            // A dead actor needs no reminder.
            drop(me.cast(Message::Reopen));
        });
    }

    fn reopen(&self, me: &ActorRef<Message>) {
        if self.down.is_none() || self.closing.is_some() {
            return;
        }
        let (store, gate) = (Arc::clone(&self.args.store), Arc::clone(&self.args.gate));
        let writers: Vec<Writer> = self.writers.keys().cloned().collect();
        io::spawn(
            me,
            move || Message::Reopened(io::reopen(store.as_ref(), &gate, writers)),
            |why| Message::Reopened(Err(Error::Poisoned(why))),
        );
    }

    fn reopened(&mut self, me: &ActorRef<Message>, outcome: Result<BTreeMap<Writer, Option<Seq>>, Error>) {
        let lasts = match outcome {
            Ok(lasts) => lasts,
            Err(error) => {
                tracing::warn!(%error, retry_ms = self.delay_ms, "the store could not be opened again");
                (self.args.health)(Some(error.to_string()));
                self.try_later(me);
                return;
            }
        };
        if !self.writers.keys().all(|writer| lasts.contains_key(writer)) {
            // Somebody enrolled meanwhile; without its last seq it could not tell what is missing.
            let store = Arc::clone(&self.args.store);
            let writers: Vec<Writer> = self.writers.keys().cloned().collect();
            let survey = move || Message::Reopened(io::survey(store.as_ref(), writers));
            io::spawn(me, survey, |why| Message::Reopened(Err(Error::Poisoned(why))));
            return;
        }
        tracing::info!("the store works again");
        self.down = None;
        self.delay_ms = REOPEN_DELAY_MS.0;
        self.step(me, group_commit::Input::Reopened);
        (self.args.health)(None);
        for (writer, listener) in &self.writers {
            let last = lasts.get(writer).copied().flatten();
            listener(StoreNews::Up { generation: self.generation, last });
        }
    }

    /// Starts the jobs whose commits were written, in order.
    fn run_jobs(&mut self, me: &ActorRef<Message>) {
        while self.running < STORE_READS_MAX
            && self.jobs.front().is_some_and(|(behind, _)| *behind <= self.machine.written())
        {
            let Some((_, job)) = self.jobs.pop_front() else { return };
            self.running += 1;
            let store = Arc::clone(&self.args.store);
            let run = move || {
                job(store.as_ref());
                Message::JobDone
            };
            io::spawn(me, run, |why| {
                tracing::error!(why, "a read of the store died");
                Message::JobDone
            });
        }
    }

    fn close_when_quiet(&mut self, me: &ActorRef<Message>) {
        let quiet = self.machine.is_quiet() && self.jobs.is_empty() && self.running == 0;
        if !quiet {
            return;
        }
        let Some(reply) = self.closing.take() else { return };
        self.running += 1;
        let (store, gate) = (Arc::clone(&self.args.store), Arc::clone(&self.args.gate));
        let run = move || {
            reply.send(io::close(store.as_ref(), &gate));
            Message::JobDone
        };
        io::spawn(me, run, |_| Message::JobDone);
    }
}
