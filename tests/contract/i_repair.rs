//! I. Deaths during repair, and who may open a session.

use super::{
    bench::{Bench, boot, boot_in, ends, submit, verified},
    disk::Disk,
    model::Say,
    parts::Scripted,
};
use everturn_actors::{handle::SubmitKind, limits::BootPending, ports::ToolOutput, system::CreateSession};
use everturn_storage::{
    event::{Event, EventData},
    ids::{Seq, SessionId},
    json, load,
    memory::MemoryStore,
    store::{Commit, Store},
};
use std::{sync::Arc, time::Duration};

fn session() -> SessionId {
    SessionId::trusted("s")
}

/// The world of a process that died with one call running, one not started, and an item that waits; what waits is
/// parked at boot, so that a repaired log stays as repair left it.
async fn interrupted() -> (Bench, MemoryStore) {
    let tool = Scripted::new("work", |_, ctx| async move {
        ctx.signal.wait().await;
        Ok(ToolOutput::text("stopped"))
    });
    let says = vec![Say::calls(&[("c1", "work", "{}"), ("c2", "work", "{}")])];
    let bench = Bench::with(says, |profile| {
        profile.tools = vec![tool.share()];
        profile.limits.boot_pending = BootPending::Park;
    })
    .await;
    bench.send("one").await;
    bench.logged("tool/call", 1).await;
    bench.send("two").await;
    let memory = bench.disk.memory.crash(None);
    bench.system.shutdown(Duration::ZERO).await;
    (bench, memory)
}

/// The whole log as it would be exported.
fn exported(memory: &MemoryStore) -> Vec<String> {
    let events = load::read_events(memory, &session(), Seq(0), 10_000).unwrap();
    events.iter().map(|event| json::event_line(&session(), event)).collect()
}

/// Boots on a store, waits for repair, and ends in order.
async fn repaired(bench: &Bench, memory: MemoryStore, life: u32) -> Vec<String> {
    let disk = Arc::new(Disk::new(memory));
    let system = boot(&disk, &bench.town, life).await;
    let report = system.booted().await;
    assert_eq!(report.refused, vec![]);
    system.shutdown(Duration::ZERO).await;
    exported(&disk.memory.kill())
}

/// A store with the same bytes.
fn copied(from: &MemoryStore) -> MemoryStore {
    let copy = MemoryStore::new();
    let header = from.header(&session()).unwrap().map(Arc::new);
    let mut next = Seq(0);
    loop {
        let page = from.read(&session(), next, 1_000, usize::MAX).unwrap();
        if page.is_empty() {
            copy.sync().unwrap();
            return copy;
        }
        for stored in page {
            let decoded = everturn_storage::codec::decode_commit(&session(), stored.first, &stored.bytes).unwrap();
            next = decoded.events.last().unwrap().seq.next();
            let commit = Commit {
                session: session(),
                epoch: decoded.epoch,
                first: stored.first,
                count: u32::try_from(decoded.events.len()).unwrap(),
                bytes: stored.bytes.clone().into(),
                header: header.clone().filter(|_| stored.first == Seq(0)),
                summary: None,
            };
            copy.commit(&[commit]).unwrap();
        }
        let state = load::inspect(from, &session()).unwrap();
        copy.put_summary(&state.state.summary(&state.header)).unwrap();
    }
}

/// Scenario 193, B-11: a death at any write of the repair leaves the old log or the repaired one, and the next process
/// comes to the same bytes.
#[tokio::test(start_paused = true)]
async fn a_death_during_repair_changes_nothing() {
    let (bench, memory) = interrupted().await;
    let old = exported(&memory);
    let wanted = repaired(&bench, copied(&memory), 1).await;
    assert!(wanted.len() > old.len() && wanted[..old.len()] == old, "repair does more than append");

    // The disk takes nothing of it.
    let full = copied(&memory);
    full.set_full(true);
    let disk = Arc::new(Disk::new(full));
    let (tried, system) = (disk.memory.counts().groups, boot(&disk, &bench.town, 2).await);
    while disk.memory.counts().groups == tried {
        tokio::task::yield_now().await;
    }
    let left = disk.memory.kill();
    system.shutdown(Duration::ZERO).await;
    assert_eq!(exported(&left), old);
    assert_eq!(repaired(&bench, left, 3).await, wanted);

    // It was written and not synced: power is lost with all, some or none of it, or the process alone dies.
    for (life, keep) in [(4, None), (6, Some(1)), (8, Some(2)), (10, Some(3)), (12, Some(4))] {
        let left = killed_in_sync(&bench, &memory, life, |store| store.crash(keep)).await;
        let seen = exported(&left);
        assert!(seen == old || seen == wanted, "half a repair: {seen:#?}");
        assert_eq!(repaired(&bench, left, life + 1).await, wanted);
    }
    let left = killed_in_sync(&bench, &memory, 14, MemoryStore::kill).await;
    assert_eq!(exported(&left), wanted);
    assert_eq!(repaired(&bench, left.crash(None), 15).await, wanted);

    // It was durable.
    let last = copied(&memory);
    assert_eq!(repaired(&bench, last.clone(), 16).await, wanted);
    verified(&session(), &load::read_events(&last.crash(None), &session(), Seq(0), 10_000).unwrap());
}

