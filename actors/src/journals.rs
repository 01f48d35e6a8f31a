//! The journal actors alone, without agents: for measurements, and for programs that bring their own agents.

use crate::{
    journal_store::{JournalStore, JournalStoreArgs, StoreLink},
    ports::World,
    protocol::{AppendClass, AppendError, Appended, CheckpointFailed, CheckpointKind, JournalLink, JournalRequest},
    reply::Reply,
    session_journal::{self, SessionJournal, SessionJournalArgs},
};
use everturn_storage::{
    event::{EventBody, FORMAT_VERSION, OpenReason, SessionHeader, SessionOpened},
    ids::{Epoch, Seq, SessionId},
    log::LogState,
    store::Store,
};
use ractor::{Actor, ActorRef, SpawnErr};
use std::{collections::BTreeMap, sync::Arc};

/// A journal store over one data directory.
pub struct Journals {
    store: StoreLink,
    actor: ActorRef<crate::journal_store::Message>,
    world: Arc<dyn World>,
}

impl Journals {
    /// Starts the actor that owns the store.
    pub async fn start(store: Arc<dyn Store>, world: Arc<dyn World>) -> Result<Self, SpawnErr> {
        let link = StoreLink::empty();
        let args = JournalStoreArgs { store, incarnation: 0, gate: Arc::default(), health: Arc::new(|_| {}) };
        let (actor, _) = Actor::spawn(None, JournalStore, args).await?;
        link.point_at(actor.clone());
        Ok(Self { store: link, actor, world })
    }

    /// The journal of a fresh session, with its opening event durable.
    pub async fn create(&self, session: SessionId) -> Result<Journal, AppendError> {
        let header = SessionHeader {
            version: FORMAT_VERSION,
            session_id: session.clone(),
            agent: String::new(),
            created_at_ms: self.world.now_ms(),
            cwd: None,
            parent: None,
            seed_length: None,
            origin: None,
            delegation_depth: None,
            preset: None,
            labels: BTreeMap::new(),
        };
        let args = SessionJournalArgs {
            epoch: Epoch(1),
            header: Arc::new(header),
            view: LogState::empty(session),
            durable: tokio::sync::watch::Sender::new(None),
            store: self.store.clone(),
            world: Arc::clone(&self.world),
        };
        let (actor, _) = Actor::spawn(None, SessionJournal, args)
            .await
            .map_err(|error| AppendError::Io(format!("the session journal does not start: {error}")))?;
        let journal = Journal { link: session_journal::link(&actor), actor };
        let opened = SessionOpened { reason: OpenReason::Fresh, epoch: Epoch(1) };
        let appended = journal.append(vec![opened.into()]).await?;
        journal.checkpoint(appended.last).await.map_err(|failed| AppendError::Io(failed.to_string()))?;
        Ok(journal)
    }

    /// Closes the store.
    pub async fn close(self) -> Result<(), everturn_storage::store::Error> {
        let result = self.store.close().await;
        self.actor.stop(None);
        result
    }
}

impl std::fmt::Debug for Journals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journals")
    }
}

/// The journal of one session. Dropping it stops the actor.
pub struct Journal {
    link: JournalLink,
    actor: ActorRef<session_journal::Message>,
}

impl Journal {
    /// Commits one atomic batch: checked, numbered, logged, not yet durable.
    pub async fn append(&self, events: Vec<EventBody>) -> Result<Appended, AppendError> {
        let (reply, answer) = Reply::channel();
        self.link.ask(JournalRequest::Append { epoch: Epoch(1), events, class: AppendClass::Opening, reply });
        answer.await.unwrap_or_else(|_| Err(AppendError::Io("the session journal is gone".to_owned())))
    }

    /// Ends once everything up to `upto` is on stable storage.
    pub async fn checkpoint(&self, upto: Seq) -> Result<Seq, CheckpointFailed> {
        let (reply, answer) = Reply::channel();
        self.link.ask(JournalRequest::Checkpoint { kind: CheckpointKind::Turn, upto, reply });
        answer.await.unwrap_or_else(|_| Err(CheckpointFailed("the session journal is gone".to_owned())))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.actor.stop(None);
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journal")
    }
}
