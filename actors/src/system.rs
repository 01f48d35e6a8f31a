//! The face of the system: start it, create and open sessions, read logs, watch, shut down.

mod agent_handle;
mod boot;
mod read;
mod report;

pub use agent_handle::AgentHandle;
pub use keeper::ActorKind;

use crate::{
    handle::{DisposeMode, Visible},
    journal_store::StoreLink,
    keeper::{self, Shared, Slot, SlotState},
    ports::{Profiles, World},
    supervisor::{Health, Registry, Root, RootArgs},
};
use everturn_storage::{
    event::{Event, FORMAT_VERSION, SessionHeader, TurnReason},
    ids::{Seq, SessionId, Turn},
    store::{self, SessionSummary, Store},
};
use ractor::{Actor, ActorRef};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::watch;

/// What the system runs on.
pub struct SystemOptions {
    /// Where logs are kept.
    pub store: Arc<dyn Store>,
    /// Profiles of agents and adapters of providers.
    pub profiles: Arc<dyn Profiles>,
    /// Wall clock and randomness.
    pub world: Arc<dyn World>,
    /// Bounds that are not an agent's own.
    pub limits: crate::limits::Limits,
}

/// A session to create.
#[derive(Debug, Clone, Default)]
pub struct CreateSession {
    /// Its id; made up when absent.
    pub id: Option<SessionId>,
    /// Which agent of the configuration.
    pub agent: String,
    /// Working directory of its tools.
    pub cwd: Option<String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
}

/// Why a session cannot be had.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SessionError {
    /// `SESSION_EXISTS`.
    #[error("a session {0} exists already; choose another id, or send to it")]
    Exists(SessionId),
    /// `NO_SESSION`.
    #[error("there is no session {0}")]
    Unknown(SessionId),
    /// `SESSION_BUSY`.
    #[error("session {0} is in use; wait until its turn has ended, or cancel it")]
    Busy(SessionId),
    /// `NO_AGENT`.
    #[error("no agent {0:?} is configured; name one of [agents.*]")]
    NoAgent(String),
    /// `INVALID_AGENT`: its profile cannot be used.
    #[error("agent {agent:?} cannot be used: {why}")]
    InvalidAgent {
        /// Which.
        agent: String,
        /// What is wrong with it.
        why: String,
    },
    /// `CORRUPT`.
    #[error(
        "session {session} is damaged at event {seq} ({why}); its log can be read up to there, the others are not touched"
    )]
    Corrupt {
        /// Whose.
        session: SessionId,
        /// Where.
        seq: Seq,
        /// How.
        why: String,
    },
    /// `TOO_NEW`, `TOO_OLD`, `UNKNOWN_EVENT`.
    #[error("session {session} cannot be opened by this build: {why}")]
    Unsupported {
        /// Whose.
        session: SessionId,
        /// `TOO_NEW`, `TOO_OLD` or `UNKNOWN_EVENT`.
        code: &'static str,
        /// Why.
        why: String,
    },
    /// `STORAGE`.
    #[error("the store cannot do it now: {0}")]
    Storage(String),
    /// `DISPOSED`: the system is shutting down.
    #[error("the daemon is shutting down and takes nothing new; try again once it runs")]
    Disposed,
}

impl SessionError {
    /// Its code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Exists(_) => "SESSION_EXISTS",
            Self::Unknown(_) => "NO_SESSION",
            Self::Busy(_) => "SESSION_BUSY",
            Self::NoAgent(_) => "NO_AGENT",
            Self::InvalidAgent { .. } => "INVALID_AGENT",
            Self::Corrupt { .. } => "CORRUPT",
            Self::Unsupported { code, .. } => code,
            Self::Storage(_) => "STORAGE",
            Self::Disposed => "DISPOSED",
        }
    }
}

/// What boot did to the sessions that needed it.
#[derive(Debug, Clone, Default)]
pub struct BootReport {
    /// Sessions that were looked at.
    pub touched: usize,
    /// Sessions with an interrupted turn that was closed.
    pub repaired: Vec<SessionId>,
    /// Sessions that could not be opened, and why. The others run.
    pub refused: Vec<(SessionId, SessionError)>,
    /// What the store found when it was opened, and torn tails that were cut: a sentence each.
    pub reports: Vec<String>,
}

