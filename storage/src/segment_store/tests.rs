use super::*;
use crate::contract::{self, commit, header, padded, session, summary};
use std::sync::Arc;

/// A store in a directory that goes away with it.
struct Temporary(SegmentStore, tempfile::TempDir);

fn temporary() -> Temporary {
    let dir = tempfile::tempdir().unwrap();
    let (store, opened) = SegmentStore::open(&dir.path().join("data")).unwrap();
    assert_eq!(opened, Opened::default());
    Temporary(store, dir)
}

fn again(Temporary(store, dir): Temporary) -> (SegmentStore, Opened, tempfile::TempDir) {
    store.close().unwrap();
    let (store, opened) = SegmentStore::open(&dir.path().join("data")).unwrap();
    (store, opened, dir)
}

#[test]
fn passes_the_suite() {
    contract::suite(|| {
        let Temporary(store, dir) = temporary();
        (store, dir)
    });
}

/// What keys, a header and an index entry look like; never changed, only added to.
#[test]
fn keys_and_values_keep_their_bytes() {
    let a = session("a");
    assert_eq!(keys::commit_key(&a, Seq(258)), b"ca\0\0\0\0\0\0\0\x01\x02");
    assert_eq!(keys::session_key(keys::INDEX, &a), b"ia");
    let small = SmallKey { session: Some(a.clone()), kind: "k", name: "n".into() };
    assert_eq!(keys::small_key(&small), b"sa\0k\0n\0");
    assert_eq!(keys::owner(b"ca\0\0\0"), Some("a"));
    let golden = include_str!("../../tests/golden/v1/sealed.hex");
    let sealed = [keys::seal(b"ha", &header(&a)).unwrap(), keys::seal(b"ia", &summary(&a, 7, 1)).unwrap()];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(sealed.each_ref().map(|bytes| hex(bytes)).join("\n"), golden.trim_end());
    assert_eq!(keys::unseal(b"ha", &sealed[0]), Ok(header(&a)));
    assert_eq!(keys::unseal::<SessionHeader>(b"hb", &sealed[0]), Err(keys::Broken::Damaged));
    for bit in 0..sealed[1].len() * 8 {
        let mut flipped = sealed[1].clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(keys::unseal::<SessionSummary>(b"ia", &flipped).is_err(), "bit {bit}");
    }
    let small = keys::seal_bytes(b"key", b"value");
    assert_eq!(keys::unseal_bytes(b"key", small.clone()), Some(b"value".to_vec()));
    assert_eq!(keys::unseal_bytes(b"other", small), None);
}

/// What was acknowledged stays so over openings, and the numbers go on.
#[test]
fn acknowledgements_survive() {
    let store = temporary();
    let a = session("a");
    store.0.commit(&[commit(&a, 1, 0, 1)]).unwrap();
    let (store, opened, _dir) = again(store);
    assert_eq!(opened, Opened::default());
    assert!(store.read(&a, Seq(0), 1, 1).unwrap()[0].acknowledged);
    store.commit(&[commit(&a, 1, 1, 1)]).unwrap();
    assert!(!store.read(&a, Seq(1), 1, 1).unwrap()[0].acknowledged);
}

/// A log that ends early looks whole; the mark beside it says that it is not.
#[test]
fn a_store_behind_its_mark_is_loud_once() {
    let store = temporary();
    let a = session("a");
    store.0.commit(&[commit(&a, 1, 0, 1)]).unwrap();
    store.0.sync().unwrap();
    lock(&store.0.home).as_ref().unwrap().acknowledge(5).unwrap();
    let Temporary(closed, dir) = store;
    drop(closed);
    let path = dir.path().join("data");
    let (store, opened) = SegmentStore::open(&path).unwrap();
    assert!(opened.behind_acknowledged);
    assert!(opened.reports[0].contains("the log ends at frame 1, but frame 5 was durable"), "{:?}", opened.reports);
    store.commit(&[commit(&a, 1, 1, 1)]).unwrap();
    store.close().unwrap();
    let (_, opened) = SegmentStore::open(&path).unwrap();
    assert_eq!(opened, Opened::default());
}

