//! Numbers the blocks of an answer and keeps their chunks in order, for the response mappers.

use super::limits::BLOCKS_MAX;
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    message::{Failure, Usage, code},
};

/// Chunks that wait to be taken, and which blocks are open.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    next: u64,
    open: Vec<u64>,
    out: Vec<Chunk>,
    finished: bool,
}

impl Blocks {
    /// Opens a block and gives its number.
    pub(super) fn start(&mut self, kind: BlockKind) -> Result<u64, Failure> {
        if self.next >= BLOCKS_MAX as u64 {
            return Err(Failure::new(
                code::MALFORMED_RESPONSE,
                format!("the answer has more than {BLOCKS_MAX} parts; ask for less, or use another model"),
            ));
        }
        let index = self.next;
        self.next += 1;
        self.open.push(index);
        self.out.push(Chunk::BlockStart { index, kind });
        Ok(index)
    }

    /// Closes a block; one that is closed stays so.
    pub(super) fn end(&mut self, index: u64) {
        if let Some(at) = self.open.iter().position(|open| *open == index) {
            self.open.remove(at);
            self.out.push(Chunk::BlockEnd { index });
        }
    }

    /// Adds a chunk of an open block. Empty deltas say nothing and are left out.
    pub(super) fn push(&mut self, chunk: Chunk) {
        let empty = match &chunk {
            Chunk::TextDelta { text, .. } | Chunk::ReasoningDelta { text, .. } | Chunk::CallFragment { text, .. } => {
                text.is_empty()
            }
            Chunk::BlockStart { .. }
            | Chunk::BlockEnd { .. }
            | Chunk::ReplayState { .. }
            | Chunk::Usage { .. }
            | Chunk::Finish { .. } => false,
        };
        if !empty {
            self.out.push(chunk);
        }
    }

    /// Ends the answer. Every block is closed unless it failed (L-14); usage stands before the end (L-13).
    pub(super) fn finish(&mut self, usage: Option<Usage>, finish: Finish) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        match finish {
            Finish::Stop | Finish::ToolUse | Finish::MaxTokens => {
                self.out.extend(self.open.drain(..).map(|index| Chunk::BlockEnd { index }));
            }
            Finish::Error { .. } | Finish::Aborted => self.open.clear(),
        }
        self.out.extend(usage.map(|usage| Chunk::Usage { usage }));
        self.out.push(Chunk::Finish { finish });
    }

    /// Ends the answer with a failure.
    pub(super) fn fail(&mut self, usage: Option<Usage>, failure: Failure) {
        self.finish(usage, Finish::Error { failure });
    }

    /// Whether the answer has ended.
    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Adds usage of an answer that ended without a finish.
    pub(super) fn cut(&mut self, usage: Option<Usage>) {
        if !std::mem::replace(&mut self.finished, true) {
            self.out.extend(usage.map(|usage| Chunk::Usage { usage }));
        }
    }

    /// The chunks so far.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, Chunk> {
        self.out.drain(..)
    }
}

/// A count of tokens, as servers write it: a whole number that is not negative.
pub(super) fn count(value: Option<&serde_json::Value>) -> Option<u64> {
    let value = value?;
    // A cast is exact here: the bound is 2^53.
    value.as_u64().or_else(|| value.as_f64().filter(|n| (0.0..9e15).contains(n)).map(|n| n as u64))
}
