//! The questions of a check: requests that no log holds.

use everturn_actors::ports::{ModelAdapter, PrepareRequest, Signal};
use everturn_storage::{
    RawJson,
    assemble::Assembler,
    chunk::{Finish, StreamRecord},
    event::{
        AssistantMessage, Digest, Event, EventBody, EventData, FinishLabel, HeaderReason, Origin, RequestConfig,
        RequestHeader, SystemUpdate, ToolResult, ToolSpec, UserMessage,
    },
    ids::{Attempt, CallId, ItemId, MessageId, Seq, SessionId, Step, Turn},
    log::{
        Node,
        request::{ModelRequest, derive_messages, digest},
    },
    message::{Block, Failure, Message, Role, ToolMessage, Usage, code},
};
use futures::StreamExt as _;
use std::sync::Arc;
use tokio::time::Instant;

/// Room for the answer, and for a model that thinks before it speaks.
const MAX_TOKENS: u32 = 1_024;

/// The tool that the model is asked to call.
const TOOL: &str = "report_ready";

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Question<'a> {
    /// For a word.
    Text,
    /// For a call of a tool.
    Tool,
    /// The model's call, its result, and a user behind it: what a steered agent sends.
    Result(&'a [Block]),
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) blocks: Vec<Block>,
    pub(super) usage: Option<Usage>,
    pub(super) first_chunk: Option<Instant>,
}

impl Question<'_> {
    /// Asks it.
    pub(super) async fn ask(
        self,
        (provider, model): (&str, &str),
        adapter: &dyn ModelAdapter,
        signal: &Signal,
    ) -> Result<Heard, Failure> {
        let config = RequestConfig {
            provider: provider.to_owned(),
            model: model.to_owned(),
            max_tokens: Some(MAX_TOKENS),
            ..RequestConfig::default()
        };
        let session = SessionId::trusted("check");
        let prepare = PrepareRequest { session, config, modalities: vec!["text".to_owned()] };
        let prepared = adapter.prepare(prepare, signal.clone()).await?;
        let request = self.request(prepared.config, prepared.defaulted);
        let mut stream = prepared.call.dispatch(request, signal.clone());
        let (mut assembler, mut first_chunk) = (Assembler::new(), None);
        while let Some(chunk) = stream.next().await {
            first_chunk.get_or_insert_with(Instant::now);
            assembler.push(&chunk)?;
            if assembler.finish().is_some() {
                break;
            }
        }
        let mut calls = 0_u32;
        let new_id = || {
            calls += 1;
            CallId::trusted(format!("call_{calls}"))
        };
        let folded = assembler.fold(new_id).ok_or_else(|| assembler.closed_early())??;
        match folded.finish {
            Finish::Error { failure } => Err(failure),
            Finish::Aborted => Err(Failure::new(code::ABORTED, "the check was cancelled")),
            Finish::Stop | Finish::ToolUse | Finish::MaxTokens => {
                Ok(Heard { blocks: folded.blocks, usage: folded.usage, first_chunk })
            }
        }
    }

    fn request(self, config: RequestConfig, defaulted: Vec<String>) -> ModelRequest {
        let (events, tools) = match self {
            Self::Text => (vec![user("Answer with the single word: ready")], Vec::new()),
            Self::Tool => (vec![wish()], tool()),
            Self::Result(said) => {
                let mut events = vec![wish(), answer(&config, said)];
                events.extend(said.iter().filter_map(result));
                events.push(user("Now answer with the single word: ready"));
                (events, tool())
            }
        };
        let nodes = (0..).zip(events).map(|(seq, (role, data))| {
            let body = EventBody::appended(data);
            Node { event: Arc::new(Event { seq: Seq(seq), time_ms: 0, body }), role }
        });
        let messages = derive_messages(&nodes.collect());
        ModelRequest {
            digest: digest(&config, &messages, &tools),
            header: Arc::new(RequestHeader {
                config,
                defaulted,
                tools,
                system_update: SystemUpdate::Replace,
                reason: HeaderReason::Initial,
            }),
            messages: messages.into(),
        }
    }
}

fn tool() -> Vec<ToolSpec> {
    let schema = r#"{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}"#;
    let description = "Reports that the model is able to call tools.".to_owned();
    let spec = |schema| ToolSpec { name: TOOL.to_owned(), description, schema };
    RawJson::parse(schema).ok().map(spec).into_iter().collect()
}

fn wish() -> (Role, EventData) {
    user("Call the tool report_ready with the word ready.")
}

fn message(role: Role, content: Vec<Block>) -> Message {
    Message { id: MessageId::trusted("check"), role, content, source: None }
}

fn user(text: &str) -> (Role, EventData) {
    let message = message(Role::User, vec![Block::text(text)]);
    (Role::User, UserMessage { message, origin: Origin::Send, items: vec![ItemId::trusted("check")] }.into())
}

fn answer(config: &RequestConfig, said: &[Block]) -> (Role, EventData) {
    let answer = AssistantMessage {
        turn: Turn(1),
        step: Step(1),
        attempt: Attempt(1),
        message: message(Role::Assistant, said.to_vec()),
        finish: FinishLabel::ToolUse,
        usage: None,
        stream: StreamRecord::default(),
        interrupted: None,
        provider: config.provider.clone(),
        model: config.model.clone(),
        request_digest: Digest([0; 32]),
    };
    (Role::Assistant, answer.into())
}

/// The result of a call; other blocks have none.
fn result(block: &Block) -> Option<(Role, EventData)> {
    let Block::ToolCall { call_id, .. } = block else { return None };
    let message = ToolMessage {
        id: MessageId::trusted("check"),
        role: Role::Tool,
        call_id: call_id.clone(),
        content: vec![Block::text("ok")],
        is_error: false,
    };
    Some((Role::Tool, ToolResult { turn: Turn(1), step: Step(1), message, error: None, meta: None }.into()))
}
