//! Every bound of the actors, with its number and the reason for it, and the settings of CONTRACT 0.4.

use everturn_storage::message::code;
use serde::{Deserialize, Serialize};

/// Most chunk frames that wait for one slow watcher; beyond, it is told of the gap (5.7).
pub const FRAME_BUFFER: usize = 1_024;

/// Most committed events that wait for one slow subscriber; beyond, it is told where to read on.
pub const SUBSCRIPTION_BUFFER: usize = 4_096;

/// Most operations that wait in front of one agent while its journal works; each holds one message.
pub const AGENT_OPS_MAX: usize = 4_096;

/// Most bytes of one session that may be logged and not yet durable; beyond, appends are refused (7.1-5).
pub const UNDURABLE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// About how many bytes of durable events a session keeps in memory, for watchers that are a little behind.
pub const RECENT_MAX_BYTES: usize = 256 * 1024;

/// Most commits in one group; a group is written and synced as one.
pub const GROUP_MAX_COMMITS: usize = 4_096;

/// Most bytes in one group.
pub const GROUP_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Most reads of the store that run beside the one group in flight; each holds a blocking thread.
pub const STORE_READS_MAX: usize = 4;

/// First and longest wait between two tries to reopen a failed store.
pub const REOPEN_DELAY_MS: (u64, u64) = (100, 5_000);

/// First and longest wait before a dead session is opened again.
pub const RESTART_DELAY_MS: (u64, u64) = (10, 5_000);

/// Deaths of one session in a row, without a turn that ended in between, after which it stays faulted.
pub const RESTART_MAX: u32 = 8;

/// Sessions that boot opens at once. Each reads its whole log.
pub const BOOT_PARALLEL: usize = 8;

/// How long a provider may take to end its stream after the signal fired (L-20).
pub const ABORT_GRACE_MS: u64 = 2_000;

/// How long a tool body may take to return after its time was up (6.6).
pub const TIMEOUT_GRACE_MS: u64 = 1_000;

/// How often a tool body that ignores its signal is reported.
pub const TOOL_WARNING_EVERY_MS: u64 = 30_000;

/// Most calls in one append. A group also never exceeds `max_parallel_tool_calls`; this bounds one commit.
pub const TOOL_GROUP_MAX: usize = 256;

/// Bodies of one session that were let go and may still run; beyond, the oldest is dropped.
pub const DETACHED_BODIES_MAX: usize = 16;

/// Largest `meta` of a tool that is kept; it is for user interfaces only.
pub const TOOL_META_MAX_BYTES: usize = 64 * 1024;

/// Largest block of a tool's output that is no text; larger than what providers take in.
pub const TOOL_BLOCK_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Most contexts of one call; more would flood the inbox.
pub const TOOL_CONTEXTS_MAX: usize = 64;

/// How often a turn may be kept from stopping in a row (T-16).
pub const STOP_OVERRIDES_MAX: u32 = 8;

/// How often one step may be tried again after its context overflowed (L-47).
pub const OVERFLOW_RETRIES_MAX: u32 = 3;

/// Tries of an append or of CP-R and CP-S, and the waits between them (`journal_retry`).
pub const JOURNAL_TRIES: u32 = 3;
/// See [`JOURNAL_TRIES`]; each wait is at most the last one.
pub const JOURNAL_RETRY_DELAY_MS: [u64; 3] = [50, 150, 400];

