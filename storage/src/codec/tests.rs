use super::*;
use crate::event::{CORE_TYPES, PluginEvent, TurnStart};
use crate::{RawJson, ids::Turn};
use proptest::prelude::*;

fn id(text: &str) -> SessionId {
    SessionId::trusted(text)
}

fn event(seq: u64, turn: u32) -> Arc<Event> {
    Arc::new(Event { seq: Seq(seq), time_ms: -5, body: TurnStart { turn: Turn(turn) }.into() })
}

fn record() -> Vec<u8> {
    encode_commit(&id("s"), Epoch(3), Seq(7), Some(Seq(6)), &[event(7, 1), event(8, 2)]).unwrap()
}

#[test]
fn every_core_type_has_a_number_of_its_own() {
    let mut tags = TAGS.to_vec();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), CORE_TYPES.len() + 1);
}

/// B-1: what was durable when it was written stands in the record.
#[test]
fn the_head_comes_back() {
    let bytes = record();
    let back = decode_commit(&id("s"), Seq(7), &bytes).unwrap();
    assert_eq!((back.epoch, back.acked, back.events.len()), (Epoch(3), Some(Seq(6)), 2));
    assert_eq!(peek(&bytes), Some(Head { epoch: Epoch(3), first: Seq(7), count: 2 }));
    assert_eq!(peek(&bytes).unwrap().last(), Seq(8));
}

#[test]
fn a_record_under_another_key_is_damage() {
    let bytes = record();
    assert!(matches!(decode_commit(&id("t"), Seq(7), &bytes), Err(CodecError::Damaged(_))));
    assert!(matches!(decode_commit(&id("s"), Seq(8), &bytes), Err(CodecError::Damaged(_))));
}

/// Every flip of one bit and every cut is seen.
#[test]
fn no_flipped_bit_and_no_cut_passes() {
    let bytes = record();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_commit(&id("s"), Seq(7), &flipped), Err(CodecError::Damaged(_))), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(decode_commit(&id("s"), Seq(7), &bytes[..len]).is_err(), "cut at {len}");
    }
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = checksum(&id("s"), Seq(7), &bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// V-1: a newer build's record is named as such, but only when it is whole.
#[test]
fn a_newer_version_is_named() {
    let mut bytes = record();
    bytes[0] = 9;
    assert!(matches!(decode_commit(&id("s"), Seq(7), &bytes), Err(CodecError::Damaged(_))));
    let found = decode_commit(&id("s"), Seq(7), &resealed(bytes));
    assert_eq!(found, Err(CodecError::TooNew { found: 9, supported: CODEC_VERSION }));
}

/// V-4, V-5: with a good checksum the type or its data is at fault, and the event is named.
#[test]
fn unknown_tags_and_bad_data_name_the_event() {
    let bytes = record();
    let tag_at = HEAD_BYTES + 8 + 4;
    let mut unknown = bytes.clone();
    unknown[tag_at] = 9;
    let found = decode_commit(&id("s"), Seq(7), &resealed(unknown));
    assert_eq!(found, Err(CodecError::UnknownTag { seq: Seq(7), tag: 9 }));
    let mut other = bytes;
    other[tag_at] = 11;
    let found = decode_commit(&id("s"), Seq(7), &resealed(other));
    assert!(matches!(found, Err(CodecError::Schema { seq: Seq(7), .. })));
}

#[test]
fn what_is_no_commit_is_refused() {
    let refused = |events: &[Arc<Event>]| {
        matches!(encode_commit(&id("s"), Epoch(1), Seq(7), None, events), Err(CodecError::Refused(_)))
    };
    assert!(refused(&[]));
    assert!(refused(&[event(8, 1)]));
    assert!(refused(&[event(7, 1), event(9, 2)]));
    assert!(refused(&vec![event(7, 1); COMMIT_MAX_EVENTS + 1]));
}

/// BR-034: a NUL character in a text is a character.
#[test]
fn plugin_events_keep_their_bytes() {
    let data = RawJson::parse(r#"{ "b": 1.50,  "a": "W\u0000s", "b": 2 }"#).unwrap();
    let plugin = EventData::Plugin(PluginEvent { type_name: "x/y\0".into(), data });
    let body = EventBody { ignorable: true, cites: vec![Seq(1), Seq(2)], ..plugin.into() };
    let events = [Arc::new(Event { seq: Seq(0), time_ms: i64::MIN, body })];
    let bytes = encode_commit(&id("s"), Epoch(1), Seq(0), None, &events).unwrap();
    assert_eq!(decode_commit(&id("s"), Seq(0), &bytes).unwrap().events, events);
}

proptest! {
    /// Any bytes, also with a checksum that holds, decode or fail; nothing panics.
    #[test]
    fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..400), seal in any::<bool>()) {
        let bytes = if seal && bytes.len() >= CRC_AT + 4 { resealed(bytes) } else { bytes };
        let _ = decode_commit(&id("s"), Seq(7), &bytes);
        let _ = peek(&bytes);
    }

    /// Changed records whose checksum was put right reach every decoder behind it.
    #[test]
    fn changed_records_are_safe(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = record();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode_commit(&id("s"), Seq(7), &resealed(bytes));
    }
}
