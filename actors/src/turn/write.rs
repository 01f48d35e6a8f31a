//! Appends and checkpoints with their tries: what follows a committed batch, and what a refused one ends in.

use super::{
    Machine,
    effect::Effect,
    input::Outcome,
    records,
    state::{Ask, Burial, Ending, State, Sync, Synced, Work, Write, Written},
};
use crate::{
    handle::Frame,
    limits::{CheckpointPolicy, JOURNAL_RETRY_DELAY_MS, JOURNAL_TRIES},
    protocol::{AppendError, Appended, CheckpointFailed, CheckpointKind, Phase},
};
use everturn_storage::{
    event::EventBody,
    ids::Seq,
    message::{Failure, code},
};

/// The wait behind the given number of failures (`journal_retry`).
pub(super) fn journal_delay_ms(failures: u32) -> u64 {
    let [.., longest] = JOURNAL_RETRY_DELAY_MS;
    let place = failures.saturating_sub(1) as usize;
    JOURNAL_RETRY_DELAY_MS.get(place).copied().unwrap_or(longest)
}

impl Machine {
    /// Asks for an append.
    pub(super) fn append(&mut self, work: Box<Work>, what: Written, events: Vec<EventBody>) {
        self.try_append(work, Write { what, events, tries: 0, waiting: false });
    }

    pub(super) fn try_append(&mut self, work: Box<Work>, mut write: Write) {
        write.waiting = false;
        let token = self.fresh_token();
        self.out.push(Effect::Append { token, events: write.events.clone() });
        self.state = State::Appending(Box::new(write), work);
    }

    /// A batch is committed: goes on behind it.
    pub(super) fn appended(&mut self, mut work: Box<Work>, write: Write, appended: Appended) {
        work.see(appended.view);
        match write.what {
            Written::StepStart => self.step_started(work),
            Written::Admission => self.admitted(work),
            Written::Settlement(settlement) => self.settled(work, &settlement, appended.last),
            Written::RetryScheduled { delay_ms, retry_id } => self.back_off(work, delay_ms, retry_id),
            Written::RetryStarted => self.retry(work),
            Written::StepEnd => self.step_ended(work),
            Written::Bury(burial) => self.bury(work, burial),
            Written::TurnEnd(ending) => self.turn_ended(work, ending),
        }
    }

    /// A batch is not committed: tries again, or gives up.
    pub(super) fn append_failed(&mut self, work: Box<Work>, mut write: Write, error: AppendError) {
        let again = match &error {
            AppendError::Io(_) => true,
            AppendError::Refused(_) => false,
            // Somebody else writes this log now.
            AppendError::Fenced => return self.fault(error.to_string()),
        };
        write.tries += 1;
        if !again || write.tries >= JOURNAL_TRIES {
            return self.give_up_append(work, write.what, &error);
        }
        if work.cancel.is_some() && !write.ignores_cancel() {
            return self.append_cancelled(work, write);
        }
        let delay_ms = journal_delay_ms(write.tries);
        write.waiting = true;
        self.arm(delay_ms);
        self.state = State::Appending(Box::new(write), work);
    }

    /// A cancel came while a batch was not committed: it gives way to what the cancel needs.
    pub(super) fn append_cancelled(&mut self, work: Box<Work>, mut write: Write) {
        match write.what {
            Written::StepStart
            | Written::Admission
            | Written::RetryScheduled { .. }
            | Written::RetryStarted
            | Written::StepEnd => self.close_cancelled(work),
            // Cancel wins until the settlement is logged (P10).
            Written::Settlement(mut settlement) => {
                settlement.outcome = Outcome::Cancelled;
                write.events = vec![records::settlement(&work, &settlement)];
                write.what = Written::Settlement(settlement);
                self.try_append(work, write);
            }
            Written::TurnEnd(ending) => {
                let ending = ending.under_cancel(&work);
                write.events = records::turn_end(&work, &ending);
                write.what = Written::TurnEnd(ending);
                self.try_append(work, write);
            }
            // The pairs of a dead pool are owed whatever happens.
            what @ Written::Bury(_) => {
                write.what = what;
                self.try_append(work, write);
            }
        }
    }

    fn give_up_append(&mut self, work: Box<Work>, what: Written, error: &AppendError) {
        match what {
            Written::StepStart | Written::Admission => {
                self.close_failed(work, Failure::new(code::JOURNAL, error.to_string()));
            }
            Written::Settlement(_) => {
                self.discard(&work, code::JOURNAL);
                self.close_failed(work, Failure::new(code::JOURNAL, error.to_string()));
            }
            // No wait without its record: the original failure stands (P18).
            Written::RetryScheduled { .. } | Written::RetryStarted => self.give_up(work),
            // What is open cannot be closed.
            Written::StepEnd | Written::Bury(_) | Written::TurnEnd(_) => self.fault(error.to_string()),
        }
    }

