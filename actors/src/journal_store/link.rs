//! The way to the journal store, which outlives its restarts.

use super::{Job, Listener, Message};
use crate::{fault, group_commit::Writer, reply::Reply};
use everturn_storage::{
    ids::Seq,
    store::{Commit, Error, Store},
};
use ractor::ActorRef;
use std::sync::{Arc, PoisonError, RwLock};

/// The way to the journal store. Clones share it; after a restart it leads to the new actor.
#[derive(Clone)]
pub(crate) struct StoreLink(Arc<RwLock<Option<ActorRef<Message>>>>);

impl StoreLink {
    /// One that leads nowhere yet.
    pub(crate) fn empty() -> Self {
        Self(Arc::new(RwLock::new(None)))
    }

    /// Leads to this actor from now on.
    pub(crate) fn point_at(&self, actor: ActorRef<Message>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }

    fn tell(&self, message: Message) {
        if let Some(actor) = &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            // A dead store answers nobody; its supervisor ends the sessions that wait for it.
            drop(actor.cast(message));
        }
    }

    pub(crate) fn write(&self, generation: u64, commit: Commit) {
        self.tell(Message::Write { generation, commit });
    }

    pub(crate) fn sync(&self, generation: u64, writer: Writer, upto: Seq, reply: Reply<Result<Seq, Error>>) {
        self.tell(Message::Sync { generation, writer, upto, reply });
    }

    pub(crate) fn enroll(&self, writer: Writer, listener: Listener) {
        self.tell(Message::Enroll { writer, listener });
    }

    pub(crate) fn withdraw(&self, writer: Writer) {
        self.tell(Message::Withdraw { writer });
    }

    /// Runs blocking work on the store, behind every commit that was handed in before. An error when the journal
    /// store, or the work, died.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = Reply::channel();
        let job: Job = Box::new(move |store| {
            reply.send(match fault::failure_anywhere("store.read") {
                Some(why) => Err(Error::Io(why)),
                None => work(store),
            });
        });
        self.tell(Message::Run { job });
        answer.await.unwrap_or_else(|_| Err(Error::Poisoned("the journal store was restarted".to_owned())))
    }

    /// Closes the store behind everything that was handed in before.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let (reply, answer) = Reply::channel();
        self.tell(Message::Close { reply });
        answer.await.unwrap_or_else(|_| Err(Error::Poisoned("the journal store died while it closed".to_owned())))
    }

    /// Lets the journal store die as a fault in it would.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn panic(&self) {
        self.tell(Message::Panic);
    }
}

impl std::fmt::Debug for StoreLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreLink")
    }
}
