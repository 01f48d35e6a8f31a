//! From the events of a chat completion stream to chunks: pure.
//!
//! What the known servers do differently: reasoning under three names, content as a list of parts, calls without an
//! index, with equal indexes, or in one piece, arguments as an object, empty finish labels, usage in a chunk without
//! choices, in the choice or in an extension, errors inside the stream, and whole answers without any stream.

use super::calls::Calls;
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
    message::{Failure, Usage, code},
};
use serde_json::{Map, Value, json};

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct OpenAiMapper {
    provider: String,
    blocks: Blocks,
    speech: Option<Speech>,
    calls: Calls,
    usage: Option<Usage>,
    label: Option<String>,
    error: Option<Failure>,
}

/// The open block of text or reasoning.
#[derive(Debug)]
struct Speech {
    index: u64,
    /// The name that reasoning came under; `None` for text.
    field: Option<&'static str>,
    details: Vec<Value>,
    details_bytes: usize,
}

impl OpenAiMapper {
    /// A mapper of an answer of `provider` to a request that declared `names`.
    pub(crate) fn new(provider: &str, names: ToolNames) -> Self {
        Self {
            provider: provider.to_owned(),
            blocks: Blocks::default(),
            speech: None,
            calls: Calls::new(provider, names),
            usage: None,
            label: None,
            error: None,
        }
    }

