//! From the derived history to one that every provider takes: pure.
//!
//! The log keeps messages as they were said. On the wire users stand together (M-4), the results of a message's
//! calls stand directly behind it in call order, every call has exactly one result, nothing is empty, and nobody
//! speaks twice in a row (BR-052, BR-053).

use super::wire::{IdRule, ToolNames, WireIds};
use everturn_storage::{
    log::request::MessageView,
    message::{Block, Replay, ToolMessage},
};
use serde_json::Value;
use std::borrow::Cow;

/// What the route wants to see.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryRules<'a> {
    /// Which provider asks; only its own opaque state is given back (5.3).
    pub(super) provider: &'a str,
    /// Whether the route reads images.
    pub(super) images: bool,
    /// Which call ids it takes.
    pub(super) ids: IdRule,
}

/// A history that every provider takes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WireHistory<'a> {
    /// The live system prompt.
    pub(super) system: Option<String>,
    /// Who spoke, in turn.
    pub(super) turns: Vec<WireTurn<'a>>,
}

#[derive(Debug, PartialEq)]
pub(super) enum WireTurn<'a> {
    /// Not empty.
    User(Vec<Piece<'a>>),
    /// Holds text or a call.
    Assistant(Vec<Said<'a>>),
    /// One for each call of the turn before, in its order.
    Results(Vec<WireResult<'a>>),
}

/// A piece of input.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece<'a> {
    Text(Cow<'a, str>),
    Image { media_type: &'a str, source: ImageSource<'a> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageSource<'a> {
    Base64(&'a str),
    Url(&'a str),
}

/// A piece of what the model said.
#[derive(Debug, PartialEq)]
pub(super) enum Said<'a> {
    Text(&'a str),
    /// With the state that this provider made for it, if any.
    Reasoning {
        text: &'a str,
        state: Option<&'a str>,
    },
    Call {
        id: String,
        name: String,
        arguments: Cow<'a, str>,
        state: Option<&'a str>,
    },
    /// Here one message of the log ends and the next begins.
    Seam,
}

#[derive(Debug, PartialEq)]
pub(super) struct WireResult<'a> {
    pub(super) id: String,
    pub(super) content: Vec<Piece<'a>>,
    pub(super) is_error: bool,
}

/// Brings `views` into that form. `keeps` says which reasoning the route wants back, by its text and its state.
pub(super) fn normalize<'a>(
    views: &[MessageView<'a>],
    rules: HistoryRules<'_>,
    names: &ToolNames,
    keeps: &dyn Fn(&str, Option<&str>) -> bool,
) -> WireHistory<'a> {
    let mut builder =
        Builder { rules, ids: WireIds::new(rules.ids), out: WireHistory::default(), open: vec![], users: vec![] };
    for view in views {
        match view {
            MessageView::System(message) => {
                let text = everturn_storage::message::plain_text(&message.content);
                // The newest one is the live one (I-22).
                builder.out.system = Some(text).filter(|text| !text.trim().is_empty());
            }
            MessageView::User(message) => builder.user(&message.content),
            MessageView::Assistant(message) => builder.assistant(&message.content, names, keeps),
            MessageView::Tool(message) => builder.result(message),
        }
    }
    builder.settle();
    if builder.out.turns.is_empty() {
        builder.out.turns.push(WireTurn::User(vec![Piece::Text("(no input)".into())]));
    }
    builder.out
}

/// A call of the last assistant turn, and its result once that came.
struct Open<'a> {
    log_id: &'a str,
    wire_id: String,
    result: Option<&'a ToolMessage>,
}

struct Builder<'a, 'r> {
    rules: HistoryRules<'r>,
    ids: WireIds,
    out: WireHistory<'a>,
    open: Vec<Open<'a>>,
    users: Vec<Piece<'a>>,
}

impl<'a> Builder<'a, '_> {
    fn user(&mut self, content: &'a [Block]) {
        let pieces = pieces(content, self.rules.images);
        self.users.extend(pieces);
    }

    /// Pairs by position: the first call with this id that has no result yet (BR-094).
    fn result(&mut self, message: &'a ToolMessage) {
        let id = message.call_id.as_str();
        if let Some(open) = self.open.iter_mut().find(|open| open.log_id == id && open.result.is_none()) {
            open.result = Some(message);
            return;
        }
        // No provider takes a result without its call; what it says is kept.
        self.users.push(Piece::Text(format!("[result of the tool call {id:?}, which is not in this history]").into()));
        self.user(&message.content);
    }

    /// Writes the results that belong behind the last assistant turn, then the users behind them.
    fn settle(&mut self) {
        let images = self.rules.images;
        let results: Vec<WireResult<'a>> = std::mem::take(&mut self.open)
            .into_iter()
            .map(|open| {
                let (content, is_error) = match open.result {
                    Some(message) => (pieces(&message.content, images), message.is_error),
                    None => (vec![Piece::Text("(the result of this call is not known)".into())], true),
                };
                let content = if content.is_empty() { vec![Piece::Text("(no output)".into())] } else { content };
                WireResult { id: open.wire_id, content, is_error }
            })
            .collect();
        if !results.is_empty() {
            self.out.turns.push(WireTurn::Results(results));
        }
        let users = std::mem::take(&mut self.users);
        if !users.is_empty() {
            self.out.turns.push(WireTurn::User(users));
        }
    }

    fn assistant(&mut self, content: &'a [Block], names: &ToolNames, keeps: &dyn Fn(&str, Option<&str>) -> bool) {
        // One that says nothing is left out, as if it were not there (M-2).
        let speaks = |block: &Block| match block {
            Block::Text { text, .. } => !text.trim().is_empty(),
            Block::ToolCall { .. } => true,
            Block::Reasoning { .. } | Block::Image { .. } => false,
        };
        if !content.iter().any(speaks) {
            return;
        }
        self.settle();
        let own = |replay: &'a Option<Replay>| {
            replay.as_ref().filter(|replay| replay.provider == self.rules.provider).map(|replay| replay.data.as_str())
        };
        let mut said = Vec::new();
        for block in content {
            match block {
                Block::Text { text, .. } if text.trim().is_empty() => {}
                Block::Text { text, .. } => said.push(Said::Text(text)),
                Block::Reasoning { text, replay } => {
                    let state = own(replay);
                    if keeps(text, state) {
                        said.push(Said::Reasoning { text, state });
                    }
                }
                Block::ToolCall { call_id, name, arguments, replay } => {
                    let id = self.ids.next(call_id.as_str());
                    self.open.push(Open { log_id: call_id.as_str(), wire_id: id.clone(), result: None });
                    let arguments = wire_arguments(arguments);
                    said.push(Said::Call { id, name: names.to_wire(name), arguments, state: own(replay) });
                }
                // Models do not say images; an imported history may claim so.
                Block::Image { .. } => {}
            }
        }
        match self.out.turns.last_mut() {
            Some(WireTurn::Assistant(before)) => {
                before.push(Said::Seam);
                before.extend(said);
            }
            Some(WireTurn::User(_) | WireTurn::Results(_)) | None => self.out.turns.push(WireTurn::Assistant(said)),
        }
    }
}

