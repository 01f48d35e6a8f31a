//! What every store must do, as a suite that each of them passes (feature `testing`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a suite of assertions for tests")]

use crate::{
    codec::{decode_commit, encode_commit},
    event::{Event, FORMAT_VERSION, SessionHeader, TurnStart},
    fence::QUARANTINE,
    ids::{Epoch, Seq, SessionId, Turn},
    limits::SWEEP_KEYS,
    message::Usage,
    store::{Commit, Error, SessionSummary, SmallKey, Store, Stored},
};

/// A value that is large for any engine's idea of a page.
const LARGE_BYTES: usize = 48 * 1024;
use std::{collections::BTreeMap, sync::Arc};

/// Runs every test of the suite, each on a fresh store. What comes with a store lives as long as it.
pub fn suite<S: Store, G>(make: impl Fn() -> (S, G)) {
    for test in [
        commits_come_back_in_order,
        commits_are_fenced,
        strange_commits_are_refused,
        a_group_stops_at_its_first_refusal,
        reads_have_bounds,
        lists_have_pages,
        attention_follows_the_summary,
        headers_and_summaries_come_with_the_commit,
        small_values_are_kept,
        truncation_keeps_what_it_cuts,
        deletion_takes_all_and_only_that,
        large_commits_are_whole,
        reopening_keeps_what_was_synced,
        many_threads_may_call,
        closing_is_final,
    ] {
        let (store, _guard) = make();
        test(&store);
    }
}

/// A session's id.
pub fn session(name: &str) -> SessionId {
    SessionId::trusted(name)
}

/// A commit of `count` small events.
pub fn commit(session: &SessionId, epoch: u64, first: u64, count: u32) -> Commit {
    padded(session, epoch, first, count, 0)
}

/// A commit of `count` events, each with a text of `len` bytes.
pub fn padded(session: &SessionId, epoch: u64, first: u64, count: u32, len: usize) -> Commit {
    let event = |n: u64| {
        let body = match len {
            0 => TurnStart { turn: Turn(n as u32 + 1) }.into(),
            _ => crate::event::RetryStarted { retry_id: crate::ids::RetryId::trusted("x".repeat(len)) }.into(),
        };
        Arc::new(Event { seq: Seq(n), time_ms: n as i64, body })
    };
    let events: Vec<_> = (first..first + u64::from(count)).map(event).collect();
    let bytes = encode_commit(session, Epoch(epoch), Seq(first), None, &events).unwrap();
    Commit {
        session: session.clone(),
        epoch: Epoch(epoch),
        first: Seq(first),
        count,
        bytes: bytes.into(),
        header: None,
        summary: None,
    }
}

/// The header of a session.
pub fn header(session: &SessionId) -> SessionHeader {
    SessionHeader {
        version: FORMAT_VERSION,
        session_id: session.clone(),
        agent: "a".to_owned(),
        created_at_ms: 1,
        cwd: None,
        parent: None,
        seed_length: None,
        origin: None,
        delegation_depth: None,
        preset: None,
        labels: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
    }
}

/// An index entry; `pending` items wait.
pub fn summary(session: &SessionId, last_seq: u64, pending: u32) -> SessionSummary {
    SessionSummary {
        session: session.clone(),
        agent: "a".to_owned(),
        created_at_ms: 1,
        updated_at_ms: 2,
        last_seq: Seq(last_seq),
        open_turn: None,
        turns: 0,
        last_reason: None,
        pending_next_turn: pending,
        pending_next_step: 0,
        usage: Usage::default(),
        title: None,
        labels: BTreeMap::new(),
    }
}

fn with_index(mut commit: Commit, pending: u32) -> Commit {
    commit.header = (commit.first == Seq(0)).then(|| Arc::new(header(&commit.session)));
    commit.summary = Some(Arc::new(summary(&commit.session, commit.last().0, pending)));
    commit
}

fn firsts(stored: &[Stored]) -> Vec<u64> {
    stored.iter().map(|stored| stored.first.0).collect()
}

fn all(store: &dyn Store, session: &SessionId) -> Vec<Stored> {
    store.read(session, Seq(0), 1_000, 1 << 26).unwrap()
}

