//! From the chunks of one stream to what the model said (5.4).
//!
//! Pure and deterministic: the model port, the checker of stored records (I-31) and the providers' tests all fold
//! with this.

use crate::{
    chunk::{BlockKind, Chunk, Finish},
    ids::CallId,
    limits::{RESPONSE_MAX_BLOCKS, RESPONSE_MAX_BYTES},
    message::{Block, Failure, Replay, Usage, code},
};
use std::collections::BTreeMap;

/// Exclusive limit of a block index (L-11): what a double holds exactly.
const INDEX_LIMIT: u64 = 1 << 53;

/// A stream that broke the grammar. Nothing of it may be used as a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the response breaks {rule}: {why}")]
pub struct Malformed {
    /// The rule, such as `L-12`.
    pub rule: &'static str,
    /// How.
    pub why: String,
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::new(code::MALFORMED_RESPONSE, malformed.to_string())
    }
}

/// What a whole stream comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// The blocks in order of their first start; empty when the stream failed or was aborted.
    pub blocks: Vec<Block>,
    /// Tokens, where the stream told them.
    pub usage: Option<Usage>,
    /// How it ended; an empty response counts as an error here (L-17).
    pub finish: Finish,
}

#[derive(Debug, Clone, PartialEq)]
enum Content {
    Text(String),
    Reasoning(String),
    Call { call_id: CallId, name: String, arguments: String },
}

#[derive(Debug, Clone, PartialEq)]
struct Slot {
    content: Content,
    ended: bool,
    replay: Option<Replay>,
}

impl Slot {
    fn is_call(&self) -> bool {
        match self.content {
            Content::Call { .. } => true,
            Content::Text(_) | Content::Reasoning(_) => false,
        }
    }

    /// Whether a response of such blocks says nothing (L-17). Reasoning may stand in its opaque state alone.
    fn is_blank(&self) -> bool {
        match &self.content {
            Content::Text(text) => text.trim().is_empty(),
            Content::Reasoning(text) => text.trim().is_empty() && self.replay.is_none(),
            Content::Call { .. } => false,
        }
    }
}

/// Takes the chunks of one stream in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assembler {
    slots: Vec<Slot>,
    by_index: BTreeMap<u64, usize>,
    bytes: usize,
    usage: Option<Usage>,
    finish: Option<Finish>,
}

impl Assembler {
    /// An assembler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk. After an error the stream is over, and only [`Self::visible_prefix`] and
    /// [`Self::usage`] still mean something.
    pub fn push(&mut self, chunk: &Chunk) -> Result<(), Malformed> {
        if self.finish.is_some() {
            return malformed("L-10", "a chunk behind the finish");
        }
        match chunk {
            Chunk::BlockStart { index, kind } => self.start(*index, kind),
            Chunk::TextDelta { index, text }
            | Chunk::ReasoningDelta { index, text }
            | Chunk::CallFragment { index, text } => self.delta(*index, chunk, text),
            Chunk::BlockEnd { index } => {
                // A repeated end says nothing new.
                self.slot(*index)?.ended = true;
                Ok(())
            }
            Chunk::ReplayState { index, provider, data } => {
                self.grow(data.len())?;
                // A later state takes the place of an earlier one.
                self.slot(*index)?.replay = Some(Replay { provider: provider.clone(), data: data.clone() });
                Ok(())
            }
            Chunk::Usage { usage } => match self.usage.replace(*usage) {
                None => Ok(()),
                Some(first) => {
                    self.usage = Some(first);
                    malformed("L-13", "a second usage")
                }
            },
            Chunk::Finish { finish } => self.end(finish),
        }
    }

    /// Tokens, where the stream has told them.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// How the stream ended, as it said; `None` while it goes on.
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// What the stream comes to; `None` while it goes on.
    ///
    /// `new_id` gives the ids of the kept calls that came without one, in block order (L-16). The offline checker
    /// passes the ids that the stored message has.
    pub fn fold(&self, mut new_id: impl FnMut() -> CallId) -> Option<Result<Folded, Malformed>> {
        let finish = self.finish.clone()?;
        let drop_calls = match finish {
            Finish::Stop | Finish::ToolUse => {
                if self.slots.iter().all(Slot::is_blank) {
                    let failure = Failure::new(code::EMPTY_RESPONSE, "the model said nothing");
                    return Some(Ok(self.without_blocks(Finish::Error { failure })));
                }
                false
            }
            Finish::MaxTokens => true,
            Finish::Error { .. } | Finish::Aborted => return Some(Ok(self.without_blocks(finish))),
        };
        let mut blocks = self.kept(drop_calls, false);
        for block in &mut blocks {
            if let Block::ToolCall { call_id, .. } = block
                && call_id.as_str().is_empty()
            {
                *call_id = new_id();
            }
        }
        Some(check_call_ids(&blocks).map(|()| Folded { blocks, usage: self.usage, finish }))
    }

    /// What a person has seen so far: text and reasoning, without calls, open or complete. An interrupted message
    /// is made of it.
    pub fn visible_prefix(&self) -> Vec<Block> {
        self.kept(true, true)
    }

    /// Whether the prefix shows anything: a character that is no white space.
    pub fn has_visible(&self) -> bool {
        self.visible_prefix().iter().any(Block::is_visible)
    }

