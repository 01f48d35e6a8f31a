//! Every rule of 2.5 over a stored log, event by event: what `everturn verify` and the tests run.
//!
//! Memory is bounded by what the model sees now, not by the length of the log.

use super::{LogState, Node, Violation, check::broken, repair, request};
use crate::{
    assemble::Assembler,
    chunk::{BlockKind, Chunk, StreamRecord},
    event::{AssistantAttempt, AssistantMessage, AttemptOutcome, Digest, Event, EventData, SurfaceOp, ToolResult},
    ids::{CallId, Epoch, Seq, SessionId},
    limits::FINDINGS_MAX,
    message::Block,
};
use imbl::Vector;
use std::{collections::VecDeque, sync::Arc};

/// A rule that a stored log breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whose log.
    pub session: SessionId,
    /// Where.
    pub seq: Seq,
    /// Which rule, such as `I-27`.
    pub rule: &'static str,
    /// How.
    pub why: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {}: event {} breaks {}: {}", self.session, self.seq, self.rule, self.why)
    }
}

/// What the last attempt was made of (I-28).
#[derive(Debug, Clone)]
struct Asked {
    generation: u64,
    system: Option<Seq>,
    nodes: Vector<Node>,
}

/// Checks a log while it is read. It collects what is wrong and goes on behind it as well as it can.
#[derive(Debug, Clone)]
pub struct Verifier {
    state: LogState,
    /// The compaction that is under way, and how many replaces it made (I-24).
    bracket: Option<(Seq, u32)>,
    asked: Option<Asked>,
    findings: Vec<Finding>,
}

impl Verifier {
    /// A verifier of the log of `session`. `max_parallel` is the cap of I-20, where it is known.
    pub fn new(session: SessionId, max_parallel: Option<u32>) -> Self {
        let mut state = LogState::empty(session);
        state.max_parallel = max_parallel;
        Self { state, bracket: None, asked: None, findings: Vec::new() }
    }

    /// The fold so far.
    pub fn state(&self) -> &LogState {
        &self.state
    }

    /// What was found so far, at most [`FINDINGS_MAX`].
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Takes the next atomic append.
    pub fn commit(&mut self, batch: &[Arc<Event>]) {
        let first = self.state.next_seq();
        for event in batch {
            self.event(event);
        }
        let ended = self.state.end_batch(first);
        self.note(ended);
    }

    /// Takes the next event of a log whose borders are not known.
    pub fn event(&mut self, event: &Arc<Event>) {
        let before = self.asks(event);
        self.note(before);
        let last = self.state.clone();
        match self.state.fold(event) {
            Ok(()) => {
                let after = self.follows(event);
                self.note(after);
            }
            Err(violation) => {
                self.note(Err(violation));
                self.state = last;
                // One bad event is one finding, not one for each that comes behind it.
                self.state.next_seq = event.seq.next();
            }
        }
    }

    /// The log ends here. What is open may be open (it is the last turn), and must be repairable, once (I-35).
    pub fn finish(mut self) -> Vec<Finding> {
        if self.findings.is_empty() && self.state.next_seq() > Seq(0) {
            // A log that ends inside of an append could not be loaded again.
            let ended = self.state.end_batch(Seq(0));
            self.note(ended);
        }
        if self.findings.is_empty() {
            let repaired = self.repaired();
            self.note(repaired);
        }
        self.findings
    }

    fn repaired(&self) -> Result<(), Violation> {
        let epoch = self.state.opened().map_or(Epoch(1), |opened| opened.epoch.next());
        let Some(plan) = repair::plan(&self.state, epoch, u32::MAX) else { return Ok(()) };
        let (state, _) = self.state.stage(plan.events, self.state.last_time_ms())?;
        let again =
            repair::plan(&state, epoch.next(), u32::MAX).is_some() || repair::opening(&state, epoch.next()).is_some();
        if again {
            return Err(broken("I-35", self.state.next_seq(), "the repaired log would be repaired again"));
        }
        Ok(())
    }