fn commits_come_back_in_order(store: &dyn Store) {
    let (a, b) = (session("a"), session("a.b"));
    assert_eq!(store.last_seq(&a), Ok(None));
    let group = [commit(&a, 1, 0, 2), commit(&b, 1, 0, 1), commit(&a, 1, 2, 3), commit(&b, 1, 1, 300)];
    store.commit(&group).unwrap();
    store.sync().unwrap();
    store.commit(&[commit(&b, 1, 301, 1)]).unwrap();
    assert_eq!((store.last_seq(&a), store.last_seq(&b)), (Ok(Some(Seq(4))), Ok(Some(Seq(301)))));
    assert_eq!(firsts(&all(store, &a)), [0, 2]);
    let stored = all(store, &b);
    assert_eq!(firsts(&stored), [0, 1, 301]);
    assert_eq!(stored.iter().map(|s| s.acknowledged).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(stored[1].bytes[..], group[3].bytes[..]);
    assert_eq!(decode_commit(&b, Seq(1), &stored[1].bytes).unwrap().events.len(), 300);
}

/// W-2.
fn commits_are_fenced(store: &dyn Store) {
    let a = session("a");
    let fenced =
        |expected, found| Err(Error::Fenced { session: a.clone(), expected: Seq(expected), found: Seq(found) });
    assert_eq!(store.commit(&[commit(&a, 1, 1, 1)]), fenced(1, 0));
    store.commit(&[commit(&a, 2, 0, 2)]).unwrap();
    assert_eq!(store.commit(&[commit(&a, 2, 0, 1)]), fenced(0, 2));
    assert_eq!(store.commit(&[commit(&a, 2, 3, 1)]), fenced(3, 2));
    assert_eq!(store.commit(&[commit(&a, 1, 2, 1)]), fenced(2, 2), "an old epoch");
    store.commit(&[commit(&a, 3, 2, 1)]).unwrap();
    store.sync().unwrap();
    assert_eq!(store.last_seq(&a), Ok(Some(Seq(2))));
}

fn strange_commits_are_refused(store: &dyn Store) {
    let a = session("a");
    let refuses = |commit: Commit| assert!(matches!(store.commit(&[commit]), Err(Error::Invalid(_))));
    refuses(Commit { bytes: vec![1, 2, 3].into(), ..commit(&a, 1, 0, 1) });
    refuses(Commit { count: 2, ..commit(&a, 1, 0, 1) });
    refuses(Commit { epoch: Epoch(9), ..commit(&a, 1, 0, 1) });
    refuses(Commit { session: session("a\0b"), ..commit(&a, 1, 0, 1) });
    refuses(Commit { session: session(""), ..commit(&a, 1, 0, 1) });
    refuses(Commit { header: Some(Arc::new(header(&session("b")))), ..commit(&a, 1, 0, 1) });
    refuses(Commit { summary: Some(Arc::new(summary(&session("b"), 0, 0))), ..commit(&a, 1, 0, 1) });
    let small = |kind, name: &str| store.put(&SmallKey { session: None, kind, name: name.to_owned() }, b"x");
    assert!(matches!(small("", "n"), Err(Error::Invalid(_))));
    assert!(matches!(small("k", "a\0b"), Err(Error::Invalid(_))));
    assert_eq!(store.last_seq(&a), Ok(None));
    store.commit(&[commit(&a, 1, 0, 1)]).unwrap();
}

fn a_group_stops_at_its_first_refusal(store: &dyn Store) {
    let (a, b) = (session("a"), session("b"));
    let group = [commit(&a, 1, 0, 1), commit(&b, 1, 5, 1), commit(&a, 1, 1, 1)];
    assert!(matches!(store.commit(&group), Err(Error::Fenced { .. })));
    assert_eq!((store.last_seq(&a), store.last_seq(&b)), (Ok(Some(Seq(0))), Ok(None)));
}

fn reads_have_bounds(store: &dyn Store) {
    let a = session("a");
    for n in 0..10 {
        store.commit(&[commit(&a, 1, n * 3, 3)]).unwrap();
    }
    let read = |from, events, bytes| firsts(&store.read(&a, Seq(from), events, bytes).unwrap());
    assert_eq!(read(0, 1_000, 1 << 20).len(), 10);
    assert_eq!(read(4, 6, 1 << 20), [3, 6]);
    assert_eq!(read(3, 7, 1 << 20), [3, 6]);
    assert_eq!(read(29, 100, 1 << 20), [27]);
    assert_eq!(read(30, 100, 1 << 20), [0; 0]);
    assert_eq!(read(8, 0, 0), [6], "at least one");
    assert_eq!(read(0, 100, 2 * commit(&a, 1, 0, 3).bytes.len()), [0, 3]);
    assert_eq!(store.read(&session("b"), Seq(0), 10, 10), Ok(Vec::new()));
}

fn lists_have_pages(store: &dyn Store) {
    let ids: Vec<_> = ["a", "a-b", "a.b", "b", "c:1"].map(session).to_vec();
    for id in ids.iter().rev() {
        store.commit(&[with_index(commit(id, 1, 0, 1), 0)]).unwrap();
    }
    let page = |after: Option<&SessionId>, limit| {
        store.list(after, limit).unwrap().into_iter().map(|row| row.session).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 100), ids);
    assert_eq!(page(None, 2), ids[..2]);
    assert_eq!(page(Some(&ids[1]), 2), ids[2..4]);
    assert_eq!(page(Some(&session("aa")), 9), ids[3..]);
    assert_eq!(page(Some(&ids[4]), 9), []);
    assert_eq!(page(None, 0), []);
}

