//! I and K: deaths of actors and of the process.

use super::*;
use everturn_storage::store::Store as _;

/// Scenarios 189, 192 and R17: what was pending at a crash runs after boot, in order; a second boot repairs nothing.
#[tokio::test(start_paused = true)]
async fn a_crash_loses_nothing_that_was_accepted() {
    let first = bench().await;
    let agent = first.agent().await;
    first.profiles.script([Play::hang("so far")]);
    for id in ["a", "b", "c"] {
        send(&agent, id).await;
    }
    first.profiles.model.dispatched(1).await;
    let second = boot(first.store.crash(None), Arc::default(), "two").await;
    let report = second.system.booted().await;
    assert_eq!((report.touched, report.repaired, report.refused), (1, vec![session()], vec![]));
    let agent = second.system.open(&session()).await.expect("opens");
    agent.when_idle().await;
    let log = second.log().await;
    assert_eq!(turns(&log), ["turn/end 1 interrupted", "turn/end 2 completed", "turn/end 3 completed"]);
    let third = boot(second.store.crash(None), Arc::default(), "three").await;
    let report = third.system.booted().await;
    assert_eq!((report.touched, report.repaired.len()), (0, 0));
    assert_eq!(third.log().await, log, "reading opens nothing for writing");
}

/// Scenarios 30, 238, 239, 203: whichever actor dies, the session goes on through repair, fenced by a new epoch, and
/// nothing that was accepted is lost or runs twice.
#[tokio::test(start_paused = true)]
async fn the_death_of_an_actor_is_repaired() {
    for kind in [ActorKind::Agent, ActorKind::Driver, ActorKind::Journal] {
        let bench = bench().await;
        let agent = bench.agent().await;
        bench.profiles.script([Play::hang("so far"), Play::text("two"), Play::text("three")]);
        for id in ["a", "b", "c"] {
            send(&agent, id).await;
        }
        bench.profiles.model.dispatched(1).await;
        let waiter = agent.when_idle();
        tokio::pin!(waiter);
        assert!(futures::poll!(&mut waiter).is_pending());
        bench.system.testing_kill(&session(), kind);
        assert!(waiter.await.is_some(), "who waits is told of the fault");
        // The same handle leads to the new incarnation.
        assert_eq!(agent.await_item(&item("c")).await, ended(3, TurnReason::Completed));
        let log = bench.log().await;
        assert_eq!(turns(&log), ["turn/end 1 interrupted", "turn/end 2 completed", "turn/end 3 completed"], "{kind:?}");
        assert!(log.contains(&"session/opened Repair 2".to_owned()));
    }
}

/// The death of the journal store ends every session's incarnation and loses nothing that was accepted.
#[tokio::test(start_paused = true)]
async fn the_death_of_the_journal_store_is_repaired() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::hang("so far")]);
    send(&agent, "a").await;
    bench.profiles.model.dispatched(1).await;
    send(&agent, "b").await;
    bench.system.testing_kill_store();
    assert_eq!(agent.await_item(&item("b")).await, ended(2, TurnReason::Completed));
    assert_eq!(turns(&bench.log().await), ["turn/end 1 interrupted", "turn/end 2 completed"]);
    let mut readiness = bench.system.readiness();
    readiness.wait_for(|readiness| readiness.reasons.is_empty()).await.expect("ready again");
}

/// BR-154: sends in flight while the agent dies are each accepted once.
#[tokio::test(start_paused = true)]
async fn sends_around_a_death_are_accepted_once() {
    for yields in 0..20 {
        let bench = bench().await;
        let agent = bench.agent().await;
        let sends = (0..20).map(|number| {
            let agent = agent.clone();
            tokio::spawn(async move { send(&agent, &format!("n{number}")).await })
        });
        let sends: Vec<_> = sends.collect();
        for _ in 0..yields * 5 {
            tokio::task::yield_now().await;
        }
        bench.system.testing_kill(&session(), ActorKind::Agent);
        for receipt in futures::future::join_all(sends).await {
            let receipt = receipt.expect("accepted");
            let ending = agent.await_item(&receipt.item_id).await.expect("known");
            assert!(matches!(ending, Awaited::Ended { .. }), "{ending:?}");
        }
        let log = bench.log().await;
        assert_eq!(log.iter().filter(|line| line.starts_with("inbox/queued")).count(), 20);
    }
}

/// BR-128: a session that dies again and again stays down, and says why; others run.
#[tokio::test(start_paused = true)]
async fn a_session_that_keeps_dying_stays_down() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script(std::iter::repeat_n(Play::hang(""), 20));
    send(&agent, "a").await;
    let mut fault = None;
    for round in 0..20 {
        if agent.status().await.phase == crate::protocol::Phase::Faulted {
            fault = agent.when_idle().await;
            break;
        }
        bench.system.testing_kill(&session(), ActorKind::Driver);
        tokio::time::advance(Duration::from_millis(1)).await;
        drop(agent.when_idle().await);
        assert!(round < 19, "it stays up");
    }
    let why = fault.expect("faulted");
    assert!(why.contains("in a row"), "{why}");
    let refused = agent.submit(submit(SubmitKind::Send, "b")).await.expect_err("refused");
    assert_eq!(refused.code(), "FAULTED");
    let other = CreateSession { agent: "default".to_owned(), ..CreateSession::default() };
    assert!(bench.system.create(other).await.is_ok());
}

