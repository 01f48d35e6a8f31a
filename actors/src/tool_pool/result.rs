//! From what became of a call to its record.

use super::{
    output,
    types::{BatchConfig, Class, code},
};
use crate::{
    limits::{TOOL_CONTEXTS_MAX, TOOL_META_MAX_BYTES},
    ports::tool::{PostVerdict, ToolFailure, ToolNotes, ToolOutput},
};
use everturn_storage::{
    RawJson,
    event::{EventBody, EventData, InboxQueued, Item, Origin, Target, ToolCall, ToolError, ToolResult},
    ids::{ItemId, MessageId, Seq},
    log::CallRow,
    message::{Block, Message, Role, ToolMessage},
};

/// What became of a call, before it is logged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) content: Vec<Block>,
    pub(super) is_error: bool,
    pub(super) code: Option<String>,
    pub(super) meta: Option<RawJson>,
    pub(super) notes: ToolNotes,
    /// Whether it is a body's own, which post-policies look at.
    pub(super) real: bool,
}

impl Outcome {
    /// A result that is not a body's own. Contexts and the wish to conclude are gone.
    pub(super) fn error(code: &str, text: impl Into<String>) -> Self {
        Self {
            content: vec![Block::text(text)],
            is_error: true,
            code: Some(code.to_owned()),
            meta: None,
            notes: ToolNotes::default(),
            real: false,
        }
    }

    pub(super) fn ok(output: ToolOutput, notes: ToolNotes) -> Self {
        let ToolOutput { content, meta } = output;
        Self { content, is_error: false, code: None, meta, notes, real: true }
    }

    /// The tool's own failure. A core code from a tool gets the tool's name in front: core codes have one meaning.
    pub(super) fn failed(tool: &str, failure: ToolFailure, notes: ToolNotes) -> Self {
        let ToolFailure { code, content, meta } = failure;
        let code = code.map(|code| if code::CORE.contains(&&*code) { format!("{tool}:{code}") } else { code });
        Self { content, is_error: true, code, meta, notes: ToolNotes { conclude: false, ..notes }, real: true }
    }

    /// Step 10.
    pub(super) fn posted(self, verdict: Result<PostVerdict, String>) -> Self {
        match verdict {
            Ok(PostVerdict::Accept) => self,
            Ok(PostVerdict::Replace { content }) => Self { content, ..self },
            Ok(PostVerdict::Block { reason }) => {
                Self::error(code::BLOCKED, format!("The tool ran, but a policy withheld its output: {reason}"))
            }
            Err(why) => Self::error(
                code::POLICY_ERROR,
                format!("The tool ran, but a policy failed on its output, which is withheld: {why}"),
            ),
        }
    }

    /// Step 11.
    pub(super) fn bounded(self, limit_bytes: usize) -> Self {
        let notes = ToolNotes {
            contexts: self
                .notes
                .contexts
                .into_iter()
                .take(TOOL_CONTEXTS_MAX)
                .map(|context| output::cut(&context, limit_bytes))
                .collect(),
            conclude: self.notes.conclude,
        };
        Self { content: output::bounded(self.content, limit_bytes), notes, ..self }
    }
}

/// The record of a call.
pub(super) fn call_event(config: &BatchConfig, call: &CallRow) -> EventBody {
    ToolCall {
        turn: config.turn,
        step: config.step,
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    }
    .into()
}

/// The record of a result; it cites its call (I-15).
pub(super) fn result_event(
    config: &BatchConfig,
    call: &CallRow,
    called: Seq,
    class: Class,
    outcome: Outcome,
    id: String,
) -> EventBody {
    let error = outcome.code.map(|code| ToolError { name: call.name.clone(), code });
    let message = ToolMessage {
        id: MessageId::trusted(id),
        role: Role::Tool,
        call_id: call.call_id.clone(),
        content: outcome.content,
        is_error: outcome.is_error,
    };
    let meta = Some(meta(class, outcome.meta.as_ref()));
    EventBody::appended(ToolResult { turn: config.turn, step: config.step, message, error, meta }.into())
        .citing(vec![called])
}

/// The record of a context: it waits for the next claim and wakes nobody.
pub(super) fn context_event(tool: &str, text: String, fresh: &mut dyn FnMut() -> String) -> EventBody {
    let message = Message {
        id: MessageId::trusted(fresh()),
        role: Role::User,
        content: vec![Block::text(text)],
        source: Some(format!("tool:{tool}")),
    };
    let id = ItemId::trusted(fresh());
    InboxQueued {
        item: Item { id, target: Target::NextStep, wake: false, origin: Origin::Context, message },
        position: None,
    }
    .into()
}

/// Leaves out the contexts that the inbox has no room for; tells how many. They count like every other item.
pub(super) fn keep_contexts(events: &mut Vec<EventBody>, room: usize) -> usize {
    let (before, mut contexts) = (events.len(), 0);
    events.retain(|event| {
        let context = matches!(event.data, EventData::InboxQueued(_));
        contexts += usize::from(context);
        !context || contexts <= room
    });
    before - events.len()
}

/// The class, with what the tool said for user interfaces: its fields beside the class when it is an object.
fn meta(class: Class, own: Option<&RawJson>) -> RawJson {
    let mut fields = serde_json::Map::new();
    fields.insert("class".into(), class.name().into());
    match own {
        None => {}
        Some(own) if own.as_str().len() > TOOL_META_MAX_BYTES => {
            fields.insert("left_out_bytes".into(), own.as_str().len().into());
        }
        Some(own) => {
            let value = own.to_value();
            match value.as_object() {
                Some(own) => {
                    for (name, value) in own {
                        fields.entry(name).or_insert_with(|| value.clone());
                    }
                }
                None => {
                    fields.insert("value".into(), value);
                }
            }
        }
    }
    RawJson::from_value(&serde_json::Value::Object(fields))
}
