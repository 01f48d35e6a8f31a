//! What must be true whatever happens: the memory of acknowledgements and of outside effects, over all crashes.

use super::{
    disk::{Batch, Disk},
    outside::Truth,
};
use everturn_actors::turn::FailedBy;
use everturn_storage::{
    event::{AttemptId, EventData},
    ids::{CallId, ItemId, MessageId, Seq, Step, Turn},
    log::{ItemFate, LogState, verify::Verifier},
};
use std::collections::{BTreeMap, BTreeSet};

/// Something that must never happen did.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: &'static str,
    pub(crate) why: String,
}

impl Broken {
    pub(crate) fn new(rule: &'static str, why: impl Into<String>) -> Self {
        Self { rule, why: why.into() }
    }
}

pub(crate) type Verdict = Result<(), Broken>;

#[derive(Default)]
pub(crate) struct Judge {
    /// Items whose receipt was given.
    pub(crate) accepted: BTreeMap<ItemId, Seq>,
    /// How often each body ran.
    bodies: BTreeMap<(Turn, Step, CallId), u32>,
    /// How the streams of this incarnation really ended.
    truths: BTreeMap<MessageId, Truth>,
    /// Turns of this incarnation whose CP-T has settled.
    settled: BTreeSet<Turn>,
    /// How many items were claimed between steps.
    claims: usize,
    /// The last turn of the log when this incarnation began.
    inherited: Turn,
}

impl Judge {
    /// A process died; what happened outside stays known.
    pub(crate) fn reborn(&mut self, state: &LogState) -> Verdict {
        self.settled.clear();
        self.truths.clear();
        self.inherited = state.last_turn();
        // Sentence 1, C-4: nothing acknowledged is ever lost.
        match self.accepted.keys().find(|item| state.fate(item).is_none()) {
            Some(lost) => Err(Broken::new("C-4", format!("{lost} was acknowledged and is gone"))),
            None => Ok(()),
        }
    }

    /// C-4: a receipt is given only once its record is durable.
    pub(crate) fn receipt(&mut self, item: ItemId, seq: Seq, disk: &Disk) -> Verdict {
        if seq >= disk.durable_next() {
            return Err(Broken::new("C-4", format!("the receipt of {item} came before event {seq} was durable")));
        }
        self.accepted.insert(item, seq);
        Ok(())
    }

    /// Sentence 4, 258: a request leaves only when everything that its step logged is durable.
    pub(crate) fn dispatched(&self, attempt: AttemptId, semantic: bool, disk: &Disk) -> Verdict {
        let open = disk.state.open_turn().and_then(|turn| turn.step.as_ref().map(|step| (turn.turn, step.step)));
        if open != Some((attempt.turn, attempt.step)) {
            return Err(Broken::new("T-19", format!("{attempt:?} was sent for a step that is not open")));
        }
        let cause = last_of_step(&disk.batches);
        if semantic && cause.is_some_and(|seq| seq >= disk.durable_next()) {
            return Err(Broken::new("CP-R", format!("{attempt:?} was sent before its admission was durable")));
        }
        Ok(())
    }

    /// T-15: a claim between steps may be empty only when results are owed; the log's checker sees the rest.
    pub(crate) fn claimed(&mut self, items: usize) {
        self.claims += items;
    }

    pub(crate) fn settled_as(&mut self, message: MessageId, truth: Truth) {
        self.truths.insert(message, truth);
    }

    /// F-5, T-13: an extension's error is never offered to recovery.
    pub(crate) fn recovery_asked(&self, last: Option<Truth>) -> Verdict {
        match last {
            Some(Truth::Failed(FailedBy::Consumer)) => {
                Err(Broken::new("F-5", "recovery was asked about an error of our own"))
            }
            Some(Truth::Finished | Truth::Cancelled | Truth::Failed(FailedBy::Provider | FailedBy::Stream)) | None => {
                Ok(())
            }
        }
    }

