//! D and E: steer, inject, cancel.

use super::*;

/// Scenarios 65 and 66: a steer while idle is a turn of its own.
#[tokio::test(start_paused = true)]
async fn a_steer_while_idle_is_a_send() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let (one, two) =
        tokio::join!(agent.submit(submit(SubmitKind::Steer, "a")), agent.submit(submit(SubmitKind::Steer, "b")));
    assert!(one.is_ok() && two.is_ok());
    agent.when_idle().await;
    let log = bench.log().await;
    assert_eq!(turns(&log), ["turn/end 1 completed", "turn/end 2 completed"]);
}

/// Scenarios 68, 71, 75 and Z16: a steer joins the open turn, a send does not; with steering off neither does.
#[tokio::test(start_paused = true)]
async fn a_steer_joins_the_open_turn() {
    for steering in [true, false] {
        let bench = bench().await;
        let agent = bench.agent().await;
        bench.profiles.change(|profile| profile.steering = steering);
        let gate = Gate::default();
        bench.profiles.script([held(&gate, "one")]);
        send(&agent, "a").await;
        gate.reached_by(1).await;
        send(&agent, "b").await;
        agent.submit(submit(SubmitKind::Steer, "c")).await.expect("accepted");
        gate.open();
        agent.when_idle().await;
        let log = bench.log().await;
        let claims: Vec<&String> = log.iter().filter(|line| line.starts_with("inbox/claimed")).collect();
        let wanted = if steering { ["[\"a\"]", "[\"c\"]", "[\"b\"]"] } else { ["[\"a\"]", "[\"b\"]", "[\"c\"]"] };
        assert_eq!(claims, wanted.map(|ids| format!("inbox/claimed {ids}")).iter().collect::<Vec<_>>());
        assert_eq!(turns(&log).len(), if steering { 2 } else { 3 });
    }
}

/// Scenarios 20, 76, 77 and 79: an inject wakes nobody, survives, and is claimed before the next send.
#[tokio::test(start_paused = true)]
async fn an_inject_waits_for_the_next_claim() {
    let first = bench().await;
    let agent = first.agent().await;
    let receipt = agent.submit(submit(SubmitKind::Inject, "i")).await.expect("accepted");
    assert!(!receipt.woke);
    assert_eq!(agent.when_idle().await, None);
    assert_eq!(agent.snapshot().await.expect("lives").view.last_turn(), Turn(0));
    let second = boot(first.store.crash(None), Arc::default(), "two").await;
    assert_eq!(second.system.booted().await.touched, 1);
    let agent = second.system.open(&session()).await.expect("opens");
    send(&agent, "a").await;
    agent.when_idle().await;
    let log = second.log().await;
    assert!(log.contains(&"inbox/claimed [\"i\", \"a\"]".to_owned()), "{log:#?}");
    assert_eq!(turns(&log), ["turn/end 1 completed"]);
}

/// Scenarios 86, 87, 117 and BR-061: a cancel clears what waits in one record, opens no turn, and harms nothing later.
#[tokio::test(start_paused = true)]
async fn a_cancel_clears_and_is_over() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let nothing = cancel(&agent, KeptItems::Clear).await;
    assert_eq!(nothing, crate::handle::CancelReport::default());
    bench.profiles.script([Play::hang("so far")]);
    send(&agent, "a").await;
    for id in ["b", "c", "d", "e", "f"] {
        send(&agent, id).await;
    }
    bench.profiles.model.dispatched(1).await;
    let report = cancel(&agent, KeptItems::Clear).await;
    assert_eq!(report.cancelled, Some(Turn(1)));
    assert_eq!(report.removed, ["b", "c", "d", "e", "f"].map(item));
    let receipt = send(&agent, "g").await;
    assert_eq!(agent.await_item(&receipt.item_id).await, ended(2, TurnReason::Completed));
    let log = bench.log().await;
    assert_eq!(turns(&log), ["turn/end 1 aborted User", "turn/end 2 completed"]);
    assert_eq!(log.iter().filter(|line| line.starts_with("inbox/removed")).count(), 1);
    assert!(log.contains(&"assistant/message so far".to_owned()));
}

