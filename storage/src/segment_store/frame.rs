//! The bytes of a frame: one atomic change of the store, as it stands in a segment. Public for ever.
//!
//! ```text
//! offset size
//!      0    4  magic
//!      4    4  length of the table
//!      8    4  length of the values
//!     12    4  how many entries the table has
//!     16    8  LSN: frames are numbered without gaps
//!     24    8  the last LSN that was durable when this was written
//!     32    4  CRC32C of the values
//!     36    4  CRC32C of everything above and of the table
//!     40    …  the table, an entry: kind (1), length of the key (2), length of the value (4), LSN of the first copy
//!              when moved (8), key
//!      …    …  the values, one behind the other, and zeroes up to a multiple of 16
//! ```
//!
//! Both sums begin with the id of the store and the number of the segment, so that a frame of a recycled file never
//! passes for a new one. Numbers are little-endian.

use std::sync::Arc;

/// Frames begin at multiples of this, so that the next one is found behind a damaged one.
pub(super) const ALIGN: usize = 16;
/// Length of what stands before the table.
pub(super) const HEAD_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"EvF\x02";
const PUT: u8 = 0;
const REMOVE: u8 = 1;
const MOVE: u8 = 2;
const ENTRY_BYTES: usize = 1 + 2 + 4;
/// More than any commit and the header and index entry with it can need.
const FRAME_MAX_BYTES: usize = 2 * crate::limits::COMMIT_MAX_BYTES;

/// A value on its way into a frame.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Owned(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Value {
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// One change of one key.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Put {
        key: Vec<u8>,
        value: Value,
    },
    Remove {
        key: Vec<u8>,
    },
    /// A copy of a value out of a segment that is cleaned; it keeps the LSN of its first copy.
    Move {
        key: Vec<u8>,
        value: Value,
        lsn: u64,
    },
}

/// Changes that become visible and durable together.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub(super) ops: Vec<Op>,
}

impl Batch {
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.ops.push(Op::Put { key, value: Value::Owned(value) });
    }

    pub(super) fn put_shared(&mut self, key: Vec<u8>, value: Arc<[u8]>) {
        self.ops.push(Op::Put { key, value: Value::Shared(value) });
    }

    pub(super) fn remove(&mut self, key: Vec<u8>) {
        self.ops.push(Op::Remove { key });
    }

    /// Length of its frame.
    pub(super) fn frame_bytes(&self) -> usize {
        let ops = self.ops.iter().map(|op| match op {
            Op::Put { key, value } => ENTRY_BYTES + key.len() + value.bytes().len(),
            Op::Remove { key } => ENTRY_BYTES + key.len(),
            Op::Move { key, value, .. } => ENTRY_BYTES + 8 + key.len() + value.bytes().len(),
        });
        (HEAD_BYTES + ops.sum::<usize>()).next_multiple_of(ALIGN)
    }
}

/// What both sums begin with.
pub(super) fn seed(store: &[u8; 16], segment: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(store), &segment.to_le_bytes())
}

/// Adds the frame of a batch to `out`; gives back where the value of each op begins, behind the frame's own begin.
pub(super) fn encode(batch: &Batch, seed: u32, lsn: u64, durable: u64, out: &mut Vec<u8>) -> Vec<usize> {
    let start = out.len();
    out.extend(MAGIC);
    out.extend([0; HEAD_BYTES - 4]);
    for op in &batch.ops {
        let (kind, key, len, moved) = match op {
            Op::Put { key, value } => (PUT, key, value.bytes().len(), None),
            Op::Remove { key } => (REMOVE, key, 0, None),
            Op::Move { key, value, lsn } => (MOVE, key, value.bytes().len(), Some(*lsn)),
        };
        out.push(kind);
        // Keys and values are bounded far below: see `fence` and `COMMIT_MAX_BYTES`.
        out.extend((key.len() as u16).to_le_bytes());
        out.extend((len as u32).to_le_bytes());
        if let Some(lsn) = moved {
            out.extend(lsn.to_le_bytes());
        }
        out.extend(key);
    }
    let values_at = out.len();
    let mut places = Vec::with_capacity(batch.ops.len());
    for op in &batch.ops {
        places.push(out.len() - start);
        match op {
            Op::Put { value, .. } | Op::Move { value, .. } => out.extend_from_slice(value.bytes()),
            Op::Remove { .. } => {}
        }
    }
    let table = (values_at - start - HEAD_BYTES) as u32;
    let values = (out.len() - values_at) as u32;
    let values_crc = crc32c::crc32c_append(seed, &out[values_at..]);
    let head = &mut out[start..];
    head[4..8].copy_from_slice(&table.to_le_bytes());
    head[8..12].copy_from_slice(&values.to_le_bytes());
    head[12..16].copy_from_slice(&(batch.ops.len() as u32).to_le_bytes());
    head[16..24].copy_from_slice(&lsn.to_le_bytes());
    head[24..32].copy_from_slice(&durable.to_le_bytes());
    head[32..36].copy_from_slice(&values_crc.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &head[..36]), &head[HEAD_BYTES..values_at - start]);
    head[36..40].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + (out.len() - start).next_multiple_of(ALIGN), 0);
    places
}

/// What a frame that was read does to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The value begins `at` bytes behind the begin of the frame.
    Put {
        at: usize,
        len: u32,
        moved: Option<u64>,
    },
    Remove,
}

