//! Histories for tests: by hand, and by lot.

use everturn_storage::{
    ids::{CallId, MessageId},
    log::request::MessageView,
    message::{Block, Message, Replay, Role, ToolMessage},
};
use proptest::prelude::*;

/// An owned message of a history.
#[derive(Debug, Clone)]
pub(super) enum Sample {
    System(Message),
    User(Message),
    Assistant(Message),
    Tool(ToolMessage),
}

impl Sample {
    pub(super) fn view(&self) -> MessageView<'_> {
        match self {
            Self::System(message) => MessageView::System(message),
            Self::User(message) => MessageView::User(message),
            Self::Assistant(message) => MessageView::Assistant(message),
            Self::Tool(message) => MessageView::Tool(message),
        }
    }
}

pub(super) fn views(samples: &[Sample]) -> Vec<MessageView<'_>> {
    samples.iter().map(Sample::view).collect()
}

fn message(role: Role, content: Vec<Block>) -> Message {
    Message { id: MessageId::trusted("m"), role, content, source: Some("somewhere".to_owned()) }
}

pub(super) fn system(text: &str) -> Sample {
    Sample::System(message(Role::System, vec![Block::text(text)]))
}

pub(super) fn user(text: &str) -> Sample {
    users(vec![Block::text(text)])
}

pub(super) fn users(content: Vec<Block>) -> Sample {
    Sample::User(message(Role::User, content))
}

pub(super) fn assistant(content: Vec<Block>) -> Sample {
    Sample::Assistant(message(Role::Assistant, content))
}

pub(super) fn result(call_id: &str, text: &str) -> Sample {
    results(call_id, vec![Block::text(text)], false)
}

pub(super) fn results(call_id: &str, content: Vec<Block>, is_error: bool) -> Sample {
    let (id, call_id) = (MessageId::trusted("t"), CallId::trusted(call_id));
    Sample::Tool(ToolMessage { id, role: Role::Tool, call_id, content, is_error })
}

pub(super) fn call(id: &str, name: &str, arguments: &str) -> Block {
    Block::ToolCall { call_id: CallId::trusted(id), name: name.into(), arguments: arguments.into(), replay: None }
}

pub(super) fn reasoning(text: &str, provider: &str, data: &str) -> Block {
    let replay = (!provider.is_empty()).then(|| Replay { provider: provider.into(), data: data.into() });
    Block::Reasoning { text: text.into(), replay }
}

pub(super) fn image(data: bool) -> Block {
    let (inline, url) = if data { (Some("AAAA".into()), None) } else { (None, Some("https://x/y.png".into())) };
    Block::Image { media_type: "image/png".into(), data: inline, url }
}

/// Any history, also such as the log would never allow: no rule of it may be needed for a legal request.
pub(super) fn any_history() -> impl Strategy<Value = Vec<Sample>> {
    let text = || prop::sample::select(vec!["", " ", "a", "b\nc", "你好"]);
    let id = || prop::sample::select(vec!["", "a", "a", "b", "x|1", "x|2", "call_1"]);
    let block = prop_oneof![
        3 => text().prop_map(Block::text),
        1 => (text(), prop::sample::select(vec!["", "p", "q"]), replay_data()).prop_map(|(t, p, d)| reasoning(t, p, d)),
        3 => (id(), prop::sample::select(vec!["time", "a.b", ""]), prop::sample::select(vec!["{}", "", "{oops", "[1]", "{\"z\":1}"]))
            .prop_map(|(id, name, arguments)| call(id, name, arguments)),
        1 => any::<bool>().prop_map(image),
    ];
    let content = || prop::collection::vec(block.clone(), 0..4);
    let sample = prop_oneof![
        1 => text().prop_map(system),
        3 => content().prop_map(users),
        4 => content().prop_map(assistant),
        4 => (id(), content(), any::<bool>()).prop_map(|(id, content, error)| results(id, content, error)),
    ];
    prop::collection::vec(sample, 0..14)
}

fn replay_data() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "{\"field\":\"reasoning_content\"}",
        "{\"signed\":{\"model\":\"m\",\"signature\":\"s\"}}",
        "{\"redacted\":{\"model\":\"m\",\"data\":\"r\"}}",
        "nonsense",
    ])
}
