//! K. Setting up, waiting and putting away.

use super::{
    bench::{Bench, create, ends, submit},
    model::Say,
    parts::section,
};
use everturn_actors::{
    handle::{Committed, DisposeMode, SubmitKind},
    protocol::Phase,
    system::{CreateSession, SessionError},
};
use everturn_storage::{event::EventData, ids::SessionId, store::Store};

/// Scenario 227, O-4: a waiter is not released when an observer of the last end of a turn sends more.
#[tokio::test(start_paused = true)]
async fn a_waiter_follows_what_observers_send() {
    let bench = Bench::start(vec![Say::text("A1"), Say::text("A2").gated()]).await;
    let (_, mut committed) = bench.agent.subscribe().await;
    let agent = bench.agent.clone();
    let observer = tokio::spawn(async move {
        while let Some(Committed::Event(event)) = committed.recv().await {
            if matches!(event.body.data, EventData::TurnEnd(_)) {
                return submit(&agent, SubmitKind::Send, "two").await.unwrap();
            }
        }
        panic!("no turn ended");
    });
    bench.send("one").await;
    let agent = bench.agent.clone();
    let waiter = tokio::spawn(async move { agent.when_idle().await });
    observer.await.unwrap();
    bench.model.was_asked(2).await;
    assert!(!waiter.is_finished(), "the waiter was released between two turns");
    bench.model.go();
    assert_eq!(waiter.await.unwrap(), None);
    assert_eq!(ends(&bench.finish().await), ["completed", "completed"]);
}

/// Scenario 232: during a disposal a wake and a send are refused, and nothing runs because of them.
#[tokio::test(start_paused = true)]
async fn nothing_is_latched_during_a_disposal() {
    let mut bench = Bench::start(vec![Say::text("A1").gated(), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.send("two").await;
    bench.disk.hold("turn/end");
    bench.model.go();
    bench.disk.held().await;
    let agent = bench.agent.clone();
    let disposal = tokio::spawn(async move { agent.dispose(DisposeMode::Suspend).await });
    while bench.agent.status().await.phase != Phase::Disposing {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.agent.wake().await.unwrap_err().code(), "DISPOSED");
    let refused = submit(&bench.agent, SubmitKind::Send, "three").await.unwrap_err();
    assert_eq!(refused.code(), "DISPOSED");
    bench.disk.release();
    disposal.await.unwrap();
    assert_eq!(bench.model.asked().len(), 1, "something ran behind the disposal");
    bench.agent = bench.system.open(&SessionId::trusted("s")).await.unwrap();
    bench.idle().await;
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["completed", "completed"]);
    let queued = log.iter().filter(|event| event.body.data.type_name() == "inbox/queued").count();
    assert_eq!(queued, 2);
}

/// Scenario 233, A-2, A-3, scenario 60: a session whose agent cannot be made, or whose creation is given up, is not
/// there and keeps no lease: the same id can be had.
#[tokio::test(start_paused = true)]
async fn a_failed_creation_leaves_nothing() {
    let bench = Bench::start(vec![]).await;
    bench.town.change("b", |profile| profile.sections = vec![section("role", "x"), section("role", "y")]);
    bench.town.change("c", |profile| profile.limits.max_parallel_tool_calls = 0);
    let id = SessionId::trusted("t");
    for agent in ["b", "c"] {
        let order = CreateSession { id: Some(id.clone()), agent: agent.to_owned(), ..CreateSession::default() };
        let refused = bench.system.create(order).await.unwrap_err();
        assert!(matches!(&refused, SessionError::InvalidAgent { agent: named, .. } if named == agent), "{refused}");
    }
    assert!(bench.system.live(&id).is_none());
    assert_eq!(bench.disk.memory.header(&id), Ok(None));
    assert_eq!(bench.system.open(&id).await.unwrap_err().code(), "NO_SESSION");

    // The caller goes away while the header is on its way to the disk.
    bench.disk.hold("session/opened");
    let (system, order) =
        (bench.system.clone(), CreateSession { id: Some(id.clone()), agent: "a".to_owned(), ..Default::default() });
    let creation = tokio::spawn(async move { system.create(order).await.map(|_| ()) });
    bench.disk.held().await;
    creation.abort();
    assert!(creation.await.unwrap_err().is_cancelled());
    bench.disk.release();
    let agent = bench.system.open(&id).await.unwrap();
    submit(&agent, SubmitKind::Send, "hello").await.unwrap();
    assert_eq!(agent.when_idle().await, None);
    create(&bench.system, "u", "a").await;
    bench.finish().await;
}
