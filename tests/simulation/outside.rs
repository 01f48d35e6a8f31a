//! The outside world of a simulated agent: a model and tools that do whatever chance says, and the memory of what
//! really happened out there, which no crash wipes.

use super::{chance::Chance, programs::Said};
use everturn_actors::{
    ports::tool::{ToolFailure, ToolNotes, ToolOutput},
    tool_pool::types::{BodyEnd, Shape},
    turn::{FailedBy, Outcome, Settlement},
};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    event::FinishLabel,
    ids::{CallId, MessageId},
    message::{Block, Failure, Usage, code},
};

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Anything, failures and silence included.
    Free,
    /// Only answers that end a turn.
    Kind,
    /// Two steps with tools, then an answer.
    Script,
    /// What a program says (249).
    Told,
}

/// How an attempt really ended, for the judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truth {
    Finished,
    Failed(FailedBy),
    Cancelled,
}

pub(crate) fn truth(outcome: &Outcome) -> Truth {
    match outcome {
        Outcome::Finished { .. } => Truth::Finished,
        Outcome::Failed { by, .. } => Truth::Failed(*by),
        Outcome::Cancelled => Truth::Cancelled,
    }
}

/// One stream under construction.
struct Talk {
    chunks: Vec<Chunk>,
    blocks: Vec<Block>,
}

impl Talk {
    fn text(&mut self, text: &str, close: bool) {
        let index = self.blocks.len() as u64;
        self.chunks.push(Chunk::BlockStart { index, kind: BlockKind::Text });
        for piece in text.split_inclusive(' ') {
            self.chunks.push(Chunk::TextDelta { index, text: piece.to_owned() });
        }
        if close {
            self.chunks.push(Chunk::BlockEnd { index });
        }
        self.blocks.push(Block::text(text));
    }

    fn call(&mut self, call_id: &str, name: &str, arguments: &str) {
        let index = self.blocks.len() as u64;
        let call_id = CallId::trusted(call_id);
        self.chunks.push(Chunk::BlockStart {
            index,
            kind: BlockKind::ToolCall { call_id: call_id.clone(), name: name.to_owned() },
        });
        self.chunks.push(Chunk::CallFragment { index, text: arguments.to_owned() });
        self.chunks.push(Chunk::BlockEnd { index });
        self.blocks.push(Block::ToolCall {
            call_id,
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            replay: None,
        });
    }

    fn settle(mut self, outcome: Outcome, finish: Finish, id: u64) -> Settlement {
        self.chunks.push(Chunk::Finish { finish });
        let mut stream = StreamRecord::default();
        for (at, chunk) in self.chunks.into_iter().enumerate() {
            stream.push(u32::try_from(at).unwrap(), chunk);
        }
        let usage = Some(Usage { input: 3, output: 2, ..Usage::default() });
        Settlement {
            outcome,
            usage: usage.filter(|_| id.is_multiple_of(2)),
            stream,
            message_id: MessageId::trusted(format!("a{id}")),
        }
    }
}

/// What the model says to one request. `id` is fresh; `cancelled` tells whether the signal has fired.
pub(crate) fn answer(chance: &mut Chance, mood: Mood, cancelled: bool, id: u64) -> Settlement {
    let mut talk = Talk { chunks: Vec::new(), blocks: Vec::new() };
    if cancelled && chance.permille(800) {
        if chance.permille(600) {
            talk.text(if chance.permille(800) { "half a word" } else { "  " }, false);
        }
        return talk.settle(Outcome::Cancelled, Finish::Aborted, id);
    }
    if mood == Mood::Script {
        return scripted(talk, id);
    }
    let roll = if mood == Mood::Kind { 0 } else { chance.below(100) };
    match roll {
        0..40 => {
            talk.text("all is well", true);
            finished(talk, Finish::Stop, FinishLabel::Stop, id)
        }
        40..75 => {
            talk.text("let me look", true);
            for n in 0..=chance.below(4) {
                let name = *chance.pick(&["read", "read", "write", "missing"]);
                let arguments = if chance.permille(100) { "not json" } else { "{}" };
                // Providers number calls anew in each answer (BR-004).
                talk.call(&format!("call-{n}"), name, arguments);
            }
            finished(talk, Finish::ToolUse, FinishLabel::ToolUse, id)
        }
        75..80 => {
            talk.text("too long", true);
            finished(talk, Finish::MaxTokens, FinishLabel::MaxTokens, id)
        }
        80..90 => failed(talk, chance, FailedBy::Provider, &[code::RATE_LIMIT, code::SERVER, code::TIMEOUT], id),
        90..94 => failed(talk, chance, FailedBy::Provider, &[code::AUTH, code::INVALID_REQUEST], id),
        94..97 => failed(talk, chance, FailedBy::Stream, &[code::MALFORMED_RESPONSE], id),
        _ => failed(talk, chance, FailedBy::Consumer, &[code::EXTENSION], id),
    }
}

