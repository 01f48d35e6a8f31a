//! The vocabulary of the log: one envelope, one enum (CONTRACT 2.1 to 2.3).
//!
//! The variants of [`EventData`] are on disk by number: new ones go to the end, none is ever moved or removed.

mod parts;

pub use parts::*;

use crate::{
    chunk::StreamRecord,
    dual::RawJson,
    ids::{Attempt, CallId, Epoch, ItemId, Proposal, RetryId, Seq, SessionId, Step, Turn},
    message::{Block, Failure, Message, ToolMessage, Usage},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An event of a log, as committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its place, given by the journal.
    pub seq: Seq,
    /// Wall clock in milliseconds since 1970, given by the journal. It may go backwards and orders nothing.
    pub time_ms: i64,
    /// What happened, with what it does to the surface.
    pub body: EventBody,
}

/// An event that has no place yet: what writers hand to the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct EventBody {
    /// What happened.
    pub data: EventData,
    /// What it does to the model's surface; present exactly on surface types (I-21).
    pub surface: Option<SurfaceOp>,
    /// The earlier events that it is derived from, without duplicates.
    pub cites: Vec<Seq>,
    /// Whether a reader that does not know the type may skip it.
    pub ignorable: bool,
}

impl From<EventData> for EventBody {
    /// A log-only event without citations.
    fn from(data: EventData) -> Self {
        Self { data, surface: None, cites: Vec::new(), ignorable: false }
    }
}

impl EventBody {
    /// A surface event that goes to the end.
    pub fn appended(data: EventData) -> Self {
        Self { data, surface: Some(SurfaceOp::Append), cites: Vec::new(), ignorable: false }
    }

    /// The same with citations.
    #[must_use]
    pub fn citing(mut self, cites: Vec<Seq>) -> Self {
        self.cites = cites;
        self
    }
}

/// What a surface event does to the list of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SurfaceOp {
    /// To the end.
    Append,
    /// In place of the nodes `start` to `end`, both inclusive, counted before the operation.
    Replace {
        /// First node.
        start: u32,
        /// Last node.
        end: u32,
    },
    /// To the front; only for a system node.
    Prepend,
}

