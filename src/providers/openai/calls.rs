//! Puts the fragments of parallel tool calls together.
//!
//! A fragment says to which call it belongs by index, by id, or by neither. A new id opens a call; arguments alone
//! continue the last one; two calls may carry one index (BR-073, BR-074).

use crate::providers::{blocks::Blocks, limits::REPLAY_MAX_BYTES, wire::ToolNames};
use everturn_storage::{
    chunk::{BlockKind, Chunk},
    ids::CallId,
    message::{Failure, code},
};
use serde_json::Value;

/// The calls of one answer.
#[derive(Debug)]
pub(super) struct Calls {
    provider: String,
    names: ToolNames,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    /// The index on the wire, where there was one.
    wire: Option<u64>,
    id: String,
    name: String,
    /// The arguments so far.
    arguments: String,
    /// Opaque state that the provider wants back with the call.
    extra: Option<Value>,
    /// Its block, once the name is known to be whole.
    block: Option<u64>,
}

impl Calls {
    pub(super) fn new(provider: &str, names: ToolNames) -> Self {
        Self { provider: provider.to_owned(), names, calls: Vec::new() }
    }

    /// Takes one element of `tool_calls`.
    pub(super) fn fragment(&mut self, value: &Value, blocks: &mut Blocks) -> Result<(), Failure> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let function = value.get("function").unwrap_or(value);
        let (id, name) = (text(value.get("id")), text(function.get("name")));
        let wire = value.get("index").and_then(Value::as_u64);
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let at = match self.continued(wire, &id, &name, !arguments.is_empty()) {
            Some(at) => at,
            None => {
                let call = Call { wire, id, name: String::new(), arguments: String::new(), extra: None, block: None };
                self.calls.push(call);
                self.calls.len() - 1
            }
        };
        let Some(call) = self.calls.get_mut(at) else { return Ok(()) };
        if call.block.is_none() && call.name != name {
            call.name.push_str(&name);
        }
        if let Some(extra) = value.get("extra_content").filter(|extra| !extra.is_null()) {
            if extra.to_string().len() > REPLAY_MAX_BYTES {
                return Err(Failure::new(code::MALFORMED_RESPONSE, "the opaque state of a call is too large"));
            }
            call.extra = Some(extra.clone());
        }
        if arguments.is_empty() {
            return Ok(());
        }
        call.arguments.push_str(&arguments);
        match call.block {
            Some(index) => blocks.push(Chunk::CallFragment { index, text: arguments }),
            // Arguments before a name wait for it.
            None if call.name.is_empty() => {}
            None => self.open_up_to(at, blocks)?,
        }
        Ok(())
    }

    /// The call that a fragment continues; `None` when it begins one.
    fn continued(&self, wire: Option<u64>, id: &str, name: &str, has_arguments: bool) -> Option<usize> {
        let last = self.calls.len().checked_sub(1)?;
        let Some(wire) = wire else {
            return match (id.is_empty(), name.is_empty()) {
                (false, _) => self.calls.iter().rposition(|call| call.id == id),
                (true, true) => Some(last),
                (true, false) => None,
            };
        };
        let at = self.calls.iter().rposition(|call| call.wire == Some(wire))?;
        let call = self.calls.get(at)?;
        let other_id = !id.is_empty() && id != call.id;
        let again = if other_id {
            // Servers that make up an id for each fragment send no name with it.
            !name.is_empty()
        } else {
            let fresh = name != call.name || (has_arguments && is_whole(&call.arguments));
            id.is_empty() && !name.is_empty() && call.block.is_some() && fresh
        };
        (!again).then_some(at)
    }

    /// Opens blocks in the order in which the calls began, so that the order of the message is the model's.
    fn open_up_to(&mut self, at: usize, blocks: &mut Blocks) -> Result<(), Failure> {
        for call in self.calls.iter_mut().take(at + 1) {
            if call.block.is_some() {
                continue;
            }
            if call.name.is_empty() {
                // It keeps its place; `complete` reports it when no name comes.
                continue;
            }
            let name = self.names.declared(&call.name).to_owned();
            let kind = BlockKind::ToolCall { call_id: CallId::trusted(call.id.as_str()), name };
            let index = blocks.start(kind)?;
            call.block = Some(index);
            blocks.push(Chunk::CallFragment { index, text: call.arguments.clone() });
        }
        Ok(())
    }

    /// Opens what is not open yet; tells whether there is any call. A call without a name is malformed (L-16).
    pub(super) fn complete(&mut self, blocks: &mut Blocks) -> Result<bool, Failure> {
        if self.calls.iter().any(|call| call.name.is_empty()) {
            let why = "the provider sent a tool call without a name; try again, or use another model";
            return Err(Failure::new(code::MALFORMED_RESPONSE, why));
        }
        if let Some(last) = self.calls.len().checked_sub(1) {
            self.open_up_to(last, blocks)?;
        }
        for call in &mut self.calls {
            if let (Some(index), Some(extra)) = (call.block, call.extra.take()) {
                blocks.push(Chunk::ReplayState { index, provider: self.provider.clone(), data: extra.to_string() });
            }
        }
        Ok(!self.calls.is_empty())
    }
}

/// Whether the arguments of a call are all there.
fn is_whole(arguments: &str) -> bool {
    matches!(serde_json::from_str::<Value>(arguments), Ok(Value::Object(_)))
}