/// The canonical turn (266, 267): two readers beside each other and a writer behind them, a writer, an answer.
fn scripted(mut talk: Talk, id: u64) -> Settlement {
    match id {
        0 => {
            talk.text("let me look", true);
            talk.call("a", "read", "{}");
            talk.call("b", "read", "{}");
            talk.call("c", "write", "{}");
            finished(talk, Finish::ToolUse, FinishLabel::ToolUse, id)
        }
        1 => {
            talk.call("a", "write", "{}");
            finished(talk, Finish::ToolUse, FinishLabel::ToolUse, id)
        }
        _ => {
            talk.text("all is well", true);
            finished(talk, Finish::Stop, FinishLabel::Stop, id)
        }
    }
}

/// What a program lets the model say.
pub(crate) fn told(said: Said, id: u64) -> Settlement {
    let mut talk = Talk { chunks: Vec::new(), blocks: Vec::new() };
    match said {
        Said::Answer => {
            talk.text("all is well", true);
            finished(talk, Finish::Stop, FinishLabel::Stop, id)
        }
        Said::TooLong => {
            talk.text("too long", true);
            finished(talk, Finish::MaxTokens, FinishLabel::MaxTokens, id)
        }
        Said::Calls(calls) => {
            (0..calls).for_each(|n| talk.call(&format!("call-{n}"), "write", "{}"));
            finished(talk, Finish::ToolUse, FinishLabel::ToolUse, id)
        }
        Said::Refused => failed_with(talk, FailedBy::Provider, code::AUTH, id),
        Said::Busy => failed_with(talk, FailedBy::Provider, code::RATE_LIMIT, id),
        Said::Cut { prefix } => {
            if prefix {
                talk.text("half a word", false);
            }
            talk.settle(Outcome::Cancelled, Finish::Aborted, id)
        }
    }
}

fn finished(talk: Talk, finish: Finish, label: FinishLabel, id: u64) -> Settlement {
    let outcome = Outcome::Finished { blocks: talk.blocks.clone(), finish: label };
    talk.settle(outcome, finish, id)
}

fn failed(mut talk: Talk, chance: &mut Chance, by: FailedBy, codes: &[&str], id: u64) -> Settlement {
    if chance.permille(500) {
        talk.text("half an answer", false);
    }
    let code = *chance.pick(codes);
    failed_with(talk, by, code, id)
}

fn failed_with(talk: Talk, by: FailedBy, code: &str, id: u64) -> Settlement {
    let failure = Failure::new(code, "simulated");
    let finish = Finish::Error { failure: failure.clone() };
    talk.settle(Outcome::Failed { failure, by }, finish, id)
}

/// What is known of a call.
pub(crate) fn shape(name: &str, arguments: &str) -> Shape {
    match (name, arguments) {
        ("missing", _) => Shape::Refused { code: "UNKNOWN_TOOL", text: "no tool is called that".to_owned() },
        (_, "{}") => Shape::Runnable { parallel: name == "read", timeout_ms: None, abandonable: false },
        _ => Shape::Refused { code: "INVALID_ARGS", text: "the arguments are no JSON".to_owned() },
    }
}

/// How a body ends.
pub(crate) fn body(chance: &mut Chance) -> BodyEnd {
    let mut notes = ToolNotes::default();
    if chance.permille(150) {
        notes.contexts.push("by the way".to_owned());
    }
    notes.conclude = chance.permille(50);
    match chance.below(10) {
        0 => BodyEnd::Failed(ToolFailure::text("it did not work"), notes),
        1 => BodyEnd::Panicked,
        _ => BodyEnd::Ok(ToolOutput::text("done"), notes),
    }
}

/// One that does its work.
pub(crate) fn good_body() -> BodyEnd {
    BodyEnd::Ok(ToolOutput::text("done"), ToolNotes::default())
}
