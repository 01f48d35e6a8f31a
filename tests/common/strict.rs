//! The rules of strict servers about histories: pairing, order, roles, nothing empty, ids used once.

use serde_json::Value;
use std::collections::BTreeSet;

/// What a strict server refuses of the messages of a chat completion.
pub(crate) fn refuse_openai(messages: &[Value]) -> Result<(), String> {
    let mut owed = BTreeSet::new();
    let mut before = String::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().ok_or("no role")?.to_owned();
        let content = &message["content"];
        let empty =
            content.as_str().is_none_or(|text| text.trim().is_empty()) && content.as_array().is_none_or(Vec::is_empty);
        match role.as_str() {
            "system" if at == 0 && !empty => {}
            "user" if !empty && owed.is_empty() && before != "user" => {}
            "assistant" if owed.is_empty() && before != "assistant" => {
                for call in message["tool_calls"].as_array().unwrap_or(&Vec::new()) {
                    let arguments = call["function"]["arguments"].as_str().ok_or("no arguments")?;
                    if !matches!(serde_json::from_str::<Value>(arguments), Ok(Value::Object(_))) {
                        return Err(format!("arguments {arguments}"));
                    }
                    if call["function"]["name"].as_str().is_none_or(str::is_empty) {
                        return Err("a call without a name".to_owned());
                    }
                    if !owed.insert(call["id"].as_str().ok_or("no id")?.to_owned()) {
                        return Err("an id twice".to_owned());
                    }
                }
                if empty && owed.is_empty() {
                    return Err("an empty assistant".to_owned());
                }
            }
            "tool" if !empty && owed.remove(message["tool_call_id"].as_str().ok_or("no id")?) => {}
            _ => return Err(format!("{message} at {at} behind {before}, owed {owed:?}")),
        }
        before = role;
    }
    if owed.is_empty() { Ok(()) } else { Err(format!("{owed:?} not answered")) }
}

/// What a strict server of the Messages protocol refuses of a whole body.
pub(crate) fn refuse_anthropic(body: &Value) -> Result<(), String> {
    let messages = body["messages"].as_array().ok_or("no messages")?;
    let mut seen = BTreeSet::new();
    let mut owed: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().ok_or("no role")?;
        let content = message["content"].as_array().ok_or("no content")?;
        if role != ["user", "assistant"][at % 2] || content.is_empty() {
            return Err(format!("{role} at {at}"));
        }
        let mut answered = Vec::new();
        let mut leading = true;
        for block in content {
            let kind = block["type"].as_str().ok_or("no type")?;
            leading &= kind == "tool_result";
            match (role, kind) {
                (_, "text") if block["text"].as_str().is_some_and(|text| !text.trim().is_empty()) => {}
                ("user", "image") => {}
                ("user", "tool_result") if leading => {
                    answered.push(block["tool_use_id"].as_str().unwrap_or_default().to_owned())
                }
                ("assistant", "tool_use") if block["input"].is_object() => {
                    let id = block["id"].as_str().unwrap_or_default().to_owned();
                    if !seen.insert(id.clone()) {
                        return Err(format!("the id {id} twice"));
                    }
                    owed.push(id);
                }
                ("assistant", "thinking" | "redacted_thinking") => {}
                _ => return Err(format!("{block} of {role}")),
            }
        }
        if role == "user" && answered != std::mem::take(&mut owed) {
            return Err(format!("wrong results {answered:?}"));
        }
        if content.last().is_some_and(|block| block["type"] == "thinking" && content.len() == 1) {
            return Err("thinking alone".to_owned());
        }
    }
    if messages.len() % 2 == 0 { Err("the last one is no user".to_owned()) } else { Ok(()) }
}
