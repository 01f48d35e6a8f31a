//! Every bound of the providers, with its number and the reason for it.

/// Longest line of an event stream. One delta is far smaller; a whole answer in one delta still fits.
pub const SSE_LINE_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Largest event of an event stream: its data lines together.
pub const SSE_EVENT_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Most bytes of one streamed answer. The longest outputs of today's models take a tenth of it on the wire.
pub const RESPONSE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Most bytes that are read of a body that is no event stream, such as an error page.
pub const BODY_MAX_BYTES: usize = 1024 * 1024;

/// How long the body of an error answer may take; its status is known already.
pub const ERROR_BODY_MAX_MS: u64 = 10_000;

/// How long a stream may stay open behind its finish label; only token counts can still come.
pub const FINISH_GRACE_MS: u64 = 5_000;

/// Most blocks of one answer. A model that makes more calls at once is broken.
pub const BLOCKS_MAX: usize = 4_096;

/// Largest opaque state of one block.
pub const REPLAY_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Largest key file; a longer file is not a key.
pub const KEY_FILE_MAX_BYTES: u64 = 64 * 1024;

/// Largest script file.
pub const SCRIPT_FILE_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// How many sessions a script remembers the place of; beyond, those used longest ago start anew.
pub const SCRIPT_SESSIONS_MAX: usize = 65_536;

/// How long making a connection may take unless the configuration says otherwise.
pub const CONNECT_TIMEOUT_MS: u64 = 10_000;

/// Longest closing of an account's gate. Whatever the provider asked for, one call tries again after it.
pub const GATE_MAX_MS: u64 = 60_000;

/// First closing of a gate when the provider did not say how long; doubles from there.
pub const GATE_INITIAL_MS: u64 = 500;

/// Longest closing of a gate when the provider did not say how long.
pub const GATE_BACKOFF_MAX_MS: u64 = 10_000;

/// A wait that a provider asks for is never taken for longer than a week: a larger number is a mistake.
pub const RETRY_AFTER_MAX_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

const _: () = assert!(SSE_LINE_MAX_BYTES <= SSE_EVENT_MAX_BYTES);
const _: () = assert!(SSE_EVENT_MAX_BYTES <= RESPONSE_MAX_BYTES);
