//! Streams as real servers sent them.

use crate::providers::{
    exchange::Mapper,
    openai::response::OpenAiMapper,
    testing::{play, same_for_all_cuts, told, truncations_are_errors},
    wire::ToolNames,
};

fn mapper() -> Box<dyn Mapper> {
    Box::new(OpenAiMapper::new("p", ToolNames::default()))
}

const CAPTURED: &[(&str, &str, &str)] = &[
    (
        "aimock_deepseek_reasoning",
        include_str!("../../../../tests/fixtures/streams/aimock_deepseek_reasoning.sse"),
        "stop|R:Let me think step by step about 6*7.~{\"field\":\"reasoning_content\"}|T:The answer is 42.|U:3,0,0,5,0",
    ),
    (
        "aimock_openai_tools",
        include_str!("../../../../tests/fixtures/streams/aimock_openai_tools.sse"),
        "tools|R:User wants weather. I should call get_weather.~{\"field\":\"reasoning_content\"}|C:call_w1 get_weather \
         {\"city\":\"Nanjing\",\"unit\":\"celsius\"}|C:call_w2 get_time {\"tz\":\"Asia/Shanghai\"}|U:5,0,0,19,0",
    ),
    (
        "litellm_claude_as_openai_reasoning",
        include_str!("../../../../tests/fixtures/streams/litellm_claude_as_openai_reasoning.sse"),
        "stop|R:Let me think step by step about 6*7.~{\"field\":\"reasoning_content\"}|T:The answer is 42.",
    ),
    (
        "litellm_mock",
        include_str!("../../../../tests/fixtures/streams/litellm_mock.sse"),
        "stop|T:Hello from litellm mock",
    ),
    (
        "litellm_to_llama_tools",
        include_str!("../../../../tests/fixtures/streams/litellm_to_llama_tools.sse"),
        "tools|C:dOYjxgVYA4yUwrywaBlW4f0m96nthTas get_weather {\"city\": \"Nanjing\"}|U:1,459,0,32,0",
    ),
    (
        "llama_openai_reasoning",
        include_str!("../../../../tests/fixtures/streams/llama_openai_reasoning_deepseek_r1_template.sse"),
        "max|R:\n```json\n{\"city\": \"Nanjing\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n```\n```json\n{\n  \
         \"arg1\": \"18C\",\n  \"~{\"field\":\"reasoning_content\"}|U:722,0,0,60,0",
    ),
    (
        "llama_openai_tools_hermes",
        include_str!("../../../../tests/fixtures/streams/llama_openai_tools_hermes.sse"),
        "tools|C:ajFnRK81rNQ1zuEPkOMxzgLQ18Aa3w9i get_weather {\"city\": \"Nanjing\"}|U:460,0,0,32,0",
    ),
    (
        "llama_text",
        include_str!("../../../../tests/fixtures/streams/llama_text.sse"),
        "max|T:Hello! I'sure I'm not what I'm supposed to be. I'm here to help with any kind of math or science \
         topic. What",
    ),
    (
        "llama_tools_prefill",
        include_str!("../../../../tests/fixtures/streams/llama_tools_prefill.sse"),
        "tools|C:cYSLe3Iw8FkP7M9Ql27Xj0BMuQSn0SY7 get_weather {\"city\": \"Nanjing\"}|U:3,376,0,26,0",
    ),
];

/// BR-070, BR-071: what a stream says does not depend on how its bytes are cut.
#[test]
fn captured_streams_say_the_same_however_they_are_cut() {
    for (name, text, wanted) in CAPTURED {
        assert_eq!(same_for_all_cuts(name, text.as_bytes(), &mapper), *wanted, "{name}");
    }
}

/// BR-070: line ends do not matter either.
#[test]
fn captured_streams_say_the_same_with_other_line_ends() {
    for (name, text, wanted) in CAPTURED {
        for end in ["\r\n", "\r"] {
            let text = text.replace("\r\n", "\n").replace('\n', end);
            let told = told(&play(mapper().as_mut(), text.as_bytes().chunks(7)));
            assert_eq!(told, *wanted, "{name} with {end:?}");
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
