//! What follows when the journal has answered.

use super::{
    Answer, AppendError, Check, CheckpointKind, Desk, Flight, Frame, Item, ItemId, OpError, Output, Receipt, ReplyId,
    Seq, Token, Visible, Waiting,
};
use crate::{
    handle::CancelReport,
    limits::{JOURNAL_RETRY_DELAY_MS, JOURNAL_TRIES, REOPEN_DELAY_MS},
    protocol::{Appended, CheckpointFailed, ClaimStepAnswer, ClaimedBatch},
};
use everturn_storage::{event::Target, ids::Turn, message::code};
use std::sync::Arc;

impl Desk {
    /// The last event that is logged.
    pub(super) fn last_logged(&self) -> Option<Seq> {
        self.view.next_seq().0.checked_sub(1).map(Seq)
    }

    pub(super) fn appended(&mut self, token: Token, result: Result<Appended, AppendError>) {
        let Some((_, flight)) = self.flight.take_if(|(expected, _)| *expected == token) else { return };
        match result {
            Ok(appended) => {
                self.look(Arc::clone(&appended.view));
                // The journal takes appends again.
                self.journal_parked = None;
                self.committed(flight, &appended);
            }
            Err(AppendError::Fenced) => self.fault(AppendError::Fenced.to_string()),
            Err(error) => self.not_committed(flight, error),
        }
    }

    fn committed(&mut self, flight: Flight, appended: &Appended) {
        match flight {
            Flight::Accept { item, reply } => self.accepted(item, reply, appended),
            Flight::Change { reply } => {
                self.check(CheckpointKind::Accept, appended.last, Check::Change { reply });
                self.settle_items();
            }
            Flight::Cancel { cause, removed, reply } => {
                self.check(CheckpointKind::Accept, appended.last, Check::Nobody);
                let cancelled = self.fire(cause);
                self.answer(reply, Answer::Cancelled(CancelReport { cancelled, removed }));
                self.settle_items();
            }
            Flight::Withdraw { message, why, reply } => {
                self.withdrawn.insert(message);
                self.refuse(reply, OpError::Storage(why));
                self.settle_items();
            }
            Flight::Open { turn, items, reply, .. } => self.opened(turn, items, reply),
            Flight::Claim { items, reply } => {
                let batch = ClaimedBatch { items, view: Arc::clone(&appended.view) };
                self.out.push(Output::Claimed { reply, answer: ClaimStepAnswer::Work(batch) });
            }
            Flight::Discard => self.settle_items(),
        }
    }

    /// The driver is woken as soon as the item is logged; the receipt waits for the disk (C-4).
    fn accepted(&mut self, item: ItemId, reply: ReplyId, appended: &Appended) {
        let place = self.view.pending(&item).map(|pending| pending.item.target);
        let list = place.unwrap_or(Target::NextTurn);
        let items = match list {
            Target::NextTurn => self.view.next_turn(),
            Target::NextStep => self.view.next_step(),
        };
        let position = items.iter().position(|pending| pending.item.id == item).unwrap_or(0);
        let receipt = Receipt {
            item_id: item.clone(),
            list,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            woke: self.wake(),
            seq: appended.first,
            durable: true,
        };
        self.check(CheckpointKind::Accept, appended.last, Check::Accept { item, receipt, reply });
    }

    fn opened(&mut self, turn: Turn, items: Vec<Arc<Item>>, reply: ReplyId) {
        self.parked.clear();
        self.turn = Some(super::LiveTurn { turn, cancelled: false });
        self.phase = super::Phase::PreAdmission;
        if !self.running {
            self.running = true;
            self.out.push(Output::Notify(Frame::Status { status: Visible::Running }));
        }
        let batch = ClaimedBatch { items, view: Arc::clone(&self.view) };
        self.out.push(Output::Opened { reply, turn, batch });
    }

    fn not_committed(&mut self, flight: Flight, error: AppendError) {
        let storage = |error: &AppendError| match error {
            AppendError::Refused(violation) => OpError::Invalid(violation.to_string()),
            AppendError::Fenced | AppendError::Io(_) => OpError::Storage(error.to_string()),
        };
        match flight {
            Flight::Accept { reply, .. } | Flight::Change { reply } => self.refuse(reply, storage(&error)),
            Flight::Cancel { cause, reply, .. } => {
                // What waits could not be cleared; what runs can still be stopped.
                self.fire(cause);
                self.refuse(reply, storage(&error));
            }
            Flight::Withdraw { why, reply, .. } => {
                self.refuse(reply, OpError::Storage(why));
                self.fault(format!("an item that is not durable could not be taken back: {error}"));
            }
            Flight::Open { tries, reply, .. } => self.not_opened(tries + 1, reply, &error),
            Flight::Claim { reply, .. } => {
                self.out.push(Output::Claimed { reply, answer: ClaimStepAnswer::Failed(error) });
            }
            Flight::Discard => self.notice(code::JOURNAL, format!("what waits could not be removed: {error}")),
        }
    }

    /// R14: a bounded number of tries, then the driver stops until the journal is back.
    fn not_opened(&mut self, tries: u32, reply: ReplyId, error: &AppendError) {
        if tries < JOURNAL_TRIES {
            let last = JOURNAL_RETRY_DELAY_MS.len() - 1;
            let token = self.arm(JOURNAL_RETRY_DELAY_MS[(tries as usize - 1).min(last)]);
            self.retrying = Some((token, reply, tries));
            return;
        }
        self.notice(code::JOURNAL, format!("no turn could be opened, what waits stays and runs later: {error}"));
        self.journal_parked = Some(self.arm(REOPEN_DELAY_MS.1));
        self.go_idle(reply);
    }

    pub(super) fn timer(&mut self, token: Token) {
        if let Some((_, reply, tries)) = self.retrying.take_if(|(expected, ..)| *expected == token) {
            self.waiting.push_front(Waiting::Open { reply, tries });
        }
        self.journal_parked.take_if(|expected| *expected == token);
    }

    pub(super) fn settled(&mut self, token: Token, outcome: Result<Seq, CheckpointFailed>) {
        let Some(check) = self.checks.remove(&token) else { return };
        if let Ok(durable) = &outcome {
            self.durable = self.durable.max(Some(*durable));
        }
        match (check, outcome) {
            (Check::Accept { receipt, reply, .. }, Ok(_)) => self.answer(reply, Answer::Receipt(receipt)),
            (Check::Accept { item, reply, .. }, Err(failed)) => {
                self.waiting.push_back(Waiting::Withdraw { item, reply, why: failed.to_string() });
            }
            (Check::Duplicate { item, kind, reply }, Ok(_)) => self.answer(reply, Answer::Duplicate { item, kind }),
            (Check::Change { reply }, Ok(_)) => self.answer(reply, Answer::Done),
            (Check::Duplicate { reply, .. } | Check::Change { reply }, Err(failed)) => {
                self.refuse(reply, OpError::Storage(failed.to_string()));
            }
            (Check::Maintenance { reply }, outcome) => {
                self.maintaining = false;
                match outcome {
                    Ok(_) => self.answer(reply, Answer::Done),
                    Err(failed) => self.refuse(reply, OpError::Storage(failed.to_string())),
                }
            }
            (Check::Nobody, _) => {}
            (Check::Dispose, outcome) => {
                if let Err(failed) = outcome {
                    self.notice(
                        code::CHECKPOINT,
                        format!("the agent is put away, its last checkpoint failed: {failed}"),
                    );
                }
                self.disposed();
            }
        }
    }
}
