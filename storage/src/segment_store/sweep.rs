//! Taking away: deletion and truncation, in steps that hold up nobody.

use super::{engine::Engine, frame::Batch, keys, write};
use crate::{
    ids::{Seq, SessionId},
    limits::SWEEP_KEYS,
    store::{Error, Result},
};

/// The first step of a deletion: the session is gone from the index, and a marker finishes the rest after a crash.
pub(super) fn begin_deletion(engine: &Engine, session: &SessionId) -> Result<()> {
    let mut batch = Batch::default();
    batch.put(keys::session_key(keys::DELETING, session), Vec::new());
    remove_beside(&mut batch, session);
    engine.apply(batch)
}

/// What is kept beside the log.
fn remove_beside(batch: &mut Batch, session: &SessionId) {
    for kind in [keys::INDEX, keys::ATTENTION, keys::HEADER] {
        batch.remove(keys::session_key(kind, session));
    }
}

/// Removes some keys. Tells whether there may be more.
pub(super) fn step_of_deletion(engine: &Engine, session: &SessionId) -> Result<bool> {
    let mut found = Vec::new();
    for kind in [keys::SMALL, keys::COMMIT] {
        let prefix = keys::session_prefix(kind, session);
        engine.scan(&prefix, &prefix, |key, _| {
            found.push(key.to_vec());
            Ok(found.len() < SWEEP_KEYS)
        })?;
        if found.len() >= SWEEP_KEYS {
            break;
        }
    }
    if found.is_empty() {
        return Ok(false);
    }
    let mut batch = Batch::default();
    found.into_iter().for_each(|key| batch.remove(key));
    engine.apply(batch)?;
    Ok(true)
}

/// The last step: nothing of the session is left.
pub(super) fn end_deletion(engine: &Engine, session: &SessionId) -> Result<()> {
    let mut batch = Batch::default();
    batch.remove(keys::session_key(keys::DELETING, session));
    engine.apply(batch)
}

/// Moves what is behind `last` into the quarantine, the end first: what stays is a prefix at every moment.
pub(super) fn truncate(engine: &Engine, session: &SessionId, last: Option<Seq>) -> Result<u64> {
    lower_summary(engine, session, last)?;
    let from = keys::commit_key(session, last.map_or(Seq(0), Seq::next));
    let (prefix, end) = (keys::session_prefix(keys::COMMIT, session), keys::commit_key(session, Seq(u64::MAX)));
    let mut kept = 0;
    while let Some((key, place)) = engine.last(&prefix, &end)? {
        if key < from {
            break;
        }
        let Some(first) = keys::seq_of(&key) else { break };
        let record = engine.value(&key, place)?.unwrap_or_default();
        let mut batch = Batch::default();
        let aside = write::quarantine_key(engine, session, first)?;
        write::add_small(&mut batch, &aside, &record);
        batch.remove(key);
        if first == Seq(0) {
            // It came with event 0 and goes with it.
            remove_beside(&mut batch, session);
        }
        engine.apply(batch)?;
        kept += record.len() as u64;
    }
    if last.is_none() {
        // Also where event 0 was lost before.
        let mut batch = Batch::default();
        remove_beside(&mut batch, session);
        engine.apply(batch)?;
    }
    Ok(kept)
}

/// The index must not speak of events that are gone; its other fields are put right by the caller.
fn lower_summary(engine: &Engine, session: &SessionId, last: Option<Seq>) -> Result<()> {
    match engine.summary(session) {
        Ok(Some(mut summary)) if Some(summary.last_seq) > last => {
            summary.last_seq = last.unwrap_or_default();
            write::summary(engine, &summary)
        }
        // A damaged entry is written anew by whoever truncates.
        Ok(_) | Err(Error::Corrupt { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
