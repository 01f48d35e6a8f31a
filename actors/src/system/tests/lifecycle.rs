//! K: lifecycle, idleness, edits.

use super::*;
use everturn_storage::event::Target;

/// Scenarios 228, 229, 231: a disposal aborts the turn, all calls share one completion, and nothing is taken after it.
#[tokio::test(start_paused = true)]
async fn a_disposal_aborts_and_ends() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::hang("so far")]);
    send(&agent, "a").await;
    bench.profiles.model.dispatched(1).await;
    send(&agent, "b").await;
    tokio::join!(agent.dispose(DisposeMode::Suspend), agent.dispose(DisposeMode::Suspend));
    assert_eq!(agent.submit(submit(SubmitKind::Send, "c")).await, Err(OpError::Disposed));
    assert_eq!(agent.when_idle().await, None);
    assert_eq!(agent.status().await.visible, Visible::Disposed);
    assert!(bench.system.live(&session()).is_none());
    let log = bench.log().await;
    assert_eq!(turns(&log), ["turn/end 1 aborted Disposed"]);
    // Scenario 230: what was suspended runs when the session is opened again.
    let agent = bench.system.open(&session()).await.expect("opens");
    agent.when_idle().await;
    assert_eq!(turns(&bench.log().await), ["turn/end 1 aborted Disposed", "turn/end 2 completed"]);
}

/// Scenario 230: a disposal that discards leaves nothing behind that could run.
#[tokio::test(start_paused = true)]
async fn a_disposal_discards() {
    let bench = bench().await;
    let agent = bench.agent().await;
    agent.submit(submit(SubmitKind::Inject, "i")).await.expect("accepted");
    agent.dispose(DisposeMode::Discard).await;
    let log = bench.log().await;
    assert_eq!(log.last().map(String::as_str), Some("inbox/removed [\"i\"] Disposed"));
    assert_eq!(bench.store.attention(), Ok(Vec::new()));
}

/// Scenarios 234 and 236, Z2: edits are durable and decide what is claimed.
#[tokio::test(start_paused = true)]
async fn edits_decide_what_is_claimed() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "x")]);
    for id in ["a", "b", "c", "d"] {
        send(&agent, id).await;
    }
    gate.reached_by(1).await;
    agent.edit(item("b"), vec![Block::text("another")]).await.expect("edited");
    agent.reorder(Target::NextTurn, ["d", "c", "b"].map(item).to_vec()).await.expect("reordered");
    agent.move_item(item("c"), Target::NextStep).await.expect("moved");
    let wrong = agent.reorder(Target::NextTurn, ["d"].map(item).to_vec()).await.expect_err("no permutation");
    assert_eq!(wrong.code(), "INVALID");
    assert_eq!(agent.edit(item("a"), vec![Block::text("x")]).await, Err(OpError::UnknownItem(item("a"))));
    assert_eq!(agent.remove([item("d"), item("x")].to_vec()).await, Err(OpError::UnknownItem(item("x"))));
    gate.open();
    agent.when_idle().await;
    let log = bench.log().await;
    let claims: Vec<&str> = log.iter().filter_map(|line| line.strip_prefix("inbox/claimed ")).collect();
    assert_eq!(claims, ["[\"a\"]", "[\"c\"]", "[\"d\"]", "[\"b\"]"]);
    assert!(log.contains(&"user/message another".to_owned()));
}

/// Scenario 209, Y-7: a running session is not deleted; afterwards nothing of it is left.
#[tokio::test(start_paused = true)]
async fn a_session_is_deleted_when_idle() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "x")]);
    send(&agent, "a").await;
    gate.reached_by(1).await;
    assert_eq!(bench.system.delete(&session()).await, Err(SessionError::Busy(session())));
    gate.open();
    agent.when_idle().await;
    bench.system.delete(&session()).await.expect("deleted");
    assert_eq!(bench.system.open(&session()).await.map(|_| ()), Err(SessionError::Unknown(session())));
    assert_eq!(bench.system.delete(&session()).await, Err(SessionError::Unknown(session())));
    assert_eq!(bench.store.header(&session()), Ok(None));
    assert_eq!(bench.system.sessions(None, 10).await, Ok(Vec::new()));
    bench.agent().await;
}

