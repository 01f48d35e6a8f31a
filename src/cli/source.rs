//! Where the reading commands read: from the daemon, or from the store when none runs. They change nothing.

use super::{Context, client::Client, error::CliError};
use crate::{embed, wire};
use everturn_actors::system::SessionError;
use everturn_storage::{
    codec,
    event::Event,
    ids::{Seq, SessionId},
    limits::LIST_MAX,
    load::{self, LoadError, Loaded},
    log::request::derive_messages,
    store::{self, SessionSummary, Store},
};
use serde_json::Value;
use std::{path::Path, sync::Arc};

/// Events and bytes that are read at once.
const PAGE: (usize, usize) = (1_000, 16 * 1024 * 1024);

/// Where to read.
pub(super) enum Source {
    /// The daemon that owns the store.
    Daemon(Client),
    /// The store itself.
    Store(Arc<dyn Store>),
    /// There is no store yet.
    Nothing,
}

impl Source {
    /// Finds it. Another owner without a daemon that answers means exit code 6.
    pub(super) async fn open(context: &Context) -> Result<Self, CliError> {
        let loaded = context.load()?;
        let data_dir = context.data_dir(&loaded)?;
        if let Some(client) = Client::find(&data_dir, context.token(&loaded)?).await? {
            return Ok(Self::Daemon(client));
        }
        Ok(match open_store(&data_dir).await? {
            Some(store) => Self::Store(store),
            None => Self::Nothing,
        })
    }
}

/// The store of a directory that has one.
pub(super) async fn open_store(data_dir: &Path) -> Result<Option<Arc<dyn Store>>, CliError> {
    // Looking must not make a store.
    if !data_dir.join("FORMAT").exists() {
        return Ok(None);
    }
    let (store, opened) = embed::open_store(data_dir.to_owned()).await?;
    opened.reports.iter().for_each(|line| super::out::note(line));
    Ok(Some(store))
}

/// An id as the user typed it.
pub(super) fn session_id(text: &str) -> Result<SessionId, CliError> {
    text.parse().map_err(|error| CliError::bad_usage(format!("{text:?} is no id of a session: {error}")))
}

pub(super) fn unknown(session: &SessionId) -> CliError {
    SessionError::Unknown(session.clone()).into()
}

/// Every entry of the index.
pub(super) fn summaries(
    store: &dyn Store,
    mut each: impl FnMut(SessionSummary) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut after: Option<SessionId> = None;
    loop {
        let page = store.list(after.as_ref(), LIST_MAX)?;
        let full = page.len() == LIST_MAX;
        after = page.last().map(|summary| summary.session.clone());
        page.into_iter().try_for_each(&mut each)?;
        if !full {
            return Ok(());
        }
    }
}

/// The events of a session in commits, from the one that holds `from`. An unreadable record is `Corrupt`, after
/// everything before it was given.
pub(super) fn commits(
    store: &dyn Store,
    session: &SessionId,
    from: Seq,
    mut each: impl FnMut(Vec<Arc<Event>>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let corrupt = |seq: Seq, why: String| store::Error::Corrupt { session: session.clone(), seq, why };
    let Some(last) = store.last_seq(session)? else { return Ok(()) };
    let mut next: Option<Seq> = None;
    while next.unwrap_or(from) <= last {
        let page = store.read(session, next.unwrap_or(from), PAGE.0, PAGE.1)?;
        if page.is_empty() {
            return Err(corrupt(next.unwrap_or(from), "records are missing".to_owned()).into());
        }
        for stored in page {
            let first = stored.first;
            if next.is_some_and(|next| next != first) {
                return Err(corrupt(next.unwrap_or(first), "records are missing".to_owned()).into());
            }
            let commit = codec::decode_commit(session, first, &stored.bytes)
                .map_err(|error| corrupt(first, error.to_string()))?;
            next = Some(Seq(first.0 + commit.events.len() as u64));
            each(commit.events)?;
        }
    }
    Ok(())
}

/// What is known of a session that is to be opened; what is refused is exit code 7.
pub(super) fn loaded(store: &dyn Store, session: &SessionId) -> Result<Loaded, CliError> {
    load::load(store, session).map_err(|error| refused(session, error))
}

/// What the model is shown of a session, and why that is not all, when it is not.
pub(super) fn history(store: &dyn Store, session: &SessionId) -> Result<(Vec<Value>, Option<CliError>), CliError> {
    let seen = load::inspect(store, session).map_err(|error| refused(session, error))?;
    let messages = derive_messages(seen.state.surface()).iter().filter_map(wire::message).collect();
    let seq = seen.state.next_seq();
    let defect = seen.defect.map(|why| SessionError::Corrupt { session: session.clone(), seq, why }.into());
    Ok((messages, defect))
}

fn refused(session: &SessionId, error: LoadError) -> CliError {
    let session = session.clone();
    let why = error.to_string();
    match error {
        LoadError::NotFound(session) => SessionError::Unknown(session).into(),
        LoadError::TooNew { .. } => SessionError::Unsupported { session, code: "TOO_NEW", why }.into(),
        LoadError::TooOld { .. } => SessionError::Unsupported { session, code: "TOO_OLD", why }.into(),
        LoadError::UnknownEvent { .. } => SessionError::Unsupported { session, code: "UNKNOWN_EVENT", why }.into(),
        LoadError::Corrupt { seq, why } => SessionError::Corrupt { session, seq, why }.into(),
        LoadError::Store(error) => error.into(),
    }
}
