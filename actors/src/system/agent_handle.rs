//! What callers hold of one agent.

use super::{Awaited, Inner, read};
use crate::{
    agent::{self, done},
    desk::{Answer, Duplicate, Op},
    handle::{
        CancelReport, Committed, DisposeMode, Frame, ItemReport, KeptItems, OpError, Pending, PendingCounts, Receipt,
        Snapshot, Status, Submit, Visible,
    },
    keeper::{Live, Slot, SlotState},
    own_work,
    ports::Signal,
    protocol::Phase,
    reply::Reply,
    session_journal,
};
use everturn_storage::{
    event::{Cause, Target},
    ids::{ItemId, MessageId, Seq, SessionId},
    message::Block,
};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What callers hold of one agent. Clones share it; it outlives restarts of the actors behind it.
#[derive(Clone)]
pub struct AgentHandle {
    inner: Arc<Inner>,
    slot: Arc<Slot>,
}

impl std::fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AgentHandle").field(&self.slot.session).finish()
    }
}

impl AgentHandle {
    pub(crate) fn new(inner: Arc<Inner>, slot: Arc<Slot>) -> Self {
        Self { inner, slot }
    }

    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Whose.
    pub fn session(&self) -> &SessionId {
        &self.slot.session
    }

    /// Accepts a message. Returns once its record is durable (C-4).
    ///
    /// When the actors behind the handle die before they answered, the message is submitted again under its id, so
    /// that it is accepted once.
    pub async fn submit(&self, mut submit: Submit) -> Result<Receipt, OpError> {
        let id = submit.id.take().unwrap_or_else(|| MessageId::trusted(self.inner.shared.world.fresh_id()));
        submit.id = Some(id);
        let mut again = false;
        loop {
            let live = self.live().await?;
            let op = Op::Submit { submit: submit.clone(), fresh: self.inner.shared.world.fresh_id() };
            match self.ask(&live, |reply| agent::Message::Op { op, reply }).await {
                Some(Answer::Receipt(receipt)) => return Ok(receipt),
                Some(Answer::Duplicate { item, kind }) => {
                    let report = self.report(&live, &item).await?;
                    if again && report.content == submit.content {
                        return Ok(report.receipt);
                    }
                    return Err(match kind {
                        Duplicate::Pending => OpError::DuplicatePending(Box::new(report)),
                        Duplicate::Consumed => OpError::DuplicateConsumed(Box::new(report)),
                    });
                }
                Some(Answer::Refused(error)) => return Err(error),
                Some(other) => return Err(unexpected(&other)),
                None => {
                    again = true;
                    drop(self.slot.other_than(&live).await);
                }
            }
        }
    }

    /// Cancels the running turn and clears or keeps what waits. Returns at once.
    pub async fn cancel(&self, cause: Cause, kept: KeptItems) -> Result<CancelReport, OpError> {
        let answer = self.op(Op::Cancel { cause, kept }).await?;
        let Answer::Cancelled(report) = answer else {
            done(answer.clone())?;
            return Err(unexpected(&answer));
        };
        Ok(report)
    }

    /// Ends when the agent is quiescent at some instant after the call; with the fault when it cannot go on.
    ///
    /// From inside the agent's own work (a tool, a policy, a model's stream) it answers at once that waiting would
    /// never end (C-6), as do [`Self::await_item`], [`Self::maintain`] and [`Self::dispose`].
    pub async fn when_idle(&self) -> Option<String> {
        if let Err(error) = self.not_own_work() {
            return Some(error.to_string());
        }
        let live = match self.live().await {
            Ok(live) => live,
            Err(OpError::Disposed) => return None,
            Err(error) => return Some(error.to_string()),
        };
        match self.ask(&live, |reply| agent::Message::WhenIdle { reply }).await {
            Some(Answer::Idle(fault)) => fault,
            Some(other) => Some(unexpected(&other).to_string()),
            None => self.slot.other_than(&live).await.err(),
        }
    }