/// ids are unique, unknown ones are unknown, and agents must be configured.
#[tokio::test(start_paused = true)]
async fn sessions_are_created_once() {
    let bench = bench().await;
    bench.agent().await;
    let create = |agent: &str| CreateSession { id: Some(session()), agent: agent.to_owned(), ..Default::default() };
    assert_eq!(bench.system.create(create("default")).await.map(|_| ()), Err(SessionError::Exists(session())));
    let other = bench.system.create(create("other")).await.map(|_| ());
    assert_eq!(other, Err(SessionError::NoAgent("other".to_owned())));
    let unknown = SessionId::trusted("x");
    assert_eq!(bench.system.open(&unknown).await.map(|_| ()), Err(SessionError::Unknown(unknown.clone())));
    assert!(bench.system.events(&unknown, Seq(0), 1).await.is_err());
    // Also when it is not live.
    bench.system.live(&session()).expect("live").dispose(DisposeMode::Suspend).await;
    assert_eq!(bench.system.create(create("default")).await.map(|_| ()), Err(SessionError::Exists(session())));
    let listed = bench.system.sessions(None, 10).await.expect("lists");
    assert_eq!(listed.len(), 1);
}

/// Z15, scenario 230: a shutdown lets the open step end, suspends what waits, and the next process runs it.
#[tokio::test(start_paused = true)]
async fn a_shutdown_suspends() {
    let first = bench().await;
    let agent = first.agent().await;
    let gate = Gate::default();
    first.profiles.script([held(&gate, "in time")]);
    send(&agent, "a").await;
    gate.reached_by(1).await;
    send(&agent, "b").await;
    let down = tokio::spawn({
        let system = first.system.clone();
        async move { system.shutdown(Duration::from_secs(20)).await }
    });
    while agent.wake().await != Err(OpError::Disposed) {
        tokio::task::yield_now().await;
    }
    assert_eq!(agent.submit(submit(SubmitKind::Send, "late")).await, Err(OpError::Disposed));
    gate.open();
    down.await.expect("no panic");
    let second = boot(first.store.kill(), Arc::default(), "two").await;
    second.system.booted().await;
    let agent = second.system.open(&session()).await.expect("opens");
    agent.when_idle().await;
    let log = second.log().await;
    assert_eq!(turns(&log), ["turn/end 1 completed", "turn/end 2 completed"]);
    assert!(!log.iter().any(|line| line.contains("interrupted")));
}

/// Z15: a step that does not end within the drain time is aborted.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_ever() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::hang("so far")]);
    send(&agent, "a").await;
    bench.profiles.model.dispatched(1).await;
    bench.system.shutdown(Duration::from_secs(20)).await;
    let second = boot(bench.store.kill(), Arc::default(), "two").await;
    assert_eq!(second.system.booted().await.touched, 0);
    let agent = second.system.open(&session()).await.expect("opens");
    agent.when_idle().await;
    assert_eq!(turns(&second.log().await), ["turn/end 1 aborted Disposed"]);
}

/// Scenario 116: maintenance is exclusive, latches sends, and is cancelled like a turn.
#[tokio::test(start_paused = true)]
async fn maintenance_is_exclusive() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let inner = agent.clone();
    let outcome = agent.maintain(async move |signal| {
        send(&inner, "a").await;
        let busy = inner.maintain(async |_| ()).await;
        assert_eq!(busy, Err(OpError::Busy));
        assert_eq!(inner.status().await.phase, crate::protocol::Phase::Maintenance);
        cancel(&inner, KeptItems::Park).await;
        signal.wait().await;
        send(&inner, "b").await;
    });
    assert_eq!(outcome.await, Err(OpError::Cancelled));
    agent.when_idle().await;
    assert_eq!(turns(&bench.log().await), ["turn/end 1 completed", "turn/end 2 completed"]);
}
