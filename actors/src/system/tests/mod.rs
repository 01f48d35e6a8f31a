//! Scenarios of CONTRACT 10 with real actors, a store in memory, a scripted model and virtual time.

mod cancel;
mod chaos;
mod inside;
mod lifecycle;
mod ordinary;
mod restart;

use super::*;
use crate::{
    handle::{KeptItems, OpError, Receipt, Submit, SubmitKind},
    testing::{Gate, Play, TestProfiles, TestWorld},
};
use everturn_storage::{
    event::{Cause, EventData},
    ids::{ItemId, MessageId},
    log::LogState,
    memory::MemoryStore,
    message::{Block, plain_text},
};

/// One process on a store.
pub(super) struct Bench {
    pub(super) store: MemoryStore,
    pub(super) profiles: Arc<TestProfiles>,
    pub(super) system: System,
}

pub(super) async fn bench() -> Bench {
    boot(MemoryStore::new(), Arc::default(), "one").await
}

pub(super) async fn boot(store: MemoryStore, profiles: Arc<TestProfiles>, name: &str) -> Bench {
    let options = SystemOptions {
        store: Arc::new(store.clone()),
        profiles: Arc::clone(&profiles) as Arc<dyn Profiles>,
        world: Arc::new(TestWorld::new(name)),
        limits: crate::limits::Limits::default(),
    };
    let system = System::start(options).await.expect("starts");
    Bench { store, profiles, system }
}

impl Bench {
    pub(super) async fn agent(&self) -> AgentHandle {
        let create = CreateSession { id: Some(session()), agent: "default".to_owned(), ..CreateSession::default() };
        self.system.create(create).await.expect("created")
    }

    /// The whole log as types and, where there is one, the turn's reason. It is checked by every rule on the way.
    pub(super) async fn log(&self) -> Vec<String> {
        let events = self.events().await;
        LogState::replay(session(), &events).expect("a valid log");
        events.iter().map(|event| line(&event.body.data)).collect()
    }

    pub(super) async fn events(&self) -> Vec<Arc<Event>> {
        self.system.events(&session(), Seq(0), 1_000).await.expect("reads")
    }
}

pub(super) fn session() -> SessionId {
    SessionId::trusted("s")
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is told by its name alone")]
fn line(data: &EventData) -> String {
    let name = data.type_name().to_owned();
    match data {
        EventData::InboxQueued(queued) => format!("{name} {}", queued.item.id),
        EventData::InboxClaimed(claimed) => format!("{name} {:?}", claimed.ids),
        EventData::InboxRemoved(removed) => format!("{name} {:?} {:?}", removed.ids, removed.cause),
        EventData::UserMessage(said) => format!("{name} {}", plain_text(&said.message.content)),
        EventData::AssistantMessage(said) => format!("{name} {}", plain_text(&said.message.content)),
        EventData::TurnStart(start) => format!("{name} {}", start.turn),
        EventData::TurnEnd(end) => format!("{name} {} {}", end.turn, reason(&end.reason)),
        EventData::SessionOpened(opened) => format!("{name} {:?} {}", opened.reason, opened.epoch),
        _ => name,
    }
}

pub(super) fn reason(reason: &TurnReason) -> String {
    match reason {
        TurnReason::Completed => "completed".to_owned(),
        TurnReason::Rejected { .. } => "rejected".to_owned(),
        TurnReason::Aborted { cause } => format!("aborted {cause:?}"),
        TurnReason::Error { failure } => format!("error {}", failure.code),
        TurnReason::MaxTokens => "max-tokens".to_owned(),
        TurnReason::Interrupted => "interrupted".to_owned(),
    }
}

pub(super) fn submit(kind: SubmitKind, id: &str) -> Submit {
    Submit { kind, id: Some(MessageId::trusted(id)), content: vec![Block::text(format!("say {id}"))], source: None }
}

pub(super) async fn send(agent: &AgentHandle, id: &str) -> Receipt {
    agent.submit(submit(SubmitKind::Send, id)).await.expect("accepted")
}

pub(super) fn ended(turn: u32, reason: TurnReason) -> Result<Awaited, OpError> {
    Ok(Awaited::Ended { turn: Turn(turn), reason })
}

pub(super) fn aborted() -> TurnReason {
    TurnReason::Aborted { cause: Cause::User }
}

/// The lines that say how turns went.
pub(super) fn turns(log: &[String]) -> Vec<&str> {
    log.iter().filter(|line| line.starts_with("turn/end")).map(String::as_str).collect()
}

pub(super) fn item(id: &str) -> ItemId {
    ItemId::trusted(id)
}

/// A play that says `text` once the gate is open.
pub(super) fn held(gate: &Gate, text: &str) -> Play {
    Play::text(text).held(gate)
}

pub(super) async fn cancel(agent: &AgentHandle, kept: KeptItems) -> crate::handle::CancelReport {
    agent.cancel(Cause::User, kept).await.expect("cancelled")
}
