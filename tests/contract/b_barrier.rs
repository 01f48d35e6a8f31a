//! B. The turn checkpoint barrier.

use super::{
    bench::{Bench, ends, results},
    model::Say,
    parts::Scripted,
};
use everturn_actors::{handle::DisposeMode, protocol::Phase};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Scenario 24.
#[tokio::test(start_paused = true)]
async fn the_next_request_has_the_answer_before_it() {
    let bench = Bench::start(vec![Say::text("A1"), Say::text("A2")]).await;
    bench.disk.hold("turn/end");
    bench.send("one").await;
    bench.disk.held().await;
    bench.disk.release();
    bench.send("two").await;
    bench.idle().await;
    let requests = [vec!["user: one"], vec!["user: one", "assistant: A1", "user: two"]];
    assert_eq!(bench.model.requests(), requests);
    bench.finish().await;
}

/// Scenario 34.
#[tokio::test(start_paused = true)]
async fn a_body_waits_for_its_call_to_be_durable() {
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    let tool = Scripted::new("work", move |_, _| {
        seen.store(true, Ordering::SeqCst);
        std::future::ready(Ok(everturn_actors::ports::ToolOutput::text("worked")))
    });
    let says = vec![Say::calls(&[("c1", "work", "{}")]), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![tool.share()]).await;
    bench.disk.hold("tool/call");
    bench.send("one").await;
    bench.disk.held().await;
    assert!(!ran.load(Ordering::SeqCst), "the body ran before its call was durable");
    bench.disk.release();
    bench.idle().await;
    assert!(ran.load(Ordering::SeqCst));
    let log = bench.finish().await;
    assert_eq!(results(&log), [("c1".to_owned(), None, "worked".to_owned())]);
    assert_eq!(ends(&log), ["completed"]);
}

/// Scenario 35.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_made_durable_does_not_run() {
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    let tool = Scripted::new("work", move |_, _| {
        seen.store(true, Ordering::SeqCst);
        std::future::ready(Ok(everturn_actors::ports::ToolOutput::text("worked")))
    });
    let says = vec![Say::calls(&[("c1", "work", "{}")]), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![tool.share()]).await;
    bench.disk.fail("tool/call", 1);
    bench.send("one").await;
    bench.idle().await;
    assert!(!ran.load(Ordering::SeqCst), "the body ran although its call was not durable");
    assert_eq!(bench.model.asked().len(), 2, "the model was not told");
    let log = bench.finish().await;
    let codes: Vec<_> = results(&log).into_iter().map(|(call, code, _)| (call, code)).collect();
    assert_eq!(codes, [("c1".to_owned(), Some("CHECKPOINT_FAILED".to_owned()))]);
    assert_eq!(ends(&log), ["completed"]);
}

/// Scenario 29: a disposal while CP-T is pending ends behind it, and nothing new is started; what waited stays.
#[tokio::test(start_paused = true)]
async fn a_disposal_waits_for_the_turn_checkpoint() {
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
    assert!(!disposal.is_finished(), "the disposal did not wait for CP-T");
    bench.disk.release();
    disposal.await.unwrap();
    let log = bench.log().await;
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(bench.model.asked().len(), 1, "something new was started");
    bench.agent = bench.system.open(bench.agent.session()).await.unwrap();
    bench.idle().await;
    assert_eq!(ends(&bench.finish().await), ["completed", "completed"]);
}