/// A flipped digit in `FORMAT` makes another store of it: that is refused, and the log is not written over.
#[test]
fn another_id_is_refused() {
    let dir = filled(3, 100, true);
    let path = dir.path().join("data/FORMAT");
    let text = std::fs::read_to_string(&path).unwrap();
    let digit = if text.trim_end().ends_with('0') { "1" } else { "0" };
    std::fs::write(&path, format!("{}{digit}\n", &text.trim_end()[..text.trim_end().len() - 1])).unwrap();
    let refused = SegmentStore::open(&dir.path().join("data")).unwrap_err();
    assert!(matches!(&refused, Error::Io(why) if why.contains("restore FORMAT")), "{refused:?}");
    std::fs::write(&path, text).unwrap();
    let (store, opened) = open_again(&dir);
    assert_eq!((events(&store, &session("s0")), opened), (3, Opened::default()));
}

/// A mark that cannot be read is said, and is no reason to refuse.
#[test]
fn a_damaged_mark_is_reported() {
    let Temporary(store, dir) = temporary();
    store.close().unwrap();
    let path = dir.path().join("data");
    std::fs::write(path.join("ACKED"), b"short").unwrap();
    let (_, opened) = SegmentStore::open(&path).unwrap();
    assert!(!opened.behind_acknowledged && opened.reports[0].contains("ACKED"));
}

/// Y-7: a deletion that a crash cut short is finished by the next opening.
#[test]
fn a_deletion_is_finished_after_a_crash() {
    let store = temporary();
    let a = session("a");
    let first = crate::store::Commit { header: Some(Arc::new(header(&a))), ..commit(&a, 1, 0, 1) };
    store.0.commit(&[first, padded(&a, 1, 1, 1, 100_000)]).unwrap();
    store.0.writing(|engine| sweep::begin_deletion(engine, &a)).unwrap();
    assert_eq!(store.0.header(&a), Ok(None));
    let (store, opened, _dir) = again(store);
    assert!(opened.reports[0].contains("finished"), "{:?}", opened.reports);
    assert_eq!(store.last_seq(&a), Ok(None));
    assert!(store.reading(Engine::deletions).unwrap().is_empty());
    assert_eq!(all_keys(&store), 0);
}

fn all_keys(store: &SegmentStore) -> usize {
    let mut count = 0;
    let scan = |engine: &Engine| {
        engine.scan(b"", b"", |_, _| {
            count += 1;
            Ok(true)
        })
    };
    store.reading(scan).unwrap();
    count
}

/// Events of a session that can be read.
fn events(store: &SegmentStore, id: &SessionId) -> u64 {
    let (mut next, mut page) = (0, store.read(id, Seq(0), 100, 1 << 20).unwrap());
    while !page.is_empty() {
        for stored in page {
            assert_eq!(stored.first, Seq(next));
            next += crate::codec::decode_commit(id, stored.first, &stored.bytes).unwrap().events.len() as u64;
        }
        page = store.read(id, Seq(next), 100, 1 << 20).unwrap();
    }
    next
}

/// A store with sessions `s0` to `s3` of `count` commits each, closed in order or not.
fn filled(count: u64, size: usize, in_order: bool) -> tempfile::TempDir {
    let Temporary(store, dir) = temporary();
    for n in 0..count {
        for s in 0..4 {
            let id = session(&format!("s{s}"));
            let header = (n == 0).then(|| Arc::new(header(&id)));
            let summary = (n % 3 == 0).then(|| Arc::new(summary(&id, n, 1)));
            store.commit(&[crate::store::Commit { header, summary, ..padded(&id, 1, n, 1, size) }]).unwrap();
        }
        store.sync().unwrap();
    }
    if in_order {
        store.close().unwrap();
    }
    dir
}

fn open_again(dir: &tempfile::TempDir) -> (SegmentStore, Opened) {
    SegmentStore::open(&dir.path().join("data")).unwrap()
}

/// Scenario of STORAGE: the index is thrown away, and what is built from the segments is the same.
#[test]
fn the_index_can_be_built_again() {
    for in_order in [true, false] {
        let dir = filled(40, 9_000, in_order);
        let index = dir.path().join("data/index");
        std::fs::remove_dir_all(&index).unwrap();
        let (store, opened) = open_again(&dir);
        assert!(!opened.behind_acknowledged, "{:?}", opened.reports);
        for s in 0..4 {
            assert_eq!(events(&store, &session(&format!("s{s}"))), 40);
        }
        assert_eq!(store.list(None, 10).unwrap().len(), 4);
    }
}

