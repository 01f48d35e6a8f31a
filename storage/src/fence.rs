//! What every store checks before it writes a commit (W-2).

use crate::{
    codec,
    ids::{Epoch, Seq, SessionId, check_id},
    limits::COMMIT_MAX_BYTES,
    store::{Commit, Error, Result, SmallKey},
};

/// Where a log ends, and who wrote there last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) last: Seq,
    pub(crate) epoch: Epoch,
}

impl Tail {
    pub(crate) fn of(commit: &Commit) -> Self {
        Self { last: commit.last(), epoch: commit.epoch }
    }

    /// The tail that a stored record makes. One that cannot be read still holds its place.
    pub(crate) fn of_record(first: Seq, bytes: &[u8]) -> Self {
        match codec::peek(bytes) {
            Some(head) if head.first == first => Self { last: head.last(), epoch: head.epoch },
            Some(_) | None => Self { last: first, epoch: Epoch(0) },
        }
    }
}

/// Refuses a log that ends before the last event that is known to have been written: damage took its end without a
/// trace. A log that goes on behind it is one whose writer died before it could note so.
pub(crate) fn check_tail(session: &SessionId, tail: Option<Tail>, noted: Option<Seq>) -> Result<()> {
    match noted {
        Some(noted) if tail.is_none_or(|tail| tail.last < noted) => Err(Error::Corrupt {
            session: session.clone(),
            seq: tail.map_or(Seq(0), |tail| tail.last.next()),
            why: format!("the log ends here, but it once held event {noted}"),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a commit that is none, that does not go on at the end of the log, or whose writer was replaced.
pub(crate) fn check_commit(tail: Option<Tail>, commit: &Commit) -> Result<()> {
    check_id(commit.session.as_str()).map_err(|e| Error::Invalid(e.to_string()))?;
    if commit.bytes.len() > COMMIT_MAX_BYTES {
        let len = commit.bytes.len();
        return Err(Error::Invalid(format!("a commit of {len} bytes, at most {COMMIT_MAX_BYTES} are allowed")));
    }
    let head = codec::Head { epoch: commit.epoch, first: commit.first, count: commit.count };
    if codec::peek(&commit.bytes) != Some(head) {
        return Err(Error::Invalid("the record and the commit around it disagree".to_owned()));
    }
    if commit.header.as_ref().is_some_and(|header| header.session_id != commit.session)
        || commit.summary.as_ref().is_some_and(|summary| summary.session != commit.session)
    {
        return Err(Error::Invalid("the header or the summary is of another session".to_owned()));
    }
    let found = tail.map_or(Seq(0), |tail| tail.last.next());
    if commit.first != found || tail.is_some_and(|tail| commit.epoch < tail.epoch) {
        return Err(Error::Fenced { session: commit.session.clone(), expected: commit.first, found });
    }
    Ok(())
}

/// Refuses keys of small values that could be mistaken for others.
pub(crate) fn check_small(key: &SmallKey, len: usize) -> Result<()> {
    let bad = |why: String| Err(Error::Invalid(why));
    if let Some(session) = &key.session {
        check_id(session.as_str()).map_err(|e| Error::Invalid(e.to_string()))?;
    }
    if key.kind.is_empty() || key.kind.len() > 64 || key.kind.contains('\0') {
        return bad(format!("{:?} is no kind of small value", key.kind));
    }
    if key.name.is_empty() || key.name.len() > 512 || key.name.contains('\0') {
        return bad("the name of a small value has 1 to 512 bytes and no NUL".to_owned());
    }
    if len > COMMIT_MAX_BYTES {
        return bad(format!("a value of {len} bytes, at most {COMMIT_MAX_BYTES} are allowed"));
    }
    Ok(())
}

/// Name of a quarantined record; `again` counts the ones that were cut at the same place before.
pub(crate) fn quarantine_name(first: Seq, again: u32) -> String {
    if again == 0 { format!("{:020}", first.0) } else { format!("{:020}.{again}", first.0) }
}

/// The kind under which [`crate::store::Store::truncate`] keeps what it cuts.
pub(crate) const QUARANTINE: &str = "quarantine";
