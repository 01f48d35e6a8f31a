//! D. Steer, inject, stopping.

use super::{
    bench::{Bench, ends, picked},
    model::Say,
    parts::Scripted,
};
use everturn_actors::ports::{Tool, ToolOutput};
use everturn_storage::{event::EventData, message::code};
use std::sync::Arc;
use tokio::sync::Notify;

/// Claims of the log as (turn, step, ids).
async fn claims(bench: &Bench) -> Vec<(u32, u32, Vec<String>)> {
    picked(&bench.log().await, |data| match data {
        EventData::InboxClaimed(claim) => {
            Some((claim.turn.0, claim.step.0, claim.ids.iter().map(ToString::to_string).collect()))
        }
        _ => None,
    })
}

fn claim(turn: u32, step: u32, ids: &[&str]) -> (u32, u32, Vec<String>) {
    (turn, step, ids.iter().map(|id| (*id).to_owned()).collect())
}

/// Scenario 67.
#[tokio::test(start_paused = true)]
async fn a_steer_during_a_calling_answer_comes_behind_the_results() {
    let tools: Vec<Arc<dyn Tool>> = vec![Scripted::done("hammer").share(), Scripted::done("saw").share()];
    let calls = [("c1", "hammer", "{}"), ("c2", "saw", "{}")];
    let says = vec![Say::calls(&calls).gated(), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = tools).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.steer("left").await;
    bench.model.go();
    bench.idle().await;
    let second = ["user: one", "assistant: ", "tool: done hammer", "tool: done saw", "user: left"];
    assert_eq!(bench.model.requests(), [vec!["user: one"], second.to_vec()]);
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(1, 2, &["left"])]);
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 70.
#[tokio::test(start_paused = true)]
async fn steers_of_one_step_are_one_batch() {
    let bench = Bench::start(vec![Say::halves("A", "1"), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    for text in ["first", "second", "third"] {
        bench.steer(text).await;
    }
    bench.model.go();
    bench.idle().await;
    let second = ["user: one", "assistant: A1", "user: first", "user: second", "user: third"];
    assert_eq!(bench.model.requests()[1], second);
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(1, 2, &["first", "second", "third"])]);
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 75.
#[tokio::test(start_paused = true)]
async fn a_steer_during_a_retry_wait_joins_the_next_step() {
    let says = vec![Say::fails(code::RATE_LIMIT), Say::text("A1"), Say::text("A2")];
    let bench = Bench::start(says).await;
    bench.send("one").await;
    bench.logged("retry/scheduled", 1).await;
    assert_eq!(bench.model.asked().len(), 1, "the wait is over already");
    bench.steer("left").await;
    bench.idle().await;
    let third = vec!["user: one", "assistant: A1", "user: left"];
    assert_eq!(bench.model.requests(), [vec!["user: one"], vec!["user: one"], third]);
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(1, 2, &["left"])]);
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 77.
#[tokio::test(start_paused = true)]
async fn an_injection_enters_with_the_next_send() {
    let bench = Bench::start(vec![]).await;
    bench.inject("note").await;
    bench.idle().await;
    assert!(bench.model.asked().is_empty());
    bench.send("one").await;
    bench.idle().await;
    assert_eq!(bench.model.requests(), [["user: note", "user: one"]]);
    assert_eq!(claims(&bench).await, [claim(1, 1, &["note", "one"])]);
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 78.
#[tokio::test(start_paused = true)]
async fn an_injection_during_tools_comes_behind_the_results() {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (at_work, may_end) = (Arc::clone(&entered), Arc::clone(&go));
    let tool = Scripted::new("work", move |_, _| {
        let (at_work, may_end) = (Arc::clone(&at_work), Arc::clone(&may_end));
        async move {
            at_work.notify_one();
            may_end.notified().await;
            Ok(ToolOutput::text("worked"))
        }
    });
    let says = vec![Say::calls(&[("c1", "work", "{}")]), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![tool.share()]).await;
    bench.send("one").await;
    entered.notified().await;
    bench.inject("note").await;
    go.notify_one();
    bench.idle().await;
    assert_eq!(bench.model.requests()[1], ["user: one", "assistant: ", "tool: worked", "user: note"]);
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(1, 2, &["note"])]);
    assert_eq!(ends(&bench.finish().await), ["completed"]);
}

/// Scenario 85: without a further send; the steer wakes a turn of its own.
#[tokio::test(start_paused = true)]
async fn steers_of_a_failed_turn_are_not_stranded() {
    let bench = Bench::start(vec![Say::fails(code::AUTH).gated(), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.steer("left").await;
    bench.model.go();
    bench.idle().await;
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(2, 1, &["left"])]);
    assert_eq!(bench.model.requests()[1], ["user: one", "user: left"]);
    assert_eq!(ends(&bench.finish().await), ["error AUTH", "completed"]);
}

/// Scenario 85: with the next send, which they precede.
#[tokio::test(start_paused = true)]
async fn steers_of_a_failed_turn_enter_with_the_next_send() {
    let bench = Bench::start(vec![Say::fails(code::AUTH).gated(), Say::text("A2")]).await;
    bench.send("one").await;
    bench.model.was_asked(1).await;
    bench.send("two").await;
    bench.steer("left").await;
    bench.model.go();
    bench.idle().await;
    assert_eq!(claims(&bench).await, [claim(1, 1, &["one"]), claim(2, 1, &["left", "two"])]);
    assert_eq!(ends(&bench.finish().await), ["error AUTH", "completed"]);
}
