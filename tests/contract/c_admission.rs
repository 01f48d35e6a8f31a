//! C. Admission: what enters a step, and what does not.

use super::{
    bench::{Bench, create, ends, log_of, picked, submit, types, verified},
    model::Say,
    parts::{Scripted, pre_step, section},
};
use everturn_actors::{
    handle::{Committed, KeptItems, SubmitKind},
    ports::{Decision, ExtensionError, RequestPolicy},
};
use everturn_storage::{
    event::{Cause, Event, EventData, HeaderReason, RequestConfig, SystemUpdate, TurnReason},
    ids::{Attempt, ItemId, Step, Turn},
    log::request::derive_messages,
    message::{Block, Role, plain_text},
};
use std::sync::Arc;

/// Refuses batches that say `bad`.
fn no_bad_words() -> Arc<dyn everturn_actors::ports::PreStep> {
    pre_step(|proposal| {
        let bad = proposal.batch.iter().any(|said| plain_text(&said.message.content).contains("bad"));
        Ok(if bad { Decision::Reject { reason: "manners".to_owned() } } else { Decision::Pass })
    })
}

/// Scenario 40.
#[tokio::test(start_paused = true)]
async fn a_refused_batch_leaves_no_trace_in_history() {
    let bench = Bench::with(vec![], |profile| profile.pre_step = vec![no_bad_words()]).await;
    bench.send("bad one").await;
    bench.idle().await;
    assert_eq!(*bench.route.prepared.lock().unwrap(), 0);
    assert!(bench.model.asked().is_empty());
    assert!(bench.view().await.surface().is_empty());
    let log = bench.finish().await;
    assert_eq!(types(&log), ["inbox/queued", "turn/start", "inbox/claimed", "prompt/blocked", "turn/end"]);
    let blocked = picked(&log, |data| match data {
        EventData::PromptBlocked(blocked) => Some(blocked.clone()),
        _ => None,
    });
    let expected = everturn_storage::event::PromptBlocked {
        turn: Turn(1),
        ids: vec![ItemId::trusted("bad-one")],
        content: vec![Block::text("bad one")],
        source: None,
        reason: "manners".to_owned(),
    };
    assert_eq!(blocked, [expected]);
    let end = picked(&log, |data| match data {
        EventData::TurnEnd(end) => Some((end.reason.clone(), end.steps)),
        _ => None,
    });
    assert_eq!(end, [(TurnReason::Rejected { reason: "manners".to_owned() }, 0)]);
}

/// Scenario 41.
#[tokio::test(start_paused = true)]
async fn the_next_request_lacks_what_was_refused() {
    let bench = Bench::with(vec![Say::text("A1")], |profile| profile.pre_step = vec![no_bad_words()]).await;
    let (first, second) = (submit(&bench.agent, SubmitKind::Send, "bad one"), bench.send("good one"));
    let (first, _) = tokio::join!(first, second);
    first.unwrap();
    bench.idle().await;
    assert_eq!(bench.model.requests(), [["user: good one"]]);
    assert_eq!(ends(&bench.finish().await), ["rejected manners", "completed"]);
}

fn systems(log: &[Arc<Event>]) -> Vec<String> {
    picked(log, |data| match data {
        EventData::SystemMessage(system) => Some(plain_text(&system.message.content)),
        _ => None,
    })
}

async fn a_changed_prompt(update: SystemUpdate) -> (Vec<Vec<String>>, usize, Vec<Arc<Event>>) {
    let says = vec![Say::text("A1"), Say::text("A2")];
    let bench = Bench::with(says, |profile| profile.sections = vec![section("role", "Old.")]).await;
    let provider = everturn_storage::testing::sample::config().provider;
    let route = super::model::Route { system_update: update, ..bench.route.clone() };
    bench.town.route(&provider, route);
    bench.send("one").await;
    bench.idle().await;
    bench.change(|profile| profile.sections = vec![section("role", "New.")]);
    bench.send("two").await;
    bench.idle().await;
    let nodes = bench.view().await.surface().iter().filter(|node| node.role == Role::System).count();
    (bench.model.requests(), nodes, bench.finish().await)
}

/// Scenario 56.
#[tokio::test(start_paused = true)]
async fn a_changed_prompt_takes_the_place_of_the_old_one() {
    let (requests, nodes, log) = a_changed_prompt(SystemUpdate::Replace).await;
    let second = vec!["system: New.", "user: one", "assistant: A1", "user: two"];
    assert_eq!(requests, [vec!["system: Old.", "user: one"], second]);
    assert_eq!((nodes, systems(&log)), (1, vec!["Old.".to_owned(), "New.".to_owned()]));
}

