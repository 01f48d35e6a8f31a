//! Where handles find the present incarnation of a session.

use super::AgentRef;
use crate::{frames::Frames, session_journal, system::SessionError};
use everturn_storage::{
    event::SessionHeader,
    ids::{Epoch, Seq, SessionId},
};
use ractor::ActorRef;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The actors of one incarnation, as handles use them.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) agent: AgentRef,
    pub(crate) journal: ActorRef<session_journal::Message>,
    pub(crate) header: Arc<SessionHeader>,
    pub(crate) epoch: Epoch,
    /// The last durable event, as it grows.
    pub(crate) durable: watch::Receiver<Option<Seq>>,
    /// Whether a turn of a dead process was closed when it was opened.
    pub(crate) repaired: bool,
}

/// Whether a session can be used.
#[derive(Clone)]
pub(crate) enum SlotState {
    /// It is being opened.
    Starting,
    /// It runs.
    Live(Live),
    /// It died and is being opened again.
    Restarting,
    /// It was not opened. A later opening tries anew.
    Refused(SessionError),
    /// It died too often and stays down.
    Faulted(String),
    /// It was put away.
    Gone,
}

/// One session of this process, through all its incarnations.
pub(crate) struct Slot {
    pub(crate) session: SessionId,
    pub(crate) frames: Arc<Frames>,
    state: watch::Sender<SlotState>,
    /// What a person should know of its openings, until somebody asks.
    reports: Mutex<Vec<String>>,
}

impl Slot {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            frames: Arc::default(),
            state: watch::Sender::new(SlotState::Starting),
            reports: Mutex::default(),
        }
    }

    /// Keeps a sentence for people.
    pub(crate) fn report(&self, report: String) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    /// The sentences since the last call.
    pub(crate) fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, state: SlotState) {
        self.state.send_replace(state);
    }

    pub(crate) fn get(&self) -> SlotState {
        self.state.borrow().clone()
    }

    /// The state once it is known: neither starting nor restarting.
    pub(crate) async fn settled(&self) -> SlotState {
        let mut states = self.state.subscribe();
        let known = |state: &SlotState| !matches!(state, SlotState::Starting | SlotState::Restarting);
        match states.wait_for(known).await {
            Ok(state) => state.clone(),
            // Unreachable while this slot holds the sender; then nothing can run any more.
            Err(_) => SlotState::Gone,
        }
    }

    /// Ends when this incarnation is over. An error says why no other one follows at once.
    pub(crate) async fn other_than(&self, dead: &Live) -> Result<(), String> {
        let mut states = self.state.subscribe();
        let other = |state: &SlotState| !matches!(state, SlotState::Live(live) if live.epoch == dead.epoch);
        match states.wait_for(other).await.as_deref() {
            Ok(SlotState::Gone) => Ok(()),
            Ok(SlotState::Faulted(why)) => Err(why.clone()),
            Ok(SlotState::Refused(error)) => Err(error.to_string()),
            Ok(SlotState::Restarting | SlotState::Starting | SlotState::Live(_)) | Err(_) => {
                Err("the agent died and is being opened again".to_owned())
            }
        }
    }

    /// Ends when it is neither starting, live nor restarting any more.
    pub(crate) async fn ended(&self) {
        let mut states = self.state.subscribe();
        let over = |state: &SlotState| matches!(state, SlotState::Refused(_) | SlotState::Faulted(_) | SlotState::Gone);
        // An error means that the sender is gone, which is an end too.
        drop(states.wait_for(over).await);
    }
}
