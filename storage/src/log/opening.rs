//! Who took the session for writing, and what that closes.

use super::{
    ItemFate, LogState, OpenedRow,
    check::{Check, Expect, ensure},
};
use crate::event::{Event, OpenReason, SessionOpened};

pub(super) fn opened(state: &mut LogState, event: &Event, data: &SessionOpened) -> Check {
    let seq = event.seq;
    let first = state.opened.is_none();
    if let Some(last) = &state.opened {
        ensure!(data.epoch > last.epoch, "W-2", seq, "epoch {} does not follow {}", data.epoch, last.epoch);
    }
    let open = state.turn.is_some();
    match data.reason {
        OpenReason::Fresh => ensure!(first, "grammar", seq, "a log is fresh only once"),
        OpenReason::Resume => {
            ensure!(!first, "grammar", seq, "there is nothing to resume");
            ensure!(!open, "I-33", seq, "a turn is open; it needs a repair");
        }
        OpenReason::Repair => {
            ensure!(open, "grammar", seq, "nothing is open that a repair could close");
            state.expect = Expect::Closer;
        }
        OpenReason::Fork => {
            ensure!(!open, "Y-1", seq, "a fork begins outside of turns");
            forget_pending(state);
        }
    }
    state.opened =
        Some(OpenedRow { seq, reason: data.reason, epoch: data.epoch, worked_since: false, header_since: false });
    Ok(())
}

/// A child does not inherit what waits in its parent (Y-3).
fn forget_pending(state: &mut LogState) {
    for list in [std::mem::take(&mut state.next_turn), std::mem::take(&mut state.next_step)] {
        for pending in list {
            state.fates.insert(pending.item.id.clone(), ItemFate::Removed);
        }
    }
}