/// Whether the system can do its work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Why not, a sentence each; empty when it can.
    pub reasons: Vec<String>,
}

/// How waiting for an item ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Awaited {
    /// Its turn ended.
    Ended {
        /// The turn.
        turn: Turn,
        /// How.
        reason: TurnReason,
    },
    /// It was removed before a turn took it.
    Removed,
}

/// What handles and the system share.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    health: Arc<Health>,
    root: ActorRef<()>,
    boot: watch::Receiver<Option<BootReport>>,
}

/// The running system. Clones share it.
#[derive(Clone)]
pub struct System {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("System")
    }
}

impl System {
    /// Starts the actors and repairs, in the background, the sessions that need it. Returns at once; readiness is
    /// false until boot repair is done.
    pub async fn start(options: SystemOptions) -> Result<Self, store::Error> {
        let SystemOptions { store, profiles, world, limits: _ } = options;
        let (link, registry, health) = (StoreLink::empty(), Arc::<Registry>::default(), Arc::new(Health::booting()));
        let args = RootArgs { store, link: link.clone(), registry: Arc::clone(&registry), health: Arc::clone(&health) };
        let (root, _) = Actor::spawn(None, Root, args)
            .await
            .map_err(|error| store::Error::Io(format!("the supervisor did not start: {error}")))?;
        let shared = Arc::new(Shared { store: link, profiles, world });
        let (told, boot) = watch::channel(None);
        let inner = Arc::new(Inner { shared, registry, health, root, boot });
        tokio::spawn(boot::run(Arc::clone(&inner), told));
        Ok(Self { inner })
    }

    /// Ends when boot repair is done.
    pub async fn booted(&self) -> BootReport {
        let mut boot = self.inner.boot.clone();
        match boot.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            // The task that boots was ended with the runtime.
            Err(_) => BootReport::default(),
        }
    }

    /// Whether the system can do its work now; `wait_change` of the receiver tells of changes.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.inner.health.watch()
    }

    /// Creates a session; its header and first event are durable when this returns (Z7).
    pub async fn create(&self, create: CreateSession) -> Result<AgentHandle, SessionError> {
        let CreateSession { id, agent, cwd, labels } = create;
        keeper::known_agent(&self.inner.shared, &agent)?;
        let world = &self.inner.shared.world;
        let session = id.unwrap_or_else(|| SessionId::trusted(world.fresh_id()));
        let header = SessionHeader {
            version: FORMAT_VERSION,
            session_id: session.clone(),
            agent,
            created_at_ms: world.now_ms(),
            cwd,
            parent: None,
            seed_length: None,
            origin: None,
            delegation_depth: None,
            preset: None,
            labels,
        };
        let slot = self.inner.ensure(&session, Some(header))?;
        self.inner.opened(slot).await.unwrap_or(Err(SessionError::Disposed))
    }

    /// The agent of an existing session; repairs and starts it when it is not live yet.
    pub async fn open(&self, session: &SessionId) -> Result<AgentHandle, SessionError> {
        self.inner.open(session).await
    }

    /// The handle of a session that is live now.
    pub fn live(&self, session: &SessionId) -> Option<AgentHandle> {
        let entry = self.inner.registry.find(session)?;
        match entry.slot.get() {
            SlotState::Live(_) | SlotState::Restarting | SlotState::Faulted(_) => {
                Some(AgentHandle::new(Arc::clone(&self.inner), entry.slot))
            }
            SlotState::Starting | SlotState::Refused(_) | SlotState::Gone => None,
        }
    }

    /// Index entries in order of id, behind `after`; live sessions show their present state. Reads no logs.
    pub async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionSummary>, SessionError> {
        self.inner.sessions(after, limit).await
    }

    /// The header and index entry of one session, whether it is live or not.
    pub async fn session(&self, session: &SessionId) -> Result<(SessionHeader, SessionSummary), SessionError> {
        self.inner.session(session).await
    }

    /// Events from `from`, durable and logged ones, without opening the session for writing (W-3).
    pub async fn events(&self, session: &SessionId, from: Seq, limit: usize) -> Result<Vec<Arc<Event>>, SessionError> {
        self.inner.events(session, from, limit).await
    }

    /// Deletes a session that is idle, with everything that belongs to it (Y-7).
    pub async fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        if self.inner.registry.is_closed() {
            return Err(SessionError::Disposed);
        }
        if let Some(handle) = self.live(session)
            && handle.status().await.visible == Visible::Running
        {
            return Err(SessionError::Busy(session.clone()));
        }
        if !self.inner.registry.begin_delete(session) {
            return Err(SessionError::Busy(session.clone()));
        }
        let deleted = self.inner.delete(session).await;
        self.inner.registry.end_delete(session);
        deleted
    }

    /// Takes no more input, lets open steps end within `drain`, suspends every agent and closes the store (Z15).
    pub async fn shutdown(&self, drain: Duration) {
        self.inner.registry.close();
        let entries = self.inner.registry.all();
        let suspended = entries.into_iter().map(|entry| {
            let handle = AgentHandle::new(Arc::clone(&self.inner), Arc::clone(&entry.slot));
            async move {
                handle.drain().await;
                // The rest of the time is up, or the agent is idle: both end in a suspension.
                drop(tokio::time::timeout(drain, handle.when_idle()).await);
                handle.dispose(DisposeMode::Suspend).await;
                drop(entry.keeper.cast(keeper::Message::Stop));
                entry.slot.ended().await;
            }
        });
        futures::future::join_all(suspended).await;
        if let Err(error) = self.inner.shared.store.close().await {
            tracing::error!(%error, "the store was not closed in order; nothing that was acknowledged is lost");
        }
        self.inner.root.stop(None);
    }

    /// Kills one actor of a session as a fault in it would; the session goes on through repair.
    #[cfg(any(test, feature = "testing"))]
    pub fn testing_kill(&self, session: &SessionId, kind: ActorKind) {
        if let Some(entry) = self.inner.registry.find(session) {
            drop(entry.keeper.cast(keeper::Message::Kill(kind)));
        }
    }

    /// Kills the journal store as a fault in it would; all sessions go on through repair.
    #[cfg(any(test, feature = "testing"))]
    pub fn testing_kill_store(&self) {
        self.inner.shared.store.panic();
    }
}

