//! The rolling window of one batch, as a pure machine (6.2 to 6.6).
//!
//! ```text
//! classify ─▶ tool/call ─▶ policy ─▶ CP-X ─▶ body ─▶ post-policy ─▶ tool/result
//! └──────── one call after the other ─────┘  beside └─ one after the other ───┘
//! ```
//!
//! Calls that may start together are logged together and share one CP-X (K-5). At most one append and one
//! checkpoint are under way, so a retry never overtakes anything. "Unfinished" in X-12 means logged without a
//! result: that is what I-20 counts, and it bounds how many results are held back.

mod advance;

use super::{
    result::Outcome,
    types::{BatchConfig, BodyEnd, Class, Effect, Input, Shape, Timer, Verdict, code},
};
use crate::{
    limits::{JOURNAL_RETRY_DELAY_MS, JOURNAL_TRIES, TIMEOUT_GRACE_MS, TOOL_WARNING_EVERY_MS},
    ports::tool::PostVerdict,
    protocol::AppendError,
};
use everturn_storage::{event::EventBody, ids::Seq};

/// Why a body was told to stop; the first reason stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Cancel,
    Timeout,
}

/// Where a call is on its way.
#[derive(Debug)]
enum Stage {
    /// Not logged.
    Waiting,
    /// Logged; policies are asked.
    Asking,
    /// Cleared; waits for CP-X.
    Cleared,
    Running(Option<Stop>),
    /// Decided; waits for its turn to be looked at by post-policies and logged.
    Decided(Outcome),
    /// Post-policies look at it.
    Posting(Outcome),
    /// Waits for its append.
    Ready(Outcome),
    Logged,
}

#[derive(Debug)]
struct Slot {
    called: Option<Seq>,
    class: Class,
    shape: Option<Shape>,
    stage: Stage,
    /// Whether its body was let go: a late end is reported and dropped.
    let_go: bool,
}

/// What the append under way records.
#[derive(Debug, Clone, Copy)]
enum Record {
    /// This many calls from `next_start` on.
    Calls(usize),
    /// The result of `next_result`, with the contexts of the batch when it is the last one.
    Result,
}

#[derive(Debug)]
struct UnderWay {
    record: Record,
    events: Vec<EventBody>,
    tries: u32,
}

/// The window of one batch. [`Window::step`] is its only door.
#[derive(Debug)]
pub struct Window {
    config: BatchConfig,
    slots: Vec<Slot>,
    /// The first call that is not logged.
    next_start: usize,
    /// The first call without a logged result.
    next_result: usize,
    /// How many calls from `next_start` on will be logged together.
    group: usize,
    /// Which call is being classified.
    classifying: Option<usize>,
    /// Raised when a body ends or a result is logged: only then is a blocked start considered again (X-11).
    changes: u64,
    blocked_at: Option<u64>,
    append: Option<UnderWay>,
    checkpoint: Option<Seq>,
    contexts: Vec<(usize, String)>,
    concluded: bool,
    cancelled: bool,
    fault: Option<AppendError>,
    ended: bool,
    stale: u64,
}

impl Window {
    /// The window of a batch of which nothing is logged yet.
    pub fn new(config: BatchConfig) -> Self {
        let slot =
            |_: &_| Slot { called: None, class: Class::Exclusive, shape: None, stage: Stage::Waiting, let_go: false };
        Self {
            slots: config.calls.iter().map(slot).collect(),
            config,
            next_start: 0,
            next_result: 0,
            group: 0,
            classifying: None,
            changes: 0,
            blocked_at: None,
            append: None,
            checkpoint: None,
            contexts: Vec::new(),
            concluded: false,
            cancelled: false,
            fault: None,
            ended: false,
            stale: 0,
        }
    }

    /// Takes one input and says what has to be done, in order. `fresh` makes ids for messages and items.
    ///
    /// An answer to something that is not asked any more changes nothing and is counted (see [`Window::stale`]).
    pub fn step(&mut self, input: Input, fresh: &mut dyn FnMut() -> String) -> Vec<Effect> {
        let mut out = Vec::new();
        self.take(input, &mut out);
        if !self.ended {
            self.advance(fresh, &mut out);
        }
        out
    }

