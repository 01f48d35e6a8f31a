//! The bytes of a commit: versioned, checked, and public for ever (rule 11, V-3, 265).
//!
//! ```text
//! offset size
//!      0    1  format version; higher ones keep the first six bytes
//!      1    1  flags: bit 0, an acknowledged mark is present
//!      2    4  CRC32C over the session id, a zero byte, the seq of the key (big-endian) and all other bytes
//!      6    8  epoch of the writer
//!     14    8  seq of the first event
//!     22    4  how many events
//!     26    8  with flag bit 0: the last event that was durable when this was written
//!      …       events, each: length of the rest (4), type tag (2), time (8), flags (1), with a replace its range
//!              (4 + 4), count of cites (4), cites (8 each), the data
//! ```
//!
//! Numbers are little-endian. The data of an event is its struct in bincode with variable-length integers. The
//! session and the seq are in the checksum, so a record under another key is damage.

use crate::{
    event::{Event, EventBody, EventData, SurfaceOp},
    ids::{Epoch, Seq, SessionId},
    limits::{COMMIT_MAX_BYTES, COMMIT_MAX_EVENTS},
};
use bincode::Options;
use std::sync::Arc;

/// The version of the bytes that this build writes, and the highest that it reads.
pub const CODEC_VERSION: u8 = 1;

const FLAG_ACKED: u8 = 1;
const CRC_AT: usize = 2;
const HEAD_BYTES: usize = 26;

const EVENT_IGNORABLE: u8 = 0b0001;
const EVENT_SURFACE: u8 = 0b0110;
const SURFACE_APPEND: u8 = 0b0010;
const SURFACE_REPLACE: u8 = 0b0100;
const SURFACE_PREPEND: u8 = 0b0110;

/// Shortest event: tag, time, flags, count of cites.
const EVENT_MIN_BYTES: usize = 2 + 8 + 1 + 4;

/// Why events cannot be encoded, or bytes not decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A newer build wrote this, and its checksum holds.
    #[error("a newer build wrote this record: it has version {found}, this build reads up to {supported}")]
    TooNew {
        /// Found in the record.
        found: u8,
        /// Known here.
        supported: u8,
    },
    /// The bytes are not what was written: torn, flipped, or under another key.
    #[error("the record is damaged: {0}")]
    Damaged(&'static str),
    /// The checksum holds, but an event has a type that this build does not know.
    #[error("event {seq} has the type number {tag}, which this build does not know")]
    UnknownTag {
        /// Which event.
        seq: Seq,
        /// Its number.
        tag: u16,
    },
    /// The checksum holds, but an event does not fit its type (V-5).
    #[error("event {seq} does not fit its type: {why}")]
    Schema {
        /// Which event.
        seq: Seq,
        /// What is wrong.
        why: String,
    },
    /// These events make no commit; nothing was written.
    #[error("the events make no commit: {0}")]
    Refused(String),
}

/// A commit as read back.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedCommit {
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// The last event that was durable when this was written (B-1).
    pub acked: Option<Seq>,
    /// Its events; at least one.
    pub events: Vec<Arc<Event>>,
}

/// What the head of a record claims. It is not verified: only [`decode_commit`] checks the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Seq of its first event.
    pub first: Seq,
    /// How many events it holds; at least one.
    pub count: u32,
}

impl Head {
    /// Seq of its last event.
    pub fn last(&self) -> Seq {
        Seq(self.first.0.saturating_add(u64::from(self.count) - 1))
    }
}

/// Reads the head without verifying anything, for stores that fence and page; `None` when it cannot be one.
pub fn peek(bytes: &[u8]) -> Option<Head> {
    let mut input = Input(bytes);
    let version = input.u8()?;
    input.take(HEAD_BYTES - 1 - 8 - 8 - 4)?;
    let head = Head { epoch: Epoch(input.u64()?), first: Seq(input.u64()?), count: input.u32()? };
    (version == CODEC_VERSION && head.count > 0).then_some(head)
}

