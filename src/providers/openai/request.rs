//! From a frozen request to the body of `POST /chat/completions`: pure.

use super::OpenAiOptions;
use crate::providers::{
    config::ReplayReasoning,
    history::{HistoryRules, ImageSource, Piece, Said, WireResult, WireTurn, normalize},
    wire::ToolNames,
};
use everturn_storage::{
    event::{RequestConfig, ToolSpec},
    log::request::MessageView,
};
use serde_json::{Map, Value, json};

/// Text that lets a user speak behind a tool where the template of the server does not allow it.
const BRIDGE: &str = "(continuing)";

/// The body of one request. Equal requests give equal bytes.
pub(super) fn body(
    options: &OpenAiOptions,
    config: &RequestConfig,
    tools: &[ToolSpec],
    views: &[MessageView<'_>],
) -> Value {
    let mut body = Map::new();
    body.insert("model".into(), config.model.as_str().into());
    body.insert("messages".into(), Value::Array(messages(options, tools, views)));
    if !tools.is_empty() {
        let names = tool_names(tools);
        body.insert("tools".into(), tools.iter().map(|tool| declare(tool, &names)).collect());
    }
    if let Some(effort) = &config.reasoning_effort {
        body.insert("reasoning_effort".into(), effort.as_str().into());
    }
    if let Some(temperature) = config.temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(max_tokens) = config.max_tokens {
        body.insert(options.max_tokens_field.clone(), max_tokens.into());
    }
    if let Some(stop) = config.stop.as_ref().filter(|stop| !stop.is_empty()) {
        body.insert("stop".into(), stop.as_slice().into());
    }
    body.insert("stream".into(), true.into());
    if options.stream_usage {
        body.insert("stream_options".into(), json!({"include_usage": true}));
    }
    Value::Object(body)
}

/// Names of the declared tools on the wire.
pub(super) fn tool_names(tools: &[ToolSpec]) -> ToolNames {
    ToolNames::of(tools.iter().map(|tool| tool.name.as_str()))
}

fn declare(tool: &ToolSpec, names: &ToolNames) -> Value {
    json!({"type": "function", "function": {
        "name": names.to_wire(&tool.name),
        "description": tool.description,
        "parameters": crate::providers::history::object_schema(tool),
    }})
}

fn messages(options: &OpenAiOptions, tools: &[ToolSpec], views: &[MessageView<'_>]) -> Vec<Value> {
    let rules = HistoryRules { provider: &options.provider, images: options.images, ids: options.ids };
    // Only reasoning that this provider made has state, and the state says under which name it came.
    let history = normalize(views, rules, &tool_names(tools), &|_, state| state.is_some());
    let mut out = Vec::new();
    out.extend(history.system.map(|text| json!({"role": "system", "content": text})));
    let last_user = history.turns.iter().rposition(|turn| matches!(turn, WireTurn::User(_)));
    let mut images = Vec::new();
    for (at, turn) in history.turns.iter().enumerate() {
        match turn {
            WireTurn::User(pieces) => {
                let pieces = std::mem::take(&mut images).into_iter().chain(pieces).collect::<Vec<_>>();
                input(options, &pieces, &mut out);
            }
            WireTurn::Assistant(said) => {
                input(options, &std::mem::take(&mut images), &mut out);
                let reasoning = match options.replay_reasoning {
                    ReplayReasoning::Never => false,
                    ReplayReasoning::Loop => last_user.is_none_or(|user| at > user),
                    ReplayReasoning::Always => true,
                };
                out.push(assistant(said, reasoning));
            }
            WireTurn::Results(results) => results.iter().for_each(|result| out.push(tool(result, &mut images))),
        }
    }
    input(options, &images, &mut out);
    out
}

/// Writes input, if there is any.
fn input(options: &OpenAiOptions, pieces: &[&Piece<'_>], out: &mut Vec<Value>) {
    if pieces.is_empty() {
        return;
    }
    if options.bridge_user_after_tool && out.last().is_some_and(|before| before["role"] == "tool") {
        out.push(json!({"role": "assistant", "content": BRIDGE}));
    }
    out.push(json!({"role": "user", "content": content(pieces)}));
}

/// The message of a tool carries text only; its images follow as input.
fn tool<'h>(result: &'h WireResult<'_>, images: &mut Vec<&'h Piece<'h>>) -> Value {
    let mut texts = Vec::new();
    for piece in &result.content {
        match piece {
            Piece::Text(text) => texts.push(text.as_ref()),
            Piece::Image { .. } => {
                texts.push("[an image, shown behind the tool results]");
                images.push(piece);
            }
        }
    }
    json!({"role": "tool", "tool_call_id": result.id, "content": texts.join("\n\n")})
}

/// One text where there are only texts: many servers read nothing else.
fn content(pieces: &[&Piece<'_>]) -> Value {
    let texts: Vec<&str> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_ref()),
            Piece::Image { .. } => None,
        })
        .collect();
    if texts.len() == pieces.len() {
        return texts.join("\n\n").into();
    }
    pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => json!({"type": "text", "text": text}),
            Piece::Image { media_type, source } => {
                let url = match source {
                    ImageSource::Base64(data) => format!("data:{media_type};base64,{data}"),
                    ImageSource::Url(url) => (*url).to_owned(),
                };
                json!({"type": "image_url", "image_url": {"url": url}})
            }
        })
        .collect()
}

fn assistant(said: &[Said<'_>], with_reasoning: bool) -> Value {
    let mut text = String::new();
    let mut seam = false;
    let mut calls = Vec::new();
    let mut reasoning = Map::new();
    for part in said {
        match part {
            Said::Seam => seam = true,
            Said::Text(more) => {
                if std::mem::take(&mut seam) && !text.is_empty() {
                    text.push_str("\n\n");
                }
                text.push_str(more);
            }
            Said::Call { id, name, arguments, state } => {
                let mut call =
                    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
                if let (Some(Ok(extra)), Some(call)) = (state.map(serde_json::from_str::<Value>), call.as_object_mut())
                {
                    call.insert("extra_content".into(), extra);
                }
                calls.push(call);
            }
            Said::Reasoning { text, state } if with_reasoning => add_reasoning(&mut reasoning, text, *state),
            Said::Reasoning { .. } => {}
        }
    }
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    message.insert("content".into(), if text.is_empty() { Value::Null } else { text.into() });
    message.extend(reasoning);
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Value::Object(message)
}

/// Gives reasoning back under the names that it came with.
fn add_reasoning(out: &mut Map<String, Value>, text: &str, state: Option<&str>) {
    let Some(Ok(state)) = state.map(serde_json::from_str::<Value>) else { return };
    if let Some(field) = state.get("field").and_then(Value::as_str)
        && !text.is_empty()
    {
        match out.get_mut(field) {
            Some(Value::String(all)) => all.push_str(text),
            _ => {
                out.insert(field.to_owned(), text.into());
            }
        }
    }
    if let Some(Value::Array(details)) = state.get("details") {
        match out.get_mut("reasoning_details") {
            Some(Value::Array(all)) => all.extend(details.iter().cloned()),
            _ => {
                out.insert("reasoning_details".into(), details.clone().into());
            }
        }
    }
}