    /// Records what a dead pool left, one append after the other, and closes the turn with the last (6.10).
    pub(super) fn bury(&mut self, work: Box<Work>, burial: Burial) {
        let (mut events, last) = records::burial(&work, &burial);
        if !last {
            return self.append(work, Written::Bury(burial), events);
        }
        let ending = Ending { reason: burial.reason, blocked: None };
        events.extend(records::turn_end(&work, &ending));
        self.append(work, Written::TurnEnd(ending), events);
    }

    /// Asks for a checkpoint of everything that the view holds.
    pub(super) fn sync(&mut self, work: Box<Work>, what: Synced) {
        let upto = work.last_seq();
        self.try_sync(work, Sync { what, upto, tries: 0, waiting: false });
    }

    pub(super) fn try_sync(&mut self, work: Box<Work>, mut sync: Sync) {
        sync.waiting = false;
        let token = self.fresh_token();
        let kind = match sync.what {
            Synced::Request => CheckpointKind::Request,
            Synced::Step => CheckpointKind::Step,
            Synced::Turn => CheckpointKind::Turn,
        };
        self.out.push(Effect::Checkpoint { token, kind, upto: sync.upto });
        self.state = State::Syncing(sync, work);
    }

    /// A checkpoint is acknowledged.
    pub(super) fn durable(&mut self, work: Box<Work>, what: Synced, seq: Seq) {
        match what {
            Synced::Request => self.dispatch(work),
            Synced::Step => self.boundary(work),
            Synced::Turn => self.turn_settled(&work, Ok(seq)),
        }
    }

    /// A checkpoint failed: tries again, fails closed, or goes on when it was the turn's (R1, K-3).
    pub(super) fn sync_failed(&mut self, work: Box<Work>, mut sync: Sync, error: CheckpointFailed) {
        sync.tries += 1;
        match sync.what {
            Synced::Request | Synced::Step if sync.tries < JOURNAL_TRIES => {
                sync.waiting = true;
                self.arm(journal_delay_ms(sync.tries));
                self.state = State::Syncing(sync, work);
            }
            Synced::Request | Synced::Step => {
                self.close_failed(work, Failure::new(code::CHECKPOINT, error.to_string()))
            }
            Synced::Turn => {
                let message = format!("turn {} is not durable yet: {error}", work.turn);
                self.publish(Frame::Notice { code: code::CHECKPOINT.to_owned(), message });
                self.turn_settled(&work, Err(error));
            }
        }
    }

    /// CP-R, or what policy `turn` makes of it (K-4).
    pub(super) fn sync_request(&mut self, work: Box<Work>) {
        match work.rules.checkpoint {
            CheckpointPolicy::Semantic => self.sync(work, Synced::Request),
            CheckpointPolicy::Turn => self.dispatch(work),
        }
    }

    /// CP-S, unless a later acknowledgement of the turn covers it (Z11) or the policy leaves it out (K-4).
    fn step_ended(&mut self, work: Box<Work>) {
        self.phase(&work, Phase::Boundary);
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        match work.rules.checkpoint {
            CheckpointPolicy::Semantic if !work.rules.fold_step_checkpoint => self.sync(work, Synced::Step),
            CheckpointPolicy::Semantic | CheckpointPolicy::Turn => self.boundary(work),
        }
    }

    /// The claim could not be logged: tries again, or gives up (P16).
    pub(super) fn claim_failed(&mut self, work: Box<Work>, stopping: bool, tries: u32, error: &AppendError) {
        let failures = tries + 1;
        match error {
            AppendError::Io(_) if failures < JOURNAL_TRIES && work.cancel.is_none() => {
                self.arm(journal_delay_ms(failures));
                self.state = State::Asking(Ask::Claim { stopping, tries: failures, waiting: true }, work);
            }
            AppendError::Io(_) | AppendError::Refused(_) => {
                self.close_failed(work, Failure::new(code::JOURNAL, error.to_string()));
            }
            AppendError::Fenced => self.fault(error.to_string()),
        }
    }
}

impl Write {
    /// Whether a cancel changes nothing about the batch.
    pub(super) fn ignores_cancel(&self) -> bool {
        match &self.what {
            Written::StepStart
            | Written::Admission
            | Written::RetryScheduled { .. }
            | Written::RetryStarted
            | Written::StepEnd => false,
            Written::Settlement(settlement) => settlement.outcome == Outcome::Cancelled,
            Written::Bury(_) => true,
            Written::TurnEnd(ending) => ending.ignores_cancel(),
        }
    }
}
