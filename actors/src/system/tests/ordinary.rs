//! A and B: ordinary sends, turns, the turn checkpoint.

use super::*;
use crate::handle::{Frame, ItemState};

/// Scenario 1: the whole log of one ordinary send.
#[tokio::test(start_paused = true)]
async fn one_send_is_one_turn() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.script([Play::text("hello")]);
    let receipt = send(&agent, "a").await;
    assert_eq!((receipt.position, receipt.woke, receipt.durable, receipt.seq), (0, true, true, Seq(1)));
    assert_eq!(agent.await_item(&receipt.item_id).await, ended(1, TurnReason::Completed));
    assert_eq!(agent.when_idle().await, None);
    assert_eq!(
        bench.log().await,
        [
            "session/opened Fresh 1",
            "inbox/queued a",
            "turn/start 1",
            "inbox/claimed [\"a\"]",
            "step/start",
            "system/message",
            "user/message say a",
            "request/header",
            "request/context",
            "assistant/message hello",
            "step/end",
            "turn/end 1 completed",
        ]
    );
    let report = agent.item("a").await.expect("known");
    assert_eq!((report.state, report.answer.as_deref()), (ItemState::Admitted, Some("hello")));
    assert_eq!(bench.store.durable_seq(&session()), Some(Seq(11)));
}

/// Scenarios 2, 13, 15, 21 and 226: sends from many callers are turns of their own, in each caller's order, in one
/// running interval; a waiter is released once, after all of them.
#[tokio::test(start_paused = true)]
async fn many_sends_are_many_turns_in_one_interval() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "first")]);
    let mut frames = agent.frames().await;
    send(&agent, "first").await;
    gate.reached_by(1).await;
    let waiter = tokio::spawn({
        let agent = agent.clone();
        async move { agent.when_idle().await }
    });
    let producers = (0..5).map(|producer| {
        let agent = agent.clone();
        tokio::spawn(async move {
            for number in 0..10 {
                send(&agent, &format!("{producer}.{number}")).await;
            }
        })
    });
    futures::future::join_all(producers).await;
    assert!(!waiter.is_finished());
    gate.open();
    assert_eq!(waiter.await.expect("no panic"), None);
    let events = bench.events().await;
    bench.log().await;
    let claims: Vec<String> = events
        .iter()
        .filter_map(|event| {
            let EventData::InboxClaimed(claimed) = &event.body.data else { return None };
            Some(claimed.ids.iter().map(ToString::to_string).collect::<String>())
        })
        .collect();
    assert_eq!(claims.len(), 51, "one item a turn");
    for producer in 0..5 {
        let own: Vec<&String> = claims.iter().filter(|id| id.starts_with(&format!("{producer}."))).collect();
        let sent: Vec<String> = (0..10).map(|number| format!("{producer}.{number}")).collect();
        assert_eq!(own, sent.iter().collect::<Vec<_>>(), "its order is kept");
    }
    let mut statuses = Vec::new();
    while let Ok(frame) = frames.try_recv() {
        if let Frame::Status { status } = frame {
            statuses.push(status);
        }
    }
    assert_eq!(statuses, [Visible::Running, Visible::Idle]);
}

/// Scenarios 10 and 18: refusals leave no trace.
#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_refused() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    bench.profiles.script([held(&gate, "x")]);
    bench.profiles.change(|profile| {
        profile.limits.inbox_capacity = 1;
        profile.limits.message_max_bytes = 20;
    });
    let with = |content| Submit { kind: SubmitKind::Send, id: None, content, source: None };
    let refused = |submit| {
        let agent = agent.clone();
        async move { agent.submit(submit).await.expect_err("refused").code() }
    };
    assert_eq!(refused(with(vec![])).await, "EMPTY_MESSAGE");
    assert_eq!(refused(with(vec![Block::text("")])).await, "EMPTY_MESSAGE");
    assert_eq!(refused(with(vec![Block::text("x".repeat(21))])).await, "MESSAGE_TOO_LARGE");
    let reasoning = Block::Reasoning { text: "x".to_owned(), replay: None };
    assert_eq!(refused(with(vec![reasoning])).await, "INVALID_MESSAGE");
    assert_eq!(bench.log().await.len(), 1);
    assert_eq!(agent.status().await.visible, Visible::Idle);
    send(&agent, "running").await;
    gate.reached_by(1).await;
    send(&agent, "waits").await;
    assert_eq!(refused(submit(SubmitKind::Send, "full")).await, "INBOX_FULL");
    gate.open();
    agent.when_idle().await;
    send(&agent, "later").await;
}