/// Defines the data of every core event, the enum over them and the names, from one list.
macro_rules! events {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal { $( $(#[$fdoc:meta])* $field:ident : $ty:ty ),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $variant { $( $(#[$fdoc])* pub $field: $ty ),* }

            impl From<$variant> for EventData {
                fn from(data: $variant) -> Self {
                    Self::$variant(data)
                }
            }

            impl From<$variant> for EventBody {
                fn from(data: $variant) -> Self {
                    EventData::$variant(data).into()
                }
            }
        )*

        /// What happened.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum EventData {
            $( $(#[$doc])* $variant($variant), )*
            /// An event of a plugin: durable, never on the surface, opaque to the core.
            Plugin(PluginEvent),
        }

        impl EventData {
            /// Its type as users see it, `area/what`.
            pub fn type_name(&self) -> &str {
                match self {
                    $( Self::$variant(_) => $name, )*
                    Self::Plugin(plugin) => &plugin.type_name,
                }
            }

            /// Reads the JSON form of the data of type `type_name`. Unknown fields of core types are refused.
            pub fn from_json(type_name: &str, data: &serde_json::value::RawValue) -> Result<Self, serde_json::Error> {
                match type_name {
                    $( $name => serde_json::from_str::<$variant>(data.get()).map(Self::$variant), )*
                    other => Ok(Self::Plugin(PluginEvent {
                        type_name: other.to_owned(),
                        data: RawJson::parse(data.get())?,
                    })),
                }
            }

            /// The data as JSON, absent fields still `null` (see [`crate::json`] for the exported form).
            pub(crate) fn to_json_value(&self) -> Result<serde_json::Value, serde_json::Error> {
                match self {
                    $( Self::$variant(data) => serde_json::to_value(data), )*
                    Self::Plugin(plugin) => serde_json::to_value(&plugin.data),
                }
            }
        }

        /// The names of all core types.
        pub const CORE_TYPES: &[&str] = &[$($name),*];
    };
}

/// Data of a plugin's event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PluginEvent {
    /// Its type, `area/what`.
    pub type_name: String,
    /// Its data, as the plugin wrote it.
    pub data: RawJson,
}

events! {
    /// An accepted message waits.
    InboxQueued = "inbox/queued" {
        /// The item.
        item: Item,
        /// 0-based place in its list; present only for a prepend or insertion (Z9).
        position: Option<u32>,
    }
    /// A waiting message was edited in place.
    InboxEdited = "inbox/edited" {
        /// Which item.
        id: ItemId,
        /// What it says now.
        message: Message,
    }
    /// One list was put in another order.
    InboxMoved = "inbox/moved" {
        /// The complete new order.
        ids: Vec<ItemId>,
    }
    /// Items left the inbox without a claim.
    InboxRemoved = "inbox/removed" {
        /// Which.
        ids: Vec<ItemId>,
        /// Why.
        cause: RemoveCause,
    }
    /// Items left the inbox and belong to a turn.
    InboxClaimed = "inbox/claimed" {
        /// The turn.
        turn: Turn,
        /// Which proposal of the turn.
        proposal: Proposal,
        /// The number that the step has if the proposal enters.
        step: Step,
        /// Next-step items first, then at most one next-turn item.
        ids: Vec<ItemId>,
    }
    /// Repair gave back what a dead turn had claimed and not admitted.
    InboxRestored = "inbox/restored" {
        /// Which, in their old order.
        ids: Vec<ItemId>,
        /// How many times each has been restored by now.
        counts: BTreeMap<ItemId, u32>,
    }
    /// A turn begins.
    TurnStart = "turn/start" {
        /// Its number.
        turn: Turn,
    }
    /// A turn is over.
    TurnEnd = "turn/end" {
        /// Its number.
        turn: Turn,
        /// How.
        reason: TurnReason,
        /// How many steps it had.
        steps: u32,
        /// Claimed items that never became users; absent in JSON when there are none.
        #[serde(default)]
        unadmitted: Vec<ItemId>,
    }
    /// A step begins.
    StepStart = "step/start" {
        /// The turn.
        turn: Turn,
        /// Its number.
        step: Step,
    }
    /// Nothing of the step is open.
    StepEnd = "step/end" {
        /// The turn.
        turn: Turn,
        /// Its number.
        step: Step,
    }
    /// A proposal was refused.
    PromptBlocked = "prompt/blocked" {
        /// The turn.
        turn: Turn,
        /// The items of the refused batch.
        ids: Vec<ItemId>,
        /// What they said.
        content: Vec<Block>,
        /// Where the first of them came from.
        source: Option<String>,
        /// Why it was refused.
        reason: String,
    }
    /// The operator's instructions, as the model sees them.
    SystemMessage = "system/message" {
        /// The instructions.
        message: Message,
    }
    /// Input became part of history.
    UserMessage = "user/message" {
        /// What the model reads.
        message: Message,
        /// How it came in.
        origin: Origin,
        /// The inbox items that it stands for.
        items: Vec<ItemId>,
    }
    /// What is in a request and is not history.
    RequestHeader = "request/header" {
        /// Completed settings.
        config: RequestConfig,
        /// Which of them the adapter filled in.
        defaulted: Vec<String>,
        /// The visible tools, sorted by name.
        tools: Vec<ToolSpec>,
        /// How the route reads a changed system prompt.
        system_update: SystemUpdate,
        /// Why this was written.
        reason: HeaderReason,
    }
    /// What is known of the route.
    RequestContext = "request/context" {
        /// The provider.
        provider: String,
        /// The model.
        model: String,
        /// How many tokens fit.
        context_window: Option<u64>,
        /// What it takes in, such as `text` and `image`.
        input_modalities: Option<Vec<String>>,
    }
    /// A response joined the surface.
    AssistantMessage = "assistant/message" {
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// The attempt.
        attempt: Attempt,
        /// What the model said.
        message: Message,
        /// How it ended.
        finish: FinishLabel,
        /// Tokens, where known.
        usage: Option<Usage>,
        /// The stream that it is the fold of.
        stream: StreamRecord,
        /// `true` when a cancel cut it.
        interrupted: Option<bool>,
        /// The provider that was asked.
        provider: String,
        /// The model that was asked.
        model: String,
        /// Digest of the request.
        request_digest: Digest,
    }
    /// An attempt settled without a message.
    AssistantAttempt = "assistant/attempt" {
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// The attempt.
        attempt: Attempt,
        /// The provider that was asked.
        provider: String,
        /// The model that was asked.
        model: String,
        /// What became of it.
        outcome: AttemptOutcome,
        /// Why, unless it was cancelled.
        failure: Option<Failure>,
        /// Tokens, where known.
        usage: Option<Usage>,
        /// What came before it ended.
        stream: StreamRecord,
        /// Digest of the request.
        request_digest: Digest,
    }
    /// A call is about to be considered. Logged before policy and body.
    ToolCall = "tool/call" {
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// Which call.
        call_id: CallId,
        /// The tool's name as the model gave it.
        name: String,
        /// The arguments as the model gave them.
        arguments: String,
    }
    /// A call has its one result.
    ToolResult = "tool/result" {
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// What the model reads.
        message: ToolMessage,
        /// Present when it failed with a code.
        error: Option<ToolError>,
        /// For user interfaces; never shown to the model. `class` is `parallel` or `exclusive` (Z13).
        meta: Option<RawJson>,
    }
    /// A retry will wait.
    RetryScheduled = "retry/scheduled" {
        /// Its id.
        retry_id: RetryId,
        /// The turn.
        turn: Turn,
        /// The step.
        step: Step,
        /// The attempt that failed.
        attempt: Attempt,
        /// The provider that failed.
        provider: String,
        /// Which budget it counts against.
        policy_key: String,
        /// How it was allowed.
        mode: RetryMode,
        /// 1-based count.
        retry: u32,
        /// The budget, where there is one.
        max_retries: Option<u32>,
        /// How long it waits.
        delay_ms: u64,
        /// What failed.
        failure: Failure,
    }
    /// The wait is over and the next attempt is about to prepare.
    RetryStarted = "retry/started" {
        /// Which.
        retry_id: RetryId,
    }
    /// A process took the session for writing.
    SessionOpened = "session/opened" {
        /// Why.
        reason: OpenReason,
        /// The number of this opening.
        epoch: Epoch,
    }
}

impl EventData {
    /// Whether the type belongs on the model's surface (I-21).
    pub fn is_surface(&self) -> bool {
        match self {
            Self::SystemMessage(_) | Self::UserMessage(_) | Self::AssistantMessage(_) | Self::ToolResult(_) => true,
            Self::InboxQueued(_)
            | Self::InboxEdited(_)
            | Self::InboxMoved(_)
            | Self::InboxRemoved(_)
            | Self::InboxClaimed(_)
            | Self::InboxRestored(_)
            | Self::TurnStart(_)
            | Self::TurnEnd(_)
            | Self::StepStart(_)
            | Self::StepEnd(_)
            | Self::PromptBlocked(_)
            | Self::RequestHeader(_)
            | Self::RequestContext(_)
            | Self::AssistantAttempt(_)
            | Self::ToolCall(_)
            | Self::RetryScheduled(_)
            | Self::RetryStarted(_)
            | Self::SessionOpened(_)
            | Self::Plugin(_) => false,
        }
    }
}

/// A plugin's event type that this build knows (V-4, I-34).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginType {
    /// `area/what`.
    pub name: &'static str,
    /// Whether a reader that does not know it may skip it.
    pub ignorable: bool,
}

