//! The reference model (scenario 249): inbox, phases and turns as CONTRACT 3 and 4 tell them, without messages, disks or
//! order of arrival. It knows nothing of the machines; its log is what theirs must be, up to seq, time and ids.

use super::programs::{Act, Deed, Said};
use everturn_actors::{
    handle::{KeptItems, SubmitKind},
    limits::RetryLimits,
};

/// An item that waits.
#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    id: String,
    wake: bool,
    parked: bool,
}

/// The two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Turn,
    Step,
}

impl List {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Turn => "next-turn",
            Self::Step => "next-step",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Turn => Self::Step,
            Self::Step => Self::Turn,
        }
    }
}

/// What the open turn waits for at rest.
#[derive(Debug, Clone)]
enum At {
    Model { attempt: u32, retries: u32 },
    Tools { calls: usize, done: usize, concluded: bool },
}

#[derive(Debug, Clone)]
struct Open {
    proposal: u32,
    step: u32,
    cancelled: bool,
    max_tokens: bool,
    at: At,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) log: Vec<String>,
    turn_list: Vec<Waiting>,
    step_list: Vec<Waiting>,
    turns: u32,
    open: Option<Open>,
    items: u32,
    /// Whether something was logged behind the last opening of the session.
    worked: bool,
}

fn ids(items: &[Waiting]) -> String {
    items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>().join(",")
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { log: vec!["opened fresh".to_owned()], ..Self::default() }
    }

    fn note(&mut self, line: String) {
        self.log.push(line);
        self.worked = true;
    }

    fn list(&mut self, list: List) -> &mut Vec<Waiting> {
        match list {
            List::Turn => &mut self.turn_list,
            List::Step => &mut self.step_list,
        }
    }

    /// Whether a turn is open, and so something outside is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.open.is_some()
    }

    /// Place in the open turn: `turn.step`.
    fn place(&self) -> String {
        format!("{}.{}", self.turns, self.open.as_ref().map_or(0, |open| open.step))
    }

    /// The nth of all that waits, next-step first.
    fn nth(&self, nth: usize) -> Option<(List, usize)> {
        let all = self.step_list.len() + self.turn_list.len();
        let at = nth.checked_rem(all)?;
        Some(match at.checked_sub(self.step_list.len()) {
            None => (List::Step, at),
            Some(at) => (List::Turn, at),
        })
    }

    /// One act of the program: logs what follows from it, and says what to do to the real system.
    pub(crate) fn act(&mut self, act: Act) -> Deed {
        let deed = match act {
            Act::Submit(kind) => self.submit(kind),
            Act::Cancel(kept) => self.cancel(kept),
            Act::Wake => {
                self.unpark();
                Deed::Wake
            }
            Act::Edit(nth) => {
                let Some((list, at)) = self.nth(nth) else { return Deed::Nothing };
                let id = self.list(list)[at].id.clone();
                self.note(format!("edited {id}"));
                Deed::Edit(id)
            }
            Act::Remove(nth) => {
                let Some((list, at)) = self.nth(nth) else { return Deed::Nothing };
                let id = self.list(list).remove(at).id;
                self.note(format!("removed {id} removed"));
                Deed::Remove(id)
            }
            Act::Reverse(list) => {
                self.list(list).reverse();
                let order = self.list(list).clone();
                if !order.is_empty() {
                    self.note(format!("moved {}", ids(&order)));
                }
                Deed::Reorder(list, order.into_iter().map(|item| item.id).collect())
            }
            Act::Move(nth) => {
                let Some((list, at)) = self.nth(nth) else { return Deed::Nothing };
                let mut item = self.list(list).remove(at);
                // A turn of its own that nobody starts would block those behind it.
                item.wake |= list == List::Step;
                let (id, to) = (item.id.clone(), list.other());
                self.note(format!("removed {id} removed"));
                self.note(format!("queued {id} {} {}", to.name(), if item.wake { "wake" } else { "wait" }));
                self.list(to).push(item);
                Deed::Move(id, to)
            }
            Act::Happen(roll) => return self.happen(roll),
            Act::Crash => self.crash(),
        };
        self.drain();
        deed
    }

    fn submit(&mut self, kind: SubmitKind) -> Deed {
        self.items += 1;
        let id = format!("m{}", self.items);
        let joins = self.open.as_ref().is_some_and(|open| !open.cancelled);
        let (list, wake) = match kind {
            SubmitKind::Send => (List::Turn, true),
            SubmitKind::Steer if joins => (List::Step, true),
            SubmitKind::Steer => (List::Turn, true),
            SubmitKind::Inject => (List::Step, false),
        };
        self.note(format!("queued {id} {} {}", list.name(), if wake { "wake" } else { "wait" }));
        self.list(list).push(Waiting { id: id.clone(), wake, parked: false });
        Deed::Submit(kind, id)
    }

    fn unpark(&mut self) {
        self.step_list.iter_mut().chain(&mut self.turn_list).for_each(|item| item.parked = false);
    }

    fn cancel(&mut self, kept: KeptItems) -> Deed {
        match kept {
            KeptItems::Park => {
                self.step_list.iter_mut().chain(&mut self.turn_list).for_each(|item| item.parked = true);
            }
            KeptItems::Continue => self.unpark(),
            KeptItems::Clear => {
                let mut all = std::mem::take(&mut self.step_list);
                all.append(&mut self.turn_list);
                if !all.is_empty() {
                    self.note(format!("removed {} canceled", ids(&all)));
                }
            }
        }
        if let Some(open) = &mut self.open {
            open.cancelled = true;
        }
        Deed::Cancel(kept)
    }

    /// D1, D2, T-1: a turn begins when something that wakes and is not parked waits.
    fn drain(&mut self) {
        if self.open.is_some() || !self.step_list.iter().chain(&self.turn_list).any(|item| item.wake && !item.parked) {
            return;
        }
        let mut batch = std::mem::take(&mut self.step_list);
        if !self.turn_list.is_empty() {
            batch.push(self.turn_list.remove(0));
        }
        self.turns += 1;
        self.unpark();
        self.note(format!("turn {}", self.turns));
        let at = At::Model { attempt: 1, retries: 0 };
        self.open = Some(Open { proposal: 1, step: 0, cancelled: false, max_tokens: false, at });
        self.enter(&batch);
    }

    /// S3 to S10: a step begins, with what was claimed for it.
    fn enter(&mut self, batch: &[Waiting]) {
        let Some(open) = &mut self.open else { return };
        open.step += 1;
        open.at = At::Model { attempt: 1, retries: 0 };
        let proposal = open.proposal;
        let place = self.place();
        if !batch.is_empty() {
            self.note(format!("claimed {place} p{proposal} {}", ids(batch)));
        }
        self.note(format!("step {place}"));
        for item in batch {
            self.note(format!("user {}", item.id));
        }
    }

    /// S13 to S15: the step ends; what is owed goes on, what is not ends the turn.
    fn boundary(&mut self, owed: bool) {
        let place = self.place();
        self.note(format!("step-end {place}"));
        let more = owed || self.step_list.iter().any(|item| item.wake);
        let Some(open) = &mut self.open else { return };
        if more {
            open.proposal += 1;
            let batch = std::mem::take(&mut self.step_list);
            self.enter(&batch);
        } else {
            let reason = if open.max_tokens { "max-tokens" } else { "completed" };
            self.close(reason);
        }
    }

    fn abort(&mut self, reason: &str) {
        let place = self.place();
        self.note(format!("step-end {place}"));
        self.close(reason);
    }

    /// D5 to D7.
    fn close(&mut self, reason: &str) {
        let steps = self.open.take().map_or(0, |open| open.step);
        self.note(format!("turn-end {} {reason} {steps}", self.turns));
        self.drain();
    }

    /// The model or the running tool comes to its end.
    fn happen(&mut self, roll: u64) -> Deed {
        let Some(open) = self.open.clone() else { return Deed::Nothing };
        match open.at {
            At::Model { attempt, retries } if open.cancelled => {
                let said = Said::Cut { prefix: roll.is_multiple_of(2) };
                let place = self.place();
                self.note(match said {
                    Said::Cut { prefix: true } => format!("assistant {place}.{attempt} cut"),
                    _ => format!("attempt {place}.{attempt} cancelled"),
                });
                let _ = retries;
                self.abort("aborted");
                Deed::Say(said)
            }
            At::Model { attempt, retries } => {
                let said = Said::of(roll);
                self.heard(said, attempt, retries);
                Deed::Say(said)
            }
            At::Tools { calls, done, concluded } => self.tool(roll, (calls, done, concluded), open.cancelled),
        }
    }

    fn heard(&mut self, said: Said, attempt: u32, retries: u32) {
        let place = self.place();
        match said {
            Said::Answer => {
                self.note(format!("assistant {place}.{attempt} stop"));
                self.boundary(false);
            }
            Said::TooLong => {
                self.note(format!("assistant {place}.{attempt} max-tokens"));
                if let Some(open) = &mut self.open {
                    open.max_tokens = true;
                }
                self.boundary(false);
            }
            Said::Calls(calls) => {
                self.note(format!("assistant {place}.{attempt} tool-use"));
                self.note(format!("call {place} call-0"));
                if let Some(open) = &mut self.open {
                    open.at = At::Tools { calls, done: 0, concluded: false };
                }
            }
            Said::Refused => {
                self.note(format!("attempt {place}.{attempt} failed"));
                self.abort("error AUTH");
            }
            Said::Busy => {
                self.note(format!("attempt {place}.{attempt} failed"));
                if retries >= RetryLimits::default().max_retries {
                    self.abort("error RATE_LIMIT");
                    return;
                }
                self.note(format!("retry {}", retries + 1));
                self.note("retrying".to_owned());
                if let Some(open) = &mut self.open {
                    open.at = At::Model { attempt: attempt + 1, retries: retries + 1 };
                }
            }
            Said::Cut { .. } => {}
        }
    }

    /// 6.2 to 6.4: exclusive calls run one behind the other; a cancel lets the running one end and skips the rest.
    fn tool(&mut self, roll: u64, (calls, done, concluded): (usize, usize, bool), cancelled: bool) -> Deed {
        let (works, concludes) = (!roll.is_multiple_of(4), roll % 8 == 1);
        let place = self.place();
        let code = if cancelled && !works { "ABORTED" } else { "-" };
        self.note(format!("result {place} call-{done} {code}"));
        let done = done + 1;
        let concluded = concluded || (works && concludes);
        if cancelled {
            for skipped in done..calls {
                self.note(format!("call {place} call-{skipped}"));
                self.note(format!("result {place} call-{skipped} ABORTED_BEFORE_DISPATCH"));
            }
            self.abort("aborted");
        } else if done < calls {
            self.note(format!("call {place} call-{done}"));
            if let Some(open) = &mut self.open {
                open.at = At::Tools { calls, done, concluded };
            }
        } else {
            self.boundary(!concluded);
        }
        Deed::Body { works, concludes }
    }

    /// 7.5: everything that was logged is there; the next process closes what is open.
    fn crash(&mut self) -> Deed {
        self.unpark();
        let place = self.place();
        match self.open.take() {
            Some(open) => {
                self.log.push("opened repair".to_owned());
                if let At::Tools { calls, done, .. } = open.at {
                    for call in done..calls {
                        let code = if call == done { "TOOL_OUTCOME_UNKNOWN" } else { "TOOL_NOT_STARTED" };
                        self.log.push(format!("result {place} call-{call} {code}"));
                    }
                }
                self.log.push(format!("step-end {place}"));
                self.log.push(format!("turn-end {} interrupted {}", self.turns, open.step));
                self.worked = false;
            }
            None if self.worked => {
                self.log.push("opened resume".to_owned());
                self.worked = false;
            }
            None => {}
        }
        Deed::Crash
    }
}