impl Inner {
    fn ensure(&self, session: &SessionId, create: Option<SessionHeader>) -> Result<Arc<Slot>, SessionError> {
        self.registry.ensure(session, create, &self.shared, &self.root.get_cell())
    }

    /// A handle once the session is open; none when it was put away meanwhile.
    async fn opened(self: &Arc<Self>, slot: Arc<Slot>) -> Option<Result<AgentHandle, SessionError>> {
        match slot.settled().await {
            SlotState::Refused(error) => Some(Err(error)),
            SlotState::Gone => None,
            SlotState::Live(_) | SlotState::Faulted(_) | SlotState::Starting | SlotState::Restarting => {
                Some(Ok(AgentHandle::new(Arc::clone(self), slot)))
            }
        }
    }

    async fn open(self: &Arc<Self>, session: &SessionId) -> Result<AgentHandle, SessionError> {
        loop {
            let slot = self.ensure(session, None)?;
            if let Some(opened) = self.opened(slot).await {
                return opened;
            }
            // It was put away between the two; the next round opens it anew, or says that everything ends.
        }
    }

    /// The session is marked: nobody opens it meanwhile.
    async fn delete(self: &Arc<Self>, session: &SessionId) -> Result<(), SessionError> {
        if let Some(entry) = self.registry.find(session) {
            let handle = AgentHandle::new(Arc::clone(self), Arc::clone(&entry.slot));
            handle.dispose(DisposeMode::Suspend).await;
            drop(entry.keeper.cast(keeper::Message::Stop));
            entry.slot.ended().await;
        }
        let gone = session.clone();
        let deleted = self.shared.store.run(move |store| {
            if store.header(&gone)?.is_none() && store.last_seq(&gone)?.is_none() {
                return Ok(false);
            }
            store.delete(&gone)?;
            store.sync()?;
            Ok(true)
        });
        match deleted.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SessionError::Unknown(session.clone())),
            Err(error) => Err(SessionError::Storage(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