    /// Sentence 4, 250: a body runs once, and only when its call is durable.
    pub(crate) fn body_ran(&mut self, turn: Turn, step: Step, call: &CallId, semantic: bool, disk: &Disk) -> Verdict {
        let times = self.bodies.entry((turn, step, call.clone())).or_default();
        *times += 1;
        if semantic && *times > 1 {
            return Err(Broken::new("B-14", format!("call {call} of step {turn}.{step} ran {times} times")));
        }
        let row = disk.state.open_turn().and_then(|open| open.step.as_ref()).and_then(|open| open.settled.as_ref());
        let called = row.and_then(|row| row.calls.iter().find(|row| row.call_id == *call)).and_then(|row| row.called);
        match called {
            None => Err(Broken::new("X-1", format!("call {call} runs and is not logged"))),
            Some(seq) if semantic && seq >= disk.durable_next() => {
                Err(Broken::new("CP-X", format!("call {call} runs before event {seq} is durable")))
            }
            Some(_) => Ok(()),
        }
    }

    /// The journal has really answered CP-T.
    pub(crate) fn turn_settled(&mut self, turn: Turn) {
        self.settled.insert(turn);
    }

    /// Looks at a batch that was just committed.
    pub(crate) fn committed(&self, batch: &Batch) -> Verdict {
        for event in batch {
            match &event.body.data {
                // Sentence 5, T-17, 257.
                EventData::TurnStart(start) => {
                    let before = Turn(start.turn.0 - 1);
                    if before > self.inherited && !self.settled.contains(&before) {
                        return Err(Broken::new("T-17", format!("turn {} began before CP-T of {before}", start.turn)));
                    }
                }
                // R20: only a cancel promotes a prefix.
                EventData::AssistantMessage(message) => match self.truths.get(&message.message.id) {
                    // A cancel that came first keeps what was seen, however the stream ended (P9).
                    Some(Truth::Failed(_)) if message.interrupted != Some(true) => {
                        return Err(Broken::new("R20", "a failed attempt became history".to_owned()));
                    }
                    Some(Truth::Finished | Truth::Cancelled | Truth::Failed(_)) => {}
                    None => return Err(Broken::new("T-19", "a message that nobody said".to_owned())),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// At quiescence, behind a wake and without faults: nothing eligible is stranded, everything acknowledged has a
    /// fate, and the whole log stands before the offline checker (250, 256).
    pub(crate) fn finally(&self, disk: &Disk) -> Verdict {
        let state = &disk.state;
        if let Some(open) = state.open_turn() {
            return Err(Broken::new("F-2", format!("turn {} is open at the end", open.turn)));
        }
        let stranded = state.next_turn().iter().chain(state.next_step()).find(|pending| pending.item.wake);
        if let Some(pending) = stranded {
            return Err(Broken::new("T-18", format!("{} is stranded", pending.item.id)));
        }
        for item in self.accepted.keys() {
            match state.fate(item) {
                None => return Err(Broken::new("C-4", format!("{item} was acknowledged and is gone"))),
                Some(ItemFate::Claimed(turn)) => {
                    return Err(Broken::new("F-2", format!("{item} was claimed by turn {turn} and not accounted for")));
                }
                Some(
                    ItemFate::Pending
                    | ItemFate::Admitted(_)
                    | ItemFate::Blocked(_)
                    | ItemFate::Unadmitted(_)
                    | ItemFate::Removed,
                ) => {}
            }
        }
        let mut verifier = Verifier::new(state.session().clone(), None);
        for batch in &disk.batches {
            verifier.commit(batch);
        }
        match verifier.finish().first() {
            Some(finding) => Err(Broken::new("verify", finding.to_string())),
            None => Ok(()),
        }
    }
}

/// The last event that a step or its recovery wrote; input may be logged behind it at any time.
fn last_of_step(batches: &[Batch]) -> Option<Seq> {
    batches.iter().rev().flat_map(|batch| batch.iter().rev()).find_map(|event| {
        let free = event.body.data.type_name().starts_with("inbox/");
        (!free).then_some(event.seq)
    })
}
