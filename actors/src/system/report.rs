//! What became of an item, from the log.

use super::Inner;
use crate::handle::{ItemReport, ItemState, Receipt, SubmitKind};
use everturn_storage::{
    event::{EventData, Origin},
    ids::{ItemId, Seq, SessionId, Turn},
    log::{ItemFate, LogState},
    message::{Block, plain_text},
};

impl Inner {
    /// The report of an item of this log; none when the log has no such item.
    pub(super) async fn report(&self, session: &SessionId, view: &LogState, item: &ItemId) -> Option<ItemReport> {
        let (state, turn) = state(view.fate(item)?);
        let row = turn.and_then(|turn| {
            let at = view.turns().binary_search_by_key(&turn, |row| row.turn).ok()?;
            view.turns().get(at)
        });
        let answer = match row.and_then(|row| row.answer) {
            Some(seq) => self.answer(session, seq).await,
            None => None,
        };
        let queued = view.queued_at(item)?;
        let (content, kind) = self.said(session, queued.seq).await?;
        Some(ItemReport {
            item_id: item.clone(),
            state,
            turn,
            reason: row.map(|row| row.reason.clone()),
            answer,
            receipt: Receipt {
                item_id: item.clone(),
                list: queued.target,
                position: queued.position,
                woke: false,
                seq: queued.seq,
                durable: true,
            },
            content,
            kind,
        })
    }

    async fn answer(&self, session: &SessionId, seq: Seq) -> Option<String> {
        let event = self.event(session, seq).await?;
        let EventData::AssistantMessage(said) = &event.body.data else { return None };
        Some(plain_text(&said.message.content))
    }

    async fn said(&self, session: &SessionId, seq: Seq) -> Option<(Vec<Block>, SubmitKind)> {
        let event = self.event(session, seq).await?;
        let EventData::InboxQueued(queued) = &event.body.data else { return None };
        let kind = match queued.item.origin {
            Origin::Send => SubmitKind::Send,
            Origin::Steer => SubmitKind::Steer,
            Origin::Inject | Origin::Context => SubmitKind::Inject,
        };
        Some((queued.item.message.content.clone(), kind))
    }
}

fn state(fate: &ItemFate) -> (ItemState, Option<Turn>) {
    match fate {
        ItemFate::Pending => (ItemState::Pending, None),
        ItemFate::Claimed(turn) => (ItemState::Claimed, Some(*turn)),
        ItemFate::Admitted(turn) => (ItemState::Admitted, Some(*turn)),
        ItemFate::Blocked(turn) => (ItemState::Blocked, Some(*turn)),
        ItemFate::Unadmitted(turn) => (ItemState::Unadmitted, Some(*turn)),
        ItemFate::Removed => (ItemState::Removed, None),
    }
}
