//! Asking an adapter, in one line.

use everturn::{
    actors::ports::{ChunkStream, ModelAdapter, PrepareRequest, Prepared, Signal},
    providers::{ProviderConfig, build},
    storage::{
        assemble::Assembler,
        chunk::{Chunk, Finish},
        event::{
            Digest, Event, EventBody, EventData, HeaderReason, Origin, RequestConfig, RequestHeader, SystemUpdate,
            UserMessage,
        },
        ids::{CallId, ItemId, MessageId, Seq},
        log::{
            Node,
            request::{ModelRequest, derive_messages},
        },
        message::{Block, Failure, Message, Role, plain_text},
    },
};
use futures::StreamExt;
use std::{path::Path, sync::Arc};

pub(crate) fn config(kind: &str, url: &str) -> ProviderConfig {
    ProviderConfig { kind: kind.to_owned(), base_url: Some(url.to_owned()), ..ProviderConfig::default() }
}

pub(crate) fn adapter(config: &ProviderConfig) -> Arc<dyn ModelAdapter> {
    build("p", config, &Path::to_path_buf).unwrap()
}

/// A question of one user in text.
pub(crate) fn asks() -> PrepareRequest {
    PrepareRequest {
        session: "s".parse().unwrap(),
        config: RequestConfig { provider: "p".into(), model: "m".into(), ..RequestConfig::default() },
        modalities: vec!["text".to_owned()],
    }
}

pub(crate) fn request(config: RequestConfig) -> ModelRequest {
    let message =
        Message { id: MessageId::trusted("m"), role: Role::User, content: vec![Block::text("hello")], source: None };
    let data = UserMessage { message, origin: Origin::Send, items: vec![ItemId::trusted("m")] };
    let body = EventBody::appended(EventData::UserMessage(data));
    let node = Node { event: Arc::new(Event { seq: Seq(0), time_ms: 0, body }), role: Role::User };
    ModelRequest {
        header: Arc::new(RequestHeader {
            config,
            defaulted: Vec::new(),
            tools: Vec::new(),
            system_update: SystemUpdate::Replace,
            reason: HeaderReason::Initial,
        }),
        messages: derive_messages(&std::iter::once(node).collect()).into(),
        digest: Digest([0; 32]),
    }
}

pub(crate) async fn prepare(adapter: &dyn ModelAdapter) -> Prepared {
    adapter.prepare(asks(), Signal::new()).await.unwrap()
}

pub(crate) fn dispatch(prepared: Prepared, signal: &Signal) -> ChunkStream {
    prepared.call.dispatch(request(prepared.config), signal.clone())
}

/// What one question comes to: the text, or the failure.
pub(crate) async fn ask(adapter: &dyn ModelAdapter) -> Result<String, Failure> {
    let stream = dispatch(prepare(adapter).await, &Signal::new());
    outcome(&stream.collect::<Vec<_>>().await)
}

pub(crate) fn outcome(chunks: &[Chunk]) -> Result<String, Failure> {
    let mut assembler = Assembler::new();
    for chunk in chunks {
        assembler.push(chunk).map_err(Failure::from)?;
    }
    let Some(folded) = assembler.fold(|| CallId::trusted("new")) else { return Err(assembler.closed_early()) };
    let folded = folded.map_err(Failure::from)?;
    match folded.finish {
        Finish::Error { failure } => Err(failure),
        Finish::Aborted => Ok("aborted".to_owned()),
        Finish::Stop | Finish::ToolUse | Finish::MaxTokens => Ok(plain_text(&folded.blocks)),
    }
}

pub(crate) const OPENAI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

pub(crate) const OPENAI_BEGINNING: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\n";

pub(crate) const ANTHROPIC: &str = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"hello\"}}\n\n\
    data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
