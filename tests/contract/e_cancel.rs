//! E. Cancels that come from those who watch.

use super::{
    bench::{Bench, ends, picked, submit},
    model::Say,
};
use async_trait::async_trait;
use everturn_actors::{
    handle::{Frame, KeptItems, SubmitKind, Visible},
    ports::{Decision, ExtensionError, PreStep, Proposed, Signal},
};
use everturn_storage::{
    event::{Cause, EventData},
    ids::ItemId,
};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// A policy that decides nothing before it is cancelled.
struct Waits(watch::Sender<bool>);

impl Waits {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(false)))
    }

    /// Ends when it was asked.
    async fn asked(&self) {
        self.0.subscribe().wait_for(|asked| *asked).await.unwrap();
    }
}

#[async_trait]
impl PreStep for Waits {
    async fn decide(&self, _: &Proposed, signal: &Signal) -> Result<Decision, ExtensionError> {
        self.0.send_replace(true);
        signal.wait().await;
        Ok(Decision::Pass)
    }
}

/// Ends when watchers are shown this status.
async fn shown(frames: &mut mpsc::Receiver<Frame>, wanted: Visible) {
    while let Some(frame) = frames.recv().await {
        if matches!(frame, Frame::Status { status } if status == wanted) {
            return;
        }
    }
    panic!("no status {wanted:?} was shown");
}

/// What the ends of turns say of steps and of items that were not admitted.
fn closed(log: &[Arc<everturn_storage::event::Event>]) -> Vec<(u32, Vec<ItemId>)> {
    picked(log, |data| match data {
        EventData::TurnEnd(end) => Some((end.steps, end.unadmitted.clone())),
        _ => None,
    })
}

/// Scenario 96: a cancel by the observer of the running status aborts a turn without steps, in a balanced log.
#[tokio::test(start_paused = true)]
async fn a_cancel_by_the_observer_of_running() {
    let policy = Waits::new();
    let bench = Bench::with(vec![], |profile| profile.pre_step = vec![policy]).await;
    let (agent, mut frames) = (bench.agent.clone(), bench.agent.frames().await);
    let observer = tokio::spawn(async move {
        shown(&mut frames, Visible::Running).await;
        agent.cancel(Cause::User, KeptItems::Clear).await.unwrap()
    });
    bench.send("one").await;
    let report = observer.await.unwrap();
    assert_eq!(report.cancelled.map(|turn| turn.0), Some(1));
    bench.idle().await;
    assert!(bench.model.asked().is_empty());
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["aborted"]);
    assert_eq!(closed(&log), [(0, vec![ItemId::trusted("one")])]);
}

/// Scenario 97: a send by an observer of the idle status that cancels as well runs, and a waiter is released behind it.
#[tokio::test(start_paused = true)]
async fn a_send_by_the_observer_of_idle_that_cancels() {
    let bench = Bench::start(vec![Say::text("A1"), Say::text("A2").gated()]).await;
    let (agent, mut frames) = (bench.agent.clone(), bench.agent.frames().await);
    let observer = tokio::spawn(async move {
        shown(&mut frames, Visible::Idle).await;
        let report = agent.cancel(Cause::User, KeptItems::Clear).await.unwrap();
        assert_eq!((report.cancelled, report.removed), (None, vec![]));
        submit(&agent, SubmitKind::Send, "later").await.unwrap();
        agent.when_idle().await
    });
    bench.send("one").await;
    bench.model.was_asked(2).await;
    assert!(!observer.is_finished(), "the waiter was released before the later work ended");
    bench.model.go();
    assert_eq!(observer.await.unwrap(), None);
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["completed", "completed"], "the cancel hit a later turn");
}

/// Scenario 98: a waiter from before a cancel that hits the pre-step chain is released.
#[tokio::test(start_paused = true)]
async fn a_waiter_from_before_a_cancel_is_released() {
    let policy = Waits::new();
    let bench = Bench::with(vec![], |profile| profile.pre_step = vec![Arc::clone(&policy) as Arc<dyn PreStep>]).await;
    bench.send("one").await;
    policy.asked().await;
    let agent = bench.agent.clone();
    let waiter = tokio::spawn(async move { agent.when_idle().await });
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    bench.agent.cancel(Cause::User, KeptItems::Clear).await.unwrap();
    assert_eq!(waiter.await.unwrap(), None);
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["aborted"]);
    assert_eq!(closed(&log), [(0, vec![ItemId::trusted("one")])]);
}