/// Scenario 57.
#[tokio::test(start_paused = true)]
async fn a_changed_prompt_is_added_where_the_route_says_so() {
    let (requests, nodes, log) = a_changed_prompt(SystemUpdate::Append).await;
    let second = vec!["system: Old.", "user: one", "assistant: A1", "system: New.", "user: two"];
    assert_eq!(requests, [vec!["system: Old.", "user: one"], second]);
    assert_eq!((nodes, systems(&log)), (2, vec!["Old.".to_owned(), "New.".to_owned()]));
}

/// Scenario 59, as far as profiles go: an agent's sections and tools are seen by that agent only.
#[tokio::test(start_paused = true)]
async fn sections_and_tools_belong_to_their_agent() {
    let says = vec![Say::text("A1"), Say::text("B1")];
    let bench = Bench::with(says, |profile| {
        profile.sections = vec![section("role", "I am a.")];
        profile.tools = vec![Scripted::done("hammer").share()];
    })
    .await;
    bench.town.change("b", |profile| {
        profile.sections = vec![section("role", "I am b.")];
        profile.tools = vec![Scripted::done("saw").share()];
    });
    let other = create(&bench.system, "t", "b").await;
    bench.send("one").await;
    bench.idle().await;
    submit(&other, SubmitKind::Send, "two").await.unwrap();
    assert_eq!(other.when_idle().await, None);
    let asked = bench.model.asked();
    assert_eq!(bench.model.requests(), [["system: I am a.", "user: one"], ["system: I am b.", "user: two"]]);
    assert_eq!([asked[0].tools(), asked[1].tools()], [["hammer"], ["saw"]]);
    verified(other.session(), &log_of(&bench.system, other.session()).await);
    bench.finish().await;
}

/// Scenario 61.
#[tokio::test(start_paused = true)]
async fn the_order_of_registration_changes_no_header() {
    let tools = || vec![Scripted::done("hammer").share(), Scripted::done("saw").share()];
    let turned = || vec![Scripted::done("saw").share(), Scripted::done("hammer").share()];
    let mut bench = Bench::with(vec![], |profile| profile.tools = tools()).await;
    bench.send("one").await;
    bench.idle().await;
    bench.change(|profile| profile.tools = turned());
    bench.restart().await;
    bench.send("two").await;
    bench.idle().await;
    bench.change(|profile| profile.tools = tools());
    bench.send("three").await;
    let log = bench.finish().await;
    let headers = picked(&log, |data| match data {
        EventData::RequestHeader(header) => Some(header.clone()),
        _ => None,
    });
    let reasons: Vec<_> = headers.iter().map(|header| header.reason).collect();
    assert_eq!(reasons, [HeaderReason::Initial, HeaderReason::Resume]);
    assert_eq!(headers[0].tools, headers[1].tools);
}

/// Scenario 63.
#[tokio::test(start_paused = true)]
async fn an_ill_typed_decision_ends_the_turn() {
    let nonsense = pre_step(|proposal| {
        let mut batch = proposal.batch.clone();
        batch.iter_mut().for_each(|said| said.message.role = Role::Assistant);
        Ok(if proposal.turn == Turn(1) { Decision::Enter(batch) } else { Decision::Pass })
    });
    let bench = Bench::with(vec![], |profile| profile.pre_step = vec![nonsense]).await;
    bench.send("one").await;
    bench.send("two").await;
    bench.idle().await;
    assert_eq!(bench.model.requests(), [["user: two"]]);
    assert_eq!(ends(&bench.finish().await), ["error EXTENSION", "completed"]);
}

/// Never ends by itself: a cancel that is lost hangs the test.
struct Hangs;

#[async_trait::async_trait]
impl RequestPolicy for Hangs {
    async fn propose(&self, _: RequestConfig, _: Turn, _: Step, _: Attempt) -> Result<RequestConfig, ExtensionError> {
        std::future::pending().await
    }
}

/// Scenario 64: the observer of `step/start` cancels before anything is admitted.
#[tokio::test(start_paused = true)]
async fn a_cancel_at_the_start_of_a_step_admits_nothing() {
    let bench = Bench::with(vec![], |profile| profile.request = vec![Arc::new(Hangs)]).await;
    let (_, mut committed) = bench.agent.subscribe().await;
    let agent = bench.agent.clone();
    let observer = tokio::spawn(async move {
        while let Some(Committed::Event(event)) = committed.recv().await {
            if event.body.data.type_name() == "step/start" {
                return agent.cancel(Cause::User, KeptItems::Clear).await.unwrap();
            }
        }
        panic!("no step began")
    });
    bench.send("one").await;
    assert_eq!(observer.await.unwrap().cancelled, Some(Turn(1)));
    bench.idle().await;
    assert!(bench.model.asked().is_empty());
    assert!(derive_messages(bench.view().await.surface()).is_empty());
    let log = bench.finish().await;
    let expected = ["inbox/queued", "turn/start", "inbox/claimed", "step/start", "step/end", "turn/end"];
    assert_eq!(types(&log), expected);
    assert_eq!(ends(&log), ["aborted"]);
}
