//! What the data of events is made of: lists, origins, causes, reasons, settings, labels.

use crate::{
    dual::{RawJson, dual_enum},
    ids::{Attempt, ItemId, Step, Turn},
    message::{Failure, Message},
};
use serde::{Deserialize, Serialize};

/// Which list an item waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Waits for a turn of its own.
    NextTurn,
    /// Waits for the next claim of any kind.
    NextStep,
}

/// How an item came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `send`.
    Send,
    /// `steer`.
    Steer,
    /// `inject`.
    Inject,
    /// Made by a tool or a policy during the run.
    Context,
}

/// One complete caller message, or injected context, in the inbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// Which list it waits in.
    pub target: Target,
    /// Whether it obliges an idle driver to run.
    pub wake: bool,
    /// How it came in.
    pub origin: Origin,
    /// What was said.
    pub message: Message,
}

/// Why an item was removed without a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoveCause {
    /// A cancel cleared it.
    Canceled,
    /// An edit removed or moved it.
    Removed,
    /// The agent was disposed of with `Discard`.
    Disposed,
}

dual_enum! {
    /// Who asked for a cancel.
    pub enum Cause as "Cause", tag "kind", case "snake_case" {
        /// A person or program that holds the handle.
        User,
        /// The agent that spawned this one.
        Parent,
        /// A hook.
        Hook {
            /// In its words.
            reason: String,
        },
        /// Disposal or shutdown.
        Disposed,
    }
}

dual_enum! {
    /// How a turn ended.
    pub enum TurnReason as "TurnReason", tag "kind", case "kebab-case" {
        /// Nothing more was owed.
        Completed,
        /// A policy refused a proposal.
        Rejected {
            /// In its words.
            reason: String,
        },
        /// A cancel won.
        Aborted {
            /// Who asked.
            cause: Cause,
        },
        /// It failed.
        Error {
            /// Why.
            failure: Failure,
        },
        /// A response ended on the output limit.
        MaxTokens,
        /// The process died. Written by repair only.
        Interrupted,
    }
}

/// Settings of a request, completed by the route.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestConfig {
    /// Which provider.
    pub provider: String,
    /// Which model, exactly.
    pub model: String,
    /// How hard it shall think.
    pub reasoning_effort: Option<String>,
    /// Sampling temperature; finite.
    pub temperature: Option<f64>,
    /// Output limit in tokens.
    pub max_tokens: Option<u32>,
    /// Texts that end the output.
    pub stop: Option<Vec<String>>,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// Unique among the visible ones.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON schema of the arguments.
    pub schema: RawJson,
}

/// How a route reads a changed system prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemUpdate {
    /// The new one takes the place of the old one.
    #[default]
    Replace,
    /// The new one is added; the old one stays.
    Append,
}

/// Why a header was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderReason {
    /// The first of the log.
    Initial,
    /// The first admission after a `session/opened`.
    Resume,
    /// It differs from the last one.
    Change,
}

/// How a settled response ended; `aborted` exactly when it is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishLabel {
    /// Said all.
    Stop,
    /// Waits for tools.
    ToolUse,
    /// Output limit.
    MaxTokens,
    /// Cut by a cancel.
    Aborted,
}

/// What became of an attempt that left no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The provider or the transport said so.
    Failed,
    /// The stream broke its grammar, or our own code died on it.
    StreamError,
    /// Cancelled before anything visible.
    Cancelled,
}

/// SHA-256 of a request in canonical JSON (I-27, Z12); 64 hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 32]>::deserialize(deserializer).map(Self);
        }
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a digest has 64 hex digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut out = [0; 32];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(out))
    }
}

/// Which attempt of which step of which turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct AttemptId {
    pub turn: Turn,
    pub step: Step,
    pub attempt: Attempt,
}

/// `error` of a tool result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolError {
    /// The tool.
    pub name: String,
    /// A code of 6.5, or the tool's own.
    pub code: String,
}

/// How a retry was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryMode {
    /// The code is on the list and the budget is not spent.
    Normal,
    /// Every failure is retried.
    Always,
}

/// Why a process took the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenReason {
    /// It is new.
    Fresh,
    /// It existed and was balanced.
    Resume,
    /// It was seeded from another one.
    Fork,
    /// It existed, and something was left open.
    Repair,
}
