use super::*;
use crate::contract::{self, commit, session, summary};

fn last(store: &MemoryStore) -> Option<u64> {
    store.last_seq(&session("a")).unwrap().map(|seq| seq.0)
}

fn write(store: &MemoryStore, first: u64) -> Result<()> {
    store.commit(&[commit(&session("a"), 1, first, 1)])
}

#[test]
fn passes_the_suite() {
    contract::suite(|| (MemoryStore::new(), ()));
}

#[test]
fn losing_power_forgets_what_was_not_synced() {
    let store = MemoryStore::new();
    write(&store, 0).unwrap();
    store.sync().unwrap();
    (1..9).for_each(|n| write(&store, n).unwrap());
    let mut kept = std::collections::BTreeSet::new();
    let mut next = store.crash(None);
    assert_eq!(last(&next), Some(0));
    assert!(matches!(write(&store, 1), Err(Error::Poisoned(_))), "the old process is gone");
    for seed in 0..64 {
        let from = last(&next).unwrap() + 1;
        (from..from + 4).for_each(|n| write(&next, n).unwrap());
        next = next.crash(Some(seed));
        kept.insert(last(&next).unwrap() + 1 - from);
    }
    assert_eq!(kept, [0, 1, 2, 3, 4].into(), "every prefix happens");
}

#[test]
fn a_killed_process_leaves_what_it_wrote_and_did_not_sync() {
    let store = MemoryStore::new();
    write(&store, 0).unwrap();
    let next = store.kill();
    assert_eq!((last(&next), next.durable_seq(&session("a"))), (Some(0), None));
    let after = next.crash(None);
    assert_eq!(last(&after), None);
}

/// BR-040: the first failed sync is final, and what it covered may be gone.
#[test]
fn a_failed_sync_is_final_until_reopened() {
    for lost in [false, true] {
        let store = MemoryStore::new();
        write(&store, 0).unwrap();
        store.fail_sync(2, Fault::Io);
        store.sync().unwrap();
        write(&store, 1).unwrap();
        assert!(matches!(store.sync(), Err(Error::Io(_))));
        assert!(matches!(store.sync(), Err(Error::Poisoned(_))));
        assert!(matches!(write(&store, 2), Err(Error::Poisoned(_))));
        if lost {
            store.lose_on_reopen(None);
        }
        let opened = store.reopen().unwrap();
        assert_eq!(opened.reports.is_empty(), !lost);
        let next = if lost { 1 } else { 2 };
        assert_eq!(last(&store), Some(next - 1));
        assert_eq!(store.durable_seq(&session("a")), Some(Seq(next - 1)), "what can be read is durable");
        write(&store, next).unwrap();
        store.sync().unwrap();
    }
}

#[test]
fn a_failing_group_may_be_written_in_part() {
    let store = MemoryStore::new();
    store.fail_commit(1, 2, Fault::Full);
    let group: Vec<_> = (0..4).map(|n| commit(&session("a"), 1, n, 1)).collect();
    assert!(matches!(store.commit(&group), Err(Error::Full(_))));
    assert_eq!(last(&store), Some(1));
}

/// BR-020.
#[test]
fn a_full_disk_stays_full_until_there_is_space() {
    let store = MemoryStore::new();
    store.set_full(true);
    assert!(matches!(write(&store, 0), Err(Error::Full(_))));
    store.reopen().unwrap();
    assert!(matches!(store.sync(), Err(Error::Full(_))));
    store.set_full(false);
    assert!(matches!(write(&store, 0), Err(Error::Poisoned(_))));
    store.reopen().unwrap();
    write(&store, 0).unwrap();
}

/// A sync covers what was written before it began, and nothing that came while it ran.
#[test]
fn a_slow_sync_covers_what_was_there_when_it_began() {
    let store = MemoryStore::new();
    let gate = store.gate_syncs();
    write(&store, 0).unwrap();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| store.sync());
        gate.wait_for_arrivals(1);
        assert_eq!(gate.waiting(), 1);
        write(&store, 1).unwrap();
        gate.let_one_pass();
        sync.join().unwrap().unwrap();
    });
    assert_eq!(store.durable_seq(&session("a")), Some(Seq(0)));
    gate.open();
    store.sync().unwrap();
    assert_eq!(store.durable_seq(&session("a")), Some(Seq(1)));
    assert_eq!(store.counts(), Counts { groups: 2, commits: 2, syncs: 2, writes: 2, ..store.counts() });
}

#[test]
fn other_writes_are_forgotten_too() {
    let store = MemoryStore::new();
    let key = SmallKey { session: None, kind: "k", name: "n".into() };
    store.put(&key, b"x").unwrap();
    store.put_summary(&summary(&session("a"), 0, 1)).unwrap();
    let next = store.crash(None);
    assert_eq!((next.get(&key), next.attention()), (Ok(None), Ok(Vec::new())));
}
