//! The driver against a journal, an agent and a pool that do the least, in virtual time.
#![allow(clippy::wildcard_enum_match_arm, reason = "tests look for one variant and fail on all others")]

mod chains;
mod world;

use crate::{handle::Frame, ports::*, protocol::*, testing::TestWorld};
use everturn_storage::{event::*, ids::*, message::code};
use std::sync::{Arc, atomic::Ordering};
use world::*;

/// D1 to D7: a wake runs everything that waits, then the agent is told that nothing is left.
#[tokio::test(start_paused = true)]
async fn two_sends_are_two_turns() {
    let mut town = Town::start(Setup::default()).await;
    town.send("m1");
    town.send("m2");
    town.wake();
    town.idle().await;
    assert_eq!(town.reasons(), [TurnReason::Completed, TurnReason::Completed]);
    assert_eq!(town.requests(), [vec!["Be kind.", "m1"], vec!["Be kind.", "m1", "Fine.", "m2"]]);
    let frames = town.frames();
    assert!(matches!(frames.first(), Some(Frame::Started { .. })));
    assert_eq!(frames.iter().filter(|frame| matches!(frame, Frame::Settled { .. })).count(), 2);
}

/// S12: the pool gets the calls, its results go to the model.
#[tokio::test(start_paused = true)]
async fn a_tool_turn() {
    let setup = Setup { answers: vec![Say::Calls(&["a"]), Say::Text("Noon.")], ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.wake();
    town.idle().await;
    assert_eq!(town.reasons(), [TurnReason::Completed]);
    assert_eq!(town.log().turns()[0].steps, 2);
}

/// Scenario 99: the signal alone is enough, and the cancel is seen before the answer of whoever saw it first.
#[tokio::test(start_paused = true)]
async fn a_cancel_cuts_the_stream() {
    let setup = Setup { answers: vec![Say::Hang("Hel")], ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.wake();
    town.streaming().await;
    town.signal().fire(Cause::Parent);
    town.idle().await;
    assert_eq!(town.reasons(), [TurnReason::Aborted { cause: Cause::Parent }]);
    assert_eq!(town.log().surface().len(), 3, "the prefix is history");
}

/// Scenario 47 and 111: a member that hangs is let go when the turn is cancelled.
#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_chain_that_hangs() {
    let setup = Setup { pre_step: vec![Arc::new(Hangs)], ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.wake();
    town.settled().await;
    town.cancel();
    town.idle().await;
    assert_eq!(town.reasons(), [TurnReason::Aborted { cause: Cause::User }]);
    assert_eq!(town.log().turns()[0].steps, 0);
}

/// Scenario 138: the wait of a retry runs on the clock of the runtime.
#[tokio::test(start_paused = true)]
async fn a_retry_waits() {
    let setup = Setup { answers: vec![Say::Fails(code::SERVER), Say::Text("Fine.")], ..Setup::default() };
    let mut town = Town::start(setup).await;
    let began = tokio::time::Instant::now();
    town.send("m1");
    town.wake();
    town.idle().await;
    let waited_ms = began.elapsed().as_millis();
    assert!((450..=550).contains(&waited_ms), "{waited_ms}");
    assert_eq!(town.reasons(), [TurnReason::Completed]);
}

/// P5, scenario 53: no model, no adapter.
#[tokio::test(start_paused = true)]
async fn no_model_is_selected() {
    let setup = Setup { config: RequestConfig::default(), ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.wake();
    town.idle().await;
    assert_eq!(town.codes(), [code::NO_MODEL_SELECTED]);
}

/// T-5, F-5, scenario 63: members that fail, panic or hand out nonsense are extension failures.
#[tokio::test(start_paused = true)]
async fn policies_fail() {
    let members: Vec<Arc<dyn PreStep>> = vec![Arc::new(Fails), Arc::new(Panics), Arc::new(TalksNonsense)];
    for member in members {
        let mut town = Town::start(Setup { pre_step: vec![member], ..Setup::default() }).await;
        town.send("m1");
        town.wake();
        town.idle().await;
        assert_eq!(town.codes(), [code::EXTENSION]);
    }
}

/// 6.10, scenario 183: the pool drops its answer; the calls get their results, the next item runs.
#[tokio::test(start_paused = true)]
async fn the_pool_dies() {
    let setup = Setup { answers: vec![Say::Calls(&["a", "b"])], pool_dies: true, ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.send("m2");
    town.wake();
    town.idle().await;
    assert_eq!(town.codes(), [code::EXTENSION]);
    assert_eq!(town.reasons()[1], TurnReason::Completed);
}

/// 0.3: the death of the driver drops the stream of the provider.
#[tokio::test(start_paused = true)]
async fn the_driver_dies() {
    let setup = Setup { answers: vec![Say::Hang("Hel")], ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.wake();
    town.streaming().await;
    assert!(!town.adapter.dropped.load(Ordering::SeqCst));
    town.driver.kill();
    while !town.adapter.dropped.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
}

/// R1: the driver asks for the next turn only after CP-T.
#[tokio::test(start_paused = true)]
async fn the_turn_checkpoint_is_awaited() {
    let setup = Setup { hold: Some(CheckpointKind::Turn), ..Setup::default() };
    let mut town = Town::start(setup).await;
    town.send("m1");
    town.send("m2");
    town.wake();
    town.settled().await;
    assert_eq!(town.log().last_turn(), Turn(1));
    town.release();
    town.idle().await;
    assert_eq!(town.log().turns().len(), 2);
}

/// The arguments name the session alone.
#[test]
fn arguments_show_no_more_than_the_session() {
    let args = DriverArgs {
        session: SessionId::trusted("s"),
        epoch: Epoch(1),
        journal: JournalLink::new(|_| {}),
        agent: AgentLink::new(|_| {}),
        profiles: Arc::new(Nothing),
        agent_name: "a".into(),
        world: Arc::new(TestWorld::new("w")),
        pool: ToolPoolLink::new(|_, _| {}),
        frames: FrameSink::new(|_| {}),
    };
    assert_eq!(format!("{args:?}"), "DriverArgs { session: \"s\", .. }");
}
