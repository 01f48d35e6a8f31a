//! The keeper of one session: it opens the session, starts its actors, and starts them anew when one of them dies.
//!
//! The death of the agent, the driver, the session journal or the journal store is a process death for that session:
//! all its actors are ended, fenced by a higher epoch, and the log is loaded again through repair (0.3, 238, 239).
//! A dead tool pool is replaced alone; its driver has noticed already (6.10).

mod build;
mod slot;

pub(crate) use build::refusal;
pub(crate) use slot::{Live, Slot, SlotState};

use crate::{
    agent, fault,
    frames::Frames,
    handle::{Frame, Visible},
    journal_store::StoreLink,
    limits::{RESTART_DELAY_MS, RESTART_MAX},
    ports::{Profiles, World},
    protocol::ToolPoolLink,
    system::SessionError,
};
use everturn_storage::{
    event::SessionHeader,
    ids::{Epoch, SessionId},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::sync::{Arc, Mutex, PoisonError};

/// What the actors of every session share.
pub(crate) struct Shared {
    pub(crate) store: StoreLink,
    pub(crate) profiles: Arc<dyn Profiles>,
    pub(crate) world: Arc<dyn World>,
}

/// Which actor of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActorKind {
    /// The agent.
    Agent,
    /// The driver.
    Driver,
    /// The session journal.
    Journal,
    /// The tool pool.
    Pool,
}

/// The mailbox of a keeper.
pub(crate) enum Message {
    /// The session was opened, or could not be.
    Built { attempt: u64, built: Result<build::Built, SessionError> },
    /// The pool was replaced.
    PoolBuilt { attempt: u64, pool: Option<(ToolPoolLink, ActorCell)> },
    /// The agent is put away.
    Disposed { attempt: u64 },
    /// The agent says that only a restart helps.
    Faulted { attempt: u64, why: String },
    /// There is a new journal store.
    StoreReplaced,
    /// End everything, without orderly disposal.
    Stop,
    /// Kills one actor, as a fault in it would.
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "only tests kill"))]
    Kill(ActorKind),
}

/// What a keeper runs on.
pub(crate) struct KeeperArgs {
    pub(crate) session: SessionId,
    /// Present for a session that is to be created.
    pub(crate) create: Option<SessionHeader>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) shared: Arc<Shared>,
}

/// The actors of one incarnation.
struct Children {
    cells: Vec<(ActorKind, ActorCell)>,
    pool: Arc<Mutex<ToolPoolLink>>,
}

pub(crate) struct State {
    args: KeeperArgs,
    /// Which opening is under way or done; older reports are dropped.
    attempt: u64,
    epoch: Epoch,
    /// Openings that began since one was done. Two may run beside each other when the store is replaced meanwhile, and
    /// must not write under one epoch (W-2).
    unbuilt: u64,
    children: Option<Children>,
    /// Deaths without a turn that ended in between.
    deaths: u32,
    turns: usize,
}

pub(crate) struct Keeper;

#[ractor::async_trait]
impl Actor for Keeper {
    type Msg = Message;
    type State = State;
    type Arguments = KeeperArgs;

