//! From the log to what the model sees: surface to messages, header and system reconciliation, digest (8).

mod canon;

pub use canon::{digest, messages_json};

use super::{LogState, Node};
use crate::{
    event::{
        Digest, Event, EventBody, EventData, HeaderReason, RequestConfig, RequestContext, RequestHeader, SurfaceOp,
        SystemMessage, SystemUpdate, ToolSpec, UserMessage,
    },
    ids::MessageId,
    message::{Block, Message, Role, ToolMessage},
};
use canon::canonical;
use imbl::Vector;
use std::sync::Arc;

/// A message of the derived history. It shares its event with the log.
#[derive(Debug, Clone)]
pub struct ModelMessage(Arc<Event>);

/// What a [`ModelMessage`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MessageView<'a> {
    /// The operator's instructions.
    System(&'a Message),
    /// Input.
    User(&'a Message),
    /// The model.
    Assistant(&'a Message),
    /// A tool's result.
    Tool(&'a ToolMessage),
}

impl ModelMessage {
    /// The message.
    pub fn view(&self) -> Option<MessageView<'_>> {
        let data = &self.0.body.data;
        if let EventData::SystemMessage(data) = data {
            Some(MessageView::System(&data.message))
        } else if let EventData::UserMessage(data) = data {
            Some(MessageView::User(&data.message))
        } else if let EventData::AssistantMessage(data) = data {
            Some(MessageView::Assistant(&data.message))
        } else if let EventData::ToolResult(data) = data {
            Some(MessageView::Tool(&data.message))
        } else {
            None
        }
    }

    /// The event that it comes from.
    pub fn event(&self) -> &Arc<Event> {
        &self.0
    }
}

/// The history that the model sees (8.2). Equal surfaces give equal messages, byte for byte (M-8).
///
/// Nodes map one to one (M-1); a response without any block (M-2) and an emptied system message (8.3) are left out.
pub fn derive_messages(surface: &Vector<Node>) -> Vec<ModelMessage> {
    let messages = surface.iter().map(|node| ModelMessage(Arc::clone(&node.event)));
    messages
        .filter(|message| match message.view() {
            Some(MessageView::System(said) | MessageView::Assistant(said)) => !said.content.is_empty(),
            Some(MessageView::User(_) | MessageView::Tool(_)) => true,
            None => false,
        })
        .collect()
}

/// A frozen request: nobody changes it any more (T-11).
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// Settings and tools.
    pub header: Arc<RequestHeader>,
    /// The history.
    pub messages: Arc<[ModelMessage]>,
    /// Digest of both (I-27).
    pub digest: Digest,
}

/// The request that follows from the log (M-33), or `None` while no header is logged.
pub fn derive_request(state: &LogState) -> Option<ModelRequest> {
    let header = Arc::clone(state.header()?);
    let messages = derive_messages(state.surface());
    let digest = digest(&header.config, &messages, &header.tools);
    Some(ModelRequest { header, messages: messages.into(), digest })
}

/// What a step wants to send, and what the route said of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The rendered system prompt; empty for none.
    pub system: String,
    /// Id for the system message, should one be written.
    pub system_id: MessageId,
    /// The users of the batch; empty on retries (T-9).
    pub users: Vec<UserMessage>,
    /// Completed settings.
    pub config: RequestConfig,
    /// Which of them the adapter filled in.
    pub defaulted: Vec<String>,
    /// Visible tools, in any order.
    pub tools: Vec<ToolSpec>,
    /// How the route reads a changed system prompt.
    pub system_update: SystemUpdate,
    /// How many tokens fit.
    pub context_window: Option<u64>,
    /// What the route takes in.
    pub input_modalities: Option<Vec<String>>,
}

/// The atomic append of an admission or re-admission (8.3, 8.5): `[system] users [header] [context]`.
///
/// It is empty when nothing changed and there are no users.
pub fn reconcile(state: &LogState, admission: &Admission) -> Vec<EventBody> {
    let mut events: Vec<EventBody> = system(state, admission).into_iter().collect();
    events.extend(admission.users.iter().map(|user| EventBody::appended(user.clone().into())));
    events.extend(header(state, admission).map(EventBody::from));
    let context = RequestContext {
        provider: admission.config.provider.clone(),
        model: admission.config.model.clone(),
        context_window: admission.context_window,
        input_modalities: admission.input_modalities.clone(),
    };
    if state.context().is_none_or(|last| **last != context) {
        events.push(context.into());
    }
    events
}

/// The system message that makes the surface say what was rendered; `None` when it does (8.3).
fn system(state: &LogState, admission: &Admission) -> Option<EventBody> {
    let content = if admission.system.is_empty() { Vec::new() } else { vec![Block::text(admission.system.clone())] };
    let message = Message { id: admission.system_id.clone(), role: Role::System, content, source: None };
    let Some(live) = state.live_system() else {
        if message.content.is_empty() {
            return None;
        }
        let surface = if state.surface().is_empty() { SurfaceOp::Append } else { SurfaceOp::Prepend };
        return Some(with_op(SystemMessage { message }, surface));
    };
    if matches!(&live.body.data, EventData::SystemMessage(old) if old.message.content == message.content) {
        return None;
    }
    // An emptied prompt takes the place of the live one on every route: nothing could be added that says nothing.
    if admission.system_update == SystemUpdate::Append && !message.content.is_empty() {
        return Some(with_op(SystemMessage { message }, SurfaceOp::Append));
    }
    let at = state.surface().iter().position(|node| node.event.seq == live.seq)?;
    let at = u32::try_from(at).ok()?;
    Some(with_op(SystemMessage { message }, SurfaceOp::Replace { start: at, end: at }).citing(vec![live.seq]))
}

fn with_op(data: SystemMessage, surface: SurfaceOp) -> EventBody {
    EventBody { surface: Some(surface), ..EventBody::appended(data.into()) }
}

/// The header, where one is due (M-31).
fn header(state: &LogState, admission: &Admission) -> Option<RequestHeader> {
    let mut header = RequestHeader {
        config: admission.config.clone(),
        defaulted: admission.defaulted.clone(),
        tools: admission.tools.clone(),
        system_update: admission.system_update,
        reason: HeaderReason::Initial,
    };
    header.defaulted.sort();
    header.tools.sort_by(|a, b| a.name.cmp(&b.name));
    header.reason = match state.header() {
        None => HeaderReason::Initial,
        Some(_) if !state.opened().is_some_and(|opened| opened.header_since) => HeaderReason::Resume,
        Some(last) if same_header(last, &header) => return None,
        Some(_) => HeaderReason::Change,
    };
    Some(header)
}

/// Whether two headers ask for the same, whatever the order of keys and lists (M-31).
pub(crate) fn same_header(a: &RequestHeader, b: &RequestHeader) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    a.config == b.config
        && a.system_update == b.system_update
        && sorted(&a.defaulted) == sorted(&b.defaulted)
        && a.tools.len() == b.tools.len()
        && a.tools.iter().zip(&b.tools).all(|(a, b)| {
            (&a.name, &a.description) == (&b.name, &b.description)
                && (a.schema == b.schema || canonical(&a.schema.to_value()) == canonical(&b.schema.to_value()))
        })
}

#[cfg(test)]
mod tests;
