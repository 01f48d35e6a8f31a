//! Answers that broke other programs on the next request: whole turns over the wire, against a server that takes only
//! what the strictest one takes.

use crate::{
    server::{Asked, Server},
    strict::{refuse_anthropic, refuse_openai},
    world::{ANTHROPIC, OPENAI, config},
};
use async_trait::async_trait;
use everturn::{
    Builder,
    actors::{
        handle::{Submit, SubmitKind},
        ports::{AgentProfile, Tool, ToolContext, ToolOutput, tool::ToolFailure},
        system::{AgentHandle, CreateSession, System},
    },
    storage::{
        RawJson,
        event::{EventData, RequestConfig, ToolSpec, TurnReason},
        ids::{MessageId, Seq, SessionId},
        memory::MemoryStore,
        message::Block,
    },
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// A tool that counts.
struct Counter(ToolSpec, Arc<AtomicUsize>);

#[async_trait]
impl Tool for Counter {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn parallel_safe(&self, _: &Value) -> bool {
        true
    }

    async fn run(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolFailure> {
        self.1.fetch_add(1, SeqCst);
        Ok(ToolOutput::text("done"))
    }
}

/// Gives these answers one after the other, the last one again and again; refuses every request that is not legal.
async fn strict(answers: Vec<String>) -> Server {
    Server::start(move |number, Asked { path, body, .. }, mut connection| {
        let answer = answers[number.min(answers.len() - 1)].clone();
        let refused = match path.as_str() {
            "/v1/messages" => refuse_anthropic(&body),
            _ => refuse_openai(body["messages"].as_array().unwrap()),
        };
        async move {
            if let Err(why) = refused {
                let error = json!({"error": {"message": why, "type": "invalid_request_error"}}).to_string();
                return connection.answer("400 Bad Request", "", &error).await;
            }
            connection.stream().await;
            connection.send(&answer).await;
        }
    })
    .await
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A chunk of an OpenAI-compatible server.
fn delta(delta: &Value, end: Option<&str>) -> String {
    event(&json!({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}))
}

/// One life of the process: an agent with the tool, whose provider is of this kind.
struct Life {
    store: MemoryStore,
    system: System,
    agent: AgentHandle,
    bodies: Arc<AtomicUsize>,
}

impl Life {
    async fn begin(store: &MemoryStore, kind: &str, model: &str, server: &Server) -> Self {
        let bodies = Arc::<AtomicUsize>::default();
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let spec = ToolSpec { name: "count".to_owned(), description: "Counts.".to_owned(), schema };
        let config_of = RequestConfig { provider: kind.into(), model: model.into(), ..RequestConfig::default() };
        let profile = AgentProfile {
            config: config_of,
            tools: vec![Arc::new(Counter(spec, Arc::clone(&bodies)))],
            ..AgentProfile::default()
        };
        let provider = everturn::providers::build(kind, &config(kind, &server.url), &std::path::Path::to_path_buf);
        let store = store.kill();
        let system = Builder::new()
            .provider(kind, provider.unwrap())
            .agent("a", profile)
            .start(Arc::new(store.clone()))
            .await
            .unwrap();
        system.booted().await;
        let session = SessionId::trusted("s");
        let agent = match system.open(&session).await {
            Ok(agent) => agent,
            Err(_) => {
                let id = Some(session);
                system.create(CreateSession { id, agent: "a".to_owned(), ..CreateSession::default() }).await.unwrap()
            }
        };
        Self { store, system, agent, bodies }
    }

    /// Sends, waits, and gives how the last turn ended.
    async fn turn(&self, text: &str) -> TurnReason {
        let id = Some(MessageId::trusted(text));
        let submit = Submit { kind: SubmitKind::Send, id, content: vec![Block::text(text)], source: None };
        self.agent.submit(submit).await.unwrap();
        assert_eq!(self.agent.when_idle().await, None);
        let end = self.log().await.into_iter().rev().find_map(|data| match data {
            EventData::TurnEnd(end) => Some(end.reason),
            _ => None,
        });
        end.unwrap()
    }

    async fn log(&self) -> Vec<EventData> {
        let events = self.system.events(self.agent.session(), Seq(0), 1_000).await.unwrap();
        events.iter().map(|event| event.body.data.clone()).collect()
    }

    /// An orderly end; the store is for the next life.
    async fn end(self) -> MemoryStore {
        self.system.shutdown(Duration::from_secs(60)).await;
        self.store
    }
}

/// BR-091, BR-092, BR-094, BR-095, scenarios 129 and 130: equal, empty and odd ids, an id of an earlier step, arguments
/// that are no JSON. Every call has its result, the log keeps what came, and every later request is legal: in the same
/// turn, after a restart, and when the session goes on with a provider of another kind.
#[tokio::test]
async fn odd_calls_harm_no_later_request() {
    let call = |index: usize, id: &str, arguments: &str| {
        let function = json!({"name": "count", "arguments": arguments});
        delta(&json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}), None)
    };
    let end = delta(&json!({}), Some("tool_calls"));
    let calls = [("x|1", "{}"), ("x|2", "{}"), ("", "{}"), ("broken", "{oops"), ("y", "{\"n\":1}")];
    let first: String = calls.iter().enumerate().map(|(at, (id, arguments))| call(at, id, arguments)).collect();
    let server = strict(vec![first + &end, call(0, "x|1", "{}") + &end, OPENAI.to_owned()]).await;
    let life = Life::begin(&MemoryStore::new(), "openai", "m", &server).await;
    assert_eq!(life.turn("one").await, TurnReason::Completed);
    assert_eq!(life.bodies.load(SeqCst), 5, "four of the first answer, one of the second");
    let log = life.log().await;
    let raw: Vec<&str> = log
        .iter()
        .filter_map(|data| match data {
            EventData::ToolCall(call) => Some(call.arguments.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(raw, ["{}", "{}", "{}", "{oops", "{\"n\":1}", "{}"]);
    let results = log.iter().filter(|data| matches!(data, EventData::ToolResult(_))).count();
    assert_eq!(results, raw.len());
    let mut store = life.end().await;
    // A restart, then another vendor.
    for (kind, answer) in [("openai", OPENAI), ("anthropic", ANTHROPIC)] {
        let other = strict(vec![answer.to_owned()]).await;
        let life = Life::begin(&store, kind, "m", &other).await;
        assert_eq!(life.turn(kind).await, TurnReason::Completed, "{:?}", other.asked.lock().unwrap());
        store = life.end().await;
    }
}

/// L-15, scenario 129: one id twice in one answer is malformed, and harms nothing behind it.
#[tokio::test]
async fn one_id_twice_in_one_answer() {
    let call = |index: usize| {
        json!({"type": "content_block_start", "index": index,
        "content_block": {"type": "tool_use", "id": "same", "name": "count", "input": {}}})
    };
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}});
    let first: String =
        [call(0), stop(0), call(1), stop(1), end, json!({"type": "message_stop"})].iter().map(event).collect();
    let server = strict(vec![first, ANTHROPIC.to_owned()]).await;
    let life = Life::begin(&MemoryStore::new(), "anthropic", "m", &server).await;
    let TurnReason::Error { failure } = life.turn("one").await else { panic!("taken") };
    assert_eq!((failure.code.as_str(), life.bodies.load(SeqCst)), ("MALFORMED_RESPONSE", 0));
    assert_eq!(life.turn("two").await, TurnReason::Completed);
    life.end().await;
}

/// BR-097, BR-098, BR-077: signed thinking beside parallel calls goes back byte for byte, in the same turn, with a
/// message behind it and after a restart; another model does not see it. What was sent once is sent the same again.
#[tokio::test]
async fn thinking_survives_everything_but_another_model() {
    let block = |index: usize, block: &Value, deltas: &[Value]| {
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        let deltas = deltas.iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta}));
        let stop = json!({"type": "content_block_stop", "index": index});
        std::iter::once(start).chain(deltas).chain([stop]).map(|value| event(&value)).collect::<String>()
    };
    let thinking = [
        json!({"type": "thinking_delta", "thinking": "  First \u{4f60}\n"}),
        json!({"type": "thinking_delta", "thinking": "then.\n"}),
        json!({"type": "signature_delta", "signature": "c2ln+/=="}),
    ];
    let first = block(0, &json!({"type": "thinking", "thinking": "", "signature": ""}), &thinking)
        + &block(1, &json!({"type": "tool_use", "id": "a", "name": "count", "input": {}}), &[])
        + &block(2, &json!({"type": "tool_use", "id": "b", "name": "count", "input": {}}), &[])
        + &event(&json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}))
        + &event(&json!({"type": "message_stop"}));
    let server = strict(vec![first, ANTHROPIC.to_owned()]).await;
    let life = Life::begin(&MemoryStore::new(), "anthropic", "m", &server).await;
    assert_eq!(life.turn("one").await, TurnReason::Completed);
    assert_eq!(life.turn("two").await, TurnReason::Completed);
    let store = life.end().await;
    let life = Life::begin(&store, "anthropic", "m", &server).await;
    assert_eq!(life.turn("three").await, TurnReason::Completed);
    let store = life.end().await;
    let life = Life::begin(&store, "anthropic", "other", &server).await;
    assert_eq!(life.turn("four").await, TurnReason::Completed);
    life.end().await;
    let asked = server.asked.lock().unwrap();
    let said = |at: usize| asked[at].body["messages"][1].clone();
    let whole = json!({"type": "thinking", "thinking": "  First \u{4f60}\nthen.\n", "signature": "c2ln+/=="});
    assert_eq!(said(1)["content"][0], whole);
    assert_eq!((asked.len(), said(1) == said(2), said(2) == said(3)), (5, true, true));
    assert_eq!(said(4)["content"][0]["type"], "tool_use", "{}", said(4));
}

