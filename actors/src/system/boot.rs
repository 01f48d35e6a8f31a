//! Boot: look at the sessions that need it, and at no other (A-4, 7.5).

use super::{AgentHandle, BootReport, Inner, SessionError};
use crate::{
    fault,
    keeper::SlotState,
    limits::{BOOT_PARALLEL, REOPEN_DELAY_MS},
};
use everturn_storage::{ids::SessionId, store};
use futures::stream::{self, StreamExt};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// Opens what a dead process left behind, each session for itself, and reports.
pub(super) async fn run(inner: Arc<Inner>, told: watch::Sender<Option<BootReport>>) {
    let sessions = attention(&inner).await;
    let mut report = BootReport { touched: sessions.len(), ..BootReport::default() };
    let mut outcomes = stream::iter(sessions)
        .map(|session| {
            let inner = Arc::clone(&inner);
            async move { (open(&inner, &session).await, session) }
        })
        .buffer_unordered(BOOT_PARALLEL);
    while let Some((outcome, session)) = outcomes.next().await {
        match outcome {
            Ok(handle) => {
                report.reports.extend(handle.slot().take_reports());
                if matches!(handle.slot().get(), SlotState::Live(live) if live.repaired) {
                    report.repaired.push(session);
                }
            }
            Err(error) => report.refused.push((session, error)),
        }
    }
    report.repaired.sort();
    report.refused.sort_by(|(a, _), (b, _)| a.cmp(b));
    inner.health.booted();
    told.send_replace(Some(report));
}

/// Asks the store until it answers: an agent that waits must not be forgotten because a disk was full at boot.
async fn attention(inner: &Inner) -> Vec<SessionId> {
    let mut delay_ms = REOPEN_DELAY_MS.0;
    loop {
        let listed = match fault::failure_anywhere("boot.attention") {
            Some(why) => Err(store::Error::Io(why)),
            None => inner.shared.store.run(|store| store.attention()).await,
        };
        match listed {
            Ok(sessions) => return sessions,
            Err(error) => tracing::error!(%error, "the sessions that need repair cannot be listed"),
        }
        if inner.registry.is_closed() {
            return Vec::new();
        }
        delay_ms = wait(delay_ms).await;
    }
}

async fn open(inner: &Arc<Inner>, session: &SessionId) -> Result<AgentHandle, SessionError> {
    fault::reach("boot.session", session);
    let mut delay_ms = REOPEN_DELAY_MS.0;
    loop {
        match inner.open(session).await {
            // The store may come back; what waits in the session must run then.
            Err(SessionError::Storage(_)) if !inner.registry.is_closed() => delay_ms = wait(delay_ms).await,
            outcome => return outcome,
        }
    }
}

async fn wait(delay_ms: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    (delay_ms * 2).min(REOPEN_DELAY_MS.1)
}