/// Encodes one commit.
///
/// `first` is the seq of the first event, `acked` the last event of the session that was durable by now.
/// Refuses no events, more than [`COMMIT_MAX_EVENTS`], more than [`COMMIT_MAX_BYTES`], and seqs with gaps.
pub fn encode_commit(
    session: &SessionId,
    epoch: Epoch,
    first: Seq,
    acked: Option<Seq>,
    events: &[Arc<Event>],
) -> Result<Vec<u8>, CodecError> {
    let refused = |why: String| Err(CodecError::Refused(why));
    if events.is_empty() || events.len() > COMMIT_MAX_EVENTS {
        return refused(format!("{} events, a commit has 1 to {COMMIT_MAX_EVENTS}", events.len()));
    }
    let mut out = Vec::with_capacity(HEAD_BYTES + 256 * events.len());
    out.extend([CODEC_VERSION, if acked.is_some() { FLAG_ACKED } else { 0 }]);
    out.extend([0; 4]);
    out.extend(epoch.0.to_le_bytes());
    out.extend(first.0.to_le_bytes());
    out.extend((events.len() as u32).to_le_bytes());
    if let Some(acked) = acked {
        out.extend(acked.0.to_le_bytes());
    }
    for (event, place) in events.iter().zip(first.0..) {
        if event.seq != Seq(place) {
            return refused(format!("event {} stands where event {place} belongs", event.seq));
        }
        encode_event(event, &mut out)?;
        if out.len() > COMMIT_MAX_BYTES {
            return refused(format!("more than {COMMIT_MAX_BYTES} bytes"));
        }
    }
    let crc = checksum(session, first, &out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

/// Decodes the record that is kept under `session` and `first`.
///
/// Any bytes are safe to pass: it never panics, and what it allocates is bounded by the length of `bytes`.
pub fn decode_commit(session: &SessionId, first: Seq, bytes: &[u8]) -> Result<DecodedCommit, CodecError> {
    use CodecError::{Damaged, TooNew};
    if bytes.len() > COMMIT_MAX_BYTES {
        return Err(Damaged("longer than any commit"));
    }
    let mut input = Input(bytes);
    let short = Damaged("shorter than its head");
    let version = input.u8().ok_or(short.clone())?;
    let flags = input.u8().ok_or(short.clone())?;
    let crc = input.u32().ok_or(short.clone())?;
    if crc != checksum(session, first, bytes) {
        return Err(Damaged("the checksum does not hold"));
    }
    if version > CODEC_VERSION {
        return Err(TooNew { found: version, supported: CODEC_VERSION });
    }
    if version != CODEC_VERSION || flags & !FLAG_ACKED != 0 {
        return Err(Damaged("an unknown version or flag"));
    }
    let epoch = Epoch(input.u64().ok_or(short.clone())?);
    if Seq(input.u64().ok_or(short.clone())?) != first {
        return Err(Damaged("it belongs under another seq"));
    }
    let count = input.u32().ok_or(short.clone())? as usize;
    let acked = if flags & FLAG_ACKED != 0 { Some(Seq(input.u64().ok_or(short)?)) } else { None };
    if count == 0 || count > COMMIT_MAX_EVENTS || first.0.checked_add(count as u64).is_none() {
        return Err(Damaged("an impossible count of events"));
    }
    let mut events = Vec::with_capacity(count.min(input.0.len() / EVENT_MIN_BYTES));
    for place in (first.0..).take(count) {
        events.push(Arc::new(decode_event(Seq(place), &mut input)?));
    }
    if !input.0.is_empty() {
        return Err(Damaged("bytes behind the last event"));
    }
    Ok(DecodedCommit { epoch, acked, events })
}

/// CRC32C of a record: everything but the field that holds it, bound to the key that it is kept under.
fn checksum(session: &SessionId, first: Seq, bytes: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(session.as_str().as_bytes());
    crc = crc32c::crc32c_append(crc, &[0]);
    crc = crc32c::crc32c_append(crc, &first.0.to_be_bytes());
    crc = crc32c::crc32c_append(crc, &bytes[..CRC_AT]);
    crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..])
}

pub(crate) fn options() -> impl Options {
    // Variable-length integers and no trailing bytes are the defaults; they are part of the format.
    bincode::DefaultOptions::new().with_varint_encoding().with_limit(COMMIT_MAX_BYTES as u64).reject_trailing_bytes()
}

