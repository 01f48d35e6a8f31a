//! Many agents in one real system, over an adapter that asks a real socket.

use crate::{
    server::Server,
    world::{OPENAI, OPENAI_BEGINNING, adapter, config},
};
use everturn::{
    Builder,
    actors::{
        handle::{KeptItems, Submit, SubmitKind},
        ports::AgentProfile,
        system::{AgentHandle, CreateSession, System},
    },
    providers::ProviderConfig,
    storage::{
        event::{Cause, EventData, RequestConfig, TurnReason},
        ids::Seq,
        memory::MemoryStore,
        message::Block,
    },
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A system whose agents ask this provider.
async fn system(config: &ProviderConfig) -> System {
    let request = RequestConfig { provider: "p".into(), model: "m".into(), ..RequestConfig::default() };
    let profile = AgentProfile { config: request, ..AgentProfile::default() };
    Builder::new().provider("p", adapter(config)).agent("a", profile).start(Arc::new(MemoryStore::new())).await.unwrap()
}

async fn agent(system: &System) -> AgentHandle {
    system.create(CreateSession { agent: "a".to_owned(), ..CreateSession::default() }).await.unwrap()
}

async fn send(agent: &AgentHandle) {
    let content = vec![Block::text("hello")];
    agent.submit(Submit { kind: SubmitKind::Send, id: None, content, source: None }).await.unwrap();
}

/// How the one turn of an agent ended.
async fn end(system: &System, agent: &AgentHandle) -> TurnReason {
    assert_eq!(agent.when_idle().await, None);
    let log = system.events(agent.session(), Seq(0), 1_000).await.unwrap();
    let ends = log.iter().filter_map(|event| match &event.body.data {
        EventData::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    });
    let mut ends: Vec<TurnReason> = ends.collect();
    assert_eq!(ends.len(), 1);
    ends.remove(0)
}

/// L-20, scenario 99: a cancel of a turn closes its connection, so that the provider stops, long before
/// anybody would notice. A machine that is busy may be late once; it is not late most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_turn_closes_its_connection() {
    for stage in 0..3 {
        let mut server = Server::start(move |_, _, mut connection| async move {
            if stage > 0 {
                connection.stream().await;
            }
            if stage > 1 {
                connection.send(OPENAI_BEGINNING).await;
            }
            connection.closed().await;
        })
        .await;
        let system = system(&config("openai", &server.url)).await;
        let mut took = Vec::new();
        for _ in 0..7 {
            let agent = agent(&system).await;
            send(&agent).await;
            server.open.wait_for(|open| *open == 1).await.unwrap();
            let from = Instant::now();
            agent.cancel(Cause::User, KeptItems::Clear).await.unwrap();
            server.quiet().await;
            took.push(from.elapsed());
            assert_eq!(end(&system, &agent).await, TurnReason::Aborted { cause: Cause::User });
        }
        took.sort();
        println!("stage {stage}: closed after {took:?}");
        assert!(took[3] < Duration::from_millis(250), "stage {stage}: {took:?}");
        system.shutdown(Duration::ZERO).await;
    }
}

/// What the server of the crowd remembers: when it takes requests again, and what came before that.
#[derive(Default)]
struct Limit {
    closed_until: Option<Instant>,
    refused: usize,
    /// Requests that came while everybody had been told to wait, by refusal.
    early: Vec<usize>,
}

impl Limit {
    /// One request in so many is refused. By number and not by time, so that a slow machine sees no more refusals.
    const EVERY: usize = 40;
    const WAIT: Duration = Duration::from_millis(100);

    /// Whether the request of this number is taken now.
    fn take(&mut self, number: usize) -> bool {
        let now = Instant::now();
        if self.closed_until.is_some_and(|at| now < at) {
            self.refused += 1;
            *self.early.last_mut().unwrap() += 1;
            return false;
        }
        if number % Self::EVERY == 8 {
            self.refused += 1;
            self.closed_until = Some(now + Self::WAIT);
            self.early.push(0);
            return false;
        }
        true
    }
}

/// BR-100: a fleet on one account makes no more requests than its gate lets through: no more at once than
/// `max_concurrent`, and none while the provider wants everybody to wait, but for those that were on their way.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_stays_within_its_gate() {
    const AGENTS: usize = 200;
    const AT_ONCE: usize = 8;
    let limit = Arc::<Mutex<Limit>>::default();
    let judge = Arc::clone(&limit);
    let server = Server::start(move |number, _, mut connection| {
        let taken = judge.lock().unwrap().take(number);
        async move {
            if taken {
                connection.stream().await;
                connection.send(OPENAI).await;
            } else {
                let headers = format!("retry-after-ms: {}\r\n", Limit::WAIT.as_millis());
                connection.answer("429 Too Many Requests", &headers, "{\"error\":{\"message\":\"slow\"}}").await;
            }
        }
    })
    .await;
    let system = system(&ProviderConfig { max_concurrent: Some(AT_ONCE), ..config("openai", &server.url) }).await;
    let mut agents = Vec::new();
    for _ in 0..AGENTS {
        agents.push(agent(&system).await);
    }
    futures::future::join_all(agents.iter().map(send)).await;
    for agent in &agents {
        assert_eq!(end(&system, agent).await, TurnReason::Completed);
    }
    system.shutdown(Duration::ZERO).await;
    let limit = limit.lock().unwrap();
    println!("{} requests, {} refused, early by refusal: {:?}", server.requests(), limit.refused, limit.early);
    assert!(!limit.early.is_empty(), "nobody was refused");
    assert_eq!(server.requests(), AGENTS + limit.refused);
    assert!(limit.early.iter().all(|early| *early < AT_ONCE), "{:?}", limit.early);
    assert!(limit.refused * 2 < AGENTS, "{} refusals", limit.refused);
}