/// BR-067, BR-085, BR-086, BR-089, scenarios 119, 120 and 144: half an answer is never a complete one; what is permanent
/// is not tried again, what may pass is.
#[tokio::test]
async fn half_answers_are_not_history() {
    let half = delta(&json!({"content": "hal"}), None);
    let error = |kind: &str| event(&json!({"error": {"type": kind, "message": "no"}}));
    for (first, code, requests) in [
        (half.clone(), "STREAM_CLOSED", 1),
        (half.clone() + "data: [DONE]\n\n", "STREAM_CLOSED", 1),
        (half.clone() + &error("server_error"), "", 2),
        (error("invalid_request_error"), "INVALID_REQUEST", 1),
        (half + &error("authentication_error"), "AUTH", 1),
        (String::new(), "", 2),
    ] {
        let server = strict(vec![first.clone(), OPENAI.to_owned()]).await;
        let life = Life::begin(&MemoryStore::new(), "openai", "m", &server).await;
        match life.turn("one").await {
            TurnReason::Error { failure } => assert_eq!(failure.code, code, "{first}"),
            reason => assert_eq!((reason, code), (TurnReason::Completed, ""), "{first}"),
        }
        assert_eq!(server.requests(), requests, "{first}");
        assert_eq!(life.turn("two").await, TurnReason::Completed);
        life.end().await;
        assert!(!server.asked.lock().unwrap().iter().any(|asked| asked.body.to_string().contains("\"hal\"")));
    }
}
