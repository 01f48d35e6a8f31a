//! Stream chunks in provider-neutral form, and the record of a stream that its settlement keeps (5.4, 5.7).

use crate::{
    dual::dual_enum,
    ids::CallId,
    limits::STREAM_RECORD_MAX_BYTES,
    message::{Failure, Usage},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

dual_enum! {
    /// What a block of a stream will become.
    pub enum BlockKind as "BlockKind", tag "type", case "snake_case" {
        /// Text.
        Text,
        /// Reasoning.
        Reasoning,
        /// A tool call.
        ToolCall {
            /// The provider's id; may be empty (L-16).
            call_id: CallId,
            /// The tool's name.
            name: String,
        },
    }
}

dual_enum! {
    /// How a stream ended. It is always the last chunk, and there is exactly one (L-10).
    pub enum Finish as "Finish", tag "kind", case "snake_case" {
        /// The model had said all.
        Stop,
        /// The model waits for tools.
        ToolUse,
        /// The output limit was reached.
        MaxTokens,
        /// It failed.
        Error {
            /// Why.
            failure: Failure,
        },
        /// The signal fired.
        Aborted,
    }
}

dual_enum! {
    /// One chunk of a stream.
    pub enum Chunk as "Chunk", tag "type", case "snake_case" {
        /// Opens block `index`.
        BlockStart {
            /// Which block; below 2^53.
            index: u64,
            /// What it is.
            kind: BlockKind,
        },
        /// More of an open text block.
        TextDelta {
            /// Which block.
            index: u64,
            /// The text.
            text: String,
        },
        /// More of an open reasoning block.
        ReasoningDelta {
            /// Which block.
            index: u64,
            /// The text.
            text: String,
        },
        /// More of the arguments of an open call.
        CallFragment {
            /// Which block.
            index: u64,
            /// The text.
            text: String,
        },
        /// Closes block `index`.
        BlockEnd {
            /// Which block.
            index: u64,
        },
        /// Opaque state of the provider for block `index`.
        ReplayState {
            /// Which block.
            index: u64,
            /// Who made it.
            provider: String,
            /// The state.
            data: String,
        },
        /// Tokens; at most once, before the end.
        Usage {
            /// The counts.
            usage: Usage,
        },
        /// The end.
        Finish {
            /// How it ended.
            finish: Finish,
        },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Delta {
    Text,
    Reasoning,
    Call,
}

/// A row of deltas into one block as one text, or any other chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Run {
    /// Each cut is (milliseconds since the entry before, bytes of `text`).
    Deltas { index: u64, what: Delta, text: String, cuts: Vec<(u32, u32)>, merged: bool },
    /// Milliseconds since the entry before, and the chunk.
    One(u32, Chunk),
}

/// The chunks of one attempt with the milliseconds since dispatch at which they came.
///
/// Lossless: boundaries, order and times can be read back, unless the record outgrew
/// [`STREAM_RECORD_MAX_BYTES`]; from there on neighbouring deltas are kept as one and marked as merged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamRecord {
    runs: Vec<Run>,
    last_t_ms: u32,
    bytes: usize,
}

/// One entry of a record, as read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry(pub u32, pub EntryChunk);

/// A chunk of a record and whether it stands for several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryChunk {
    /// The chunk.
    #[serde(flatten)]
    pub chunk: Chunk,
    /// Whether it stands for several, whose boundaries and times were not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
}

/// What an entry costs beside its text.
const ENTRY_BYTES: usize = 8;

/// What a chunk that is no delta costs beside its entry.
fn payload_bytes(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::BlockStart { kind: BlockKind::ToolCall { call_id, name }, .. } => call_id.as_str().len() + name.len(),
        Chunk::ReplayState { provider, data, .. } => provider.len() + data.len(),
        Chunk::Finish { finish: Finish::Error { failure } } => failure.message.len(),
        Chunk::TextDelta { text, .. } | Chunk::ReasoningDelta { text, .. } | Chunk::CallFragment { text, .. } => {
            text.len()
        }
        Chunk::BlockStart { .. } | Chunk::BlockEnd { .. } | Chunk::Usage { .. } | Chunk::Finish { .. } => 0,
    }
}

/// Whether the cuts give the whole text back, each at a character.
fn cuts_fit(text: &str, cuts: &[(u32, u32)], merged: bool) -> bool {
    let mut at = 0_usize;
    let whole = cuts.iter().all(|(_, len)| {
        at = at.saturating_add(*len as usize);
        text.is_char_boundary(at)
    });
    whole && at == text.len() && !cuts.is_empty() && (!merged || cuts.len() == 1)
}