/// An index that lost a key without a word is not believed, whether it was closed in order or not.
#[test]
fn an_index_that_forgets_is_seen() {
    for in_order in [true, false] {
        let dir = filled(12, 100, true);
        let path = dir.path().join("data/index");
        let covered = index::read_covered(&Disk::Real, &path).unwrap();
        let raw = index::Index::open(&Disk::Real, &path, covered.generation).unwrap();
        assert!(raw.set(&keys::commit_key(&session("s2"), Seq(11)), None).unwrap().is_some());
        raw.sync().unwrap();
        raw.drop_quietly();
        if !in_order {
            index::write_covered(&Disk::Real, &path, &index::Covered { clean: None, ..covered }).unwrap();
        }
        let (store, opened) = open_again(&dir);
        assert!(opened.reports[0].contains("built again"), "{:?}", opened.reports);
        assert_eq!(events(&store, &session("s2")), 12);
    }
}

/// Deleting gives the space back; what stays is whole, also for an index that is built again.
#[test]
fn deletion_gives_space_back() {
    let dir = filled(300, 20_000, true);
    let (store, _) = open_again(&dir);
    let full = store.stats().disk_bytes;
    store.delete(&session("s0")).unwrap();
    store.delete(&session("s2")).unwrap();
    store.sync().unwrap();
    for _ in 0..3 {
        let wait = |engine: &Engine| {
            engine.settle();
            Ok(())
        };
        store.reading(wait).unwrap();
    }
    let live = 2 * 300 * 20_000;
    let left = store.stats().disk_bytes - read(&store);
    assert!(left < full / 2 + full / 4, "{full} bytes before, {left} after, {live} live");
    for round in 0..2 {
        let check = |store: &SegmentStore| {
            assert_eq!(events(store, &session("s1")), 300, "round {round}");
            assert_eq!(events(store, &session("s3")), 300);
            assert_eq!(events(store, &session("s0")), 0);
            assert_eq!(store.list(None, 10).unwrap().len(), 2);
        };
        if round == 0 {
            check(&store);
            store.close().unwrap();
            std::fs::remove_dir_all(dir.path().join("data/index")).unwrap();
        } else {
            check(&open_again(&dir).0);
        }
    }
}

/// What of the disk is one segment ahead and one in use.
fn read(store: &SegmentStore) -> u64 {
    store.reading(|engine| Ok(engine.active_bytes())).unwrap()
}

/// A torn frame behind the last sync ends the log, and nothing behind the cut comes back later.
#[test]
fn a_torn_end_is_cut() {
    let dir = filled(3, 100, false);
    let segment = dir.path().join("data/segments/0000000001.seg");
    let a = session("s0");
    {
        let (store, _) = open_again(&dir);
        // Not synced: a power loss may take the first of the two and leave the second.
        store.commit(&[padded(&a, 1, 3, 1, 100), padded(&a, 1, 4, 1, 100)]).unwrap();
    }
    let mut bytes = std::fs::read(&segment).unwrap();
    let store = std::fs::read_to_string(dir.path().join("data/FORMAT")).unwrap();
    let id = u128::from_str_radix(store.split_whitespace().nth(2).unwrap(), 16).unwrap().to_be_bytes();
    let seed = frame::seed(&id, 1);
    let (mut at, mut found) = (segment::HEADER_BYTES, Vec::new());
    while let Some((start, frame)) = frame::next(&bytes, at, seed) {
        found.push(start);
        at = start + frame.bytes;
    }
    let torn = found[found.len() - 2];
    bytes[torn + 60] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    // The mark is not synced: a power loss takes it back as well. It knows of the sync before.
    let (store, opened) = open_again(&dir);
    assert!(!opened.behind_acknowledged, "{:?}", opened.reports);
    assert_eq!(events(&store, &a), 3);
    store.commit(&[commit(&a, 1, 3, 1)]).unwrap();
    store.sync().unwrap();
    drop(store);
    let (store, opened) = open_again(&dir);
    assert_eq!((events(&store, &a), opened.behind_acknowledged), (4, false));
}

/// A frame that was durable and is damaged is said with its session and file; the others are whole.
#[test]
fn damage_is_loud_and_local() {
    let dir = filled(30, 2_000, false);
    let segment = dir.path().join("data/segments/0000000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let half = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    bytes[half] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let (store, opened) = open_again(&dir);
    assert!(opened.behind_acknowledged);
    assert!(opened.reports.iter().any(|report| report.contains("0000000001.seg")), "{:?}", opened.reports);
    let whole = (0..4).filter(|s| {
        let id = session(&format!("s{s}"));
        let page = store.read(&id, Seq(0), 100, 1 << 20).unwrap();
        page.iter().zip(0..).all(|(stored, n)| {
            stored.first == Seq(n) && crate::codec::decode_commit(&id, stored.first, &stored.bytes).is_ok()
        }) && page.len() == 30
    });
    assert_eq!(whole.count(), 3);
}
