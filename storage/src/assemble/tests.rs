use super::*;
use crate::chunk::StreamRecord;
use proptest::prelude::*;

fn text_start(index: u64) -> Chunk {
    Chunk::BlockStart { index, kind: BlockKind::Text }
}

fn reasoning_start(index: u64) -> Chunk {
    Chunk::BlockStart { index, kind: BlockKind::Reasoning }
}

fn call_start(index: u64, id: &str, name: &str) -> Chunk {
    Chunk::BlockStart { index, kind: BlockKind::ToolCall { call_id: CallId::trusted(id), name: name.into() } }
}

fn text(index: u64, text: &str) -> Chunk {
    Chunk::TextDelta { index, text: text.into() }
}

fn reasoning(index: u64, text: &str) -> Chunk {
    Chunk::ReasoningDelta { index, text: text.into() }
}

fn fragment(index: u64, text: &str) -> Chunk {
    Chunk::CallFragment { index, text: text.into() }
}

fn end(index: u64) -> Chunk {
    Chunk::BlockEnd { index }
}

fn state(index: u64, data: &str) -> Chunk {
    Chunk::ReplayState { index, provider: "p".into(), data: data.into() }
}

fn finish(finish: Finish) -> Chunk {
    Chunk::Finish { finish }
}

fn usage(input: u64) -> Chunk {
    Chunk::Usage { usage: Usage { input, ..Usage::default() } }
}

fn call(id: &str, arguments: &str) -> Block {
    Block::ToolCall { call_id: CallId::trusted(id), name: "t".into(), arguments: arguments.into(), replay: None }
}

fn assemble(chunks: &[Chunk]) -> Result<Assembler, Malformed> {
    let mut assembler = Assembler::new();
    chunks.iter().try_for_each(|chunk| assembler.push(chunk))?;
    Ok(assembler)
}

fn fold(chunks: &[Chunk]) -> Folded {
    let mut n = 0;
    let id = || {
        n += 1;
        CallId::trusted(format!("new-{n}"))
    };
    assemble(chunks).unwrap().fold(id).unwrap().unwrap()
}

fn broken(chunks: &[Chunk]) -> &'static str {
    assemble(chunks).unwrap_err().rule
}

/// L-11, scenario 123: the order is that of the first start, whatever the index.
#[test]
fn blocks_stand_in_order_of_their_first_start() {
    let folded = fold(&[
        reasoning_start(7),
        text_start(2),
        text(2, "a"),
        reasoning(7, "why"),
        end(7),
        end(7),
        call_start(3, "c", "t"),
        fragment(3, "{"),
        text(2, "b"),
        fragment(3, "no json"),
        end(2),
        end(3),
        usage(5),
        finish(Finish::Stop),
    ]);
    let reasoning = Block::Reasoning { text: "why".into(), replay: None };
    assert_eq!(folded.blocks, [reasoning, Block::text("ab"), call("c", "{no json")]);
    assert_eq!(folded.usage, Some(Usage { input: 5, ..Usage::default() }));
    assert_eq!(folded.finish, Finish::Stop, "L-19: the label stays as it was said");
}

/// L-10, L-11, L-12, L-13, L-14; scenarios 122, 124.
#[test]
fn what_breaks_the_grammar_is_named() {
    assert_eq!(broken(&[finish(Finish::Aborted), text_start(0)]), "L-10");
    assert_eq!(broken(&[finish(Finish::Aborted), finish(Finish::Aborted)]), "L-10");
    assert_eq!(broken(&[text_start(0), text_start(0)]), "L-11");
    assert_eq!(broken(&[text_start(1 << 53)]), "L-11");
    assert!(assemble(&[text_start((1 << 53) - 1)]).is_ok());
    for chunk in [text(0, "x"), end(0), state(0, "x")] {
        assert_eq!(broken(&[chunk]), "L-11");
    }
    assert_eq!(broken(&[text_start(0), reasoning(0, "x")]), "L-12");
    assert_eq!(broken(&[text_start(0), fragment(0, "x")]), "L-12");
    assert_eq!(broken(&[call_start(0, "c", "t"), text(0, "x")]), "L-12");
    assert_eq!(broken(&[text_start(0), end(0), text(0, "x")]), "L-12");
    assert_eq!(broken(&[usage(1), usage(1)]), "L-13");
    for label in [Finish::Stop, Finish::ToolUse, Finish::MaxTokens] {
        assert_eq!(broken(&[text_start(0), finish(label)]), "L-14");
    }
    assert!(assemble(&[text_start(0), finish(Finish::Aborted)]).is_ok());
}