/// The settings of CONTRACT 0.4, which users may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most tool bodies of one batch that run at once; 1 is serial.
    pub max_parallel_tool_calls: usize,
    /// When and how often a failed request is tried again.
    pub retry: RetryLimits,
    /// How long a provider may be silent between two chunks.
    pub stream_idle_timeout_ms: u64,
    /// Longest tool output that the model gets inline.
    pub tool_inline_limit_bytes: usize,
    /// Budget of tools that declare none; none by default.
    pub tool_default_timeout_ms: Option<u64>,
    /// How long an abandonable body may ignore a cancel before it is let go; none waits for it.
    pub tool_abandon_after_ms: Option<u64>,
    /// Most steps of one turn; none by default.
    pub max_steps_per_turn: Option<u32>,
    /// Most items that wait in one inbox.
    pub inbox_capacity: usize,
    /// Largest message.
    pub message_max_bytes: usize,
    /// Whether what waits at boot runs by itself.
    pub boot_pending: BootPending,
    /// How often repair gives an item back before it is parked as poison.
    pub claim_restore_limit: u32,
    /// What happens behind a turn that ended in an error.
    pub turn_error_policy: TurnErrorPolicy,
}

impl Limits {
    /// Which bound is none, in words that name the setting; none when all are sound.
    pub fn wrong(&self) -> Option<String> {
        let too_small = [
            ("max_parallel_tool_calls", self.max_parallel_tool_calls == 0),
            ("inbox_capacity", self.inbox_capacity == 0),
            ("message_max_bytes", self.message_max_bytes == 0),
            ("stream_idle_timeout_ms", self.stream_idle_timeout_ms == 0),
            ("max_steps_per_turn", self.max_steps_per_turn == Some(0)),
        ];
        if let Some((key, _)) = too_small.into_iter().find(|(_, wrong)| *wrong) {
            return Some(format!("limits.{key} must be at least 1; correct it"));
        }
        let ratio = self.retry.jitter_ratio;
        (!(0.0..=1.0).contains(&ratio))
            .then(|| "limits.retry.jitter_ratio must be between 0 and 1; correct it".to_owned())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_parallel_tool_calls: 10,
            retry: RetryLimits::default(),
            stream_idle_timeout_ms: 300_000,
            tool_inline_limit_bytes: 50_000,
            tool_default_timeout_ms: None,
            tool_abandon_after_ms: None,
            max_steps_per_turn: None,
            inbox_capacity: 1_024,
            message_max_bytes: 1024 * 1024,
            boot_pending: BootPending::Auto,
            claim_restore_limit: 3,
            turn_error_policy: TurnErrorPolicy::Continue,
        }
    }
}

/// When and how often a failed request is tried again (5.6).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryLimits {
    /// Most retries of one step with one provider.
    pub max_retries: u32,
    /// Wait before the first one; doubles from there.
    pub initial_delay_ms: u64,
    /// Longest wait.
    pub max_delay_ms: u64,
    /// How far a wait is moved at random, as a part of it, 0 to 1.
    pub jitter_ratio: f64,
    /// Which failures are retried.
    pub codes: Vec<String>,
    /// `always` retries every failure but the permanent ones.
    pub mode: RetryModeSetting,
    /// In `always` mode, the permanent ones too.
    pub always_permanent: bool,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            max_retries: 5,
            initial_delay_ms: 500,
            max_delay_ms: 10_000,
            jitter_ratio: 0.1,
            codes: [code::EMPTY_RESPONSE, code::RATE_LIMIT, code::SERVER, code::TIMEOUT, code::TRANSPORT]
                .map(str::to_owned)
                .to_vec(),
            mode: RetryModeSetting::Normal,
            always_permanent: false,
        }
    }
}

/// How retries are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryModeSetting {
    /// Codes on the list, within the budget.
    Normal,
    /// Every failure.
    Always,
}

/// Whether what waits at boot runs by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootPending {
    /// It runs.
    Auto,
    /// It waits for the first wake.
    Park,
}

/// What happens behind a turn that ended in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnErrorPolicy {
    /// The next item runs.
    Continue,
    /// The queue waits for the next wake.
    Park,
}

/// Which checkpoints a turn waits for (7.2). No policy leaves out CP-T.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointPolicy {
    /// CP-R, CP-X, CP-S and CP-T.
    #[default]
    Semantic,
    /// CP-T only.
    Turn,
}
