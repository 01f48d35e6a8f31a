//! The session journal: the only writer of one log (7.1). A thin shell around [`Ledger`], which decides everything; the
//! shell carries commits to the journal store, publishes them, and answers. A handler never waits for a disk.

mod subscribers;
#[cfg(test)]
mod tests;

use crate::{
    fault,
    handle::Committed,
    journal_store::StoreLink,
    ledger::{Durable, Ledger, Output, StoreNews},
    ports::World,
    protocol::{AppendClass, AppendError, Appended, JournalLink, JournalRequest},
    reply::Reply,
};
use everturn_storage::{
    event::{EventBody, SessionHeader},
    ids::{Epoch, Seq},
    log::LogState,
    store::Error,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use subscribers::Subscribers;
use tokio::sync::{mpsc, watch};

/// What the agent hears of its journal.
#[derive(Debug, Clone)]
pub(crate) enum JournalNews {
    /// Something was committed, by whomever.
    Committed(Arc<LogState>),
    /// The store failed.
    Down,
    /// The store works again, and what it had lost was submitted again.
    Up,
}

/// The mailbox of a session journal.
pub(crate) enum Message {
    /// What its session asks.
    Ask(JournalRequest),
    /// Commits the closers of a dead process, with the time of the last event (B-10).
    Repair { events: Vec<EventBody>, reply: Reply<Result<Appended, AppendError>> },
    /// What the store says.
    Store(StoreNews),
    /// A sync ended; nobody waited for one that the journal asked for itself.
    Synced { outcome: Result<Seq, Error>, reply: Option<Reply<Durable>> },
    /// Committed events from now on.
    Subscribe { reply: Reply<(Seq, mpsc::Receiver<Committed>)> },
    /// Tell the agent of every commit and of the store's health; must not block.
    Listen { listener: Arc<dyn Fn(JournalNews) + Send + Sync> },
}

/// What the actor runs on.
pub(crate) struct SessionJournalArgs {
    pub(crate) epoch: Epoch,
    pub(crate) header: Arc<SessionHeader>,
    /// The fold of the log as the store has it.
    pub(crate) view: LogState,
    /// The last event of it that is known to be durable.
    pub(crate) durable: watch::Sender<Option<Seq>>,
    pub(crate) store: StoreLink,
    pub(crate) world: Arc<dyn World>,
}

pub(crate) struct State {
    epoch: Epoch,
    durable: watch::Sender<Option<Seq>>,
    store: StoreLink,
    world: Arc<dyn World>,
    ledger: Ledger<Reply<Durable>>,
    subscribers: Subscribers,
    listener: Option<Arc<dyn Fn(JournalNews) + Send + Sync>>,
}

pub(crate) struct SessionJournal;

/// A link to the actor.
pub(crate) fn link(actor: &ActorRef<Message>) -> JournalLink {
    let actor = actor.clone();
    // A dead journal answers nobody; its supervisor ends the asker.
    JournalLink::new(move |request| drop(actor.cast(Message::Ask(request))))
}

#[ractor::async_trait]
impl Actor for SessionJournal {
    type Msg = Message;
    type State = State;
    type Arguments = SessionJournalArgs;

    async fn pre_start(&self, me: ActorRef<Message>, args: SessionJournalArgs) -> Result<State, ActorProcessingErr> {
        let session = args.view.session().clone();
        let store_news = me.clone();
        args.store
            .enroll((session.clone(), args.epoch), Arc::new(move |news| drop(store_news.cast(Message::Store(news)))));
        let SessionJournalArgs { epoch, header, view, durable, store, world } = args;
        let known = *durable.borrow();
        let ledger = Ledger::new(epoch, header, view, known);
        Ok(State { epoch, durable, store, world, ledger, subscribers: Subscribers::default(), listener: None })
    }

    async fn handle(
        &self,
        me: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Ask(request) => state.ask(&me, request),
            Message::Repair { events, reply } => {
                let time_ms = state.ledger.view().last_time_ms();
                let epoch = state.epoch;
                state.append(&me, (epoch, AppendClass::Opening, time_ms), events, reply);
            }
            Message::Store(news) => state.store_news(&me, news)?,
            Message::Synced { outcome, reply } => {
                let mut out = Vec::new();
                state.ledger.synced(outcome, reply, &mut out);
                state.perform(&me, out);
            }
            Message::Subscribe { reply } => {
                reply.send((state.ledger.view().next_seq(), state.subscribers.add()));
            }
            Message::Listen { listener } => state.listener = Some(listener),
        }
        Ok(())
    }
}

impl State {
    fn ask(&mut self, me: &ActorRef<Message>, request: JournalRequest) {
        match request {
            JournalRequest::Append { epoch, events, class, reply } => {
                let now_ms = self.world.now_ms();
                self.append(me, (epoch, class, now_ms), events, reply);
            }
            JournalRequest::Checkpoint { kind, upto, reply } => {
                tracing::trace!(session = %self.ledger.session(), ?kind, upto = upto.0, "checkpoint");
                let mut out = Vec::new();
                self.ledger.checkpoint(kind, upto, reply, &mut out);
                self.perform(me, out);
            }
            JournalRequest::View { reply } => reply.send((Arc::clone(self.ledger.view()), self.ledger.durable())),
            JournalRequest::Tail { from, reply } => reply.send(self.ledger.tail(from)),
        }
    }

    /// The writer hears of its commit before the agent hears of a new fold: for the agent's own commits the answer
    /// says more.
    fn append(
        &mut self,
        me: &ActorRef<Message>,
        (epoch, class, time_ms): (Epoch, AppendClass, i64),
        events: Vec<EventBody>,
        reply: Reply<Result<Appended, AppendError>>,
    ) {
        let mut out = Vec::new();
        let answer = self.ledger.append(epoch, events, class, time_ms, &mut out);
        self.perform(me, out);
        let (appended, staged) = match answer {
            Ok(committed) => committed,
            Err(error) => return reply.send(Err(error)),
        };
        self.subscribers.publish(&staged);
        if cfg!(feature = "failpoints") {
            let bodies: Vec<EventBody> = staged.iter().map(|event| event.body.clone()).collect();
            drop(fault::append("appended", self.ledger.session(), &bodies));
        }
        reply.send(Ok(appended));
        self.tell(JournalNews::Committed(Arc::clone(self.ledger.view())));
    }

    fn store_news(&mut self, me: &ActorRef<Message>, news: StoreNews) -> Result<(), ActorProcessingErr> {
        let mut out = Vec::new();
        let news = self.ledger.store_news(news, &mut out);
        self.perform(me, out);
        news.map_err(Into::into)
    }

    /// The one place where an output becomes a deed.
    fn perform(&self, me: &ActorRef<Message>, out: Vec<Output<Reply<Durable>>>) {
        for output in out {
            match output {
                Output::Write { generation, commit } => self.store.write(generation, commit),
                Output::Sync { generation, upto, waiter } => {
                    let (me, writer) = (me.clone(), (self.ledger.session().clone(), self.epoch));
                    let reply = waiter;
                    let synced = Reply::new(move |outcome| drop(me.cast(Message::Synced { outcome, reply })));
                    self.store.sync(generation, writer, upto, synced);
                }
                Output::Answer { waiter, outcome } => waiter.send(outcome),
                Output::Down => self.tell(JournalNews::Down),
                Output::Up => self.tell(JournalNews::Up),
                Output::Durable(upto) => drop(self.durable.send_replace(Some(upto))),
            }
        }
    }

    fn tell(&self, news: JournalNews) {
        if let Some(listener) = &self.listener {
            listener(news);
        }
    }
}
