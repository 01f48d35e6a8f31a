use super::*;
use proptest::prelude::*;

fn event(name: &str, data: &str) -> SseEvent {
    SseEvent { name: name.into(), data: data.into() }
}

/// Feeds `parts` one after the other.
fn parse<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<SseEvent> {
    let mut parser = SseParser::default();
    let mut out = Vec::new();
    for part in parts {
        parser.feed(part, &mut out).unwrap();
    }
    out.extend(parser.finish());
    out
}

const SAMPLE: &str = ": hello\n\nevent: a\ndata: 你好 🌍\ndata:second\n\ndata\n\nid: 7\nretry: 5\ndata:  two spaces\n\nevent: lost\n\ndata: {\"x\":1}\n\n";

fn sample_events() -> Vec<SseEvent> {
    vec![
        event("a", "你好 🌍\nsecond"),
        event("", ""),
        event("", " two spaces"),
        // A name without data is dropped with its name.
        event("", "{\"x\":1}"),
    ]
}

/// BR-070, BR-071: the same events for LF, CRLF and CR, cut at every byte offset and byte by byte.
#[test]
fn line_ends_and_cuts_do_not_matter() {
    for end in ["\n", "\r\n", "\r"] {
        let bytes = SAMPLE.replace('\n', end).into_bytes();
        assert_eq!(parse([&bytes[..]]), sample_events(), "{end:?}");
        for at in 0..=bytes.len() {
            assert_eq!(parse([&bytes[..at], &bytes[at..]]), sample_events(), "{end:?} cut at {at}");
        }
        assert_eq!(parse(bytes.chunks(1)), sample_events(), "{end:?} byte by byte");
    }
}

/// BR-070: a stream may mix its line ends; CR LF is one end also when it comes in two packets.
#[test]
fn mixed_line_ends() {
    assert_eq!(
        parse([b"data: a\r".as_slice(), b"\ndata: b\r\r", b"data: c\n\r\n"]),
        [event("", "a\nb"), event("", "c")]
    );
}

#[test]
fn a_mark_of_byte_order_is_skipped_once() {
    assert_eq!(
        parse(["\u{feff}data: a\n\n\u{feff}data: b\n\ndata: c\n\n".as_bytes()]),
        [event("", "a"), event("", "c")]
    );
    assert_eq!(parse("\u{feff}data: a\n\n".as_bytes().chunks(1)), [event("", "a")]);
}

#[test]
fn the_last_event_needs_no_blank_line() {
    assert_eq!(parse([b"data: [DONE]".as_slice()]), [event("", "[DONE]")]);
    assert_eq!(parse([b"data: a\n\ndata: b\n".as_slice()]), [event("", "a"), event("", "b")]);
    assert_eq!(parse([b"event: x\n".as_slice()]), []);
    assert_eq!(parse([b"".as_slice()]), []);
}

#[test]
fn bad_bytes_become_replacement_characters() {
    assert_eq!(parse([b"data: a\xff\xfeb\n\n".as_slice()]), [event("", "a\u{fffd}\u{fffd}b")]);
}

#[test]
fn lines_and_events_are_bounded() {
    let mut parser = SseParser::with_limits(8, 10);
    let mut out = Vec::new();
    assert_eq!(parser.feed(b"data: 123456789", &mut out), Err(SseError::LineTooLong(8)));
    // The bound counts over packets.
    let mut parser = SseParser::with_limits(8, 10);
    assert_eq!(parser.feed(b"data: 12", &mut out), Ok(()));
    assert_eq!(parser.feed(b"3", &mut out), Err(SseError::LineTooLong(8)));
    let mut parser = SseParser::with_limits(100, 10);
    assert_eq!(parser.feed(b"data: 12345\ndata: 123456\n", &mut out), Err(SseError::EventTooLarge(10)));
    assert_eq!(out, []);
    // Comments of any number hold nothing.
    let mut parser = SseParser::with_limits(100, 10);
    for _ in 0..1_000 {
        parser.feed(b": keep-alive\n\n", &mut out).unwrap();
    }
    assert_eq!((out.len(), parser.line.len(), parser.data.len()), (0, 0, 0));
}

proptest! {
    /// BR-070, BR-071: cuts never change what is read, whatever the bytes.
    #[test]
    fn cuts_never_matter(bytes in noisy_bytes(), cuts in prop::collection::vec(0_usize..400, 0..12)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for at in cuts {
            parts.push(&bytes[from..at]);
            from = at;
        }
        parts.push(&bytes[from..]);
        prop_assert_eq!(parse(parts), parse([&bytes[..]]));
    }
}

fn noisy_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"data: ".to_vec()),
        Just(b"data:".to_vec()),
        Just(b"event: x".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n\n".to_vec()),
        Just(": c".as_bytes().to_vec()),
        Just("\u{feff}".as_bytes().to_vec()),
        Just("🌍".as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}
