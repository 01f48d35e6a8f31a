//! The events of a stream do not depend on where the network cuts it (BR-070, BR-071), and stay within their bounds.
#![no_main]

use everturn::providers::sse::SseParser;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u8, &[u8])| {
    let (step, bytes) = data;
    let read = |step: usize| {
        let (mut parser, mut events) = (SseParser::with_limits(256, 512), Vec::new());
        let fed = bytes.chunks(step).try_for_each(|part| parser.feed(part, &mut events));
        let last = if fed.is_ok() { parser.finish() } else { None };
        (events, last, fed.is_err())
    };
    let whole = read(bytes.len().max(1));
    assert_eq!(read(usize::from(step).max(1)), whole);
    assert!(whole.0.iter().all(|event| event.data.len() <= 512));
});