    /// A snapshot.
    pub async fn status(&self) -> Status {
        let nothing = |visible, phase, fault| Status {
            visible,
            phase,
            turn: None,
            step: None,
            attempt: None,
            pending: PendingCounts::default(),
            parked: false,
            fault,
        };
        match self.live().await {
            Ok(live) => match self.ask(&live, |reply| agent::Message::Status { reply }).await {
                Some(status) => status,
                None => nothing(Visible::Idle, Phase::Faulted, Some("it is being opened again".to_owned())),
            },
            Err(OpError::Disposed) => nothing(Visible::Disposed, Phase::Disposed, None),
            Err(error) => nothing(Visible::Idle, Phase::Faulted, Some(error.to_string())),
        }
    }

    /// What waits.
    pub async fn pending(&self) -> Pending {
        match self.live().await {
            Ok(live) => self.ask(&live, |reply| agent::Message::Pending { reply }).await.unwrap_or_default(),
            Err(_) => Pending::default(),
        }
    }

    /// Puts another content in the place of a waiting item's.
    pub async fn edit(&self, item: ItemId, content: Vec<Block>) -> Result<(), OpError> {
        done(self.op(Op::Edit { item, content }).await?)
    }

    /// Removes waiting items; all or none.
    pub async fn remove(&self, items: Vec<ItemId>) -> Result<(), OpError> {
        done(self.op(Op::Remove { items }).await?)
    }

    /// Puts one list in another order; `items` is a permutation of it.
    pub async fn reorder(&self, list: Target, items: Vec<ItemId>) -> Result<(), OpError> {
        done(self.op(Op::Reorder { list, items }).await?)
    }

    /// Moves an item to the other list.
    pub async fn move_item(&self, item: ItemId, target: Target) -> Result<(), OpError> {
        done(self.op(Op::Move { item, target }).await?)
    }

    /// Makes parked items eligible.
    pub async fn wake(&self) -> Result<(), OpError> {
        done(self.op(Op::Wake).await?)
    }

    /// What became of an item, by item id or by message id; also from before a restart.
    pub async fn item(&self, id: &str) -> Result<ItemReport, OpError> {
        let live = self.live().await?;
        let (view, _) = read::view(&live).await.ok_or_else(died)?;
        let item = ItemId::trusted(id);
        let item = match view.fate(&item) {
            Some(_) => item,
            None => view.item_of_message(&MessageId::trusted(id)).cloned().ok_or(OpError::UnknownItem(item))?,
        };
        self.report(&live, &item).await
    }

    /// Ends when the turn of an item has ended and its CP-T has settled, or the item was removed.
    pub async fn await_item(&self, item: &ItemId) -> Result<Awaited, OpError> {
        self.not_own_work()?;
        loop {
            let live = self.live().await?;
            let item = item.clone();
            match self.ask(&live, |reply| agent::Message::AwaitItem { item, reply }).await {
                Some(Answer::Awaited(awaited)) => return Ok(awaited),
                Some(Answer::Refused(error)) => return Err(error),
                Some(other) => return Err(unexpected(&other)),
                // What the item came to is in the log; the next incarnation knows it.
                None => drop(self.slot.other_than(&live).await),
            }
        }
    }

    /// Committed events from the next one on, with the seq that it will have.
    pub async fn subscribe(&self) -> (Seq, mpsc::Receiver<Committed>) {
        loop {
            // Nothing is committed any more: a channel that has ended says so.
            let Ok(live) = self.live().await else { return (Seq(0), mpsc::channel(1).1) };
            let (reply, answer) = Reply::channel();
            drop(live.journal.cast(session_journal::Message::Subscribe { reply }));
            match answer.await {
                Ok(subscription) => return subscription,
                Err(_) => drop(self.slot.other_than(&live).await),
            }
        }
    }

    /// The last durable event, as it grows; `None` while nothing of the log is durable. What readers outside are
    /// shown never goes beyond it: an event that a crash could take back must not have been seen.
    pub async fn durable(&self) -> watch::Receiver<Option<Seq>> {
        match self.live().await {
            Ok(live) => live.durable,
            // Nothing becomes durable any more: a channel that has ended says so.
            Err(_) => watch::channel(None).1,
        }
    }

    /// Live frames from now on. A slow watcher gets [`Frame::Gap`], and always the terminal frame of an attempt.
    pub async fn frames(&self) -> mpsc::Receiver<Frame> {
        self.slot.frames.watch()
    }

