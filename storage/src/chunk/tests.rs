use super::*;
use crate::{assemble::tests::any_chunk, codec};
use bincode::Options;
use proptest::prelude::*;

fn text(index: u64, text: &str) -> Chunk {
    Chunk::TextDelta { index, text: text.into() }
}

fn record(entries: &[(u32, Chunk)]) -> StreamRecord {
    let mut record = StreamRecord::default();
    entries.iter().for_each(|(t_ms, chunk)| record.push(*t_ms, chunk.clone()));
    record
}

/// On disk and back.
fn stored(record: &StreamRecord) -> StreamRecord {
    let bytes = codec::options().serialize(record).unwrap();
    codec::options().deserialize(&bytes).unwrap()
}

/// Exported and back.
fn exported(record: &StreamRecord) -> StreamRecord {
    serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap()
}

/// Scenario 133: boundaries, order and times.
#[test]
fn a_record_round_trips() {
    let chunks = [
        (3, Chunk::BlockStart { index: 0, kind: BlockKind::Text }),
        (3, text(0, "é")),
        (3, text(0, "")),
        (9, text(0, "🦀🦀")),
        (9, Chunk::ReasoningDelta { index: 0, text: "x".into() }),
        (10, text(1, "y")),
        (4_000_000_000, text(1, "z")),
        (4_000_000_000, Chunk::BlockEnd { index: 0 }),
        (4_000_000_001, Chunk::Finish { finish: Finish::Error { failure: Failure::new("X", "y") } }),
    ];
    let record = record(&chunks);
    for record in [&record, &stored(&record), &exported(&record)] {
        let back: Vec<_> = record.entries().map(|Entry(t_ms, entry)| (t_ms, entry.chunk, entry.merged)).collect();
        let expected: Vec<_> = chunks.iter().map(|(t_ms, chunk)| (*t_ms, chunk.clone(), false)).collect();
        assert_eq!(back, expected);
    }
    assert_eq!((stored(&record), exported(&record)), (record.clone(), record));
}

/// A clock that goes back does not make time go back.
#[test]
fn times_never_fall() {
    let record = record(&[(5, text(0, "a")), (3, text(0, "b")), (6, text(0, "c"))]);
    assert_eq!(record.entries().map(|Entry(t_ms, _)| t_ms).collect::<Vec<_>>(), [5, 5, 6]);
}

/// Scenario 134: over the cap deltas are merged, marked, and none is lost.
#[test]
fn over_the_cap_deltas_are_merged() {
    let mut record = StreamRecord::default();
    record.push(1, text(0, &"x".repeat(STREAM_RECORD_MAX_BYTES)));
    for t_ms in 2..10_000 {
        record.push(t_ms, text(0, "ab"));
    }
    record.push(10_000, text(1, "c"));
    record.push(10_001, Chunk::BlockEnd { index: 1 });
    record.push(10_002, text(0, "d"));
    record.push(10_003, text(0, "e"));
    let tail: Vec<_> = record.entries().skip(1).collect();
    let merged = |t_ms, index, all: &str| Entry(t_ms, EntryChunk { chunk: text(index, all), merged: true });
    let end = Entry(10_001, EntryChunk { chunk: Chunk::BlockEnd { index: 1 }, merged: false });
    let middle = "ab".repeat(9_998);
    assert_eq!(tail, [merged(2, 0, &middle), merged(10_000, 1, "c"), end, merged(10_002, 0, "de")]);
    assert!(record.bytes() < STREAM_RECORD_MAX_BYTES + 30_000);
    assert_eq!((stored(&record), exported(&record)), (record.clone(), record));
}

/// The cap counts opaque state and the names of calls too.
#[test]
fn everything_counts_against_the_cap() {
    let mut record = StreamRecord::default();
    let data = "x".repeat(STREAM_RECORD_MAX_BYTES);
    record.push(0, Chunk::ReplayState { index: 0, provider: "p".into(), data });
    record.push(1, text(0, "a"));
    record.push(2, text(0, "b"));
    assert_eq!(record.entries().count(), 2);
}

/// A stored record whose cuts do not give its text back is damage, not a shorter text.
#[test]
fn cuts_that_do_not_fit_are_refused() {
    let cases: [(&[(u32, u32)], bool); 6] = [
        (&[(0, 1)], false),
        (&[(0, 2), (0, 2)], false),
        (&[], false),
        (&[(0, 1), (0, 2)], true),
        (&[(0, 1), (0, u32::MAX)], false),
        (&[(0, 4)], false),
    ];
    for (cuts, merged) in cases {
        let run = Run::Deltas { index: 0, what: Delta::Text, text: "aé".into(), cuts: cuts.to_vec(), merged };
        let bytes = codec::options().serialize(&vec![run]).unwrap();
        assert!(codec::options().deserialize::<StreamRecord>(&bytes).is_err(), "{cuts:?}");
    }
}

proptest! {
    /// Scenarios 133, 261.
    #[test]
    fn any_record_round_trips(entries in prop::collection::vec((any::<u32>(), any_chunk()), 0..40)) {
        let record = record(&entries);
        prop_assert_eq!(&stored(&record), &record);
        prop_assert_eq!(&exported(&record), &record);
        let chunks: Vec<_> = entries.into_iter().map(|(_, chunk)| chunk).collect();
        prop_assert_eq!(record.chunks().collect::<Vec<_>>(), chunks);
    }
}
