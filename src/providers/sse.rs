//! Server-sent events, from bytes to events: pure, incremental, bounded.
//!
//! Bytes may be cut anywhere, inside a character or between CR and LF. Lines are decoded only when they are
//! whole, so that no cut ever damages a character.

use super::limits::{SSE_EVENT_MAX_BYTES, SSE_LINE_MAX_BYTES};

#[cfg(test)]
mod tests;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name; empty when the stream gave none.
    pub name: String,
    /// Its data lines, joined by line feeds.
    pub data: String,
}

/// Why a stream of events is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line has no end within the bound.
    #[error("a line of the event stream is longer than {0} bytes")]
    LineTooLong(usize),
    /// An event has no end within the bound.
    #[error("an event of the stream is larger than {0} bytes")]
    EventTooLarge(usize),
}

/// The parser. It holds at most one unfinished line and one unfinished event.
#[derive(Debug, Clone)]
pub struct SseParser {
    line: Vec<u8>,
    name: String,
    data: String,
    has_data: bool,
    after_cr: bool,
    at_start: bool,
    line_max_bytes: usize,
    event_max_bytes: usize,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::with_limits(SSE_LINE_MAX_BYTES, SSE_EVENT_MAX_BYTES)
    }
}

impl SseParser {
    /// A parser with bounds of its own.
    pub fn with_limits(line_max_bytes: usize, event_max_bytes: usize) -> Self {
        Self {
            line: Vec::new(),
            name: String::new(),
            data: String::new(),
            has_data: false,
            after_cr: false,
            at_start: true,
            line_max_bytes,
            event_max_bytes,
        }
    }

    /// Takes more bytes and adds the events that they complete to `out`.
    ///
    /// After an error the parser must not be used again.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(at) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
                return self.hold(rest);
            };
            self.hold(&rest[..at])?;
            self.after_cr = rest[at] == b'\r';
            rest = &rest[at + 1..];
            self.end_line(out)?;
        }
        Ok(())
    }

    /// Takes the end of the stream: what stands there without its closing blank line is given as an event.
    ///
    /// The standard drops it. Some servers forget the blank line behind their last event, and a reader of JSON
    /// can tell a whole text from a cut one.
    pub fn finish(mut self) -> Option<SseEvent> {
        let mut out = Vec::new();
        if !self.line.is_empty() && self.end_line(&mut out).is_err() {
            return None;
        }
        self.dispatch(&mut out);
        out.pop()
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > self.line_max_bytes {
            return Err(SseError::LineTooLong(self.line_max_bytes));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let mut text: &str = &text;
        if std::mem::take(&mut self.at_start) {
            text = text.strip_prefix('\u{feff}').unwrap_or(text);
        }
        if text.is_empty() {
            self.dispatch(out);
        } else {
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            self.field(field, value.strip_prefix(' ').unwrap_or(value))?;
        }
        // The buffer is kept for the next line.
        line.clear();
        self.line = line;
        Ok(())
    }

    fn field(&mut self, field: &str, value: &str) -> Result<(), SseError> {
        match field {
            "data" => {
                if self.data.len() + value.len() + 1 > self.event_max_bytes {
                    return Err(SseError::EventTooLarge(self.event_max_bytes));
                }
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.name),
            // Comments (an empty field), ids and reconnection times mean nothing to us.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, out: &mut Vec<SseEvent>) {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            out.push(SseEvent { name, data });
        }
    }
}
