//! The canonical JSON of a request and its digest (Z12), and the JSON of a history.

use super::{MessageView, ModelMessage};
use crate::{
    event::{Digest, RequestConfig, ToolSpec},
    message::{Block, Replay, Role},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};

/// Config with its keys in order.
#[derive(Serialize)]
struct Config<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    model: &'a str,
    provider: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
}

/// A message with its keys in order. Its id and source are no part of a request.
#[derive(Serialize)]
struct Said<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a str>,
    content: Vec<Piece<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
    role: Role,
}

/// A block of any type with its keys in order.
#[derive(Serialize, Default)]
struct Piece<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Returned<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
}

#[derive(Serialize)]
struct Returned<'a> {
    data: &'a str,
    provider: &'a str,
}

impl<'a> From<&'a Replay> for Returned<'a> {
    fn from(replay: &'a Replay) -> Self {
        Self { data: &replay.data, provider: &replay.provider }
    }
}

impl<'a> From<&'a Block> for Piece<'a> {
    fn from(block: &'a Block) -> Self {
        let none = Self::default();
        match block {
            Block::Text { text, replay } => {
                Self { text: Some(text), replay: replay.as_ref().map(Into::into), r#type: "text", ..none }
            }
            Block::Reasoning { text, replay } => {
                Self { text: Some(text), replay: replay.as_ref().map(Into::into), r#type: "reasoning", ..none }
            }
            Block::ToolCall { call_id, name, arguments, replay } => Self {
                arguments: Some(arguments),
                call_id: Some(call_id.as_str()),
                name: Some(name),
                replay: replay.as_ref().map(Into::into),
                r#type: "tool_call",
                ..none
            },
            Block::Image { media_type, data, url } => Self {
                media_type: Some(media_type),
                data: data.as_deref(),
                url: url.as_deref(),
                r#type: "image",
                ..none
            },
        }
    }
}

impl<'a> Said<'a> {
    fn new(role: Role, content: &'a [Block]) -> Self {
        Self { call_id: None, content: content.iter().map(Into::into).collect(), is_error: None, role }
    }
}

impl<'a> From<MessageView<'a>> for Said<'a> {
    fn from(view: MessageView<'a>) -> Self {
        match view {
            MessageView::System(message) => Self::new(Role::System, &message.content),
            MessageView::User(message) => Self::new(Role::User, &message.content),
            MessageView::Assistant(message) => Self::new(Role::Assistant, &message.content),
            MessageView::Tool(message) => Self {
                call_id: Some(message.call_id.as_str()),
                is_error: Some(message.is_error),
                ..Self::new(Role::Tool, &message.content)
            },
        }
    }
}

/// A writer into a hash.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// SHA-256 of `{config, messages, tools}` in canonical JSON (Z12): sorted keys, no spaces, absent fields absent.
pub fn digest(config: &RequestConfig, messages: &[ModelMessage], tools: &[ToolSpec]) -> Digest {
    let mut out = Hashing(Sha256::new());
    // A hash takes everything and these values are plain data: writing cannot fail.
    let _ = write_canonical(&mut out, config, messages, tools);
    Digest(out.0.finalize().into())
}

/// Writes the canonical JSON that [`digest`] hashes.
pub(super) fn write_canonical(
    out: &mut impl Write,
    config: &RequestConfig,
    messages: &[ModelMessage],
    tools: &[ToolSpec],
) -> io::Result<()> {
    let config = Config {
        max_tokens: config.max_tokens,
        model: &config.model,
        provider: &config.provider,
        reasoning_effort: config.reasoning_effort.as_deref(),
        stop: config.stop.as_deref(),
        temperature: config.temperature,
    };
    out.write_all(b"{\"config\":")?;
    serde_json::to_writer(&mut *out, &config)?;
    out.write_all(b",\"messages\":[")?;
    for (i, view) in messages.iter().filter_map(ModelMessage::view).enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *out, &Said::from(view))?;
    }
    out.write_all(b"],\"tools\":[")?;
    for (i, tool) in tools.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        let schema = canonical(&tool.schema.to_value());
        let tool = json!({ "description": tool.description, "name": tool.name, "schema": schema });
        serde_json::to_writer(&mut *out, &tool)?;
    }
    out.write_all(b"]}")
}

/// The value with the keys of every object sorted.
pub(super) fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), canonical(&map[key]))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The JSON of a history: `{"role","content","call_id"?,"is_error"?}` a message, the blocks as SURFACE 7 has them.
pub fn messages_json(messages: &[ModelMessage]) -> Value {
    messages
        .iter()
        .filter_map(ModelMessage::view)
        .map(|view| {
            let said = Said::from(view);
            let mut out = Map::new();
            out.insert("role".into(), json!(said.role));
            out.insert("content".into(), Value::Array(said.content.iter().map(block_json).collect()));
            if let Some(call_id) = said.call_id {
                out.insert("call_id".into(), json!(call_id));
            }
            if let Some(is_error) = said.is_error {
                out.insert("is_error".into(), json!(is_error));
            }
            Value::Object(out)
        })
        .collect()
}

/// A block with its keys in the order of SURFACE 7.
fn block_json(piece: &Piece<'_>) -> Value {
    let mut out = Map::new();
    out.insert("type".into(), json!(piece.r#type));
    let texts = [
        ("text", piece.text),
        ("call_id", piece.call_id),
        ("name", piece.name),
        ("arguments", piece.arguments),
        ("media_type", piece.media_type),
        ("data", piece.data),
        ("url", piece.url),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            out.insert(key.into(), json!(text));
        }
    }
    if let Some(replay) = &piece.replay {
        out.insert("replay".into(), json!({ "provider": replay.provider, "data": replay.data }));
    }
    Value::Object(out)
}