    fn note(&mut self, outcome: Result<(), Violation>) {
        if let Err(Violation { rule, seq, why }) = outcome
            && self.findings.len() < FINDINGS_MAX
        {
            self.findings.push(Finding { session: self.state.session().clone(), seq, rule, why });
        }
    }

    /// What holds between a settlement and the log before it (I-27, I-28, I-31).
    fn asks(&mut self, event: &Event) -> Result<(), Violation> {
        if let EventData::AssistantMessage(data) = &event.body.data {
            self.asked(event.seq, data.request_digest)?;
            message_is_its_stream(event.seq, data)?;
        }
        if let EventData::AssistantAttempt(data) = &event.body.data {
            self.asked(event.seq, data.request_digest)?;
            attempt_is_a_stream(event.seq, data)?;
        }
        Ok(())
    }

    fn asked(&mut self, seq: Seq, digest: Digest) -> Result<(), Violation> {
        let state = &self.state;
        let now = Asked {
            generation: state.generation(),
            system: state.live_system().map(|live| live.seq),
            nodes: state.surface().clone(),
        };
        let extends = self.asked.as_ref().is_none_or(|last| {
            (last.generation, last.system) != (now.generation, now.system)
                || (last.nodes.len() <= now.nodes.len()
                    && last.nodes.iter().zip(&now.nodes).all(|(a, b)| a.event.seq == b.event.seq))
        });
        self.asked = Some(now);
        if !extends {
            return Err(broken("I-28", seq, "the request does not begin with the one before"));
        }
        match request::derive_request(&self.state) {
            Some(request) if request.digest != digest => {
                Err(broken("I-27", seq, format!("the log gives request {}, not {digest}", request.digest)))
            }
            // Without a header the attempt breaks I-25.
            Some(_) | None => Ok(()),
        }
    }

    /// What holds behind an event that was folded (I-19, I-24).
    fn follows(&mut self, event: &Event) -> Result<(), Violation> {
        let seq = event.seq;
        let appended = event.body.surface == Some(SurfaceOp::Append);
        match &event.body.data {
            EventData::ToolResult(data) if appended => self.was_alone(seq, data)?,
            // What a dead process had begun is stale.
            EventData::SessionOpened(_) => self.bracket = None,
            EventData::UserMessage(_) if !appended => self.replaced(seq)?,
            EventData::Plugin(plugin) => self.bracketed(seq, &plugin.type_name)?,
            EventData::ToolResult(_)
            | EventData::UserMessage(_)
            | EventData::InboxQueued(_)
            | EventData::InboxEdited(_)
            | EventData::InboxMoved(_)
            | EventData::InboxRemoved(_)
            | EventData::InboxClaimed(_)
            | EventData::InboxRestored(_)
            | EventData::TurnStart(_)
            | EventData::TurnEnd(_)
            | EventData::StepStart(_)
            | EventData::StepEnd(_)
            | EventData::PromptBlocked(_)
            | EventData::SystemMessage(_)
            | EventData::RequestHeader(_)
            | EventData::RequestContext(_)
            | EventData::AssistantMessage(_)
            | EventData::AssistantAttempt(_)
            | EventData::ToolCall(_)
            | EventData::RetryScheduled(_)
            | EventData::RetryStarted(_) => {}
        }
        Ok(())
    }

    fn replaced(&mut self, seq: Seq) -> Result<(), Violation> {
        if let Some((_, replaces)) = &mut self.bracket {
            *replaces += 1;
            if *replaces > 1 {
                return Err(broken("I-24", seq, "a compaction replaces once"));
            }
        }
        Ok(())
    }

