//! A. Sends, their order, and who watches them.

use super::{
    bench::{Bench, ends, picked, submit},
    model::Say,
};
use everturn_actors::{
    handle::{Committed, Frame, Receipt, Submit, SubmitKind, Visible},
    system::{AgentHandle, Awaited},
};
use everturn_storage::{
    event::{Event, EventData, Target, TurnReason},
    ids::{ItemId, MessageId, Seq, Turn},
    message::{Block, plain_text},
};
use std::sync::Arc;
use tokio::{sync::mpsc, task::JoinHandle};

/// The ids that each turn claimed first, in log order.
fn first_claims(log: &[Arc<Event>]) -> Vec<(u32, Vec<String>)> {
    picked(log, |data| match data {
        EventData::InboxClaimed(claim) => Some((claim.turn.0, claim.ids.iter().map(ToString::to_string).collect())),
        _ => None,
    })
}

fn claim(turn: u32, id: &str) -> (u32, Vec<String>) {
    (turn, vec![id.to_owned()])
}

/// The ids of the queue records, in log order.
fn queued(log: &[Arc<Event>]) -> Vec<String> {
    picked(log, |data| match data {
        EventData::InboxQueued(queued) => Some(queued.item.id.to_string()),
        _ => None,
    })
}

/// Submits `then` each time an event that `when` names is committed; gives how often that was.
fn listener(
    agent: &AgentHandle,
    mut committed: mpsc::Receiver<Committed>,
    when: impl Fn(&EventData) -> bool + Send + 'static,
    then: &'static str,
) -> JoinHandle<(usize, Receipt)> {
    let agent = agent.clone();
    tokio::spawn(async move {
        let mut count = 0;
        loop {
            match committed.recv().await.unwrap() {
                Committed::Event(event) if when(&event.body.data) => count += 1,
                Committed::Event(_) => continue,
                Committed::Lagged { from } => panic!("the listener fell behind at {from}"),
            }
            let receipt = submit(&agent, SubmitKind::Send, then).await.unwrap();
            return (count, receipt);
        }
    })
}

/// The visible statuses that were shown.
fn statuses(frames: &mut mpsc::Receiver<Frame>) -> Vec<Visible> {
    let mut seen = Vec::new();
    while let Ok(frame) = frames.try_recv() {
        if let Frame::Status { status } = frame {
            seen.push(status);
        }
    }
    seen
}

/// Scenario 3: sends of two tasks that are spawned back to back are two turns, in the order in which they were queued.
#[tokio::test(start_paused = true)]
async fn neighbouring_tasks_are_served_in_order() {
    let bench = Bench::start(vec![Say::text("A1"), Say::text("A2")]).await;
    let (one, two) = (bench.agent.clone(), bench.agent.clone());
    let first = tokio::spawn(async move { submit(&one, SubmitKind::Send, "one").await.unwrap() });
    let second = tokio::spawn(async move { submit(&two, SubmitKind::Send, "two").await.unwrap() });
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(first.seq < second.seq);
    bench.idle().await;
    let requests = [vec!["user: one"], vec!["user: one", "assistant: A1", "user: two"]];
    assert_eq!(bench.model.requests(), requests);
    let log = bench.finish().await;
    assert_eq!(queued(&log), ["one", "two"]);
    assert_eq!(first_claims(&log), [claim(1, "one"), claim(2, "two")]);
    assert_eq!(ends(&log), ["completed", "completed"]);
}

/// Scenario 5: a send by the observer of a queue record is a later turn of its own, and the observer sees each record
/// once.
#[tokio::test(start_paused = true)]
async fn a_send_of_the_queue_observer_is_a_later_turn() {
    let bench = Bench::start(vec![]).await;
    let (_, mut all) = bench.agent.subscribe().await;
    let (_, committed) = bench.agent.subscribe().await;
    let is_queued = |data: &EventData| matches!(data, EventData::InboxQueued(_));
    let observer = listener(&bench.agent, committed, is_queued, "two");
    bench.send("one").await;
    assert_eq!(observer.await.unwrap().0, 1);
    bench.idle().await;
    let mut seen = Vec::new();
    while let Ok(Committed::Event(event)) = all.try_recv() {
        seen.push(event);
    }
    assert_eq!(queued(&seen), ["one", "two"], "a record was shown twice");
    let log = bench.finish().await;
    assert_eq!(first_claims(&log), [claim(1, "one"), claim(2, "two")]);
}

/// Scenario 8, O-5: a send by a listener of `turn/end` starts only behind the checkpoint of that turn, and watchers
/// see one running interval.
#[tokio::test(start_paused = true)]
async fn a_send_behind_the_end_of_a_turn_waits_for_its_checkpoint() {
    let bench = Bench::start(vec![]).await;
    let mut frames = bench.agent.frames().await;
    let (_, committed) = bench.agent.subscribe().await;
    let (_, mut all) = bench.agent.subscribe().await;
    let is_end = |data: &EventData| matches!(data, EventData::TurnEnd(_));
    let late = listener(&bench.agent, committed, is_end, "two");
    bench.disk.hold("turn/end");
    bench.send("one").await;
    bench.disk.held().await;
    // The log cannot be read while the store is held, so watch it.
    let mut seen = Vec::new();
    while queued(&seen).len() < 2 {
        let Some(Committed::Event(event)) = all.recv().await else { panic!("the test fell behind") };
        seen.push(event);
    }
    assert_eq!(bench.view().await.last_turn(), Turn(1), "a turn began before the checkpoint of the last");
    assert_eq!(bench.model.asked().len(), 1);
    assert_eq!(bench.agent.status().await.visible, Visible::Running);
    bench.disk.release();
    late.await.unwrap();
    bench.idle().await;
    assert_eq!(statuses(&mut frames), [Visible::Running, Visible::Idle]);
    let log = bench.finish().await;
    assert_eq!(first_claims(&log), [claim(1, "one"), claim(2, "two")]);
}

