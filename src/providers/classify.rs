//! From what a provider says went wrong to a failure of CONTRACT 5.5: pure.
//!
//! It goes by structure: status, error type, error code (L-30). The one place that looks into sentences is
//! [`says_too_long`], because most servers have no code of their own for a full context window.

use super::limits::RETRY_AFTER_MAX_MS;
use everturn_storage::{
    RawJson,
    message::{Failure, code, truncate_utf8},
};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::{Value, json};
use std::time::SystemTime;

#[cfg(test)]
mod tests;

/// Longest label (type or code) that goes into a failure.
const LABEL_MAX_BYTES: usize = 128;

/// Longest piece of a body without structure that goes into a failure.
const SNIPPET_MAX_BYTES: usize = 512;

/// An error object of a provider, in whatever form it came.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ErrorBody {
    /// Its type, such as `overloaded_error`.
    pub(super) kind: String,
    /// Its code, such as `insufficient_quota`.
    pub(super) code: String,
    /// A status that stands in the object.
    pub(super) status: Option<u16>,
    /// Its sentence.
    pub(super) message: String,
    /// Whether it says that moderation refused.
    pub(super) flagged: bool,
}

impl ErrorBody {
    /// The error that `value` tells of: `{"error": …}`, an object marked as an error, or a list of one of these.
    pub(super) fn within(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.first().and_then(Self::within),
            Value::Object(map) => match map.get("error") {
                Some(Value::Null | Value::Bool(false)) | None => {
                    let marked = ["object", "type"].iter().any(|key| map.get(*key).is_some_and(|is| is == "error"));
                    marked.then(|| Self::of(value))
                }
                Some(error) => Some(Self::of(error)),
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }

    /// The error that `value` is, when the place it came from says that it is one.
    pub(super) fn of(value: &Value) -> Self {
        if let Some(inner) = value.get("error").filter(|inner| inner.is_object() || inner.is_string()) {
            return Self::of(inner);
        }
        let label = |key: &str| match value.get(key) {
            Some(Value::String(text)) => short(text),
            _ => String::new(),
        };
        let number = |key: &str| match value.get(key) {
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => text.parse().ok(),
            _ => None,
        };
        let status = ["code", "status", "status_code"]
            .iter()
            .find_map(|key| number(key).filter(|number| (400..600).contains(number)))
            .and_then(|number| u16::try_from(number).ok());
        let told = ["message", "detail", "msg"].iter().find_map(|key| value.get(*key));
        let message = told.or(value.is_string().then_some(value)).map_or_else(String::new, sentence);
        let flagged = value.get("metadata").is_some_and(|more| more.get("flagged_input").is_some());
        let kind = Some(label("type")).filter(|kind| !kind.is_empty() && kind != "error");
        Self { kind: kind.unwrap_or_else(|| label("status")), code: label("code"), status, message, flagged }
    }

    /// The failure inside a stream or a body whose status said that all was well.
    pub(super) fn failure(&self) -> Failure {
        self.failure_with(None)
    }

    fn failure_with(&self, status: Option<u16>) -> Failure {
        let labels: Vec<&str> =
            [self.kind.as_str(), self.code.as_str()].into_iter().filter(|label| !label.is_empty()).collect();
        let about = match (status, labels.is_empty()) {
            (Some(status), true) => format!("HTTP {status}"),
            (Some(status), false) => format!("HTTP {status}, {}", labels.join(", ")),
            (None, false) => labels.join(", "),
            (None, true) => "without a type".to_owned(),
        };
        let message = if self.message.is_empty() { "no reason given" } else { self.message.as_str() };
        let detail = (!labels.is_empty()).then(|| RawJson::from_value(&json!({"type": self.kind, "code": self.code})));
        Failure {
            status: status.or(self.status),
            detail,
            ..Failure::new(self.class(status), format!("the provider reports an error ({about}): {message}"))
        }
    }

    /// The code of 5.5.
    fn class(&self, status: Option<u16>) -> String {
        let labels = [normal(&self.code), normal(&self.kind)];
        if let Some(code) = labels.iter().find_map(|label| decisive(label)) {
            return code.to_owned();
        }
        if self.flagged {
            return code::CONTENT_FILTER.to_owned();
        }
        let class = match status.filter(|status| *status >= 300).or(self.status) {
            Some(status) => by_status(status),
            None => labels.iter().find_map(|label| by_label(label)).unwrap_or(code::UNKNOWN).to_owned(),
        };
        if class == code::INVALID_REQUEST && says_too_long(&self.message) {
            return code::CONTEXT_WINDOW_EXCEEDED.to_owned();
        }
        class
    }
}

/// The failure that an answer with an error status is.
pub(super) fn http_failure(status: u16, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Failure {
    let error = match serde_json::from_slice::<Value>(body) {
        Ok(value) => ErrorBody::within(&value).unwrap_or_else(|| ErrorBody::of(&value)),
        Err(_) => ErrorBody { message: snippet(body), ..ErrorBody::default() },
    };
    let mut failure = error.failure_with(Some(status));
    failure.retry_after_ms = retry_after_ms(headers, now);
    failure.request_id = request_id(headers);
    failure
}

/// The provider's name for the request.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = ["request-id", "x-request-id"].iter().find_map(|name| headers.get(*name))?;
    id.to_str().ok().map(short).filter(|id| !id.is_empty())
}

/// How long the provider asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date. LiteLLM hands on
/// what the provider behind it said under a name of its own.
pub(super) fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let text = |value: &reqwest::header::HeaderValue| value.to_str().ok().map(|text| text.trim().to_owned());
    let number = |text: &str, unit_ms: f64| {
        let wait_ms = text.parse::<f64>().ok().filter(|number| number.is_finite())? * unit_ms;
        // The cast is safe: the value was clamped to the bound.
        Some(wait_ms.clamp(0.0, RETRY_AFTER_MAX_MS as f64).ceil() as u64)
    };
    if let Some(wait_ms) = headers.get("retry-after-ms").and_then(text).and_then(|text| number(&text, 1.0)) {
        return Some(wait_ms);
    }
    let after = headers.get(RETRY_AFTER).or_else(|| headers.get("llm_provider-retry-after")).and_then(text)?;
    number(&after, 1_000.0).or_else(|| {
        let date = httpdate::parse_http_date(&after).ok()?;
        let wait_ms = date.duration_since(now).map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        Some(wait_ms.min(RETRY_AFTER_MAX_MS))
    })
}