    fn chunk(&mut self, value: &Value) -> Result<(), Failure> {
        self.read_usage(value.get("usage"));
        self.read_usage(value.get("x_groq").and_then(|more| more.get("usage")));
        let choices = match value.get("choices") {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Array(choices)) => choices,
            Some(_) => return Err(undecodable("choices is no list")),
        };
        for choice in choices {
            // One answer was asked for; a second one would be mixed into it.
            if count(choice.get("index")).unwrap_or(0) == 0 {
                self.choice(choice)?;
            }
        }
        Ok(())
    }

    fn choice(&mut self, choice: &Value) -> Result<(), Failure> {
        self.read_usage(choice.get("usage"));
        if self.label.is_none() {
            match choice.get("delta").or_else(|| choice.get("message")) {
                None | Some(Value::Null) => {}
                Some(Value::Object(delta)) => self.delta(delta)?,
                Some(_) => return Err(undecodable("delta is no object")),
            }
        }
        if let Some(error) = choice.get("error").filter(|error| !error.is_null()) {
            return Err(ErrorBody::of(error).failure());
        }
        match choice.get("finish_reason") {
            None | Some(Value::Null) => {}
            // Some servers send the empty label with every chunk (BR-080).
            Some(Value::String(label)) if label.is_empty() => {}
            Some(Value::String(label)) => {
                self.label.get_or_insert_with(|| label.clone());
            }
            Some(_) => return Err(undecodable("finish_reason is no text")),
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Map<String, Value>) -> Result<(), Failure> {
        let details = delta.get("reasoning_details").and_then(Value::as_array);
        let reasoning = ["reasoning_content", "reasoning"].into_iter().find_map(|field| match delta.get(field) {
            Some(Value::String(text)) if !text.is_empty() => Some((field, text.as_str())),
            _ => None,
        });
        if let Some((field, text)) = reasoning {
            self.reason(field, text)?;
        }
        if let Some(details) = details.filter(|details| !details.is_empty()) {
            self.details(details)?;
        }
        match delta.get("content") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => self.say(text)?,
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| self.part(part))?,
            Some(_) => return Err(undecodable("content is no text")),
        }
        if let Some(Value::String(text)) = delta.get("refusal") {
            self.say(text)?;
        }
        let calls: &[Value] = match delta.get("tool_calls") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(calls)) => calls,
            Some(one @ Value::Object(_)) => std::slice::from_ref(one),
            Some(_) => return Err(undecodable("tool_calls is no list")),
        };
        for call in calls {
            self.end_speech();
            self.calls.fragment(call, &mut self.blocks)?;
        }
        if let Some(function @ Value::Object(_)) = delta.get("function_call") {
            self.end_speech();
            self.calls.fragment(&json!({"index": 0, "function": function}), &mut self.blocks)?;
        }
        Ok(())
    }

    /// A part of content that is a list.
    fn part(&mut self, part: &Value) -> Result<(), Failure> {
        let text = |value: &Value| value.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
        match part.get("type").and_then(Value::as_str) {
            Some("thinking") => match part.get("thinking") {
                Some(Value::String(thought)) => self.reason("content", thought),
                Some(Value::Array(parts)) => parts.iter().try_for_each(|part| self.reason("content", &text(part))),
                _ => Ok(()),
            },
            Some("text") | None => self.say(part.as_str().unwrap_or(&text(part))),
            // References and pictures are not for us.
            Some(_) => Ok(()),
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let index = self.speech(None)?.index;
        self.blocks.push(Chunk::TextDelta { index, text: text.to_owned() });
        Ok(())
    }

    fn reason(&mut self, field: &'static str, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let index = self.speech(Some(field))?.index;
        self.blocks.push(Chunk::ReasoningDelta { index, text: text.to_owned() });
        Ok(())
    }

    /// Keeps opaque reasoning. Pieces of one item come one after the other and are put together again.
    fn details(&mut self, details: &[Value]) -> Result<(), Failure> {
        let speech = self.speech(Some("reasoning"))?;
        for detail in details {
            speech.details_bytes += detail.to_string().len();
            if speech.details_bytes > REPLAY_MAX_BYTES {
                return Err(Failure::new(code::MALFORMED_RESPONSE, "the opaque state of the reasoning is too large"));
            }
            match speech.details.last_mut() {
                Some(last) if continues(last, detail) => join(last, detail),
                _ => speech.details.push(detail.clone()),
            }
        }
        Ok(())
    }

    /// The open block of this kind; another one is closed first.
    fn speech(&mut self, field: Option<&'static str>) -> Result<&mut Speech, Failure> {
        if self.speech.as_ref().is_some_and(|speech| speech.field.is_some() != field.is_some()) {
            self.end_speech();
        }
        if self.speech.is_none() {
            let kind = if field.is_some() { BlockKind::Reasoning } else { BlockKind::Text };
            let index = self.blocks.start(kind)?;
            self.speech = Some(Speech { index, field, details: Vec::new(), details_bytes: 0 });
        }
        self.speech.as_mut().ok_or_else(|| undecodable("a block that was just opened is missing"))
    }

    fn end_speech(&mut self) {
        let Some(speech) = self.speech.take() else { return };
        // Reasoning in the content has no field of its own to be given back in.
        if let Some(field) = speech.field.filter(|field| *field != "content") {
            let mut state = json!({"field": field});
            if !speech.details.is_empty() {
                state["details"] = speech.details.into();
            }
            let provider = self.provider.clone();
            self.blocks.push(Chunk::ReplayState { index: speech.index, provider, data: state.to_string() });
        }
        self.blocks.end(speech.index);
    }

    /// The last counts stand: servers that send them more than once count up.
    fn read_usage(&mut self, usage: Option<&Value>) {
        if let Some(usage) = usage.and_then(read_usage) {
            self.usage = Some(usage);
        }
    }

    /// The end of the answer, as far as it is known: calls decide, labels only where there is none (L-19).
    fn close(&mut self) {
        self.end_speech();
        if let Some(failure) = self.error.take() {
            return self.blocks.fail(self.usage, failure);
        }
        // Without a label the answer was cut, whatever else stands there (BR-067).
        let Some(label) = &self.label else { return self.blocks.cut(self.usage) };
        let finish = match label.as_str() {
            "length" | "max_tokens" | "model_length" => Finish::MaxTokens,
            "content_filter" | "refusal" | "safety" | "SAFETY" | "RECITATION" | "PROHIBITED_CONTENT" => {
                failed(code::CONTENT_FILTER, label, "change the request")
            }
            "insufficient_system_resource" => failed(code::INSUFFICIENT_SYSTEM_RESOURCE, label, "try again later"),
            "error" | "abort" | "aborted" | "cancelled" => failed(code::SERVER, label, "try again"),
            _ => match self.calls.complete(&mut self.blocks) {
                Err(failure) => Finish::Error { failure },
                Ok(true) => Finish::ToolUse,
                Ok(false) => Finish::Stop,
            },
        };
        self.blocks.finish(self.usage, finish);
    }
}

