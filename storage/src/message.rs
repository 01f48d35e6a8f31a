//! What people and models say: content blocks, messages, usage, failures.

use crate::{
    dual::{RawJson, dual_enum},
    ids::{CallId, MessageId},
    limits::FAILURE_MESSAGE_MAX_BYTES,
};
use serde::{Deserialize, Serialize};

/// Opaque state that one provider wants back unchanged, such as the signature of a reasoning block.
///
/// It is only ever given back to the provider that made it (5.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// The provider that made it.
    pub provider: String,
    /// Its text, byte for byte.
    pub data: String,
}

dual_enum! {
    /// One piece of content.
    pub enum Block as "Block", tag "type", case "snake_case" {
        /// Text.
        Text {
            /// The text.
            text: String,
            /// What the provider wants back with it.
            replay: Option<Replay>,
        },
        /// What a model thought before it spoke.
        Reasoning {
            /// The text; may be empty when the provider sends only opaque state.
            text: String,
            /// What the provider wants back with it.
            replay: Option<Replay>,
        },
        /// A tool call. Only assistants make them.
        ToolCall {
            /// Unique in its message.
            call_id: CallId,
            /// The tool's name as the model gave it.
            name: String,
            /// The arguments as the model sent them, which need not be JSON (L-15).
            arguments: String,
            /// What the provider wants back with it.
            replay: Option<Replay>,
        },
        /// An image, inline or by reference.
        Image {
            /// For example `image/png`.
            media_type: String,
            /// The bytes in base64.
            data: Option<String>,
            /// Where it is, when it is not inline.
            url: Option<String>,
        },
    }
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), replay: None }
    }

    /// Whether it has something that a person could see: a character that is no white space.
    pub fn is_visible(&self) -> bool {
        match self {
            Self::Text { text, .. } | Self::Reasoning { text, .. } => !text.trim().is_empty(),
            Self::ToolCall { .. } | Self::Image { .. } => true,
        }
    }
}

/// The texts of `blocks`, one after the other, without reasoning.
pub fn plain_text(blocks: &[Block]) -> String {
    let mut out = String::new();
    for block in blocks {
        match block {
            Block::Text { text, .. } => out.push_str(text),
            Block::Reasoning { .. } | Block::ToolCall { .. } | Block::Image { .. } => {}
        }
    }
    out
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operator's instructions.
    System,
    /// A person, another program, or context.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// A message of a system, a user or an assistant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Its id.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Vec<Block>,
    /// Where it came from, in the caller's words. Never shown to the model.
    pub source: Option<String>,
}

/// The answer of a tool to one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolMessage {
    /// Its id.
    pub id: MessageId,
    /// Always [`Role::Tool`].
    pub role: Role,
    /// The call that it answers, in the same step.
    pub call_id: CallId,
    /// What the model reads.
    pub content: Vec<Block>,
    /// Whether it tells of a failure.
    pub is_error: bool,
}

/// Tokens of one attempt, in disjoint counts (L-13).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// Input that was neither read from nor written to a cache.
    pub input: u64,
    /// Input read from the provider's cache.
    pub cache_read: u64,
    /// Input written to the provider's cache.
    pub cache_write: u64,
    /// Output without reasoning.
    pub output: u64,
    /// Reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

/// Why something did not work, as data (5.5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// A code of the table in 5.5, or a third party's own.
    pub code: String,
    /// One sentence for people, at most [`FAILURE_MESSAGE_MAX_BYTES`], without secrets.
    pub message: String,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
    /// How long the provider asked to wait.
    pub retry_after_ms: Option<u64>,
    /// The provider's name for the request.
    pub request_id: Option<String>,
    /// More, for people who look closer.
    pub detail: Option<RawJson>,
}

impl Failure {
    /// A failure with a code and a sentence; longer sentences are cut at a character.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message = message.into();
        truncate_utf8(&mut message, FAILURE_MESSAGE_MAX_BYTES);
        Self { code: code.into(), message, status: None, retry_after_ms: None, request_id: None, detail: None }
    }
}

/// Cuts `text` to at most `max_bytes`, never inside a character.
pub fn truncate_utf8(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

/// The codes of 5.5 that the core itself raises or looks for.
pub mod code {
    #![allow(missing_docs)]
    pub const RATE_LIMIT: &str = "RATE_LIMIT";
    pub const SERVER: &str = "SERVER";
    pub const TIMEOUT: &str = "TIMEOUT";
    pub const TRANSPORT: &str = "TRANSPORT";
    pub const EMPTY_RESPONSE: &str = "EMPTY_RESPONSE";
    pub const STREAM_CLOSED: &str = "STREAM_CLOSED";
    pub const MALFORMED_RESPONSE: &str = "MALFORMED_RESPONSE";
    pub const INVALID_RESPONSE: &str = "INVALID_RESPONSE";
    pub const CONTEXT_WINDOW_EXCEEDED: &str = "CONTEXT_WINDOW_EXCEEDED";
    pub const INVALID_REQUEST: &str = "INVALID_REQUEST";
    pub const AUTH: &str = "AUTH";
    pub const QUOTA: &str = "QUOTA";
    pub const CONTENT_FILTER: &str = "CONTENT_FILTER";
    pub const INSUFFICIENT_SYSTEM_RESOURCE: &str = "INSUFFICIENT_SYSTEM_RESOURCE";
    pub const ABORTED: &str = "ABORTED";
    pub const UNSUPPORTED_REASONING_EFFORT: &str = "UNSUPPORTED_REASONING_EFFORT";
    pub const UNSUPPORTED_CONTENT: &str = "UNSUPPORTED_CONTENT";
    pub const INVALID_MODEL: &str = "INVALID_MODEL";
    pub const UNKNOWN_MODEL: &str = "UNKNOWN_MODEL";
    pub const NO_MODEL_SELECTED: &str = "NO_MODEL_SELECTED";
    pub const NO_ADAPTER: &str = "NO_ADAPTER";
    pub const INVALID_PREPARED_CALL: &str = "INVALID_PREPARED_CALL";
    pub const MISSING_CREDENTIAL: &str = "MISSING_CREDENTIAL";
    pub const INVALID_CREDENTIAL: &str = "INVALID_CREDENTIAL";
    pub const EXTENSION: &str = "EXTENSION";
    pub const INVALID_REQUEST_PROPOSAL: &str = "INVALID_REQUEST_PROPOSAL";
    pub const CHECKPOINT: &str = "CHECKPOINT";
    pub const JOURNAL: &str = "JOURNAL";
    pub const STEP_LIMIT: &str = "STEP_LIMIT";
    pub const STOP_LOOP: &str = "STOP_LOOP";
    pub const UNKNOWN: &str = "UNKNOWN";
}
