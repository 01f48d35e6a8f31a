//! What the tests of the response mappers share.

use super::{
    exchange::{Mapper, last_event},
    sse::SseParser,
};
use everturn_storage::{
    assemble::Assembler,
    chunk::{Chunk, Finish},
    ids::CallId,
    message::{Block, Failure},
};

/// Feeds the parts of a stream and its end, as an exchange does.
pub(super) fn play<'a>(mapper: &mut dyn Mapper, parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<Chunk> {
    let mut parser = SseParser::default();
    let mut out = Vec::new();
    for part in parts {
        let mut events = Vec::new();
        parser.feed(part, &mut events).expect("within the bounds");
        for event in &events {
            mapper.event(event);
        }
        out.extend(mapper.blocks().take());
        if mapper.blocks().finished() {
            return out;
        }
    }
    if let Some(event) = parser.finish() {
        last_event(mapper, &event);
    }
    mapper.eof();
    out.extend(mapper.blocks().take());
    out
}

/// What a stream comes to, in the form `stop|T:text|R:reasoning|C:id name arguments|U:1,2,3,4,5`, or
/// `error CODE`. Opaque state follows its block as `~state`.
pub(super) fn told(chunks: &[Chunk]) -> String {
    let mut assembler = Assembler::new();
    for chunk in chunks {
        if let Err(malformed) = assembler.push(chunk) {
            return format!("error {}", Failure::from(malformed).code);
        }
    }
    let mut number = 0;
    let new_id = || {
        number += 1;
        CallId::trusted(format!("new{number}"))
    };
    let folded = match assembler.fold(new_id) {
        None => return format!("error {}", assembler.closed_early().code),
        Some(Err(malformed)) => return format!("error {}", Failure::from(malformed).code),
        Some(Ok(folded)) => folded,
    };
    let mut out = match folded.finish {
        Finish::Stop => "stop".to_owned(),
        Finish::ToolUse => "tools".to_owned(),
        Finish::MaxTokens => "max".to_owned(),
        Finish::Aborted => "aborted".to_owned(),
        Finish::Error { failure } => return format!("error {}", failure.code),
    };
    for block in &folded.blocks {
        let (text, replay) = match block {
            Block::Text { text, replay } => (format!("T:{text}"), replay),
            Block::Reasoning { text, replay } => (format!("R:{text}"), replay),
            Block::ToolCall { call_id, name, arguments, replay } => (format!("C:{call_id} {name} {arguments}"), replay),
            Block::Image { .. } => ("image".to_owned(), &None),
        };
        out.push('|');
        out.push_str(&text);
        if let Some(replay) = replay {
            out.push_str(&format!("~{}", replay.data));
        }
    }
    if let Some(usage) = folded.usage {
        let counts = [usage.input, usage.cache_read, usage.cache_write, usage.output, usage.reasoning];
        out.push_str(&format!("|U:{}", counts.map(|count| count.to_string()).join(",")));
    }
    out
}

/// Checks that cuts do not change what a stream comes to: whole, cut at every offset, and byte by byte.
///
/// Only the parser sees bytes, so it alone is run for every cut; the mapper is given its events.
pub(super) fn same_for_all_cuts(name: &str, bytes: &[u8], mapper: &dyn Fn() -> Box<dyn Mapper>) -> String {
    let whole = told(&play(mapper().as_mut(), [bytes]));
    assert_eq!(told(&play(mapper().as_mut(), bytes.chunks(1))), whole, "{name} byte by byte");
    let mut wanted = Vec::new();
    SseParser::default().feed(bytes, &mut wanted).expect("within the bounds");
    let (mut head, mut events) = (SseParser::default(), Vec::new());
    for at in 0..bytes.len() {
        let (mut parser, mut out) = (head.clone(), events.clone());
        parser.feed(&bytes[at..], &mut out).expect("within the bounds");
        assert_eq!(out, wanted, "{name} cut at {at}");
        head.feed(&bytes[at..=at], &mut events).expect("within the bounds");
    }
    whole
}

/// Checks that a stream that ends too early is never taken for a complete answer: every prefix is an error, or
/// exactly what the whole stream is, but for token counts that had not come yet.
pub(super) fn truncations_are_errors(name: &str, bytes: &[u8], mapper: &dyn Fn() -> Box<dyn Mapper>) {
    let plain = |told: String| told.split("|U:").next().unwrap_or_default().to_owned();
    let whole = plain(told(&play(mapper().as_mut(), [bytes])));
    let (mut parser, mut events, mut checked) = (SseParser::default(), Vec::new(), usize::MAX);
    for at in 0..bytes.len() {
        let count = events.len();
        let pending = parser.clone().finish();
        let says = pending.as_ref().is_some_and(|event| event.data.ends_with(['}', ']']));
        // Between two events nothing changes unless what stands there can be read.
        if count != checked || says {
            checked = count;
            let told = plain(told(&play(mapper().as_mut(), [&bytes[..at]])));
            let early = matches!(told.as_str(), "error TRANSPORT" | "error STREAM_CLOSED");
            assert!(early || told == whole, "{name} ended at {at} is {told}");
        }
        parser.feed(&bytes[at..=at], &mut events).expect("within the bounds");
    }
}
