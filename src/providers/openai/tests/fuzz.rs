//! Events by lot: nothing may panic, hang or look like an answer that is none.

use crate::providers::{
    exchange::Mapper, openai::response::OpenAiMapper, sse::SseEvent, testing::told, wire::ToolNames,
};
use proptest::prelude::*;

fn odd_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("\"\"".to_owned()),
        Just("\"x\"".to_owned()),
        Just("\"{}\"".to_owned()),
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        Just("true".to_owned()),
        Just("\"stop\"".to_owned()),
    ];
    let key = prop::sample::select(vec![
        "choices",
        "delta",
        "index",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "finish_reason",
        "usage",
        "error",
        "message",
        "type",
        "reasoning_content",
        "reasoning_details",
        "text",
        "thinking",
        "code",
        "prompt_tokens",
        "extra_content",
        "object",
        "x_groq",
        "function_call",
    ]);
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|pairs| {
                let pairs: Vec<String> = pairs.into_iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
                format!("{{{}}}", pairs.join(","))
            }),
        ]
    })
}

fn odd_event() -> impl Strategy<Value = SseEvent> {
    let data = prop_oneof![
        4 => odd_json(),
        4 => odd_json().prop_map(|delta| format!("{{\"choices\":[{{\"delta\":{delta}}}]}}")),
        2 => odd_json().prop_map(|call| format!("{{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}")),
        1 => Just("[DONE]".to_owned()),
        1 => Just("{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}".to_owned()),
        1 => ".{0,20}",
    ];
    (prop::sample::select(vec!["", "", "", "error", "foo"]), data)
        .prop_map(|(name, data)| SseEvent { name: name.to_owned(), data })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever comes, nothing panics, there is at most one end and nothing behind it, and what is held stays small.
    #[test]
    fn nothing_panics(events in prop::collection::vec(odd_event(), 0..12)) {
        let mut mapper = OpenAiMapper::new("p", ToolNames::default());
        let mut chunks = Vec::new();
        for event in &events {
            mapper.event(event);
            chunks.extend(mapper.blocks().take());
        }
        mapper.eof();
        chunks.extend(mapper.blocks().take());
        let ends = chunks.iter().filter(|chunk| matches!(chunk, everturn_storage::chunk::Chunk::Finish { .. })).count();
        prop_assert!(ends <= 1);
        let told = told(&chunks);
        prop_assert!(told.starts_with("error ") || ends == 1, "{}", told);
    }
}