/// A frame as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) lsn: u64,
    pub(super) durable: u64,
    pub(super) changes: Vec<(Vec<u8>, Change)>,
    /// With the zeroes behind it.
    pub(super) bytes: usize,
    /// Whether the values are what was written. What they belong to is known either way.
    pub(super) intact: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Reads the frame that `bytes` begins with; `None` when there is none.
pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<Frame> {
    if bytes.get(..4)? != MAGIC {
        return None;
    }
    let (table, values) = (u32_at(bytes, 4)? as usize, u32_at(bytes, 8)? as usize);
    let count = u32_at(bytes, 12)? as usize;
    let len = HEAD_BYTES.checked_add(table)?.checked_add(values)?;
    if len > FRAME_MAX_BYTES || table < count * ENTRY_BYTES {
        return None;
    }
    let rows = bytes.get(HEAD_BYTES..HEAD_BYTES + table)?;
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[..36]), rows);
    if crc != u32_at(bytes, 36)? {
        return None;
    }
    let changes = changes(rows, count, HEAD_BYTES + table)?;
    let stored = bytes.get(HEAD_BYTES + table..len);
    let intact = stored.is_some_and(|stored| Some(crc32c::crc32c_append(seed, stored)) == u32_at(bytes, 32));
    let (lsn, durable) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?);
    Some(Frame { lsn, durable, changes, bytes: len.next_multiple_of(ALIGN), intact })
}

fn changes(mut rows: &[u8], count: usize, mut at: usize) -> Option<Vec<(Vec<u8>, Change)>> {
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = *rows.first()?;
        let key_len = usize::from(u16::from_le_bytes(rows.get(1..3)?.try_into().ok()?));
        let len = u32_at(rows, 3)?;
        rows = rows.get(ENTRY_BYTES..)?;
        let moved = if kind == MOVE {
            let lsn = u64_at(rows, 0)?;
            rows = &rows[8..];
            Some(lsn)
        } else {
            None
        };
        let key = rows.get(..key_len)?.to_vec();
        rows = &rows[key_len..];
        let change = match kind {
            PUT | MOVE => Change::Put { at, len, moved },
            REMOVE => Change::Remove,
            _ => return None,
        };
        at += len as usize;
        out.push((key, change));
    }
    rows.is_empty().then_some(out)
}

/// Where the next frame stands at or behind `from`, a multiple of [`ALIGN`].
pub(super) fn next(bytes: &[u8], from: usize, seed: u32) -> Option<(usize, Frame)> {
    let mut at = from.next_multiple_of(ALIGN);
    while at + HEAD_BYTES <= bytes.len() {
        if let Some(frame) = decode(&bytes[at..], seed) {
            return Some((at, frame));
        }
        // Most of what is skipped is zeroes or the inside of a record: look for the magic only.
        at += ALIGN;
        while at + HEAD_BYTES <= bytes.len() && bytes[at..at + 4] != MAGIC {
            at += ALIGN;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::default();
        batch.put(b"a key".to_vec(), b"its value".to_vec());
        batch.remove(b"gone".to_vec());
        batch.put_shared(b"empty".to_vec(), Arc::from(&b""[..]));
        batch.ops.push(Op::Move { key: b"m".to_vec(), value: Value::Owned(vec![7; 40]), lsn: 3 });
        batch
    }

    /// A frame is read as it was written, and only in its own segment of its own store.
    #[test]
    fn round_trip() {
        let seed = seed(&[9; 16], 5);
        let mut out = vec![0; 32];
        let places = encode(&batch(), seed, 11, 10, &mut out);
        assert_eq!(out.len() - 32, batch().frame_bytes());
        let frame = decode(&out[32..], seed).unwrap();
        assert_eq!((frame.lsn, frame.durable, frame.bytes, frame.intact), (11, 10, out.len() - 32, true));
        assert_eq!(frame.changes[0].1, Change::Put { at: places[0], len: 9, moved: None });
        assert_eq!(&out[32 + places[0]..][..9], b"its value");
        assert_eq!(frame.changes[1], (b"gone".to_vec(), Change::Remove));
        assert_eq!(frame.changes[3].1, Change::Put { at: places[3], len: 40, moved: Some(3) });
        assert_eq!(next(&out, 0, seed).unwrap().0, 32);
        assert_eq!(decode(&out[32..], super::seed(&[9; 16], 6)), None, "another segment");
        assert_eq!(decode(&out[32..], super::seed(&[8; 16], 5)), None, "another store");
    }

    /// Each flipped bit and each cut is seen; damage of values leaves it known whose they are.
    #[test]
    fn damage_is_seen() {
        let seed = seed(&[1; 16], 1);
        let mut out = Vec::new();
        let places = encode(&batch(), seed, 1, 0, &mut out);
        let end = places[3] + 40;
        for bit in 0..end * 8 {
            let mut flipped = out.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = decode(&flipped, seed);
            if bit / 8 < places[0] {
                assert_eq!(found, None, "bit {bit}");
            } else {
                assert!(!found.unwrap().intact, "bit {bit}");
            }
        }
        for len in 0..end {
            assert!(decode(&out[..len], seed).is_none_or(|frame| !frame.intact), "cut to {len}");
        }
    }
}