/// BR-061: cancel right behind a send, at every distance; the agent always comes to rest and takes the next send.
#[tokio::test(start_paused = true)]
async fn a_cancel_right_behind_a_send() {
    let bench = bench().await;
    let agent = bench.agent().await;
    for round in 0..60 {
        let (sent, _) = tokio::join!(agent.submit(submit(SubmitKind::Send, &format!("r{round}"))), async {
            for _ in 0..round % 30 {
                tokio::task::yield_now().await;
            }
            cancel(&agent, KeptItems::Clear).await
        });
        let receipt = sent.expect("accepted");
        let ending = agent.await_item(&receipt.item_id).await.expect("known");
        match ending {
            Awaited::Removed => {}
            Awaited::Ended { reason, .. } => assert!(reason == aborted() || reason == TurnReason::Completed),
        }
        assert_eq!(agent.when_idle().await, None);
    }
    bench.log().await;
}

/// Scenarios 88 to 92: what is kept is parked until the next wake, or runs at once when asked to.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_keeps() {
    for (kept, then_send) in [(KeptItems::Park, true), (KeptItems::Park, false), (KeptItems::Continue, false)] {
        let bench = bench().await;
        let agent = bench.agent().await;
        bench.profiles.script([Play::hang("")]);
        send(&agent, "a").await;
        bench.profiles.model.dispatched(1).await;
        send(&agent, "b").await;
        assert_eq!(cancel(&agent, kept).await.removed, []);
        agent.when_idle().await;
        let parked = agent.status().await.parked;
        assert_eq!(parked, kept == KeptItems::Park);
        if then_send {
            send(&agent, "c").await;
            agent.when_idle().await;
        }
        let log = bench.log().await;
        let wanted = match (kept, then_send) {
            (KeptItems::Park, false) => vec!["turn/end 1 aborted User"],
            (KeptItems::Park, true) => vec!["turn/end 1 aborted User", "turn/end 2 completed", "turn/end 3 completed"],
            _ => vec!["turn/end 1 aborted User", "turn/end 2 completed"],
        };
        assert_eq!(turns(&log), wanted);
    }
}

/// Scenarios 90 to 92: a send behind a keep-cancel is latched; when its item goes, so does the latch.
#[tokio::test(start_paused = true)]
async fn a_latch_goes_with_its_item() {
    for clear in [true, false] {
        let bench = bench().await;
        let agent = bench.agent().await;
        let gate = Gate::default();
        // The model does not listen, so that the turn stays open behind the cancel for a while.
        bench.profiles.script([held(&gate, "x")]);
        send(&agent, "a").await;
        gate.reached_by(1).await;
        send(&agent, "b").await;
        cancel(&agent, KeptItems::Park).await;
        send(&agent, "c").await;
        if clear {
            assert_eq!(cancel(&agent, KeptItems::Clear).await.removed, ["b", "c"].map(item));
        } else {
            agent.remove(vec![item("c")]).await.expect("removed");
        }
        gate.open();
        agent.when_idle().await;
        assert_eq!(turns(&bench.log().await), ["turn/end 1 aborted User"]);
        assert_eq!(agent.pending().await.next_turn.len(), usize::from(!clear));
    }
}

/// Scenarios 73 and 74: a steer behind a cancel is a turn of its own; one before it is cleared.
#[tokio::test(start_paused = true)]
async fn a_steer_around_a_cancel() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "x")]);
    send(&agent, "a").await;
    gate.reached_by(1).await;
    agent.submit(submit(SubmitKind::Steer, "before")).await.expect("accepted");
    assert_eq!(cancel(&agent, KeptItems::Clear).await.removed, [item("before")]);
    let receipt = agent.submit(submit(SubmitKind::Steer, "behind")).await.expect("accepted");
    assert_eq!(receipt.list, everturn_storage::event::Target::NextTurn);
    gate.open();
    agent.when_idle().await;
    assert_eq!(turns(&bench.log().await), ["turn/end 1 aborted User", "turn/end 2 completed"]);
}

/// Scenarios 94 and 95: the first cause stands.
#[tokio::test(start_paused = true)]
async fn the_first_cause_stands() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::hang("")]);
    send(&agent, "a").await;
    bench.profiles.model.dispatched(1).await;
    let hook = Cause::Hook { reason: "h".to_owned() };
    let (one, two, ()) = tokio::join!(
        agent.cancel(Cause::User, KeptItems::Clear),
        agent.cancel(hook, KeptItems::Clear),
        agent.dispose(DisposeMode::Suspend),
    );
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(turns(&bench.log().await), ["turn/end 1 aborted User"]);
}