    fn bracketed(&mut self, seq: Seq, type_name: &str) -> Result<(), Violation> {
        match (type_name, self.bracket) {
            ("compaction/start", Some((start, _))) => {
                return Err(broken("I-24", seq, format!("the compaction of event {start} is under way")));
            }
            ("compaction/end", None) => return Err(broken("I-24", seq, "no compaction is under way")),
            ("compaction/start", None) => self.bracket = Some((seq, 0)),
            ("compaction/end", Some(_)) => self.bracket = None,
            _ => {}
        }
        Ok(())
    }

    /// An exclusive call has the step for itself, from its call to its result (I-19); told by its result (Z13).
    fn was_alone(&self, seq: Seq, data: &ToolResult) -> Result<(), Violation> {
        let class = data.meta.as_ref().map(|meta| meta.to_value());
        let exclusive = class.as_ref().and_then(|meta| meta.get("class")?.as_str()) == Some("exclusive");
        let settled = self.state.open_turn().and_then(|turn| turn.step.as_ref()?.settled.as_ref());
        let Some(settled) = settled.filter(|_| exclusive) else { return Ok(()) };
        let Some(at) = settled.calls.iter().position(|call| call.call_id == data.message.call_id) else {
            return Ok(());
        };
        let Some(called) = settled.calls.get(at).and_then(|call| call.called) else { return Ok(()) };
        let behind_all = settled.calls.iter().take(at).all(|call| call.resulted.is_some_and(|result| result < called));
        let before_all = settled.calls.iter().skip(at + 1).all(|call| call.called.is_none());
        if behind_all && before_all {
            return Ok(());
        }
        Err(broken("I-19", seq, format!("call {} is exclusive and was not alone", data.message.call_id)))
    }
}

/// A response is the fold of its record, or the part of it that was seen (I-31).
fn message_is_its_stream(seq: Seq, data: &AssistantMessage) -> Result<(), Violation> {
    if data.stream.is_empty() {
        return Ok(());
    }
    let assembler = assembled(seq, &data.stream)?;
    let blocks = if data.interrupted == Some(true) {
        assembler.visible_prefix()
    } else {
        let mut ids = given_ids(data);
        let folded = assembler.fold(|| ids.pop_front().unwrap_or_else(|| CallId::trusted("")));
        match folded {
            None => return Err(broken("I-31", seq, "the record of a whole response has no finish")),
            Some(Err(malformed)) => return Err(broken("I-31", seq, malformed.to_string())),
            Some(Ok(folded)) => folded.blocks,
        }
    };
    if blocks != data.message.content {
        return Err(broken("I-31", seq, "the message is not the fold of its record"));
    }
    Ok(())
}

/// A failed or cancelled attempt kept a record that obeys the grammar as far as it goes (I-31).
fn attempt_is_a_stream(seq: Seq, data: &AssistantAttempt) -> Result<(), Violation> {
    match data.outcome {
        AttemptOutcome::Failed | AttemptOutcome::Cancelled => assembled(seq, &data.stream).map(|_| ()),
        // The record shows what broke.
        AttemptOutcome::StreamError => Ok(()),
    }
}

fn assembled(seq: Seq, record: &StreamRecord) -> Result<Assembler, Violation> {
    let mut assembler = Assembler::new();
    for chunk in record.chunks() {
        assembler.push(&chunk).map_err(|malformed| broken("I-31", seq, malformed.to_string()))?;
    }
    Ok(assembler)
}

/// The ids of the stored calls that the provider had given none (L-16).
fn given_ids(data: &AssistantMessage) -> VecDeque<CallId> {
    let named = data.stream.chunks().filter_map(|chunk| {
        if let Chunk::BlockStart { kind: BlockKind::ToolCall { call_id, .. }, .. } = chunk {
            return Some(!call_id.as_str().is_empty());
        }
        None
    });
    let stored = data.message.content.iter().filter_map(|block| match block {
        Block::ToolCall { call_id, .. } => Some(call_id.clone()),
        Block::Text { .. } | Block::Reasoning { .. } | Block::Image { .. } => None,
    });
    named.zip(stored).filter(|(named, _)| !named).map(|(_, id)| id).collect()
}
