//! From the events of a Messages stream to chunks: pure.
//!
//! What the known servers do differently: a call begins without `input`, or with all of it; token counts come at the
//! start, at the end, or at both; `ping` and events that nobody knows stand anywhere; errors come inside the stream.

use crate::providers::{
    blocks::{Blocks, count},
    classify::ErrorBody,
    exchange::Mapper,
    limits::REPLAY_MAX_BYTES,
    sse::SseEvent,
    wire::ToolNames,
};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    ids::CallId,
    message::{Failure, Usage, code},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a thinking block must be given back with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// A block with text.
    Signed {
        /// The model that made it; no other one takes it.
        model: String,
        /// The signature, byte for byte.
        signature: String,
    },
    /// A block that holds nothing but this.
    Redacted {
        /// The model that made it.
        model: String,
        /// The opaque data.
        data: String,
    },
}

impl State {
    /// Reads what [`State::write`] wrote; `None` for anything else.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn write(&self) -> String {
        // Two strings in an enum always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(super) struct AnthropicMapper {
    provider: String,
    model: String,
    names: ToolNames,
    blocks: Blocks,
    open: Vec<Open>,
    calls: usize,
    counts: Counts,
    label: Option<String>,
}

/// An open block of the wire.
#[derive(Debug)]
struct Open {
    wire: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text {
        index: u64,
    },
    Thinking {
        index: u64,
        signature: String,
    },
    /// With the input that stood at its beginning, while no piece of it has come.
    Call {
        index: u64,
        input: Option<Value>,
    },
    /// Not for us.
    Foreign,
}

/// The counts as they came; a later one takes the place of an earlier one.
#[derive(Debug, Default)]
struct Counts {
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    output: Option<u64>,
    thinking: Option<u64>,
}

impl Counts {
    fn read(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage else { return };
        let take = |slot: &mut Option<u64>, key: &str| *slot = count(usage.get(key)).or(*slot);
        take(&mut self.input, "input_tokens");
        take(&mut self.cache_read, "cache_read_input_tokens");
        take(&mut self.cache_write, "cache_creation_input_tokens");
        take(&mut self.output, "output_tokens");
        let details = usage.get("output_tokens_details");
        self.thinking = details.and_then(|details| count(details.get("thinking_tokens"))).or(self.thinking);
    }

    /// Unknown stays unknown; it is not zero (BR-089).
    fn usage(&self) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        let output = self.output.unwrap_or(0);
        let reasoning = self.thinking.unwrap_or(0).min(output);
        Some(Usage {
            input: self.input.unwrap_or(0),
            cache_read: self.cache_read.unwrap_or(0),
            cache_write: self.cache_write.unwrap_or(0),
            output: output - reasoning,
            reasoning,
        })
    }
}

impl AnthropicMapper {
    /// A mapper of an answer of `model` to a request that declared `names`.
    pub(super) fn new(provider: &str, model: &str, names: ToolNames) -> Self {
        Self {
            provider: provider.to_owned(),
            model: model.to_owned(),
            names,
            blocks: Blocks::default(),
            open: Vec::new(),
            calls: 0,
            counts: Counts::default(),
            label: None,
        }
    }

    fn read(&mut self, name: &str, value: &Value) -> Result<(), Failure> {
        let kind = value.get("type").and_then(Value::as_str).unwrap_or(name);
        match kind {
            "message_start" => self.counts.read(value.get("message").and_then(|message| message.get("usage"))),
            "content_block_start" => self.start(value)?,
            "content_block_delta" => self.delta(value)?,
            "content_block_stop" => {
                if let Some(at) = self.find(value)? {
                    self.end(at)?;
                }
            }
            "message_delta" => {
                self.counts.read(value.get("usage"));
                self.read_label(value.get("delta"));
            }
            "message_stop" => self.close(),
            "message" => self.whole(value)?,
            // `ping`, and whatever else may come (BR-088).
            _ => {}
        }
        Ok(())
    }

    fn read_label(&mut self, of: Option<&Value>) {
        if let Some(label) = of.and_then(|of| of.get("stop_reason")).and_then(Value::as_str)
            && !label.is_empty()
        {
            self.label = Some(label.to_owned());
        }
    }

