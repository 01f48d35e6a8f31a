//! What runs on blocking threads. A panic in a store is a failure of that store, not of the process.

use super::Message;
use crate::{fault, group_commit::Writer};
use everturn_storage::{
    ids::Seq,
    store::{Commit, Error, SmallKey, Store},
};
use ractor::ActorRef;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// How a group ended.
#[derive(Debug)]
pub(crate) struct GroupReport {
    /// Commits that were refused for themselves, by place.
    pub(crate) refused: Vec<(usize, Error)>,
    /// A failure that is final for this opening.
    pub(crate) failure: Option<Error>,
}

impl GroupReport {
    pub(super) fn died(why: String) -> Self {
        Self { refused: Vec::new(), failure: Some(Error::Poisoned(why)) }
    }
}

/// Runs `work` on a blocking thread and sends what it says, or what `died` makes of its panic.
pub(super) fn spawn(
    me: &ActorRef<Message>,
    work: impl FnOnce() -> Message + Send + 'static,
    died: impl FnOnce(String) -> Message + Send + 'static,
) {
    let me = me.clone();
    // A task that waited for the thread would be one more hop on the way of every checkpoint.
    tokio::task::spawn_blocking(move || {
        let message = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(message) => message,
            Err(panic) => {
                let why = panic.downcast_ref::<String>().map(String::as_str);
                let why = why.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
                died(format!("the store's own code died: {why}"))
            }
        };
        // The actor may be gone; its successor opens the store anew.
        drop(me.cast(message));
    });
}

/// Writes a group and syncs it.
pub(super) fn run_group(store: &dyn Store, gate: &Mutex<()>, commits: &[Commit], sync: bool) -> GroupReport {
    let _one_at_a_time = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let mut refused = Vec::new();
    let mut at = 0;
    if let Some(why) = fault::failure_anywhere("store.commit") {
        return GroupReport { refused, failure: Some(Error::Io(why)) };
    }
    while at < commits.len() {
        match store.commit(&commits[at..]) {
            Ok(()) => break,
            Err(error) if error.is_final() => return GroupReport { refused, failure: Some(error) },
            Err(error) => match stopped_at(store, commits, at, &error) {
                Ok(place) => {
                    refused.push((place, error));
                    at = place + 1;
                }
                Err(failure) => return GroupReport { refused, failure: Some(failure) },
            },
        }
    }
    drop(fault::failure_anywhere("store.written"));
    let failure = if sync { synced(store).err() } else { None };
    GroupReport { refused, failure }
}

fn synced(store: &dyn Store) -> Result<(), Error> {
    if let Some(why) = fault::failure_anywhere("store.sync") {
        return Err(Error::Io(why));
    }
    store.sync()?;
    drop(fault::failure_anywhere("store.synced"));
    Ok(())
}

/// Which commit behind `at` an error that is not final speaks of: those before it were written, it was not.
fn stopped_at(store: &dyn Store, commits: &[Commit], at: usize, error: &Error) -> Result<usize, Error> {
    for (place, commit) in commits.iter().enumerate().skip(at) {
        if let Error::Fenced { session, expected, .. } = error {
            if commit.session == *session && commit.first == *expected {
                return Ok(place);
            }
        } else if store.last_seq(&commit.session)?.is_none_or(|last| last < commit.last()) {
            return Ok(place);
        }
    }
    Ok(at)
}

/// Opens the store again, proves with a small value that it can be written and synced, and says where the writers'
/// logs end.
pub(super) fn reopen(
    store: &dyn Store,
    gate: &Mutex<()>,
    writers: Vec<Writer>,
) -> Result<BTreeMap<Writer, Option<Seq>>, Error> {
    let _one_at_a_time = gate.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = fault::failure_anywhere("store.reopen") {
        return Err(Error::Io(why));
    }
    let opened = store.reopen()?;
    for report in &opened.reports {
        tracing::warn!(report, "opening the store again");
    }
    if opened.behind_acknowledged {
        tracing::error!("the store lost data that it had acknowledged");
    }
    store.put(&SmallKey { session: None, kind: "probe", name: "reopen".to_owned() }, b"works")?;
    store.sync()?;
    survey(store, writers)
}

/// Where the writers' logs end.
pub(super) fn survey(store: &dyn Store, writers: Vec<Writer>) -> Result<BTreeMap<Writer, Option<Seq>>, Error> {
    writers.into_iter().map(|writer| Ok((writer.clone(), store.last_seq(&writer.0)?))).collect()
}

/// Closes the store once no group is in flight.
pub(super) fn close(store: &dyn Store, gate: &Mutex<()>) -> Result<(), Error> {
    let _one_at_a_time = gate.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = fault::failure_anywhere("store.close") {
        return Err(Error::Io(why));
    }
    store.close()
}