    /// The fold of the log as it is now.
    pub async fn snapshot(&self) -> Result<Snapshot, OpError> {
        loop {
            let live = self.live().await?;
            if let Some((view, durable)) = read::view(&live).await {
                return Ok(Snapshot { session: self.slot.session.clone(), view, durable });
            }
            drop(self.slot.other_than(&live).await);
        }
    }

    /// Runs exclusive work that is no turn (3.3). `BUSY` unless the agent is idle. The work has to watch its signal,
    /// which a cancel and a disposal fire; then the answer is `CANCELLED`. What the work has logged is durable when
    /// this returns.
    pub async fn maintain<T>(&self, work: impl AsyncFnOnce(Signal) -> T) -> Result<T, OpError> {
        self.not_own_work()?;
        let live = self.live().await?;
        let signal = Signal::new();
        let granted = signal.clone();
        let began = self.ask(&live, |reply| agent::Message::Maintain { signal: granted, reply }).await;
        done(began.ok_or_else(died)?)?;
        let mut guard = Maintenance { live: live.clone(), over: false };
        let outcome = work(signal.clone()).await;
        guard.over = true;
        let ended = self.ask(&live, |reply| agent::Message::Maintained { reply }).await;
        done(ended.ok_or_else(died)?)?;
        if signal.fired() { Err(OpError::Cancelled) } else { Ok(outcome) }
    }

    /// Puts the agent away. All calls share one completion. From inside the agent's own work nothing happens.
    pub async fn dispose(&self, mode: DisposeMode) {
        if let Err(error) = self.not_own_work() {
            tracing::error!(session = %self.slot.session, %error, "a disposal was refused");
            return;
        }
        while let Ok(live) = self.live().await {
            let op = Op::Dispose { mode };
            if self.ask(&live, |reply| agent::Message::Op { op, reply }).await.is_some() {
                self.slot.ended().await;
                return;
            }
            drop(self.slot.other_than(&live).await);
        }
    }

    /// Takes nothing new; open steps may end.
    pub(super) async fn drain(&self) {
        if let Ok(live) = self.live().await {
            drop(live.agent.cast(agent::Message::Drain));
        }
    }

    fn not_own_work(&self) -> Result<(), OpError> {
        if own_work::is_of(&self.slot.session) { Err(OpError::WouldDeadlock) } else { Ok(()) }
    }

    /// The present incarnation, once it is known.
    async fn live(&self) -> Result<Live, OpError> {
        match self.slot.settled().await {
            SlotState::Live(live) => Ok(live),
            SlotState::Faulted(why) => Err(OpError::Faulted(why)),
            SlotState::Refused(error) => Err(OpError::Faulted(error.to_string())),
            SlotState::Gone | SlotState::Starting | SlotState::Restarting => Err(OpError::Disposed),
        }
    }

    /// An operation that is not repeated when its answer is lost.
    async fn op(&self, op: Op) -> Result<Answer, OpError> {
        let live = self.live().await?;
        self.ask(&live, |reply| agent::Message::Op { op, reply }).await.ok_or_else(died)
    }

    /// The answer, or none when the agent died.
    async fn ask<T: Send + 'static>(&self, live: &Live, message: impl FnOnce(Reply<T>) -> agent::Message) -> Option<T> {
        let (reply, answer) = Reply::channel();
        live.agent.cast(message(reply)).ok()?;
        answer.await.ok()
    }

    async fn report(&self, live: &Live, item: &ItemId) -> Result<ItemReport, OpError> {
        let (view, _) = read::view(live).await.ok_or_else(died)?;
        let report = self.inner.report(&self.slot.session, &view, item).await;
        report.ok_or_else(|| OpError::Storage(format!("what item {item} said cannot be read now")))
    }
}

/// Ends a maintenance whose caller went away.
struct Maintenance {
    live: Live,
    over: bool,
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        if !self.over {
            let reply = Reply::new(drop);
            drop(self.live.agent.cast(agent::Message::Maintained { reply }));
        }
    }
}

fn died() -> OpError {
    OpError::Faulted("the agent died and is being opened again; look at the log, then try again".to_owned())
}

fn unexpected(answer: &Answer) -> OpError {
    OpError::Faulted(format!("the agent gave an answer to another question: {answer:?}"))
}
