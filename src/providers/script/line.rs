//! One line of a script: what it may hold, and what it means.

use everturn_storage::message::{Failure, Usage};
use serde::Deserialize;
use serde_json::Value;

/// One answer, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) reasoning: Option<String>,
    pub(super) text: Option<String>,
    pub(super) calls: Vec<LineCall>,
    pub(super) usage: Option<Usage>,
    pub(super) fail: Option<Failure>,
    pub(super) hang: bool,
    pub(super) cut: bool,
    pub(super) chunk_chars: Option<usize>,
    pub(super) delay_ms: u64,
    pub(super) expect: Option<String>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineCall {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    text: Option<String>,
    reasoning: Option<String>,
    #[serde(default)]
    calls: Vec<WrittenCall>,
    usage: Option<Usage>,
    fail: Option<WrittenFailure>,
    #[serde(default)]
    hang: bool,
    #[serde(default)]
    cut: bool,
    chunk_chars: Option<usize>,
    #[serde(default)]
    delay_ms: u64,
    raw_arguments: Option<String>,
    expect: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCall {
    name: String,
    arguments: Option<Value>,
    raw_arguments: Option<String>,
    id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFailure {
    code: String,
    message: Option<String>,
    retry_after_ms: Option<u64>,
}

/// Reads one line. An error is half a sentence: what is wrong and what to do.
pub(super) fn parse(line: &str) -> Result<Line, String> {
    // From a value, so that errors do not count lines of their own.
    let value: Value = serde_json::from_str(line)
        .map_err(|error| format!("this is no JSON (column {}); write one object a line", error.column()))?;
    let written: Written = serde_json::from_value(value).map_err(|error| format!("{error}; correct the line"))?;
    if written.chunk_chars == Some(0) {
        return Err("chunk_chars is 0, and no text can be cut into pieces of nothing; use 1 or more".to_owned());
    }
    let ends = [written.fail.is_some(), written.hang, written.cut].into_iter().filter(|given| *given).count();
    if ends > 1 {
        return Err("an answer ends in one way; use only one of fail, hang and cut".to_owned());
    }
    let mut raw = written.raw_arguments;
    if raw.is_some() && written.calls.is_empty() {
        return Err("raw_arguments belongs to a call and there is none; add calls".to_owned());
    }
    let calls = written.calls.into_iter().map(|call| call.checked(&mut raw)).collect::<Result<_, _>>()?;
    if raw.is_some() {
        return Err("raw_arguments needs a call without arguments; leave them out there".to_owned());
    }
    Ok(Line {
        reasoning: written.reasoning,
        text: written.text,
        calls,
        usage: written.usage,
        fail: written.fail.map(WrittenFailure::checked),
        hang: written.hang,
        cut: written.cut,
        chunk_chars: written.chunk_chars,
        delay_ms: written.delay_ms,
        expect: written.expect,
    })
}

impl WrittenCall {
    /// A `raw_arguments` beside the calls goes to the first call without arguments.
    fn checked(self, raw: &mut Option<String>) -> Result<LineCall, String> {
        let Self { name, arguments, raw_arguments, id } = self;
        let arguments = match (raw_arguments, arguments) {
            (Some(_), Some(_)) => {
                return Err(format!("the call of {name:?} has arguments and raw_arguments; remove one"));
            }
            (Some(text), None) => text,
            (None, Some(value)) => value.to_string(),
            (None, None) => raw.take().unwrap_or_else(|| "{}".to_owned()),
        };
        Ok(LineCall { id, name, arguments })
    }
}

impl WrittenFailure {
    fn checked(self) -> Failure {
        let message = self.message.unwrap_or_else(|| "the script says so".to_owned());
        Failure { retry_after_ms: self.retry_after_ms, ..Failure::new(self.code, message) }
    }
}