/// Arguments as providers take them: text that is no JSON object goes as `{}` (Z3, BR-091).
fn wire_arguments(text: &str) -> Cow<'_, str> {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) => Cow::Borrowed(text),
        Ok(_) | Err(_) => Cow::Borrowed("{}"),
    }
}

/// The pieces of input in `content`, without blank texts.
fn pieces(content: &[Block], images: bool) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    for block in content {
        match block {
            Block::Text { text, .. } | Block::Reasoning { text, .. } => {
                if !text.trim().is_empty() {
                    out.push(Piece::Text(text.as_str().into()));
                }
            }
            // Only assistants make calls; elsewhere one is something that is talked about (BR-053).
            Block::ToolCall { name, arguments, .. } => {
                out.push(Piece::Text(format!("[tool call {name} {arguments}]").into()));
            }
            Block::Image { media_type, data, url } => {
                out.push(image(media_type, data.as_deref(), url.as_deref(), images))
            }
        }
    }
    out
}

fn image<'a>(media_type: &'a str, data: Option<&'a str>, url: Option<&'a str>, images: bool) -> Piece<'a> {
    let source = data.map(ImageSource::Base64).or(url.map(ImageSource::Url));
    match source.filter(|_| images) {
        Some(source) => Piece::Image { media_type, source },
        None => Piece::Text(format!("[image of type {media_type}, not shown]").into()),
    }
}

/// The schema of a tool's arguments; one that is no schema of an object becomes the empty one, which every provider
/// takes.
pub(super) fn object_schema(tool: &everturn_storage::event::ToolSpec) -> Value {
    let Value::Object(mut schema) = tool.schema.to_value() else {
        return serde_json::json!({"type": "object", "properties": {}});
    };
    schema.entry("type").or_insert_with(|| "object".into());
    Value::Object(schema)
}

#[cfg(test)]
mod tests;
