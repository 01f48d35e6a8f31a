//! C-6: calls from inside the agent's own work.

use super::*;
use crate::ports::{Tool, ToolContext, ToolOutput, tool::ToolFailure};
use everturn_storage::{RawJson, event::ToolSpec};
use std::sync::Mutex;

/// A tool that calls back into its own agent.
struct Reentrant {
    spec: ToolSpec,
    agent: AgentHandle,
    saw: Mutex<Vec<String>>,
    gate: Option<Gate>,
}

impl Reentrant {
    fn on(bench: &Bench, agent: &AgentHandle, gate: Option<Gate>) -> Arc<Self> {
        let schema = RawJson::parse(r#"{"type":"object"}"#).expect("json");
        let spec = ToolSpec { name: "ask".to_owned(), description: "Asks.".to_owned(), schema };
        let tool = Arc::new(Self { spec, agent: agent.clone(), saw: Mutex::default(), gate });
        bench.profiles.change(|profile| profile.tools.push(Arc::clone(&tool) as Arc<dyn Tool>));
        tool
    }
}

#[async_trait::async_trait]
impl Tool for Reentrant {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _args: serde_json::Value, _ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
        if let Some(gate) = &self.gate {
            gate.pass().await;
            return Ok(ToolOutput::text("done"));
        }
        let agent = &self.agent;
        let later = send(agent, "from-tool").await;
        let saw = [
            agent.when_idle().await.unwrap_or_default(),
            agent.await_item(&later.item_id).await.map(|_| ()).expect_err("refused").code().to_owned(),
            agent.maintain(async |_| ()).await.expect_err("refused").code().to_owned(),
        ];
        agent.dispose(DisposeMode::Discard).await;
        self.saw.lock().expect("no panic").extend(saw);
        Ok(ToolOutput::text("done"))
    }
}

/// Scenarios 7 and 237: a tool may send to its own agent, which is a later turn, and must not wait for it.
#[tokio::test(start_paused = true)]
async fn a_tool_calls_its_own_agent() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let tool = Reentrant::on(&bench, &agent, None);
    bench.profiles.script([Play::calls(&[("c1", "ask", "{}")]), Play::text("one"), Play::text("two")]);
    send(&agent, "a").await;
    assert_eq!(agent.when_idle().await, None);
    let saw = tool.saw.lock().expect("no panic").clone();
    assert!(saw[0].contains("never end"), "{saw:?}");
    assert_eq!(saw[1..], ["WOULD_DEADLOCK", "WOULD_DEADLOCK"]);
    let log = bench.log().await;
    assert_eq!(turns(&log), ["turn/end 1 completed", "turn/end 2 completed"]);
    assert!(log.contains(&"inbox/claimed [\"from-tool\"]".to_owned()));
}

/// Scenario 6: a send from the middle of a stream is a later turn, and its message is not in the open request.
#[tokio::test(start_paused = true)]
async fn a_stream_calls_its_own_agent() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let inner = agent.clone();
    let sender = move || {
        let agent = inner.clone();
        drop(tokio::spawn(async move { send(&agent, "from-stream").await }));
    };
    bench.profiles.script([Play::text("one").calling(sender), Play::text("two")]);
    let receipt = send(&agent, "a").await;
    agent.await_item(&receipt.item_id).await.expect("ends");
    let receipt = agent.item("from-stream").await.expect("known");
    assert_eq!(agent.await_item(&receipt.item_id).await, ended(2, TurnReason::Completed));
    let lengths: Vec<usize> = bench.profiles.model.requests().iter().map(|request| request.messages.len()).collect();
    assert_eq!(lengths, [2, 4]);
}

/// 6.10: a dead pool is replaced, its turn ends in an error that says what is unknown, and the next turn has tools.
#[tokio::test(start_paused = true)]
async fn the_death_of_the_pool_is_the_turns_business() {
    let bench = bench().await;
    let agent = bench.agent().await;
    let gate = Gate::default();
    Reentrant::on(&bench, &agent, Some(gate.clone()));
    let call = || Play::calls(&[("c1", "ask", "{}")]);
    bench.profiles.script([call(), call(), Play::text("two")]);
    send(&agent, "a").await;
    gate.reached_by(1).await;
    send(&agent, "b").await;
    bench.system.testing_kill(&session(), ActorKind::Pool);
    gate.reached_by(2).await;
    gate.open();
    assert_eq!(agent.when_idle().await, None);
    let log = bench.log().await;
    assert_eq!(turns(&log), ["turn/end 1 error EXTENSION", "turn/end 2 completed"]);
    assert_eq!(log.iter().filter(|line| line.starts_with("session/opened")).count(), 1, "the session lived on");
}