/// L-16, Z4.
#[test]
fn call_ids_are_unique_and_there() {
    assert_eq!(broken(&[call_start(0, "c", "t"), call_start(1, "c", "t")]), "L-16");
    assert_eq!(broken(&[call_start(0, "c", "")]), "L-16");
    assert_eq!(broken(&[call_start(0, "c", " ")]), "L-16");
    let chunks = [
        call_start(0, "", "t"),
        call_start(1, "c", "t"),
        call_start(2, "", "t"),
        end(0),
        end(1),
        end(2),
        finish(Finish::ToolUse),
    ];
    assert_eq!(fold(&chunks).blocks, [call("new-1", ""), call("c", ""), call("new-2", "")]);
    let met = assemble(&chunks).unwrap().fold(|| CallId::trusted("c")).unwrap();
    assert_eq!(met.unwrap_err().rule, "L-16");
}

/// L-17.
#[test]
fn nothing_said_is_a_failure() {
    let empty = |chunks: &[Chunk]| match fold(chunks) {
        Folded { blocks, finish: Finish::Error { failure }, .. } => {
            blocks.is_empty() && failure.code == "EMPTY_RESPONSE"
        }
        _ => false,
    };
    for label in [Finish::Stop, Finish::ToolUse] {
        assert!(empty(&[finish(label.clone())]));
        assert!(empty(&[text_start(0), text(0, " \n"), end(0), finish(label.clone())]));
        assert!(!empty(&[reasoning_start(0), reasoning(0, "hm"), end(0), finish(label.clone())]));
        assert!(!empty(&[reasoning_start(0), state(0, "sealed"), end(0), finish(label.clone())]));
        assert!(!empty(&[call_start(0, "c", "t"), end(0), finish(label)]));
    }
    assert!(!empty(&[finish(Finish::MaxTokens)]), "L-18: it may have no blocks");
}

/// L-18.
#[test]
fn the_output_limit_drops_calls_and_the_states_with_them() {
    let with_call = [
        reasoning_start(0),
        state(0, "sealed"),
        end(0),
        reasoning_start(1),
        reasoning(1, "hm"),
        state(1, "sealed"),
        end(1),
        text_start(2),
        text(2, "half"),
        end(2),
        call_start(3, "c", "t"),
        end(3),
        finish(Finish::MaxTokens),
    ];
    let reasoning = |data: Option<&str>| Block::Reasoning {
        text: "hm".into(),
        replay: data.map(|data| Replay { provider: "p".into(), data: data.into() }),
    };
    assert_eq!(fold(&with_call).blocks, [reasoning(None), Block::text("half")]);
    let mut without = with_call[3..10].to_vec();
    without.push(finish(Finish::MaxTokens));
    assert_eq!(fold(&without).blocks, [reasoning(Some("sealed")), Block::text("half")]);
    let only_calls = fold(&[call_start(3, "c", "t"), end(3), usage(9), finish(Finish::MaxTokens)]);
    assert_eq!((only_calls.blocks, only_calls.usage.unwrap().input), (vec![], 9));
}

/// I-26: an interrupted message has no calls, and says something or is none.
#[test]
fn the_visible_prefix_is_text_and_reasoning() {
    let mut assembler =
        assemble(&[call_start(0, "c", "t"), fragment(0, "{"), text_start(1), end(1), text_start(2), text(2, " ")])
            .unwrap();
    assert!(!assembler.has_visible());
    assert_eq!(assembler.closed_early().code, "TRANSPORT", "Z14");
    assembler.push(&text(2, "half")).unwrap();
    assert_eq!(assembler.visible_prefix(), [Block::text(" half")]);
    assert_eq!(assembler.closed_early().code, "STREAM_CLOSED", "Z14");
    let open = assemble(&[reasoning_start(0), reasoning(0, "hm"), state(0, "half a state")]).unwrap();
    assert_eq!(open.visible_prefix(), [Block::Reasoning { text: "hm".into(), replay: None }]);
}

