//! Odd answers: what they come to, exactly.

use crate::providers::{
    anthropic::response::AnthropicMapper,
    exchange::{Mapper, whole_body},
    testing::{play, told},
    wire::ToolNames,
};

fn mapper() -> AnthropicMapper {
    AnthropicMapper::new("p", "m", ToolNames::of(["get.weather", "time"]))
}

/// A stream in short form: `<I BLOCK` opens, `+I DELTA` adds, `>I` closes, `=LABEL` is a reason to stop, `.` the last
/// event, `!` a raw line, anything else the data of an event.
fn stream(short: &str) -> String {
    let event = |kind: &str, rest: String| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let one = |line: &str| {
        let (kind, rest) = line.split_at(1);
        let (index, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        match kind {
            "<" => event("content_block_start", format!(",\"index\":{index},\"content_block\":{tail}")),
            "+" => event("content_block_delta", format!(",\"index\":{index},\"delta\":{tail}")),
            ">" => event("content_block_stop", format!(",\"index\":{index}")),
            "=" => event("message_delta", format!(",\"delta\":{{\"stop_reason\":\"{rest}\"}}")),
            "." => event("message_stop", String::new()),
            "!" => format!("{rest}\n"),
            _ => format!("data: {line}\n\n"),
        }
    };
    short.lines().map(str::trim).filter(|line| !line.is_empty()).map(one).collect()
}

fn comes_to(short: &str) -> String {
    told(&play(&mut mapper(), [stream(short).as_bytes()]))
}

const TEXT: &str = "<0 {\"type\":\"text\",\"text\":\"\"}\n+0 {\"type\":\"text_delta\",\"text\":\"x\"}\n>0\n";
const CALL: &str = "<1 {\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"time\",\"input\":{}}\n\
    +1 {\"type\":\"input_json_delta\",\"partial_json\":\"{\"}\n+1 {\"type\":\"input_json_delta\",\"partial_json\":\"}\"}\n>1\n";

#[track_caller]
fn check(table: &[(&str, &str)]) {
    for (short, wanted) in table {
        let short = short.replace("TEXT", TEXT).replace("CALL", CALL);
        assert_eq!(comes_to(&short), *wanted, "{short}");
    }
}

/// Text and thinking in all their forms.
#[test]
fn text_and_thinking() {
    check(&[
        ("TEXT =end_turn\n.", "stop|T:x"),
        (
            "<0 {\"type\":\"text\",\"text\":\"Hel\"}\n+0 {\"type\":\"text_delta\",\"text\":\"lo\"}\n>0\n=end_turn\n.",
            "stop|T:Hello",
        ),
        (
            "<0 {\"type\":\"text\"}\n+0 {\"type\":\"text_delta\",\"text\":\"你好 🌍\"}\n>0\n=end_turn\n.",
            "stop|T:你好 🌍",
        ),
        (
            "<0 {\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}\n+0 {\"type\":\"thinking_delta\",\"thinking\":\"hm\"}\n\
             +0 {\"type\":\"signature_delta\",\"signature\":\"s1\"}\n+0 {\"type\":\"signature_delta\",\"signature\":\"s2\"}\n>0\n=end_turn\n.",
            "stop|R:hm~{\"signed\":{\"model\":\"m\",\"signature\":\"s1s2\"}}",
        ),
        (
            "<0 {\"type\":\"thinking\",\"thinking\":\"all\",\"signature\":\"s\"}\n>0\n=end_turn\n.",
            "stop|R:all~{\"signed\":{\"model\":\"m\",\"signature\":\"s\"}}",
        ),
        // A thought that is not shown has only its signature (L-17: it is an answer).
        (
            "<0 {\"type\":\"thinking\",\"thinking\":\"\"}\n+0 {\"type\":\"signature_delta\",\"signature\":\"s\"}\n>0\n=end_turn\n.",
            "stop|R:~{\"signed\":{\"model\":\"m\",\"signature\":\"s\"}}",
        ),
        ("<0 {\"type\":\"thinking\",\"thinking\":\"hm\"}\n>0\n=end_turn\n.", "stop|R:hm"),
        (
            "<0 {\"type\":\"redacted_thinking\",\"data\":\"opaque\"}\n>0\n<1 {\"type\":\"text\",\"text\":\"x\"}\n>1\n=end_turn\n.",
            "stop|R:~{\"redacted\":{\"model\":\"m\",\"data\":\"opaque\"}}|T:x",
        ),
        // Blocks that are not for us.
        (
            "<0 {\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":\"web\",\"input\":{}}\n+0 {\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}\n>0\n\
             <1 {\"type\":\"web_search_tool_result\",\"content\":[]}\n>1\n<2 {\"type\":\"text\",\"text\":\"x\"}\n\
             +2 {\"type\":\"citations_delta\",\"citation\":{}}\n>2\n=end_turn\n.",
            "stop|T:x",
        ),
        // Interleaved, and without indexes.
        (
            "<0 {\"type\":\"text\",\"text\":\"a\"}\n<1 {\"type\":\"text\",\"text\":\"b\"}\n+0 {\"type\":\"text_delta\",\"text\":\"A\"}\n>1\n>0\n=end_turn\n.",
            "stop|T:aA|T:b",
        ),
        (
            "{\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\
             {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\
             {\"type\":\"content_block_stop\"}\n=end_turn\n.",
            "stop|T:x",
        ),
        // Gateways that count every block from 0.
        ("TEXT <0 {\"type\":\"text\",\"text\":\"y\"}\n>0\n=end_turn\n.", "stop|T:x|T:y"),
        // A gateway that never closes its blocks.
        ("<0 {\"type\":\"text\",\"text\":\"x\"}\n=end_turn\n.", "stop|T:x"),
        // The name of the event in the place of a type.
        ("!event: message_delta\n{\"delta\":{\"stop_reason\":\"end_turn\"}}\n.", "error EMPTY_RESPONSE"),
    ]);
}

/// BR-067, BR-083, BR-089, L-18, L-19: how an answer ends.
#[test]
fn endings() {
    for label in ["end_turn", "stop_sequence", "pause_turn", "compaction", "weird"] {
        check(&[
            (&format!("TEXT ={label}\n."), "stop|T:x"),
            (&format!("TEXT CALL ={label}\n."), "tools|T:x|C:a time {}"),
        ]);
    }
    for label in ["max_tokens", "model_context_window_exceeded"] {
        check(&[(&format!("TEXT CALL ={label}\n."), "max|T:x")]);
    }
    check(&[
        ("TEXT CALL =tool_use\n.", "tools|T:x|C:a time {}"),
        ("TEXT =tool_use\n.", "stop|T:x"),
        ("TEXT CALL =refusal\n.", "error CONTENT_FILTER"),
        ("=refusal\n.", "error CONTENT_FILTER"),
        ("=end_turn\n.", "error EMPTY_RESPONSE"),
        ("<0 {\"type\":\"text\",\"text\":\" \"}\n>0\n=end_turn\n.", "error EMPTY_RESPONSE"),
        ("=max_tokens\n.", "max"),
        // The reason is enough; the last event may be missing.
        ("TEXT =end_turn", "stop|T:x"),
        ("TEXT =end_turn\n[DONE]", "stop|T:x"),
        // No reason: cut.
        ("TEXT .", "error STREAM_CLOSED"),
        ("TEXT", "error STREAM_CLOSED"),
        ("TEXT {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null}}\n.", "error STREAM_CLOSED"),
        ("TEXT {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"\"}}\n.", "error STREAM_CLOSED"),
        ("", "error TRANSPORT"),
        (".", "error TRANSPORT"),
        ("{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}", "error TRANSPORT"),
        ("CALL", "error TRANSPORT"),
        // Nothing behind the end is read.
        ("TEXT =end_turn\n.\n<1 {\"type\":\"text\",\"text\":\"y\"}\n", "stop|T:x"),
        ("TEXT =end_turn\n{broken", "stop|T:x"),
    ]);
}

/// BR-076, BR-079, L-15, L-16, Z4: calls.
#[test]
fn calls() {
    let call = |block: &str, deltas: &str| comes_to(&format!("<0 {block}\n{deltas}\n>0\n=tool_use\n."));
    let json = |piece: &str| format!("+0 {{\"type\":\"input_json_delta\",\"partial_json\":{piece}}}\n");
    for (block, deltas, wanted) in [
        (r#"{"type":"tool_use","id":"a","name":"time"}"#, json("\"{\"") + &json("\"}\""), "tools|C:a time {}"),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#, json("\"\""), "tools|C:a time "),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#, String::new(), "tools|C:a time "),
        (r#"{"type":"tool_use","id":"a","name":"time","input":null}"#, String::new(), "tools|C:a time "),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{"z":1}}"#, String::new(), "tools|C:a time {\"z\":1}"),
        (
            r#"{"type":"tool_use","id":"a","name":"time","input":{"z":1}}"#,
            json("\"{\\\"z\\\":1}\""),
            "tools|C:a time {\"z\":1}",
        ),
        (r#"{"type":"tool_use","id":"a","name":"time","input":"{oops"}"#, String::new(), "tools|C:a time {oops"),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#, json("\"{oops\""), "tools|C:a time {oops"),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#, json("{\"z\":1}"), "tools|C:a time {\"z\":1}"),
        (r#"{"type":"tool_use","id":"a","name":"time","input":{}}"#, json("null"), "tools|C:a time "),
        (r#"{"type":"tool_use","id":"","name":"time","input":{}}"#, json("\"{}\""), "tools|C:new1 time {}"),
        (r#"{"type":"tool_use","name":"get_weather","input":{}}"#, json("\"{}\""), "tools|C:new1 get.weather {}"),
        (r#"{"type":"tool_use","id":"a","name":"","input":{}}"#, json("\"{}\""), "error MALFORMED_RESPONSE"),
        (r#"{"type":"tool_use","id":"a","input":{}}"#, json("\"{}\""), "error MALFORMED_RESPONSE"),
    ] {
        assert_eq!(call(block, &deltas), wanted, "{block} {deltas}");
    }
    let three: String = (0..3)
        .map(|n| format!("<{n} {{\"type\":\"tool_use\",\"id\":\"c{n}\",\"name\":\"time\"}}\n+{n} {{\"type\":\"input_json_delta\",\"partial_json\":\"{{}}\"}}\n>{n}\n"))
        .collect();
    assert_eq!(comes_to(&format!("{three}=tool_use\n.")), "tools|C:c0 time {}|C:c1 time {}|C:c2 time {}");
    let same = CALL.replace('1', "0") + CALL;
    assert_eq!(comes_to(&format!("{same}=tool_use\n.")), "error MALFORMED_RESPONSE");
}

/// L-11, L-12, scenario 122: what breaks the protocol is never taken for an answer.
#[test]
fn broken_streams() {
    check(&[
        ("+0 {\"type\":\"text_delta\",\"text\":\"x\"}\n=end_turn\n.", "error MALFORMED_RESPONSE"),
        ("TEXT +0 {\"type\":\"text_delta\",\"text\":\"y\"}\n=end_turn\n.", "error MALFORMED_RESPONSE"),
        (
            "<0 {\"type\":\"text\",\"text\":\"\"}\n+1 {\"type\":\"text_delta\",\"text\":\"y\"}\n=end_turn\n.",
            "error MALFORMED_RESPONSE",
        ),
        (
            "<0 {\"type\":\"text\",\"text\":\"\"}\n+0 {\"type\":\"thinking_delta\",\"thinking\":\"y\"}",
            "error MALFORMED_RESPONSE",
        ),
        (
            "<0 {\"type\":\"text\",\"text\":\"\"}\n+0 {\"type\":\"input_json_delta\",\"partial_json\":\"y\"}",
            "error MALFORMED_RESPONSE",
        ),
        (
            "<0 {\"type\":\"text\",\"text\":\"\"}\n+0 {\"type\":\"signature_delta\",\"signature\":\"y\"}",
            "error MALFORMED_RESPONSE",
        ),
        (
            "<0 {\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"t\"}\n+0 {\"type\":\"text_delta\",\"text\":\"y\"}",
            "error MALFORMED_RESPONSE",
        ),
        ("<0 {\"type\":\"text\",\"text\":\"\"}\n<0 {\"type\":\"text\",\"text\":\"\"}", "error MALFORMED_RESPONSE"),
        ("<-1 {\"type\":\"text\",\"text\":\"\"}", "error MALFORMED_RESPONSE"),
        ("<1e99 {\"type\":\"text\",\"text\":\"\"}", "error MALFORMED_RESPONSE"),
        ("<\"0\" {\"type\":\"text\",\"text\":\"\"}", "error MALFORMED_RESPONSE"),
        ("<0 {}", "error INVALID_RESPONSE"),
        ("{\"type\":\"content_block_start\",\"index\":0}", "error INVALID_RESPONSE"),
        ("{\"type\":\"content_block_delta\",\"index\":0}", "error INVALID_RESPONSE"),
        ("{broken", "error INVALID_RESPONSE"),
        // A second end of one block is ignored (L-12).
        ("TEXT >0\n=end_turn\n.", "stop|T:x"),
        (">5\nTEXT =end_turn\n.", "stop|T:x"),
    ]);
    let many: String = (0..5_000).map(|n| format!("<{n} {{\"type\":\"text\",\"text\":\"x\"}}\n>{n}\n")).collect();
    assert_eq!(comes_to(&many), "error MALFORMED_RESPONSE");
}

/// BR-085, BR-086, BR-088: errors inside the stream, and events that are none of our business.
#[test]
fn errors_and_foreign_events() {
    let error = |kind: &str| {
        comes_to(&format!(
            "{TEXT}!event: error\n{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"x\"}}}}"
        ))
    };
    for (kind, wanted) in [
        ("overloaded_error", "SERVER"),
        ("api_error", "SERVER"),
        ("rate_limit_error", "RATE_LIMIT"),
        ("invalid_request_error", "INVALID_REQUEST"),
        ("authentication_error", "AUTH"),
        ("permission_error", "AUTH"),
        ("billing_error", "QUOTA"),
        ("request_too_large", "CONTEXT_WINDOW_EXCEEDED"),
        ("not_found_error", "HTTP_404"),
        ("timeout_error", "TIMEOUT"),
        ("brand_new_error", "UNKNOWN"),
    ] {
        assert_eq!(error(kind), format!("error {wanted}"), "{kind}");
    }
    check(&[
        (
            "!event: error\n{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long\"}}",
            "error CONTEXT_WINDOW_EXCEEDED",
        ),
        ("!event: error\n{\"message\":\"x\",\"type\":\"overloaded_error\"}", "error SERVER"),
        ("{\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}", "error SERVER"),
        ("{\"error\":{\"code\":529,\"message\":\"x\"}}", "error SERVER"),
        ("!event: ping\n{\"type\":\"ping\"}\nTEXT =end_turn\n.", "stop|T:x"),
        ("!event: ping\nnot json\nTEXT =end_turn\n.", "stop|T:x"),
        ("!event: foo\n{\"type\":\"foo\"}\nTEXT {\"type\":\"vertex_event\"}\n=end_turn\n.", "stop|T:x"),
        ("!: keep-alive\n!\nTEXT =end_turn\n.", "stop|T:x"),
        ("null\n3\n\"x\"\n{}\nTEXT =end_turn\n.", "stop|T:x"),
        ("CALL {\"type\":\"ping\"}\n=tool_use\n.", "tools|C:a time {}"),
    ]);
}

/// L-13, BR-089: counts are disjoint as they come; the later ones stand; unknown is not zero.
#[test]
fn usage() {
    let answer = |start: &str, end: &str| {
        comes_to(&format!(
            "{{\"type\":\"message_start\",\"message\":{{{start}}}}}\n{TEXT}\
             {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}}{end}}}\n."
        ))
    };
    for (start, end, wanted) in [
        ("\"usage\":{\"input_tokens\":9,\"output_tokens\":1}", ",\"usage\":{\"output_tokens\":4}", "|U:9,0,0,4,0"),
        (
            "\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":5,\"cache_creation_input_tokens\":2,\"output_tokens\":1}",
            ",\"usage\":{\"output_tokens\":4}",
            "|U:9,5,2,4,0",
        ),
        (
            "\"usage\":{\"input_tokens\":0,\"output_tokens\":0}",
            ",\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":5,\"output_tokens\":4}",
            "|U:9,5,0,4,0",
        ),
        (
            "\"usage\":{\"input_tokens\":9,\"output_tokens\":1}",
            ",\"usage\":{\"output_tokens\":7,\"output_tokens_details\":{\"thinking_tokens\":3}}",
            "|U:9,0,0,4,3",
        ),
        ("\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":null}", "", "|U:9,0,0,0,0"),
        ("", ",\"usage\":{\"output_tokens\":4}", "|U:0,0,0,4,0"),
        ("", "", ""),
        ("\"usage\":null", ",\"usage\":{}", ""),
        ("\"usage\":{\"input_tokens\":-1,\"output_tokens\":\"x\"}", "", ""),
    ] {
        assert_eq!(answer(start, end), format!("stop|T:x{wanted}"), "{start} {end}");
    }
}

/// Answers that are no stream: an error, a whole answer, or a page.
#[test]
fn whole_bodies() {
    for (body, wanted) in [
        (
            r#"{"type":"message","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"time","input":{"z":1}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":2}}"#,
            "tools|R:hm~{\"signed\":{\"model\":\"m\",\"signature\":\"s\"}}|T:x|C:a time {\"z\":1}|U:1,0,0,2,0",
        ),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, "error SERVER"),
        (r#"{"type":"message","content":[{"type":"text","text":"x"}]}"#, "error INVALID_RESPONSE"),
        (r#"{"status":"ok"}"#, "error INVALID_RESPONSE"),
        ("<html>Sign in</html>", "error INVALID_RESPONSE"),
    ] {
        let mut mapper = mapper();
        whole_body(&mut mapper, body.as_bytes());
        assert_eq!(told(&mapper.blocks().take().collect::<Vec<_>>()), wanted, "{body}");
    }
}
