//! Any bytes are safe to decode; what decodes encodes to the same bytes again (265, BR-041).
#![no_main]

use everturn::storage::{codec, ids::{Seq, SessionId}};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let session = SessionId::trusted("golden");
    let Some(head) = codec::peek(bytes) else { return };
    let Ok(decoded) = codec::decode_commit(&session, head.first, bytes) else { return };
    assert!(!decoded.events.is_empty() && decoded.events.len() <= bytes.len());
    assert_eq!(decoded.events.first().map(|event| event.seq), Some(head.first));
    let again = codec::encode_commit(&session, head.epoch, head.first, decoded.acked, &decoded.events);
    assert_eq!(again.as_deref(), Ok(bytes));
    let _ = codec::decode_commit(&session, Seq(head.first.0.wrapping_add(1)), bytes);
});
