//! Odd answers: what they come to, exactly.

use crate::providers::{
    exchange::{Mapper, whole_body},
    openai::response::OpenAiMapper,
    testing::{play, told},
    wire::ToolNames,
};

fn mapper() -> OpenAiMapper {
    OpenAiMapper::new("p", ToolNames::of(["get.weather", "time"]))
}

/// A stream in short form: `+` a delta, `=` a finish label, `~` a delta and a finish label, `!` a raw line, anything
/// else the data of an event.
fn stream(short: &str) -> String {
    let mut out = String::new();
    for line in short.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (kind, rest) = line.split_at(1);
        let chunk = |choice: String| format!("data: {{\"choices\":[{choice}]}}\n\n");
        out.push_str(&match kind {
            "+" => chunk(format!("{{\"index\":0,\"delta\":{rest},\"finish_reason\":null}}")),
            "=" => chunk(format!("{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{rest}\"}}")),
            "~" => {
                let (label, delta) = rest.split_once(' ').unwrap();
                chunk(format!("{{\"delta\":{delta},\"finish_reason\":\"{label}\"}}"))
            }
            "!" => format!("{rest}\n"),
            _ => format!("data: {line}\n\n"),
        });
    }
    out
}

fn comes_to(short: &str) -> String {
    told(&play(&mut mapper(), [stream(short).as_bytes()]))
}

const CALL: &str = r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}]}"#;

#[track_caller]
fn check(table: &[(&str, &str)]) {
    for (short, wanted) in table {
        assert_eq!(comes_to(short), *wanted, "{short}");
    }
}