    /// Whether the last effect was given.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// How many answers came too late.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    fn take(&mut self, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Start { cancelled } => self.cancelled |= cancelled,
            Input::Cancel => self.cancel(out),
            Input::Classified { index, shape } => self.classified(index, shape),
            Input::Appended { first } => self.appended(first, out),
            Input::AppendFailed { error } => self.append_failed(error, out),
            Input::Durable { upto } => self.checkpointed(Some(upto), out),
            Input::CheckpointFailed => self.checkpointed(None, out),
            Input::Decided { index, verdict } => self.decided(index, verdict, out),
            Input::BodyDone { index, end, signalled } => self.body_done(index, end, signalled, out),
            Input::Posted { index, verdict } => self.posted(index, verdict),
            Input::Timer(timer) => self.timer(timer, out),
        }
    }

    // What inputs change.

    fn cancel(&mut self, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.cancelled, true) {
            return;
        }
        self.classifying = None;
        let logging = self.append.as_ref().is_some_and(|append| matches!(append.record, Record::Calls(_)));
        if !logging {
            self.group = 0;
        }
        for index in self.next_result..self.next_start {
            match self.slots[index].stage {
                Stage::Asking | Stage::Cleared => self.settle(index, not_dispatched()),
                Stage::Running(stop) => {
                    self.slots[index].stage = Stage::Running(stop.or(Some(Stop::Cancel)));
                    self.tell_to_stop(index, stop.is_none(), out);
                }
                Stage::Waiting | Stage::Decided(_) | Stage::Posting(_) | Stage::Ready(_) | Stage::Logged => {}
            }
        }
    }

    /// Fires the signal of a body; `first` when nothing had told it to stop before.
    fn tell_to_stop(&self, index: usize, first: bool, out: &mut Vec<Effect>) {
        out.push(Effect::FireSignal { index });
        if first {
            out.push(Effect::ArmTimer { timer: Timer::Warning(index), after_ms: TOOL_WARNING_EVERY_MS });
        }
        if let (true, Some(after_ms)) = (self.abandonable(index), self.config.abandon_after_ms) {
            out.push(Effect::ArmTimer { timer: Timer::Abandon(index), after_ms });
        }
    }

    fn classified(&mut self, index: usize, shape: Shape) {
        if self.classifying != Some(index) {
            self.stale += 1;
            return;
        }
        self.classifying = None;
        let class = match shape {
            Shape::Runnable { parallel: true, .. } => Class::Parallel,
            Shape::Runnable { parallel: false, .. } | Shape::Refused { .. } => Class::Exclusive,
        };
        let alone = self.group == 0 && self.next_start == self.next_result;
        if class == Class::Exclusive && !alone {
            // The group in front of it goes first, or its earlier siblings must be logged first (X-13).
            self.blocked_at = Some(self.changes);
            return;
        }
        self.slots[index].class = class;
        self.slots[index].shape = Some(shape);
        self.group += 1;
    }

    fn appended(&mut self, first: Seq, out: &mut Vec<Effect>) {
        let Some(UnderWay { record, .. }) = self.append.take() else {
            self.stale += 1;
            return;
        };
        if self.fault.is_some() {
            return;
        }
        match record {
            Record::Calls(count) => {
                let start = self.next_start;
                self.next_start += count;
                self.group = 0;
                for (offset, index) in (start..self.next_start).enumerate() {
                    self.slots[index].called = Some(Seq(first.0 + offset as u64));
                    self.called(index, out);
                }
            }
            Record::Result => {
                self.slots[self.next_result].stage = Stage::Logged;
                self.next_result += 1;
                self.changes += 1;
            }
        }
    }

    /// A call is logged: what is next for it?
    fn called(&mut self, index: usize, out: &mut Vec<Effect>) {
        if self.cancelled {
            self.settle(index, not_dispatched());
            return;
        }
        match &self.slots[index].shape {
            Some(Shape::Runnable { .. }) if self.config.policies => {
                self.slots[index].stage = Stage::Asking;
                out.push(Effect::AskPolicy { index });
            }
            Some(Shape::Runnable { .. }) => self.clear(index, out),
            Some(Shape::Refused { code, text }) => {
                let outcome = Outcome::error(code, text.clone());
                self.settle(index, outcome);
            }
            // Only a call of a cancelled batch is logged without having been looked at.
            None => self.settle(index, not_dispatched()),
        }
    }

    fn clear(&mut self, index: usize, out: &mut Vec<Effect>) {
        if self.config.checkpoint {
            self.slots[index].stage = Stage::Cleared;
        } else {
            self.run(index, out);
        }
    }

    fn run(&mut self, index: usize, out: &mut Vec<Effect>) {
        self.slots[index].stage = Stage::Running(None);
        out.push(Effect::RunBody { index });
        if let Some(after_ms) = self.budget_ms(index) {
            out.push(Effect::ArmTimer { timer: Timer::Budget(index), after_ms });
        }
    }

    fn append_failed(&mut self, error: AppendError, out: &mut Vec<Effect>) {
        let Some(under_way) = &mut self.append else {
            self.stale += 1;
            return;
        };
        let again = match &error {
            AppendError::Io(_) => self.fault.is_none() && under_way.tries < JOURNAL_TRIES,
            AppendError::Refused(_) | AppendError::Fenced => false,
        };
        if again {
            let wait = (under_way.tries as usize).saturating_sub(1).min(JOURNAL_RETRY_DELAY_MS.len() - 1);
            out.push(Effect::ArmTimer { timer: Timer::Retry, after_ms: JOURNAL_RETRY_DELAY_MS[wait] });
            return;
        }
        self.append = None;
        // Bodies are told and awaited before the session is given up (F-4).
        for index in self.next_result..self.next_start {
            if let Stage::Running(stop) = self.slots[index].stage {
                self.slots[index].stage = Stage::Running(stop.or(Some(Stop::Cancel)));
                self.tell_to_stop(index, stop.is_none(), out);
            }
        }
        self.fault = Some(error);
    }

    fn checkpointed(&mut self, durable: Option<Seq>, out: &mut Vec<Effect>) {
        let Some(asked) = self.checkpoint.take() else {
            self.stale += 1;
            return;
        };
        if self.fault.is_some() {
            return;
        }
        for index in self.next_result..self.next_start {
            let covered = self.slots[index].called.is_some_and(|seq| seq <= durable.unwrap_or(asked));
            if !(covered && matches!(self.slots[index].stage, Stage::Cleared)) {
                continue;
            }
            match durable {
                Some(_) => self.run(index, out),
                None => self.settle(
                    index,
                    Outcome::error(
                        code::CHECKPOINT_FAILED,
                        "The tool did not run: the call could not be made durable first. It may be tried again later.",
                    ),
                ),
            }
        }
    }

    fn decided(&mut self, index: usize, verdict: Verdict, out: &mut Vec<Effect>) {
        if self.fault.is_some() || !matches!(self.stage(index), Some(Stage::Asking)) {
            self.stale += 1;
            return;
        }
        match verdict {
            Verdict::Allow => self.clear(index, out),
            Verdict::Unavailable => self.settle(
                index,
                Outcome::error(
                    code::DENIED,
                    "The tool did not run: a person has to allow this call, and nobody can be asked.",
                ),
            ),
            Verdict::Deny { reason } => {
                self.settle(index, Outcome::error(code::DENIED, format!("The tool did not run: {reason}")));
            }
            Verdict::Failed { why } => self.settle(
                index,
                Outcome::error(
                    code::POLICY_ERROR,
                    format!("The tool did not run: a policy failed, which counts as a refusal: {why}"),
                ),
            ),
        }
    }

    fn body_done(&mut self, index: usize, end: BodyEnd, signalled: bool, out: &mut Vec<Effect>) {
        let stop = match self.stage(index) {
            Some(Stage::Running(stop)) => *stop,
            Some(_) if self.slots[index].let_go => {
                out.push(self.late(index));
                return;
            }
            Some(_) | None => {
                self.stale += 1;
                return;
            }
        };
        let outcome = match (stop, end) {
            (Some(Stop::Timeout), _) => self.timed_out(index),
            (_, BodyEnd::Panicked) => {
                Outcome::error(code::TOOL_PANIC, "The tool crashed while it ran. Part of its work may have been done.")
            }
            // It ended by itself: a success always does, an error only when nothing had told it to stop.
            (_, BodyEnd::Ok(output, notes)) => Outcome::ok(output, notes),
            (Some(Stop::Cancel), BodyEnd::Failed(..)) if signalled => {
                Outcome::error(code::ABORTED, "The tool was stopped by a cancel. Part of its work may have been done.")
            }
            (None | Some(Stop::Cancel), BodyEnd::Failed(failure, notes)) => {
                Outcome::failed(&self.config.calls[index].name, failure, notes)
            }
        };
        self.changes += 1;
        self.settle(index, outcome);
    }

    fn posted(&mut self, index: usize, verdict: Result<PostVerdict, String>) {
        if self.fault.is_some() || !matches!(self.stage(index), Some(Stage::Posting(_))) {
            self.stale += 1;
            return;
        }
        if let Stage::Posting(outcome) = std::mem::replace(&mut self.slots[index].stage, Stage::Waiting) {
            let outcome = outcome.posted(verdict).bounded(self.config.inline_limit_bytes);
            self.slots[index].stage = Stage::Ready(outcome);
        }
    }

    fn timer(&mut self, timer: Timer, out: &mut Vec<Effect>) {
        match timer {
            Timer::Retry => match &mut self.append {
                Some(under_way) => {
                    under_way.tries += 1;
                    out.push(Effect::Append { events: under_way.events.clone() });
                }
                None => self.stale += 1,
            },
            Timer::Budget(index) => {
                if let Some(Stage::Running(stop)) = self.stage(index) {
                    let stop = *stop;
                    self.slots[index].stage = Stage::Running(stop.or(Some(Stop::Timeout)));
                    out.push(Effect::ArmTimer { timer: Timer::Grace(index), after_ms: TIMEOUT_GRACE_MS });
                    if stop.is_none() {
                        out.push(Effect::FireSignal { index });
                        let after_ms = TOOL_WARNING_EVERY_MS;
                        out.push(Effect::ArmTimer { timer: Timer::Warning(index), after_ms });
                    }
                }
            }
            Timer::Grace(index) => self.let_go(index, self.timed_out(index), out),
            Timer::Abandon(index) => {
                let text = "The tool did not stop when it was cancelled and was let go. \
                            Its work may have been done in part or in full.";
                self.let_go(index, Outcome::error(code::TOOL_OUTCOME_UNKNOWN, text), out);
            }
            Timer::Warning(index) => {
                if let Some(Stage::Running(Some(_))) = self.stage(index) {
                    let name = &self.config.calls[index].name;
                    out.push(Effect::Notice {
                        code: "TOOL_IGNORES_SIGNAL",
                        message: format!("tool {name} was told to stop and still runs; the turn waits for it"),
                    });
                    out.push(Effect::ArmTimer { timer: Timer::Warning(index), after_ms: TOOL_WARNING_EVERY_MS });
                }
            }
        }
    }

    /// Decides without the body, when the tool allows that; otherwise the wait goes on (6.6).
    fn let_go(&mut self, index: usize, outcome: Outcome, out: &mut Vec<Effect>) {
        if matches!(self.stage(index), Some(Stage::Running(_))) && self.abandonable(index) {
            self.slots[index].let_go = true;
            self.changes += 1;
            out.push(Effect::Abandon { index });
            self.settle(index, outcome);
        }
    }

    fn settle(&mut self, index: usize, outcome: Outcome) {
        // Without post-policies nobody needs more of it: what is held back is bounded at once.
        let outcome = if self.config.policies { outcome } else { outcome.bounded(self.config.inline_limit_bytes) };
        self.slots[index].stage = Stage::Decided(outcome);
    }

    fn stage(&self, index: usize) -> Option<&Stage> {
        self.slots.get(index).map(|slot| &slot.stage)
    }

    fn abandonable(&self, index: usize) -> bool {
        matches!(self.slots[index].shape, Some(Shape::Runnable { abandonable: true, .. }))
    }

    fn budget_ms(&self, index: usize) -> Option<u64> {
        match &self.slots[index].shape {
            Some(Shape::Runnable { timeout_ms, .. }) => timeout_ms.or(self.config.default_timeout_ms),
            Some(Shape::Refused { .. }) | None => None,
        }
    }

    fn timed_out(&self, index: usize) -> Outcome {
        let budget_ms = self.budget_ms(index).unwrap_or_default();
        let text = format!("The tool took longer than its {budget_ms} ms. Part of its work may have been done.");
        Outcome::error(code::TOOL_TIMEOUT, text)
    }

    fn late(&self, index: usize) -> Effect {
        let name = &self.config.calls[index].name;
        Effect::Notice {
            code: "TOOL_LATE",
            message: format!("tool {name} returned after it was let go; what it said is dropped"),
        }
    }
}

fn not_dispatched() -> Outcome {
    Outcome::error(code::ABORTED_BEFORE_DISPATCH, "The tool did not run: the turn was cancelled first.")
}

#[cfg(test)]
mod tests;