    /// The failure of a stream that ended cleanly and had no finish (Z14).
    pub fn closed_early(&self) -> Failure {
        let code = if self.has_visible() { code::STREAM_CLOSED } else { code::TRANSPORT };
        Failure::new(code, "the stream ended before the response was complete")
    }

    fn start(&mut self, index: u64, kind: &BlockKind) -> Result<(), Malformed> {
        if index >= INDEX_LIMIT {
            return malformed("L-11", format!("the block index {index} is too large"));
        }
        if self.slots.len() >= RESPONSE_MAX_BLOCKS {
            return malformed("L-11", format!("more than {RESPONSE_MAX_BLOCKS} blocks"));
        }
        let content = match kind {
            BlockKind::Text => Content::Text(String::new()),
            BlockKind::Reasoning => Content::Reasoning(String::new()),
            BlockKind::ToolCall { call_id, name } => {
                if name.trim().is_empty() {
                    return malformed("L-16", "a call without a tool's name");
                }
                self.grow(name.len() + call_id.as_str().len())?;
                Content::Call { call_id: call_id.clone(), name: name.clone(), arguments: String::new() }
            }
        };
        if self.by_index.insert(index, self.slots.len()).is_some() {
            return malformed("L-11", format!("block {index} starts twice"));
        }
        if let Content::Call { call_id, .. } = &content
            && !call_id.as_str().is_empty()
            && self.slots.iter().any(|slot| matches!(&slot.content, Content::Call { call_id: id, .. } if id == call_id))
        {
            return malformed("L-16", format!("two calls have the id {call_id}"));
        }
        self.slots.push(Slot { content, ended: false, replay: None });
        Ok(())
    }

    fn delta(&mut self, index: u64, chunk: &Chunk, text: &str) -> Result<(), Malformed> {
        self.grow(text.len())?;
        let slot = self.slot(index)?;
        if slot.ended {
            return malformed("L-12", format!("more of block {index}, which has ended"));
        }
        match (&mut slot.content, chunk) {
            (Content::Text(all), Chunk::TextDelta { .. })
            | (Content::Reasoning(all), Chunk::ReasoningDelta { .. })
            | (Content::Call { arguments: all, .. }, Chunk::CallFragment { .. }) => {
                all.push_str(text);
                Ok(())
            }
            (Content::Text(_) | Content::Reasoning(_) | Content::Call { .. }, _) => {
                malformed("L-12", format!("a delta of another kind than block {index}"))
            }
        }
    }

    fn end(&mut self, finish: &Finish) -> Result<(), Malformed> {
        match finish {
            Finish::Stop | Finish::ToolUse | Finish::MaxTokens => {
                if self.slots.iter().any(|slot| !slot.ended) {
                    return malformed("L-14", "a block is still open at the end");
                }
            }
            Finish::Error { .. } | Finish::Aborted => {}
        }
        self.finish = Some(finish.clone());
        Ok(())
    }

    fn slot(&mut self, index: u64) -> Result<&mut Slot, Malformed> {
        let slot = self.by_index.get(&index).and_then(|at| self.slots.get_mut(*at));
        slot.ok_or_else(|| Malformed { rule: "L-11", why: format!("block {index} was never started") })
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > RESPONSE_MAX_BYTES {
            return malformed("L-11", format!("more than {RESPONSE_MAX_BYTES} bytes"));
        }
        Ok(())
    }

    fn without_blocks(&self, finish: Finish) -> Folded {
        Folded { blocks: Vec::new(), usage: self.usage, finish }
    }

    /// The blocks, with or without calls. Where calls were dropped the provider's states go too: they speak of a
    /// message that is no more, and a later request would be refused for it (L-18). So does the state of a block
    /// that is still open.
    fn kept(&self, drop_calls: bool, prefix: bool) -> Vec<Block> {
        let stale = drop_calls && self.slots.iter().any(Slot::is_call);
        let blocks = self.slots.iter().filter(|slot| !(drop_calls && slot.is_call())).map(|slot| {
            let replay = slot.replay.clone().filter(|_| !stale && slot.ended);
            match slot.content.clone() {
                Content::Text(text) => Block::Text { text, replay },
                Content::Reasoning(text) => Block::Reasoning { text, replay },
                Content::Call { call_id, name, arguments } => Block::ToolCall { call_id, name, arguments, replay },
            }
        });
        blocks.filter(|block| !((stale || prefix) && is_hollow(block))).collect()
    }
}

/// Whether a block has neither a text nor a state left.
fn is_hollow(block: &Block) -> bool {
    match block {
        Block::Text { text, replay } | Block::Reasoning { text, replay } => text.is_empty() && replay.is_none(),
        Block::ToolCall { .. } | Block::Image { .. } => false,
    }
}

/// Generated ids must not meet those of the model.
fn check_call_ids(blocks: &[Block]) -> Result<(), Malformed> {
    let mut seen = std::collections::BTreeSet::new();
    for block in blocks {
        if let Block::ToolCall { call_id, .. } = block
            && !seen.insert(call_id.as_str())
        {
            return malformed("L-16", format!("two calls have the id {call_id}"));
        }
    }
    Ok(())
}

fn malformed<T>(rule: &'static str, why: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed { rule, why: why.into() })
}

#[cfg(test)]
pub(crate) mod tests;