#[test]
fn a_response_has_bounds() {
    let mut assembler = assemble(&[text_start(0)]).unwrap();
    let megabyte = text(0, &"x".repeat(1 << 20));
    for _ in 0..16 {
        assembler.push(&megabyte).unwrap();
    }
    assert!(assembler.push(&text(0, "x")).is_err());
    let mut assembler = Assembler::new();
    for index in 0..RESPONSE_MAX_BLOCKS as u64 {
        assembler.push(&text_start(index)).unwrap();
    }
    assert!(assembler.push(&text_start(9_999)).is_err());
}

pub(crate) fn any_chunk() -> impl Strategy<Value = Chunk> {
    let index = || 0..4_u64;
    let words = || prop::sample::select(vec!["", "a", " ", "é", "🦀 b", "{}"]).prop_map(str::to_owned);
    prop_oneof![
        index().prop_map(text_start),
        index().prop_map(reasoning_start),
        (index(), prop::sample::select(vec!["", "c", "d"])).prop_map(|(index, id)| call_start(index, id, "t")),
        (index(), words()).prop_map(|(index, t)| text(index, &t)),
        (index(), words()).prop_map(|(index, t)| text(index, &t)),
        (index(), words()).prop_map(|(index, t)| reasoning(index, &t)),
        (index(), words()).prop_map(|(index, t)| fragment(index, &t)),
        index().prop_map(end),
        (index(), words()).prop_map(|(index, t)| state(index, &t)),
        any::<u64>().prop_map(usage),
        prop::sample::select(vec![Finish::Stop, Finish::ToolUse, Finish::MaxTokens, Finish::Aborted]).prop_map(finish),
    ]
}

/// A whole stream whose blocks are closed one by one.
fn valid_stream() -> impl Strategy<Value = Vec<Chunk>> {
    let block = (0..3_u8, prop::collection::vec("[a-c \u{e9}]{0,6}", 0..5), any::<bool>());
    (prop::collection::vec(block, 0..5), 0..4_usize).prop_map(|(blocks, label)| {
        let mut out = Vec::new();
        for (index, (kind, deltas, sealed)) in (0_u64..).zip(blocks) {
            out.push(match kind {
                0 => text_start(index),
                1 => reasoning_start(index),
                _ => call_start(index, &format!("c{index}"), "t"),
            });
            out.extend(deltas.iter().map(|delta| match kind {
                0 => text(index, delta),
                1 => reasoning(index, delta),
                _ => fragment(index, delta),
            }));
            out.extend(sealed.then(|| state(index, "s")));
            out.push(end(index));
        }
        let label = [Finish::Stop, Finish::ToolUse, Finish::MaxTokens, Finish::Aborted][label].clone();
        out.push(finish(label));
        out
    })
}

proptest! {
    /// 261: any sequence folds or is malformed, the same way each time, and its record comes back.
    #[test]
    fn any_sequence_folds_or_is_malformed(chunks in prop::collection::vec(any_chunk(), 0..40)) {
        let once = assemble(&chunks);
        prop_assert_eq!(&once, &assemble(&chunks));
        if let Ok(assembler) = once {
            let _ = assembler.fold(|| CallId::trusted("n"));
            let prefix = assembler.visible_prefix();
            let calls = prefix.iter().filter(|block| matches!(block, Block::ToolCall { .. })).count();
            prop_assert_eq!(calls, 0);
        }
        let mut record = StreamRecord::default();
        (0..).zip(&chunks).for_each(|(t_ms, chunk)| record.push(t_ms, chunk.clone()));
        prop_assert_eq!(record.chunks().collect::<Vec<_>>(), chunks);
    }

    /// 261: valid streams fold, and a mutated one never panics.
    #[test]
    fn valid_streams_fold(chunks in valid_stream(), at in any::<prop::sample::Index>(), other in any_chunk()) {
        let folded = assemble(&chunks).unwrap().fold(|| CallId::trusted("n")).unwrap().unwrap();
        if folded.finish == Finish::MaxTokens {
            let calls = folded.blocks.iter().filter(|block| matches!(block, Block::ToolCall { .. })).count();
            prop_assert_eq!(calls, 0);
        }
        let mut mutated = chunks;
        let at = at.index(mutated.len());
        mutated[at] = other;
        let _ = assemble(&mutated).map(|assembler| assembler.fold(|| CallId::trusted("n")));
    }
}
