//! Events by lot: nothing may panic, hang or look like an answer that is none.

use crate::providers::{
    anthropic::response::AnthropicMapper, exchange::Mapper, sse::SseEvent, testing::told, wire::ToolNames,
};
use everturn_storage::chunk::Chunk;
use proptest::prelude::*;

fn odd_event() -> impl Strategy<Value = SseEvent> {
    let index = || prop::sample::select(vec!["0", "0", "1", "2", "-1", "1e99", "\"x\"", "null"]);
    let block = prop::sample::select(vec![
        r#"{"type":"text","text":""}"#,
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        r#"{"type":"redacted_thinking","data":"x"}"#,
        r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#,
        r#"{"type":"tool_use","id":"","name":"","input":[1]}"#,
        r#"{"type":"server_tool_use"}"#,
        "{}",
        "3",
    ]);
    let delta = prop::sample::select(vec![
        r#"{"type":"text_delta","text":"x"}"#,
        r#"{"type":"thinking_delta","thinking":"x"}"#,
        r#"{"type":"signature_delta","signature":"x"}"#,
        r#"{"type":"input_json_delta","partial_json":"{}"}"#,
        r#"{"type":"input_json_delta","partial_json":{"z":1}}"#,
        r#"{"type":"citations_delta"}"#,
        "{}",
        "null",
    ]);
    let data = prop_oneof![
        4 => (index(), block).prop_map(|(i, b)| format!("{{\"type\":\"content_block_start\",\"index\":{i},\"content_block\":{b}}}")),
        6 => (index(), delta).prop_map(|(i, d)| format!("{{\"type\":\"content_block_delta\",\"index\":{i},\"delta\":{d}}}")),
        3 => index().prop_map(|i| format!("{{\"type\":\"content_block_stop\",\"index\":{i}}}")),
        2 => prop::sample::select(vec!["null", "\"\"", "\"end_turn\"", "\"max_tokens\"", "3", "{}"])
            .prop_map(|r| format!("{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":{r}}},\"usage\":{{\"output_tokens\":3}}}}")),
        1 => Just("{\"type\":\"message_stop\"}".to_owned()),
        1 => Just("{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},4],\"stop_reason\":\"end_turn\"}".to_owned()),
        1 => ".{0,20}",
    ];
    (prop::sample::select(vec!["", "", "", "error", "foo"]), data)
        .prop_map(|(name, data)| SseEvent { name: name.to_owned(), data })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever comes, nothing panics, and there is at most one end and nothing behind it.
    #[test]
    fn nothing_panics(events in prop::collection::vec(odd_event(), 0..14)) {
        let mut mapper = AnthropicMapper::new("p", "m", ToolNames::default());
        let mut chunks = Vec::new();
        for event in &events {
            mapper.event(event);
            chunks.extend(mapper.blocks().take());
        }
        mapper.eof();
        chunks.extend(mapper.blocks().take());
        let ends = chunks.iter().filter(|chunk| matches!(chunk, Chunk::Finish { .. })).count();
        prop_assert!(ends <= 1);
        let told = told(&chunks);
        prop_assert!(told.starts_with("error ") || ends == 1, "{}", told);
    }
}