/// Scenarios 11, 12 and BR-055, BR-056: a repeat is told of the first receipt, also after a restart of the process.
#[tokio::test(start_paused = true)]
async fn a_repeat_is_told_of_the_first() {
    let first = bench().await;
    let agent = first.agent().await;
    let gate = Gate::default();
    first.profiles.script([held(&gate, "x")]);
    send(&agent, "running").await;
    gate.reached_by(1).await;
    let receipt = send(&agent, "a").await;
    let Err(OpError::DuplicatePending(report)) = agent.submit(submit(SubmitKind::Send, "a")).await else {
        panic!("a duplicate")
    };
    assert_eq!((report.state, report.receipt.seq), (ItemState::Pending, receipt.seq));
    gate.open();
    agent.when_idle().await;
    let length = first.log().await.len();
    first.system.shutdown(Duration::ZERO).await;
    let second = boot(first.store.crash(None), Arc::default(), "two").await;
    let agent = second.system.open(&session()).await.expect("opens");
    let Err(OpError::DuplicateConsumed(report)) = agent.submit(submit(SubmitKind::Send, "a")).await else {
        panic!("a duplicate")
    };
    assert_eq!((report.state, report.turn, report.answer.as_deref()), (ItemState::Admitted, Some(Turn(2)), Some("ok")));
    assert_eq!((report.receipt.seq, report.receipt.list), (receipt.seq, receipt.list));
    assert_eq!(second.log().await.len(), length + 1, "only the marker of the second opening");
}

/// Scenarios 23, 24, 27, 28 and K-2: nothing of the next turn starts while CP-T has not settled, whoever waits or
/// cancels.
#[tokio::test(start_paused = true)]
async fn the_turn_checkpoint_is_a_barrier() {
    let bench = bench().await;
    let agent = bench.agent().await;
    bench.profiles.change(|profile| profile.checkpoint = crate::limits::CheckpointPolicy::Turn);
    let hold = Gate::default();
    bench.profiles.script([held(&hold, "one"), Play::text("two")]);
    send(&agent, "a").await;
    send(&agent, "b").await;
    hold.reached_by(1).await;
    let gate = bench.store.gate_syncs();
    let (_, mut committed) = agent.subscribe().await;
    hold.open();
    loop {
        let Some(crate::handle::Committed::Event(event)) = committed.recv().await else { panic!("an event") };
        if matches!(event.body.data, EventData::TurnEnd(_)) {
            break;
        }
    }
    let status = agent.status().await;
    assert_eq!((status.visible, status.phase), (Visible::Running, crate::protocol::Phase::Checkpoint));
    let idle = agent.when_idle();
    tokio::pin!(idle);
    assert!(futures::poll!(&mut idle).is_pending());
    assert_eq!(agent.snapshot().await.expect("lives").view.last_turn(), Turn(1));
    gate.open();
    assert_eq!(idle.await, None);
    assert_eq!(turns(&bench.log().await), ["turn/end 1 completed", "turn/end 2 completed"]);
    let second = &bench.profiles.model.requests()[1];
    assert_eq!(second.messages.len(), 4, "system, user 1, its answer, user 2");
}

/// Scenarios 17, 25, 204, 205, BR-020: a store that fails in the middle of a turn refuses new input, and everything
/// goes on by itself once it works again.
#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_is_enough() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let hold = Gate::default();
    bench.profiles.script([held(&hold, "one")]);
    send(&agent, "a").await;
    send(&agent, "b").await;
    hold.reached_by(1).await;
    bench.store.set_full(true);
    let refused = agent.submit(submit(SubmitKind::Send, "c")).await.expect_err("refused");
    assert_eq!(refused.code(), "STORAGE");
    let mut readiness = bench.system.readiness();
    readiness.wait_for(|readiness| !readiness.reasons.is_empty()).await.expect("told");
    hold.open();
    // The open turn ends, in memory; the next one is not opened, and its wake stays latched.
    assert!(matches!(agent.await_item(&item("a")).await, Ok(Awaited::Ended { turn: Turn(1), .. })));
    let mut idle = std::pin::pin!(agent.when_idle());
    assert!(futures::poll!(&mut idle).is_pending());
    assert_eq!(agent.snapshot().await.expect("lives").view.last_turn(), Turn(1));
    bench.store.set_full(false);
    readiness.wait_for(|readiness| readiness.reasons.is_empty()).await.expect("told");
    assert_eq!(agent.await_item(&item("b")).await, ended(2, TurnReason::Completed));
    // What was refused may be sent again under its id.
    let receipt = send(&agent, "c").await;
    assert_eq!(agent.await_item(&receipt.item_id).await, ended(3, TurnReason::Completed));
    let log = bench.log().await;
    assert_eq!(log.iter().filter(|line| line.starts_with("user/message say c")).count(), 1);
}
