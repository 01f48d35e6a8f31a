//! The ways out: drain, disposal, fault.

use super::{
    Answer, AppendClass, Cause, Check, CheckpointKind, Desk, DisposeMode, Flight, Frame, ItemId, Life, OpError, Output,
    ReplyId, Visible, Waiting,
};
use everturn_storage::event::{InboxRemoved, RemoveCause};

impl Desk {
    /// Takes nothing new. A turn that has more to do ends at its next claim (Z15).
    pub(super) fn drain(&mut self) {
        if self.life == Life::Live {
            self.life = Life::Draining;
        }
    }

    /// Idempotent; all calls share one completion.
    pub(super) fn dispose(&mut self, mode: DisposeMode, reply: ReplyId) {
        if self.life == Life::Disposed {
            return self.answer(reply, Answer::Done);
        }
        self.dispose_waiters.push(reply);
        match &self.life {
            Life::Live | Life::Draining => {
                self.life = Life::Disposing { mode, cleared: false };
                self.fire(Cause::Disposed);
            }
            Life::Disposing { .. } | Life::Disposed => {}
            // Nothing can be recorded any more.
            Life::Faulted(_) => self.disposed(),
        }
    }

    /// Goes on with a disposal once nothing runs: inbox by mode, CP-D, gone.
    pub(super) fn dispose_on(&mut self) {
        let Life::Disposing { mode, cleared } = self.life else { return };
        if !self.is_quiescent() || !self.checks.is_empty() {
            return;
        }
        if mode == DisposeMode::Discard && !cleared {
            self.life = Life::Disposing { mode, cleared: true };
            self.waiting.push_back(Waiting::Discard);
            self.pump();
            if self.flight.is_some() {
                return;
            }
        }
        match self.last_logged().filter(|last| self.durable < Some(*last)) {
            Some(last) => self.check(CheckpointKind::Dispose, last, Check::Dispose),
            None => self.disposed(),
        }
    }

    pub(super) fn discard(&mut self) {
        let ids: Vec<ItemId> = self.pending().map(|pending| pending.item.id.clone()).collect();
        if !ids.is_empty() {
            let removed = InboxRemoved { ids, cause: RemoveCause::Disposed };
            self.append(vec![removed.into()], AppendClass::Closing, Flight::Discard);
        }
    }

    pub(super) fn disposed(&mut self) {
        self.life = Life::Disposed;
        self.running = false;
        self.out.push(Output::Notify(Frame::Status { status: Visible::Disposed }));
        for (_, reply) in std::mem::take(&mut self.item_waiters) {
            self.refuse(reply, OpError::Disposed);
        }
        for reply in std::mem::take(&mut self.dispose_waiters) {
            self.answer(reply, Answer::Done);
        }
        self.out.push(Output::Disposed);
    }

    /// Nothing can be recorded any more. A disposal ends here without its appends.
    pub(super) fn fault(&mut self, why: String) {
        match &self.life {
            Life::Disposed | Life::Faulted(_) => {}
            Life::Disposing { .. } => self.disposed(),
            Life::Live | Life::Draining => {
                self.life = Life::Faulted(why.clone());
                self.out.push(Output::Fault { why });
            }
        }
    }
}
