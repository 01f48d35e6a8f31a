//! The export form of events (SURFACE 5): one JSON object a line, names as in CONTRACT 2, fields in a fixed order.
//!
//! What is absent in the catalogue is absent here, never `null`. Data of plugins is the text that the plugin wrote.

use crate::{
    dual::RawJson,
    event::{Event, EventBody, EventData, ParentRef, SessionHeader, SurfaceOp},
    ids::{Seq, SessionId},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use std::{collections::BTreeMap, str::FromStr};

/// Why a text is no event, or no header, of ours. Says what is wrong and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

impl JsonError {
    fn new(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("this is no {what}: {why}"))
    }
}

/// Values that belong to somebody else. Nobody here takes a `null` out of them.
const FOREIGN: &[&str] = &["schema", "meta", "detail"];

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
enum Replacing {
    Replace { start: u32, end: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Surface {
    Word(String),
    Replacing(Replacing),
}

impl From<SurfaceOp> for Surface {
    fn from(op: SurfaceOp) -> Self {
        match op {
            SurfaceOp::Append => Self::Word("append".into()),
            SurfaceOp::Prepend => Self::Word("prepend".into()),
            SurfaceOp::Replace { start, end } => Self::Replacing(Replacing::Replace { start, end }),
        }
    }
}

impl Surface {
    fn into_op(self) -> Result<SurfaceOp, JsonError> {
        match self {
            Self::Word(word) => match word.as_str() {
                "append" => Ok(SurfaceOp::Append),
                "prepend" => Ok(SurfaceOp::Prepend),
                other => Err(JsonError::new("event", format!("surface is append, prepend or replace, not {other:?}"))),
            },
            Self::Replacing(Replacing::Replace { start, end }) => Ok(SurfaceOp::Replace { start, end }),
        }
    }
}

#[derive(Serialize)]
struct OutLine<'a> {
    session: &'a SessionId,
    seq: Seq,
    time: i64,
    r#type: &'a str,
    data: OutData,
    #[serde(skip_serializing_if = "Option::is_none")]
    surface: Option<Surface>,
    #[serde(skip_serializing_if = "<[Seq]>::is_empty")]
    cites: &'a [Seq],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignorable: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OutData {
    Core(Value),
    Raw(RawJson),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InLine<'a> {
    session: String,
    seq: Seq,
    time: i64,
    r#type: String,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(default)]
    surface: Option<Surface>,
    #[serde(default)]
    cites: Vec<Seq>,
    #[serde(default)]
    ignorable: bool,
}

/// The event as one line of JSON, without a line end.
pub fn event_line(session: &SessionId, event: &Event) -> String {
    let body = &event.body;
    let line = OutLine {
        session,
        seq: event.seq,
        time: event.time_ms,
        r#type: body.data.type_name(),
        data: data(&body.data),
        surface: body.surface.map(Into::into),
        cites: &body.cites,
        ignorable: body.ignorable,
    };
    // Strings and numbers of our own types always have a JSON form.
    let text = serde_json::to_string(&line).unwrap_or_default();
    if text.contains(['\n', '\r']) {
        // In JSON a bare line end is white space between tokens of somebody's raw text.
        return text.replace(['\n', '\r'], " ");
    }
    text
}

fn data(data: &EventData) -> OutData {
    if let EventData::Plugin(plugin) = data {
        return OutData::Raw(plugin.data.clone());
    }
    let mut value = data.to_json_value().unwrap_or_default();
    strip_nulls(&mut value);
    if let (EventData::TurnEnd(end), Value::Object(map)) = (data, &mut value)
        && end.unadmitted.is_empty()
    {
        map.shift_remove("unadmitted");
    }
    OutData::Core(value)
}

/// Takes absent fields out, except inside of what belongs to somebody else.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            for (key, value) in map.iter_mut() {
                if !FOREIGN.contains(&key.as_str()) {
                    strip_nulls(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Reads what [`event_line`] wrote. Unknown and repeated fields and wrong types are refused.
pub fn parse_event_line(line: &str) -> Result<(SessionId, Event), JsonError> {
    let parsed: InLine<'_> = serde_json::from_str(line).map_err(|why| JsonError::new("event", why))?;
    let session = SessionId::from_str(&parsed.session).map_err(|why| JsonError::new("event", why))?;
    let data = EventData::from_json(&parsed.r#type, parsed.data)
        .map_err(|why| JsonError::new(&format!("data of {}", parsed.r#type), why))?;
    let surface = parsed.surface.map(Surface::into_op).transpose()?;
    let body = EventBody { data, surface, cites: parsed.cites, ignorable: parsed.ignorable };
    Ok((session, Event { seq: parsed.seq, time_ms: parsed.time, body }))
}

/// The header as it stands in files: the first line of an export.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    version: u32,
    session_id: SessionId,
    agent: String,
    created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<ParentRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delegation_depth: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preset: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

/// The header as one line of JSON, without a line end.
pub fn header_line(header: &SessionHeader) -> String {
    let SessionHeader {
        version,
        session_id,
        agent,
        created_at_ms,
        cwd,
        parent,
        seed_length,
        origin,
        delegation_depth,
        preset,
        labels,
    } = header.clone();
    let created_at = created_at_ms;
    let line = HeaderLine {
        version,
        session_id,
        agent,
        created_at,
        cwd,
        parent,
        seed_length,
        origin,
        delegation_depth,
        preset,
        labels,
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads what [`header_line`] wrote. The version is the caller's to judge (V-1).
pub fn parse_header_line(line: &str) -> Result<SessionHeader, JsonError> {
    // A newer version may have fields that are unknown here: its number is the better sentence.
    let version = serde_json::from_str::<Map<String, Value>>(line).ok().and_then(|map| map.get("version")?.as_u64());
    if let Some(found) = version.filter(|found| *found > u64::from(crate::event::FORMAT_VERSION)) {
        let supported = crate::event::FORMAT_VERSION;
        return Err(JsonError::new("header of a supported version", format!("{found} is newer than {supported}")));
    }
    let line: HeaderLine = serde_json::from_str(line).map_err(|why| JsonError::new("session header", why))?;
    let session_id = SessionId::from_str(line.session_id.as_str()).map_err(|why| JsonError::new("header", why))?;
    Ok(SessionHeader {
        version: line.version,
        session_id,
        agent: line.agent,
        created_at_ms: line.created_at,
        cwd: line.cwd,
        parent: line.parent,
        seed_length: line.seed_length,
        origin: line.origin,
        delegation_depth: line.delegation_depth,
        preset: line.preset,
        labels: line.labels,
    })
}

#[cfg(test)]
mod tests;
