//! Keys, and values that are not commits. They are on disk: kinds and layouts are never given another meaning.
//!
//! A key is a kind byte and what follows; session ids never hold a zero byte, which therefore ends them.

use crate::{
    codec,
    ids::{Seq, SessionId},
    store::SmallKey,
};
use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

/// Session that waits for attention at boot. The value is empty.
pub(super) const ATTENTION: u8 = b'a';
/// Commit, by session and seq.
pub(super) const COMMIT: u8 = b'c';
/// Session whose deletion is under way. The value is empty.
pub(super) const DELETING: u8 = b'd';
/// Session header.
pub(super) const HEADER: u8 = b'h';
/// Index entry of a session.
pub(super) const INDEX: u8 = b'i';
/// Small value, by session, kind and name.
pub(super) const SMALL: u8 = b's';
/// `kind`, session.
pub(super) fn session_key(kind: u8, session: &SessionId) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend(session.as_str().as_bytes());
    key
}

/// What every key of `kind` of the session begins with, when more follows the session.
pub(super) fn session_prefix(kind: u8, session: &SessionId) -> Vec<u8> {
    let mut key = session_key(kind, session);
    key.push(0);
    key
}

/// The session of a [`session_key`].
pub(super) fn session_of(key: &[u8]) -> Option<SessionId> {
    std::str::from_utf8(key.get(1..)?).ok().map(SessionId::trusted)
}

pub(super) fn commit_key(session: &SessionId, first: Seq) -> Vec<u8> {
    let mut key = session_prefix(COMMIT, session);
    key.extend(first.0.to_be_bytes());
    key
}

/// The seq of a commit's key.
pub(super) fn seq_of(key: &[u8]) -> Option<Seq> {
    key.last_chunk().map(|seq| Seq(u64::from_be_bytes(*seq)))
}

/// The key of a small value.
pub(super) fn small_key(key: &SmallKey) -> Vec<u8> {
    let mut out = vec![SMALL];
    for part in [key.session.as_ref().map_or("", |session| session.as_str()), key.kind, &key.name] {
        out.extend(part.as_bytes());
        out.push(0);
    }
    out
}

/// Whose a key is, for people.
pub(super) fn owner(key: &[u8]) -> Option<&str> {
    let rest = key.get(1..)?;
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).ok().filter(|session| !session.is_empty())
}

/// Version of sealed values.
const SEAL_VERSION: u8 = 1;

/// Why a sealed value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// A newer build wrote it.
    TooNew(u8),
    /// It is not what was written.
    Damaged,
}

/// A header or an index entry with a version, and a checksum over it and its key.
pub(super) fn seal<T: Serialize>(key: &[u8], value: &T) -> bincode::Result<Vec<u8>> {
    let mut out = vec![SEAL_VERSION, 0, 0, 0, 0];
    codec::options().serialize_into(&mut out, value)?;
    let crc = seal_sum(key, &out);
    out[1..5].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn seal_sum(key: &[u8], sealed: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &sealed[..1]);
    crc32c::crc32c_append(crc, &sealed[5..])
}

/// Reads what [`seal`] wrote under the same key.
pub(super) fn unseal<T: DeserializeOwned>(key: &[u8], sealed: &[u8]) -> Result<T, Broken> {
    if sealed.len() < 5 || seal_sum(key, sealed).to_le_bytes() != sealed[1..5] {
        return Err(Broken::Damaged);
    }
    if sealed[0] > SEAL_VERSION {
        return Err(Broken::TooNew(sealed[0]));
    }
    codec::options().deserialize(&sealed[5..]).map_err(|_| Broken::Damaged)
}

/// Bytes with a checksum over them and their key.
pub(super) fn seal_bytes(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + bytes.len());
    out.extend(crc32c::crc32c_append(crc32c::crc32c(key), bytes).to_le_bytes());
    out.extend(bytes);
    out
}

/// Reads what [`seal_bytes`] wrote under the same key; `None` when it is damaged.
pub(super) fn unseal_bytes(key: &[u8], mut sealed: Vec<u8>) -> Option<Vec<u8>> {
    let crc = sealed.first_chunk::<4>().copied()?;
    sealed.drain(..4);
    (crc32c::crc32c_append(crc32c::crc32c(key), &sealed).to_le_bytes() == crc).then_some(sealed)
}
