//! Writing: commits, index entries, small values.

use super::{Writer, engine::Engine, frame::Batch, keys};
use crate::{
    fence::{self, Tail},
    ids::{Seq, SessionId},
    limits::TAILS_MAX,
    store::{Commit, Error, Result, SessionSummary, SmallKey},
};
use std::sync::Arc;

/// Writes a group: a frame for each commit, in one go. Gives back how many were written, and what was refused.
pub(super) fn group(engine: &Engine, writer: &mut Writer, group: &[Commit]) -> Result<(u64, Result<()>)> {
    let mut batches = Vec::with_capacity(group.len());
    let mut refused = Ok(());
    for commit in group {
        match one(engine, writer, commit) {
            Ok(batch) => {
                writer.tails.insert(commit.session.clone(), Some(Tail::of(commit)));
                batches.push(batch);
            }
            Err(error) => {
                refused = Err(error);
                break;
            }
        }
    }
    match engine.apply_all(&batches) {
        Ok(()) => Ok((batches.len() as u64, refused)),
        Err(error) => {
            // Nobody knows how much of it was written.
            writer.tails.clear();
            Err(error)
        }
    }
}

fn one(engine: &Engine, writer: &mut Writer, commit: &Commit) -> Result<Batch> {
    if writer.deleting.contains(&commit.session) {
        return Err(Error::Invalid(format!("session {} is being deleted", commit.session)));
    }
    fence::check_commit(tail(engine, writer, &commit.session)?, commit)?;
    let mut batch = Batch::default();
    batch.put_shared(keys::commit_key(&commit.session, commit.first), Arc::clone(&commit.bytes));
    if let Some(header) = &commit.header {
        let key = keys::session_key(keys::HEADER, &commit.session);
        let value = keys::seal(&key, &**header).map_err(|e| refused("header", &e))?;
        batch.put(key, value);
    }
    if let Some(summary) = &commit.summary {
        add_summary(&mut batch, summary)?;
    }
    Ok(batch)
}

fn tail(engine: &Engine, writer: &mut Writer, session: &SessionId) -> Result<Option<Tail>> {
    if let Some(tail) = writer.tails.get(session) {
        return Ok(*tail);
    }
    if writer.tails.len() >= TAILS_MAX {
        writer.tails.clear();
    }
    let tail = engine.tail(session)?;
    writer.tails.insert(session.clone(), tail);
    Ok(tail)
}

fn refused(what: &str, e: &bincode::Error) -> Error {
    Error::Invalid(format!("the {what} cannot be encoded: {e}"))
}

/// The index entry, and the marker that boot looks for, which always agrees with it.
pub(super) fn add_summary(batch: &mut Batch, summary: &SessionSummary) -> Result<()> {
    let key = keys::session_key(keys::INDEX, &summary.session);
    let value = keys::seal(&key, summary).map_err(|e| refused("index entry", &e))?;
    batch.put(key, value);
    let marker = keys::session_key(keys::ATTENTION, &summary.session);
    if summary.needs_attention() {
        batch.put(marker, Vec::new());
    } else {
        batch.remove(marker);
    }
    Ok(())
}

pub(super) fn summary(engine: &Engine, summary: &SessionSummary) -> Result<()> {
    let mut batch = Batch::default();
    add_summary(&mut batch, summary)?;
    engine.apply(batch)
}

pub(super) fn small(engine: &Engine, key: &SmallKey, value: &[u8]) -> Result<()> {
    let mut batch = Batch::default();
    add_small(&mut batch, key, value);
    engine.apply(batch)
}

pub(super) fn add_small(batch: &mut Batch, key: &SmallKey, value: &[u8]) {
    let key = keys::small_key(key);
    let value = keys::seal_bytes(&key, value);
    batch.put(key, value);
}

/// The name under which a record that is cut off is kept: the first that is free.
pub(super) fn quarantine_key(engine: &Engine, session: &SessionId, first: Seq) -> Result<SmallKey> {
    let key = |again| SmallKey {
        session: Some(session.clone()),
        kind: fence::QUARANTINE,
        name: fence::quarantine_name(first, again),
    };
    for again in 0..1_000 {
        let key = key(again);
        if engine.place(&keys::small_key(&key))?.is_none() {
            return Ok(key);
        }
    }
    Err(Error::Invalid(format!("the quarantine of session {session} is full")))
}