fn attention_follows_the_summary(store: &dyn Store) {
    let (a, b) = (session("a"), session("b"));
    store.commit(&[with_index(commit(&a, 1, 0, 1), 1), with_index(commit(&b, 1, 0, 1), 0)]).unwrap();
    assert_eq!(store.attention().unwrap(), std::slice::from_ref(&a));
    store.commit(&[with_index(commit(&a, 1, 1, 1), 0), with_index(commit(&b, 1, 1, 1), 2)]).unwrap();
    assert_eq!(store.attention().unwrap(), std::slice::from_ref(&b));
    store.put_summary(&SessionSummary { open_turn: Some(Turn(1)), ..summary(&a, 1, 0) }).unwrap();
    assert_eq!(store.attention().unwrap(), [a, b]);
}

fn headers_and_summaries_come_with_the_commit(store: &dyn Store) {
    let a = session("a");
    assert_eq!((store.header(&a), store.summary(&a)), (Ok(None), Ok(None)));
    store.commit(&[with_index(commit(&a, 1, 0, 2), 0)]).unwrap();
    assert_eq!(store.header(&a), Ok(Some(header(&a))));
    assert_eq!(store.summary(&a), Ok(Some(summary(&a, 1, 0))));
    store.commit(&[commit(&a, 1, 2, 1)]).unwrap();
    assert_eq!(store.header(&a), Ok(Some(header(&a))));
    assert_eq!(store.summary(&a), Ok(Some(summary(&a, 1, 0))), "it says what was true at its last_seq");
}

/// BR-034: any bytes.
fn small_values_are_kept(store: &dyn Store) {
    let key = |owner: Option<&SessionId>, name: &str| SmallKey {
        session: owner.cloned(),
        kind: "spill",
        name: name.to_owned(),
    };
    let a = session("a");
    let large: Vec<u8> = (0..3 * LARGE_BYTES).map(|n| (n % 251) as u8).collect();
    assert_eq!(store.get(&key(None, "n")), Ok(None));
    for value in [&b""[..], b"\0\xff", &large, &large[..LARGE_BYTES], b"short again"] {
        store.put(&key(None, "n"), value).unwrap();
        store.put(&key(Some(&a), "n"), value).unwrap();
        store.put(&key(None, "n.1"), b"other").unwrap();
        assert_eq!(store.get(&key(None, "n")).unwrap().as_deref(), Some(value));
        assert_eq!(store.get(&key(Some(&a), "n")).unwrap().as_deref(), Some(value));
        assert_eq!(store.get(&key(None, "n.1")).unwrap().as_deref(), Some(&b"other"[..]));
    }
}

/// B-1: what is cut stays readable, and the log goes on behind the cut.
fn truncation_keeps_what_it_cuts(store: &dyn Store) {
    let a = session("a");
    let large = padded(&a, 1, 6, 3, LARGE_BYTES);
    store.commit(&[with_index(commit(&a, 1, 0, 3), 0), commit(&a, 1, 3, 3)]).unwrap();
    store.commit(&[with_index(large.clone(), 0)]).unwrap();
    let kept = store.truncate(&a, Some(Seq(2))).unwrap();
    assert_eq!(kept, (commit(&a, 1, 3, 3).bytes.len() + large.bytes.len()) as u64);
    assert_eq!((store.last_seq(&a), firsts(&all(store, &a))), (Ok(Some(Seq(2))), vec![0]));
    assert_eq!(store.summary(&a).unwrap().unwrap().last_seq, Seq(2));
    let aside = |name: &str| {
        let key = SmallKey { session: Some(a.clone()), kind: QUARANTINE, name: name.to_owned() };
        store.get(&key).unwrap()
    };
    assert_eq!(aside("00000000000000000006").as_deref(), Some(&*large.bytes));
    store.commit(&[commit(&a, 1, 3, 1)]).unwrap();
    store.truncate(&a, Some(Seq(2))).unwrap();
    assert_eq!(aside("00000000000000000003.1").as_deref(), Some(&*commit(&a, 1, 3, 1).bytes));
    assert_eq!(aside("00000000000000000003").as_deref(), Some(&*commit(&a, 1, 3, 3).bytes));
    assert_eq!(store.truncate(&a, Some(Seq(2))), Ok(0));
    store.truncate(&a, None).unwrap();
    assert_eq!((store.last_seq(&a), store.header(&a), store.summary(&a)), (Ok(None), Ok(None), Ok(None)));
    store.commit(&[commit(&a, 1, 0, 1)]).unwrap();
}