fn by_status(status: u16) -> String {
    let class = match status {
        400 | 422 => code::INVALID_REQUEST,
        401 | 403 => code::AUTH,
        402 => code::QUOTA,
        408 => code::TIMEOUT,
        413 => code::CONTEXT_WINDOW_EXCEEDED,
        429 => code::RATE_LIMIT,
        500..=599 => code::SERVER,
        other => return format!("HTTP_{other}"),
    };
    class.to_owned()
}

/// Labels that decide whatever the status says (Z5).
fn decisive(label: &str) -> Option<&'static str> {
    Some(match label {
        "insufficientquota"
        | "billinghardlimitreached"
        | "billingnotactive"
        | "billingerror"
        | "insufficientbalance"
        | "insufficientcredits"
        | "insufficientfunds" => code::QUOTA,
        "contextlengthexceeded"
        | "contextwindowexceeded"
        | "contextwindowexceedederror"
        | "exceedcontextsizeerror"
        | "requesttoolarge" => code::CONTEXT_WINDOW_EXCEEDED,
        "contentfilter"
        | "contentpolicyviolation"
        | "contentpolicyviolationerror"
        | "responsibleaipolicyviolation"
        | "moderationblocked" => code::CONTENT_FILTER,
        "insufficientsystemresource" => code::INSUFFICIENT_SYSTEM_RESOURCE,
        _ => return None,
    })
}

/// Labels that decide where no status does: inside a stream.
fn by_label(label: &str) -> Option<&'static str> {
    Some(match label {
        "ratelimit" | "ratelimiterror" | "ratelimitexceeded" | "toomanyrequests" | "throttlingerror"
        | "resourceexhausted" => code::RATE_LIMIT,
        "overloaded"
        | "overloadederror"
        | "servererror"
        | "apierror"
        | "internalservererror"
        | "internalerror"
        | "internal"
        | "serviceunavailable"
        | "serviceunavailableerror"
        | "unavailable"
        | "unavailableerror"
        | "badgateway"
        | "engineoverloaded"
        | "engineoverloadederror" => code::SERVER,
        "timeout" | "timeouterror" | "gatewaytimeout" | "deadlineexceeded" | "requesttimeout" => code::TIMEOUT,
        "authenticationerror"
        | "invalidapikey"
        | "permissionerror"
        | "permissiondenied"
        | "unauthorized"
        | "unauthenticated"
        | "forbidden" => code::AUTH,
        "invalidrequest"
        | "invalidrequesterror"
        | "badrequest"
        | "badrequesterror"
        | "invalidargument"
        | "validationerror"
        | "unprocessableentity"
        | "unprocessableentityerror" => code::INVALID_REQUEST,
        "notfound" | "notfounderror" | "modelnotfound" => "HTTP_404",
        _ => return None,
    })
}

/// Whether a refused request was too long, by the words of the servers that have no code for it: Anthropic, vLLM and
/// Mistral, llama.cpp, Gemini, LM Studio, xAI.
fn says_too_long(message: &str) -> bool {
    const WORDS: [&str; 7] = [
        "prompt is too long",
        "maximum context length",
        "exceeds the available context size",
        "exceeds the maximum number of tokens",
        "exceed context limit",
        "greater than the context length",
        "maximum prompt length",
    ];
    let message = message.to_ascii_lowercase();
    WORDS.iter().any(|words| message.contains(words))
}

fn normal(label: &str) -> String {
    label.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn short(text: &str) -> String {
    let mut text = text.to_owned();
    truncate_utf8(&mut text, LABEL_MAX_BYTES);
    text
}

fn sentence(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The beginning of a body without structure, on one line.
pub(super) fn snippet(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * SNIPPET_MAX_BYTES)]);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    truncate_utf8(&mut line, SNIPPET_MAX_BYTES);
    line
}
