//! Every bound of the record, with its number and the reason for it.

/// Longest session, item or message id. Ids stand in keys and in HTTP paths.
pub const ID_MAX_BYTES: usize = 128;

/// Longest message of a failure that is kept. Providers put whole pages of HTML there.
pub const FAILURE_MESSAGE_MAX_BYTES: usize = 4 * 1024;

/// Largest stream record of one attempt. Above it, deltas are stored merged (5.7).
pub const STREAM_RECORD_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Most bytes of text, arguments and opaque state in one response. Its message and its stream record stand in
/// one commit.
pub const RESPONSE_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Most blocks of one response.
pub const RESPONSE_MAX_BLOCKS: usize = 4_096;

/// Largest encoded commit. A commit is one atomic unit, so it must fit in memory many times over.
pub const COMMIT_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Most events in one commit. The largest that a turn needs is the closing of a step with all its calls.
pub const COMMIT_MAX_EVENTS: usize = 16 * 1024;

/// Bytes that loading a log holds at a time, beside its fold; one commit may be larger.
pub const LOAD_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Length of a segment of the log: rolls are rare, and a spare costs no more than this.
pub const SEGMENT_BYTES: u64 = 32 * 1024 * 1024;

/// Length of the first segments: a small store stays small.
pub const SEGMENT_SMALL_BYTES: u64 = 1024 * 1024;

/// How many segments are small ones.
pub const SEGMENT_SMALL_COUNT: u64 = 8;

/// Zeroes that are written to a file ahead of need before it is synced: a sync of the log waits behind no more than
/// that, about two milliseconds on a disk of 500 MB/s.
pub const ZERO_STEP_BYTES: u64 = 1024 * 1024;

/// Bytes of log after which the index is brought up to it. Boot reads at most about so much again, in about a tenth of
/// a second.
pub const INDEX_CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

/// Changed keys after which the index is brought up to the log, about 150 bytes each in memory.
pub const INDEX_CHECKPOINT_KEYS: usize = 32 * 1024;

/// Changed keys at which writers wait for the index.
pub const INDEX_PENDING_KEYS: usize = 8 * INDEX_CHECKPOINT_KEYS;

/// Segment size of sled. It holds small values only.
pub const INDEX_SEGMENT_BYTES: usize = 512 * 1024;

/// Page cache of sled.
pub const INDEX_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// Length of an index below which it is not copied, however much of it is dead.
pub const INDEX_COPY_MIN_BYTES: u64 = 64 * 1024 * 1024;

/// About what a key with its place takes in an index.
pub const INDEX_KEY_BYTES: u64 = 128;

/// Keys that are looked at in one go.
pub const SCAN_PAGE_KEYS: usize = 256;

/// Bytes that are copied out of a segment in one append: writers wait for no more than that.
pub const CLEAN_BATCH_BYTES: usize = 256 * 1024;

/// Pause between two such appends: at most 64 MiB a second are copied.
pub const CLEAN_PAUSE_MS: u64 = 4;

/// Ends of logs that the store remembers, about 100 bytes each; beyond it they are read again.
pub const TAILS_MAX: usize = 65_536;

/// Most keys that one step of a deletion touches: larger ones would hold up the writer.
pub const SWEEP_KEYS: usize = 256;

/// Block in which files are read and written again after a failed sync.
pub const REDIRTY_BLOCK_BYTES: usize = 1024 * 1024;

/// How long a reopening waits for the threads of a failed engine to let go of its file.
pub const REOPEN_WAIT_MS: u64 = 10_000;

/// Most rows that one page of a list holds.
pub const LIST_MAX: usize = 1_000;

/// Most events that one read of a log returns.
pub const READ_MAX_EVENTS: usize = 1_000;

/// Most broken rules that a verification keeps for one log. Behind so many nobody reads on.
pub const FINDINGS_MAX: usize = 1_000;

const _: () = assert!(3 * RESPONSE_MAX_BYTES < COMMIT_MAX_BYTES);
const _: () = assert!(STREAM_RECORD_MAX_BYTES < COMMIT_MAX_BYTES);
