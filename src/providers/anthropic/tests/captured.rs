//! Streams as real servers sent them.

use crate::providers::{
    anthropic::response::AnthropicMapper,
    exchange::Mapper,
    testing::{play, same_for_all_cuts, told, truncations_are_errors},
    wire::ToolNames,
};

fn mapper() -> Box<dyn Mapper> {
    Box::new(AnthropicMapper::new("p", "m", ToolNames::default()))
}

const TOOLS: &str = "tools|R:User wants weather. I should call get_weather.\
    ~{\"signed\":{\"model\":\"m\",\"signature\":\"aimock-placeholder-signature\"}}\
    |C:call_w1 get_weather {\"city\":\"Nanjing\",\"unit\":\"celsius\"}|C:call_w2 get_time {\"tz\":\"Asia/Shanghai\"}|U:0,0,0,0,0";

const CAPTURED: &[(&str, &str, &str)] = &[
    (
        "aimock_anthropic_thinking",
        include_str!("../../../../tests/fixtures/streams/aimock_anthropic_thinking.sse"),
        "stop|R:Let me think step by step about 6*7.\
         ~{\"signed\":{\"model\":\"m\",\"signature\":\"aimock-placeholder-signature\"}}|T:The answer is 42.|U:0,0,0,0,0",
    ),
    ("aimock_anthropic_tools", include_str!("../../../../tests/fixtures/streams/aimock_anthropic_tools.sse"), TOOLS),
    ("litellm_anthropic_tools", include_str!("../../../../tests/fixtures/streams/litellm_anthropic_tools.sse"), TOOLS),
    (
        "llama_anthropic_tools",
        include_str!("../../../../tests/fixtures/streams/llama_anthropic_tools.sse"),
        "tools|C:iXWpdjA1g7f3lQQO73z6BmMJJYM7Qa5W get_weather {\"city\": \"Nanjing\"}|U:460,0,0,32,0",
    ),
];

/// BR-070, BR-071: what a stream says does not depend on how its bytes are cut.
#[test]
fn captured_streams_say_the_same_however_they_are_cut() {
    for (name, text, wanted) in CAPTURED {
        assert_eq!(same_for_all_cuts(name, text.as_bytes(), &mapper), *wanted, "{name}");
    }
}

/// BR-070, BR-088: line ends, comments and pings do not matter.
#[test]
fn captured_streams_say_the_same_with_noise() {
    let noise = "event: ping\ndata: {\"type\": \"ping\"}\n\n: keep-alive\n\nevent: foo\ndata: {\"type\":\"foo\",\"index\":0}\n\n";
    for (name, text, wanted) in CAPTURED {
        let text = text.replace("\r\n", "\n");
        let noisy = text.replace("\n\n", &format!("\n\n{noise}"));
        assert_eq!(told(&play(mapper().as_mut(), [noisy.as_bytes()])), *wanted, "{name} with pings");
        for end in ["\r\n", "\r"] {
            let text = text.replace('\n', end);
            let got = told(&play(mapper().as_mut(), text.as_bytes().chunks(7)));
            assert_eq!(got, *wanted, "{name} with {end:?}");
        }
    }
}

/// BR-067: an answer that ends early is never taken for a complete one.
#[test]
fn captured_streams_that_end_early_are_errors() {
    for (name, text, _) in CAPTURED {
        truncations_are_errors(name, text.as_bytes(), &mapper);
    }
}
