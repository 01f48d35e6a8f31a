//! Reading, without a lease and without changing anything (W-3).

use super::{Inner, SessionError};
use crate::{
    keeper::{Live, SlotState, refusal},
    protocol::JournalRequest,
    reply::Reply,
    session_journal,
};
use everturn_storage::{
    event::{Event, SessionHeader},
    ids::{Seq, SessionId},
    limits::{LIST_MAX, READ_MAX_EVENTS},
    load::{self, LoadError},
    log::LogState,
    store::SessionSummary,
};
use futures::future;
use std::sync::Arc;

/// The fold of a live log, and what of it is durable; none when its journal died just now.
pub(super) async fn view(live: &Live) -> Option<(Arc<LogState>, Option<Seq>)> {
    let (reply, answer) = Reply::channel();
    live.journal.cast(session_journal::Message::Ask(JournalRequest::View { reply })).ok()?;
    answer.await.ok()
}

async fn tail(live: &Live, from: Seq) -> Vec<Arc<Event>> {
    let (reply, answer) = Reply::channel();
    // A journal that died keeps nothing; what is durable is in the store.
    drop(live.journal.cast(session_journal::Message::Ask(JournalRequest::Tail { from, reply })));
    answer.await.unwrap_or_default()
}

impl Inner {
    fn live(&self, session: &SessionId) -> Option<Live> {
        match self.registry.find(session)?.slot.get() {
            SlotState::Live(live) => Some(live),
            SlotState::Starting
            | SlotState::Restarting
            | SlotState::Refused(_)
            | SlotState::Faulted(_)
            | SlotState::Gone => None,
        }
    }

    pub(super) async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, SessionError> {
        let limit = limit.min(LIST_MAX);
        let listed = self.shared.store.run(move |store| store.list(after.as_ref(), limit)).await;
        let listed = listed.map_err(|error| SessionError::Storage(error.to_string()))?;
        let present = listed.into_iter().map(|summary| async move {
            let Some(live) = self.live(&summary.session) else { return summary };
            match view(&live).await {
                Some((view, _)) => view.summary(&live.header),
                None => summary,
            }
        });
        Ok(future::join_all(present).await)
    }

    pub(super) async fn session(&self, session: &SessionId) -> Result<(SessionHeader, SessionSummary), SessionError> {
        if let Some(live) = self.live(session)
            && let Some((view, _)) = view(&live).await
        {
            return Ok(((*live.header).clone(), view.summary(&live.header)));
        }
        let wanted = session.clone();
        let found = self.shared.store.run(move |store| {
            let Some(header) = store.header(&wanted)? else { return Ok(Err(LoadError::NotFound(wanted))) };
            Ok(match store.summary(&wanted)? {
                Some(summary) => Ok((header, summary)),
                // The index is derived and can be made again.
                None => load::inspect(store, &wanted).map(|seen| {
                    let summary = seen.state.summary(&seen.header);
                    (seen.header, summary)
                }),
            })
        });
        match found.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(refusal(session, error)),
            Err(error) => Err(refusal(session, LoadError::Store(error))),
        }
    }

    /// The part that is in memory first, then what the store holds before it: everything that is not in memory is
    /// durable, so nothing is missed between the two.
    pub(super) async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: usize,
    ) -> Result<Vec<Arc<Event>>, SessionError> {
        let limit = limit.min(READ_MAX_EVENTS);
        let mut recent = match self.live(session) {
            Some(live) => tail(&live, from).await,
            None => Vec::new(),
        };
        let known = recent.first().map(|event| event.seq);
        if known != Some(from) {
            let before = known.map_or(limit, |first| usize::try_from(first.0 - from.0).unwrap_or(limit));
            let mut events = self.stored(session, from, limit.min(before)).await?;
            events.append(&mut recent);
            recent = events;
        }
        recent.truncate(limit);
        Ok(recent)
    }

    /// What the store holds. Damage ends the list where it begins, and is an error only where nothing is before it.
    async fn stored(&self, session: &SessionId, from: Seq, limit: usize) -> Result<Vec<Arc<Event>>, SessionError> {
        let wanted = session.clone();
        let read = self.shared.store.run(move |store| {
            if store.header(&wanted)?.is_none() && store.last_seq(&wanted)?.is_none() {
                return Ok(Err(LoadError::NotFound(wanted)));
            }
            Ok(match load::read_events(store, &wanted, from, limit) {
                Err(LoadError::Corrupt { seq, .. }) if seq > from => {
                    let whole = usize::try_from(seq.0 - from.0).unwrap_or(limit);
                    load::read_events(store, &wanted, from, whole.min(limit))
                }
                other => other,
            })
        });
        match read.await {
            Ok(Ok(events)) => Ok(events),
            Ok(Err(error)) => Err(refusal(session, error)),
            Err(error) => Err(refusal(session, LoadError::Store(error))),
        }
    }

    /// One event of a log.
    pub(super) async fn event(&self, session: &SessionId, seq: Seq) -> Option<Arc<Event>> {
        self.events(session, seq, 1).await.ok()?.into_iter().next()
    }
}
