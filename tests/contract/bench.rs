//! A small world around the real system. Every scenario ends with [`Bench::finish`].

use super::{
    disk::Disk,
    model::{Asked, Model, Route, Say},
};
use everturn_actors::{
    handle::{Committed, DisposeMode, Frame, OpError, Receipt, Submit, SubmitKind},
    ports::{AgentProfile, ModelAdapter, Profiles, World},
    system::{AgentHandle, CreateSession, System, SystemOptions},
    testing::TestWorld,
};
use everturn_storage::{
    chunk::Chunk,
    event::{Event, EventData, TurnReason},
    ids::{MessageId, Seq, SessionId},
    load,
    log::{LogState, request::digest as digest_of, verify::Verifier},
    memory::MemoryStore,
    message::{Block, plain_text},
    testing::sample,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::mpsc;

/// Profiles and routes, which a test may change at any time.
#[derive(Default)]
pub(crate) struct Town {
    profiles: Mutex<BTreeMap<String, Arc<AgentProfile>>>,
    routes: Mutex<BTreeMap<String, Route>>,
}

impl Town {
    /// Changes the profile of an agent; it applies at the next step.
    pub(crate) fn change(&self, agent: &str, change: impl FnOnce(&mut AgentProfile)) {
        let mut profiles = self.profiles.lock().unwrap();
        let mut profile = profiles.get(agent).map_or_else(plain_profile, |profile| (**profile).clone());
        change(&mut profile);
        profiles.insert(agent.to_owned(), Arc::new(profile));
    }

    /// A new generation of a provider's adapter.
    pub(crate) fn route(&self, provider: &str, route: Route) {
        self.routes.lock().unwrap().insert(provider.to_owned(), route);
    }

    /// Takes a provider's adapter away.
    pub(crate) fn no_route(&self, provider: &str) {
        self.routes.lock().unwrap().remove(provider);
    }
}

impl Profiles for Town {
    fn profile(&self, agent: &str) -> Option<Arc<AgentProfile>> {
        self.profiles.lock().unwrap().get(agent).cloned()
    }

    fn adapter(&self, provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        Some(Arc::new(self.routes.lock().unwrap().get(provider)?.clone()))
    }
}

/// No prompt, no tools, steering on.
pub(crate) fn plain_profile() -> AgentProfile {
    AgentProfile { config: sample::config(), steering: true, ..AgentProfile::default() }
}

/// See the module.
pub(crate) struct Bench {
    pub(crate) disk: Arc<Disk>,
    pub(crate) model: Arc<Model>,
    pub(crate) town: Arc<Town>,
    pub(crate) system: System,
    /// The adapter that the model was given at first.
    pub(crate) route: Route,
    /// The agent `a` in the session `s`.
    pub(crate) agent: AgentHandle,
    lives: u32,
}

pub(crate) async fn boot(disk: &Arc<Disk>, town: &Arc<Town>, life: u32) -> System {
    boot_in(disk, town, Arc::new(TestWorld::new(&format!("w{life}")))).await
}

pub(crate) async fn boot_in(disk: &Arc<Disk>, town: &Arc<Town>, world: Arc<dyn World>) -> System {
    let options = SystemOptions {
        store: Arc::<Disk>::clone(disk),
        profiles: Arc::<Town>::clone(town),
        world,
        limits: everturn_actors::limits::Limits::default(),
    };
    System::start(options).await.unwrap()
}

impl Bench {
    /// The agent `a` over a model with these answers.
    pub(crate) async fn start(says: Vec<Say>) -> Self {
        Self::with(says, |_| {}).await
    }

    /// The same with a profile of its own.
    pub(crate) async fn with(says: Vec<Say>, profile: impl FnOnce(&mut AgentProfile)) -> Self {
        let disk = Arc::new(Disk::new(MemoryStore::new()));
        let (model, town) = (Model::new(says), Arc::<Town>::default());
        town.change("a", profile);
        let route = Route::new("first", &model);
        town.route(&sample::config().provider, route.clone());
        let system = boot(&disk, &town, 0).await;
        let agent = create(&system, "s", "a").await;
        Self { disk, model, town, system, route, agent, lives: 0 }
    }

    /// Changes the profile of `a`.
    pub(crate) fn change(&self, change: impl FnOnce(&mut AgentProfile)) {
        self.town.change("a", change);
    }

    /// The process dies; a new one opens what had been written (`kill`) or only what had been synced.
    pub(crate) async fn die(&mut self, power_too: bool) {
        let memory = if power_too { self.disk.memory.crash(None) } else { self.disk.memory.kill() };
        // What the dead process still does, it does to a store that is gone.
        self.disk.release();
        self.system.shutdown(Duration::ZERO).await;
        self.lives += 1;
        self.disk = Arc::new(Disk::new(memory));
        self.system = boot(&self.disk, &self.town, self.lives).await;
        self.system.booted().await;
        self.agent = self.system.open(&SessionId::trusted("s")).await.unwrap();
    }

    /// An orderly restart.
    pub(crate) async fn restart(&mut self) {
        self.system.shutdown(Duration::from_secs(60)).await;
        self.lives += 1;
        self.disk = Arc::new(Disk::new(self.disk.memory.kill()));
        self.system = boot(&self.disk, &self.town, self.lives).await;
        self.system.booted().await;
        self.agent = self.system.open(&SessionId::trusted("s")).await.unwrap();
    }

    /// Sends a text; its id is the text with `-` for blanks.
    pub(crate) async fn send(&self, text: &str) -> Receipt {
        submit(&self.agent, SubmitKind::Send, text).await.unwrap()
    }

    pub(crate) async fn steer(&self, text: &str) -> Receipt {
        submit(&self.agent, SubmitKind::Steer, text).await.unwrap()
    }

    pub(crate) async fn inject(&self, text: &str) -> Receipt {
        submit(&self.agent, SubmitKind::Inject, text).await.unwrap()
    }

    /// Ends when nothing is left to do; the agent must be sound.
    pub(crate) async fn idle(&self) {
        assert_eq!(self.agent.when_idle().await, None);
    }

    /// The log as it is now.
    pub(crate) async fn log(&self) -> Vec<Arc<Event>> {
        log_of(&self.system, self.agent.session()).await
    }

    /// Ends when the log holds `n` events of this type.
    pub(crate) async fn logged(&self, type_name: &str, n: usize) {
        let (_, mut committed) = self.agent.subscribe().await;
        let is = |event: &Arc<Event>| (event.body.data.type_name() == type_name).then_some(event.seq);
        let mut seen: BTreeSet<Seq> = self.log().await.iter().filter_map(is).collect();
        while seen.len() < n {
            match committed.recv().await.unwrap() {
                Committed::Event(event) => seen.extend(is(&event)),
                Committed::Lagged { from } => panic!("the test fell behind at {from}"),
            }
        }
    }

    /// The live fold.
    pub(crate) async fn view(&self) -> Arc<LogState> {
        self.agent.snapshot().await.unwrap().view
    }

    /// What every scenario ends with: quiescence, a log without findings, a fold from zero that equals the live one,
    /// and the same log in the store after an orderly end. Gives the log.
    pub(crate) async fn finish(self) -> Vec<Arc<Event>> {
        self.idle().await;
        finish(self).await
    }
}

/// [`Bench::finish`] of a session that is not idle or sound at its end.
pub(crate) async fn finish(bench: Bench) -> Vec<Arc<Event>> {
    let session = bench.agent.session().clone();
    let events = bench.log().await;
    let verified = verified(&session, &events);
    assert_eq!(format!("{:?}", bench.view().await), format!("{verified:?}"), "the live fold is not that of the log");
    as_recorded(&bench).await;
    bench.agent.dispose(DisposeMode::Suspend).await;
    let stored = load::inspect(&bench.disk.memory, &session).unwrap();
    assert_eq!(stored.state.next_seq(), verified.next_seq(), "the store does not hold the whole log");
    bench.system.shutdown(Duration::ZERO).await;
    events
}

/// Scenario 213: what the model was sent has the digest that the log recorded for the attempt, which the verifier
/// recomputes from the log (I-27). Only a request of a process that died may have no record.
async fn as_recorded(bench: &Bench) {
    let mut recorded = Vec::new();
    for summary in bench.system.sessions(None, 100).await.unwrap() {
        recorded.extend(picked(&log_of(&bench.system, &summary.session).await, |data| match data {
            EventData::AssistantMessage(said) => Some(format!("{:?}", said.request_digest)),
            EventData::AssistantAttempt(tried) => Some(format!("{:?}", tried.request_digest)),
            _ => None,
        }));
    }
    let mut sent = Vec::new();
    for Asked { request, .. } in bench.model.asked() {
        let again = digest_of(&request.header.config, &request.messages, &request.header.tools);
        assert_eq!(again, request.digest, "the request was changed behind its digest");
        sent.push(format!("{again:?}"));
    }
    recorded.sort();
    sent.sort();
    if bench.lives > 0 {
        sent.retain(|digest| recorded.contains(digest));
    }
    assert_eq!(sent, recorded, "requests as they were sent, and as they were recorded");
}

/// The fold of a log in which nothing is wrong.
pub(crate) fn verified(session: &SessionId, events: &[Arc<Event>]) -> LogState {
    let mut verifier = Verifier::new(session.clone(), Some(10));
    events.iter().for_each(|event| verifier.event(event));
    let state = verifier.state().clone();
    assert_eq!(verifier.finish(), vec![]);
    state
}

pub(crate) async fn create(system: &System, session: &str, agent: &str) -> AgentHandle {
    let id = Some(SessionId::trusted(session));
    system.create(CreateSession { id, agent: agent.to_owned(), ..CreateSession::default() }).await.unwrap()
}

/// Submits a text; its id is the text with `-` for blanks.
pub(crate) async fn submit(agent: &AgentHandle, kind: SubmitKind, text: &str) -> Result<Receipt, OpError> {
    let id = Some(MessageId::trusted(text.replace(' ', "-")));
    agent.submit(Submit { kind, id, content: vec![Block::text(text)], source: None }).await
}

pub(crate) async fn log_of(system: &System, session: &SessionId) -> Vec<Arc<Event>> {
    let mut events: Vec<Arc<Event>> = Vec::new();
    loop {
        let more = system.events(session, Seq(events.len() as u64), 1_000).await.unwrap();
        if more.is_empty() {
            return events;
        }
        events.extend(more);
    }
}

/// Types of a log behind its first event.
pub(crate) fn types(log: &[Arc<Event>]) -> Vec<String> {
    log.iter().skip(1).map(|event| event.body.data.type_name().to_owned()).collect()
}

/// How the turns of a log ended.
pub(crate) fn reasons(log: &[Arc<Event>]) -> Vec<TurnReason> {
    let ends = log.iter().filter_map(|event| match &event.body.data {
        EventData::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    });
    ends.collect()
}

/// The same as short words: `completed`, `error CODE`, …
pub(crate) fn ends(log: &[Arc<Event>]) -> Vec<String> {
    let word = |reason: TurnReason| match reason {
        TurnReason::Completed => "completed".to_owned(),
        TurnReason::Rejected { reason } => format!("rejected {reason}"),
        TurnReason::Aborted { .. } => "aborted".to_owned(),
        TurnReason::Error { failure } => format!("error {}", failure.code),
        TurnReason::MaxTokens => "max-tokens".to_owned(),
        TurnReason::Interrupted => "interrupted".to_owned(),
    };
    reasons(log).into_iter().map(word).collect()
}

/// The data of every event of one kind, chosen by `pick`.
pub(crate) fn picked<T>(log: &[Arc<Event>], pick: impl Fn(&EventData) -> Option<T>) -> Vec<T> {
    log.iter().filter_map(|event| pick(&event.body.data)).collect()
}

/// The results of a log as (call id, code, text).
pub(crate) fn results(log: &[Arc<Event>]) -> Vec<(String, Option<String>, String)> {
    picked(log, |data| match data {
        EventData::ToolResult(result) => Some((
            result.message.call_id.as_str().to_owned(),
            result.error.as_ref().map(|error| error.code.clone()),
            plain_text(&result.message.content),
        )),
        _ => None,
    })
}

/// Ends when a delta of text was shown.
pub(crate) async fn streaming(frames: &mut mpsc::Receiver<Frame>) {
    while let Some(frame) = frames.recv().await {
        if matches!(frame, Frame::Chunk { chunk: Chunk::TextDelta { .. }, .. }) {
            return;
        }
    }
}