impl StreamRecord {
    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// About how many bytes the record takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a chunk that came `t_ms` milliseconds after dispatch. A time before the last one counts as that one.
    pub fn push(&mut self, t_ms: u32, chunk: Chunk) {
        let over = self.bytes >= STREAM_RECORD_MAX_BYTES;
        self.push_entry(t_ms, chunk, over);
    }

    fn push_entry(&mut self, t_ms: u32, chunk: Chunk, merge: bool) {
        let t_ms = t_ms.max(self.last_t_ms);
        let dt_ms = t_ms - self.last_t_ms;
        let (index, what, text) = match chunk {
            Chunk::TextDelta { index, text } => (index, Delta::Text, text),
            Chunk::ReasoningDelta { index, text } => (index, Delta::Reasoning, text),
            Chunk::CallFragment { index, text } => (index, Delta::Call, text),
            other @ (Chunk::BlockStart { .. }
            | Chunk::BlockEnd { .. }
            | Chunk::ReplayState { .. }
            | Chunk::Usage { .. }
            | Chunk::Finish { .. }) => {
                self.last_t_ms = t_ms;
                self.bytes += ENTRY_BYTES + payload_bytes(&other);
                self.runs.push(Run::One(dt_ms, other));
                return;
            }
        };
        self.bytes += text.len();
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        if let Some(Run::Deltas { index: i, what: w, text: all, cuts, merged }) = self.runs.last_mut()
            && (*i, *w, *merged) == (index, what, merge)
        {
            all.push_str(&text);
            match cuts.last_mut() {
                Some(last) if merge => last.1 = last.1.saturating_add(len),
                _ => {
                    self.last_t_ms = t_ms;
                    self.bytes += 3;
                    cuts.push((dt_ms, len));
                }
            }
            return;
        }
        self.last_t_ms = t_ms;
        self.bytes += ENTRY_BYTES;
        self.runs.push(Run::Deltas { index, what, text, cuts: vec![(dt_ms, len)], merged: merge });
    }

    /// The entries in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut t_ms = 0_u32;
        self.runs.iter().flat_map(move |run| match run {
            Run::One(dt_ms, chunk) => {
                t_ms = t_ms.saturating_add(*dt_ms);
                vec![Entry(t_ms, EntryChunk { chunk: chunk.clone(), merged: false })]
            }
            Run::Deltas { index, what, text, cuts, merged } => {
                let mut rest = text.as_str();
                cuts.iter()
                    .map(|(dt_ms, len)| {
                        t_ms = t_ms.saturating_add(*dt_ms);
                        let at = rest.floor_char_boundary(*len as usize);
                        let (head, tail) = rest.split_at(at);
                        rest = tail;
                        let (index, text) = (*index, head.to_owned());
                        let chunk = match what {
                            Delta::Text => Chunk::TextDelta { index, text },
                            Delta::Reasoning => Chunk::ReasoningDelta { index, text },
                            Delta::Call => Chunk::CallFragment { index, text },
                        };
                        Entry(t_ms, EntryChunk { chunk, merged: *merged })
                    })
                    .collect()
            }
        })
    }

    /// The chunks in order, without their times.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.entries().map(|Entry(_, entry)| entry.chunk)
    }
}

impl Serialize for StreamRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_seq(self.entries())
        } else {
            self.runs.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for StreamRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let mut record = Self::default();
            for Entry(t_ms, EntryChunk { chunk, merged }) in Vec::<Entry>::deserialize(deserializer)? {
                record.push_entry(t_ms, chunk, merged);
            }
            Ok(record)
        } else {
            let runs = Vec::<Run>::deserialize(deserializer)?;
            let (mut last_t_ms, mut bytes) = (0_u32, 0);
            for run in &runs {
                match run {
                    Run::One(dt_ms, chunk) => {
                        last_t_ms = last_t_ms.saturating_add(*dt_ms);
                        bytes += ENTRY_BYTES + payload_bytes(chunk);
                    }
                    Run::Deltas { text, cuts, merged, .. } => {
                        if !cuts_fit(text, cuts, *merged) {
                            return Err(serde::de::Error::custom("the cuts of a stream record do not fit its text"));
                        }
                        last_t_ms = cuts.iter().fold(last_t_ms, |t, cut| t.saturating_add(cut.0));
                        bytes += ENTRY_BYTES + text.len() + 3 * cuts.len().saturating_sub(1);
                    }
                }
            }
            Ok(Self { runs, last_t_ms, bytes })
        }
    }
}

#[cfg(test)]
mod tests;