/// Scenario 9, C-2: what a caller does to its message behind the receipt changes nothing.
#[tokio::test(start_paused = true)]
async fn the_log_keeps_what_was_sent() {
    let bench = Bench::start(vec![Say::text("A1").gated()]).await;
    let mut content = vec![Block::text("original")];
    let message =
        Submit { kind: SubmitKind::Send, id: Some(MessageId::trusted("m")), content: content.clone(), source: None };
    bench.agent.submit(message).await.unwrap();
    content[0] = Block::text("changed");
    content.push(Block::text("added"));
    bench.model.go();
    bench.idle().await;
    assert_eq!(bench.model.requests(), [vec!["user: original"]]);
    let log = bench.finish().await;
    let said = picked(&log, |data| match data {
        EventData::InboxQueued(queued) => Some(plain_text(&queued.item.message.content)),
        EventData::UserMessage(user) => Some(plain_text(&user.message.content)),
        _ => None,
    });
    assert_eq!(said, ["original", "original"]);
}

/// Scenario 14, T-3, I-10: an item queued between claim and settlement is not in the request of that turn.
#[tokio::test(start_paused = true)]
async fn what_comes_behind_a_claim_is_not_in_it() {
    let calls = Say::calls(&[("c1", "none", "{}")]).gated();
    let bench = Bench::start(vec![calls, Say::text("A1"), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.send("two").await;
    bench.model.go();
    bench.idle().await;
    let requests = bench.model.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[..2].iter().flatten().all(|said| said != "user: two"), "{requests:?}");
    assert_eq!(requests[2].last().map(String::as_str), Some("user: two"));
    let log = bench.finish().await;
    assert_eq!(first_claims(&log), [claim(1, "one"), claim(2, "two")]);
}

/// Scenario 16, C-7: observers that panic, or that stop reading, change nothing for the item or for others.
#[tokio::test(start_paused = true)]
async fn a_broken_observer_harms_nobody() {
    let bench = Bench::start(vec![]).await;
    let (_, mut broken) = bench.agent.subscribe().await;
    let (_, gone) = bench.agent.subscribe().await;
    let (from, mut sound) = bench.agent.subscribe().await;
    drop(gone);
    let panics = tokio::spawn(async move {
        broken.recv().await.unwrap();
        panic!("an observer that the test breaks");
    });
    bench.send("one").await;
    assert!(panics.await.unwrap_err().is_panic());
    bench.idle().await;
    let log = bench.log().await;
    for event in &log[usize::try_from(from.0).unwrap()..] {
        let Ok(Committed::Event(seen)) = sound.try_recv() else { panic!("event {} was not shown", event.seq) };
        assert_eq!(seen.seq, event.seq);
    }
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 19, C-5: a receipt names item, list and place; the outcome is found by the claim that lists the item.
#[tokio::test(start_paused = true)]
async fn a_receipt_leads_to_the_turn() {
    let bench = Bench::start(vec![Say::text("A1").gated(), Say::fails("AUTH")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    let two = bench.send("two").await;
    let three = bench.send("three").await;
    let place = |receipt: &Receipt| (receipt.item_id.to_string(), receipt.list, receipt.position, receipt.durable);
    assert_eq!(place(&two), ("two".to_owned(), Target::NextTurn, 0, true));
    assert_eq!(place(&three), ("three".to_owned(), Target::NextTurn, 1, true));
    // Both were accepted while nothing of them had run.
    assert_eq!(ends(&bench.log().await), Vec::<String>::new());
    bench.model.go();
    bench.idle().await;
    let log = bench.log().await;
    let turn = claiming(&log, &two.item_id);
    assert_eq!(turn, Turn(2));
    let reason = picked(&log, |data| match data {
        EventData::TurnEnd(end) if end.turn == turn => Some(end.reason.clone()),
        _ => None,
    });
    assert!(matches!(&reason[..], [TurnReason::Error { failure }] if failure.code == "AUTH"), "{reason:?}");
    let awaited = bench.agent.await_item(&two.item_id).await.unwrap();
    assert_eq!(awaited, Awaited::Ended { turn, reason: reason[0].clone() });
    assert_eq!(log[usize::try_from(two.seq.0).unwrap()].body.data.type_name(), "inbox/queued");
    bench.finish().await;
}

fn claiming(log: &[Arc<Event>], item: &ItemId) -> Turn {
    let turns = picked(log, |data| match data {
        EventData::InboxClaimed(claim) if claim.ids.contains(item) => Some(claim.turn),
        _ => None,
    });
    assert_eq!(turns.len(), 1, "{item} was claimed {} times", turns.len());
    turns[0]
}

/// Scenario 22, I-3, A-1: turn numbers go on behind an orderly restart, and the log says that it was resumed.
#[tokio::test(start_paused = true)]
async fn turn_numbers_go_on_behind_a_restart() {
    let mut bench = Bench::start(vec![]).await;
    bench.send("one").await;
    bench.send("two").await;
    bench.idle().await;
    bench.restart().await;
    bench.send("three").await;
    let log = bench.finish().await;
    assert_eq!(first_claims(&log), [claim(1, "one"), claim(2, "two"), claim(3, "three")]);
    let opened: Vec<Seq> =
        log.iter().filter(|event| event.body.data.type_name() == "session/opened").map(|e| e.seq).collect();
    assert_eq!(opened.len(), 2);
    let seqs: Vec<u64> = log.iter().map(|event| event.seq.0).collect();
    assert_eq!(seqs, (0..log.len() as u64).collect::<Vec<_>>());
}