    /// An answer that came without a stream.
    fn whole(&mut self, message: &Value) -> Result<(), Failure> {
        self.counts.read(message.get("usage"));
        for (at, block) in message.get("content").and_then(Value::as_array).into_iter().flatten().enumerate() {
            self.start(&json!({"index": at, "content_block": block}))?;
            self.end(self.open.len() - 1)?;
        }
        self.read_label(Some(message));
        Ok(())
    }

    fn start(&mut self, value: &Value) -> Result<(), Failure> {
        let block = value.get("content_block").ok_or_else(|| undecodable("a block without content_block"))?;
        let wire = match value.get("index") {
            None => self.open.iter().map(|open| open.wire + 1).max().unwrap_or(0),
            Some(index) => count(Some(index)).ok_or_else(|| malformed("a block has no legal index"))?,
        };
        if self.open.iter().any(|open| open.wire == wire) {
            return Err(malformed("a block starts twice"));
        }
        let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = match block.get("type").and_then(Value::as_str) {
            Some("text") => {
                let index = self.blocks.start(BlockKind::Text)?;
                self.blocks.push(Chunk::TextDelta { index, text: text("text") });
                Kind::Text { index }
            }
            Some("thinking") => {
                let index = self.blocks.start(BlockKind::Reasoning)?;
                self.blocks.push(Chunk::ReasoningDelta { index, text: text("thinking") });
                Kind::Thinking { index, signature: text("signature") }
            }
            Some("redacted_thinking") => {
                let index = self.blocks.start(BlockKind::Reasoning)?;
                let state = State::Redacted { model: self.model.clone(), data: text("data") };
                self.keep(index, &state)?;
                self.blocks.end(index);
                Kind::Foreign
            }
            Some("tool_use") => {
                let name = self.names.declared(&text("name")).to_owned();
                let call_id = CallId::trusted(text("id"));
                let index = self.blocks.start(BlockKind::ToolCall { call_id, name })?;
                self.calls += 1;
                Kind::Call { index, input: block.get("input").filter(|input| !input.is_null()).cloned() }
            }
            Some(_) => Kind::Foreign,
            None => return Err(undecodable("a block without a type")),
        };
        self.open.push(Open { wire, kind });
        Ok(())
    }

    /// The open block that an event is about; the last one when it does not say.
    fn find(&self, value: &Value) -> Result<Option<usize>, Failure> {
        match value.get("index") {
            None => Ok(self.open.len().checked_sub(1)),
            Some(index) => {
                let wire = count(Some(index)).ok_or_else(|| malformed("a block has no legal index"))?;
                Ok(self.open.iter().position(|open| open.wire == wire))
            }
        }
    }

