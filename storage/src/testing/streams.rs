//! Streams that fold to the messages of made-up logs, and brackets of compactions.

use crate::{
    RawJson,
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    event::*,
    message::{Block, plain_text},
};

pub(super) fn bracket(name: &str, outcome: &str) -> EventBody {
    let data = RawJson::from_value(&serde_json::json!({ "outcome": outcome }));
    EventData::Plugin(PluginEvent { type_name: name.into(), data }).into()
}

/// The settlement with the stream that it is the fold of.
pub(super) fn streamed(mut body: EventBody) -> EventBody {
    if let EventData::AssistantMessage(data) = &mut body.data {
        data.stream = stream_of(data);
    }
    body
}

fn stream_of(data: &AssistantMessage) -> StreamRecord {
    let mut record = StreamRecord::default();
    for (index, block) in (0_u64..).zip(&data.message.content) {
        match block {
            Block::ToolCall { call_id, name, arguments, .. } => {
                let kind = BlockKind::ToolCall { call_id: call_id.clone(), name: name.clone() };
                record.push(1, Chunk::BlockStart { index, kind });
                record.push(2, Chunk::CallFragment { index, text: arguments.clone() });
            }
            Block::Text { .. } | Block::Reasoning { .. } | Block::Image { .. } => {
                record.push(1, Chunk::BlockStart { index, kind: BlockKind::Text });
                record.push(2, Chunk::TextDelta { index, text: plain_text(std::slice::from_ref(block)) });
            }
        }
        record.push(3, Chunk::BlockEnd { index });
    }
    if let Some(usage) = data.usage {
        record.push(4, Chunk::Usage { usage });
    }
    let finish = match data.finish {
        FinishLabel::Stop => Finish::Stop,
        FinishLabel::ToolUse => Finish::ToolUse,
        FinishLabel::MaxTokens => Finish::MaxTokens,
        FinishLabel::Aborted => Finish::Aborted,
    };
    record.push(5, Chunk::Finish { finish });
    record
}