/// Boots up to the sync of the repair append, and dies there.
async fn killed_in_sync(
    bench: &Bench,
    memory: &MemoryStore,
    life: u32,
    die: impl FnOnce(&MemoryStore) -> MemoryStore,
) -> MemoryStore {
    let disk = Arc::new(Disk::new(copied(memory)));
    disk.hold("turn/end");
    let system = boot(&disk, &bench.town, life).await;
    disk.held().await;
    let left = die(&disk.memory);
    disk.release();
    system.shutdown(Duration::ZERO).await;
    left
}

/// Scenario 194, B-10: two machines with other clocks and other chances repair copies of a log to the same bytes.
#[tokio::test(start_paused = true)]
async fn two_machines_repair_alike() {
    let (bench, memory) = interrupted().await;
    let mut stored = Vec::new();
    for (name, start_ms) in [("here", -5_000), ("there", 9_000_000)] {
        let disk = Arc::new(Disk::new(copied(&memory)));
        let world = Arc::new(super::j_projection::Clock::new(name, start_ms, 977));
        let system = boot_in(&disk, &bench.town, world).await;
        assert_eq!(system.booted().await.repaired, [session()]);
        system.shutdown(Duration::ZERO).await;
        let memory = disk.memory.kill();
        let bytes: Vec<_> = memory.read(&session(), Seq(0), 1_000, usize::MAX).unwrap();
        stored.push((exported(&memory), bytes.into_iter().map(|record| record.bytes).collect::<Vec<_>>()));
    }
    assert_eq!(stored[0].0, stored[1].0);
    assert!(stored[0].1 == stored[1].1, "the records differ");
    let last: Vec<_> = stored[0].0.iter().rev().take(2).collect();
    assert!(last.iter().any(|line| line.contains("interrupted")), "{last:?}");
}

/// Scenario 202, W-2, W-3: a session has one writer in a process, whoever opens it and how often; it can be read
/// meanwhile, and what needs it alone is refused.
#[tokio::test(start_paused = true)]
async fn one_writer_for_one_session() {
    let mut bench = Bench::start(vec![Say::text("A1"), Say::text("A2").gated()]).await;
    bench.send("one").await;
    bench.idle().await;
    bench.restart().await;
    let (system, id) = (bench.system.clone(), session());
    let (first, second) = tokio::join!(system.open(&id), system.open(&id));
    let opened =
        |log: &[Arc<Event>]| log.iter().filter(|event| matches!(event.body.data, EventData::SessionOpened(_))).count();
    assert_eq!(opened(&bench.log().await), 2, "a second writer opened it");
    submit(&first.unwrap(), SubmitKind::Send, "two").await.unwrap();
    bench.model.was_asked(2).await;
    let seen = second.unwrap().status().await;
    assert_eq!(seen.turn.map(|turn| turn.0), Some(2), "the second handle leads to another agent");
    let again = CreateSession { id: Some(id.clone()), agent: "a".to_owned(), ..CreateSession::default() };
    assert_eq!(system.create(again).await.unwrap_err().code(), "SESSION_EXISTS");
    assert_eq!(system.delete(&id).await.unwrap_err().code(), "SESSION_BUSY");
    let writes = bench.disk.memory.counts().writes;
    let shown = load::inspect(&bench.disk.memory, &id).unwrap();
    assert_eq!((shown.defect, shown.state.open_turn().map(|turn| turn.turn.0)), (None, Some(2)));
    assert_eq!(bench.disk.memory.counts().writes, writes);
    bench.model.go();
    assert_eq!(ends(&bench.finish().await), ["completed", "completed"]);
}

/// Scenario 206: the disk never takes the end of a turn. Behind a restart the turn is interrupted and the next item
/// runs.
#[tokio::test(start_paused = true)]
async fn an_end_that_the_disk_never_takes() {
    let mut bench = Bench::start(vec![Say::text("A1").gated(), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.send("two").await;
    bench.disk.memory.set_full(true);
    bench.model.go();
    let refused = loop {
        if let Err(error) = submit(&bench.agent, SubmitKind::Send, "three").await {
            break error;
        }
    };
    assert_eq!(refused.code(), "STORAGE");
    assert!(!bench.system.readiness().borrow().reasons.is_empty());
    bench.die(true).await;
    bench.idle().await;
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["interrupted", "completed"]);
}
