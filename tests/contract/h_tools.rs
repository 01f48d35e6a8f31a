//! H. Tools.

use super::{
    bench::{Bench, ends, picked, results},
    model::Say,
    parts::Scripted,
};
use async_trait::async_trait;
use everturn_actors::{
    handle::Committed,
    ports::{ExtensionError, Signal, Tool, ToolOutput, ToolPolicy, ToolVerdict, tool::CallView},
};
use everturn_storage::event::EventData;
use std::sync::Arc;

/// Alters what it can reach of the arguments.
struct Meddles;

#[async_trait]
impl ToolPolicy for Meddles {
    async fn before(&self, call: &CallView, _: &Signal) -> Result<ToolVerdict, ExtensionError> {
        let mut mine = call.clone();
        mine.args["path"] = "elsewhere".into();
        mine.name = "other".to_owned();
        Ok(ToolVerdict::Allow)
    }
}

/// Scenario 171.
#[tokio::test(start_paused = true)]
async fn a_policy_changes_only_its_copy() {
    let tool = Scripted::new("read", |args, _| std::future::ready(Ok(ToolOutput::text(args.to_string()))));
    let arguments = r#"{"path":"here"}"#;
    let says = vec![Say::calls(&[("c1", "read", arguments)]), Say::text("A1")];
    let bench = Bench::with(says, |profile| {
        profile.tools = vec![tool.share()];
        profile.tool_policies = vec![Arc::new(Meddles)];
    })
    .await;
    bench.send("one").await;
    let log = bench.finish().await;
    let calls = picked(&log, |data| match data {
        EventData::ToolCall(call) => Some((call.name.clone(), call.arguments.clone())),
        _ => None,
    });
    assert_eq!(calls, [("read".to_owned(), arguments.to_owned())]);
    assert_eq!(results(&log), [("c1".to_owned(), None, arguments.to_owned())]);
    assert_eq!(ends(&log), ["completed"]);
}

/// Scenario 182.
#[tokio::test(start_paused = true)]
async fn a_tool_inside_a_tool_leaves_one_pair() {
    let inner: Arc<dyn Tool> = Scripted::done("inner").share();
    let within = Arc::clone(&inner);
    let outer = Scripted::new("outer", move |args, ctx| {
        let within = Arc::clone(&within);
        async move { within.run(args, ctx).await }
    });
    let says = vec![Say::calls(&[("c1", "outer", "{}")]), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![outer.share(), inner]).await;
    bench.send("one").await;
    let log = bench.finish().await;
    let calls = picked(&log, |data| match data {
        EventData::ToolCall(call) => Some(call.name.clone()),
        _ => None,
    });
    assert_eq!(calls, ["outer"]);
    assert_eq!(results(&log), [("c1".to_owned(), None, "done inner".to_owned())]);
    assert_eq!(ends(&log), ["completed"]);
}

/// Scenario 184.
#[tokio::test(start_paused = true)]
async fn an_observer_of_results_that_panics_stops_nobody() {
    let says = vec![Say::calls(&[("c1", "hammer", "{}")]), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![Scripted::done("hammer").share()]).await;
    let (_, mut committed) = bench.agent.subscribe().await;
    let observer = tokio::spawn(async move {
        while let Some(Committed::Event(event)) = committed.recv().await {
            assert_ne!(event.body.data.type_name(), "tool/result", "scripted");
        }
    });
    bench.send("one").await;
    bench.idle().await;
    assert!(observer.await.unwrap_err().is_panic());
    let log = bench.finish().await;
    assert_eq!(results(&log), [("c1".to_owned(), None, "done hammer".to_owned())]);
    assert_eq!(ends(&log), ["completed"]);
}
