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

/// One thing that is printed.
enum Printed<'a> {
    /// Text on stdout as it is.
    Text(&'a str),
    /// A line on stdout.
    Line(&'a str),
    /// A line on stderr.
    Note(&'a str),
}

fn print(printed: Printed<'_>) {
    match printed {
        Printed::Text(text) => out::text(text),
        Printed::Line(line) => out::line(line),
        Printed::Note(note) => out::note(note),
    }
}

/// What was shown so far.
pub(super) struct View {
    json: bool,
    print: Box<dyn FnMut(Printed<'_>) + Send>,
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
    /// The attempt whose text stands on stdout last.
    current: AttemptKey,
    /// What happened before the text that is being shown, and was told behind it.
    late: Vec<String>,
}

fn key(data: &Value) -> AttemptKey {
    let number = |name: &str| data[name].as_u64().unwrap_or_default();
    (number("turn"), number("step"), number("attempt"))
}

impl View {
    pub(super) fn new(json: bool) -> Self {
        Self::printing(json, Box::new(print))
    }

    fn printing(json: bool, print: Box<dyn FnMut(Printed<'_>) + Send>) -> Self {
        Self {
            json,
            print,
            next: 0,
            items: BTreeSet::new(),
            turns: BTreeSet::new(),
            held: BTreeMap::new(),
            shown: BTreeMap::new(),
            broken: false,
            line_ended: true,
            current: AttemptKey::default(),
            late: Vec::new(),
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
            if key != self.current {
                self.end_line();
            }
            (self.print)(Printed::Text(text));
            self.line_ended = text.ends_with('\n');
            self.current = key;
        }
    }

    fn end_line(&mut self) {
        if !self.line_ended {
            (self.print)(Printed::Text("\n"));
            self.line_ended = true;
        }
        for note in std::mem::take(&mut self.late) {
            (self.print)(Printed::Note(&note));
        }
    }

    fn note(&mut self, text: &str) {
        self.end_line();
        (self.print)(Printed::Note(text));
    }

    /// A note on what happened in this attempt. Frames overtake events: text of a later attempt that is being shown is
    /// not cut by it.
    fn note_at(&mut self, key: AttemptKey, text: String) {
        if self.overtaken(key) { self.late.push(text) } else { self.note(&text) }
    }

    /// Whether an unfinished line belongs to a later attempt.
    fn overtaken(&self, key: AttemptKey) -> bool {
        !self.line_ended && key < self.current
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
            (self.print)(Printed::Line(&event.to_string()));
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
        // Tools run behind the last attempt of their step.
        let behind = match key(data) {
            (turn, step, 0) => (turn, step, u64::MAX),
            attempt => attempt,
        };
        match kind {
            "assistant/message" => self.settled(data),
            "tool/call" => self.note_at(behind, format!("tool {} {}", text(&data["name"]), text(&data["arguments"]))),
            "tool/result" => {
                let how = match data["error"]["code"].as_str() {
                    Some(code) => format!("failed with {code}"),
                    None if data["message"]["is_error"] == true => "failed".to_owned(),
                    None => "done".to_owned(),
                };
                self.note_at(behind, format!("tool call {} {how}", text(&data["message"]["call_id"])));
            }
            "retry/scheduled" => {
                let code = text(&data["failure"]["code"]);
                self.note_at(behind, format!("{code}: trying again in {} ms", data["delay_ms"]));
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
            Some("") if self.overtaken(key) => return,
            Some(rest) => self.text(key, rest),
            None => {
                self.end_line();
                self.text(key, &whole);
            }
        }
        self.end_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::{Arc, Mutex, PoisonError};

    /// A view whose output can be looked at: notes stand in brackets.
    fn view() -> (View, Arc<Mutex<String>>) {
        let paper = Arc::new(Mutex::new(String::new()));
        let sheet = Arc::clone(&paper);
        let print = move |printed: Printed<'_>| {
            let mut sheet = sheet.lock().unwrap_or_else(PoisonError::into_inner);
            match printed {
                Printed::Text(text) => sheet.push_str(text),
                Printed::Line(line) => sheet.push_str(&format!("{line}\n")),
                Printed::Note(note) => sheet.push_str(&format!("[{note}]")),
            }
        };
        let mut view = View::printing(false, Box::new(print));
        view.turn(1);
        (view, paper)
    }

    fn chunk(step: u64, text: &str) -> Value {
        let chunk = json!({"type": "text_delta", "text": text});
        json!({"kind": "chunk", "turn": 1, "step": step, "attempt": 1, "chunk": chunk})
    }

    fn said(seq: u64, step: u64, text: &str) -> Value {
        let message = json!({"content": [{"type": "text", "text": text}]});
        let data = json!({"turn": 1, "step": step, "attempt": 1, "message": message});
        json!({"seq": seq, "type": "assistant/message", "data": data})
    }

    fn result(seq: u64) -> Value {
        let data = json!({"turn": 1, "step": 1, "message": {"call_id": "c"}});
        json!({"seq": seq, "type": "tool/result", "data": data})
    }

    /// SURFACE 3: the answer on stdout is whole, also when its frames overtake the events before them.
    #[test]
    fn events_that_come_late_do_not_cut_the_text() {
        let (mut view, paper) = view();
        view.frame(&chunk(1, "Let me look."));
        view.frame(&chunk(2, "It i"));
        view.event(&said(1, 1, "Let me look."));
        view.event(&result(2));
        view.frame(&chunk(2, "s noon."));
        view.event(&said(3, 2, "It is noon."));
        assert_eq!(*paper.lock().unwrap(), "Let me look.\nIt is noon.\n[tool call c done]");
    }

    /// In order, each note stands where it belongs; what frames left out is filled in.
    #[test]
    fn events_in_time_stand_in_their_places() {
        let (mut view, paper) = view();
        view.frame(&chunk(1, "Let me"));
        view.event(&said(1, 1, "Let me look."));
        view.event(&result(2));
        view.event(&said(3, 2, "It is noon."));
        assert_eq!(*paper.lock().unwrap(), "Let me look.\n[tool call c done]It is noon.\n");
    }
}