    fn delta(&mut self, value: &Value) -> Result<(), Failure> {
        let delta = value.get("delta").ok_or_else(|| undecodable("a content_block_delta without delta"))?;
        let text = |key: &str| delta.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = delta.get("type").and_then(Value::as_str).unwrap_or_default();
        let at = self.find(value)?.ok_or_else(|| malformed("a delta belongs to no open block"))?;
        let Some(open) = self.open.get_mut(at) else { return Ok(()) };
        match (&mut open.kind, kind) {
            (Kind::Text { index }, "text_delta") => {
                self.blocks.push(Chunk::TextDelta { index: *index, text: text("text") });
            }
            (Kind::Thinking { index, .. }, "thinking_delta") => {
                self.blocks.push(Chunk::ReasoningDelta { index: *index, text: text("thinking") });
            }
            (Kind::Thinking { signature, .. }, "signature_delta") => {
                signature.push_str(&text("signature"));
                if signature.len() > REPLAY_MAX_BYTES {
                    return Err(malformed("a signature is too large"));
                }
            }
            (Kind::Call { index, input }, "input_json_delta") => {
                let piece = match delta.get("partial_json") {
                    None | Some(Value::Null) => String::new(),
                    Some(json) => json.as_str().map_or_else(|| json.to_string(), str::to_owned),
                };
                if !piece.is_empty() {
                    *input = None;
                }
                self.blocks.push(Chunk::CallFragment { index: *index, text: piece });
            }
            (Kind::Text { .. } | Kind::Thinking { .. } | Kind::Call { .. }, "text_delta" | "thinking_delta")
            | (Kind::Text { .. } | Kind::Call { .. }, "signature_delta")
            | (Kind::Text { .. } | Kind::Thinking { .. }, "input_json_delta") => {
                return Err(malformed("a delta is of another kind than its block"));
            }
            // Citations, and whatever else may come.
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, at: usize) -> Result<(), Failure> {
        if at >= self.open.len() {
            return Ok(());
        }
        match self.open.remove(at).kind {
            Kind::Text { index } => self.blocks.end(index),
            Kind::Thinking { index, signature } => {
                if !signature.is_empty() {
                    let state = State::Signed { model: self.model.clone(), signature };
                    self.keep(index, &state)?;
                }
                self.blocks.end(index);
            }
            Kind::Call { index, input } => {
                // An empty input at the beginning only says that pieces follow; none came, so that it stands.
                if let Some(input) = input.filter(|input| input.as_object().is_none_or(|fields| !fields.is_empty())) {
                    let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
                    self.blocks.push(Chunk::CallFragment { index, text });
                }
                self.blocks.end(index);
            }
            Kind::Foreign => {}
        }
        Ok(())
    }

    fn keep(&mut self, index: u64, state: &State) -> Result<(), Failure> {
        let data = state.write();
        if data.len() > REPLAY_MAX_BYTES {
            return Err(malformed("the opaque state of a block is too large"));
        }
        self.blocks.push(Chunk::ReplayState { index, provider: self.provider.clone(), data });
        Ok(())
    }

    /// The end of the answer, as far as it is known: calls decide, labels only where there is none (L-19).
    fn close(&mut self) {
        let usage = self.counts.usage();
        // Without a label the answer was cut, whatever else stands there (BR-067).
        let Some(label) = self.label.clone() else { return self.blocks.cut(usage) };
        while let Some(last) = self.open.len().checked_sub(1) {
            if let Err(failure) = self.end(last) {
                return self.blocks.fail(usage, failure);
            }
        }
        let finish = match label.as_str() {
            // A full window cuts the answer as the output limit does.
            "max_tokens" | "model_context_window_exceeded" => Finish::MaxTokens,
            "refusal" => Finish::Error {
                failure: Failure::new(
                    code::CONTENT_FILTER,
                    "the provider ended the answer with \"refusal\"; change the request",
                ),
            },
            _ if self.calls > 0 => Finish::ToolUse,
            _ => Finish::Stop,
        };
        self.blocks.finish(usage, finish);
    }
}

impl Mapper for AnthropicMapper {
    fn event(&mut self, event: &SseEvent) {
        let data = event.data.trim();
        if data.is_empty() || self.blocks.finished() {
            return;
        }
        let known = matches!(event.name.as_str(), "" | "error")
            || event.name.starts_with("message")
            || event.name.starts_with("content_block");
        let result = match serde_json::from_str::<Value>(data) {
            Ok(value) => match ErrorBody::within(&value) {
                Some(error) => Err(error.failure()),
                None if event.name == "error" => Err(ErrorBody::of(&value).failure()),
                None => self.read(&event.name, &value),
            },
            // Some gateways end every stream in this way.
            Err(_) if data == "[DONE]" => {
                self.close();
                Ok(())
            }
            Err(_) if !known => Ok(()),
            Err(error) => Err(undecodable(&format!("an event is no JSON ({error})"))),
        };
        if let Err(failure) = result {
            if self.label.is_some() {
                // What comes behind the reason to stop cannot undo the answer.
                return self.close();
            }
            self.blocks.fail(self.counts.usage(), failure);
        }
    }

    fn eof(&mut self) {
        if !self.blocks.finished() {
            self.close();
        }
    }

    fn stop(&mut self, finish: Finish) {
        self.blocks.finish(self.counts.usage(), finish);
    }

    fn labelled(&self) -> bool {
        self.label.is_some()
    }

    fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }
}

fn malformed(why: &str) -> Failure {
    Failure::new(code::MALFORMED_RESPONSE, format!("the provider broke its protocol: {why}; try another model"))
}

fn undecodable(why: &str) -> Failure {
    Failure::new(code::INVALID_RESPONSE, format!("the answer is no Messages stream: {why}; check base_url"))
}
