//! From a frozen request to the body of `POST /messages`: pure.

use super::{AnthropicOptions, Effort, response::State};
use crate::providers::{
    history::{HistoryRules, ImageSource, Piece, Said, WireHistory, WireResult, WireTurn, normalize, object_schema},
    wire::{IdRule, ToolNames},
};
use everturn_storage::{
    event::{RequestConfig, ToolSpec},
    log::request::MessageView,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Longest call id.
const ID_MAX: usize = 64;

/// What a user says where the protocol wants one and the history has none.
const FILLER: &str = "(continue)";

/// The body of one request. Equal requests give equal bytes.
pub(super) fn body(
    options: &AnthropicOptions,
    config: &RequestConfig,
    effort: Effort<'_>,
    tools: &[ToolSpec],
    views: &[MessageView<'_>],
) -> Value {
    let names = tool_names(tools);
    let rules = HistoryRules { provider: &options.provider, images: options.images, ids: IdRule::Word(ID_MAX) };
    let keeps = |text: &str, state: Option<&str>| thinking(text, state, &config.model).is_some();
    let history = normalize(views, rules, &names, &keeps);
    let mut body = Map::new();
    body.insert("model".into(), config.model.as_str().into());
    body.insert("max_tokens".into(), config.max_tokens.unwrap_or(super::DEFAULT_MAX_TOKENS).into());
    if let Some(system) = &history.system {
        body.insert("system".into(), system.as_str().into());
    }
    let declared = declared(tools, &names, &history);
    if !declared.is_empty() {
        body.insert("tools".into(), declared.into());
        if tools.is_empty() {
            body.insert("tool_choice".into(), json!({"type": "none"}));
        }
    }
    body.insert("messages".into(), messages(&history, &config.model).into());
    match effort {
        Effort::Unset => {}
        Effort::Off => drop(body.insert("thinking".into(), json!({"type": "disabled"}))),
        Effort::Budget(tokens) => {
            body.insert("thinking".into(), json!({"type": "enabled", "budget_tokens": tokens}));
        }
        Effort::Word(word) => {
            body.insert("thinking".into(), json!({"type": "adaptive"}));
            body.insert("output_config".into(), json!({"effort": word}));
        }
    }
    if let Some(temperature) = config.temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(stop) = config.stop.as_ref().filter(|stop| !stop.is_empty()) {
        body.insert("stop_sequences".into(), stop.as_slice().into());
    }
    body.insert("stream".into(), true.into());
    Value::Object(body)
}

/// Names of the declared tools on the wire.
pub(super) fn tool_names(tools: &[ToolSpec]) -> ToolNames {
    ToolNames::of(tools.iter().map(|tool| tool.name.as_str()))
}

/// The tools of the request. A history with calls is refused without any, so that those of the history are declared
/// when the agent has none any more.
fn declared(tools: &[ToolSpec], names: &ToolNames, history: &WireHistory<'_>) -> Vec<Value> {
    if !tools.is_empty() {
        return tools
            .iter()
            .map(|tool| {
                json!({
                    "name": names.to_wire(&tool.name),
                    "description": tool.description,
                    "input_schema": object_schema(tool),
                })
            })
            .collect();
    }
    let mut gone = BTreeSet::new();
    for turn in &history.turns {
        if let WireTurn::Assistant(said) = turn {
            gone.extend(said.iter().filter_map(|said| match said {
                Said::Call { name, .. } => Some(name.as_str()),
                Said::Text(_) | Said::Reasoning { .. } | Said::Seam => None,
            }));
        }
    }
    let declare =
        |name| json!({"name": name, "description": "No longer available.", "input_schema": {"type": "object"}});
    gone.into_iter().map(declare).collect()
}

/// Users and assistants in strict turn, beginning and ending with a user; results lead the user that follows them.
fn messages(history: &WireHistory<'_>, model: &str) -> Vec<Value> {
    let mut out: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut add = |role: &'static str, content: Vec<Value>| match out.last_mut() {
        Some((before, blocks)) if *before == role => blocks.extend(content),
        _ => out.push((role, content)),
    };
    if !matches!(history.turns.first(), Some(WireTurn::User(_))) {
        add("user", vec![json!({"type": "text", "text": FILLER})]);
    }
    for turn in &history.turns {
        match turn {
            WireTurn::User(pieces) => add("user", pieces.iter().map(piece).collect()),
            WireTurn::Assistant(said) => add("assistant", said.iter().filter_map(|said| block(said, model)).collect()),
            WireTurn::Results(results) => add("user", results.iter().map(result).collect()),
        }
    }
    if matches!(history.turns.last(), Some(WireTurn::Assistant(_))) {
        // Words put into the model's mouth are refused by newer models.
        add("user", vec![json!({"type": "text", "text": FILLER})]);
    }
    out.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn result(result: &WireResult<'_>) -> Value {
    let mut out = json!({
        "type": "tool_result",
        "tool_use_id": result.id,
        "content": result.content.iter().map(piece).collect::<Vec<Value>>(),
    });
    if result.is_error {
        out["is_error"] = true.into();
    }
    out
}

fn piece(piece: &Piece<'_>) -> Value {
    match piece {
        Piece::Text(text) => json!({"type": "text", "text": text}),
        Piece::Image { media_type, source: ImageSource::Base64(data) } => {
            json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
        }
        Piece::Image { source: ImageSource::Url(url), .. } => {
            json!({"type": "image", "source": {"type": "url", "url": url}})
        }
    }
}

fn block(said: &Said<'_>, model: &str) -> Option<Value> {
    match said {
        Said::Text(text) => Some(json!({"type": "text", "text": text})),
        Said::Reasoning { text, state } => thinking(text, *state, model),
        Said::Call { id, name, arguments, .. } => {
            // What is no object was replaced before.
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
        Said::Seam => None,
    }
}

/// A thinking block as it came, byte for byte, or nothing: half of one is refused, and so is one of another model
/// (BR-097).
fn thinking(text: &str, state: Option<&str>, model: &str) -> Option<Value> {
    match State::read(state?)? {
        State::Signed { model: made_by, signature } if made_by == model && !signature.is_empty() => {
            Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
        }
        State::Redacted { model: made_by, data } if made_by == model && !data.is_empty() => {
            Some(json!({"type": "redacted_thinking", "data": data}))
        }
        State::Signed { .. } | State::Redacted { .. } => None,
    }
}