/// The plugin types of this build. The writer appends no other; a reader refuses others unless they are ignorable.
pub const PLUGIN_TYPES: &[PluginType] = &[
    PluginType { name: "approval/asked", ignorable: false },
    PluginType { name: "approval/decided", ignorable: false },
    PluginType { name: "approval/policy", ignorable: false },
    PluginType { name: "command/done", ignorable: true },
    PluginType { name: "command/run", ignorable: true },
    PluginType { name: "compaction/end", ignorable: false },
    PluginType { name: "compaction/prune", ignorable: false },
    PluginType { name: "compaction/start", ignorable: false },
    PluginType { name: "compaction/summary", ignorable: false },
    PluginType { name: "feedback/record", ignorable: true },
    PluginType { name: "goal/change", ignorable: false },
    PluginType { name: "hook/invoked", ignorable: true },
    PluginType { name: "hook/result", ignorable: true },
    PluginType { name: "job/change", ignorable: false },
    PluginType { name: "schedule/change", ignorable: false },
    PluginType { name: "session/title", ignorable: true },
    PluginType { name: "subagent/descriptor", ignorable: false },
    PluginType { name: "todo/write", ignorable: true },
];

/// What is known of a session beside its log; immutable, written with event 0 in one atomic write (2.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionHeader {
    /// Format version of the log.
    pub version: u32,
    /// Whose.
    pub session_id: SessionId,
    /// Which agent of the configuration it belongs to.
    pub agent: String,
    /// Wall clock in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Working directory of its tools.
    pub cwd: Option<String>,
    /// What it was forked or spawned from.
    pub parent: Option<ParentRef>,
    /// How many events of the parent it begins with.
    pub seed_length: Option<u64>,
    /// A label for how it came to be.
    pub origin: Option<String>,
    /// How many spawns deep it is.
    pub delegation_depth: Option<u32>,
    /// Permission preset.
    pub preset: Option<String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
}

/// The log that another one began from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentRef {
    /// Whose log.
    pub session_id: SessionId,
    /// The last event that was taken.
    pub seq: Seq,
}

/// The format version that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;
