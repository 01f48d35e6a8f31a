//! What a window does next, given where its calls are.

use super::{Record, Stage, UnderWay, Window};
use crate::{
    limits::TOOL_GROUP_MAX,
    tool_pool::{
        result::{call_event, context_event, result_event},
        types::{Class, Effect},
    },
};
use everturn_storage::event::EventBody;

impl Window {
    pub(super) fn advance(&mut self, fresh: &mut dyn FnMut() -> String, out: &mut Vec<Effect>) {
        if let Some(error) = &self.fault {
            if !self.slots.iter().any(|slot| matches!(slot.stage, Stage::Running(_))) {
                out.push(Effect::Fault { error: error.clone() });
                self.ended = true;
            }
            return;
        }
        if self.next_result == self.slots.len() {
            out.push(Effect::Done { concluded: self.concluded, aborted: self.cancelled });
            self.ended = true;
            return;
        }
        self.look_at_next_result(out);
        if self.append.is_none() && !self.log_result(fresh, out) {
            self.start(out);
        }
        self.ask_checkpoint(out);
    }

    /// Step 10, strictly in model order.
    fn look_at_next_result(&mut self, out: &mut Vec<Effect>) {
        let index = self.next_result;
        let stage = std::mem::replace(&mut self.slots[index].stage, Stage::Waiting);
        self.slots[index].stage = match stage {
            Stage::Decided(outcome) if outcome.real && self.config.policies => {
                let (content, is_error) = (outcome.content.clone(), outcome.is_error);
                out.push(Effect::AskPost { index, content, is_error });
                Stage::Posting(outcome)
            }
            Stage::Decided(outcome) => Stage::Ready(outcome.bounded(self.config.inline_limit_bytes)),
            other @ (Stage::Waiting
            | Stage::Asking
            | Stage::Cleared
            | Stage::Running(_)
            | Stage::Posting(_)
            | Stage::Ready(_)
            | Stage::Logged) => other,
        };
    }

    /// Step 12, with the contexts of the whole batch behind the last result.
    fn log_result(&mut self, fresh: &mut dyn FnMut() -> String, out: &mut Vec<Effect>) -> bool {
        let index = self.next_result;
        let Stage::Ready(outcome) = &mut self.slots[index].stage else {
            return false;
        };
        let outcome = outcome.clone();
        let called = self.slots[index].called.unwrap_or_default();
        self.concluded |= outcome.notes.conclude && !outcome.is_error;
        self.contexts.extend(outcome.notes.contexts.iter().map(|context| (index, context.clone())));
        let (call, class) = (&self.config.calls[index], self.slots[index].class);
        let mut events = vec![result_event(&self.config, call, called, class, outcome, fresh())];
        if index + 1 == self.slots.len() {
            for (from, context) in std::mem::take(&mut self.contexts) {
                events.push(context_event(&self.config.calls[from].name, context, fresh));
            }
        }
        self.send(Record::Result, events, out);
        true
    }

    /// Considers the next call, or logs the group that is complete.
    fn start(&mut self, out: &mut Vec<Effect>) {
        if self.classifying.is_some() || self.asking() {
            return;
        }
        let index = self.next_start + self.group;
        if self.cancelled {
            // Step 6 of 6.4: the others get a pair each, in model order.
            if index < self.slots.len() && index == self.next_result {
                self.log_calls(1, out);
            }
            return;
        }
        if self.may_consider(index) {
            self.classifying = Some(index);
            out.push(Effect::Classify { index });
        } else if self.group > 0 {
            self.log_calls(self.group, out);
        }
    }

    /// Whether nothing that is known keeps the call at `index` from starting.
    fn may_consider(&self, index: usize) -> bool {
        let cap = self.config.max_parallel.max(1);
        // Policies are asked one after the other, and a call is logged only when its turn has come.
        let group_max = if self.config.policies { 1 } else { TOOL_GROUP_MAX };
        let barrier = (self.next_result..index).any(|before| self.slots[before].class == Class::Exclusive);
        index < self.slots.len()
            && self.group < group_max
            && index - self.next_result < cap
            && !barrier
            && self.blocked_at != Some(self.changes)
    }

    fn asking(&self) -> bool {
        (self.next_result..self.next_start).any(|index| matches!(self.slots[index].stage, Stage::Asking))
    }

    fn log_calls(&mut self, count: usize, out: &mut Vec<Effect>) {
        let calls = &self.config.calls[self.next_start..self.next_start + count];
        let events = calls.iter().map(|call| call_event(&self.config, call)).collect();
        self.send(Record::Calls(count), events, out);
    }

    fn send(&mut self, record: Record, events: Vec<EventBody>, out: &mut Vec<Effect>) {
        out.push(Effect::Append { events: events.clone() });
        self.append = Some(UnderWay { record, events, tries: 1 });
    }

    /// Step 6: one checkpoint for all that wait for one (K-5).
    fn ask_checkpoint(&mut self, out: &mut Vec<Effect>) {
        if self.checkpoint.is_some() {
            return;
        }
        let waiting = self.slots[self.next_result..self.next_start].iter().rev();
        let last = waiting.filter(|slot| matches!(slot.stage, Stage::Cleared)).find_map(|slot| slot.called);
        if let Some(upto) = last {
            self.checkpoint = Some(upto);
            out.push(Effect::Checkpoint { upto });
        }
    }
}