/// A-4, B-2, scenario 197: a damaged session is refused with its place, can be read up to there, and others open.
#[tokio::test(start_paused = true)]
async fn a_damaged_session_harms_no_other() {
    let first = bench().await;
    let agent = first.agent().await;
    first.profiles.script([Play::text("x"), Play::hang("")]);
    send(&agent, "a").await;
    agent.when_idle().await;
    send(&agent, "b").await;
    let other = SessionId::trusted("other");
    let create = CreateSession { id: Some(other.clone()), agent: "default".to_owned(), ..Default::default() };
    let healthy = first.system.create(create).await.expect("created");
    first.profiles.model.dispatched(2).await;
    healthy.submit(submit(SubmitKind::Inject, "i")).await.expect("accepted");
    let store = first.store.crash(None);
    assert!(store.flip_bit(&session(), Seq(2), 300));
    let second = boot(store, Arc::default(), "two").await;
    let report = second.system.booted().await;
    assert_eq!(report.touched, 2);
    let (refused, error) = &report.refused[0];
    assert_eq!(*refused, session());
    assert!(matches!(error, SessionError::Corrupt { seq: Seq(2), .. }), "{error:?}");
    assert!(second.system.live(&other).is_some());
    let events = second.system.events(&session(), Seq(0), 100).await.expect("reads the whole part");
    assert_eq!(events.len(), 2);
    assert!(second.system.readiness().borrow().reasons.is_empty());
    assert!(second.store.last_seq(&session()).expect("reads") > Some(Seq(2)), "nothing was cut");
}

/// R17, scenario 195: with `park` what waits at boot waits for the first wake.
#[tokio::test(start_paused = true)]
async fn what_waits_at_boot_may_be_parked() {
    let first = bench().await;
    let agent = first.agent().await;
    first.profiles.script([Play::hang("")]);
    send(&agent, "a").await;
    send(&agent, "b").await;
    first.profiles.model.dispatched(1).await;
    let profiles = Arc::<TestProfiles>::default();
    profiles.change(|profile| profile.limits.boot_pending = crate::limits::BootPending::Park);
    let second = boot(first.store.crash(None), profiles, "two").await;
    second.system.booted().await;
    let agent = second.system.live(&session()).expect("opened at boot");
    assert_eq!(agent.when_idle().await, None);
    assert!(agent.status().await.parked);
    agent.wake().await.expect("woken");
    assert_eq!(agent.await_item(&item("b")).await, ended(2, TurnReason::Completed));
}

/// Scenarios 25 and 36: a failed CP-T is reported, loses nothing, and the next turn begins only behind it.
#[tokio::test(start_paused = true)]
async fn a_failed_turn_checkpoint_is_survived() {
    let bench = bench().await;
    bench.profiles.change(|profile| profile.checkpoint = crate::limits::CheckpointPolicy::Turn);
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "one")]);
    let mut frames = agent.frames().await;
    send(&agent, "a").await;
    send(&agent, "b").await;
    gate.reached_by(1).await;
    bench.store.fail_sync(1, everturn_storage::memory::Fault::Io);
    bench.store.lose_on_reopen(None);
    gate.open();
    assert_eq!(agent.await_item(&item("b")).await, ended(2, TurnReason::Completed));
    assert_eq!(turns(&bench.log().await), ["turn/end 1 completed", "turn/end 2 completed"]);
    let mut notices = Vec::new();
    while let Ok(frame) = frames.try_recv() {
        if let crate::handle::Frame::Notice { code, .. } = frame {
            notices.push(code);
        }
    }
    assert!(notices.contains(&"CHECKPOINT".to_owned()), "{notices:?}");
    // All of it is durable by now: what the disk had lost was written again.
    assert_eq!(bench.store.durable_seq(&session()), agent.snapshot().await.expect("lives").durable);
}

/// Scenario 196, B-1, Z1: a tail that was never acknowledged and cannot be read is cut, kept aside and reported, once.
#[tokio::test(start_paused = true)]
async fn a_torn_tail_is_cut_once() {
    let first = bench().await;
    let agent = first.agent().await;
    agent.submit(submit(SubmitKind::Inject, "i")).await.expect("accepted");
    let gate = first.store.gate_syncs();
    let late = tokio::spawn({
        let agent = agent.clone();
        async move { agent.submit(submit(SubmitKind::Inject, "late")).await }
    });
    // Written, which is later than logged.
    while everturn_storage::store::Store::last_seq(&first.store, &session()) != Ok(Some(Seq(2))) {
        tokio::task::yield_now().await;
    }
    late.abort();
    let store = first.store.kill();
    gate.open();
    assert!(store.flip_bit(&session(), Seq(2), 400));
    let second = boot(store, Arc::default(), "two").await;
    let report = second.system.booted().await;
    assert_eq!((report.refused, report.reports.len()), (vec![], 1));
    assert!(report.reports[0].contains("cut at event 2"), "{:?}", report.reports);
    let agent = second.system.live(&session()).expect("opened at boot");
    assert_eq!(agent.pending().await.next_step.len(), 1);
    let third = boot(second.store.crash(None), Arc::default(), "three").await;
    let report = third.system.booted().await;
    assert_eq!((report.refused, report.reports), (vec![], Vec::<String>::new()));
    assert_eq!(third.log().await.len(), 3, "opened, i, and the marker of the second process");
}

/// Watchers are told that nothing runs when a death ended a turn.
#[tokio::test(start_paused = true)]
async fn watchers_are_told_of_a_death() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::hang("")]);
    let mut frames = agent.frames().await;
    send(&agent, "a").await;
    bench.profiles.model.dispatched(1).await;
    bench.system.testing_kill(&session(), ActorKind::Driver);
    agent.await_item(&item("a")).await.expect("ends");
    agent.when_idle().await;
    let mut statuses = Vec::new();
    while let Ok(frame) = frames.try_recv() {
        if let crate::handle::Frame::Status { status } = frame {
            statuses.push(status);
        }
    }
    assert_eq!(statuses, [Visible::Running, Visible::Idle]);
}