/// Text and reasoning in all their forms.
#[test]
fn text_and_reasoning() {
    check(&[
        ("+{\"content\":\"Hel\"}\n+{\"content\":\"lo\"}\n=stop\n[DONE]", "stop|T:Hello"),
        ("+{\"role\":\"assistant\",\"content\":null}\n+{\"content\":\"x\"}\n=stop\n[DONE]", "stop|T:x"),
        ("+{\"role\":\"assistant\",\"content\":\"\"}\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("~stop {\"content\":\"all at once\"}\n[DONE]", "stop|T:all at once"),
        ("+{\"content\":\"你好 🌍\"}\n=stop", "stop|T:你好 🌍"),
        ("+{\"content\":\"\\ud83c\\udf0d\"}\n=stop", "stop|T:🌍"),
        (
            "+{\"reasoning_content\":\"a\"}\n+{\"content\":\"b\"}\n=stop",
            "stop|R:a~{\"field\":\"reasoning_content\"}|T:b",
        ),
        ("+{\"reasoning\":\"a\"}\n+{\"content\":\"b\"}\n=stop", "stop|R:a~{\"field\":\"reasoning\"}|T:b"),
        // Servers that send the same under both names are not read twice.
        (
            "+{\"reasoning\":\"a\",\"reasoning_content\":\"a\"}\n+{\"content\":\"b\"}\n=stop",
            "stop|R:a~{\"field\":\"reasoning_content\"}|T:b",
        ),
        ("+{\"reasoning_content\":\"\",\"content\":\"b\"}\n=stop", "stop|T:b"),
        ("+{\"reasoning_content\":null,\"content\":\"b\"}\n=stop", "stop|T:b"),
        (
            "+{\"reasoning_content\":\"a\",\"content\":\"b\"}\n+{\"reasoning_content\":\"c\"}\n=stop",
            "stop|R:a~{\"field\":\"reasoning_content\"}|T:b|R:c~{\"field\":\"reasoning_content\"}",
        ),
        // Reasoning alone is an answer (L-17).
        ("+{\"reasoning_content\":\"a\"}\n=stop", "stop|R:a~{\"field\":\"reasoning_content\"}"),
        ("+{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}\n=stop", "stop|T:ab"),
        (
            "+{\"content\":[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"t\"}]}]}\n+{\"content\":\"b\"}\n=stop",
            "stop|R:t|T:b",
        ),
        ("+{\"content\":[{\"type\":\"reference\",\"reference_ids\":[1]},\"plain\"]}\n=stop", "stop|T:plain"),
        ("+{\"refusal\":\"I will not.\"}\n=stop", "stop|T:I will not."),
        (
            "+{\"reasoning\":\"a\",\"reasoning_details\":[{\"type\":\"reasoning.text\",\"text\":\"a\",\"index\":0}]}\n\
             +{\"reasoning\":\"b\",\"reasoning_details\":[{\"type\":\"reasoning.text\",\"text\":\"b\",\"signature\":\"s\",\"index\":0}]}\n\
             +{\"reasoning_details\":[{\"type\":\"reasoning.encrypted\",\"data\":\"x\",\"index\":1}]}\n=stop",
            "stop|R:ab~{\"field\":\"reasoning\",\"details\":[{\"type\":\"reasoning.text\",\"text\":\"ab\",\"index\":0,\"signature\":\"s\"},{\"type\":\"reasoning.encrypted\",\"data\":\"x\",\"index\":1}]}",
        ),
    ]);
}

/// BR-067, BR-080, BR-082, BR-083, L-19: how an answer ends.
#[test]
fn endings() {
    let with = |label: &str| comes_to(&format!("+{{\"content\":\"x\"}}\n{CALL}\n={label}\n[DONE]"));
    for label in ["stop", "tool_calls", "function_call", "other", "unknown", "eos", "STOP"] {
        assert_eq!(with(label), "tools|T:x|C:a time {}", "{label}");
    }
    for label in ["length", "max_tokens", "model_length"] {
        assert_eq!(with(label), "max|T:x", "{label}");
    }
    for label in ["content_filter", "refusal", "safety"] {
        assert_eq!(with(label), "error CONTENT_FILTER", "{label}");
    }
    for label in ["error", "abort", "cancelled"] {
        assert_eq!(with(label), "error SERVER", "{label}");
    }
    assert_eq!(with("insufficient_system_resource"), "error INSUFFICIENT_SYSTEM_RESOURCE");
    check(&[
        ("+{\"content\":\"x\"}\n=weird\n[DONE]", "stop|T:x"),
        ("+{\"content\":\"x\"}\n=tool_calls\n[DONE]", "stop|T:x"),
        // The end of the stream is enough once the label is there.
        ("+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("~ {\"content\":\"x\"}\n~ {\"content\":\"y\"}\n=stop\n[DONE]", "stop|T:xy"),
        // No label: cut, with or without the last word.
        ("+{\"content\":\"x\"}\n[DONE]", "error STREAM_CLOSED"),
        ("+{\"content\":\"x\"}", "error STREAM_CLOSED"),
        ("", "error TRANSPORT"),
        ("[DONE]", "error TRANSPORT"),
        ("+{\"role\":\"assistant\",\"content\":\"\"}", "error TRANSPORT"),
        ("+{\"content\":\" \\n\"}", "error TRANSPORT"),
        ("=stop\n[DONE]", "error EMPTY_RESPONSE"),
        ("=tool_calls\n[DONE]", "error EMPTY_RESPONSE"),
        ("+{\"content\":\" \\n\"}\n=stop", "error EMPTY_RESPONSE"),
        ("=length\n[DONE]", "max"),
        // Nothing behind the label belongs to the answer.
        ("+{\"content\":\"x\"}\n=stop\n+{\"content\":\"y\"}\n=length\n[DONE]", "stop|T:x"),
        ("+{\"content\":\"x\"}\n=stop\n{\"error\":{\"message\":\"late\"}}", "stop|T:x"),
        ("+{\"content\":\"x\"}\n=stop\n{broken", "stop|T:x"),
        ("+{\"content\":\"x\"}\n=stop\n[DONE]\n+{\"content\":\"y\"}", "stop|T:x"),
    ]);
}

/// BR-073, BR-074, BR-076, BR-079, L-15, L-16: parallel calls, whole and in pieces.
#[test]
fn calls() {
    let two = "tools|C:a time {}|C:b time {\"z\":1}";
    check(&[
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"time","arguments":""}}]}
            +{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}
            +{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}
            +{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"time","arguments":"{\"z\""}}]}
            +{"tool_calls":[{"index":1,"function":{"arguments":":1}"}}]}
            =tool_calls"#,
            two,
        ),
        // Interleaved.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{"}},{"index":1,"id":"b","function":{"name":"time","arguments":"{\"z\""}}]}
            +{"tool_calls":[{"index":1,"function":{"arguments":":1}"}},{"index":0,"function":{"arguments":"}"}}]}
            =tool_calls"#,
            two,
        ),
        // No index.
        (
            r#"+{"tool_calls":[{"id":"a","function":{"name":"time","arguments":"{"}}]}
            +{"tool_calls":[{"function":{"arguments":"}"}}]}
            +{"tool_calls":[{"id":"b","function":{"name":"time","arguments":"{\"z\":"}}]}
            +{"tool_calls":[{"function":{"arguments":"1}"}}]}
            =tool_calls"#,
            two,
        ),
        // With and without an index.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            +{"tool_calls":[{"id":"b","function":{"name":"time","arguments":"{\"z\":"}}]}
            +{"tool_calls":[{"function":{"arguments":"1}"}}]}
            =tool_calls"#,
            two,
        ),
        // The id again with each fragment.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{"}}]}
            +{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"}"}}]}
            +{"tool_calls":[{"id":"b","function":{"name":"time","arguments":"{\"z\":"}}]}
            +{"tool_calls":[{"id":"b","function":{"arguments":"1}"}}]}
            =tool_calls"#,
            two,
        ),
        // Equal indexes, different ids (BR-074).
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            +{"tool_calls":[{"index":0,"id":"b","function":{"name":"time","arguments":"{\"z\":1}"}}]}
            =stop"#,
            two,
        ),
        // Equal indexes in one chunk.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}},{"index":0,"id":"b","function":{"name":"time","arguments":"{\"z\":1}"}}]}
            =stop"#,
            two,
        ),
        // An id made up for each fragment.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{"}}]}
            +{"tool_calls":[{"index":0,"id":"zz","function":{"arguments":"}"}}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        // Neither index nor id.
        (
            r#"+{"tool_calls":[{"function":{"name":"time","arguments":"{}"}},{"function":{"name":"x","arguments":"{}"}}]}
            =tool_calls"#,
            "tools|C:new1 time {}|C:new2 x {}",
        ),
        // Equal index, no ids: complete arguments end a call.
        (
            r#"+{"tool_calls":[{"index":0,"function":{"name":"time","arguments":"{}"}}]}
            +{"tool_calls":[{"index":0,"function":{"name":"time","arguments":"{\"z\":1}"}}]}
            =tool_calls"#,
            "tools|C:new1 time {}|C:new2 time {\"z\":1}",
        ),
        // The name again at the end opens nothing.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            +{"tool_calls":[{"index":0,"function":{"name":"time","arguments":""}}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        // A name in two pieces.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"ti"}}]}
            +{"tool_calls":[{"index":0,"function":{"name":"me"}}]}
            +{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        // Arguments before the name.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{"}}]}
            +{"tool_calls":[{"index":0,"function":{"name":"time","arguments":"}"}}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"","function":{"name":"time","arguments":""}}]}
            =tool_calls"#,
            "tools|C:new1 time ",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":null,"function":{"name":"time","arguments":null}}]}
            =tool_calls"#,
            "tools|C:new1 time ",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time"}}]}
            =tool_calls"#,
            "tools|C:a time ",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":{"z":[1,2]}}}]}
            =tool_calls"#,
            "tools|C:a time {\"z\":[1,2]}",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{oops"}}]}
            =tool_calls"#,
            "tools|C:a time {oops",
        ),
        (
            r#"+{"tool_calls":{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        (
            r#"+{"tool_calls":[{"index":7,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","name":"time","arguments":"{}"}]}
            =tool_calls"#,
            "tools|C:a time {}",
        ),
        (
            r#"+{"function_call":{"name":"time","arguments":"{"}}
            +{"function_call":{"arguments":"}"}}
            =function_call"#,
            "tools|C:new1 time {}",
        ),
        (
            r#"+{"tool_calls":[]}
            +{"content":"x","tool_calls":null}
            =stop"#,
            "stop|T:x",
        ),
        // The declared name of a tool comes back (BR-115).
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"get_weather","arguments":"{}"}}]}
            =tool_calls"#,
            "tools|C:a get.weather {}",
        ),
        // Text around calls keeps its place.
        (
            r#"+{"content":"x"}
            +{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            +{"content":"y"}
            =tool_calls"#,
            "tools|T:x|C:a time {}|T:y",
        ),
        // State that the provider wants back with the call.
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"},"extra_content":{"google":{"thought_signature":"s"}}}]}
            =tool_calls"#,
            "tools|C:a time {}~{\"google\":{\"thought_signature\":\"s\"}}",
        ),
        // Malformed (L-16, Z4).
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{}"}}]}
            =tool_calls"#,
            "error MALFORMED_RESPONSE",
        ),
        (
            r#"+{"tool_calls":[{"function":{"arguments":"{}"}}]}
            =tool_calls"#,
            "error MALFORMED_RESPONSE",
        ),
        (
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"time","arguments":"{}"}}]}
            =tool_calls"#,
            "error MALFORMED_RESPONSE",
        ),
    ]);
    // Three calls in one message (BR-076), and very many.
    let many: String = (0..100)
        .map(|n| format!("+{{\"tool_calls\":[{{\"index\":{n},\"id\":\"c{n}\",\"function\":{{\"name\":\"time\",\"arguments\":\"{{}}\"}}}}]}}\n"))
        .collect();
    assert_eq!(comes_to(&format!("{many}=tool_calls")).matches("|C:").count(), 100);
    let far_too_many: String = (0..5_000)
        .map(|n| {
            format!(
                "+{{\"tool_calls\":[{{\"id\":\"c{n}\",\"function\":{{\"name\":\"t\",\"arguments\":\"{{}}\"}}}}]}}\n"
            )
        })
        .collect();
    assert_eq!(comes_to(&format!("{far_too_many}=tool_calls")), "error MALFORMED_RESPONSE");
}