fn encode_event(event: &Event, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let refused = |why: String| CodecError::Refused(format!("event {}: {why}", event.seq));
    let body = &event.body;
    let start = out.len();
    out.extend([0; 4]);
    out.extend(tag_of(&body.data).to_le_bytes());
    out.extend(event.time_ms.to_le_bytes());
    let surface = match body.surface {
        None => 0,
        Some(SurfaceOp::Append) => SURFACE_APPEND,
        Some(SurfaceOp::Replace { .. }) => SURFACE_REPLACE,
        Some(SurfaceOp::Prepend) => SURFACE_PREPEND,
    };
    out.push(surface | if body.ignorable { EVENT_IGNORABLE } else { 0 });
    if let Some(SurfaceOp::Replace { start, end }) = body.surface {
        out.extend(start.to_le_bytes());
        out.extend(end.to_le_bytes());
    }
    let cites = u32::try_from(body.cites.len()).map_err(|_| refused("too many cites".to_owned()))?;
    out.extend(cites.to_le_bytes());
    body.cites.iter().for_each(|cite| out.extend(cite.0.to_le_bytes()));
    encode_data(&body.data, out).map_err(|e| refused(e.to_string()))?;
    let len = u32::try_from(out.len() - start - 4).map_err(|_| refused("too long".to_owned()))?;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

fn decode_event(seq: Seq, input: &mut Input<'_>) -> Result<Event, CodecError> {
    let short = || CodecError::Damaged("an event is cut off");
    let len = input.u32().ok_or_else(short)? as usize;
    let mut input = Input(input.take(len).ok_or_else(short)?);
    let tag = input.u16().ok_or_else(short)?;
    let time_ms = input.u64().ok_or_else(short)?.cast_signed();
    let flags = input.u8().ok_or_else(short)?;
    if flags & !(EVENT_IGNORABLE | EVENT_SURFACE) != 0 {
        return Err(CodecError::Schema { seq, why: "unknown flags".to_owned() });
    }
    let surface = match flags & EVENT_SURFACE {
        SURFACE_APPEND => Some(SurfaceOp::Append),
        SURFACE_PREPEND => Some(SurfaceOp::Prepend),
        SURFACE_REPLACE => {
            Some(SurfaceOp::Replace { start: input.u32().ok_or_else(short)?, end: input.u32().ok_or_else(short)? })
        }
        _ => None,
    };
    let count = input.u32().ok_or_else(short)? as usize;
    let cites = input.take(count.checked_mul(8).ok_or_else(short)?).ok_or_else(short)?;
    let cites = cites.as_chunks::<8>().0.iter().map(|cite| Seq(u64::from_le_bytes(*cite))).collect();
    let data = decode_data(tag, input.0)
        .ok_or(CodecError::UnknownTag { seq, tag })?
        .map_err(|e| CodecError::Schema { seq, why: e.to_string() })?;
    let ignorable = flags & EVENT_IGNORABLE != 0;
    Ok(Event { seq, time_ms, body: EventBody { data, surface, cites, ignorable } })
}

/// Gives every type its number on disk. A number is never changed and never given twice.
macro_rules! tags {
    ($($variant:ident = $tag:literal),* $(,)?) => {
        fn tag_of(data: &EventData) -> u16 {
            match data {
                $(EventData::$variant(_) => $tag,)*
            }
        }

        fn encode_data(data: &EventData, out: &mut Vec<u8>) -> bincode::Result<()> {
            match data {
                $(EventData::$variant(data) => options().serialize_into(out, data),)*
            }
        }

        fn decode_data(tag: u16, bytes: &[u8]) -> Option<bincode::Result<EventData>> {
            match tag {
                $($tag => Some(options().deserialize(bytes).map(EventData::$variant)),)*
                _ => None,
            }
        }

        #[cfg(test)]
        const TAGS: &[u16] = &[$($tag),*];
    };
}

tags! {
    InboxQueued = 1,
    InboxEdited = 2,
    InboxMoved = 3,
    InboxRemoved = 4,
    InboxClaimed = 5,
    InboxRestored = 6,
    TurnStart = 10,
    TurnEnd = 11,
    StepStart = 12,
    StepEnd = 13,
    PromptBlocked = 14,
    SystemMessage = 20,
    UserMessage = 21,
    RequestHeader = 22,
    RequestContext = 23,
    AssistantMessage = 24,
    AssistantAttempt = 25,
    ToolCall = 30,
    ToolResult = 31,
    RetryScheduled = 40,
    RetryStarted = 41,
    SessionOpened = 50,
    Plugin = 0xffff,
}

/// Reads from the front; `None` when there is not enough.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
