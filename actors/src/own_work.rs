//! Which session's own work the present task is: the turn of an agent waits for it, so it must not wait for the turn
//! (C-6).

use everturn_storage::ids::SessionId;

tokio::task_local! {
    static OWN: SessionId;
}

/// Runs `work` as a part of a turn of `session`.
pub(crate) async fn of<F: Future>(session: SessionId, work: F) -> F::Output {
    OWN.scope(session, work).await
}

/// Whether the present task is a part of a turn of `session`. Tasks that it spawned are not, as far as one can tell.
pub(crate) fn is_of(session: &SessionId) -> bool {
    OWN.try_with(|own| own == session).unwrap_or(false)
}