/// L-13: counts from wherever they are, made disjoint; odd ones are unknown, not zero (BR-089).
#[test]
fn usage() {
    let answer = |usage: &str| comes_to(&format!("+{{\"content\":\"x\"}}\n=stop\n{usage}\n[DONE]"));
    for (usage, wanted) in [
        (r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}"#, "|U:9,0,0,4,0"),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":3}}}"#,
            "|U:4,5,0,1,3",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_cache_hit_tokens":5,"prompt_cache_miss_tokens":4}}"#,
            "|U:4,5,0,4,0",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5,"cache_creation_tokens":2}}}"#,
            "|U:2,5,2,4,0",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":20,"completion_tokens_details":{"reasoning_tokens":7}}}"#,
            "|U:9,0,0,4,7",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":20,"completion_tokens_details":{"reasoning_tokens":4}}}"#,
            "|U:9,0,0,7,4",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":50}}}"#,
            "|U:0,9,0,4,0",
        ),
        (
            r#"{"choices":[],"usage":{"prompt_tokens":9.0,"completion_tokens":4.0,"prompt_tokens_details":null,"completion_tokens_details":null}}"#,
            "|U:9,0,0,4,0",
        ),
        (r#"{"choices":[{"index":0,"delta":{},"usage":{"prompt_tokens":9,"completion_tokens":4}}]}"#, "|U:9,0,0,4,0"),
        (r#"{"x_groq":{"usage":{"prompt_tokens":9,"completion_tokens":4}},"choices":[]}"#, "|U:9,0,0,4,0"),
        (r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#, "|U:9,0,0,4,0"),
        (r#"{"choices":[],"usage":null}"#, ""),
        (r#"{"choices":[],"usage":{}}"#, ""),
        (r#"{"choices":[],"usage":{"prompt_tokens":-3,"completion_tokens":4}}"#, ""),
        (r#"{"choices":[],"usage":{"prompt_tokens":"many","completion_tokens":4}}"#, ""),
    ] {
        assert_eq!(answer(usage), format!("stop|T:x{wanted}"), "{usage}");
    }
    // Counts with every chunk: the last ones stand, and there is one usage.
    let running = r#"{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}
        {"choices":[{"delta":{"content":"y"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
    assert_eq!(comes_to(running), "stop|T:xy|U:9,0,0,2,0");
}

/// BR-085, BR-086, BR-088: errors inside the stream, and events that are none of our business.
#[test]
fn errors_and_foreign_events() {
    check(&[
        ("+{\"content\":\"x\"}\n{\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}\n[DONE]", "error SERVER"),
        ("{\"error\":{\"message\":\"bad\",\"type\":\"invalid_request_error\"}}", "error INVALID_REQUEST"),
        ("{\"error\":{\"message\":\"slow\",\"code\":429}}", "error RATE_LIMIT"),
        ("{\"error\":{\"code\":\"insufficient_quota\",\"message\":\"pay\"}}", "error QUOTA"),
        ("{\"error\":\"out of memory\"}", "error UNKNOWN"),
        ("{\"object\":\"error\",\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}", "error SERVER"),
        ("!event: error\n{\"message\":\"x\",\"type\":\"overloaded_error\"}", "error SERVER"),
        ("!event: error\n{\"error\":{\"type\":\"rate_limit_error\"}}", "error RATE_LIMIT"),
        (
            "{\"error\":{\"code\":502,\"message\":\"x\"},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}",
            "error SERVER",
        ),
        (
            "{\"choices\":[{\"index\":0,\"delta\":{},\"error\":{\"code\":503,\"message\":\"x\"},\"finish_reason\":\"error\"}]}",
            "error SERVER",
        ),
        ("{\"error\":null,\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}", "stop|T:x"),
        ("!: OPENROUTER PROCESSING\n!\n+{\"content\":\"x\"}\n!: keep-alive\n!\n=stop", "stop|T:x"),
        ("!event: ping\nnot json\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("!event: foo\n{\"type\":\"foo\"}\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("!event: message\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("{\"type\":\"ping\"}\nnull\n3\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("!data\n!\n!data:\n!\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        (
            "!data:{\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n!\n!data:[DONE]",
            "stop|T:x",
        ),
        ("{\"choices\":[],\"prompt_filter_results\":[{}]}\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("{\"choices\":null}\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        ("{\"choices\":[{\"index\":0,\"delta\":null}]}\n+{\"content\":\"x\"}\n=stop", "stop|T:x"),
        (
            "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"},\"finish_reason\":\"stop\"}]}\n+{\"content\":\"x\"}\n=stop",
            "stop|T:x",
        ),
        ("not json\n+{\"content\":\"x\"}\n=stop", "error INVALID_RESPONSE"),
        ("+{\"content\":\"x\"}\n{broken\n=stop", "error INVALID_RESPONSE"),
        ("{\"choices\":{}}", "error INVALID_RESPONSE"),
        ("{\"choices\":[{\"delta\":[]}]}", "error INVALID_RESPONSE"),
        ("+{\"content\":5}\n=stop", "error INVALID_RESPONSE"),
        ("+{\"tool_calls\":5}\n=stop", "error INVALID_RESPONSE"),
        ("{\"choices\":[{\"delta\":{},\"finish_reason\":5}]}", "error INVALID_RESPONSE"),
    ]);
}

fn of_body(body: &str) -> String {
    let mut mapper = mapper();
    whole_body(&mut mapper, body.as_bytes());
    told(&mapper.blocks().take().collect::<Vec<_>>())
}

/// Answers that are no stream: an error, a whole answer, or a page.
#[test]
fn whole_bodies() {
    for (body, wanted) in [
        (r#"{"error":{"message":"x","type":"server_error"}}"#, "error SERVER"),
        (r#"[{"error":{"code":429,"message":"x"}}]"#, "error RATE_LIMIT"),
        (
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"x","tool_calls":[{"id":"a","type":"function","function":{"name":"time","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            "tools|T:x|C:a time {}|U:1,0,0,2,0",
        ),
        (r#"{"choices":[{"message":{"content":"x"}}]}"#, "error INVALID_RESPONSE"),
        (r#"{"status":"ok"}"#, "error INVALID_RESPONSE"),
        ("<html><body>Sign in</body></html>", "error INVALID_RESPONSE"),
        ("{\"choices\":[{\"message\":", "error INVALID_RESPONSE"),
        ("[]", "error INVALID_RESPONSE"),
    ] {
        assert_eq!(of_body(body), wanted, "{body}");
    }
}

/// The whole answer and its stream come to the same (BR-077).
#[test]
fn whole_and_streamed_answers_agree() {
    let streamed = comes_to(
        r#"+{"reasoning_content":"hm"}
        +{"content":"Let me "}
        +{"content":"look."}
        +{"tool_calls":[{"index":0,"id":"a","function":{"name":"time","arguments":"{"}}]}
        +{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}
        =tool_calls"#,
    );
    let whole = of_body(
        r#"{"choices":[{"message":{"reasoning_content":"hm","content":"Let me look.","tool_calls":[{"id":"a","function":{"name":"time","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#,
    );
    assert_eq!(streamed, whole);
}