    async fn pre_start(&self, me: ActorRef<Message>, args: KeeperArgs) -> Result<State, ActorProcessingErr> {
        let mut state = State { args, attempt: 0, epoch: Epoch(0), unbuilt: 0, children: None, deaths: 0, turns: 0 };
        state.build(&me, Vec::new(), 0);
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Built { attempt, built } if attempt == state.attempt => state.built(&me, built),
            Message::PoolBuilt { attempt, pool } if attempt == state.attempt => state.pool_built(&me, pool),
            Message::Disposed { attempt } if attempt == state.attempt => state.end(&me, SlotState::Gone),
            Message::Faulted { attempt, why } if attempt == state.attempt => state.restart(&me, why),
            // An earlier incarnation reports; what it built is linked to this keeper and must not stay.
            Message::Built { built: Ok(built), .. } => {
                kill(&built.cells);
                state.args.shared.store.withdraw((state.args.session.clone(), built.live.epoch));
            }
            Message::Built { built: Err(_), .. } => {}
            Message::PoolBuilt { pool, .. } => drop(pool.map(|(_, cell)| cell.kill())),
            Message::Disposed { .. } | Message::Faulted { .. } => {}
            Message::StoreReplaced => state.restart(&me, "the journal store was restarted".to_owned()),
            Message::Stop => state.end(&me, SlotState::Gone),
            Message::Kill(kind) => state.kill_one(kind),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => state.died(&me, &cell, error.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                state.died(&me, &cell, reason.unwrap_or_else(|| "it stopped".to_owned()));
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

fn kill(cells: &[(ActorKind, ActorCell)]) {
    // The pool goes first: its bodies are signalled before anything else ends (F-4).
    let pool_first = |kind: ActorKind| {
        cells.iter().filter(move |(other, _)| (*other == ActorKind::Pool) == (kind == ActorKind::Pool))
    };
    pool_first(ActorKind::Pool).for_each(|(_, cell)| cell.kill());
    pool_first(ActorKind::Agent).for_each(|(_, cell)| cell.kill());
}

impl State {
    /// Opens the session in a task, once `old` actors are gone and the time is over.
    fn build(&mut self, me: &ActorRef<Message>, old: Vec<ActorCell>, delay_ms: u64) {
        self.attempt += 1;
        let order = build::Order {
            attempt: self.attempt,
            session: self.args.session.clone(),
            create: self.args.create.clone(),
            used_epoch: self.epoch,
            beside: self.unbuilt,
            slot: Arc::clone(&self.args.slot),
            shared: Arc::clone(&self.args.shared),
            keeper: me.clone(),
            old,
            delay_ms,
        };
        self.unbuilt += 1;
        tokio::spawn(build::run(order));
    }

    fn built(&mut self, me: &ActorRef<Message>, built: Result<build::Built, SessionError>) {
        let built = match built {
            Ok(built) => built,
            Err(error) => return self.not_built(me, error),
        };
        // It exists now: another opening must load it.
        self.args.create = None;
        self.epoch = built.live.epoch;
        self.unbuilt = 0;
        if built.turns > self.turns {
            self.deaths = 0;
        }
        self.turns = built.turns;
        let dead = built.cells.iter().any(|(_, cell)| cell.get_status() >= ractor::ActorStatus::Stopping);
        self.children = Some(Children { cells: built.cells, pool: built.pool });
        if dead {
            // It died before this keeper knew it.
            return self.restart(me, "an actor died while it started".to_owned());
        }
        (built.start)();
        self.args.slot.set(SlotState::Live(built.live));
    }

    fn not_built(&mut self, me: &ActorRef<Message>, error: SessionError) {
        let storage = matches!(error, SessionError::Storage(_));
        if self.deaths == 0 || !storage {
            // Whoever asks for a session that is not there is told; that is all there is to it.
            if !matches!(error, SessionError::Unknown(_)) {
                tracing::warn!(session = %self.args.session, %error, "the session was not opened");
            }
            return self.end(me, SlotState::Refused(error));
        }
        // It was live in this process, so it is opened as soon as the store lets it.
        self.build(me, Vec::new(), RESTART_DELAY_MS.1);
    }

    fn died(&mut self, me: &ActorRef<Message>, cell: &ActorCell, why: String) {
        let Some(children) = &self.children else { return };
        let Some((kind, _)) = children.cells.iter().find(|(_, child)| child.get_id() == cell.get_id()) else { return };
        match kind {
            ActorKind::Pool => self.replace_pool(me, &why),
            ActorKind::Agent | ActorKind::Driver | ActorKind::Journal => {
                self.restart(me, format!("the {kind:?} of the session died: {why}"));
            }
        }
    }

    fn replace_pool(&self, me: &ActorRef<Message>, why: &str) {
        tracing::warn!(session = %self.args.session, why, "the tool pool died and is replaced");
        let SlotState::Live(live) = self.args.slot.get() else { return };
        let order = build::PoolOrder {
            attempt: self.attempt,
            live,
            session: self.args.session.clone(),
            slot: Arc::clone(&self.args.slot),
            shared: Arc::clone(&self.args.shared),
            keeper: me.clone(),
        };
        tokio::spawn(build::replace_pool(order));
    }

    fn pool_built(&mut self, me: &ActorRef<Message>, pool: Option<(ToolPoolLink, ActorCell)>) {
        let Some((link, cell)) = pool else {
            return self.restart(me, "the tool pool could not be started again".to_owned());
        };
        let Some(children) = &mut self.children else { return cell.kill() };
        children.cells.retain(|(kind, _)| *kind != ActorKind::Pool);
        children.cells.push((ActorKind::Pool, cell));
        *children.pool.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }

    /// Ends all actors of the session and opens it again, through repair, after a while.
    fn restart(&mut self, me: &ActorRef<Message>, why: String) {
        let Some(children) = self.children.take() else {
            // Not open yet: an opening under way may have used what is gone now.
            return self.build(me, Vec::new(), RESTART_DELAY_MS.0);
        };
        self.deaths += 1;
        fault::reach("keeper.restart", &self.args.session);
        tracing::error!(session = %self.args.session, why, deaths = self.deaths, "the session is opened again");
        kill(&children.cells);
        self.args.shared.store.withdraw((self.args.session.clone(), self.epoch));
        if self.deaths > RESTART_MAX {
            self.attempt += 1;
            self.args
                .slot
                .set(SlotState::Faulted(format!("it died {} times in a row, the last time: {why}", self.deaths)));
            return;
        }
        self.args.slot.set(SlotState::Restarting);
        // Nothing runs until the next incarnation says so.
        self.args.slot.frames.publish(&Frame::Status { status: Visible::Idle });
        let delay_ms = RESTART_DELAY_MS.0.saturating_mul(1 << (self.deaths - 1).min(16)).min(RESTART_DELAY_MS.1);
        self.build(me, children.cells.into_iter().map(|(_, cell)| cell).collect(), delay_ms);
    }

    fn end(&mut self, me: &ActorRef<Message>, last: SlotState) {
        self.attempt += 1;
        if let Some(children) = self.children.take() {
            kill(&children.cells);
            self.args.shared.store.withdraw((self.args.session.clone(), self.epoch));
        }
        self.args.slot.set(last);
        me.stop(None);
    }

    fn kill_one(&self, kind: ActorKind) {
        let cells = self.children.as_ref().map_or(&[][..], |children| &children.cells[..]);
        cells.iter().filter(|(other, _)| *other == kind).for_each(|(_, cell)| cell.kill());
    }
}

/// What watchers of a session are shown by its agent.
pub(crate) fn frames_of(slot: &Slot) -> Arc<Frames> {
    Arc::clone(&slot.frames)
}

/// Which agent of the configuration must exist, and be sound, for a session.
pub(crate) fn known_agent(shared: &Shared, agent: &str) -> Result<(), SessionError> {
    let Some(profile) = shared.profiles.profile(agent) else { return Err(SessionError::NoAgent(agent.to_owned())) };
    match profile.settings_wrong() {
        None => Ok(()),
        Some(why) => Err(SessionError::InvalidAgent { agent: agent.to_owned(), why }),
    }
}

/// The way to an agent that may be gone.
pub(crate) type AgentRef = ActorRef<agent::Message>;