/// Y-7.
fn deletion_takes_all_and_only_that(store: &dyn Store) {
    let (a, b) = (session("a"), session("ab"));
    let spill = |id: &SessionId| SmallKey { session: Some(id.clone()), kind: "spill", name: "n".to_owned() };
    for id in [&a, &b] {
        store.commit(&[with_index(commit(id, 7, 0, 1), 1)]).unwrap();
        for n in 1..=2 * SWEEP_KEYS as u64 {
            store.commit(&[commit(id, 7, n, 1)]).unwrap();
        }
        store.commit(&[padded(id, 7, 2 * SWEEP_KEYS as u64 + 1, 2, LARGE_BYTES)]).unwrap();
        store.put(&spill(id), b"x").unwrap();
    }
    store.delete(&a).unwrap();
    assert_eq!((store.header(&a), store.summary(&a), store.last_seq(&a)), (Ok(None), Ok(None), Ok(None)));
    assert_eq!((all(store, &a), store.get(&spill(&a))), (Vec::new(), Ok(None)));
    assert_eq!(store.attention().unwrap(), std::slice::from_ref(&b));
    assert_eq!(all(store, &b).len(), 2 * SWEEP_KEYS + 2);
    assert_eq!(store.get(&spill(&b)).unwrap().as_deref(), Some(&b"x"[..]));
    store.delete(&session("never")).unwrap();
    store.commit(&[with_index(commit(&a, 1, 0, 1), 0)]).unwrap();
    assert_eq!(store.last_seq(&a), Ok(Some(Seq(0))));
}

fn large_commits_are_whole(store: &dyn Store) {
    let a = session("a");
    for (next, len) in (0..).zip([LARGE_BYTES - 100, LARGE_BYTES, LARGE_BYTES + 1, 8 << 20]) {
        let large = padded(&a, 1, next, 1, len);
        store.commit(std::slice::from_ref(&large)).unwrap();
        let stored = store.read(&a, Seq(next), 1, usize::MAX).unwrap();
        assert_eq!(firsts(&stored), [next]);
        assert_eq!(stored[0].bytes[..], large.bytes[..]);
    }
    store.sync().unwrap();
    let found = all(store, &a);
    assert_eq!(firsts(&found), [0, 1, 2, 3]);
}

fn reopening_keeps_what_was_synced(store: &dyn Store) {
    let a = session("a");
    store.commit(&[with_index(commit(&a, 1, 0, 2), 1), padded(&a, 1, 2, 2, LARGE_BYTES)]).unwrap();
    store.sync().unwrap();
    let before = all(store, &a);
    let opened = store.reopen().unwrap();
    assert!(!opened.behind_acknowledged);
    assert_eq!(all(store, &a), before);
    assert_eq!(store.header(&a), Ok(Some(header(&a))));
    store.commit(&[commit(&a, 1, 4, 1)]).unwrap();
    store.sync().unwrap();
    assert_eq!(store.last_seq(&a), Ok(Some(Seq(4))));
}

fn many_threads_may_call(store: &dyn Store) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let id = session(&format!("s{thread}"));
                for n in 0..50 {
                    store.commit(&[commit(&id, 1, n, 1)]).unwrap();
                    if n % 8 == 0 {
                        store.sync().unwrap();
                    }
                    assert_eq!(all(store, &id).len() as u64, n + 1);
                }
            });
        }
    });
    assert!(store.stats().commits >= 200);
}

fn closing_is_final(store: &dyn Store) {
    let a = session("a");
    store.commit(&[commit(&a, 1, 0, 1)]).unwrap();
    store.close().unwrap();
    assert!(matches!(store.commit(&[commit(&a, 1, 1, 1)]), Err(Error::Poisoned(_))));
    assert!(matches!(store.sync(), Err(Error::Poisoned(_))));
    assert!(matches!(store.reopen(), Err(Error::Poisoned(_))));
    assert!(matches!(store.last_seq(&a), Err(Error::Poisoned(_))));
}