impl Mapper for OpenAiMapper {
    fn event(&mut self, event: &SseEvent) {
        let data = event.data.trim();
        if data.is_empty() || self.blocks.finished() {
            return;
        }
        if data == "[DONE]" {
            return self.close();
        }
        let foreign = !matches!(event.name.as_str(), "" | "message" | "error");
        let result = match serde_json::from_str::<Value>(data) {
            Ok(value) => match ErrorBody::within(&value) {
                Some(error) => Err(error.failure()),
                None if event.name == "error" => Err(ErrorBody::of(&value).failure()),
                None => self.chunk(&value),
            },
            // Events of other names are no part of the answer.
            Err(_) if foreign => Ok(()),
            Err(error) => Err(undecodable(&format!("an event is no JSON ({error})"))),
        };
        if let Err(failure) = result {
            // What comes behind the finish label cannot undo the answer.
            if self.label.is_none() {
                self.error = Some(failure);
            }
            self.close();
        }
    }

    fn eof(&mut self) {
        if !self.blocks.finished() {
            self.close();
        }
    }

    fn stop(&mut self, finish: Finish) {
        self.blocks.finish(self.usage, finish);
    }

    fn labelled(&self) -> bool {
        self.label.is_some()
    }

    fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }
}

fn failed(code: &str, label: &str, advice: &str) -> Finish {
    let message = format!("the provider ended the answer with {label:?}; {advice}");
    Finish::Error { failure: Failure::new(code, message) }
}

fn undecodable(why: &str) -> Failure {
    Failure::new(code::INVALID_RESPONSE, format!("the answer is no chat completion stream: {why}; check base_url"))
}

fn continues(last: &Value, next: &Value) -> bool {
    let same = |key: &str| last.get(key) == next.get(key);
    next.get("index").is_some() && same("index") && same("type")
}

/// Adds a piece of a detail to the one before: texts grow, other fields take the newer value.
fn join(last: &mut Value, next: &Value) {
    let (Value::Object(last), Value::Object(next)) = (last, next) else { return };
    for (key, value) in next {
        match (last.get_mut(key), value) {
            (Some(Value::String(all)), Value::String(more)) if matches!(key.as_str(), "text" | "summary" | "data") => {
                all.push_str(more);
            }
            (Some(_), Value::Null) => {}
            _ => {
                last.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Disjoint counts from the overlapping ones on the wire (L-13).
fn read_usage(usage: &Value) -> Option<Usage> {
    let prompt = count(usage.get("prompt_tokens"))?;
    let completion = count(usage.get("completion_tokens")).unwrap_or(0);
    let detail = |group: &str, key: &str| usage.get(group).and_then(|group| count(group.get(key)));
    let cache_read = detail("prompt_tokens_details", "cached_tokens")
        .or_else(|| count(usage.get("prompt_cache_hit_tokens")))
        .or_else(|| count(usage.get("cached_tokens")))
        .unwrap_or(0)
        .min(prompt);
    let cache_write = detail("prompt_tokens_details", "cache_creation_tokens")
        .or_else(|| detail("prompt_tokens_details", "cache_write_tokens"))
        .unwrap_or(0)
        .min(prompt - cache_read);
    let reasoning = detail("completion_tokens_details", "reasoning_tokens").unwrap_or(0);
    // Some servers leave reasoning out of the completion; their total tells.
    let total = count(usage.get("total_tokens"));
    let apart = reasoning > completion || (reasoning > 0 && total == Some(prompt + completion + reasoning));
    let output = if apart { completion } else { completion - reasoning };
    Some(Usage { input: prompt - cache_read - cache_write, cache_read, cache_write, output, reasoning })
}
