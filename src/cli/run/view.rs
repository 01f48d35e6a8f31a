//! What `run` prints: text on stdout, what happens on stderr; with `--json` the durable events on stdout.

use crate::cli::out;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Which attempt a frame or an event speaks of.
type AttemptKey = (u64, u64, u64);

/// What the view needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    /// Which turn our message belongs to.
    Turn,
}

/// What was shown so far.
pub(super) struct View {
    json: bool,
    next: u64,
    items: BTreeSet<String>,
    turns: BTreeSet<u64>,
    /// Text of frames whose turn is not known to be ours, and what was printed of ours.
    held: BTreeMap<AttemptKey, String>,
    shown: BTreeMap<AttemptKey, String>,
    /// Attempts whose frames are not complete: only their events are shown from here on.
    broken: bool,
    /// Whether the last character on stdout ended a line.
    line_ended: bool,
}

fn key(data: &Value) -> AttemptKey {
    let number = |name: &str| data[name].as_u64().unwrap_or_default();
    (number("turn"), number("step"), number("attempt"))
}

impl View {
    pub(super) fn new(json: bool) -> Self {
        Self {
            json,
            next: 0,
            items: BTreeSet::new(),
            turns: BTreeSet::new(),
            held: BTreeMap::new(),
            shown: BTreeMap::new(),
            broken: false,
            line_ended: true,
        }
    }

    /// An item whose turn is shown.
    pub(super) fn ours(&mut self, item: &str) {
        self.items.insert(item.to_owned());
    }

    /// A turn of ours.
    pub(super) fn turn(&mut self, turn: u64) {
        if self.turns.insert(turn) {
            for (key, text) in std::mem::take(&mut self.held) {
                if key.0 == turn {
                    self.text(key, &text);
                }
            }
        }
    }

    pub(super) fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The first event that was not shown yet.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn skip_to(&mut self, seq: u64) {
        self.next = self.next.max(seq);
    }

    /// Some frames did not come.
    pub(super) fn gap(&mut self) {
        self.broken = true;
    }

    fn text(&mut self, key: AttemptKey, text: &str) {
        self.shown.entry(key).or_default().push_str(text);
        if !self.json && !text.is_empty() {
            out::text(text);
            self.line_ended = text.ends_with('\n');
        }
    }

    fn end_line(&mut self) {
        if !self.line_ended {
            out::text("\n");
            self.line_ended = true;
        }
    }

    fn note(&mut self, text: &str) {
        self.end_line();
        out::note(text);
    }

    pub(super) fn end(&mut self) {
        self.end_line();
    }

    /// A live frame.
    pub(super) fn frame(&mut self, data: &Value) -> Wanted {
        let key = key(data);
        match data["kind"].as_str().unwrap_or_default() {
            "started" => {
                self.broken = false;
                if self.turns.contains(&key.0) { Wanted::Nothing } else { Wanted::Turn }
            }
            "chunk" if data["chunk"]["type"] == "text_delta" && !self.broken => {
                let text = data["chunk"]["text"].as_str().unwrap_or_default();
                if self.turns.contains(&key.0) {
                    self.text(key, text);
                } else {
                    self.held.entry(key).or_default().push_str(text);
                }
                Wanted::Nothing
            }
            "gap" => {
                self.broken = true;
                Wanted::Nothing
            }
            "discarded" if self.turns.contains(&key.0) => {
                if self.shown.get(&key).is_some_and(|text| !text.is_empty()) {
                    self.note("that text is not part of the answer: its attempt did not come to its end");
                }
                Wanted::Nothing
            }
            "notice" => {
                let (code, message) = (data["code"].as_str(), data["message"].as_str());
                self.note(&format!("{}: {}", code.unwrap_or_default(), message.unwrap_or_default()));
                Wanted::Nothing
            }
            _ => Wanted::Nothing,
        }
    }

    /// A durable event, each once and in order.
    pub(super) fn event(&mut self, event: &Value) {
        let seq = event["seq"].as_u64().unwrap_or_default();
        if seq < self.next {
            return;
        }
        self.next = seq + 1;
        if self.json {
            out::line(&event.to_string());
        }
        let data = &event["data"];
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "inbox/claimed" {
            let ids = data["ids"].as_array().into_iter().flatten();
            if ids.filter_map(Value::as_str).any(|id| self.items.contains(id)) {
                self.turn(data["turn"].as_u64().unwrap_or_default());
            }
        }
        if data["turn"].as_u64().is_none_or(|turn| !self.turns.contains(&turn)) {
            return;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match kind {
            "assistant/message" => self.settled(data),
            "tool/call" => self.note(&format!("tool {} {}", text(&data["name"]), text(&data["arguments"]))),
            "tool/result" => {
                let how = match data["error"]["code"].as_str() {
                    Some(code) => format!("failed with {code}"),
                    None if data["message"]["is_error"] == true => "failed".to_owned(),
                    None => "done".to_owned(),
                };
                self.note(&format!("tool call {} {how}", text(&data["message"]["call_id"])));
            }
            "retry/scheduled" => {
                let code = text(&data["failure"]["code"]);
                self.note(&format!("{code}: trying again in {} ms", data["delay_ms"]));
            }
            _ => {}
        }
    }

    /// What the message says beyond what its frames showed.
    fn settled(&mut self, data: &Value) {
        let blocks = data["message"]["content"].as_array().into_iter().flatten();
        let whole: String = blocks.filter(|b| b["type"] == "text").filter_map(|b| b["text"].as_str()).collect();
        let key = key(data);
        let shown = self.shown.get(&key).cloned().unwrap_or_default();
        match whole.strip_prefix(&shown) {
            Some(rest) => self.text(key, rest),
            None => {
                self.end_line();
                self.text(key, &whole);
            }
        }
        self.end_line();
    }
}
