use super::*;
use reqwest::header::{HeaderName, HeaderValue};
use std::time::{Duration, UNIX_EPOCH};

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect()
}

fn http(status: u16, body: &str) -> Failure {
    http_failure(status, &HeaderMap::new(), body.as_bytes(), UNIX_EPOCH)
}

/// 5.5, L-30, Z5: every status and every form of an error body that servers are known to send.
#[test]
fn answers_with_an_error_status() {
    for (status, body, wanted) in [
        (400, r#"{"error":{"message":"bad","type":"invalid_request_error"}}"#, "INVALID_REQUEST"),
        (422, r#"{"detail":[{"loc":["body","x"],"msg":"extra inputs","type":"extra_forbidden"}]}"#, "INVALID_REQUEST"),
        (401, r#"{"error":{"message":"no","code":"invalid_api_key"}}"#, "AUTH"),
        (403, r#"{"type":"error","error":{"type":"permission_error","message":"no"}}"#, "AUTH"),
        (402, r#"{"error":{"message":"Insufficient Balance","type":"unknown_error"}}"#, "QUOTA"),
        (404, r#"{"error":{"message":"no such model","code":"model_not_found"}}"#, "HTTP_404"),
        (405, "", "HTTP_405"),
        (409, "{}", "HTTP_409"),
        (301, "", "HTTP_301"),
        (408, "", "TIMEOUT"),
        (413, "<html>too large</html>", "CONTEXT_WINDOW_EXCEEDED"),
        (413, r#"{"type":"error","error":{"type":"request_too_large","message":"x"}}"#, "CONTEXT_WINDOW_EXCEEDED"),
        (429, r#"{"error":{"message":"Rate limited","type":"rate_limit_error","code":null}}"#, "RATE_LIMIT"),
        (429, r#"{"error":{"message":"pay","type":"insufficient_quota","code":"insufficient_quota"}}"#, "QUOTA"),
        (400, r#"{"error":{"message":"pay","code":"insufficient_quota"}}"#, "QUOTA"),
        (500, "oops", "SERVER"),
        (502, "<html>", "SERVER"),
        (503, r#"{"error":"model is loading"}"#, "SERVER"),
        (504, "", "SERVER"),
        (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, "SERVER"),
        (400, r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, "CONTEXT_WINDOW_EXCEEDED"),
        (400, r#"{"error":{"code":400,"message":"x","type":"exceed_context_size_error"}}"#, "CONTEXT_WINDOW_EXCEEDED"),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#,
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        (
            400,
            r#"{"object":"error","message":"This model's maximum context length is 8 tokens.","type":"BadRequestError","code":400}"#,
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        (500, r#"{"error":{"message":"prompt is too long"}}"#, "SERVER"),
        (400, r#"{"error":{"message":"x","code":"content_filter"}}"#, "CONTENT_FILTER"),
        (
            403,
            r#"{"error":{"code":403,"message":"flagged","metadata":{"flagged_input":"x","reasons":[]}}}"#,
            "CONTENT_FILTER",
        ),
        (429, r#"[{"error":{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED"}}]"#, "RATE_LIMIT"),
        (418, r#"{"error":{"message":"x","type":"overloaded_error"}}"#, "HTTP_418"),
        (400, "null", "INVALID_REQUEST"),
        (400, "\"text\"", "INVALID_REQUEST"),
    ] {
        let failure = http(status, body);
        assert_eq!((failure.code.as_str(), failure.status), (wanted, Some(status)), "{status} {body}");
        assert!(failure.message.contains(&format!("HTTP {status}")), "{}", failure.message);
    }
    let failure = http(500, "<html>\n <body>  bad   gateway</body>");
    assert!(failure.message.ends_with(": <html> <body> bad gateway</body>"), "{}", failure.message);
    assert!(http(500, &"x".repeat(1 << 20)).message.len() < 1_024);
}

/// BR-085, BR-086: an error inside a stream is told by its own type or status.
#[test]
fn errors_without_a_status() {
    for (body, wanted) in [
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, "SERVER"),
        (r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#, "SERVER"),
        (r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#, "RATE_LIMIT"),
        (r#"{"type":"error","error":{"type":"authentication_error","message":"x"}}"#, "AUTH"),
        (r#"{"type":"error","error":{"type":"timeout_error","message":"x"}}"#, "TIMEOUT"),
        (r#"{"error":{"type":"invalid_request_error","message":"x"}}"#, "INVALID_REQUEST"),
        (r#"{"error":{"type":"invalid_request_error","message":"prompt is too long"}}"#, "CONTEXT_WINDOW_EXCEEDED"),
        (r#"{"error":{"code":502,"message":"Provider disconnected"}}"#, "SERVER"),
        (r#"{"error":{"code":"429","message":"x","type":null}}"#, "RATE_LIMIT"),
        (r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, "QUOTA"),
        (r#"{"error":"something broke"}"#, "UNKNOWN"),
        (r#"{"error":{"type":"brand_new_error","message":"x"}}"#, "UNKNOWN"),
        (r#"{"object":"error","message":"x","type":"InternalServerError","code":500}"#, "SERVER"),
        (r#"{"object":"error","message":"x","type":"InternalServerError"}"#, "SERVER"),
        (r#"{"error":{"type":"not_found_error","message":"x"}}"#, "HTTP_404"),
    ] {
        let value: Value = serde_json::from_str(body).unwrap();
        assert_eq!(ErrorBody::within(&value).map(|error| error.failure().code), Some(wanted.to_owned()), "{body}");
    }
    for body in [r#"{"error":null,"choices":[]}"#, r#"{"choices":[]}"#, "3", "[]", r#"{"type":"ping"}"#] {
        let value: Value = serde_json::from_str(body).unwrap();
        assert_eq!(ErrorBody::within(&value), None, "{body}");
    }
}

/// L-43 needs the exact wait: milliseconds, seconds and dates; nonsense is no wait.
#[test]
fn waits() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    for (pairs, wanted) in [
        (vec![], None),
        (vec![("retry-after", "1")], Some(1_000)),
        (vec![("retry-after", " 2.5 ")], Some(2_500)),
        (vec![("llm_provider-retry-after", "1"), ("retry-after", "2")], Some(2_000)),
        (vec![("llm_provider-retry-after", "1")], Some(1_000)),
        (vec![("retry-after", "0")], Some(0)),
        (vec![("retry-after", "-4")], Some(0)),
        (vec![("retry-after", "soon")], None),
        (vec![("retry-after", "NaN")], None),
        (vec![("retry-after", "1e99")], Some(RETRY_AFTER_MAX_MS)),
        (vec![("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")], Some(10_000)),
        (vec![("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT")], Some(0)),
        (vec![("retry-after", "Fri, 06 Nov 2099 08:49:27 GMT")], Some(RETRY_AFTER_MAX_MS)),
        (vec![("retry-after", "9"), ("retry-after-ms", "150")], Some(150)),
        (vec![("retry-after", "9"), ("retry-after-ms", "x")], Some(9_000)),
    ] {
        assert_eq!(retry_after_ms(&headers(&pairs), now), wanted, "{pairs:?}");
    }
    let failure = http_failure(429, &headers(&[("retry-after", "1"), ("x-request-id", "req-1")]), b"", now);
    assert_eq!((failure.retry_after_ms, failure.request_id.as_deref()), (Some(1_000), Some("req-1")));
}

/// A captured refusal, as it came over the wire.
#[test]
fn the_captured_refusal() {
    let text = include_str!("../../../tests/fixtures/streams/aimock_openai_429.txt").replace("\r\n", "\n");
    let (head, body) = text.split_once("\n\n").unwrap();
    let pairs: Vec<(String, &str)> =
        head.lines().skip(1).filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v)).collect();
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let failure = http_failure(429, &headers(&pairs), body.as_bytes(), UNIX_EPOCH);
    assert_eq!((failure.code.as_str(), failure.retry_after_ms), ("RATE_LIMIT", Some(1_000)));
    assert_eq!(failure.request_id.as_deref(), Some("req-wOdzQGSozoAm7jAt"));
}
