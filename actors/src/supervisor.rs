//! The root of the tree: the registry of sessions, and the journal store under it.
//!
//! A dead journal store is replaced; every session is then opened again, because nobody knows which of its commits
//! the dead one had in hand. A dead keeper takes its own session with it and no other.

use crate::{
    journal_store::{JournalStore, JournalStoreArgs, StoreLink},
    keeper::{self, Keeper, KeeperArgs, Shared, Slot, SlotState},
    system::{Readiness, SessionError},
};
use everturn_storage::{event::SessionHeader, ids::SessionId, store::Store};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, ActorRuntime, SupervisionEvent};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// One session of this process.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) slot: Arc<Slot>,
    pub(crate) keeper: ActorRef<keeper::Message>,
}

#[derive(Default)]
struct Sessions {
    entries: BTreeMap<SessionId, Entry>,
    /// Sessions that are being deleted; nobody opens them meanwhile.
    deleting: BTreeSet<SessionId>,
    /// Nothing new is taken.
    closed: bool,
}

/// Which sessions are live, and the only way to make one live.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Sessions>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if it is in this process.
    pub(crate) fn find(&self, session: &SessionId) -> Option<Entry> {
        self.lock().entries.get(session).cloned()
    }

    /// Everything that is in this process.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.lock().entries.values().cloned().collect()
    }

    /// The session's slot; starts its keeper when there is none.
    pub(crate) fn ensure(
        &self,
        session: &SessionId,
        create: Option<SessionHeader>,
        shared: &Arc<Shared>,
        root: &ActorCell,
    ) -> Result<Arc<Slot>, SessionError> {
        let mut sessions = self.lock();
        if sessions.closed {
            return Err(SessionError::Disposed);
        }
        if sessions.deleting.contains(session) {
            return Err(SessionError::Busy(session.clone()));
        }
        if let Some(entry) = sessions.entries.get(session)
            && !matches!(entry.slot.get(), SlotState::Gone | SlotState::Refused(_))
        {
            return if create.is_some() {
                Err(SessionError::Exists(session.clone()))
            } else {
                Ok(Arc::clone(&entry.slot))
            };
        }
        let slot = Arc::new(Slot::new(session.clone()));
        let open = KeeperArgs::open(session.clone(), Arc::clone(&slot), Arc::clone(shared));
        let args = KeeperArgs { create, ..open };
        let (keeper, _) = ActorRuntime::spawn_linked_instant(None, Keeper, args, root.clone())
            .map_err(|error| SessionError::Storage(format!("the session's keeper did not start: {error}")))?;
        sessions.entries.insert(session.clone(), Entry { slot: Arc::clone(&slot), keeper });
        Ok(slot)
    }

    /// Keeps others from opening a session while it is deleted; false when somebody deletes it already.
    pub(crate) fn begin_delete(&self, session: &SessionId) -> bool {
        self.lock().deleting.insert(session.clone())
    }

    pub(crate) fn end_delete(&self, session: &SessionId) {
        self.lock().deleting.remove(session);
    }

    /// Takes nothing new from now on.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// A keeper ended; `failed` when nobody asked it to.
    fn keeper_ended(&self, keeper: ActorId, failed: Option<String>) {
        let mut sessions = self.lock();
        let found = sessions.entries.iter().find(|(_, entry)| entry.keeper.get_id() == keeper);
        let Some((session, entry)) = found.map(|(session, entry)| (session.clone(), entry.clone())) else { return };
        if let Some(why) = failed {
            tracing::error!(%session, why, "the keeper of a session died");
            entry.slot.set(SlotState::Faulted(format!("its keeper died: {why}")));
            return;
        }
        sessions.entries.remove(&session);
    }
}

/// Whether the system can do its work, from its parts.
pub(crate) struct Health {
    parts: Mutex<(bool, Option<String>)>,
    readiness: watch::Sender<Readiness>,
}

impl Health {
    /// Boot repair is not done.
    pub(crate) fn booting() -> Self {
        let health = Self { parts: Mutex::new((true, None)), readiness: watch::Sender::default() };
        health.change(|_| {});
        health
    }

    pub(crate) fn booted(&self) {
        self.change(|(booting, _)| *booting = false);
    }

    pub(crate) fn store(&self, why: Option<String>) {
        self.change(|(_, store)| *store = why);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut (bool, Option<String>))) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parts);
        let booting = parts.0.then(|| "boot repair is not done yet".to_owned());
        let store = parts.1.as_ref().map(|why| format!("the store cannot be written: {why}"));
        let readiness = Readiness { reasons: booting.into_iter().chain(store).collect() };
        self.readiness.send_if_modified(|now| {
            let changed = *now != readiness;
            *now = readiness;
            changed
        });
    }
}

/// What the root runs on.
pub(crate) struct RootArgs {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) link: StoreLink,
    pub(crate) registry: Arc<Registry>,
    pub(crate) health: Arc<Health>,
}

pub(crate) struct State {
    args: RootArgs,
    incarnation: u64,
    gate: Arc<Mutex<()>>,
    journal_store: ActorId,
}

/// The root actor. Nobody sends it anything; it hears of deaths.
pub(crate) struct Root;

#[ractor::async_trait]
impl Actor for Root {
    type Msg = ();
    type State = State;
    type Arguments = RootArgs;

    async fn pre_start(&self, me: ActorRef<()>, args: RootArgs) -> Result<State, ActorProcessingErr> {
        let gate = Arc::default();
        let journal_store = start_store(&args, &gate, 0, me.get_cell()).await?;
        Ok(State { args, incarnation: 0, gate, journal_store })
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<()>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, failed) = match event {
            SupervisionEvent::ActorFailed(cell, error) => (cell, Some(error.to_string())),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                // A killed actor says so; one that stopped by itself gives no reason.
                (cell, reason.filter(|reason| reason == "killed"))
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        if cell.get_id() != state.journal_store {
            state.args.registry.keeper_ended(cell.get_id(), failed);
            return Ok(());
        }
        tracing::error!(why = failed.unwrap_or_default(), "the journal store died; all sessions are opened again");
        state.incarnation += 1;
        state.args.health.store(Some("the journal store is being started again".to_owned()));
        state.journal_store = start_store(&state.args, &state.gate, state.incarnation, me.get_cell()).await?;
        for entry in state.args.registry.all() {
            // A keeper that is gone has no session any more.
            drop(entry.keeper.cast(keeper::Message::StoreReplaced));
        }
        Ok(())
    }
}

async fn start_store(
    args: &RootArgs,
    gate: &Arc<Mutex<()>>,
    incarnation: u64,
    root: ActorCell,
) -> Result<ActorId, ActorProcessingErr> {
    let health = Arc::clone(&args.health);
    let store_args = JournalStoreArgs {
        store: Arc::clone(&args.store),
        incarnation,
        gate: Arc::clone(gate),
        health: Arc::new(move |why| health.store(why)),
    };
    let (actor, _) = Actor::spawn_linked(None, JournalStore, store_args, root).await?;
    args.link.point_at(actor.clone());
    Ok(actor.get_id())
}
